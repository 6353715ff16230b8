"""CPU time and memory of the installed ``graphlink`` over the size of its input, against a floor measured in the same
run.

The floor is what msgspec's typed decode of both files plus protobuf's encode of as many nodes as the graph has cost,
the better of two each (``floor.py``). CPU seconds are user + system of the command and its second process, as ``wait4``
tells, the better of two as well (10 M: of one); the peak memory is that of both together (PSS, looked at 20 times a
second, in a run of its own: looking takes the command some per cent of its time). ``wall``: time on the clock as a
share of that of one process (``--jobs 1``).

After the sizes: a small pair (``fixtures/demo``) without and with HTA, and what-ifs of the 1 M graph after the first.

    python benchmarks/scale.py                        100 k, 300 k, 1 M and 3 M events; at least 5 GB of disk
    python benchmarks/scale.py --events 100000 300000
    python benchmarks/scale.py --ten-million          10 M events too: time and memory, no floor

Exit status 1 if a limit is missed: 1 M events within 1.75 floors (``--sync both``), 1.35 floors (``--sync cuda``) and 1
GB; time no more than linear (exponent 1.05 of a fit over all sizes); 10 M events within 4 GB; a small pair within 0.35
and, with HTA, 0.9 CPU s; a what-if within 1 CPU s a million nodes.
"""

from __future__ import annotations

import argparse
import compileall
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import synthetic

import graphlink as graphlink_package

SIZES = (100_000, 300_000, 1_000_000, 3_000_000)
MOST_BOTH, MOST_CUDA, MOST_MB, MOST_EXPONENT = 1.75, 1.35, 1000, 1.05
MOST_SMALL_S, MOST_SMALL_HTA_S, MOST_WHAT_IF_S = 0.35, 0.9, 1.0
TEN_MILLION, TEN_MILLION_MB = 10_000_000, 4000
HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds (user + system) and seconds on the clock of a command and the processes that it started; peak MB
    where it was watched.
    """

    cpu_s: float
    wall_s: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One size: ``nodes`` of the graph; ``floor_s`` None where it was not measured."""

    events: int
    nodes: int
    floor_s: float | None
    cuda: Cost
    both: Cost
    alone: Cost  # ``--sync cuda`` in one process
    peak_mb: float  # ``--sync both``
    what_if_s: float | None = None  # a million nodes


