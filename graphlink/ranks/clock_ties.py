"""Ties between the clocks of two ranks: kernels of one match end together, to a few us (1 to 7 us in recordings of
V100s).

A tie is a match as two of its members saw it: the lowest rank there (its hub), and one other. Stars, unlike chains of
neighbours, let no error grow with the size of a group.

Of a group, and of a pair of ranks that exchange messages, at most ``MOST`` matches are taken, evenly in their order:
the error falls with the root of their number, and is far below that of one end then. Rooted collectives may end earlier
on some members, so they serve only where nothing else ties two ranks, directly or by others. Host rows end when
somebody waits for them: no ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

import numpy as np

from graphlink.linking.commtypes import CollectiveType
from graphlink.model import F64, I64, NOWHERE, Bool, CommKind
from graphlink.ranks.columns import column, members, offsets
from graphlink.ranks.records import Matches, RankComms
from graphlink.tables import codes, medians, nowhere, numbered_values, take, tuples, turns

MOST: Final = 512
ROOTED: Final = (CollectiveType.REDUCE, CollectiveType.GATHER, CollectiveType.SCATTER, CollectiveType.BROADCAST)
FEW: Final = 4  # a line through fewer ends is no evidence of drift
_NEAR_NS: Final = 10_000.0  # from the line of a pair: its ends agree
_NO_DRIFT: Final = 1e-3  # no two oscillators differ by as much


@dataclass(frozen=True, slots=True)
class Ties:
    """One entry per tie. ``hub`` and ``other``: positions of ranks, ``hub`` the lower.

    ``hub_ns`` and ``other_ns``: their ends, on their own clocks, from the middle of their recordings. ``match``:
    equal for ties of one match, ascending.
    """

    match: I64
    hub: I64
    other: I64
    hub_ns: F64
    other_ns: F64


def ties(ranks: Sequence[RankComms], matches: Matches) -> Ties:
    """Collect the ties of all matches: n log n in matches, and no more than ``MOST`` of a group or pair beyond."""
    rooted = (matches.kind == CommKind.COLLECTIVE) & np.isin(matches.type, ROOTED)
    chosen = _evenly(_keys(ranks, matches, rooted), MOST)
    at = members(ranks, matches, chosen)
    kept = ~at.spread(np.logical_or.reduceat(column(ranks, "on_host")[at.op], at.first))
    hub_entry = at.spread(at.first)
    kept &= (np.arange(len(at.op)) != hub_entry) & (at.rank != at.rank[hub_entry])
    other, hub = np.flatnonzero(kept), hub_entry[kept]
    middle = middles(ranks)
    end = column(ranks, "end_ns")[at.op] - middle[at.rank]
    number = at.spread(np.arange(len(chosen)))[other]
    rank = at.rank.astype(np.int64)
    out = Ties(number, rank[hub], rank[other], end[hub].astype(np.float64), end[other].astype(np.float64))
    loose = at.spread(rooted[chosen])[other]
    tied = components(len(ranks), out.hub[~loose], out.other[~loose])
    return take(out, ~loose | (tied[out.hub] != tied[out.other]))


def middles(ranks: Sequence[RankComms]) -> I64:
    """Return the middle of each recording, on its own clock: times are counted from there before they become floats."""
    return np.array([(r.began_ns + r.ended_ns) // 2 for r in ranks], np.int64)


def components(count: int, a: I64, b: I64) -> I64:
    """Return for each of ``count`` ranks the lowest that pairs (``a``, ``b``) tie it to. Few rounds of pointer jumping,
    each linear.
    """
    label = np.arange(count)
    pairs = np.unique(a * count + b)
    a, b = pairs // max(count, 1), pairs % max(count, 1)
    while True:
        low = np.minimum(label[a], label[b])
        new = label.copy()
        for side in (a, b):
            np.minimum.at(new, side, low)
            np.minimum.at(new, label[side], low)
        new = new[new]
        if (new == label).all():
            return label
        label = new


def _keys(ranks: Sequence[RankComms], matches: Matches, rooted: Bool) -> I64:
    """Return keys that are equal for matches that link the same ranks in the same way."""
    first, count = matches.first[:-1], len(ranks)
    host = column(ranks, "on_host")[offsets(ranks)[matches.rank[first]] + matches.op[first]]
    message = matches.kind != CommKind.COLLECTIVE
    last = matches.first[1:] - 1
    pair = matches.rank[first].astype(np.int64) * count + matches.rank[last]
    groups = len(matches.groups)
    return np.asarray((np.where(message, groups + pair, matches.group) * 2 + rooted) * 2 + host)


def _evenly(key: I64, most: int) -> I64:
    """Choose at most ``most`` positions of each key, evenly in their order."""
    turn, of_key = turns(key), codes(key)
    total = np.bincount(of_key)[of_key]
    return np.flatnonzero((total <= most) | ((turn + 1) * most // total > turn * most // total))


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of ranks with ties; ``of``: the pair of each tie; ``count``: ties of each pair."""

    hub: I64
    other: I64
    of: I64
    count: I64


