"""Why a device was idle: what the op that ended an idle interval had waited for, and what its host did meanwhile.

An idle interval ends as a device op begins. From the end backwards: since its launch call returned the op was launched
and had not begun; before, the thread that launched it was late, and what that thread did counts, or where it slept,
what the thread did that woke it. What an op of another device still did, and the launched op depends on, counts first.
Of several reasons at one moment the first of ``Cause`` holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np

from graphlink import spans
from graphlink.causes import Cause
from graphlink.choices import LATENCY_NS
from graphlink.depend.timeline import Axis
from graphlink.gpu.busy import Busy, own_clock_ns
from graphlink.gpu.evidence import HostWork, Texts, awaited_by, blocked
from graphlink.gpu.records import Idle
from graphlink.graph.waits import WaitSlices, before_on_thread, last_source, numbered, wait_slices
from graphlink.graph_model import Column, EdgeKind, Graph, NodeKind
from graphlink.linking.call_roles import Role, roles
from graphlink.linking.launch import launched_before
from graphlink.model import I32, I64, NOWHERE, Bool, Linked
from graphlink.patterns import ALLOCATOR, GRAPH_LAUNCH, LOADER, fits
from graphlink.spans import Spans
from graphlink.tables import begins, marked, take

_DEVICE: Final = (EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.COLLECTIVE)
_ROUNDS: Final = 8  # threads that wake each other in turn, at most
LAUNCHED_BEFORE: Final = "launched before the recording"
NOT_RECORDED: Final = "its launch call was not recorded"
BEFORE_WINDOW: Final = "its stream waited for what was launched before the recording"
BEHIND_GRAPH: Final = "behind a graph launch, which says nothing of the time between its kernels"


class _Table(msgspec.Struct, frozen=True):
    """Intervals with one cause, disjoint on each thread. ``text``: what each says, a position in the ``texts`` of the
    ``Hosts``.
    """

    cause: Cause
    tid: I64
    start_ns: I64
    end_ns: I64
    text: I64


class Hosts:
    """What the threads of a rank did, made ready for all its devices. Times since the epoch, on the host's clock."""

    def __init__(self, graph: Graph, linked: Linked, late: Column | None = None) -> None:
        self.graph, self.linked, self.late, self.texts = graph, linked, late, Texts()
        trace, before = linked.trace, before_on_thread(graph)
        rows = (trace.host, trace.calls, trace.device)
        times = (column for table in rows for column in (table.start_ns, table.end_ns))
        self.axis = Axis.over(np.append(trace.host.tid, trace.calls.tid), *times)
        self.profiler = self._profiler()
        self.sleeps, self.waker = self._sleeps(before)
        waits = wait_slices(graph, linked, before)
        self.tables = sorted((*self._matching(), *self._waiting(waits), self._working()), key=lambda table: table.cause)
        self.work = HostWork.of(linked, self.axis, self.texts)
        self.first_ns = self._first_ns()
        self.latency_ns = self._latency_ns()
        self.unknown = self._unknown()

    def _profiler(self) -> _Table:
        overhead, strings = self.linked.trace.overhead, self.linked.trace.strings
        cut = spans.cut(spans.union(overhead.start_ns, overhead.end_ns), overhead.start_ns, overhead.end_ns)
        text = self.texts.of_names(overhead.name[cut.by], strings, "profiler: {}")
        return _Table(Cause.PROFILER_ARTEFACT, np.zeros(len(text), np.int64), cut.start_ns, cut.end_ns, text)

    def _sleeps(self, before: I32) -> tuple[_Table, I64]:
        """Return when threads slept, and the thread that woke each: the source of its ``thread`` edge that
        ended last.
        """
        graph = self.graph
        node = np.unique(graph.target[graph.edge_kind == EdgeKind.THREAD])
        waker, previous = (
            graph.tid[last_source(graph, numbered(graph, node), len(node), (EdgeKind.THREAD,))],
            before[node],
        )
        start = np.where(previous == NOWHERE, 0, graph.start_ns[previous] + graph.duration_ns[previous])
        other = np.flatnonzero(
            (waker != graph.tid[node])
            & (start < graph.start_ns[node])
            & self.axis.has(waker)
            & self.axis.has(graph.tid[node])
        )
        node = node[other]
        table = self._table(
            Cause.PYTHON, graph.tid[node], start[other] + graph.epoch_ns, graph.start_ns[node] + graph.epoch_ns, other
        )
        return table, np.searchsorted(self.axis.tids, waker)[table.text]

    def _matching(self) -> list[_Table]:
        """Return calls that manage memory, and ranges that load data."""
        trace = self.linked.trace
        out = []
        for rows, pattern, cause in (
            (trace.calls, ALLOCATOR, Cause.MEMORY_MANAGEMENT),
            (trace.host, LOADER, Cause.DATA_LOADING),
        ):
            fitting = [k for k in np.unique(rows.name).tolist() if pattern.fullmatch(trace.strings[k])]
            mine = np.flatnonzero(np.isin(rows.name, fitting))
            out.append(
                self._table(
                    cause, rows.tid[mine], rows.start_ns[mine], rows.end_ns[mine], self._named(rows.name[mine], "{}")
                )
            )
        return out

    def _waiting(self, waits: WaitSlices) -> list[_Table]:
        """Return the waits of the graph by what was waited for, and blocking calls that none explains."""
        graph, linked = self.graph, self.linked
        calls, strings, device = linked.trace.calls, linked.trace.strings, linked.trace.device
        source = last_source(graph, numbered(graph, waits.part), len(waits.part), (EdgeKind.SYNC,))
        some = source != NOWHERE
        by_host = some & (graph.kind[source] == NodeKind.HOST_COMM)
        row = np.where(some, graph.row[source], NOWHERE)
        awaited, on_device = np.full(len(source), NOWHERE, np.int64), some & ~by_host
        awaited[by_host], awaited[on_device] = linked.trace.host.name[row[by_host]], device.name[row[on_device]]
        blocking = np.flatnonzero(np.isin(roles(calls, strings), [r for r in Role if r.waits]))
        count = len(awaited)
        texts = blocked(
            self.texts, linked, np.append(waits.call, blocking), np.append(awaited, awaited_by(graph, linked)[blocking])
        )
        text, in_call = texts[:count], texts[count:]
        start, end, tid = waits.start_ns + graph.epoch_ns, waits.end_ns + graph.epoch_ns, graph.tid[waits.part]
        came = np.where(by_host, np.clip(self._came_ns(source), start, end), start)  # the last rank
        out = [
            self._table(cause, tid[mine], low[mine], high[mine], text[mine])
            for cause, mine, low, high in (
                (Cause.STRAGGLER_WAIT, by_host, start, came),
                (Cause.DEPENDENCY_STALL, by_host, came, end),
                (Cause.HOST_BLOCKED, ~by_host, start, end),
            )
        ]
        return [
            *out,
            self._table(
                Cause.HOST_BLOCKED, calls.tid[blocking], calls.start_ns[blocking], calls.end_ns[blocking], in_call
            ),
        ]

    def _came_ns(self, node: I64) -> I64:
        """Return when the last rank came to each communication node."""
        if self.late is None or not len(self.late.node):
            return np.full(len(node), np.iinfo(np.int64).min)
        late_ns = np.zeros(len(self.graph.kind), np.int64)
        late_ns[self.late.node] = self.late.value
        out: I64 = self.graph.start_ns[node] + self.graph.epoch_ns + late_ns[node]
        return out

    def _working(self) -> _Table:
        """Return outermost ops, and calls outside any: numbers of host rows, and of calls behind them, in the place of
        texts.
        """
        rows, calls, linked = self.linked.trace.host, self.linked.trace.calls, self.linked
        ops = np.flatnonzero(~rows.annotation & ~linked.crossing)
        tid, start, end = (
            np.append(getattr(rows, column)[ops], getattr(calls, column)) for column in ("tid", "start_ns", "end_ns")
        )
        number = np.append(ops, len(rows.tid) + np.arange(len(calls.tid)))
        return self._table(Cause.HOST_WORK, tid, start, end, number)

    def _latency_ns(self) -> I64:
        """Return the launch latency of each device row; of one without a launch of its own the usual one."""
        graph, out = self.graph, np.zeros(len(self.linked.device_call), np.int64)
        ops = np.flatnonzero(graph.kind == NodeKind.DEVICE_OP)
        out[graph.row[ops]] = graph.launch_latency_ns[ops]
        alone = _first_of(self.linked.device_call) & (self.linked.device_call != NOWHERE)
        out[~alone] = int(np.median(out[alone])) if alone.any() else 0
        return out

    def _unknown(self) -> I64:
        """Return for each device row why nothing tells when it could have begun (a text), 0 where its launch
        call does.
        """
        linked, device, calls = self.linked, self.linked.trace.device, self.linked.trace.calls
        call = linked.device_call
        known = call != NOWHERE
        launched = np.full(len(call), np.iinfo(np.int64).min)
        launched[known] = calls.start_ns[call[known]]
        waits = calls.start_ns[roles(calls, linked.trace.strings) == Role.STREAM_WAIT]
        fresh = _first_of(device.stream, device.device) & (launched > waits.min(initial=np.iinfo(np.int64).max))
        out = np.where(fresh, self.texts.code(BEFORE_WINDOW), 0)
        by_graph = fits(GRAPH_LAUNCH, linked.trace.strings)
        behind = ~_first_of(call)
        behind[known] |= by_graph[calls.name[call[known]]]
        out[behind] = self.texts.code(BEHIND_GRAPH)
        out[~known] = self.texts.code(NOT_RECORDED)
        out[self._launched_before(~known)] = self.texts.code(LAUNCHED_BEFORE)
        return out

    def _launched_before(self, alone: Bool) -> Bool:
        """Tell which rows without a call were launched before the recording; of those without a correlation too, if
        they began before anything that it has of their thread's calls could have launched them."""
        trace = self.linked.trace
        first_ns = int(trace.calls.end_ns.min(initial=np.iinfo(np.int64).max))
        early = trace.device.start_ns <= first_ns + self.latency_ns
        return launched_before(trace, alone) | (
            alone & (trace.device.correlation <= 0) & early & (len(trace.calls.end_ns) > 0)
        )

    def _named(self, names: I32 | I64, form: str) -> I64:
        return self.texts.of_names(names, self.linked.trace.strings, form)

    def _table(self, cause: Cause, tid: I64, start_ns: I64, end_ns: I64, text: I64) -> _Table:
        """Make the intervals of each thread disjoint: of several at a moment the one that began first, which is the
        outermost, holds.
        """
        known = self.axis.has(tid)
        tid, text = tid[known], text[known]
        start, end = self.axis.clipped(tid, start_ns[known]), self.axis.clipped(tid, end_ns[known])
        order = np.lexsort((-end, start))
        start, end = start[order], end[order]
        cut = spans.cut(spans.union(start, end), start, end)
        return _Table(cause, self.axis.thread(cut.start_ns), cut.start_ns, cut.end_ns, text[order][cut.by])

    def _first_ns(self) -> I64:
        """Return when each thread of the axis first did anything."""
        out = np.full(len(self.axis.tids), np.iinfo(np.int64).max)
        for rows in (self.linked.trace.host, self.linked.trace.calls):
            np.minimum.at(out, np.searchsorted(self.axis.tids, rows.tid), rows.start_ns)
        return out


