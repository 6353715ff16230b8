"""What GPU time, operations and advice cost beside the job, and what rows of Python frames cost it.

CPU seconds are user + system of a process as its parent is told; parts of the job are timed inside it. One run each,
timings vary by some per cent.

    python benchmarks/wings.py                        300 k and 1 M events; 2 GB of disk
    python benchmarks/wings.py --events 300000

Exit status 1 if a limit is missed: GPU time, operations, phases and advice together at most 10 % of the job without
them; the job with Python frames (two in five of all rows) at most 30 % above the one without, within 1.2 GB.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import synthetic
from scale import Cost, run

SIZES = (300_000, 1_000_000)
MOST_WINGS, MOST_FRAMES, MOST_MB = 0.10, 0.30, 1200
FRAMES_PER_OP = 2.1  # of 0.31 M ops in 1 M rows: 0.65 M frames, two in five of all rows
LINES = 400  # of the program, and modules
TIMED = ("operations", "gpu")  # wings that are as old as this benchmark
HOOKS = ("gaining", "finish")


@dataclass(frozen=True, slots=True)
class Measured:
    """One size. ``parts_s``: CPU seconds of the parts of the job, by name; ``advice_s``: of a process of its own, less
    that of one that does nothing."""

    events: int
    job: Cost
    parts_s: dict[str, float]
    advice_s: float
    frames: int
    with_frames: Cost

    @property
    def wings(self) -> float:
        """All of it relative to the job without it."""
        inside = sum(self.parts_s.values())
        return (inside + self.advice_s) / (self.job.cpu_s - inside)


class _WithFrames(synthetic.Run):
    """The same run, recorded with stacks: around each op some frames of the program and of modules."""

    frames = 0
    owed = 0.0

    def end(self, thread: Any, category: str = "cpu_op") -> None:
        op = thread.stack[-1]
        super().end(thread, category)
        self.owed += FRAMES_PER_OP
        while self.owed >= 1:
            self.owed -= 1
            k = (op.rf_id + self.frames) % LINES
            name = f"nn.Module: Linear_{k}" if k % 7 == 0 else f"train/model.py({k}): forward_{k}"
            self._row(
                f'"ph": "X", "cat": "python_function", "name": "{name}", "pid": {synthetic.PID}, "tid": {thread.tid},\n'
                f'    "ts": {synthetic.us(op.start_ns)}, "dur": {synthetic.us(thread.now_ns - op.start_ns)},\n'
                f'    "args": {{"Python parent id": {self.frames}, "Python id": {self.frames + 1}, "Ev Idx": '
                f"{self.frames}}}"
            )
            self.events -= 1  # so that the rest of the run is the same
            type(self).frames += 1


def timed_job(folder: Path, out: Path) -> None:
    """Does the job in this process and prints what its parts took. For a process of its own."""
    from graphlink.cli import main
    from graphlink.wings import wing

    spent: Counter[str] = Counter()

    def clocked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                spent[name] += time.process_time() - began

        return timed

    for name in TIMED:
        kind = type(wing(name))
        for hook in HOOKS:
            setattr(kind, hook, clocked(f"{name} {hook}", getattr(kind, hook)))
    status = main([*pair(folder), "--out", str(out), "--force", "--quiet"])
    print(json.dumps(spent))
    sys.exit(status)


def pair(folder: Path) -> list[str]:
    return ["--et", str(folder / "et_0.json"), "--kineto", str(folder / "kineto_0.json")]


def job_of(folder: Path) -> tuple[Cost, dict[str, float]]:
    """The job on the pair in ``folder``: its cost, and that of its parts."""
    with tempfile.NamedTemporaryFile("r") as told:
        command = f"{sys.executable} {__file__} --part {folder} {folder / 'out'} > {told.name}"
        cost = run(["sh", "-c", f"exec {command}"])
        return cost, json.loads(told.read().splitlines()[-1])


def measure(events: int, folder: Path) -> Measured:
    folder.mkdir()
    written = synthetic.write(folder, events)
    job, parts_s = job_of(folder)
    advice = run([sys.executable, "-m", "graphlink", "advice", str(folder / "out")])
    nothing = run([sys.executable, "-m", "graphlink", "--version"])
    shutil.rmtree(folder)
    folder.mkdir()
    plain, synthetic.Run = synthetic.Run, _WithFrames  # type: ignore[misc]
    _WithFrames.frames = 0
    synthetic.write(folder, events)
    synthetic.Run = plain  # type: ignore[misc]
    with_frames, _ = job_of(folder)
    shutil.rmtree(folder)
    return Measured(written.events, job, parts_s, advice.cpu_s - nothing.cpu_s, _WithFrames.frames, with_frames)


def lines(row: Measured) -> list[str]:
    inside = sum(row.parts_s.values())
    bare = row.job.cpu_s - inside
    parts = ", ".join(
        f"{name} {100 * s / bare:.1f} %" for name, s in sorted(row.parts_s.items(), key=lambda item: -item[1])
    )
    frames = row.with_frames.cpu_s / row.job.cpu_s - 1
    limits = [f"limit {100 * most:+.0f} %" for most in (MOST_WINGS, MOST_FRAMES)]
    return [
        f"{row.events:,} events: the job {row.job.cpu_s:.2f} CPU s, {row.job.peak_mb:.0f} MB",
        f"  GPU time, operations and advice  {100 * row.wings:+.1f} % of the job without them ({limits[0]})",
        f"    in the job {100 * inside / bare:+.1f} %: {parts}",
        f"    advice, a command of its own, {100 * row.advice_s / bare:+.1f} %",
        f"  with {row.frames:,} Python frames  {100 * frames:+.1f} % ({limits[1]}), {row.with_frames.peak_mb:.0f} MB "
        f"(limit {MOST_MB} MB)",
    ]


def missed(row: Measured) -> list[str]:
    """The limits that were not met."""
    out = []
    if row.wings > MOST_WINGS:
        out.append(f"{row.events:,} events: GPU time, operations and advice cost {100 * row.wings:.1f} %")
    if row.with_frames.cpu_s > (1 + MOST_FRAMES) * row.job.cpu_s:
        out.append(
            f"{row.events:,} events: Python frames cost {100 * (row.with_frames.cpu_s / row.job.cpu_s - 1):.1f} %"
        )
    if row.with_frames.peak_mb > MOST_MB:
        out.append(f"{row.events:,} events: {row.with_frames.peak_mb:.0f} MB with Python frames")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, nargs="+", default=list(SIZES), metavar="N")
    parser.add_argument("--tmp", type=Path, help="where the files are written (default: the system's temporary folder)")
    parser.add_argument("--part", type=Path, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        timed_job(*arguments.part)
    problems = []
    with tempfile.TemporaryDirectory(dir=arguments.tmp, prefix="graphlink-bench-") as tmp:
        for events in arguments.events:
            row = measure(events, Path(tmp) / str(events))
            print("\n".join(lines(row)), flush=True)
            problems += missed(row)
    for problem in problems:
        print(f"missed: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
