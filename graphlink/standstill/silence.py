"""Finds where threads were silent, and tells sleep that the graph explains, running Python, and what neither shows
(docs/standstill.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.depend.build import Built
from graphlink.depend.sleep import WAKING_NS
from graphlink.depend.threads import ASLEEP_NS
from graphlink.depend.timeline import behind_rows, in_loader
from graphlink.graph_model import CHAINED, Graph
from graphlink.linking.call_roles import WAITS, roles
from graphlink.model import EMPTY, I32, I64, NOWHERE, Bool, Linked
from graphlink.spans import Axis, Neighbours, Spans, holding, joined, overlap_ns
from graphlink.tables import among, begins, concat, distinct, equal_runs, in_order, values_at

MEASURED: Final = 10  # of anything, from which what it usually takes is measured


@dataclass(frozen=True, slots=True)
class Timeline(Spans):
    """Stretches of threads as positions on ``axis``: disjoint, ascending, none touches the next."""

    axis: Axis

    @staticmethod
    def of(tid: I64, from_ns: I64, until_ns: I64) -> Timeline:
        """Join the stretches that touch or overlap on their thread. Cost: O(n log n)."""
        axis = Axis.over(tid, from_ns, until_ns + 1)
        stretches = joined(axis.of(tid, from_ns), axis.of(tid, until_ns))
        return Timeline(stretches.start_ns, stretches.end_ns, axis)

    @staticmethod
    def of_nodes(graph: Graph, node: I64 | I32) -> Timeline:
        """Join the time that nodes of the host took, in time of the graph."""
        start_ns = graph.start_ns[node]
        return Timeline.of(graph.tid[node], start_ns, start_ns + graph.duration_ns[node])

    def at(self, tid: I64, time_ns: I64) -> I64:
        """Return the positions of times on threads, clipped to what there is; -1 of an unknown thread."""
        return np.where(self.axis.has(tid), self.axis.clipped(tid, time_ns), -1)

    def between(self, tid: I64, from_ns: I64, until_ns: I64) -> I64:
        """Return what lies inside each [from, until) of a thread, in ns."""
        return overlap_ns(self, self.at(tid, from_ns), self.at(tid, until_ns))

    def since(self, tid: I64, time_ns: I64) -> I64:
        """Return for how long a stretch has lasted at each time of a thread, up to and with its end; 0 where there is
        none.
        """
        at = self.at(tid, time_ns)
        stretch = holding(self, at - 1)
        return np.where(stretch == NOWHERE, 0, at - values_at(self.start_ns, stretch))


@dataclass(frozen=True, slots=True)
class Stretches:
    """One entry per stretch: the call, host row or device node that it is ``of``; the unexplained part begins at
    ``start_ns``.
    """

    of: I64
    ns: I64
    explained_ns: I64
    start_ns: I64

    @property
    def unexplained_ns(self) -> I64:
        return self.ns - self.explained_ns


@dataclass(frozen=True, slots=True)
class Silences(Stretches):
    """One entry per silence ``of`` the host row that ends it, NOWHERE where none begins there; times since the graph's
    epoch.

    ``ns`` is without ``python_ns``: silence in which nothing could have woken the thread, or its stack shows it
    running, or a row that it was in a data loader. ``start_ns``: where it begins. ``late``: the thread was handed what
    it went on with, and went on later than waking takes. ``pending_ns``: a host-side operation was, and no edge says
    whether the thread waited for it. ``hidden_ns``: threads ran ops that Kineto did not record.
    """

    tid: I64
    python_ns: I64
    late: Bool
    pending_ns: I64
    hidden_ns: I64


def silences(graph: Graph, linked: Linked, built: Built) -> Silences:
    """Find all silences of 100 us and more, from the start of the rank to a thread's last row. Cost: O(n log n).

    Rows are cpu_ops and calls, and the moments when annotations begin and end; on a thread without any op and call they
    last, as they are all that is known of it. What of a silence is in no node was sleep or a wait, so an edge explains
    it, and what the thread then took to wake up with it: at most twice its median (no less than 100 us), 2 ms where it
    was released less than ``MEASURED`` times. Of the rest it is standstill where another thread did anything until it
    ended, or up to 2 ms before (a call that waits is only its begin and end); after the last that another did, the
    thread ran by itself; and it ran where frames of its stack began or ended less than 100 us apart. A thread that was
    ``handed`` a tensor and went on later than waking takes may have waited for a core, as others wanted to run: that is
    standstill and not explained, but where its stack shows it running. In a row of a data loader it was in the loader,
    which is no standstill that nothing explains either. What a host-side operation was ``pending`` in is standstill,
    and what threads ran ops in that Kineto did not record, but where its stack shows the thread running. One without
    ops and calls did no work that a wait could be taken for: what ended its silence then came from outside the process.
    """
    rows, calls = linked.trace.host, linked.trace.calls
    marks = rows.annotation
    waits = among(roles(calls, linked.trace.strings), WAITS)
    working = distinct(np.append(rows.tid[~linked.crossing & ~marks], calls.tid))  # threads that have ops or calls
    active = _active(graph, linked, marks & np.isin(rows.tid, working), np.zeros_like(waits))
    tid, start_ns, end_ns = _between(active)
    work = Timeline.of_nodes(graph, np.flatnonzero(among(graph.kind, CHAINED) & (graph.duration_ns > 0)))
    length_ns = end_ns - start_ns
    worked_ns = work.between(tid, start_ns, end_ns)
    released = worked_ns < length_ns
    waking_ns = np.minimum(work.since(tid, end_ns), length_ns)
    usual_waking_ns = usual_ns(tid, waking_ns, released, WAKING_NS, lambda ns: max(2 * int(np.median(ns)), ASLEEP_NS))
    waking_ns = np.minimum(waking_ns, usual_waking_ns)
    explained_ns = np.where(released, length_ns - worked_ns + waking_ns, 0)
    last_ns = _last_of_others(_active(graph, linked, marks, waits), start_ns, end_ns)
    alone = (last_ns <= start_ns) | (end_ns - last_ns > WAKING_NS)
    since_ns = np.where(np.isin(tid, working), np.maximum(last_ns, start_ns), start_ns)
    since_ns = np.where(alone, since_ns, end_ns)
    shown = _running(graph, linked, active)
    ran_ns = work.between(tid, since_ns, end_ns) + shown.between(tid, start_ns, since_ns)
    pending, hidden, held = (
        _timeline(graph, silent.tid, silent.from_ns, silent.until_ns)
        for silent in (built.pending, built.hidden, concat(built.pending, built.hidden))
    )
    held_ns = held.between(tid, since_ns, end_ns)
    ran_ns -= np.maximum(held_ns - shown.between(tid, since_ns, end_ns), 0)
    queued = _timeline(graph, built.handed.tid, built.handed.release_ns, built.handed.until_ns)
    since_ns = end_ns - queued.between(tid, start_ns, end_ns)
    late = since_ns < end_ns
    loading = in_loader(linked)
    loads = _timeline(graph, rows.tid[loading], rows.start_ns[loading], rows.end_ns[loading])
    ran_ns = np.maximum(ran_ns, loads.between(tid, start_ns, end_ns))
    ran_ns[late] = shown.between(tid, since_ns, end_ns)[late]
    python_ns = np.minimum(ran_ns, length_ns - explained_ns)
    return Silences(
        _next_row(graph, linked, tid, end_ns),
        length_ns - python_ns,
        explained_ns,
        start_ns,
        tid,
        python_ns,
        late,
        pending.between(tid, start_ns, end_ns),
        hidden.between(tid, start_ns, end_ns),
    )


def _timeline(graph: Graph, tid: I64, from_ns: I64, until_ns: I64) -> Timeline:
    """Return spans of the trace's clock on that of the graph."""
    return Timeline.of(tid, from_ns - graph.epoch_ns, until_ns - graph.epoch_ns)


