"""The pipeline of a run, from what its ranks did: stages, schedule, idle time by cause, and what the schedule itself must lose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphlink.annotate.pipeline.causes import account
from graphlink.annotate.pipeline.infer import RULE
from graphlink.annotate.pipeline.measured import measure
from graphlink.annotate.pipeline.order import UNKNOWN
from graphlink.annotate.pipeline.recognise import Recognised, recognise
from graphlink.annotate.pipeline.records import Definitions, Idle, Parts, Phase, Pipeline, StageRun, Step, Theory
from graphlink.annotate.pipeline.stages import Pipes, members, pipes, with_stages
from graphlink.annotate.pipeline.theory import theory


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


def analyse(runs: Sequence[StageRun | None]) -> Pipeline | None:
    """All of it for the ranks that have pipeline ranges (None: one that has none); None where no rank has, or no step is on all of them.

    Inferred ranges count only if every rank of the run has some: what cannot be told on one was maybe told wrong on others. O(n log n).
    """
    there = [run for run in runs if run is not None and np.isin(run.ranges.phase, (Phase.F, Phase.B, Phase.I)).any()]
    alone = len(runs) - len(there)
    if not there or (alone and any(_inferred(run) for run in there)):
        return None
    whole = pipes(there)
    if not whole.steps:
        return None
    if alone:
        whole = replace(whole, warnings=(*whole.warnings, f"{alone} of {len(runs)} ranks have no pipeline ranges and are left out"))
    return _analysed(whole)


def _inferred(run: StageRun) -> bool:
    return any(run.ranges.rules[k] == RULE for k in np.unique(run.ranges.rule).tolist())


def _analysed(raw: Pipes) -> Pipeline:
    """``raw``: with the stages of the recording, which the schedule may tell better."""
    groups = [members(raw, pipe) for pipe in range(max(raw.pipe) + 1)]
    found = [recognise([raw.runs[i].ranges for i in group], [raw.runs[i].rank for i in group]) for group in groups]
    one = found[0] if len({f.schedule for f in found}) == 1 else replace(found[0], schedule=UNKNOWN, nearest="", difference="", steps=())
    whole = with_stages(raw, found if one.schedule != UNKNOWN else [replace(f, steps=()) for f in found])
    accounted = account(whole)
    microbatches = one.microbatches or max(int(run.ranges.microbatch.max(initial=-1)) for run in whole.runs) + 1
    chunks = one.chunks if one.schedule != UNKNOWN else whole.chunks
    pipeline = Pipeline(
        ranks=tuple(run.rank for run in whole.runs),
        runs=whole.runs,
        pipe=whole.pipe,
        steps=accounted.steps,
        stages=whole.length,
        microbatches=microbatches,
        chunks=chunks,
        schedule=one.schedule,
        nearest=_nearest(found, one),
        idle=accounted.idle,
        definitions=definitions(accounted.steps, whole.length, microbatches, chunks),
        theory=_theory(whole, groups, found, accounted.steps) if one.schedule != UNKNOWN else None,
        warnings=(*whole.warnings, *_left_out(found)),
    )
    return _as_numbered(pipeline, whole.steps) if min(whole.steps) >= 0 else pipeline


def _as_numbered(pipeline: Pipeline, steps: Sequence[int]) -> Pipeline:
    """Steps as the recording numbers them, no longer counted from 0."""
    number = np.array(steps, np.int64)
    runs = tuple(replace(run, ranges=replace(run.ranges, step=number[run.ranges.step])) for run in pipeline.runs)
    named = tuple(replace(step, number=steps[step.number]) for step in pipeline.steps)
    return replace(pipeline, runs=runs, steps=named, idle=replace(pipeline.idle, step=number[pipeline.idle.step]))


def _nearest(found: Sequence[Recognised], one: Recognised) -> str:
    """Of an unknown schedule the nearest, and the first difference, in words."""
    if one.schedule != UNKNOWN:
        return ""
    if len({f.schedule for f in found}) > 1:
        return "pipelines differ: " + ", ".join(f.schedule for f in found[:4])
    return f"{one.nearest}: {one.difference}" if one.nearest else one.difference


def _left_out(found: Sequence[Recognised]) -> list[str]:
    """Steps that could not be compared with schedules."""
    return list(dict.fromkeys(f"step {step} was not compared with schedules: {why}" for f in found for step, why in f.left_out.items()))


def _theory(whole: Pipes, groups: Sequence[Sequence[int]], found: Sequence[Recognised], steps: Sequence[Step]) -> Theory | None:
    """Of several pipelines the parts are added up, and the definitions are those of the first."""
    out: Theory | None = None
    for group, one in zip(groups, found, strict=True):
        own = [replace(s, work_ns=tuple(s.work_ns[i] for i in group), own_ns=tuple(s.own_ns[i] for i in group)) for s in steps]
        inside = not all(whole.runs[i].sees_device for i in group)
        mine = theory(one, measure([whole.runs[i].ranges for i in group], one, waits_inside=inside), own)
        if mine is None:
            return None
        out = mine if out is None else Theory(out.definitions, _added(out.parts, mine.parts))
    return out


def _added(a: Parts, b: Parts) -> Parts:
    return Parts(*(getattr(a, name) + getattr(b, name) for name in Parts.__slots__))


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
