"""Why a device was idle: what the op that ended an idle interval had waited for, and what its host did meanwhile.

An idle interval ends as a device op begins. From the end backwards: since its launch call returned the op was launched
and had not begun; before, the thread that launched it was late, and what that thread did counts, or where it slept,
what the thread did that woke it. What an op of another device still did, and the launched op depends on, counts first.
Of several reasons at one moment the first of ``Cause`` holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from graphlink import spans
from graphlink.causes import Cause, Reasons, recorded_causes
from graphlink.choices import LATENCY_NS
from graphlink.gpu.busy import Busy, own_clock_ns
from graphlink.gpu.records import Idle
from graphlink.graph.waits import ON_DEVICE, WaitSlices, before_on_thread, last_source, wait_slices, waited_for
from graphlink.graph_model import Column, EdgeKind, Graph, NodeKind
from graphlink.linking.call_roles import WAITS, Role, roles
from graphlink.linking.launch import BEFORE_WINDOW as LAUNCHED_BEFORE
from graphlink.linking.launch import behind_graphs, launched_before
from graphlink.linking.nest import stacks_at
from graphlink.model import I32, I64, NOWHERE, U8, Bool, CallRows, DeviceKind, HostRows, Linked
from graphlink.read.columns import Strings
from graphlink.records import in_function
from graphlink.spans import NEVER, Axis, Neighbours, Pieces, Spans
from graphlink.steps import step_marks
from graphlink.tables import (
    MOST,
    among,
    concat,
    least,
    numbered_rows,
    numbered_texts,
    numbered_values,
    spread,
    stacked,
    take,
    turns,
    values_at,
)

_ROUNDS: Final = 8  # threads that wake each other in turn, at most
NOT_RECORDED: Final = "its launch call was not recorded"
BEFORE_WINDOW: Final = "its stream waited for what was launched before the recording"
BEHIND_GRAPH: Final = "behind a graph launch, which says nothing of the time between its kernels"


class Hosts:
    """What the threads of a rank did, made ready for all its devices. Times since the epoch, on the host's clock.

    ``tables``: what may have kept threads from launching, by cause, in the order in which they count; positions on
    ``axis``, disjoint in each table. ``evidence`` of the last, which is work, are numbers of host rows, and of calls
    behind them. ``innermost``: the row that runs on a thread, from each mark on the axis to the next.
    """

    def __init__(self, graph: Graph, linked: Linked, late: Column | None = None) -> None:
        self.graph, self.linked, self.late, self.texts = graph, linked, late, Strings()
        trace, before = linked.trace, before_on_thread(graph)
        rows = (trace.host, trace.calls, trace.device)
        times = (column for table in rows for column in (table.start_ns, table.end_ns))
        self.axis = Axis.over(np.append(trace.host.tid, trace.calls.tid), *times)
        self.profiler = self._profiler()
        self.sleeps, self.waker = self._sleeps(before)
        waits = wait_slices(graph, linked, before)
        matching = [
            self._table(cause, table, rows, self.texts.of_names(table.name[rows], trace.strings))
            for cause, table, rows in recorded_causes(trace)
        ]
        *stalled, waited, in_call = self._waiting(waits)
        self.tables = (*stalled, *matching, waited, in_call, self._working())
        host, calls = trace.host, trace.calls
        row = np.flatnonzero(~linked.crossing & (host.start_ns < host.end_ns))
        nested = (host.tid[row], host.start_ns[row], host.end_ns[row], row, linked.parent[row])
        self.innermost = Neighbours.nested(self.axis, *nested)
        thread = np.searchsorted(self.axis.tids, np.append(host.tid, calls.tid))
        self.first_ns = least(len(self.axis.tids), thread, np.append(host.start_ns, calls.start_ns))
        self.latency_ns = self._latency_ns()
        self.unknown = self._unknown()

    def _profiler(self) -> Reasons:
        overhead, strings = self.linked.trace.overhead, self.linked.trace.strings
        cut = spans.cut(spans.union(overhead.start_ns, overhead.end_ns), overhead.start_ns, overhead.end_ns)
        text = self.texts.of_names(overhead.name[cut.by], strings, "profiler: {}")
        cause = np.full(len(text), Cause.PROFILER_ARTEFACT, np.uint8)
        return Reasons(cut.start_ns, cut.end_ns, cause, text)

    def _sleeps(self, before: I32) -> tuple[Reasons, I64]:
        """Return when threads slept, and the thread that woke each: the source of its ``thread`` edge that
        ended last.
        """
        graph = self.graph
        node = np.unique(graph.target[graph.edge_kind == EdgeKind.THREAD])
        waker = graph.tid[last_source(graph, node, (EdgeKind.THREAD,))]
        start = values_at(graph.start_ns + graph.duration_ns, before[node], 0)
        other = np.flatnonzero(
            (waker != graph.tid[node])
            & (start < graph.start_ns[node])
            & self.axis.has(waker)
            & self.axis.has(graph.tid[node])
        )
        node = node[other]
        table = self._on_axis(
            Cause.PYTHON, graph.tid[node], start[other] + graph.epoch_ns, graph.start_ns[node] + graph.epoch_ns, other
        )
        return table, np.searchsorted(self.axis.tids, waker)[table.evidence]

    def _waiting(self, waits: WaitSlices) -> Iterator[Reasons]:
        """Yield the waits of the graph by what was waited for, and blocking calls that none explains."""
        graph, linked = self.graph, self.linked
        calls, strings, device = linked.trace.calls, linked.trace.strings, linked.trace.device
        source, host_row, device_row = waited_for(graph, waits)
        by_host = host_row != NOWHERE
        awaited = np.where(by_host, values_at(linked.trace.host.name, host_row), values_at(device.name, device_row))
        blocking = np.flatnonzero(among(roles(calls, strings), WAITS))
        count = len(awaited)
        texts = blocked(
            self.texts, linked, np.append(waits.call, blocking), np.append(awaited, awaited_by(graph, linked)[blocking])
        )
        start, end, tid = waits.start_ns + graph.epoch_ns, waits.end_ns + graph.epoch_ns, graph.tid[waits.part]
        came = np.where(by_host, np.clip(self._came_ns(source), start, end), start)  # the last rank
        for cause, which, low, high in (
            (Cause.STRAGGLER_WAIT, by_host, start, came),
            (Cause.DEPENDENCY_STALL, by_host, came, end),
            (Cause.HOST_BLOCKED, ~by_host, start, end),
        ):
            yield self._on_axis(cause, tid[which], low[which], high[which], texts[:count][which])
        yield self._table(Cause.HOST_BLOCKED, calls, blocking, texts[count:])

    def _came_ns(self, node: I64) -> I64:
        """Return when the last rank came to each communication node."""
        if self.late is None or not len(self.late.node):
            return np.full(len(node), NEVER)
        late_ns = spread(len(self.graph.kind), self.late.node, self.late.value, 0)
        return np.asarray(self.graph.start_ns[node] + self.graph.epoch_ns + late_ns[node])

    def _working(self) -> Reasons:
        """Return outermost ops, and calls outside any."""
        rows, calls, linked = self.linked.trace.host, self.linked.trace.calls, self.linked
        ops = np.flatnonzero(~rows.annotation & ~linked.crossing)
        tid, start, end = (
            np.append(getattr(rows, column)[ops], getattr(calls, column)) for column in ("tid", "start_ns", "end_ns")
        )
        number = np.append(ops, len(rows.tid) + np.arange(len(calls.tid)))
        return self._on_axis(Cause.HOST_WORK, tid, start, end, number)

    def _latency_ns(self) -> I64:
        """Return the launch latency of each device row; of one without a launch of its own the usual one."""
        graph, call = self.graph, self.linked.device_call
        ops = graph.nodes_of(NodeKind.DEVICE_OP)
        out = spread(len(call), graph.row[ops], graph.launch_latency_ns[ops], 0)
        alone = (turns(call) == 0) & (call != NOWHERE)
        out[~alone] = int(np.median(out[alone])) if alone.any() else 0
        return out

    def _unknown(self) -> I64:
        """Return for each device row why nothing tells when it could have begun (a text), 0 where its launch
        call does.
        """
        linked, device, calls = self.linked, self.linked.trace.device, self.linked.trace.calls
        call = linked.device_call
        known = call != NOWHERE
        launched = values_at(calls.start_ns, call, NEVER)
        waits = calls.start_ns[roles(calls, linked.trace.strings) == Role.STREAM_WAIT]
        fresh = (turns(device.stream, device.device) == 0) & (launched > waits.min(initial=MOST))
        out = np.where(fresh, self.texts[BEFORE_WINDOW], 0)
        out[(turns(call) > 0) | behind_graphs(linked)] = self.texts[BEHIND_GRAPH]
        out[~known] = self.texts[NOT_RECORDED]
        out[self._launched_before(~known)] = self.texts[LAUNCHED_BEFORE]
        return out

    def _launched_before(self, alone: Bool) -> Bool:
        """Tell which rows without a call were launched before the recording; of those without a correlation too, if
        they began before anything that it has of their thread's calls could have launched them."""
        trace = self.linked.trace
        early = trace.device.start_ns <= int(trace.calls.end_ns.min(initial=MOST)) + self.latency_ns
        return launched_before(trace, alone) | (
            alone & (trace.device.correlation <= 0) & early & (len(trace.calls.end_ns) > 0)
        )

    def _table(self, cause: Cause, table: HostRows | CallRows, rows: I64, text: I32) -> Reasons:
        return self._on_axis(cause, table.tid[rows], table.start_ns[rows], table.end_ns[rows], text)

    def _on_axis(self, cause: Cause, tid: I64, start_ns: I64, end_ns: I64, text: I32 | I64) -> Reasons:
        """Make the intervals of each thread disjoint: of several at a moment the one that began first, which is the
        outermost, holds.
        """
        known = self.axis.has(tid)
        tid, text = tid[known], text[known]
        start, end = self.axis.clipped(tid, start_ns[known]), self.axis.clipped(tid, end_ns[known])
        order = np.lexsort((-end, start))
        start, end = start[order], end[order]
        cut = spans.cut(spans.union(start, end), start, end)
        causes = np.full(len(cut.by), cause, np.uint8)
        return Reasons(cut.start_ns, cut.end_ns, causes, text[order][cut.by].astype(np.int32))