def usual_ns(group: I64 | I32, ns: I64, sample: Bool, default_ns: int, usual: Callable[[I64], float]) -> I64:
    """Return for each entry what is ``usual`` of its group's times in ``sample``; the default where they are fewer than
    ``MEASURED``.
    """
    out = np.full(len(group), default_ns, np.int64)
    rows = in_order(np.flatnonzero(sample), group)
    for own in equal_runs(rows, group[rows]):
        if len(own) >= MEASURED:
            out[group == group[own[0]]] = int(usual(ns[own]))
    return out


def _active(graph: Graph, linked: Linked, mark: Bool, waits: Bool) -> Timeline:
    """Find when each thread that takes part in the graph did anything that a row shows.

    Only begin and end count of a host row that is a ``mark`` or crosses others, and of a call that ``waits``: it wakes
    nobody meanwhile.
    """
    rows, calls = linked.trace.host, linked.trace.calls
    called = ~behind_rows(linked)
    moments = mark | linked.crossing
    op, ends = np.flatnonzero(~moments), np.flatnonzero(moments)
    call, wait = np.flatnonzero(called & ~waits), np.flatnonzero(called & waits)
    pieces = [
        (table.tid[which], getattr(table, begin)[which], getattr(table, end)[which])
        for table, lasting, ending in ((rows, op, ends), (calls, call, wait))
        for which, begin, end in (
            (lasting, "start_ns", "end_ns"),
            (ending, "start_ns", "start_ns"),
            (ending, "end_ns", "end_ns"),
        )
    ]
    tid, from_ns, until_ns = (np.concatenate(column) for column in zip(*pieces, strict=True))
    part = np.isin(tid, distinct(graph.tid[among(graph.kind, CHAINED)]))
    until_ns = np.minimum(until_ns[part], int(graph.end_ns.max(initial=0)) + graph.epoch_ns)
    return Timeline.of(tid[part], from_ns[part] - graph.epoch_ns, np.maximum(until_ns, from_ns[part]) - graph.epoch_ns)


