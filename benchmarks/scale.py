"""CPU time and memory of the installed ``graphlink`` over the size of its input, against a floor measured in the same run.

The floor is what msgspec's typed decode of both files plus protobuf's encode of as many nodes as the graph has cost, the better of two
each (``floor.py``). CPU seconds are user + system of the whole process, as its parent is told by ``wait4``; so is the peak memory.

    python benchmarks/scale.py                        100 k, 300 k, 1 M and 3 M events; at least 5 GB of disk
    python benchmarks/scale.py --events 100000 300000
    python benchmarks/scale.py --ten-million          10 M events too: time and memory, no floor

Exit status 1 if a limit is missed: 1 M events within 2.5 floors (``--sync both``), 2 floors (``--sync cuda``) and 1.6 GB; time no
more than linear (exponent 1.05 of a fit over all sizes); 10 M events within 4 GB.
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
from dataclasses import dataclass
from pathlib import Path

import synthetic

import graphlink as graphlink_package

SIZES = (100_000, 300_000, 1_000_000, 3_000_000)
MOST_BOTH, MOST_CUDA, MOST_MB, MOST_EXPONENT = 2.5, 2.0, 1600, 1.05
TEN_MILLION, TEN_MILLION_MB = 10_000_000, 4000
HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds (user + system) and peak resident MB of one process."""

    cpu_s: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One size: ``nodes`` of the graph; ``floor_s`` None where it was not measured."""

    events: int
    nodes: int
    floor_s: float | None
    cuda: Cost
    both: Cost


def run(command: list[str]) -> Cost:
    """Runs a command to its end; if it fails, so does the benchmark, with what it said."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            sys.exit(f"{' '.join(command)}\nexit status {process.returncode}\n{said.read().decode(errors='replace')}")
    per_mb = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / per_mb)


def graphlink(folder: Path, sync: str) -> Cost:
    """The installed command on the pair in ``folder``."""
    beside = Path(sys.executable).with_name("graphlink")
    command = str(beside) if beside.exists() else shutil.which("graphlink")
    if command is None:
        sys.exit("graphlink is not installed: make bench")
    pair = ["--et", str(folder / "et_0.json"), "--kineto", str(folder / "kineto_0.json")]
    return run([command, *pair, "--out", str(folder / "out"), "--force", "--quiet", "--sync", sync])


def floor_s(*arguments: str) -> float:
    """CPU seconds of ``floor.py``, the better of two."""
    command = [sys.executable, str(HERE / "floor.py"), *arguments]
    return min(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(2))


def measure(events: int, folder: Path, *, with_floor: bool) -> Measured:
    """Writes a pair of ``events`` rows into ``folder`` and runs everything on it."""
    folder.mkdir()
    written = synthetic.write(folder, events)
    cuda = graphlink(folder, "cuda")
    both = graphlink(folder, "both")
    nodes = json.loads((folder / "out" / "summary.json").read_text())["ranks"][0]["graph_nodes"]
    pair = str(folder / "kineto_0.json"), str(folder / "et_0.json")
    floor = floor_s("decode", *pair) + floor_s("encode", str(nodes)) if with_floor else None
    shutil.rmtree(folder)
    return Measured(written.events, nodes, floor, cuda, both)


def exponent(points: list[tuple[float, float]]) -> float:
    """Slope of log y over log x by least squares."""
    x, y = ([math.log(point[k]) for point in points] for k in (0, 1))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def line(row: Measured) -> str:
    cells = [f"{row.events:>12,}", f"{row.nodes:>11,}", f"{row.floor_s:>8.2f}" if row.floor_s else f"{'-':>8}"]
    for cost in (row.cuda, row.both):
        cells += [f"{cost.cpu_s:>8.2f}", f"{cost.cpu_s / row.floor_s:>6.2f}" if row.floor_s else f"{'-':>6}"]
    return "".join([*cells, f"{row.both.peak_mb:>9.0f}"])


def missed(rows: list[Measured]) -> list[str]:
    """The limits that were not met."""
    out = []
    for row in rows:
        if 1_000_000 <= row.events < 1_100_000 and row.floor_s:
            if row.both.cpu_s > MOST_BOTH * row.floor_s:
                out.append(f"--sync both takes more than {MOST_BOTH} floors")
            if row.cuda.cpu_s > MOST_CUDA * row.floor_s:
                out.append(f"--sync cuda takes more than {MOST_CUDA} floors")
            if row.both.peak_mb > MOST_MB:
                out.append(f"1 M events take more than {MOST_MB} MB")
        if row.events >= TEN_MILLION and row.both.peak_mb > TEN_MILLION_MB:
            out.append(f"10 M events take more than {TEN_MILLION_MB} MB")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, nargs="+", default=list(SIZES), metavar="N")
    parser.add_argument("--ten-million", action="store_true", help="10 M events too (9 GB of disk)")
    parser.add_argument("--tmp", type=Path, help="where the files are written (default: the system's temporary folder)")
    arguments = parser.parse_args()
    compileall.compile_dir(Path(graphlink_package.__file__).parent, quiet=1)  # as pip does where it installs a wheel
    print(f"{'events':>12}{'nodes':>11}{'floor s':>8}{'cuda s':>8}{'ratio':>6}{'both s':>8}{'ratio':>6}{'peak MB':>9}", flush=True)
    rows = []
    with tempfile.TemporaryDirectory(dir=arguments.tmp, prefix="graphlink-bench-") as tmp:
        for events in arguments.events:
            rows.append(measure(events, Path(tmp) / str(events), with_floor=True))
            print(line(rows[-1]), flush=True)
        problems = missed(rows)
        if len(rows) > 1:
            slopes = {sync: exponent([(row.events, getattr(row, sync).cpu_s) for row in rows]) for sync in ("cuda", "both")}
            print("exponent     " + ", ".join(f"--sync {sync} {slope:.3f}" for sync, slope in slopes.items()), flush=True)
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
