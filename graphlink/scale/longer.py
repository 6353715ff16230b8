"""A pipeline of more stages or microbatches, played on the recorded times of forwards and backwards.

The first and the last stage keep their role. Stages between them are copies of those that were recorded there, in
turns. Each forward and backward takes what one of its stage was recorded to take, drawn by a seed (exact copies: the
one of the same turn). A transfer takes what was recorded at the same boundary: the first, the last, or one between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.errors import InputError, UsageError
from graphlink.model import I64
from graphlink.pipeline.recognise import recognise
from graphlink.pipeline.records import Pass, Ranges
from graphlink.pipeline.schedules import Order, orders
from graphlink.pipeline.simulate import PHASES, ActionTimes, Timed, simulate
from graphlink.pipeline.theory import Measured, measure

MOST_ACTIONS: Final = 10_000_000
_PLAIN: Final = ("GPipe", "1F1B", "ZB-H1", "ZB-H2")  # one chunk a rank, stages in the order of ranks


@dataclass(frozen=True, slots=True)
class Longer:
    """A pipeline that was played. ``source``: the recorded stage of each stage.

    ``recorded_makespan_ns``: the mean of the recorded steps; ``played_makespan_ns``: the same of those steps played in
    this way, each action with its own time, which shows how much of a step such playing leaves out. ``recorded_steps``:
    how many they are.
    """

    schedule: str
    stages: int
    microbatches: int
    recorded_microbatches: int
    source: tuple[int, ...]
    orders: tuple[Order, ...]
    times: ActionTimes
    timed: Timed
    recorded_makespan_ns: int
    played_makespan_ns: int
    recorded_steps: int


def longer(
    ranges: Sequence[Ranges], stages: int | None, microbatches: int | None, seed: int | None, *, waits_inside: bool
) -> Longer:
    """Play the pipeline of ``ranges`` (by stage) with other numbers; None: as recorded. Linear in the actions.

    Raises:
        InputError: its schedule is unknown or of chunks, or no stage between the first and the last was recorded.
        UsageError: the schedule does not exist for these numbers, or has too many actions.
    """
    seen = recognise(ranges)
    recorded = len(ranges)
    count, many = stages or recorded, microbatches or seen.microbatches
    if seen.schedule not in _PLAIN:
        raise InputError(
            f"the pipeline's schedule is {seen.schedule}: "
            f"{seen.difference or 'only ' + ', '.join(_PLAIN) + ' are made longer'}",
            todo="graphlink bubbles DIR --schedule NAME simulates another schedule on the measured times",
        )
    if count < recorded:
        raise UsageError(f"--pipeline {count:,}: {recorded:,} stages were recorded", todo=f"name {recorded:,} or more")
    if count > recorded and recorded < 3:
        raise InputError(
            f"{recorded} stages were recorded, and none between the first and the last, of which a longer pipeline has "
            "more",
            todo="record three stages or more",
        )
    if count * many * 3 > MOST_ACTIONS:
        raise UsageError(f"{count:,} stages with {many:,} microbatches are too many", todo="name fewer")
    source = (
        (0, *(1 + k % (recorded - 2) for k in range(count - 2)), recorded - 1)
        if recorded > 2
        else tuple(range(recorded))
    )
    try:
        made = orders(seen.schedule, count, many)
    except ValueError as problem:
        raise UsageError(f"{count} stages, {many} microbatches: {problem}", todo="name other numbers") from None
    measured = measure(ranges, seen, waits_inside=waits_inside)
    times = _times(measured, source)
    pools = _pools(ranges, measured, waits_inside=waits_inside)
    missing = {
        (source[rank], int(phase)) for rank, order in enumerate(made) for phase in np.unique(order.phase)
    } - pools.keys()
    if missing:
        stage, phase = min(missing)
        raise InputError(
            f"no {Pass(phase).name} of stage {stage} was recorded, which {seen.schedule} has",
            todo="record with ranges around all passes of each microbatch (docs/bubbles.md)",
        )
    timed = simulate(made, times, [_drawn(order, source[rank], pools, rank, seed) for rank, order in enumerate(made)])
    recorded_ns, played_ns = _makespan_ns(ranges, measured), _replayed_ns(ranges, measured, waits_inside=waits_inside)
    return Longer(
        seen.schedule,
        count,
        many,
        seen.microbatches,
        source,
        made,
        times,
        timed,
        recorded_ns,
        played_ns,
        len(seen.steps),
    )


def _times(measured: Measured, source: Sequence[int]) -> ActionTimes:
    """Return median times of the stages, and the transfers between them."""
    count, recorded = len(source), measured.recognised.stages
    middle = max(recorded - 3, 1)
    boundary = [
        0 if k == 0 else recorded - 2 if k == count - 2 else min(1 + (k - 1) % middle, recorded - 2)
        for k in range(count - 1)
    ]
    chosen, places = np.array(source), np.array(boundary, np.int64)
    return ActionTimes(
        measured.times.duration_ns[:, chosen], measured.times.forward_ns[places], measured.times.backward_ns[places]
    )


def _pools(ranges: Sequence[Ranges], measured: Measured, *, waits_inside: bool) -> dict[tuple[int, int], I64]:
    """Return what the actions of each stage and phase were recorded to take, in the order in which they ran."""
    out: dict[tuple[int, int], I64] = {}
    for stage, one in enumerate(ranges):
        rows = np.concatenate([step.rows[stage] for step in measured.recognised.steps])
        took = _took_ns(one, waits_inside=waits_inside)[rows]
        for phase in range(PHASES):
            mine = one.phase[rows] == phase
            if mine.any():
                out[stage, phase] = took[mine]
    return out


def _drawn(order: Order, source: int, pools: dict[tuple[int, int], I64], rank: int, seed: int | None) -> I64:
    out = np.zeros(len(order), np.int64)
    for phase in np.unique(order.phase).tolist():
        mine, pool = np.flatnonzero(order.phase == phase), pools[source, phase]
        which = (
            np.arange(len(mine))
            if seed is None
            else np.random.default_rng([seed, rank, phase]).integers(0, len(pool), len(mine))
        )
        out[mine] = pool[which % len(pool)]
    return out


def _took_ns(one: Ranges, *, waits_inside: bool) -> I64:
    return one.busy_ns if waits_inside else one.end_ns - one.start_ns


def _replayed_ns(ranges: Sequence[Ranges], measured: Measured, *, waits_inside: bool) -> int:
    """Return the mean makespan of the recorded steps, played with their own times."""
    spans = []
    for step in measured.recognised.steps:
        each = [_took_ns(one, waits_inside=waits_inside)[rows] for one, rows in zip(ranges, step.rows, strict=True)]
        spans.append(simulate(step.orders, measured.times, each).makespan_ns)
    return round(sum(spans) / len(spans))


def _makespan_ns(ranges: Sequence[Ranges], measured: Measured) -> int:
    """Return the mean recorded makespan of a step."""
    spans = []
    for step in measured.recognised.steps:
        first = min(int(one.start_ns[rows].min()) for one, rows in zip(ranges, step.rows, strict=True))
        last = max(int(one.end_ns[rows].max()) for one, rows in zip(ranges, step.rows, strict=True))
        spans.append(last - first)
    return round(sum(spans) / len(spans))