# pieces of idle time, ``of`` an interval and ``by`` a thread that was late (a number of the axis), with cause and
# evidence, as they are found
_Found = list[tuple[Pieces, Cause | U8, I32 | I64 | int]]


def _pieces(start_ns: I64, end_ns: I64, of: I64, thread: I64 | int = 0) -> Pieces:
    """Return those that are not empty."""
    return take(Pieces(start_ns, end_ns, of, np.zeros_like(of) + thread), start_ns < end_ns)


def _on_axis(some: Pieces, axis: Axis, turns: int = 1) -> Pieces:
    """Return the same as positions on the axis of all threads, or (-1 turns) positions as times."""
    shift = turns * (some.by * axis.span_ns - axis.origin_ns)
    return replace(some, start_ns=some.start_ns + shift, end_ns=some.end_ns + shift)


def explain(hosts: Hosts, busy: Busy, from_ns: int, to_ns: int) -> Idle:
    """Give every ns in which a device was idle from ``from_ns`` to ``to_ns`` a cause, on the device's own clock. O(n
    log n) in rows.
    """
    linked, idle = hosts.linked, _up_to_ops(busy, spans.complement(busy.any, from_ns, to_ns))
    at = np.searchsorted(busy.start_ns, idle.end_ns, side="left")
    ended = at < len(busy.rows)
    row = busy.rows[np.minimum(at, len(busy.rows) - 1)]
    shift = own_clock_ns(linked)[row]
    whole = Pieces(idle.start_ns - shift, idle.end_ns - shift, np.arange(len(row)), np.zeros(len(row), np.int64))
    found: _Found = [(take(whole, ~ended), Cause.NO_WORK, hosts.texts["nothing more was launched"])]
    left = take(whole, ended)
    while len(left.of):  # where the clock of the device drifts or steps, intervals may overlap on the host's
        apart = left.start_ns >= np.append(-MOST, np.maximum.accumulate(left.end_ns))[:-1]
        _by_launch(hosts, found, take(left, apart), row[left.of[apart]])
        left = take(left, ~apart)
    parts, causes, texts = zip(*found, strict=True)
    pieces = concat(*parts)
    start_ns = pieces.start_ns + shift[pieces.of]  # where the clock steps, the host's has another order
    order = np.argsort(start_ns, kind="stable")
    of = pieces.of[order]
    cause, text = (stacked([len(part.of) for part in parts], column) for column in (causes, texts))
    return Idle(
        start_ns=start_ns[order],
        end_ns=pieces.end_ns[order] + shift[of],
        cause=cause[order].astype(np.uint8),
        evidence=text[order].astype(np.int32),
        shift_ns=shift[of],
        row=np.where(ended, row, NOWHERE)[of],
        texts=tuple(hosts.texts),
    )


