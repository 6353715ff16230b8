"""The shift of one clock from another, from two lists of events that should be the same, with gaps on both sides.

A repeated pattern fits under many shifts. So a shift is taken only where nothing else fits nearly as well, and where
what fits could hardly be chance: intervals count as evidence by how rarely the trace itself repeats them after the same
events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from graphlink.model import I64, Bool
from graphlink.ranks.bytime import recorded_by_both
from graphlink.tables import MOST, codes, nearest, nowhere, spread

WIDE_NS: Final = 50_000  # what a witness may scatter by before its spread is known
LEAST_NS: Final = 4_000  # and what it is always allowed
SPREAD: Final = 6  # times the median residual
MOST_PAIRS: Final = 1 << 22  # differences that are voted on
MOST_ANCHORS: Final = 64
CANDIDATES: Final = 48
TAIL: Final = 3  # times the reach: how far a pair may stand apart that nothing else comes near
CONTEXT: Final = 3  # events that an interval is expected after
NEEDED_BITS: Final = 10.0  # beyond the number of places a shift could have

MayMeet = Callable[[I64, I64], Bool]


@dataclass(frozen=True, slots=True)
class EventTimes:
    """Events of both sides by time, each ascending. ``kind``: a code of what each of the right side is; ``call``,
    ``op``: what they are.
    """

    call: I64
    call_ns: I64
    op: I64
    op_ns: I64
    kind: I64


@dataclass(frozen=True, slots=True)
class Shift:
    """``left``, ``right``: positions in a timeline that meet. right time = left time + offset_ns, within
    ``reach_ns``.
    """

    offset_ns: int
    reach_ns: int
    left: I64
    right: I64
    residual_ns: int  # median


def timeline(call: I64, call_ns: I64, op: I64, op_ns: I64, kind: I64) -> EventTimes:
    left, right = np.argsort(call_ns, kind="stable"), np.argsort(op_ns, kind="stable")
    return EventTimes(call[left], call_ns[left], op[right], op_ns[right], kind[right])


def of_calls(line: EventTimes, kept: Bool) -> EventTimes:
    """Return the timeline with some of the calls."""
    return replace(line, call=line.call[kept], call_ns=line.call_ns[kept])


def candidates(line: EventTimes, may_meet: MayMeet) -> I64:
    """Return offsets under which most of some anchors have a counterpart, the best first. O(n log n) in what is voted
    on.
    """
    n, m = len(line.call), len(line.op)
    few, many = (n, m) if n <= m else (m, n)
    count = max(1, min(few, MOST_ANCHORS, MOST_PAIRS // many))
    anchors = np.unique(np.linspace(0, few - 1, count).astype(np.int64))
    parts = []
    every = np.arange(many)
    for anchor in anchors.tolist():
        one = np.full(many, anchor)
        left, right = (one, every) if n <= m else (every, one)
        met = may_meet(line.call[left], line.op[right])
        parts.append((line.op_ns[right] - line.call_ns[left])[met])
    apart = np.sort(np.concatenate(parts))
    votes = np.searchsorted(apart, apart + WIDE_NS, side="right") - np.arange(len(apart))
    found: list[int] = []
    order = np.argsort(-votes, kind="stable")[: CANDIDATES * MOST_ANCHORS]
    for at in order.tolist():
        offset = middle(apart[at : at + votes[at]])
        if all(abs(offset - other) > WIDE_NS for other in found):
            found.append(offset)
            if len(found) == CANDIDATES:
                break
    return np.array(found, np.int64)


def shifted(line: EventTimes, offset_ns: int, reach_ns: int, may_meet: MayMeet, around: int = 0) -> Shift:
    """Return what meets under an offset: each is the nearest of the other side, and may be it. ``around``: so many
    farther ones are looked at, either way, where the nearest may not."""
    if not len(line.call):
        return Shift(offset_ns, reach_ns, line.call, line.call, 0)
    at = line.call_ns + offset_ns
    to_op, to_call = nearest(at, line.op_ns), nearest(line.op_ns, at)
    if around:
        to_op = _nearest_that(at, line.op_ns, to_op, around, lambda i, j: may_meet(line.call[i], line.op[j]))
        to_call = _nearest_that(line.op_ns, at, to_call, around, lambda j, i: may_meet(line.call[i], line.op[j]))
    left = np.flatnonzero((to_call[to_op] == np.arange(len(at))) & (np.abs(line.op_ns[to_op] - at) <= reach_ns))
    right = to_op[left]
    met = may_meet(line.call[left], line.op[right])
    left, right = left[met], right[met]
    rest = np.abs(line.op_ns[right] - at[left])
    return Shift(offset_ns, reach_ns, left, right, int(np.median(rest)) if len(rest) else 0)


def near(line: EventTimes, shift: Shift) -> tuple[I64, I64]:
    """Return each call within reach of an op, and the op, whatever else is nearer to that."""
    at = line.call_ns + shift.offset_ns
    op = nearest(at, line.op_ns)
    call = np.flatnonzero(np.abs(line.op_ns[op] - at) <= TAIL * shift.reach_ns)
    return call, op[call]


def _nearest_that(of: I64, to: I64, closest: I64, around: int, may: MayMeet) -> I64:
    """Return as ``nearest`` those that may meet; the nearest itself where none around it may."""
    every = np.arange(len(of))
    best, least = closest.copy(), np.full(len(of), MOST)
    for step in range(-around, around + 1):
        other = np.clip(closest + step, 0, len(to) - 1)
        apart = np.abs(to[other] - of)
        better = (apart < least) & may(every, other)
        best[better], least[better] = other[better], apart[better]
    return best


def settled(line: EventTimes, offset_ns: int, may_meet: MayMeet) -> Shift:
    """Return the shift near an offset, moved to the middle of what meets, with a reach by how that scatters."""
    found = shifted(line, offset_ns, WIDE_NS, may_meet)
    for _ in range(3):
        if not len(found.left):
            return found
        found = shifted(line, *_offset_and_reach(line.op_ns[found.right] - line.call_ns[found.left]), may_meet)
    return found


def from_pairs(line: EventTimes, left: I64, right: I64) -> Shift:
    """Return the shift that pairs tell, with those of them that it explains."""
    apart = line.op_ns[right] - line.call_ns[left]
    offset, reach = _offset_and_reach(apart)
    rest = np.abs(apart - offset)
    order = np.argsort(left, kind="stable")
    kept = order[rest[order] <= reach]
    return Shift(offset, reach, left[kept], right[kept], int(np.median(rest)))


def middle(apart_ns: I64) -> int:
    """Return the median as one that there is, of two the higher."""
    return int(np.sort(apart_ns)[len(apart_ns) // 2])


def _offset_and_reach(apart_ns: I64) -> tuple[int, int]:
    offset = middle(apart_ns)
    spread = int(np.median(np.abs(apart_ns - offset)))
    return offset, min(max(LEAST_NS, SPREAD * spread), WIDE_NS)


def overlap(line: EventTimes, shift: Shift) -> int:
    """Count how many events the side with fewer has while both were recorded."""
    return recorded_by_both(line.call_ns + shift.offset_ns, line.op_ns, shift.reach_ns)


def evidence_bits(line: EventTimes, shift: Shift) -> float:
    """Return how unlikely it is that the intervals of both sides agree by chance, in bits.

    An interval of the trace that comes again after the same events says nothing; one that differs each time says -log2
    of the share of those that are as near. Only intervals between events that follow each other on both sides count.
    O(n log n).
    """
    kind = line.kind
    context = np.zeros(len(kind), np.int64)
    for back in range(CONTEXT + 1):
        context = codes(context, np.append(nowhere(back), kind)[: len(kind)])
    since = np.diff(line.op_ns, prepend=line.op_ns[:1])
    order = np.lexsort((since, context))
    span = int(since.max(initial=0)) + 4 * shift.reach_ns + 1
    place = context[order] * span + since[order]
    near = 2 * shift.reach_ns
    alike = np.searchsorted(place, place + near, side="right") - np.searchsorted(place, place - near, side="left")
    bits = spread(len(order), order, np.log2(np.bincount(context)[context[order]] / alike))
    follow = (np.diff(shift.left) == 1) & (np.diff(shift.right) == 1)
    return float(bits[shift.right[1:][follow]].sum())


def needed_bits(line: EventTimes) -> float:
    return NEEDED_BITS + float(np.log2(len(line.call) + len(line.op)))