@dataclass(frozen=True, slots=True)
class _Some:
    """Pieces of idle time: ``of`` is the idle interval, ``tid`` the thread that was late, as a number of the axis."""

    start_ns: I64
    end_ns: I64
    of: I64
    tid: I64

    @staticmethod
    def of_spans(start_ns: I64, end_ns: I64, of: I64, tid: I64 | int = 0) -> _Some:
        """Return those that are not empty."""
        some = start_ns < end_ns
        return _Some(
            start_ns[some], end_ns[some], of[some], np.broadcast_to(np.asarray(tid, np.int64), some.shape)[some]
        )

    def cut(self, start_ns: I64, end_ns: I64) -> tuple[_Some, I64]:
        """Cut by disjoint intervals; the second column is the interval that covers each piece, ``NOWHERE`` for none."""
        order = np.argsort(self.start_ns, kind="stable")
        pieces = spans.cut(Spans(self.start_ns[order], self.end_ns[order]), start_ns, end_ns)
        of = order[pieces.of]
        return _Some(pieces.start_ns, pieces.end_ns, self.of[of], self.tid[of]), pieces.by

    def on(self, axis: Axis) -> _Some:
        """Return the same as positions on the axis of all threads."""
        shift = axis.of(axis.tids[self.tid], np.zeros_like(self.tid)) if len(self.tid) else self.tid
        return _Some(self.start_ns + shift, self.end_ns + shift, self.of, self.tid)

    def in_time(self, axis: Axis) -> _Some:
        shift = axis.of(axis.tids[self.tid], np.zeros_like(self.tid)) if len(self.tid) else self.tid
        return _Some(self.start_ns - shift, self.end_ns - shift, self.of, self.tid)


