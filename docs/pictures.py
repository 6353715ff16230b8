"""The pictures that README and docs/ show: ``make pictures`` makes them anew, byte for byte the same on every machine.

To add one, add a function of ``PICTURES``: it gets an empty folder and returns the bytes of the file.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import graphlink
from graphlink.page.render import pictures

sys.path.insert(0, str(Path(__file__).parents[1]))  # the simulated machine lies beside the tests

from tests.simulator.pipeline_records import PipelineTraining
from tests.simulator.pipelines import pipeline_run


def pipeline(folder: Path) -> bytes:
    """Return the schedule of 1F1B: 4 stages, 8 microbatches of 1, 1 and 1 ms, transfers of 0.2 ms, an optimizer."""
    made = pipeline_run(
        PipelineTraining(schedule="1F1B", stages=4, microbatches=8, transfer_ns=200_000, optimizer_ns=1_500_000)
    )
    made.write(folder / "traces")
    run = graphlink.link(folder / "traces", out=folder / "out", options=graphlink.Options(timeline="none"))
    return (run.folder / "pipeline.svg").read_bytes()


def charts(folder: Path) -> dict[str, bytes]:
    """Return the charts of the page of ``fixtures/demo``, by name."""
    demo = Path(__file__).parents[1] / "fixtures" / "demo"
    return pictures(graphlink.link(demo, out=folder / "out", options=graphlink.Options(timeline="none")).page())


PICTURES: Final[dict[str, Callable[[Path], bytes]]] = {
    "pipeline.svg": pipeline,
    "report-gpu.svg": lambda folder: charts(folder)["gpu-by-rank.svg"],
    "report-gains.svg": lambda folder: charts(folder)["gains-bars.svg"],
}


def main(folder: Path) -> None:
    """Write all pictures into ``folder``."""
    for name, make in PICTURES.items():
        with tempfile.TemporaryDirectory() as empty:
            (folder / name).write_bytes(make(Path(empty)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
