"""Algebra of time spans: what accounts of time add up must be disjoint and complete to the ns. All O(n log n) in
numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.model import I64, NOWHERE
from graphlink.tables import begins, distinct, numbered_values


@dataclass(frozen=True, slots=True)
class Spans:
    """Disjoint spans of time, ascending, none empty."""

    start_ns: I64
    end_ns: I64


@dataclass(frozen=True, slots=True)
class KeyedSpans(Spans):
    """Spans of time with a key each (a step, say), sorted by key, then start; those of one key are disjoint, and none
    is empty.
    """

    key: I64


NONE = Spans(np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class Pieces(Spans):
    """Parts of spans, ascending, none empty: ``of`` is the span that each is part of, ``by`` what covers it there or
    ``NOWHERE``.
    """

    of: I64
    by: I64


def union(start_ns: I64, end_ns: I64) -> Spans:
    """Return the moments that any of the intervals covers; empty intervals cover none."""
    some = np.flatnonzero(start_ns < end_ns)
    order = some[np.argsort(start_ns[some], kind="stable")]
    start_ns, end_ns = start_ns[order], end_ns[order]
    if not len(order):
        return NONE
    reach = np.maximum.accumulate(end_ns)
    new = np.append(True, start_ns[1:] > reach[:-1])
    return Spans(start_ns[new], reach[np.append(new[1:], True)])


def union_by(key: I64, start_ns: I64, end_ns: I64) -> KeyedSpans:
    """Return the union of the intervals of each key: keys one after the other on an axis of ranks of times, which
    cannot overflow.
    """
    points = distinct(np.append(start_ns, end_ns))
    keys, which = numbered_values(key)
    shift = which * len(points)
    united = union(np.searchsorted(points, start_ns) + shift, np.searchsorted(points, end_ns) + shift)
    count = max(len(points), 1)
    return KeyedSpans(points[united.start_ns % count], points[united.end_ns % count], keys[united.start_ns // count])


def within(spans: Spans, start_ns: int, end_ns: int) -> Spans:
    """Return the parts of ``spans`` between two moments. O(log n), and what is there."""
    if start_ns >= end_ns:
        return NONE
    low, high = np.searchsorted(spans.end_ns, start_ns, side="right"), np.searchsorted(spans.start_ns, end_ns)
    return Spans(np.maximum(spans.start_ns[low:high], start_ns), np.minimum(spans.end_ns[low:high], end_ns))


def complement(spans: Spans, start_ns: int, end_ns: int) -> Spans:
    """Return the spans that are not covered between two moments."""
    inside = within(spans, start_ns, end_ns)
    start, end = np.append(start_ns, inside.end_ns), np.append(inside.start_ns, end_ns)
    some = start < end
    return Spans(start[some], end[some])


def cut(spans: Spans, start_ns: I64, end_ns: I64) -> Pieces:
    """Cut each span where the intervals begin and end, and which interval covers each piece (of several the one that
    began first).
    """
    order = np.argsort(start_ns, kind="stable")
    start, end = start_ns[order], end_ns[order]
    start = np.maximum(
        start, np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end))[:-1]
    )  # without what an earlier one covers
    some = start < end
    cover, covers = Spans(start[some], end[some]), order[some]
    edges = distinct(np.concatenate([spans.start_ns, spans.end_ns, cover.start_ns, cover.end_ns]))
    low, high = edges[:-1], edges[1:]
    of, by = _holding(spans.start_ns, spans.end_ns, low), _holding(cover.start_ns, cover.end_ns, low)
    inside = of != NOWHERE
    low, high, of, by = low[inside], high[inside], of[inside], by[inside]
    by = np.where(by == NOWHERE, NOWHERE, covers[by] if len(covers) else NOWHERE)
    new = begins(of, by)
    last = np.append(new[1:], True)[: len(new)]
    return Pieces(low[new], high[last], of[new], by[new])


def _holding(start_ns: I64, end_ns: I64, at_ns: I64) -> I64:
    """Return the one of disjoint ascending intervals around each moment."""
    if not len(start_ns):
        return np.full(len(at_ns), NOWHERE)
    found = np.searchsorted(start_ns, at_ns, side="right") - 1
    return np.asarray(np.where((found >= 0) & (at_ns < end_ns[found]), found, NOWHERE))


def covered_before(start_ns: I64, end_ns: I64, at_ns: I64) -> I64:
    """Return how much of disjoint ascending intervals lies before each moment. O(log n) for each."""
    begun = np.searchsorted(start_ns, at_ns, side="right")
    past_ns = np.maximum(np.append(at_ns.min(initial=0), end_ns)[begun] - at_ns, 0)
    return np.append(0, np.cumsum(end_ns - start_ns))[begun] - past_ns


def overlap_ns(spans: Spans, start_ns: I64, end_ns: I64) -> I64:
    """Return how much of each interval ``[start_ns, end_ns)`` the spans cover."""
    before, until = (covered_before(spans.start_ns, spans.end_ns, at_ns) for at_ns in (start_ns, end_ns))
    return np.where(start_ns < end_ns, until - before, 0)
