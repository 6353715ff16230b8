"""Predicts the time of a step with another schedule or other microbatches, so that a recording of it can be compared.

A step lasts from the start of its first action to that of the next step's: the pipeline part, and what lies between the
last end and the next start. The pipeline part is the mean of simulated steps in which each action takes as much more or
less than the median of its stage as one of its phase that was recorded (``drawn``): waiting for the slowest of several
takes longer than the median. What the same computation misses on the recorded schedule it is taken to miss on the other
one, in proportion. What lies between stays as recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import UNSET, UnsetType, structs

from graphlink.pipeline.drawn import Habits, drawn, habits
from graphlink.pipeline.records import Pass, Ranges, RankStep, StepEntry, StepTime
from graphlink.pipeline.schedules import UNKNOWN
from graphlink.pipeline.theory import Measured, PlayedSchedule

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
    missed, every = _missed(measured, known, steps), _every_ns(steps)
    pipeline_ns = round(_mean([timed.makespan_ns for timed in computed]) * (1 if missed is None else 1 + missed))
    between, shown = _between_ns(steps, ranges)
    step_ns = pipeline_ns + between
    same = len(played.orders) == len(ranks)
    work = np.rint(np.mean([timed.work_ns for timed in computed], axis=0)).astype(np.int64).tolist()
    optimizer = [_optimizer_ns(one, len(steps)) for one in ranges] if same else [0] * len(work)
    return StepTime(
        step_ns=step_ns,
        measured_ns=UNSET if every is None else every,
        pipeline_ns=pipeline_ns,
        between_ns=between,
        missed=UNSET if missed is None else missed,
        ranks=[
            RankStep(rank=rank, work_ns=own, optimizer_ns=more, rest_ns=step_ns - own - more)
            for rank, own, more in zip(ranks if same else range(len(work)), work, optimizer, strict=True)
        ],
        rests_on=_RESTS_ON if shown else f"{_RESTS_ON} {_ONE_STEP}",
        cannot_know=_CANNOT_KNOW,
        doubt=_doubt(missed),
    )


def _begun(measured: Measured, steps: Sequence[StepEntry]) -> list[StepEntry]:
    """Let each step begin with its first action: a range of the host may begin before, and wait inside."""
    step, start_ns = (np.concatenate([getattr(one, name) for one in measured.played]) for name in ("step", "start_ns"))
    numbers, at = np.unique(step, return_inverse=True)
    first = np.full(len(numbers), np.iinfo(np.int64).max)
    np.minimum.at(first, at, start_ns)
    began = dict(zip(numbers.tolist(), first.tolist(), strict=True))
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
    computed: dict[bytes, int] = {}
    total = 0
    for step in there:
        key = b"".join(
            column.tobytes() for order in step.orders for column in (order.phase, order.stage, order.microbatch)
        )
        if key not in computed:
            computed[key] = _mean([timed.makespan_ns for timed in drawn(step.orders, measured.times, known)])
        total += computed[key]
    return sum(bounds[step.step] for step in there) / total - 1 if total else None


def _between_ns(steps: Sequence[StepEntry], ranges: Sequence[Ranges]) -> tuple[int, bool]:
    """Return the median time from the last end of a step to the first start of the next, and whether the recording
    shows it.
    """
    between = [b.start_ns - a.end_ns for a, b in pairwise(steps) if b.number == a.number + 1]
    if between:
        return round(float(np.median(between))), True
    return max((_optimizer_ns(one, len(steps)) for one in ranges), default=0), False


def _every_ns(steps: Sequence[StepEntry]) -> int | None:
    """Return the median time from one step to the next; None where no two follow each other."""
    every = [b.start_ns - a.start_ns for a, b in pairwise(steps) if b.number == a.number + 1]
    return round(float(np.median(every))) if every else None


def _optimizer_ns(ranges: Ranges, steps: int) -> int:
    """Return what the optimizer of a rank takes in a step."""
    mine = ranges.phase == Pass.OPT
    return round(int((ranges.end_ns - ranges.start_ns)[mine].sum()) / max(1, steps))


def _mean(ns: Sequence[int]) -> int:
    return round(sum(ns) / len(ns))
