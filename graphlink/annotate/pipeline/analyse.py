"""The pipeline of a run, from what its ranks did: stages, schedule, idle time by cause, and what the schedule itself must lose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphlink.annotate.pipeline.causes import account
from graphlink.annotate.pipeline.records import Definitions, Idle, Phase, Pipeline, StageRun, Step
from graphlink.annotate.pipeline.stages import Pipes, pipes


@dataclass(frozen=True, slots=True)
class RankPipeline:
    """The part of a pipeline that the files of one rank show: its ranges with their stages, and its idle time."""

    run: StageRun
    idle: Idle


def rank_pipeline(pipeline: Pipeline | None, rank: int) -> RankPipeline | None:
    """None where ``rank`` is no part of it."""
    run = next((run for run in pipeline.runs if run.rank == rank), None) if pipeline is not None else None
    if pipeline is None or run is None:
        return None
    idle = pipeline.idle
    mine = idle.rank == rank
    return RankPipeline(
        run,
        Idle(
            idle.rank[mine],
            idle.stage[mine],
            idle.step[mine],
            idle.start_ns[mine],
            idle.end_ns[mine],
            idle.cause[mine],
            idle.evidence[mine],
            idle.texts,
        ),
    )


def analyse(runs: Sequence[StageRun]) -> Pipeline | None:
    """All of it for the ranks that have pipeline ranges; None where not all phases of a step are there on any. O(n log n)."""
    runs = [run for run in runs if np.isin(run.ranges.phase, (Phase.F, Phase.B, Phase.I)).any()]
    if not runs:
        return None
    whole = pipes(runs)
    if not whole.steps:
        return None
    return _analysed(whole)


def _analysed(whole: Pipes) -> Pipeline:
    accounted = account(whole)
    microbatches = max(int(run.ranges.microbatch.max(initial=-1)) for run in whole.runs) + 1
    return Pipeline(
        ranks=tuple(run.rank for run in whole.runs),
        runs=whole.runs,
        steps=accounted.steps,
        stages=whole.length,
        microbatches=microbatches,
        chunks=whole.chunks,
        schedule="unknown",
        nearest="",
        idle=accounted.idle,
        definitions=definitions(accounted.steps, whole.length, microbatches, whole.chunks),
        theory=None,
        warnings=whole.warnings,
    )


def definitions(steps: Sequence[Step], stages: int, microbatches: int, chunks: int) -> Definitions:
    """The rates of ``docs/bubbles.md`` over all steps; of several steps the times are added up first."""
    ranks = len(steps[0].work_ns)
    work = sum(sum(step.work_ns) for step in steps)
    makespan = sum(step.end_ns - step.start_ns for step in steps)
    cost = sum(max(step.own_ns) for step in steps)
    return Definitions(
        bubble_rate_makespan=1 - work / (ranks * makespan) if makespan else None,
        bubble_rate_zb=1 - work / (ranks * cost) if cost else None,
        bubble_ratio_ideal=(stages - 1) / (chunks * microbatches) if microbatches else None,
    )
