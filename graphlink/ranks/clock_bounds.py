"""Find what cannot be on one clock: a collective that a member ends before all have begun, a receive that ends before
its send began.

Where device work ties clocks, such cases are counted. Where only host rows meet (gloo: their ends say nothing else),
they are all that tells of the clocks: those stand as recorded until something cannot be, then are shifted so that all
can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from graphlink.model import I32, I64, Bool, CommKind
from graphlink.ranks.clock_ties import ROOTED
from graphlink.ranks.columns import blocks, column, members
from graphlink.ranks.records import Matches, RankComms
from graphlink.tables import MOST, equal_runs, in_order, numbered_values

OPEN: Final = 1 << 60  # ns: no bound
_WORST: Final = 1_000  # matches of a group, those with the least room, that bound shifts


@dataclass(frozen=True, slots=True)
class Room:
    """The room of each match: how long it ended after it must have begun, below 0 what cannot be; ``OPEN`` where
    nothing must hold.

    ``begun`` and ``ended``: positions of the ranks that say so. ``on_host``: of a member.
    """

    ns: I64
    begun: I32
    ended: I32
    on_host: Bool


def rooms(ranks: Sequence[RankComms], matches: Matches, start_ns: I64, end_ns: I64) -> Room:
    """Return the room of each match from times on a common clock, of all ranks' ops one after the other. Linear in
    members.

    Rooted collectives hold nothing: which rank must wait is not recorded.
    """
    kind, host = column(ranks, "kind"), column(ranks, "on_host")
    free = (matches.kind == CommKind.COLLECTIVE) & np.isin(matches.type, ROOTED)
    parts = []
    for at in blocks(ranks, matches):
        message = at.spread(matches.kind[at.matches] != CommKind.COLLECTIVE)
        receives, sends = message & (kind[at.op] == CommKind.RECV), message & (kind[at.op] == CommKind.SEND)
        late, last = _first_of(np.where(receives, MOST, -start_ns[at.op]), at.first, at.count)
        early, ends = _first_of(np.where(sends, MOST, end_ns[at.op]), at.first, at.count)
        on_host = np.logical_or.reduceat(host[at.op], at.first)
        parts.append((np.where(free[at.matches], OPEN, early + late), at.rank[last], at.rank[ends], on_host))
    return Room(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _first_of(value: I64, first: I64, count: I64) -> tuple[I64, I64]:
    """Return the least value of each slice, and where it first is."""
    least = np.minimum.reduceat(value, first)
    hits = np.flatnonzero(value == np.repeat(least, count))
    return least, hits[np.searchsorted(hits, first)]


class Shifts(NamedTuple):
    """The shift of each rank, its uncertainty where bounds hold it, else 0, and by how much bounds are missed."""

    shift_ns: I64
    uncertainty_ns: I64
    slack_ns: int


def shifts(ranks: Sequence[RankComms], matches: Matches, start_ns: I64, end_ns: I64, body: I64, room: Room) -> Shifts:
    """Return shifts of bodies (``body[r]``: the lowest of the r-th's) with which no host match between two ends
    before it began.

    Bodies are taken in order of their lowest rank: one that can stay stays; else it goes to the middle of what the
    bounds and the bodies before leave it, or as little as needed where only one side is bounded. Of the bounds' system:
    bodies^3.
    """
    bodies, of_rank = numbered_values(body)
    bound = np.full((len(bodies),) * 2, OPEN)
    np.fill_diagonal(bound, 0)
    kind = column(ranks, "kind")
    use = np.flatnonzero(room.on_host & (room.ns < OPEN // 2))
    message = matches.kind[use] != CommKind.COLLECTIVE
    at = members(ranks, matches, use[message])
    if len(at.first):
        sends = kind[at.op] == CommKind.SEND
        begun, ended = np.flatnonzero(sends), np.flatnonzero(~sends)  # one of each a match, in order
        np.minimum.at(
            bound, (of_rank[at.rank[ended]], of_rank[at.rank[begun]]), end_ns[at.op[ended]] - start_ns[at.op[begun]]
        )
    for chosen in _worst(use[~message], matches.group, room.ns):
        at = members(ranks, matches, chosen)
        size = int(at.count[0])
        own = of_rank[at.rank[:size]]
        start, end = start_ns[at.op].reshape(-1, size), end_ns[at.op].reshape(-1, size)
        for k in range(size):
            np.minimum.at(bound[own[k]], own, (end[:, k, None] - start).min(axis=0))
    np.fill_diagonal(bound, 0)
    slack, tight = solved(bound)
    shift, width = _placed(tight)
    return Shifts(shift[of_rank], np.where(width > 0, width + slack, 0)[of_rank], slack)


def _worst(use: I64, group: I32, room: I64) -> list[I64]:
    """Find the collectives with the least room in each group."""
    order = in_order(use, group, room)
    return [np.sort(part[:_WORST]) for part in equal_runs(order, group[order])]


def _placed(tight: I64) -> tuple[I64, I64]:
    """Choose a shift for each body that keeps all bounds, and half of what was left it. Bounds are closed, so what is
    placed never bars the rest."""
    shift, half = np.zeros(len(tight), np.int64), np.zeros(len(tight), np.int64)
    for k in range(1, len(tight)):
        high = int(np.where(tight[:k, k] < OPEN // 2, shift[:k] + tight[:k, k], OPEN).min())
        low = int(np.where(tight[k, :k] < OPEN // 2, shift[:k] - tight[k, :k], -OPEN).max())
        if low <= 0 <= high:
            continue
        if high < OPEN // 2 and low > -OPEN // 2:
            shift[k], half[k] = low + (high - low) // 2, (high - low + 1) // 2
        else:
            shift[k] = low if low > 0 else high
    return shift, half


def solved(bound: I64) -> tuple[int, I64]:
    """Find the least slack that every bound must be given so that all can hold (0: none), and the tightest bounds that
    follow by shortest paths: ``bound[i, j]`` is the most that the clock of j may be shifted against that of i.
    """
    tight = closed(bound)
    if (np.diagonal(tight) >= 0).all():
        return 0, tight
    low, high = 0, int(-bound.min())
    while high - low > 1:
        middle = (low + high) // 2
        fits = (np.diagonal(closed(loosened(bound, middle))) >= 0).all()
        low, high = (low, middle) if fits else (middle, high)
    return high, closed(loosened(bound, high))


def loosened(bound: I64, slack: int) -> I64:
    """Return all bounds but those of a clock against itself, ``slack`` higher."""
    return np.where((bound < OPEN) & ~np.eye(len(bound), dtype=np.bool_), bound + slack, bound)


def closed(bound: I64) -> I64:
    """Return the bounds that follow by all chains of bounds. n^3."""
    out = bound.copy()
    for k in range(len(out)):
        out = np.clip(np.minimum(out, out[:, k, None] + out[None, k, :]), -OPEN, OPEN)
    return out