class _Found:
    """Pieces of idle time with cause and evidence, as they are found."""

    def __init__(self) -> None:
        self.parts: list[tuple[I64, I64, I64, I64, I64]] = []

    def add(self, some: _Some, cause: Cause | I64, text: I64 | int) -> None:
        whole = np.zeros_like(some.of)
        self.parts.append((some.start_ns, some.end_ns, some.of, whole + cause, whole + text))


def explain(hosts: Hosts, busy: Busy, from_ns: int, to_ns: int) -> Idle:
    """Give every ns in which a device was idle from ``from_ns`` to ``to_ns`` a cause, on the device's own clock. O(n
    log n) in rows.
    """
    linked, idle = hosts.linked, _up_to_ops(busy, spans.complement(busy.any, from_ns, to_ns))
    at = np.searchsorted(busy.start_ns, idle.end_ns, side="left")
    ended = at < len(busy.rows)
    row = busy.rows[np.minimum(at, len(busy.rows) - 1)]
    shift = own_clock_ns(linked)[row]
    whole = _Some(idle.start_ns - shift, idle.end_ns - shift, np.arange(len(row)), np.zeros(len(row), np.int64))
    found = _Found()
    found.add(take(whole, ~ended), Cause.NO_WORK, hosts.texts.code("nothing more was launched"))
    _by_launch(hosts, found, take(whole, ended), row[ended])
    start, end, of, cause, text = (np.concatenate(column) for column in zip(*found.parts, strict=True))
    order = np.argsort(start, kind="stable")
    start, end, of = start[order], end[order], of[order]
    return Idle(
        start + shift[of],
        end + shift[of],
        shift[of],
        cause[order].astype(np.uint8),
        text[order],
        np.where(ended, row, NOWHERE)[of],
        tuple(hosts.texts.place),
    )