def run(command: list[str], *, watched: bool = False) -> Cost:
    """Runs a command to its end, ``watched`` for its memory; if it fails, so does the benchmark, with what it said."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        ended, together_mb = 0, 0.0
        while not ended:
            if watched:
                together_mb = max(together_mb, pss_mb(process.pid))
                time.sleep(0.05 if together_mb else 0.01)
            ended, status, usage = os.wait4(process.pid, os.WNOHANG if watched else 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            sys.exit(f"{' '.join(command)}\nexit status {process.returncode}\n{said.read().decode(errors='replace')}")
    per_mb = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return Cost(
        usage.ru_utime + usage.ru_stime, time.perf_counter() - began, max(together_mb, usage.ru_maxrss / per_mb)
    )


def pss_mb(process: int) -> float:
    """Memory of a process and its children, what they share once; 0 where the system does not tell."""
    total = 0
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        for one in (process, *children):
            total += int(Path(f"/proc/{one}/smaps_rollup").read_text().partition("\nPss:")[2].split()[0])
    except (OSError, IndexError):  # it ended, or there is no such file
        pass
    return total / 1024


def graphlink(folder: Path, sync: str, *more: str, out: Path | None = None, watched: bool = False) -> Cost:
    """The installed command on the pair in ``folder``."""
    beside = Path(sys.executable).with_name("graphlink")
    command = str(beside) if beside.exists() else shutil.which("graphlink")
    if command is None:
        sys.exit("graphlink is not installed: make bench")
    pair = ["--et", str(folder / "et_0.json"), "--kineto", str(folder / "kineto_0.json")]
    return run(
        [command, *pair, "--out", str(out or folder / "out"), "--force", "--quiet", "--sync", sync, *more],
        watched=watched,
    )


def floor_s(*arguments: str) -> float:
    """CPU seconds of ``floor.py``, the better of two."""
    command = [sys.executable, str(HERE / "floor.py"), *arguments]
    return min(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(2))


def measure(events: int, folder: Path, *, with_floor: bool) -> Measured:
    """Writes a pair of ``events`` rows into ``folder`` and runs everything on it."""
    folder.mkdir()
    written = synthetic.write(folder, events)
    os.sync()  # or the system would write it to disk beside what is measured
    again = range(2 if with_floor else 1)
    best = attrgetter("cpu_s")
    alone = min((graphlink(folder, "cuda", "--jobs", "1") for _ in again), key=best)
    cuda, both = (min((graphlink(folder, sync) for _ in again), key=best) for sync in ("cuda", "both"))
    peak_mb = graphlink(folder, "both", watched=True).peak_mb
    nodes = json.loads((folder / "out" / "summary.json").read_text())["ranks"][0]["graph_nodes"]
    pair = str(folder / "kineto_0.json"), str(folder / "et_0.json")
    floor = floor_s("decode", *pair) + floor_s("encode", str(nodes)) if with_floor else None
    what_if = what_if_s(folder / "out") / nodes * 1e6 if 1_000_000 <= written.events < 1_100_000 else None
    shutil.rmtree(folder)
    return Measured(written.events, nodes, floor, cuda, both, alone, peak_mb, what_if)


def what_if_s(folder: Path) -> float:
    """CPU seconds of a what-if after the first, the better of three."""
    opened, took = graphlink_package.open(folder), []
    for percent in (50, 60, 70, 80):
        before = time.process_time()
        opened.replay(scale=f"kernel={percent / 100}")
        took.append(time.process_time() - before)
    return min(took[1:])


def small(tmp: Path) -> list[str]:
    """Prints what the demo's pair costs, without and with HTA, the better of five; returns the limits that were
    missed.
    """
    demo = HERE.parent / "fixtures" / "demo"
    plain, with_hta = (
        min(graphlink(demo, sync, out=tmp / "small").cpu_s for _ in range(5)) for sync in ("cuda", "both")
    )
    print(f"small pair   {plain:.2f} s, with HTA {with_hta:.2f} s", flush=True)
    limits = ((plain, MOST_SMALL_S, "a small pair"), (with_hta, MOST_SMALL_HTA_S, "a small pair with HTA"))
    return [f"{what} takes more than {limit} s" for took, limit, what in limits if took > limit]


def exponent(points: list[tuple[float, float]]) -> float:
    """Slope of log y over log x by least squares."""
    x, y = ([math.log(point[k]) for point in points] for k in (0, 1))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def line(row: Measured) -> str:
    cells = [f"{row.events:>12,}", f"{row.nodes:>11,}", f"{row.floor_s:>8.2f}" if row.floor_s else f"{'-':>8}"]
    for cost in (row.cuda, row.both):
        cells += [f"{cost.cpu_s:>8.2f}", f"{cost.cpu_s / row.floor_s:>6.2f}" if row.floor_s else f"{'-':>6}"]
    return "".join([*cells, f"{row.peak_mb:>9.0f}", f"{row.cuda.wall_s / row.alone.wall_s:>6.2f}"])


def missed(rows: list[Measured]) -> list[str]:
    """The limits that were not met."""
    out = []
    for row in rows:
        if 1_000_000 <= row.events < 1_100_000 and row.floor_s:
            if row.both.cpu_s > MOST_BOTH * row.floor_s:
                out.append(f"--sync both takes more than {MOST_BOTH} floors")
            if row.cuda.cpu_s > MOST_CUDA * row.floor_s:
                out.append(f"--sync cuda takes more than {MOST_CUDA} floors")
            if row.peak_mb > MOST_MB:
                out.append(f"1 M events take more than {MOST_MB} MB")
        if row.what_if_s is not None and row.what_if_s > MOST_WHAT_IF_S:
            out.append(f"a what-if takes more than {MOST_WHAT_IF_S} s a million nodes")
        if row.events >= TEN_MILLION and row.peak_mb > TEN_MILLION_MB:
            out.append(f"10 M events take more than {TEN_MILLION_MB} MB")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, nargs="+", default=list(SIZES), metavar="N")
    parser.add_argument("--ten-million", action="store_true", help="10 M events too (9 GB of disk)")
    parser.add_argument("--tmp", type=Path, help="where the files are written (default: the system's temporary folder)")
    arguments = parser.parse_args()
    compileall.compile_dir(Path(graphlink_package.__file__).parent, quiet=1)  # as pip does where it installs a wheel
    print(
        f"{'events':>12}{'nodes':>11}{'floor s':>8}{'cuda s':>8}{'ratio':>6}{'both s':>8}{'ratio':>6}{'peak MB':>9}{'wall':>6}",
        flush=True,
    )
    rows = []
    with tempfile.TemporaryDirectory(dir=arguments.tmp, prefix="graphlink-bench-") as tmp:
        for events in arguments.events:
            rows.append(measure(events, Path(tmp) / str(events), with_floor=True))
            print(line(rows[-1]), flush=True)
            if rows[-1].what_if_s is not None:
                print(f"what-if      {rows[-1].what_if_s:.2f} s a million nodes", flush=True)
        problems = [*missed(rows), *small(Path(tmp))]
        if len(rows) > 1:
            slopes = {
                sync: exponent([(row.events, getattr(row, sync).cpu_s) for row in rows]) for sync in ("cuda", "both")
            }
            print(
                "exponent     " + ", ".join(f"--sync {sync} {slope:.3f}" for sync, slope in slopes.items()), flush=True
            )
            problems += [f"--sync {s} grows with the power {x:.3f}" for s, x in slopes.items() if x > MOST_EXPONENT]
        if arguments.ten_million:
            huge = measure(TEN_MILLION, Path(tmp) / "10m", with_floor=False)
            print(line(huge), flush=True)
            problems += missed([huge])
    for problem in problems:
        print(f"missed: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
