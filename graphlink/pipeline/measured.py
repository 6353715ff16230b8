"""What each virtual stage and each transfer of a run took: medians of its ranges, least lags between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphlink.model import I64, NOWHERE, Bool
from graphlink.pipeline.order import UNKNOWN, Order
from graphlink.pipeline.recognise import Recognised
from graphlink.pipeline.records import Phase, Ranges
from graphlink.pipeline.simulate import PHASES, Times


@dataclass(frozen=True, slots=True)
class Measured:
    """Median times of a run with ``stages`` ranks of ``chunks`` each.

    ``times``: medians; 0 where nothing was seen. ``seen``: shape (4, virtual stages), whether the phase ran there. ``home``: the rank of
    each virtual stage, ``NOWHERE`` if none. ``schedule``: which was recognised.
    """

    schedule: str
    stages: int
    chunks: int
    times: Times
    seen: Bool
    home: I64


def measure(
    ranges: Sequence[Ranges],
    recognised: Recognised,
    *,
    waits_inside: bool = False,
    forward_ns: I64 | None = None,
    backward_ns: I64 | None = None,
) -> Measured:
    """Medians of ``busy_ns`` over all steps that were recognised, and transfers unless given (as in ``Times``).

    ``waits_inside``: ranges are those of the host and begin before their input is there, so an action starts ``busy_ns`` before its end.

    Time in which n ranges of a rank ran at once counts to each of them as its n-th part, so that a pair of DualPipe takes what it took.
    A transfer takes the least time from a producer's end to its consumer's start, over all microbatches and steps; 0 where clocks put
    the start before the end. It is an upper bound: nobody may ever have waited for it.

    If no schedule was recognised all ranges count, with the virtual stages of the recording (chunk * p + rank where it has none).
    """
    seen = _seen(ranges, recognised, waits_inside)
    count = recognised.chunks * recognised.stages
    count = max(count, int(seen.stage.max(initial=-1)) + 1)
    home = np.full(count, NOWHERE)
    home[seen.stage] = seen.rank
    medians, there = _medians(seen, count)
    lags = [_least_lags(seen, home, forward) for forward in (True, False)]
    forward = lags[0] if forward_ns is None else forward_ns
    backward = lags[1] if backward_ns is None else backward_ns
    return Measured(recognised.schedule, recognised.stages, recognised.chunks, Times(medians, forward, backward), there, home)


@dataclass(frozen=True, slots=True)
class _Seen:
    """All actions of all ranks and steps that count."""

    rank: I64
    step: I64
    phase: I64
    stage: I64
    microbatch: I64
    start_ns: I64
    end_ns: I64
    cost_ns: I64


def _seen(ranges: Sequence[Ranges], recognised: Recognised, waits_inside: bool) -> _Seen:
    """A pair starts and ends as one (``Order.paired``)."""
    parts: list[tuple[I64, ...]] = []
    for rank, one in enumerate(ranges):
        row, order = _actions(rank, len(ranges), one, recognised)
        start, end = (one.end_ns - one.busy_ns if waits_inside else one.start_ns)[row], one.end_ns[row]
        at = np.flatnonzero(order.paired)
        start[at] = start[at + 1] = np.minimum(start[at], start[at + 1])
        end[at] = end[at + 1] = np.maximum(end[at], end[at + 1])
        phase = order.phase.astype(np.int64)
        parts.append((np.full(len(row), rank), one.step[row], phase, order.stage, order.microbatch, start, end, _shares(one)[row]))
    return _Seen(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _actions(rank: int, ranks: int, ranges: Ranges, recognised: Recognised) -> tuple[I64, Order]:
    """Rows that count, and what they are."""
    if recognised.schedule == UNKNOWN:
        row = np.flatnonzero(ranges.phase <= Phase.W)
        stage = np.where(ranges.stage == NOWHERE, np.maximum(ranges.chunk, 0) * ranks + rank, ranges.stage)
        return row, Order(ranges.phase[row], stage[row], ranges.microbatch[row], np.zeros(len(row), np.bool_))
    orders = [step.orders[rank] for step in recognised.steps]
    columns = ([getattr(order, name) for order in orders] for name in ("phase", "stage", "microbatch", "paired"))
    return np.concatenate([step.rows[rank] for step in recognised.steps]), Order(*map(np.concatenate, columns))


def _shares(ranges: Ranges) -> I64:
    """``busy_ns``, of which time that n ranges share counts as its n-th part."""
    row = np.flatnonzero((ranges.phase <= Phase.W) & (ranges.end_ns > ranges.start_ns))
    start, end = ranges.start_ns[row], ranges.end_ns[row]
    order = np.argsort(start, kind="stable")
    if not len(row) or (start[order][1:] >= np.maximum.accumulate(end[order])[:-1]).all():
        return ranges.busy_ns
    points = np.unique(np.concatenate([start, end]))
    low, high = np.searchsorted(points, start), np.searchsorted(points, end)
    running = np.cumsum(np.bincount(low, minlength=len(points)) - np.bincount(high, minlength=len(points)))[:-1]
    shared = np.append(0.0, np.cumsum(np.diff(points) / np.maximum(running, 1)))
    out = ranges.busy_ns.copy()
    out[row] = np.rint(ranges.busy_ns[row] * (shared[high] - shared[low]) / (end - start))
    return out


def _medians(seen: _Seen, count: int) -> tuple[I64, Bool]:
    """By phase and virtual stage: the median time, and whether there is any."""
    unit = seen.phase * count + seen.stage
    order = np.lexsort((seen.cost_ns, unit))
    many = np.bincount(unit, minlength=PHASES * count)
    there = many > 0
    first = np.cumsum(many) - many
    low, high = (first + np.maximum(many - 1, 0) // 2), (first + many // 2)
    cost = np.append(seen.cost_ns[order], 0)
    median = (cost[np.where(there, low, -1)] + cost[np.where(there, high, -1)] + 1) // 2
    return median.reshape(PHASES, count), there.reshape(PHASES, count)


def _least_lags(seen: _Seen, home: I64, forward: bool) -> I64:
    """Between virtual stages k and k + 1, by k: the least time from the end of the one's to the start of the other's action."""
    kind = [Phase.F] if forward else [Phase.B, Phase.I]
    row = np.flatnonzero(np.isin(seen.phase, kind) & (seen.microbatch != NOWHERE))
    many = int(seen.microbatch[row].max(initial=0)) + 1
    step = np.unique(seen.step[row], return_inverse=True)[1]
    stages = len(home)
    key = (step * (stages + 1) + seen.stage[row]) * many + seen.microbatch[row]  # one stage more than there is: k + 1 is no k of the next
    order = np.argsort(key)
    key, row = key[order], row[order]
    after = np.searchsorted(key, key + many)
    found = np.flatnonzero(np.append(key, -1)[after] == key + many)
    low, high = row[found], row[after[found]]
    lag = seen.start_ns[high] - seen.end_ns[low] if forward else seen.start_ns[low] - seen.end_ns[high]
    none = np.iinfo(np.int64).max
    least = np.full(max(stages - 1, 0), none)
    np.minimum.at(least, seen.stage[low], lag)
    least[(least == none) | (home[1:] == home[:-1]) | (least < 0)] = 0
    return least