def _up_to_ops(busy: Busy, idle: Spans) -> Spans:
    """Cut idle time where ops of no length ran: each interval ends with an op."""
    at_ns = np.unique(busy.start_ns[busy.start_ns == busy.end_ns])
    inside = at_ns[values_at(idle.start_ns, spans.holding(idle, at_ns), MOST) < at_ns]
    return Spans(np.sort(np.append(idle.start_ns, inside)), np.sort(np.append(idle.end_ns, inside)))


def _by_launch(hosts: Hosts, found: _Found, idle: Pieces, row: I64) -> None:
    """Split idle intervals, each ended by device row ``row``: what the op depended on, its late host, and what it took
    to begin.
    """
    linked, calls, texts = hosts.linked, hosts.linked.trace.calls, hosts.texts
    strings, call = linked.trace.strings, linked.device_call[row]
    source, done = _before(hosts.graph, row, idle)
    device, stalled = linked.trace.device, hosts.graph.row[source[done > idle.start_ns]]
    on_device = texts.of_names(device.name[stalled], strings, "waited for {}")
    by_host = device.kind[stalled] == DeviceKind.HOST
    causes = np.where(by_host, Cause.HOST_WORK, Cause.DEPENDENCY_STALL).astype(np.uint8)
    found.append((_pieces(idle.start_ns, done, idle.of), causes, on_device))
    returned = np.clip(values_at(calls.end_ns, call, NEVER), done, idle.end_ns)
    thread = np.searchsorted(hosts.axis.tids, values_at(calls.tid, call))
    _late(hosts, found, _pieces(done, returned, idle.of, thread))
    why = hosts.unknown[row]
    in_time = (source != NOWHERE) | (idle.end_ns - returned <= LATENCY_NS)
    why = np.where((why == texts[BEFORE_WINDOW]) & in_time, 0, why)
    begins = np.where(why > 0, np.minimum(returned + hosts.latency_ns[row], idle.end_ns), idle.end_ns)
    index = np.arange(len(row))
    for start, end, cause in ((returned, begins, Cause.START_DELAY), (begins, idle.end_ns, Cause.UNKNOWN)):
        left = _unprofiled(hosts, found, _pieces(start, end, idle.of, index))
        named = why[left.by]
        plain = named == 0
        named[plain] = texts.of_names(calls.name[call[left.by[plain]]], strings, "{} had returned")
        found.append((left, cause, named))


