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
from graphlink.testing.pipeline_records import PipelineTraining
from graphlink.testing.pipelines import pipeline_run


def pipeline(folder: Path) -> bytes:
    """Return the schedule of 1F1B: 4 stages, 8 microbatches of 1, 1 and 1 ms, transfers of 0.2 ms, an optimizer."""
    made = pipeline_run(PipelineTraining(schedule="1F1B", stages=4, microbatches=8, transfer_ns=200_000, optimizer_ns=1_500_000))
    made.write(folder / "traces")
    run = graphlink.link(folder / "traces", out=folder / "out", options=graphlink.Options(timeline="none"))
    return (run.folder / "pipeline.svg").read_bytes()


PICTURES: Final[dict[str, Callable[[Path], bytes]]] = {"pipeline.svg": pipeline}


def main(folder: Path) -> None:
    """Write all pictures into ``folder``."""
    for name, make in PICTURES.items():
        with tempfile.TemporaryDirectory() as empty:
            (folder / name).write_bytes(make(Path(empty)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
