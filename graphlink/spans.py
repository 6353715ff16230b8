"""Algebra of time spans: what accounts of time add up must be disjoint and complete to the ns. One axis for the times
of many threads. All O(n log n) in numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np

from graphlink.model import I32, I64, NOWHERE, Bool, TimedRows
from graphlink.tables import TableT, begins, counted_from, distinct, marked, numbered_values, successive, take

NEVER: Final = int(np.iinfo(np.int64).min)  # a time before all others


@dataclass(frozen=True, slots=True, repr=False)
class Spans(TimedRows):
    """Disjoint spans of time, ascending, none empty."""


def extent(*tables: TimedRows) -> tuple[int, int]:
    """Return the first start and the last end of the rows of all tables, 0 where there are none."""
    there = [t for t in tables if len(t.start_ns)]
    return min((int(t.start_ns.min()) for t in there), default=0), max((int(t.end_ns.max()) for t in there), default=0)


@dataclass(frozen=True, slots=True, repr=False)
class KeyedSpans(Spans):
    """Spans of time with a key each (a step, say), sorted by key, then start; those of one key are disjoint, and none
    is empty.
    """

    key: I64


NONE = Spans(np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True, repr=False)
class Pieces(Spans):
    """Parts of spans, ascending, none empty: ``of`` is the span that each is part of, ``by`` what covers it there or
    ``NOWHERE``.
    """

    of: I64
    by: I64


def union(start_ns: I64, end_ns: I64) -> Spans:
    """Return the moments that any of the intervals covers; empty intervals cover none."""
    some = start_ns < end_ns
    return joined(start_ns[some], end_ns[some])


def joined(start_ns: I64, end_ns: I64) -> Spans:
    """Return intervals, of those that touch or overlap one; empty ones are moments, and stay where nothing else is."""
    order = np.argsort(start_ns, kind="stable")
    start_ns, reach = start_ns[order], np.maximum.accumulate(end_ns[order])
    first = np.append(True, start_ns[1:] > reach[:-1])[: len(start_ns)]
    return Spans(start_ns[first], reach[np.append(first[1:], True)[: len(first)]])


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


def within(spans: TableT, start_ns: int, end_ns: int) -> TableT:
    """Return the parts of disjoint ascending ``spans``, rows of any record, between two moments. O(log n), and what is
    there.
    """
    low = np.searchsorted(spans.end_ns, start_ns, side="right")
    high = np.searchsorted(spans.start_ns, end_ns) if start_ns < end_ns else low
    inside = take(spans, np.arange(low, high))
    return replace(inside, start_ns=np.maximum(inside.start_ns, start_ns), end_ns=np.minimum(inside.end_ns, end_ns))


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
    of, by = holding(spans, low), holding(cover, low)
    inside = of != NOWHERE
    low, high, of, by = low[inside], high[inside], of[inside], by[inside]
    by = np.where(by == NOWHERE, NOWHERE, covers[by] if len(covers) else NOWHERE)
    new = begins(of, by)
    last = np.append(new[1:], True)[: len(new)]
    return Pieces(low[new], high[last], of[new], by[new])


def cut_rows(table: TableT, start_ns: I64, end_ns: I64) -> tuple[TableT, I64]:
    """Cut the rows of a record of disjoint spans where the intervals begin and end, and return the interval that covers
    each, as ``cut`` does.
    """
    order = np.argsort(table.start_ns, kind="stable")
    pieces = cut(Spans(table.start_ns[order], table.end_ns[order]), start_ns, end_ns)
    return replace(take(table, order[pieces.of]), start_ns=pieces.start_ns, end_ns=pieces.end_ns), pieces.by


def shared_out(table: TableT, covers: Iterable[Spans]) -> Iterator[tuple[TableT, I64]]:
    """Yield, for each of ``covers``, what its spans cover of the rows that those before left, and the span that does;
    last what none covers, with ``NOWHERE``.
    """
    for cover in covers:
        pieces, by = cut_rows(table, cover.start_ns, cover.end_ns)
        hit = by != NOWHERE
        yield take(pieces, hit), by[hit]
        table = take(pieces, ~hit)
    yield table, np.full(len(table.start_ns), NOWHERE)


def continued(start_ns: I64, end_ns: I64, *columns: np.ndarray[Any, Any]) -> tuple[I64, I64]:
    """Return the first and the last row of each stretch of rows that touch and are equal in all columns."""
    new = begins(*columns)
    new[1:] |= start_ns[1:] != end_ns[:-1]
    first = np.flatnonzero(new)
    return first, np.append(first[1:], len(new))[: len(first)] - 1


def holding(spans: Spans, at_ns: I64) -> I64:
    """Return which of ascending spans is around each moment, of several the one that began last, if that is;
    ``NOWHERE`` for none."""
    if not len(spans.start_ns):
        return np.full(len(at_ns), NOWHERE)
    last = np.searchsorted(spans.start_ns, at_ns, side="right") - 1
    return np.where((last >= 0) & (at_ns < spans.end_ns[last]), last, NOWHERE)


def covered_before(start_ns: I64, end_ns: I64, at_ns: I64) -> I64:
    """Return how much of disjoint ascending intervals lies before each moment. O(log n) for each."""
    begun = np.searchsorted(start_ns, at_ns, side="right")
    past_ns = np.maximum(np.append(at_ns.min(initial=0), end_ns)[begun] - at_ns, 0)
    return np.append(0, np.cumsum(end_ns - start_ns))[begun] - past_ns


def overlaps(spans: Spans, start_ns: I64, end_ns: I64) -> tuple[I64, I64, I64]:
    """Return each pair of an interval and one of ascending spans that overlap: the interval, the span, and for how
    long. O(log n) for each interval and for each pair.
    """
    first = np.searchsorted(spans.end_ns, start_ns, side="right")
    count = np.maximum(np.searchsorted(spans.start_ns, end_ns) - first, 0)
    interval, span = np.repeat(np.arange(len(start_ns)), count), counted_from(first, count)
    until_ns = np.minimum(spans.end_ns[span], end_ns[interval])
    return interval, span, until_ns - np.maximum(spans.start_ns[span], start_ns[interval])


def overlap_ns(spans: Spans, start_ns: I64, end_ns: I64) -> I64:
    """Return how much of each interval ``[start_ns, end_ns)`` the spans cover."""
    before, until = covered_before(spans.start_ns, spans.end_ns, np.array((start_ns, end_ns)))
    return np.where(start_ns < end_ns, until - before, 0)


def around_others(start_ns: I64, end_ns: I64, tid: I64) -> Bool:
    """Return whether the next row of a row's thread, by start and then the longest first, lies inside it."""
    before, after = successive(np.lexsort((-end_ns, start_ns, tid)), tid)
    return marked(len(tid), before[end_ns[after] <= end_ns[before]])