def _up_to_ops(busy: Busy, idle: Spans) -> Spans:
    """Cut idle time where ops of no length ran: each interval ends with an op."""
    at_ns = np.unique(busy.start_ns[busy.start_ns == busy.end_ns])
    k = np.searchsorted(idle.start_ns, at_ns) - 1
    inside = at_ns[(k >= 0) & (at_ns < idle.end_ns[k])] if len(idle.start_ns) else at_ns[:0]
    return Spans(np.sort(np.append(idle.start_ns, inside)), np.sort(np.append(idle.end_ns, inside)))


def _by_launch(hosts: Hosts, found: _Found, idle: _Some, row: I64) -> None:
    """Split idle intervals, each ended by device row ``row``: what the op depended on, its late host, and what it took
    to begin.
    """
    linked, calls, texts = hosts.linked, hosts.linked.trace.calls, hosts.texts
    strings, call = linked.trace.strings, linked.device_call[row]
    source, done = _before(hosts.graph, row, idle)
    stalled = source[done > idle.start_ns]
    on_device = texts.of_names(linked.trace.device.name[hosts.graph.row[stalled]], strings, "waited for {}")
    found.add(_Some.of_spans(idle.start_ns, done, idle.of), Cause.DEPENDENCY_STALL, on_device)
    launched = call != NOWHERE
    returned, thread = done.copy(), np.zeros(len(row), np.int64)
    returned[launched] = np.clip(calls.end_ns[call[launched]], done[launched], idle.end_ns[launched])
    thread[launched] = np.searchsorted(hosts.axis.tids, calls.tid[call[launched]])
    _late(hosts, found, _Some.of_spans(done, returned, idle.of, thread))
    why = hosts.unknown[row]
    in_time = (source != NOWHERE) | (idle.end_ns - returned <= LATENCY_NS)
    why = np.where((why == texts.code(BEFORE_WINDOW)) & in_time, 0, why)
    begins = np.where(why > 0, np.minimum(returned + hosts.latency_ns[row], idle.end_ns), idle.end_ns)
    index = np.arange(len(row))
    for start, end, cause in ((returned, begins, Cause.START_DELAY), (begins, idle.end_ns, Cause.UNKNOWN)):
        left = _unprofiled(hosts, found, _Some.of_spans(start, end, idle.of, index))
        of = left.tid
        named = why[of]
        plain = named == 0
        named[plain] = texts.of_names(calls.name[call[of[plain]]], strings, "{} had returned")
        found.add(left, cause, named)


