"""Host nodes: every ns of a thread in exactly one place - the own time of an op, a wait, a gap, or asleep (CONTRACT,
"Host time").
"""

from __future__ import annotations

import msgspec
import numpy as np

from graphlink.depend.points import Blocked, Cuts, Points, points
from graphlink.depend.sleep import Sleeps
from graphlink.depend.timeline import Elements, EulerTour
from graphlink.graph_model import NodeKind
from graphlink.model import EMPTY, I32, I64, NOWHERE, U8, Bool
from graphlink.spans import NONE, Axis, Spans
from graphlink.tables import spread


class HostNodes(msgspec.Struct, frozen=True):
    """Host nodes in chain order, thread by thread.

    A node carries one unbroken stretch of its thread, from ``start_ns`` to ``until_ns``. ``element``: whose node or
    part it is, NOWHERE for gaps. ``sleep``: the row of ``Sleeps`` that ends where the node opens, else NOWHERE.
    ``first``: an element's own node.
    """

    kind: U8
    element: I32
    tid: I64
    start_ns: I64
    until_ns: I64
    duration_ns: I64
    self_ns: I64
    wait_ns: I64
    sleep: I32
    first: I32
    axis: Axis
    at_ns: I64  # start_ns on the axis

    def carrying(self, at_ns: I64, element: I32) -> I32:
        """Return the node that carries the time just before each position, not before ``element``'s own (NOWHERE: any).
        O(log n) each.
        """
        found = np.searchsorted(self.at_ns, at_ns, side="left") - 1
        found = np.maximum(found, np.searchsorted(self.at_ns, self.axis.thread(at_ns) * self.axis.span_ns, side="left"))
        known = element != NOWHERE
        found[known] = np.maximum(found[known], self.first[element[known]])
        return found.astype(np.int32)

    def opening(self, at_ns: I64) -> I32:
        """Return the first node that opens exactly at each position: the part behind a cut, even where the next op
        begins at once.
        """
        found = np.searchsorted(self.at_ns, at_ns, side="left")
        assert (self.at_ns[found] == at_ns).all(), "a cut without a node"
        return found.astype(np.int32)


def host_nodes(
    el: Elements, marks: EulerTour, blocked: Blocked, cuts: Cuts, sleeps: Sleeps, gap_ns: int, unknown: Spans = NONE
) -> HostNodes:
    """Make the nodes of all threads; ``blocked`` must be disjoint and in order. Cost: O(n log n)."""
    p = points(marks, blocked, cuts, sleeps, gap_ns, unknown)
    following = np.where(p.last, p.at_ns, np.append(p.at_ns[1:], p.at_ns[-1:]))
    asleep = _asleep(p)
    spent = following - p.at_ns
    own = np.where(asleep, 0, spent - blocked.between(p.at_ns, following))
    at = np.flatnonzero(p.opens)
    node = np.maximum(
        np.cumsum(p.opens) - 1, 0
    )  # of each point; a thread that sleeps first has no time before its first node
    n = len(at)
    element = p.owner[at]
    is_own = p.begins[at]
    called = (element != NOWHERE) & (el.call[element] != NOWHERE)
    runs_on = called & ~np.isin(element, blocked.element) & (marks.axis.time_ns(p.at_ns[at]) < el.end_ns[element])
    gap = ~is_own & ((element == NOWHERE) | (called & ~runs_on))
    part_kind = np.where(called, NodeKind.HOST_CALL, np.where(is_own, NodeKind.HOST_OP, NodeKind.HOST_PART))
    kind = np.where(gap, NodeKind.HOST_GAP, part_kind).astype(np.uint8)
    element = np.where(gap, NOWHERE, element).astype(np.int32)
    first = spread(len(el.tid), element[is_own], np.flatnonzero(is_own).astype(np.int32))
    duration_ns = np.bincount(node, own, n).astype(np.int64) if n else EMPTY
    until = spread(n, node[~asleep], following[~asleep], 0)  # of the points of a node the last stays
    wait_ns = _wait_ns(blocked, first, p.at_ns[at])
    asleep_ns = int(spent[asleep].sum())
    spans_ns = int((marks.at_ns[marks.bounds[1:] - 1] % marks.axis.span_ns).sum())
    spent_ns = int(duration_ns.sum() + wait_ns.sum()) + asleep_ns
    assert spent_ns == spans_ns, (
        f"host time is not conserved: {spent_ns} ns in nodes, waits and sleep, {spans_ns} ns recorded"
    )
    return HostNodes(
        kind=kind,
        element=element,
        tid=marks.axis.tids[marks.axis.thread(p.at_ns[at])] if n else EMPTY,
        start_ns=marks.axis.time_ns(p.at_ns[at]),
        until_ns=marks.axis.time_ns(until),
        duration_ns=duration_ns,
        self_ns=_self_ns(p, node, own, element, kind, first),
        wait_ns=wait_ns,
        sleep=p.sleep[at],
        first=first,
        axis=marks.axis,
        at_ns=p.at_ns[at],
    )


def _asleep(p: Points) -> Bool:
    """Mark the points behind which the thread is asleep: from where it falls to where a node opens."""
    changes = np.where(p.falls, 1, np.where(p.opens, 0, -1))
    at = np.maximum.accumulate(np.where(changes >= 0, np.arange(len(changes)), 0))
    return np.asarray(changes[at] == 1)


def _self_ns(p: Points, node: I64, own: I64, element: I32, kind: U8, first: I32) -> I64:
    """Return the time inside the op itself: what another node carries of it (a folded rest) counts for the op's own
    node.
    """
    whose = np.where((kind[node] == NodeKind.HOST_GAP) | (p.owner == element[node]), node, first[p.owner])
    # A gap's time is its own; time between ops that was folded into the op before is nobody's.
    counts = (p.owner != NOWHERE) | (kind[node] == NodeKind.HOST_GAP)
    return np.bincount(whose[counts], own[counts], len(kind)).astype(np.int64)


def _wait_ns(blocked: Blocked, first: I32, at_ns: I64) -> I64:
    """Return the waits, at the node of the op that waited; between ops (host-side communication) at the node that
    carries the time.
    """
    carrying = np.searchsorted(at_ns, blocked.from_ns, side="right") - 1
    node = np.where(blocked.element == NOWHERE, carrying, first[blocked.element]) if len(first) else carrying
    return np.bincount(node, blocked.until_ns - blocked.from_ns, len(at_ns)).astype(np.int64)