class Axis(msgspec.Struct, frozen=True):
    """One time axis for all threads, so that one sorted column and one search serve them all: thread after thread, each
    at full span.
    """

    tids: I64  # ascending
    origin_ns: int
    span_ns: int

    @staticmethod
    def over(tid: I64, *times_ns: I64) -> Axis:
        """Return the axis of the threads that there are, which spans all times."""
        ns = np.concatenate(times_ns)
        origin = int(ns.min()) if len(ns) else 0
        return Axis(np.unique(tid[begins(tid)]), origin, int(ns.max(initial=origin)) - origin + 1)

    def of(self, tid: I64, time_ns: I64) -> I64:
        """Return the position of times on threads; every tid must be one of ``tids``, every time within the span."""
        return np.searchsorted(self.tids, tid) * self.span_ns + (time_ns - self.origin_ns)

    def clipped(self, tid: I64, time_ns: I64) -> I64:
        """Return positions as ``of`` does, of times brought into the span."""
        return self.of(tid, np.clip(time_ns, self.origin_ns, self.origin_ns + self.span_ns - 1))

    def thread(self, at_ns: I64) -> I64:
        """Return the index into ``tids`` of positions."""
        return at_ns // self.span_ns

    def time_ns(self, at_ns: I64) -> I64:
        """Convert positions back to times."""
        return at_ns % self.span_ns + self.origin_ns

    def has(self, tid: I64) -> Bool:
        """Tell for each thread whether it is on the axis."""
        return np.searchsorted(self.tids, tid, "right") > np.searchsorted(self.tids, tid)


class Neighbours(msgspec.Struct, frozen=True):
    """Rows along an axis (of threads and times, or of any groups and ranks), to find the one next to a place of a
    thread.
    """

    axis: Axis
    at_ns: I64  # ascending
    row: I64

    @staticmethod
    def of(tid: I64, time_ns: I64) -> Neighbours:
        """Put rows in order, those of one time in their own. O(n log n)."""
        axis = Axis.over(tid, time_ns, time_ns + 1)
        at_ns = axis.of(tid, time_ns)
        order = np.argsort(at_ns, kind="stable")
        return Neighbours(axis, at_ns[order], order)

    @staticmethod
    def nested(axis: Axis, tid: I64, start_ns: I64, end_ns: I64, row: I64 | I32, around: I64 | I32) -> Neighbours:
        """Put in order where rows that nest begin and end: from its start on a row is the innermost one, from its end
        on the one ``around`` it. O(n log n).
        """
        at_ns = np.append(axis.of(tid, end_ns), axis.of(tid, start_ns))
        # at one moment ends come first, those of inner rows before, then starts, those of outer rows before
        order = np.lexsort((np.append(-row, row + 1), at_ns))
        return Neighbours(axis, at_ns[order], np.append(around, row).astype(np.int64)[order])

    def before(self, tid: I64, time_ns: I64) -> I64:
        """Return the last row of each thread before a time, ``NOWHERE`` where there is none."""
        return self._row(np.searchsorted(self.at_ns, self.axis.clipped(tid, time_ns)) - 1, tid)

    def since(self, tid: I64, time_ns: I64) -> I64:
        """Return the first row of each thread from a time on, ``NOWHERE`` where there is none."""
        return self._row(np.searchsorted(self.at_ns, self.axis.clipped(tid, time_ns)), tid)

    def _row(self, place: I64, tid: I64) -> I64:
        if not len(self.row):
            return np.full(len(place), NOWHERE)
        real = np.clip(place, 0, len(self.row) - 1)
        own = (place == real) & (self.axis.tids[self.axis.thread(self.at_ns[real])] == tid)
        return np.where(own, self.row[real], NOWHERE)