def _before(graph: Graph, row: I64, idle: Pieces) -> tuple[I64, I64]:
    """Return the op that each device row, or the delay before it, depends on and that ended last, and when, within its
    interval.
    """
    node = graph.nodes_of(NodeKind.DEVICE_OP, NodeKind.DEVICE_DELAY)
    place = spread(int(graph.row[node].max(initial=-1)) + 1, row, np.arange(len(row)))[graph.row[node]]
    source = last_source(graph, node[place != NOWHERE], ON_DEVICE, place[place != NOWHERE])
    done = np.where(source == NOWHERE, idle.start_ns, graph.end_ns[source] + graph.epoch_ns)
    return source, np.clip(done, idle.start_ns, idle.end_ns)


def _unprofiled(hosts: Hosts, found: _Found, some: Pieces) -> Pieces:
    """Add what of ``some`` the profiler took, and return the rest."""
    (kept, by), (left, _) = spans.shared_out(some, [hosts.profiler])
    found.append((kept, Cause.PROFILER_ARTEFACT, hosts.profiler.evidence[by]))
    return left


def _late(hosts: Hosts, found: _Found, some: Pieces) -> None:
    """Add what the thread that was late did, or the one that it waited for."""
    axis = hosts.axis
    *covered, (left, _) = spans.shared_out(_on_axis(_awake(hosts, _unprofiled(hosts, found, some)), axis), hosts.tables)
    for table, (here, by) in zip(hosts.tables, covered, strict=True):
        text = table.evidence[by]
        if table is hosts.tables[-1]:
            text = _working_texts(hosts, here.start_ns, here.end_ns, text)
        found.append((_on_axis(here, axis, -1), table.cause[by], text))
    left = _on_axis(left, axis, -1)
    begun = left.end_ns > hosts.first_ns[left.by]
    found.append((take(left, begun), Cause.PYTHON, hosts.texts["between ops"]))
    found.append((take(left, ~begun), Cause.NO_WORK, hosts.texts["before the first op of its thread"]))


def _awake(hosts: Hosts, some: Pieces) -> Pieces:
    """Put the thread that woke it in the place of a thread that slept."""
    axis, done = hosts.axis, []
    for _ in range(_ROUNDS):
        (slept, by), (awake, _) = spans.shared_out(_on_axis(some, axis), [hosts.sleeps])
        done.append(_on_axis(awake, axis, -1))
        some = replace(_on_axis(slept, axis, -1), by=hosts.waker[by])
        if not len(some.of):
            break
    return concat(*done, some)


# what the evidence says of calls that waited and of host work