def _before(graph: Graph, row: I64, idle: _Some) -> tuple[I64, I64]:
    """Return the op that each device row, or the delay before it, depends on and that ended last, and when, within its
    interval.
    """
    of_row = np.full(int(row.max(initial=0)) + 1, NOWHERE)
    of_row[row] = np.arange(len(row))
    mine = np.flatnonzero(np.isin(graph.kind, (NodeKind.DEVICE_OP, NodeKind.DEVICE_DELAY)))
    mine = mine[graph.row[mine] < len(of_row)]
    index = np.full(len(graph.kind), NOWHERE, np.int64)
    index[mine] = of_row[graph.row[mine]]
    source = last_source(graph, index, len(row), _DEVICE)
    done = np.where(source == NOWHERE, idle.start_ns, graph.end_ns[source] + graph.epoch_ns)
    return source, np.clip(done, idle.start_ns, idle.end_ns)


def _unprofiled(hosts: Hosts, found: _Found, some: _Some) -> _Some:
    """Add what of ``some`` the profiler took, and return the rest."""
    pieces, by = some.cut(hosts.profiler.start_ns, hosts.profiler.end_ns)
    hit = by != NOWHERE
    found.add(take(pieces, hit), Cause.PROFILER_ARTEFACT, hosts.profiler.text[by[hit]])
    return take(pieces, ~hit)


def _late(hosts: Hosts, found: _Found, some: _Some) -> None:
    """Add what the thread that was late did, or the one that it waited for."""
    axis = hosts.axis
    left = _awake(hosts, _unprofiled(hosts, found, some)).on(axis)
    for table in hosts.tables:
        left, by = left.cut(table.start_ns, table.end_ns)
        hit = by != NOWHERE
        here, text = take(left, hit), table.text[by[hit]]
        if table.cause == Cause.HOST_WORK:
            text = hosts.work.texts(here.start_ns, here.end_ns, text)
        found.add(here.in_time(axis), table.cause, text)
        left = take(left, ~hit)
    left = left.in_time(axis)
    begun = left.end_ns > hosts.first_ns[left.tid]
    found.add(take(left, begun), Cause.PYTHON, hosts.texts.code("between ops"))
    found.add(take(left, ~begun), Cause.NO_WORK, hosts.texts.code("before the first op of its thread"))


def _awake(hosts: Hosts, some: _Some) -> _Some:
    """Put the thread that woke it in the place of a thread that slept."""
    sleeps, axis, done = hosts.sleeps, hosts.axis, []
    for _ in range(_ROUNDS):
        pieces, by = some.on(axis).cut(sleeps.start_ns, sleeps.end_ns)
        pieces, slept = pieces.in_time(axis), by != NOWHERE
        done.append(take(pieces, ~slept))
        some = replace(take(pieces, slept), tid=hosts.waker[by[slept]])
        if not len(some.of):
            break
    return _Some(*(np.concatenate([getattr(one, name) for one in (*done, some)]) for name in _Some.__slots__))


def _first_of(*group: I32 | I64) -> Bool:
    """Tell which rows are the first of their group: of those that have the same in all columns."""
    order = np.lexsort(group)  # stable
    return marked(len(order), order[begins(*(column[order] for column in group))])