@dataclass(frozen=True, slots=True)
class Affine:
    """Clocks: common time = (1 + ``drift``) * own + ``shift_ns``, own counted from the middle of the recording. Of
    pairs: the clock of the hub by that of the other.
    """

    shift_ns: F64
    drift: F64


@dataclass(frozen=True, slots=True)
class Tree:
    """The pairs that tell most, spanning each component. ``order``: roots (lowest ranks) first, then whatever hangs on
    those before.

    ``parent`` and ``pair`` of a rank: what it hangs on, and by which pair; ``NOWHERE`` for roots.
    """

    order: I64
    parent: I64
    pair: I64
    root: I64


def pairs_of(ties: Ties, count: int) -> Pairs:
    """Number the pairs of ranks that ties join: n log n in ties."""
    code, of = numbered_values(ties.hub * count + ties.other)
    return Pairs(code // max(count, 1), code % max(count, 1), of, np.bincount(of, minlength=len(code)))


def lines(ties: Ties, pairs: Pairs) -> tuple[Affine, F64, I64]:
    """Fit a line to each pair by medians, which up to a fourth of wrong ends does not sway: hub_ns - other_ns = shift +
    drift * other_ns. Return also the median deviation of its ties, and how many of them agree with it.

    The drift is the median over ends half the pair's ends apart.
    """
    total = len(pairs.count)
    level, flat = _levels(ties, pairs, np.zeros(total))
    order = np.lexsort((ties.other_ns, pairs.of))
    of = pairs.of[order]
    turn, half = turns(of), pairs.count[of] // 2
    from_ = np.flatnonzero((turn + half < pairs.count[of]) & (pairs.count[of] >= FEW))
    a, b = order[from_], order[from_ + half[from_]]
    run = ties.other_ns[b] - ties.other_ns[a]
    rise = (ties.hub_ns - ties.other_ns)[b] - (ties.hub_ns - ties.other_ns)[a]
    apart = run > 0
    slope = medians(rise[apart] / run[apart], of[from_][apart], total)
    slope = np.where(np.abs(slope) < _NO_DRIFT, slope, 0.0)
    sloped, steep = _levels(ties, pairs, slope)
    use = steep < flat / 2
    level, slope, deviation = np.where(use, sloped, level), np.where(use, slope, 0.0), np.where(use, steep, flat)
    off = np.abs(ties.hub_ns - ties.other_ns - level[pairs.of] - slope[pairs.of] * ties.other_ns)
    return Affine(level, slope), deviation, np.bincount(pairs.of[off <= _NEAR_NS], minlength=total)


def _levels(ties: Ties, pairs: Pairs, slope: F64) -> tuple[F64, F64]:
    """Return level and median deviation of each pair, given its slope."""
    rest = ties.hub_ns - ties.other_ns - slope[pairs.of] * ties.other_ns
    level = medians(rest, pairs.of, len(slope))
    return level, medians(np.abs(rest - level[pairs.of]), pairs.of, len(slope))


def tree(pairs: Pairs, near: I64, count: int) -> Tree:
    """Return the spanning tree whose pairs have most ends that agree (Prim). e log e in pairs."""
    best = np.lexsort((pairs.other, pairs.hub, -near))
    next_to: list[list[tuple[int, int, int, int]]] = [
        [] for _ in range(count)
    ]  # of each rank: place, other, itself, pair
    for place, (pair, a, b) in enumerate(tuples(best, pairs.hub[best], pairs.other[best])):
        next_to[a].append((place, b, a, pair))
        next_to[b].append((place, a, b, pair))
    parent, by, root = (nowhere(count) for _ in range(3))
    order: list[int] = []
    for lowest in range(count):
        ahead = [(0, lowest, NOWHERE, NOWHERE)]
        while ahead:
            _, rank, before, pair = heappop(ahead)
            if root[rank] == NOWHERE:
                root[rank], parent[rank], by[rank] = lowest, before, pair
                order.append(rank)
                for one in next_to[rank]:
                    heappush(ahead, one)
    return Tree(np.array(order, np.int64), parent, by, root)


def along(grown: Tree, pairs: Pairs, line: Affine) -> Affine:
    """Put clocks together from the roots on, by the lines of the pairs."""
    shift, drift = np.zeros(len(grown.root)), np.zeros(len(grown.root))
    for rank in grown.order.tolist():
        pair, parent = int(grown.pair[rank]), int(grown.parent[rank])
        if pair == NOWHERE:
            continue
        if pairs.hub[pair] == parent:
            drift[rank] = (1 + line.drift[pair]) * (1 + drift[parent]) - 1
            shift[rank] = shift[parent] + line.shift_ns[pair] * (1 + drift[parent])
        else:
            drift[rank] = (1 + drift[parent]) / (1 + line.drift[pair]) - 1
            shift[rank] = shift[parent] - line.shift_ns[pair] * (1 + drift[rank])
    return Affine(shift, drift)


def summed(grown: Tree, of_pair: F64) -> F64:
    """Return for each rank the sum over the pairs between it and its root."""
    out = np.zeros(len(grown.root))
    for rank in grown.order.tolist():
        if grown.pair[rank] != NOWHERE:
            out[rank] = out[grown.parent[rank]] + of_pair[grown.pair[rank]]
    return out
