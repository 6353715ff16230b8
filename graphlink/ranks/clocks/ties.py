"""What ties the clocks of two ranks: kernels of one meeting end together, to a few us (1 to 7 us in recordings of V100s).

A tie is a meeting as two of its members saw it: the lowest rank there (its hub), and one other. Stars, unlike chains of neighbours, let
no error grow with the size of a group.

Of a group, and of a pair of ranks that exchange messages, at most ``MOST`` meetings are taken, evenly in their order: the error falls
with the root of their number, and is far below that of one end then. Rooted collectives may end earlier on some members, so they serve
only where nothing else ties two ranks, directly or by others. Host rows end when somebody waits for them: no ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from graphlink.link.commtypes import CollectiveType
from graphlink.model import I64, Bool, CommKind
from graphlink.ranks.flat import any_of, column, members, offsets
from graphlink.ranks.records import Meetings, RankComms

F64 = NDArray[np.float64]
MOST: Final = 512
ROOTED: Final = (CollectiveType.REDUCE, CollectiveType.GATHER, CollectiveType.SCATTER, CollectiveType.BROADCAST)


@dataclass(frozen=True, slots=True)
class Ties:
    """One entry a tie. ``hub`` and ``other``: positions of ranks, ``hub`` the lower.

    ``hub_ns`` and ``other_ns``: their ends, on their own clocks, from the middle of their recordings. ``meeting``: equal for ties of one
    meeting, ascending.
    """

    meeting: I64
    hub: I64
    other: I64
    hub_ns: F64
    other_ns: F64


def ties(ranks: Sequence[RankComms], meetings: Meetings) -> Ties:
    """n log n in meetings, and no more than ``MOST`` of a group or pair beyond."""
    rooted = (meetings.kind == CommKind.COLLECTIVE) & np.isin(meetings.type, ROOTED)
    chosen = _evenly(_keys(ranks, meetings, rooted), MOST)
    at = members(ranks, meetings, chosen)
    kept = ~at.spread(any_of(column(ranks, "on_host")[at.op], at))
    hub_entry = at.spread(at.first)
    kept &= (np.arange(len(at.op)) != hub_entry) & (at.rank != at.rank[hub_entry])
    other, hub = np.flatnonzero(kept), hub_entry[kept]
    middle = middles(ranks)
    end = column(ranks, "end_ns")[at.op] - middle[at.rank]
    number = at.spread(np.arange(len(chosen)))[other]
    rank = at.rank.astype(np.int64)
    out = Ties(number, rank[hub], rank[other], end[hub].astype(np.float64), end[other].astype(np.float64))
    loose = at.spread(rooted[chosen])[other]
    if not loose.any():
        return out
    tied = components(len(ranks), out.hub[~loose], out.other[~loose])
    return taken(out, ~loose | (tied[out.hub] != tied[out.other]))


def taken(all_ties: Ties, wanted: Bool) -> Ties:
    """Some of the ties."""
    return Ties(*(getattr(all_ties, field.name)[wanted] for field in fields(Ties)))


def middles(ranks: Sequence[RankComms]) -> I64:
    """The middle of each recording, on its own clock: times are counted from there before they become floats."""
    return np.array([(r.began_ns + r.ended_ns) // 2 for r in ranks], np.int64)


def components(count: int, a: I64, b: I64) -> I64:
    """Of each of ``count`` ranks the lowest that pairs (``a``, ``b``) tie it to. Few rounds of pointer jumping, each linear."""
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


def _keys(ranks: Sequence[RankComms], meetings: Meetings, rooted: Bool) -> I64:
    """Equal for meetings that tie the same ranks in the same way."""
    first, count = meetings.first[:-1], len(ranks)
    host = column(ranks, "on_host")[offsets(ranks)[meetings.rank[first]] + meetings.op[first]]
    message = meetings.kind != CommKind.COLLECTIVE
    last = meetings.first[1:] - 1
    pair = meetings.rank[first].astype(np.int64) * count + meetings.rank[last]
    groups = len(meetings.groups)
    out: I64 = (np.where(message, groups + pair, meetings.group) * 2 + rooted) * 2 + host
    return out


def _evenly(key: I64, most: int) -> I64:
    """At most ``most`` positions of each key, evenly in their order."""
    order = np.argsort(key, kind="stable")
    new = np.append(True, key[order][1:] != key[order][:-1]) if len(key) else np.zeros(0, np.bool_)
    first = np.flatnonzero(new)
    count = np.diff(np.append(first, len(key)))
    turn, total = np.arange(len(key)) - np.repeat(first, count), np.repeat(count, count)
    kept = (total <= most) | ((turn + 1) * most // np.maximum(total, 1) > turn * most // np.maximum(total, 1))
    return np.sort(order[kept])
