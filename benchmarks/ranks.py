"""Many ranks against one: wall time, and memory of all processes together, of the installed ``graphlink``.

The floor is the same command on one rank of the run, measured in the same process before and after. With as many
workers as cores the run can at best take (one rank x ranks / workers).

    python benchmarks/ranks.py                            64 ranks of 100,000 events; some 4 GB of disk
    python benchmarks/ranks.py --ranks 8 --events 20000
    python benchmarks/ranks.py --engine ray

Exit status 1 if a limit is missed: wall 1.15 x the best there can be, memory 2 x one rank + 200 MB.
Memory is the sum over the processes of a command of what each has for itself and its share of the rest (Pss), looked at
20 times a second.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the simulated machine lies beside the tests

from tests.simulator.cluster import ClusterTraining, cluster_run

MOST_WALL, MOST_TIMES, MOST_MORE_MB = 1.15, 2, 200


@dataclass(frozen=True, slots=True)
class Cost:
    """``cpu_s``: user + system of the command and all that it started."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--events", type=int, default=100_000, help="events a rank, at least about")
    parser.add_argument("--engine", choices=("pool", "ray"), default="pool")
    parser.add_argument("--traces", type=Path, help="a folder that an earlier run with --keep made")
    parser.add_argument("--keep", type=Path, help="make the traces here and leave them")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.traces or arguments.keep or Path(temporary) / "traces"
        if arguments.traces is None:
            training = ClusterTraining(
                data=arguments.ranks // 8, tensor=8, steps=4, layers=6, events_per_rank=arguments.events, seed=1
            )
            cluster_run(training).write(folder)
        cores = len(os.sched_getaffinity(0))
        one = [measured([str(folder / "kineto_0.json")], "--kineto", Path(temporary) / "one") for _ in range(2)]
        many = measured([str(folder)], None, Path(temporary) / "many", "--engine", arguments.engine)
        one.append(measured([str(folder / "kineto_0.json")], "--kineto", Path(temporary) / "one"))
    alone = Cost(*(sorted(values)[1] for values in zip(*((c.wall_s, c.cpu_s, c.peak_mb) for c in one), strict=True)))
    best_s = alone.wall_s * arguments.ranks / cores
    wall, memory_mb = many.wall_s / best_s, MOST_TIMES * alone.peak_mb + MOST_MORE_MB
    print(f"{'':12}{'wall s':>10}{'CPU s':>10}{'peak MB':>10}")
    print(f"{'one rank':12}{alone.wall_s:10.2f}{alone.cpu_s:10.2f}{alone.peak_mb:10.0f}")
    print(f"{f'{arguments.ranks} ranks':12}{many.wall_s:10.2f}{many.cpu_s:10.2f}{many.peak_mb:10.0f}")
    print(
        f"wall {wall:.3f} of one rank x {arguments.ranks} / {cores} cores (efficiency {100 / wall:.0f} %), limit "
        f"{MOST_WALL}"
    )
    print(f"memory {many.peak_mb:.0f} MB, limit {MOST_TIMES} x one rank + {MOST_MORE_MB} MB = {memory_mb:.0f}")
    return int(wall > MOST_WALL or many.peak_mb > memory_mb)


def measured(inputs: list[str], flag: str | None, out: Path, *options: str) -> Cost:
    """The installed command on ``inputs``; its outputs are removed."""
    beside = Path(sys.executable).with_name("graphlink")
    command = [str(beside), *([flag] if flag else []), *inputs, "--out", str(out), "--quiet", *options]
    before, begin = os.times(), time.monotonic()
    process = subprocess.Popen(command)
    peak = [0.0]
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(process.pid, peak, ended))
    watcher.start()
    status = process.wait()
    wall_s = time.monotonic() - begin
    ended.set()
    watcher.join()
    if status:
        sys.exit(f"{' '.join(command)}: exit status {status}")
    after = os.times()
    shutil.rmtree(out)
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(wall_s, cpu_s, peak[0])


def _watch(pid: int, peak: list[float], ended: threading.Event) -> None:
    while not ended.wait(0.05):
        peak[0] = max(peak[0], sum(map(_pss_mb, _family(pid))))


def _family(pid: int) -> list[int]:
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        found.append(one)
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def _pss_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


if __name__ == "__main__":
    sys.exit(main())
