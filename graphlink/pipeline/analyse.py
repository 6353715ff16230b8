"""The pipeline of a run, from what its ranks did: stages, schedule, idle time by cause, and what the schedule itself
must lose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from msgspec import UNSET, structs

from graphlink.model import NOWHERE, CommKind
from graphlink.pipeline.causes import account
from graphlink.pipeline.inferred_ranges import RULE
from graphlink.pipeline.named_ranges import OPTIMIZER
from graphlink.pipeline.peers import TOLERANCE_NS, clock_warnings
from graphlink.pipeline.recognise import Recognised, recognise
from graphlink.pipeline.records import PartsNs, Pass, RunPipeline, StageRun, StepEntry, Theory
from graphlink.pipeline.schedules import UNKNOWN
from graphlink.pipeline.stages import Pipes, members, pipes, with_stages
from graphlink.pipeline.theory import measure, rates, theory


def analyse(runs: Sequence[StageRun | None], tolerance_ns: int = TOLERANCE_NS) -> RunPipeline | None:
    """Analyse the ranks that have pipeline ranges (None: one that has none); None where no rank has, or no step is on
    all of them.

    ``tolerance_ns``: how far the clocks of ranks are known to agree.
    Inferred ranges count only if every rank of the run has some: what cannot be recognised on one was maybe recognised
    wrongly on others. O(n log n).
    """
    there = [run for run in runs if run is not None and np.isin(run.ranges.phase, (Pass.F, Pass.B, Pass.I)).any()]
    alone = len(runs) - len(there)
    if not there or (alone and any(_inferred(run) for run in there)):
        return None
    whole = pipes(there)
    if not whole.steps or not _passes_on(whole):
        return None
    if alone:
        whole = replace(
            whole, warnings=(*whole.warnings, f"{alone} of {len(runs)} ranks have no pipeline ranges and are left out")
        )
    return _analysed(whole, tolerance_ns)


_ANY_TRAINING: Final = frozenset({"generic", "deepspeed", "vescale"})  # names that data-parallel training has, too


def _passes_on(whole: Pipes) -> bool:
    """Tell whether there is a pipeline at all. Names that any training has, and inference, need activations that are
    passed on, from a first rank.

    In a ring (context parallelism) every rank receives before its first forward ends. Inferred stages need all their
    peers besides.
    """
    named = {
        run.ranges.rules[k].removeprefix("inferred:order ")
        for run in whole.runs
        for k in np.unique(run.ranges.rule).tolist()
    }
    inferred = any(map(_inferred, whole.runs))
    if not inferred and named - _ANY_TRAINING - {OPTIMIZER.name}:
        return True
    sends = any(_exchanges_messages(run) for run in whole.runs)
    first = any(run.previous == NOWHERE for run in whole.runs)
    return sends and first and not (inferred and whole.missing and len(whole.runs) > 1)


def _exchanges_messages(run: StageRun) -> bool:
    ex = run.exchanges
    both = [k for k, name in enumerate(ex.names) if "SENDRECV" in name.upper().replace("_", "")]  # parameters unknown
    return bool(np.isin(ex.kind, (CommKind.SEND, CommKind.RECV)).any() or np.isin(ex.name, both).any())


def _inferred(run: StageRun) -> bool:
    return any(run.ranges.rules[k] == RULE for k in np.unique(run.ranges.rule).tolist())


def _analysed(raw: Pipes, tolerance_ns: int) -> RunPipeline:
    """Analyse the pipeline. ``raw``: with the stages of the recording, which the schedule may show better."""
    groups = [members(raw, pipe) for pipe in range(max(raw.pipe) + 1)]
    found = [recognise([raw.runs[i].ranges for i in group], [raw.runs[i].rank for i in group]) for group in groups]
    one = (
        found[0]
        if len({f.schedule for f in found}) == 1
        else replace(found[0], schedule=UNKNOWN, nearest="", difference="", steps=())
    )
    whole = with_stages(raw, found if one.schedule != UNKNOWN else [replace(f, steps=()) for f in found])
    steps, idle = account(whole)
    microbatches = one.microbatches or max(int(run.ranges.microbatch.max(initial=-1)) for run in whole.runs) + 1
    chunks = one.chunks if one.schedule != UNKNOWN else whole.chunks
    ratio = (whole.length - 1) / (chunks * microbatches) if microbatches and not whole.missing else UNSET
    pipeline = RunPipeline(
        ranks=tuple(run.rank for run in whole.runs),
        runs=whole.runs,
        recorded=whole.recorded,
        pipe=whole.pipe,
        steps=steps,
        stages=whole.length,
        microbatches=microbatches,
        chunks=chunks,
        schedule=one.schedule,
        nearest=_nearest(found, one),
        idle=idle,
        rates=rates(
            [s.end_ns - s.start_ns for s in steps], [s.work_ns for s in steps], [s.own_ns for s in steps], ratio
        ),
        theory=_theory(whole, groups, found, steps) if one.schedule != UNKNOWN else None,
        warnings=(*whole.warnings, *_left_out(found), *clock_warnings(whole, tolerance_ns), *_untold(whole)),
    )
    return _as_numbered(pipeline, whole.steps) if min(whole.steps) >= 0 else pipeline


def _as_numbered(pipeline: RunPipeline, steps: Sequence[int]) -> RunPipeline:
    """Number steps as the recording does, not from 0."""
    number = np.array(steps, np.int64)
    runs = tuple(replace(run, ranges=replace(run.ranges, step=number[run.ranges.step])) for run in pipeline.runs)
    named = tuple(structs.replace(step, number=steps[step.number]) for step in pipeline.steps)
    return replace(pipeline, runs=runs, steps=named, idle=replace(pipeline.idle, step=number[pipeline.idle.step]))


def _nearest(found: Sequence[Recognised], one: Recognised) -> str:
    """Name, of an unknown schedule, the nearest one and the first difference."""
    if one.schedule != UNKNOWN:
        return ""
    if len({f.schedule for f in found}) > 1:
        return "pipelines differ: " + ", ".join(f.schedule for f in found[:4])
    return f"{one.nearest}: {one.difference}" if one.nearest else one.difference


def _untold(whole: Pipes) -> list[str]:
    """Warn of communication of which nobody knows with whom it was."""
    unknown = sum(int(np.count_nonzero(run.exchanges.kind == CommKind.UNKNOWN)) for run in whole.runs)
    if not unknown:
        return []
    return [
        f"{unknown} communication kernels have no recorded parameters: beside them, waiting for a late rank counts as "
        "exposed_communication"
    ]


def _left_out(found: Sequence[Recognised]) -> list[str]:
    """Warn of steps that could not be compared with schedules."""
    return list(
        dict.fromkeys(
            f"step {step} was not compared with schedules: {why}" for f in found for step, why in f.left_out.items()
        )
    )


def _theory(
    whole: Pipes, groups: Sequence[Sequence[int]], found: Sequence[Recognised], steps: Sequence[StepEntry]
) -> Theory | None:
    """Compute theory; of several pipelines the parts are added up, and the rates are those of the first."""
    each = []
    for group, one in zip(groups, found, strict=True):
        own = [
            structs.replace(s, work_ns=tuple(s.work_ns[i] for i in group), own_ns=tuple(s.own_ns[i] for i in group))
            for s in steps
        ]
        inside = not all(whole.runs[i].sees_device for i in group)
        each.append(theory(one, measure([whole.runs[i].ranges for i in group], one, waits_inside=inside), own))
    known = [mine for mine in each if mine is not None]
    if len(known) < len(each):
        return None
    parts = {name: sum(getattr(mine.parts_ns, name) for mine in known) for name in PartsNs.__struct_fields__}
    return structs.replace(known[0], parts_ns=PartsNs(**parts))
