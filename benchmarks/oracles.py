"""Published and simulated bubble rates against those that graphlink finds in one run written as Kineto traces, nsys
export and Paddle logs.

    python benchmarks/oracles.py

Every phase takes 1 ms (a chunk of v its v-th part). ``c``: transfer between stages in ms. Makespans in ms, rates by
makespan; ``own``: the rate of zero-bubble's papers, by the longest own window.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from graphlink.cli import main
from graphlink.pipeline.file import Bubbles

sys.path.insert(0, str(Path(__file__).parents[1]))  # the simulated machine lies beside the tests

from tests.simulator import PipelineRun, PipelineTraining, pipeline_run, write_nsys
from tests.simulator.paddle import Job, write_paddle

UNIT_NS: Final = 1_000_000


class Oracle(NamedTuple):
    """A cell of the tables: what an independent simulator gave. ``own`` None: the same as ``rate``."""

    schedule: str
    stages: int
    microbatches: int
    chunks: int
    transfer: float
    makespan: float
    rate: float
    own: float | None = None


ORACLES: Final = (
    Oracle("GPipe", 4, 8, 1, 0, 33, 0.2727),
    Oracle("1F1B", 4, 4, 1, 0, 21, 0.4286),
    Oracle("1F1B", 4, 8, 1, 0, 33, 0.2727),
    Oracle("1F1B", 8, 16, 1, 0, 69, 0.3043),
    Oracle("1F1B", 8, 32, 1, 0, 117, 0.1795),
    Oracle("interleaved", 4, 8, 2, 0, 28.5, 0.1579),
    Oracle("interleaved", 8, 16, 2, 0, 58.5, 0.1795),
    Oracle("interleaved", 4, 8, 4, 0, 26.25, 0.0857),
    Oracle("interleaved", 8, 16, 4, 0, 53.25, 0.0986),
    Oracle("ZB-H1", 4, 4, 1, 0, 15, 0.2),
    Oracle("ZB-H1", 4, 8, 1, 0, 27, 0.1111),
    Oracle("ZB-H1", 8, 16, 1, 0, 55, 0.1273),
    Oracle("ZB-H2", 4, 8, 1, 0, 27, 0.1111, 0.0),
    Oracle("ZB-H2", 8, 16, 1, 0, 55, 0.1273, 0.0),
    Oracle("ZB-H2", 8, 32, 1, 0, 103, 0.0680, 0.0),
    Oracle("GPipe", 4, 8, 1, 0.5, 36, 0.3333),
    Oracle("1F1B", 4, 8, 1, 0.5, 41, 0.4146),
    Oracle("ZB-H1", 4, 8, 1, 0.5, 33, 0.2727),
    Oracle("ZB-H2", 4, 8, 1, 0.5, 28.5, 0.1579, 0.1111),
    Oracle("GPipe", 4, 8, 1, 1, 39, 0.3846),
    Oracle("1F1B", 4, 8, 1, 1, 49, 0.5102),
    Oracle("ZB-H1", 4, 8, 1, 1, 41, 0.4146),
    Oracle("ZB-H2", 4, 8, 1, 1, 30, 0.2),
    Oracle("1F1B", 8, 16, 1, 1, 109, 0.5596),
    Oracle("ZB-H2", 8, 16, 1, 1, 62, 0.2258),
)


class Found(NamedTuple):
    makespan: float
    rate: float
    own: float
    schedule: str


def found(folder: Path) -> Found:
    file = msgspec.json.decode((folder / "bubbles.json").read_bytes(), type=Bubbles)
    (step,) = file.steps
    rate, own = file.pipeline.bubble_rate_makespan, file.pipeline.bubble_rate_zb
    assert isinstance(rate, float)
    assert isinstance(own, float)
    return Found((step.end_ns - step.start_ns) / UNIT_NS, rate, own, file.pipeline.schedule)


def by_source(true: PipelineRun, folder: Path) -> dict[str, Found]:
    """The run through each of the three readers and the whole command."""
    true.write(folder / "traces")
    write_nsys(true.executions, folder / "run.sqlite")
    several = true.training.chunks > 1
    workers: dict[int, list[Job]] = {}
    for job in true.jobs:
        chunk = job.chunk if several else None
        workers.setdefault(job.worker, []).append(Job(job.type, job.microbatch, job.start_ns, job.end_ns, chunk))
    write_paddle([workers[k] for k in sorted(workers)], folder / "logs")
    given = {
        "Kineto": [str(folder / "traces"), "--no-timeline"],
        "nsys": ["--nsys", str(folder / "run.sqlite"), "--no-timeline"],
        "Paddle": ["--paddle-logs", str(folder / "logs")],
    }
    for source, arguments in given.items():
        assert main([*arguments, "--out", str(folder / source), "--quiet", "--jobs", "1"]) == 0
    return {source: found(folder / source) for source in given}


def run() -> None:
    print(
        f"{'schedule':<12} {'p':>2} {'m':>3} {'v':>2} {'c':>4} | {'makespan':>8} {'rate':>7} {'own':>7} | by Kineto, "
        "nsys, Paddle"
    )
    worst = 0.0
    for oracle in ORACLES:
        each = UNIT_NS // oracle.chunks
        training = PipelineTraining(
            oracle.schedule,
            oracle.stages,
            oracle.microbatches,
            oracle.chunks,
            each,
            each,
            each,
            transfer_ns=round(oracle.transfer * UNIT_NS),
        )
        with tempfile.TemporaryDirectory() as folder:
            sources = by_source(pipeline_run(training), Path(folder))
        own = oracle.rate if oracle.own is None else oracle.own
        cells = "  ".join(f"{f.makespan:>7.3f} {f.rate:.4f} {f.own:.4f} {f.schedule}" for f in sources.values())
        worst = max(worst, *(abs(f.makespan - oracle.makespan) for f in sources.values()))
        said = (
            f"{oracle.schedule:<12} {oracle.stages:>2} {oracle.microbatches:>3} {oracle.chunks:>2} "
            f"{oracle.transfer:>4g}"
        )
        print(f"{said} | {oracle.makespan:>8g} {oracle.rate:>7.4f} {own:>7.4f} | {cells}")
    print(f"makespans differ by at most {worst * 1000:.3f} us")


if __name__ == "__main__":
    run()