def _running(graph: Graph, linked: Linked, active: Timeline) -> Timeline:
    """Find when the stack of each thread shows it running: frames, and rows, begin or end less than 100 us apart."""
    frames = linked.trace.frames
    if frames is None:
        return Timeline.of(EMPTY, EMPTY, EMPTY)
    bounds = np.concatenate([active.start_ns, active.end_ns])
    tid = np.concatenate([frames.tid, frames.tid, active.axis.tids[active.axis.thread(bounds)]])
    at_ns = np.concatenate(
        [frames.start_ns - graph.epoch_ns, frames.end_ns - graph.epoch_ns, active.axis.time_ns(bounds)]
    )
    at_ns = np.clip(at_ns, 0, int(graph.end_ns.max(initial=0)))
    order = np.lexsort((at_ns, tid))
    tid, at_ns = tid[order], at_ns[order]
    near = np.flatnonzero((tid[1:] == tid[:-1]) & (np.diff(at_ns) < ASLEEP_NS))
    return Timeline.of(tid[near], at_ns[near], at_ns[near + 1])


def _between(active: Timeline) -> tuple[I64, I64, I64]:
    """Return (thread, start, end) of what lies between the stretches of a thread, and before its first one, where it is
    long enough.
    """
    thread = active.axis.thread(active.start_ns)
    zero = thread * active.axis.span_ns - active.axis.origin_ns
    before = np.append(0, active.end_ns[:-1])[: len(thread)]
    before = np.where(begins(thread), zero, before)
    long = active.start_ns - before >= ASLEEP_NS
    zero, before, until, thread = zero[long], before[long], active.start_ns[long], thread[long]
    return active.axis.tids[thread], before - zero, until - zero


def _last_of_others(active: Timeline, start_ns: I64, end_ns: I64) -> I64:
    """Find when another thread was last active before the end of each silence; at most its start where none was.

    The thread itself did nothing inside its silence, so what is found there is another's.
    """
    from_ns, until_ns = (np.sort(active.axis.time_ns(at)) for at in (active.start_ns, active.end_ns))
    begun, ended = (np.searchsorted(ns, end_ns) for ns in (from_ns, until_ns))
    last_ns = np.where(ended > 0, np.append(0, until_ns)[ended], start_ns)
    return np.where(begun > ended, end_ns, last_ns)


def _next_row(graph: Graph, linked: Linked, tid: I64, end_ns: I64) -> I64:
    """Find the outermost host row of the thread that begins where each silence ends."""
    rows = linked.trace.host
    row = Neighbours.of(rows.tid, rows.start_ns).since(tid, end_ns + graph.epoch_ns)
    return np.where(np.append(rows.start_ns, NOWHERE)[row] == end_ns + graph.epoch_ns, row, NOWHERE)
