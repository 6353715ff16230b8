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
from graphlink.pipeline.simulate import ActionTimes, Timed, simulate
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
    source = tuple(range(recorded))
    if recorded > 2:
        source = (0, *(1 + k % (recorded - 2) for k in range(count - 2)), recorded - 1)
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
    recorded_ns, played_ns = _makespans_ns(ranges, measured, waits_inside=waits_inside)
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
    boundaries, last = len(source) - 1, measured.recognised.stages - 2  # the recorded one that is last
    between = np.arange(boundaries)
    recorded = np.minimum(1 + (between - 1) % max(last - 1, 1), last)
    recorded[(between == boundaries - 1)] = last
    recorded[between == 0] = 0
    times = measured.times
    return ActionTimes(times.duration_ns[:, np.array(source)], times.forward_ns[recorded], times.backward_ns[recorded])


def _pools(ranges: Sequence[Ranges], measured: Measured, *, waits_inside: bool) -> dict[tuple[int, int], I64]:
    """Return what the actions of each stage and phase were recorded to take, in the order in which they ran."""
    out: dict[tuple[int, int], I64] = {}
    for stage, own in enumerate(ranges):
        rows = np.concatenate([step.rows[stage] for step in measured.recognised.steps])
        took, phases = _took_ns(own, waits_inside=waits_inside)[rows], own.phase[rows]
        out |= {(stage, phase): took[phases == phase] for phase in np.unique(phases).tolist()}
    return out


def _drawn(order: Order, source: int, pools: dict[tuple[int, int], I64], rank: int, seed: int | None) -> I64:
    out = np.zeros(len(order), np.int64)
    for phase in np.unique(order.phase).tolist():
        actions, pool = np.flatnonzero(order.phase == phase), pools[source, phase]
        which = np.arange(len(actions)) % len(pool)
        if seed is not None:
            which = np.random.default_rng([seed, rank, phase]).integers(0, len(pool), len(actions))
        out[actions] = pool[which]
    return out


def _took_ns(ranges: Ranges, *, waits_inside: bool) -> I64:
    return ranges.busy_ns if waits_inside else ranges.end_ns - ranges.start_ns


def _makespans_ns(ranges: Sequence[Ranges], measured: Measured, *, waits_inside: bool) -> tuple[int, int]:
    """Return the mean makespan of the recorded steps, and of the same played with their own times."""
    recorded, played = [], []
    for step in measured.recognised.steps:
        rows = list(zip(ranges, step.rows, strict=True))
        first = min(int(own.start_ns[of_step].min()) for own, of_step in rows)
        recorded.append(max(int(own.end_ns[of_step].max()) for own, of_step in rows) - first)
        took = [_took_ns(own, waits_inside=waits_inside)[of_step] for own, of_step in rows]
        played.append(simulate(step.orders, measured.times, took).makespan_ns)
    return round(sum(recorded) / len(recorded)), round(sum(played) / len(played))
