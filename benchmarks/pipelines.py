"""What the analysis of a pipeline costs: the whole command on traces with pipeline ranges, and on the same with ranges
of no name.

The floor is ``json.loads`` of the same files. Each measurement is a process of its own: user + system seconds of the
work alone, after imports, the better of two; peak resident memory of the whole process. ``analysis``: ``stage_run`` of
all ranks and ``analyse`` alone.

    python benchmarks/pipelines.py                                             8 ranks of 100,000 events: 300 MB of disk
    python benchmarks/pipelines.py --stages 64 --microbatches 512 --kernels 1

Exit status 1 if the analysis takes more than a tenth of the command.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the simulated machine lies beside the tests

MOST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of the work, those of its analysis, and peak resident MB of its process."""

    cpu_s: float
    analysis_s: float
    peak_mb: float


def write(folder: Path, stages: int, microbatches: int, kernels: int) -> int:
    """Traces ``with`` ranges and ``without``, in folders of these names; returns how many events one of the two has."""
    from tests.simulator import PipelineTraining, pipeline_run

    least = max(1_000_000, 25_000 * kernels)  # the host launches in time
    times = {"forward_ns": least, "input_ns": least, "weight_ns": least}
    training = PipelineTraining(
        "1F1B", stages, microbatches, visible=True, transfer_ns=50_000, kernels=kernels, **times
    )
    (folder / "without").mkdir()
    count = 0
    for path in pipeline_run(training).write(folder / "with"):
        document = json.loads(path.read_bytes())
        count += len(document["traceEvents"])
        for row in document["traceEvents"]:
            if row.get("cat") == "user_annotation":
                row["name"] = "region"
        (folder / "without" / path.name).write_text(json.dumps(document))
    return count


def floor(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        json.loads(path.read_bytes())


def work(what: str, folder: Path) -> None:
    """In a process of its own: prints CPU seconds, those of the analysis, and peak MB."""
    from graphlink.cli import main as command
    from graphlink.pipeline import analyse, stagerun
    from graphlink.run import ranks

    analysis = [0.0]

    def timed(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            before = time.process_time()
            try:
                return function(*arguments)
            finally:
                analysis[0] += time.process_time() - before

        return call

    ranks.run_all = lambda call, tasks, *_: [call(task) for task in tasks]  # type: ignore[assignment]  # here, to be timed
    stagerun.stage_run, analyse.analyse = timed(stagerun.stage_run), timed(analyse.analyse)
    before = time.process_time()
    if what == "floor":
        floor(folder)
    elif command([str(folder), "--out", str(folder.parent / "out"), "--jobs", "1", "--force", "--quiet"]):
        sys.exit("the command failed")
    per_mb = 1 << 20 if sys.platform == "darwin" else 1 << 10
    print(time.process_time() - before, analysis[0], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / per_mb)


def measure(what: str, folder: Path) -> Cost:
    found = []
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, __file__, "--work", what, str(folder)], check=True, capture_output=True, text=True
        )
        found.append([float(word) for word in ran.stdout.split()])
    return Cost(*min(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=8, metavar="P")
    parser.add_argument("--microbatches", type=int, default=64, metavar="M")
    parser.add_argument("--kernels", type=int, default=120, metavar="N", help="of a range")
    parser.add_argument("--work", nargs=2, metavar=("WHAT", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work[0], Path(arguments.work[1]))
        return 0
    with tempfile.TemporaryDirectory(prefix="graphlink-bench-") as name:
        folder = Path(name)
        events = write(folder, arguments.stages, arguments.microbatches, arguments.kernels)
        print(f"{arguments.stages} stages, {arguments.microbatches} microbatches, {events:,} events", flush=True)
        print(f"{'':>16}{'CPU s':>8}{'/ floor':>9}{'analysis s':>12}{'share':>8}{'peak MB':>9}", flush=True)
        least = measure("floor", folder / "with")
        print(f"{'json.loads':>16}{least.cpu_s:>8.2f}{1:>9.2f}{'':>12}{'':>8}{least.peak_mb:>9.0f}", flush=True)
        costs = {what: measure("command", folder / what) for what in ("without", "with")}
    for what, cost in costs.items():
        share = cost.analysis_s / cost.cpu_s
        cells = f"{cost.cpu_s:>8.2f}{cost.cpu_s / least.cpu_s:>9.2f}{cost.analysis_s:>12.2f}{share:>8.1%}{cost.peak_mb:>9.0f}"
        print(f"{what + ' ranges':>16}{cells}", flush=True)
    share = costs["with"].analysis_s / costs["with"].cpu_s
    if share > MOST_SHARE:
        print(f"missed: the analysis takes {share:.1%} of the command, where {MOST_SHARE:.0%} is allowed")
    return 1 if share > MOST_SHARE else 0


if __name__ == "__main__":
    sys.exit(main())