def awaited_by(graph: Graph, linked: Linked) -> I64:
    """Return for each call the name of the last device op that it waited for, by the kept ``sync`` edges; ``NOWHERE``
    for none.
    """
    kept = graph.sync_calls
    order = np.argsort(graph.end_ns[kept.source], kind="stable")
    order = order[graph.kind[kept.source[order]] == NodeKind.DEVICE_OP]
    name = linked.trace.device.name[graph.row[kept.source[order]]].astype(np.int64)
    return spread(len(linked.trace.calls.name), kept.call[order], name)


def blocked(texts: Strings, linked: Linked, call: I64, awaited: I64) -> I32:
    """Return a text for each call (``NOWHERE``: none): the op around it, what it waited for (a name), and its Python
    line if recorded.
    """
    strings, calls = linked.trace.strings, linked.trace.calls
    known = np.flatnonzero(call != NOWHERE)
    asked, which = numbered_values(call[known])
    stacks = stacks_at(linked, calls.tid[asked], calls.start_ns[asked])
    code, lines = numbered_texts(["", *(stack[-1] if stack else "" for stack in stacks)])
    line = spread(len(call), known, code[1:][which], 0)
    op = values_at(linked.trace.host.name, values_at(linked.call_op, call))
    equal, which = numbered_rows(op, values_at(calls.name, call), awaited, line)
    told = (
        ("" if code == NOWHERE else names[code] for code, names in zip(codes, (*[strings] * 3, lines), strict=True))
        for codes in equal.tolist()
    )
    return texts.column([_blocked(*parts) for parts in told])[which]


def _blocked(op: str, call: str, awaited: str, line: str) -> str:
    """Return ``the host was in aten::nonzero, which waited for Memcpy DtoH in cudaStreamSynchronize, called in
    function step (train.py:34)``.
    """
    inside, where = f" in {call}" * bool(call), f", called in {in_function(line)}" * bool(line)
    if op:
        what = f"waited for {awaited}{inside}" if awaited else f"was blocked{inside}"
        return f"the host was in {op}, which {what}{where}"
    return f"the host waited for {awaited}{inside}{where}" if awaited else f"the host was blocked{inside}{where}"


def _working_texts(hosts: Hosts, start_ns: I64, end_ns: I64, number: I32) -> I32:
    """Return texts of pieces of host work, disjoint and ascending on the axis: the innermost row that ran for most
    of each, and the outermost one around it. ``number``: the outermost op of each, or behind all host rows a call
    outside any. O(n log n) in marks."""
    rows, strings = hosts.linked.trace.host, hosts.linked.trace.strings
    in_op = np.flatnonzero(number < len(rows.tid))
    name = np.append(rows.name, hosts.linked.trace.calls.name).astype(np.int64)[number]
    outer = name.copy()
    outer[in_op] = rows.name[_outermost(hosts.linked, number[in_op])]
    name[in_op] = _most(hosts, start_ns[in_op], end_ns[in_op], name[in_op])
    pairs, which = numbered_rows(name, outer)
    words = [f"host: {strings[n]}" + (f" in {strings[o]}" if o != n else "") for n, o in pairs.tolist()]
    return hosts.texts.column(words)[which]


def _outermost(linked: Linked, row: I32) -> I32:
    """Return the outermost row around each host row that marks no step; where there is none, itself."""
    mark, parent, out = step_marks(linked.trace), linked.parent, row.copy()
    moving = np.arange(len(row))
    while len(moving):
        above = parent[out[moving]]
        moving = moving[(above != NOWHERE) & ~mark[above]]
        out[moving] = parent[out[moving]]
    return out


def _most(hosts: Hosts, start_ns: I64, end_ns: I64, otherwise: I64) -> I64:
    """Return the name of the rows that run for most of each interval, disjoint and ascending; ``otherwise`` where
    none does.
    """
    at_ns, row = hosts.innermost.at_ns, hosts.innermost.row
    of, mark, ns = spans.overlaps(Spans(at_ns, np.append(at_ns[1:], MOST)[: len(at_ns)]), start_ns, end_ns)
    some = (row[mark] != NOWHERE) & (ns > 0)
    of, name, ns = of[some], hosts.linked.trace.host.name[row[mark[some]]].astype(np.int64), ns[some]
    pairs, which = numbered_rows(of, name)
    interval, name = pairs.T
    order = np.lexsort((np.bincount(which, ns, len(pairs)), interval))
    out = otherwise.copy()
    out[interval[order]] = name[order]  # of several the last holds, which is the longest
    return out
