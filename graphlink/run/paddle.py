"""The job for Paddle's worker logs: read, make pipeline runs of them, find bubbles, write. There is no graph: logs show jobs alone."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Final

from graphlink.errors import InputError
from graphlink.link.step_cut import parse_steps
from graphlink.pipeline.analyse import analyse
from graphlink.pipeline.paddle.logs import read_paddle
from graphlink.pipeline.paddle.runs import stage_runs
from graphlink.pipeline.records import RunPipeline
from graphlink.run.job import RunResult, write_pipeline

log: Final = logging.getLogger("graphlink")


def run_paddle(logs: Path, step: str, folder: Path) -> RunResult:
    """Write what the worker logs in ``logs`` say of the pipeline into ``folder``.

    Raises:
        InputError: as ``read_paddle`` and ``stage_runs`` do, or the workers have no step in common.
        UsageError: the logs hold no such ``step``.
        OutputError: a file cannot be written.
    """
    pipeline = pipeline_of(logs, step)
    return RunResult((), pipeline, write_pipeline(pipeline, folder))


def pipeline_of(logs: Path, step: str = "all") -> RunPipeline:
    """Return the pipeline of a folder of worker logs; warnings of the folder stand before those of the analysis."""
    steps = parse_steps(step)
    log.info("reading %s", logs)
    read = read_paddle(logs)
    log.info("looking for stages in %d jobs of %d workers", sum(len(one.start_ns) for one in read), len(read))
    runs, warnings = stage_runs(read, steps)
    log.info("looking for bubbles")
    pipeline = analyse(runs)
    if pipeline is None:
        raise InputError("its workers have no step in common", path=logs, todo="keep the logs of one run, whole, in the folder")
    return replace(pipeline, warnings=(*warnings, *pipeline.warnings))
