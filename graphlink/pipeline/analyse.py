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
from graphlink.pipeline.between_ranks import TOLERANCE_NS, clock_warnings
from graphlink.pipeline.causes import account
from graphlink.pipeline.inferred_ranges import RULE
from graphlink.pipeline.named_ranges import OPTIMIZER
from graphlink.pipeline.recognise import Recognised, recognise
from graphlink.pipeline.records import PartsNs, Pass, RunPipeline, StageRun, StepEntry, Theory
from graphlink.pipeline.schedules import UNKNOWN
from graphlink.pipeline.stages import Pipes, members, pipes, with_stages
from graphlink.pipeline.theory import measure, rates, theory

_ANY_TRAINING: Final = frozenset({"generic", "deepspeed", "vescale"})  # names that data-parallel training has, too


def analyse(runs: Sequence[StageRun | None], tolerance_ns: int = TOLERANCE_NS) -> RunPipeline | None:
    """Analyse the ranks that have pipeline ranges (None: one that has none); None where no rank has, or no step is on
    all of them.

    ``tolerance_ns``: how far the clocks of ranks are known to agree.
    Inferred ranges count only if every rank of the run has some: what cannot be recognised on one was maybe recognised
    wrongly on others. O(n log n).
    """
    present = [run for run in runs if run is not None and np.isin(run.ranges.phase, (Pass.F, Pass.B, Pass.I)).any()]
    missing = len(runs) - len(present)
    if not present or (missing and any(map(_is_inferred, present))):
        return None
    recorded = pipes(present)
    if not recorded.steps or not _passes_on(recorded):
        return None
    if missing:
        text = f"{missing} of {len(runs)} ranks have no pipeline ranges and are left out"
        recorded = replace(recorded, warnings=(*recorded.warnings, text))
    return _analysed(recorded, tolerance_ns)


def _passes_on(recorded: Pipes) -> bool:
    """Tell whether there is a pipeline at all. Names that any training has, and inference, need activations that are
    passed on, from a first rank.

    In a ring (context parallelism) every rank receives before its first forward ends. Inferred stages need all their
    peers besides.
    """
    runs = recorded.runs
    rules = {rule.removeprefix("inferred:order ") for run in runs for rule in _rules(run)}
    inferred = any(map(_is_inferred, runs))
    if not inferred and rules - _ANY_TRAINING - {OPTIMIZER.name}:
        return True
    first = any(run.previous == NOWHERE for run in runs)
    return any(map(_exchanges_messages, runs)) and first and not (inferred and recorded.missing and len(runs) > 1)


def _exchanges_messages(run: StageRun) -> bool:
    exchanges = run.exchanges
    both_ways = ["SENDRECV" in name.upper().replace("_", "") for name in exchanges.names]  # parameters unknown
    sends_or_receives = np.isin(exchanges.kind, (CommKind.SEND, CommKind.RECV))
    return bool(sends_or_receives.any() or np.array(both_ways, np.bool_)[exchanges.name].any())


def _rules(run: StageRun) -> list[str]:
    """Return the rules that a rank's ranges were recognised by."""
    return [run.ranges.rules[rule] for rule in np.unique(run.ranges.rule).tolist()]


def _is_inferred(run: StageRun) -> bool:
    return RULE in _rules(run)


def _analysed(recorded: Pipes, tolerance_ns: int) -> RunPipeline:
    """Analyse the pipeline. ``recorded``: with the stages of the recording, which the schedule may show better."""
    groups = [members(recorded, pipe) for pipe in range(max(recorded.pipe) + 1)]
    each = [
        recognise([recorded.runs[i].ranges for i in group], [recorded.runs[i].rank for i in group]) for group in groups
    ]
    found = each[0]
    if len({other.schedule for other in each}) > 1:
        names = ", ".join(other.schedule for other in each[:4])
        found = replace(found, schedule=UNKNOWN, nearest="", difference=f"pipelines differ: {names}", steps=())
    known = found.schedule != UNKNOWN
    whole = with_stages(recorded, each if known else [replace(other, steps=()) for other in each])
    steps, idle = account(whole)
    microbatches = found.microbatches or max(int(run.ranges.microbatch.max(initial=-1)) for run in whole.runs) + 1
    chunks = found.chunks if known else whole.chunks
    ratio = (whole.length - 1) / (chunks * microbatches) if microbatches and not whole.missing else UNSET
    makespans_ns = [step.end_ns - step.start_ns for step in steps]
    left_out = dict.fromkeys(
        f"step {step} was not compared with schedules: {why}" for other in each for step, why in other.left_out.items()
    )
    pipeline = RunPipeline(
        runs=whole.runs,
        recorded=whole.recorded,
        pipe=whole.pipe,
        steps=steps,
        stages=whole.length,
        microbatches=microbatches,
        chunks=chunks,
        schedule=found.schedule,
        nearest="" if known else ": ".join(filter(None, (found.nearest, found.difference))),
        idle=idle,
        rates=rates(makespans_ns, [step.work_ns for step in steps], [step.own_ns for step in steps], ratio),
        theory=_theory(whole, groups, each, steps) if known else None,
        warnings=(*whole.warnings, *left_out, *clock_warnings(whole, tolerance_ns), *_unknown_exchanges(whole)),
    )
    return _as_numbered(pipeline, whole.steps) if min(whole.steps) >= 0 else pipeline


def _as_numbered(pipeline: RunPipeline, steps: Sequence[int]) -> RunPipeline:
    """Number steps as the recording does, not from 0."""
    number = np.array(steps, np.int64)
    return replace(
        pipeline,
        runs=tuple(replace(run, ranges=replace(run.ranges, step=number[run.ranges.step])) for run in pipeline.runs),
        steps=tuple(structs.replace(step, number=steps[step.number]) for step in pipeline.steps),
        idle=replace(pipeline.idle, step=number[pipeline.idle.step]),
    )


def _unknown_exchanges(whole: Pipes) -> list[str]:
    """Warn of communication of which nobody knows with whom it was."""
    unknown = sum(int(np.count_nonzero(run.exchanges.kind == CommKind.UNKNOWN)) for run in whole.runs)
    if not unknown:
        return []
    return [
        f"{unknown} communication kernels have no recorded parameters: beside them, waiting for a late rank counts as "
        "exposed_communication"
    ]


def _theory(
    whole: Pipes, groups: Sequence[Sequence[int]], each: Sequence[Recognised], steps: Sequence[StepEntry]
) -> Theory | None:
    """Compute theory; of several pipelines the parts are added up, and the rates are those of the first."""
    theories = []
    for group, recognised in zip(groups, each, strict=True):
        runs = [whole.runs[i] for i in group]
        measured = measure(
            [run.ranges for run in runs], recognised, waits_inside=not all(run.sees_device for run in runs)
        )
        own = [
            structs.replace(
                step, work_ns=tuple(step.work_ns[i] for i in group), own_ns=tuple(step.own_ns[i] for i in group)
            )
            for step in steps
        ]
        computed = theory(recognised, measured, own)
        if computed is None:
            return None
        theories.append(computed)
    parts = {name: sum(getattr(one.parts_ns, name) for one in theories) for name in PartsNs.__struct_fields__}
    return structs.replace(theories[0], parts_ns=PartsNs(**parts))
