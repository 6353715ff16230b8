"""The points at which host nodes open on each thread: at the elements' own marks, and at the cuts.

Cuts (CONTRACT, "Host time")
  (a) after a launch call, when more than 5 us follow before the thread's next node, or inside it, where its op had
  begun; (b) where the host was blocked until, in a synchronisation call; (c) after a child, when more than ``gap_ns``
  of the op's own time follow; between top-level elements the same, as a gap;
and where a sleeping thread wakes, or an idle one has woken another.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from graphlink.depend.sleep import Sleeps
from graphlink.depend.timeline import EulerTour
from graphlink.model import I32, I64, NOWHERE, U8, Bool
from graphlink.spans import NONE, Spans, covered_before, holding
from graphlink.tables import nowhere, take

LAUNCH_REST_NS = 5_000


@dataclass(frozen=True, slots=True)
class Blocked:
    """Stretches in which ``element`` (NOWHERE: none) was blocked, as positions on the axis."""

    element: I32
    from_ns: I64
    until_ns: I64

    def disjoint(self) -> Blocked:
        """Return them in order, what overlaps (calls inside calls) only once."""
        order = np.lexsort((self.until_ns, self.from_ns))
        until = np.maximum.accumulate(self.until_ns[order]) if len(order) else self.until_ns
        start = self.from_ns[order]
        start[1:] = np.maximum(start[1:], until[:-1])
        return take(Blocked(self.element[order], start, until), until > start)

    def between(self, from_ns: I64, until_ns: I64) -> I64:
        """Return blocked ns inside each [from, until)."""
        before, until = (covered_before(self.from_ns, self.until_ns, at) for at in (from_ns, until_ns))
        return until - before


@dataclass(frozen=True, slots=True)
class Cuts:
    """Positions on the axis where a node may open. ``after``: the element that made the call, NOWHERE without one.

    A node opens in any case where a wait ended, and where an op began while its launch call ran on; where a call had
    launched (``launch``) only if enough time follows.
    """

    at_ns: I64
    after: I32
    launch: Bool

    @staticmethod
    def of(at_ns: I64, after: I32 | None = None, *, launch: bool = False) -> Cuts:
        n = len(at_ns)
        return Cuts(at_ns, nowhere(n, np.int32) if after is None else after, np.full(n, launch))


class Points(msgspec.Struct, frozen=True):
    """Marks and cuts in order. The time from one point to the next belongs to one element (``owner``) and to one node.

    ``opens``: a node opens. ``sleep``: the row of ``Sleeps`` that ends here, else NOWHERE. ``falls``: the thread falls
    asleep. ``begins``: its owner does. ``last``: the thread's last point.
    """

    at_ns: I64
    owner: I32
    opens: Bool
    sleep: I32
    falls: Bool
    begins: Bool
    last: Bool


_EARLY, _MARK, _FALL, _WAKE, _CUT, _LAUNCH = range(6)  # order of points at one time behind one mark


def points(
    marks: EulerTour, blocked: Blocked, cuts: Cuts, sleeps: Sleeps, gap_ns: int, unknown: Spans = NONE
) -> Points:
    """Find all points, with the nodes that open; what is ``unknown`` is a gap of its own. Cost: O(n log n)."""
    kind, at_ns, segment, sleep = _collect(marks, cuts, sleeps, unknown)
    order = np.lexsort((kind, at_ns, segment))
    kind, at_ns, segment, sleep = kind[order], at_ns[order], segment[order], sleep[order]
    is_mark = kind == _MARK
    begins = is_mark & marks.begins[segment]
    early = at_ns < marks.at_ns[segment]
    late = kind == _WAKE
    late[late] = (
        sleeps.handed[sleep[late]] == 1
    )  # what it did until it went on is not known: it may have waited for a core
    late |= (kind >= _CUT) & (holding(unknown, at_ns) != NOWHERE)
    owner = np.where(early | late, NOWHERE, marks.owner[segment]).astype(np.int32)
    thread = marks.axis.thread(at_ns)
    last = np.append(thread[1:] != thread[:-1], True)
    opens = begins | (kind == _EARLY) | (kind == _WAKE) | (kind == _CUT)
    falls = kind == _FALL
    hard = opens | falls | is_mark
    next_hard = _next(at_ns, hard, last)
    opens |= is_mark & ~begins & ~last & (next_hard - at_ns - blocked.between(at_ns, next_hard) > gap_ns)
    _open_launches(opens, at_ns, _next(at_ns, opens | falls, last), kind == _LAUNCH, thread)
    _pass_on(opens, sleep, at_ns, thread)
    return Points(at_ns, owner, opens, sleep, falls, begins, last)


def _collect(marks: EulerTour, cuts: Cuts, sleeps: Sleeps, unknown: Spans) -> tuple[U8, I64, I64, I32]:
    """Collect (kind, position, mark it lies behind, row of Sleeps), unsorted."""
    axis = marks.axis
    heads = marks.bounds[:-1]
    awake = ~np.isin(axis.tids, sleeps.tid[sleeps.first == 1])
    late = np.flatnonzero(awake & (marks.at_ns[heads] > np.arange(len(heads)) * axis.span_ns))
    fall, wake = axis.of(sleeps.tid, sleeps.from_ns), axis.of(sleeps.tid, sleeps.release_ns)
    behind = marks.behind(fall, before=False)
    cut = (sleeps.cut == 1) & ~np.isin(axis.of(sleeps.by_tid, sleeps.release_ns), fall)
    released = axis.of(sleeps.by_tid[cut], sleeps.release_ns[cut])
    released = released[
        released < marks.at_ns[marks.bounds[axis.thread(released) + 1] - 1]
    ]  # behind its last mark a thread is over
    behind_cut = marks.behind(cuts.at_ns, before=True)
    known = cuts.after != NOWHERE
    behind_cut[known] = np.maximum(behind_cut[known], marks.start_of[cuts.after[known]])
    parts: tuple[tuple[int, I64, I64, I32 | None], ...] = (
        (_EARLY, late * axis.span_ns, heads[late], None),
        (_MARK, marks.at_ns, np.arange(len(marks.at_ns)), None),
        (_FALL, fall, behind, None),
        (_WAKE, wake, behind, np.arange(len(wake), dtype=np.int32)),
        (_CUT, cuts.at_ns[~cuts.launch], behind_cut[~cuts.launch], None),
        (_CUT, released, marks.behind(released, before=False), None),
        (_CUT, unknown.start_ns, marks.behind(unknown.start_ns, before=False), None),
        (_CUT, unknown.end_ns, marks.behind(unknown.end_ns, before=True), None),
        (_LAUNCH, cuts.at_ns[cuts.launch], behind_cut[cuts.launch], None),
    )
    return (
        np.concatenate([np.full(len(p[1]), p[0], np.uint8) for p in parts]),
        np.concatenate([p[1] for p in parts]),
        np.concatenate([p[2] for p in parts]),
        np.concatenate([nowhere(len(p[1]), np.int32) if p[3] is None else p[3] for p in parts]),
    )


def _next(at_ns: I64, stops: Bool, last: Bool) -> I64:
    """Return the position of the next stop behind each point, of its thread's last point where there is none."""
    n = len(at_ns)
    candidates = np.where(stops | last, np.arange(n), n - 1)
    following = np.minimum.accumulate(candidates[::-1])[::-1]
    return at_ns[np.where(last, np.arange(n), np.append(following[1:], n - 1))]


def _open_launches(opens: Bool, at_ns: I64, next_ns: I64, launch: Bool, thread: I64) -> None:
    """Apply rule (a), from the last launch to the first, as a later cut is the next node of an earlier one."""
    where = np.flatnonzero(launch)
    cut_ns, cut_thread = 0, -1
    accepted: list[int] = []
    columns = (where.tolist(), at_ns[where].tolist(), next_ns[where].tolist(), thread[where].tolist())
    for i, at, following, mine in zip(*(c[::-1] for c in columns), strict=True):
        free = following if mine != cut_thread else min(following, cut_ns)
        if free - at > LAUNCH_REST_NS:
            accepted.append(i)
            cut_ns, cut_thread = at, mine
    opens[accepted] = True


def _pass_on(opens: Bool, sleep: I32, at_ns: I64, thread: I64) -> None:
    """Pass releases on: a thread that wakes right into its next element needs no node in between: that element's node
    is the one released."""
    wake = np.flatnonzero(sleep[:-1] != NOWHERE)
    into = wake[opens[wake + 1] & (at_ns[wake + 1] == at_ns[wake]) & (thread[wake + 1] == thread[wake])]
    sleep[into + 1] = sleep[into]
    sleep[into] = NOWHERE
    opens[into] = False
