"""Schedules computed on the measured times of an earlier run: what they would give, the time of a step, their picture.

A step lasts from the start of its first action to that of the next step's: the pipeline part, and what lies between the
last end and the next start. The pipeline part is the mean of simulated steps in which each action takes as much more or
less than the median of its stage as one of its phase that was recorded (``drawn``): waiting for the slowest of several
takes longer than the median. What the same computation misses on the recorded schedule it is taken to miss on the other
one, in proportion. What lies between stays as recorded.

In drawn steps the first of the forwards, or backwards, of a stage in a step is told from the others: its backward makes
the gradients to which the others add. Between two actions a rank sends, posts receives and returns to its schedule,
which takes time even where no input is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import UNSET, UnsetType, structs

from graphlink.errors import UsageError
from graphlink.model import F64, I64, NOWHERE, Bool
from graphlink.pipeline.file import Bubbles, idle_of, ranges_of, replica
from graphlink.pipeline.panels import Marks, Panel, computed, recorded
from graphlink.pipeline.recognise import of_each, recognise
from graphlink.pipeline.records import Pass, Ranges, RankStep, StepEntry, StepTime
from graphlink.pipeline.schedules import (
    AUTO,
    PHASES,
    SEARCHED,
    UNKNOWN,
    ActionTimes,
    Order,
    Timed,
    default_chunks,
    inputs,
    named,
    simulate,
    splits,
)
from graphlink.pipeline.svg import picture
from graphlink.pipeline.theory import KEPT, Measured, PlayedSchedule, equal_stages, measure, what_if
from graphlink.publish import naming, write_anew
from graphlink.records import first_few
from graphlink.tables import codes, concat, how_many, least, marked, medians, numbered_values, tuples, turns

MOST_DRAWS: Final = 32
MOST_DRAWN: Final = 200_000  # of all draws


@dataclass(frozen=True, slots=True)
class Habits:
    """How the actions of a recording went. ``varied``: by phase, of the first ones of a stage in a step, then of the
    others, what each took in multiples of the median of its stage. ``gap_ns``: by phase, of an action whose result
    stays on its rank, then of one whose result another rank receives, the median time to the rank's next action, of
    those that waited for no input."""

    varied: tuple[tuple[F64, F64], ...]
    gap_ns: I64


def habits(measured: Measured) -> Habits:
    """Measure them over all recognised steps. O(n log n)."""
    first, others = ([_varied(one, measured, first) for one in measured.played] for first in (True, False))
    by_phase = [
        tuple(np.concatenate([one[phase] for one in ranks]) for ranks in (first, others)) for phase in range(PHASES)
    ]
    return Habits(tuple((a if len(a) else b, b if len(b) else a) for a, b in by_phase), _gaps(measured))


def _varied(one: Ranges, measured: Measured, first: bool) -> list[F64]:
    """Return by phase what each action of a rank took in multiples of the median of its stage; where that is 0 none."""
    median = measured.times.duration_ns[one.phase, one.stage]
    mine = (median > 0) & ((turns(one.phase, one.stage, one.step) == 0) == first)
    return [
        one.busy_ns[at] / median[at] for at in (np.flatnonzero(mine & (one.phase == phase)) for phase in range(PHASES))
    ]


def _gaps(measured: Measured) -> I64:
    found = [_gaps_of_step(measured, step) for step in range(len(measured.recognised.steps))]
    if not found:
        return np.zeros((PHASES, 2), np.int64)
    phase, sends, gap_ns = (np.concatenate(columns) for columns in zip(*found, strict=True))
    median = medians(gap_ns, 2 * phase.astype(np.int64) + sends, 2 * PHASES).reshape(PHASES, 2)
    either = np.nan_to_num(medians(gap_ns, phase, PHASES))
    return np.rint(np.where(np.isnan(median), either[:, None], median)).astype(np.int64)


def _gaps_of_step(measured: Measured, at: int) -> tuple[I64, Bool, I64]:
    """Return, of each action whose successor on its rank waited for no input, phase, whether it sends, and the time to
    the successor.
    """
    step = measured.recognised.steps[at]
    number = [
        np.cumsum([0, *(len(one.rows[rank]) for one in measured.recognised.steps)]) for rank in range(len(step.rows))
    ]
    rows = [slice(first[at], first[at + 1]) for first in number]
    mine = [(one.start_ns[of], one.end_ns[of]) for one, of in zip(measured.played, rows, strict=True)]
    start_ns, end_ns = (np.concatenate(columns) for columns in zip(*mine, strict=True))
    first = np.cumsum([0, *map(len, step.orders)])
    producer, lag_ns = inputs(step.orders, first, measured.times)
    came_ns = np.where(producer == NOWHERE, np.iinfo(np.int64).min, end_ns[producer] + lag_ns)
    before = np.setdiff1d(np.arange(first[-1] - 1), first[1:-1] - 1)
    before = before[came_ns[before + 1] <= end_ns[before]]
    return (
        concat(*step.orders).phase[before],
        _sends(first, producer)[before],
        np.maximum(start_ns[before + 1] - end_ns[before], 0),
    )


def _sends(first: I64, producer: I64) -> Bool:
    """Tell whether the result of each action goes to another rank."""
    rank = np.repeat(np.arange(len(first) - 1), np.diff(first))
    return marked(len(producer), producer[(producer != NOWHERE) & (rank[producer] != rank)])


def drawn(orders: Sequence[Order], times: ActionTimes, known: Habits) -> list[Timed]:
    """Simulate steps whose actions vary as the recorded ones of their phase did, by a fixed seed; one step where they
    do not vary.
    """
    first = np.cumsum([0, *map(len, orders)])
    phase, sends = concat(*orders).phase, _sends(first, inputs(orders, first, times)[0])
    gaps_ns = np.split(known.gap_ns[phase, sends.astype(np.int64)], first[1:-1])
    varied = [_whole(known, of) for of in range(PHASES)]
    if all((factors == 1).all() for pair in varied for factors in pair):
        return [simulate(orders, times, gaps_ns=gaps_ns)]
    random = np.random.default_rng(0)
    draws = min(MOST_DRAWS, max(1, MOST_DRAWN // max(1, len(phase))))
    return [
        simulate(orders, times, [_each_ns(one, times, varied, random) for one in orders], gaps_ns) for _ in range(draws)
    ]


def _whole(known: Habits, phase: int) -> tuple[F64, F64]:
    """Return how the backwards vary that were recorded, for a phase that was not."""
    for other in (phase, Pass.B, Pass.I, Pass.W, Pass.F):
        if len(known.varied[other][0]):
            return known.varied[other]
    return np.ones(1), np.ones(1)


def _each_ns(order: Order, times: ActionTimes, varied: Sequence[tuple[F64, F64]], random: np.random.Generator) -> I64:
    out = times.duration_ns[order.phase, order.stage].astype(np.float64)
    first = turns(order.phase, order.stage) == 0
    for phase, factors in enumerate(varied):
        for of, which in zip(factors, (first, ~first), strict=True):
            mine = which & (order.phase == phase)
            out[mine] *= random.choice(of, how_many(mine))
    return np.rint(out).astype(np.int64)


MOST_MISSED: Final = 0.1  # of the recorded steps, above which the computation does not tell about others
_RESTS_ON: Final = (
    "A microbatch takes what it took, and what lies between two steps stays as recorded and begins "
    "when "
    "the last rank has ended."
)
_ONE_STEP: Final = "The recording has no two steps in a row: between them is counted what the optimizer takes."
_CANNOT_KNOW: Final = (
    "It cannot know whether the memory suffices, nor whether transfers at the same time slow each "
    "other or the computation."
)


def step_time(
    measured: Measured,
    played: PlayedSchedule,
    steps: Sequence[StepEntry],
    ranks: Sequence[int],
    ranges: Sequence[Ranges],
) -> StepTime:
    """Predict a step of ``played``. ``ranks`` and ``ranges``: of the pipeline that ``measured`` is of, in the order of
    its stages.

    Linear in the actions of a step, of which at most ``MOST_DRAWS`` are simulated.
    """
    steps, known = _begun(measured, steps), habits(measured)
    computed = drawn(played.orders, played.times, known)
    missed = _missed(measured, known, steps)
    every = [b.start_ns - a.start_ns for a, b in pairwise(steps) if b.number == a.number + 1]
    pipeline_ns = round(_mean([timed.makespan_ns for timed in computed]) * (1 if missed is None else 1 + missed))
    between, shown = _between_ns(steps, ranges)
    step_ns = pipeline_ns + between
    work = np.rint(np.mean([timed.work_ns for timed in computed], axis=0)).astype(np.int64).tolist()
    optimizer = [_optimizer_ns(of_rank, len(steps)) for of_rank in ranges]
    return StepTime(
        step_ns=step_ns,
        measured_ns=round(float(np.median(every))) if every else UNSET,
        pipeline_ns=pipeline_ns,
        between_ns=between,
        missed=UNSET if missed is None else missed,
        ranks=[
            RankStep(rank=rank, work_ns=own, optimizer_ns=more, rest_ns=step_ns - own - more)
            for rank, own, more in zip(ranks, work, optimizer, strict=True)
        ],
        rests_on=_RESTS_ON if shown else f"{_RESTS_ON} {_ONE_STEP}",
        cannot_know=_CANNOT_KNOW,
        doubt=_doubt(missed),
    )


def _begun(measured: Measured, steps: Sequence[StepEntry]) -> list[StepEntry]:
    """Let each step begin with its first action: a range of the host may begin before, and wait inside."""
    played = concat(*measured.played)
    numbers, at = numbered_values(played.step)
    began = dict(tuples(numbers, least(len(numbers), at, played.start_ns)))
    return [structs.replace(one, start_ns=began.get(one.number, one.start_ns)) for one in steps]


def _doubt(missed: float | None) -> str | UnsetType:
    """Return why a prediction is not to be relied on."""
    if missed is None:
        return "the recorded schedule is unknown, so the computation was not tried on it"
    if abs(missed) <= MOST_MISSED:
        return UNSET
    return (
        f"the recorded steps took {abs(missed):.0%} {'longer' if missed > 0 else 'less'} than is computed for "
        "their "
        "own schedule"
    )


def _missed(measured: Measured, known: Habits, steps: Sequence[StepEntry]) -> float | None:
    """Return by which share of itself the computation of the recorded steps falls short of them; None without a
    recognised schedule.
    """
    bounds = {step.number: step.end_ns - step.start_ns for step in steps}
    there = [step for step in measured.recognised.steps if step.step in bounds]
    if measured.recognised.schedule == UNKNOWN or not there:
        return None
    total = sum(of_each(there, lambda orders: _mean([one.makespan_ns for one in drawn(orders, measured.times, known)])))
    return sum(bounds[step.step] for step in there) / total - 1 if total else None


def _between_ns(steps: Sequence[StepEntry], ranges: Sequence[Ranges]) -> tuple[int, bool]:
    """Return the median time from the last end of a step to the first start of the next, and whether the recording
    shows it.
    """
    between = [b.start_ns - a.end_ns for a, b in pairwise(steps) if b.number == a.number + 1]
    if between:
        return round(float(np.median(between))), True
    return max((_optimizer_ns(one, len(steps)) for one in ranges), default=0), False


def _optimizer_ns(ranges: Ranges, steps: int) -> int:
    """Return what the optimizer of a rank takes in a step."""
    mine = ranges.phase == Pass.OPT
    return round(int((ranges.end_ns - ranges.start_ns)[mine].sum()) / max(1, steps))


def _mean(ns: Sequence[int]) -> int:
    return round(sum(ns) / len(ns))


MOST_ACTIONS: Final = 100_000  # of a rank in a step; more would keep memory and clock busy to no use
_MOST_NAMED: Final = 8


def offer(
    file: Bubbles,
    name: str,
    microbatches: int | None = None,
    chunks: int | None = None,
    input_share: float | None = None,
    of_1f1b: float | None = None,
    kept: float | None = None,
) -> PlayedSchedule:
    """Simulate what the schedule ``name`` would give on the times of ``file``, and its step; of several pipelines, on
    those of the first.

    None: as recorded, or what the schedule has. ``of_1f1b``, ``kept``: as
    ``memory`` and ``kept`` of ``theory.what_if``.

    Raises:
        UsageError: there is no such schedule for these numbers, or a rank would have more than ``MOST_ACTIONS``.
    """
    ranges, measured = _measured(file)
    microbatches = file.pipeline.microbatches if microbatches is None else microbatches
    try:
        schedule = named(name)
        pieces = default_chunks(schedule, measured.recognised.chunks) if chunks is None else chunks
        actions = microbatches * pieces * (3 if splits(schedule) else 2)
        if actions > MOST_ACTIONS:
            asked = f"{microbatches:,} microbatches with {pieces:,} chunk{'s' * (pieces != 1)}"
            raise UsageError(f"--schedule {schedule}: {asked} are {actions:,} actions a rank, at most {MOST_ACTIONS:,}")
        if of_1f1b is not None and schedule != AUTO:
            raise UsageError(f"--memory is for --schedule {AUTO}, not for {schedule}", todo="leave it away")
        if schedule not in SEARCHED and kept is not None:
            raise UsageError(
                f"--weight-memory is for --schedule {', '.join(SEARCHED)}, not for {schedule}", todo="leave it away"
            )
        kept = KEPT if kept is None else kept
        found = what_if(schedule, microbatches, measured, pieces, input_share, of_1f1b, kept)
        ranks = [file.stages[i].rank for i in replica(file)]
        step = step_time(measured, found, file.steps, ranks, ranges) if len(ranks) == file.pipeline.stages else UNSET
    except ValueError as problem:  # of a damaged file, too
        raise UsageError(f"--schedule {name}: {problem}", todo="see graphlink bubbles --help") from None
    return found._replace(
        other=structs.replace(found.other, assumed=(*_of_several(file), *found.other.assumed), step=step)
    )


def makespans(file: Bubbles, *microbatches: int) -> list[int]:
    """Return what the pipeline of ``file`` takes with each number of microbatches, on its median times, in ns; []
    where its schedule is unknown, or does not exist for these numbers.
    """
    with suppress(ValueError):
        measured = _measured(file)[1]
        return [what_if(file.pipeline.schedule, count, measured).other.makespan_ns for count in microbatches]
    return []


def _measured(file: Bubbles) -> tuple[list[Ranges], Measured]:
    """Return the ranges of the first pipeline of a run, its ranks in the order of their stages, and what was measured
    of them.
    """
    every, mine = ranges_of(file), replica(file)
    ranges = [every[i] for i in mine]
    layers = tuple(tuple(file.stages[i].layers or ()) for i in mine)
    recognised = replace(recognise(ranges), stages=file.pipeline.stages)
    return ranges, replace(measure(ranges, recognised, waits_inside=not file.definition.sees_device), layers=layers)


def _of_several(file: Bubbles) -> tuple[str, ...]:
    """Describe which pipeline counts, where there are several."""
    count, mine = len({stage.replica for stage in file.stages}), [str(file.stages[i].rank) for i in replica(file)]
    ranks = f"ranks {first_few(mine, _MOST_NAMED)}, in the order of their stages"
    return (f"times are those of one pipeline of {count} side by side: {ranks}",) if count > 1 else ()


def compare(file: Bubbles, offered: PlayedSchedule | None, path: Path) -> None:
    """Draw ``offered``, or else the schedule of the run itself, above what was recorded.

    Raises:
        UsageError, OutputError
    """
    if offered is None:
        _, measured = _measured(file)
        if not measured.recognised.steps:
            raise UsageError("--compare: the schedule of this run is unknown", todo="name one with --schedule")
        orders = measured.recognised.steps[0].orders
        timed = simulate(orders, equal_stages(measured))
        caption = f"{file.pipeline.schedule} itself: all stages at their mean times, no transfers"
    else:
        other, orders, timed, _ = offered
        caption = f"{other.schedule} on the measured times, {other.microbatches} microbatches, computed"
    count = len({stage.replica for stage in file.stages})
    whole = caption if count == 1 else f"{caption}, one pipeline of {count}"
    rank_of = {file.stages[i].stage: f"rank {file.stages[i].rank}" for i in replica(file)}
    above = _drawn(orders, timed, whole, [rank_of.get(k, "not recorded") for k in range(len(orders))])
    ranks = [stage.rank for stage in file.stages]
    drawing = picture(file.pipeline, [above, *recorded(ranks, ranges_of(file), idle_of(file), file.steps)])
    with naming(path, todo="make room, or name another file with --compare"):
        write_anew(path, drawing)


def _drawn(orders: Sequence[Order], timed: Timed, caption: str, rows: Sequence[str]) -> Panel:
    """Return a computed step as a panel of the picture; ``rows``: what its rows are called."""
    actions, row = concat(*orders), np.repeat(np.arange(len(orders)), [*map(len, orders)])
    chunk = np.concatenate([codes(order.stage) for order in orders])
    start, end, phase = np.concatenate(timed.start_ns), np.concatenate(timed.end_ns), actions.phase.astype(np.int64)
    boxes = Marks(row, phase, start, end, actions.stage, chunk, actions.microbatch, np.zeros_like(row), ("",))
    return computed(caption, tuple(rows), boxes)
