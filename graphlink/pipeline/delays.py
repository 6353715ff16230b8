"""The causes that delayed the next work of a rank after its device, or in a run without device ops its thread, had
nothing to do.

On a device the edges of the graph tell. From the op that ends an idle interval a walk goes back to what that started
after: its launch, or the device op before it on its stream or behind an event. A communication kernel there ran in the
interval, and is the reason as long as it ran; before it counts what that kernel started after. Where a launch came last
the host was late.

Then what the host did meanwhile counts: it waited for device work, loaded data, managed memory, or just launched late.
The first of these counts, in this order: a moment in which the profiler worked, a call that allocates or frees, a data
loader, a wait. What is left until the launch returns is ``launch_starved``; but where the host was blocked when the
device ran empty, it would have launched that much earlier without, so of what is left as much as it had been blocked
before counts as that, too, and so do the up to 20 us that a launch takes right after it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from graphlink import spans
from graphlink.choices import LATENCY_NS
from graphlink.graph.waits import WaitSlices, last_source, numbered
from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.model import I32, I64, NOWHERE, Bool, CommKind, CommOps, Communication, DeviceKind, Linked
from graphlink.pairs import numbered_texts
from graphlink.patterns import ALLOCATOR, LOADER
from graphlink.pipeline.exchanges import of_rows
from graphlink.pipeline.named_ranges import Entries
from graphlink.pipeline.records import Cause, Delays, Pass
from graphlink.pipeline.work import Worked
from graphlink.spans import Pieces, Spans
from graphlink.steps import step_marks
from graphlink.tables import concat, counted_from, take

_DEVICE: Final = (EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.COLLECTIVE)
_FAR: Final = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Segments(Spans):
    """Idle time cut by reason, times absolute. ``next``: the work op that was delayed.

    ``op``: the device row that ran, or had just ended, ``NOWHERE`` for none. ``call``: the launch call that came later
    still, ``NOWHERE`` if the launch was in time. Neither: nothing explains it.
    """

    op: I32
    call: I32
    next: I32


def segments(graph: Graph, linked: Linked, idle: Spans, next_op: I64) -> Segments:
    """Cut ``idle`` intervals, ascending, each ended by the start of device row ``next_op``.

    O(n log n) in device ops and edges, and a step of plain Python for each op that ran, or ended, inside an interval.
    """
    node_of = np.full(len(linked.trace.device.start_ns), NOWHERE, np.int64)
    ops = np.flatnonzero(graph.kind == NodeKind.DEVICE_OP)
    node_of[graph.row[ops]] = ops
    first = node_of[next_op]
    node = np.union1d(first, _ended_inside(graph, idle))
    near, out = _near(graph, linked, node), array("q")
    starts = np.searchsorted(node, first).tolist()
    for low, until, at, op in zip(idle.start_ns.tolist(), idle.end_ns.tolist(), starts, next_op.tolist(), strict=True):
        _walk(out, near, low, until, at, op)
    rows = np.frombuffer(out, np.int64).reshape(-1, 5)
    start, end, op, call, following = rows[np.argsort(rows[:, 0], kind="stable")].T
    return Segments(start, end, op.astype(np.int32), call.astype(np.int32), following.astype(np.int32))


def _ended_inside(graph: Graph, idle: Spans) -> I64:
    """Return device nodes that ended in idle intervals, or with them: a walk meets no others."""
    node = np.flatnonzero(np.isin(graph.kind, (NodeKind.DEVICE_OP, NodeKind.DEVICE_DELAY)))
    end_ns = graph.end_ns[node] + graph.epoch_ns
    before = np.searchsorted(idle.start_ns, end_ns) - 1
    return np.asarray(node[(before >= 0) & (end_ns <= idle.end_ns[before])] if len(idle.start_ns) else node[:0])


def _near(graph: Graph, linked: Linked, node: I64) -> list[tuple[int, ...]]:
    """Return, for device nodes that walks may meet (ascending), when each started, its device row (``NOWHERE`` of a
    delay), what it started after (a position in ``node``), when that ended, its launch call, when that was called and
    when it returned.

    Times absolute; ``_FAR`` and ``NOWHERE`` where there is nothing. Tuples, because walks are plain Python.
    """
    calls = linked.trace.calls
    source, done = _last_device(graph, node)
    some = source != NOWHERE
    done[some] += graph.epoch_ns
    # A source that is none of these nodes ended outside all idle time: its walk ends there.
    source[some] = np.searchsorted(node, source[some])
    row = np.where(graph.kind[node] == NodeKind.DEVICE_OP, graph.row[node], NOWHERE)
    call = linked.device_call[graph.row[node]]
    called = call != NOWHERE
    called_ns, returned_ns = np.full(len(node), _FAR), np.full(len(node), _FAR)
    called_ns[called], returned_ns[called] = calls.start_ns[call[called]], calls.end_ns[call[called]]
    columns = (graph.start_ns[node] + graph.epoch_ns, row, source, done, call, called_ns, returned_ns)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _walk(out: array[int], near: list[tuple[int, ...]], low: int, until: int, at: int, next_op: int) -> None:
    """Append the segments of [low, until), which ends with node ``at`` of ``near``: start, end, op, call, next."""
    late = NOWHERE
    while until > low:
        _, _, source, done, call, called, returned = near[at]
        if called >= done and low < called < until:
            begin = max(low, done)
            reached = min(max(returned + LATENCY_NS, begin), until)
            _add(out, reached, until, NOWHERE, late, next_op)
            late = call
            _add(out, begin, reached, NOWHERE, late, next_op)
            until = begin
        elif low < done <= until:
            at = source
            started, row, *_ = near[at]
            ran = until if row != NOWHERE and until - done <= LATENCY_NS else done
            _add(out, max(low, started), ran, row, late, next_op)
            _add(out, ran, until, NOWHERE, late, next_op)
            until = max(low, started)
        else:
            _add(out, low, until, NOWHERE, late, next_op)
            return


def _add(out: array[int], start_ns: int, end_ns: int, *what: int) -> None:
    if start_ns < end_ns:
        out.extend((start_ns, end_ns, *what))


def _last_device(graph: Graph, node: I64) -> tuple[I64, I64]:
    """Return the device dependency of each node that ended last, and when it did (graph time); ``NOWHERE``
    without any.
    """
    first, count = graph.first[node], graph.first[node + 1] - graph.first[node]
    source, ended = np.full(len(node), NOWHERE), np.full(len(node), _FAR)
    which = np.repeat(np.arange(len(node)), count)
    edge = counted_from(first, count)
    device = np.isin(graph.edge_kind[edge], _DEVICE)
    which, edge = which[device], edge[device]
    from_ = graph.source[edge]
    end_ns = graph.end_ns[from_]
    order = np.lexsort((from_, end_ns, which))
    last = order[np.append(which[order][1:] != which[order][:-1], True)] if len(order) else order
    source[which[last]], ended[which[last]] = from_[last], end_ns[last]
    return source, ended


def device_delays(graph: Graph, linked: Linked, worked: Worked, ops: CommOps, reasons: Delays) -> Delays:
    """Explain the idle time of a device. ``reasons``: what may have blocked its host (``host_reasons``).

    First counts communication that the next work waited for, then its late launch, then communication that just ran
    meanwhile.
    """
    device, strings = linked.trace.device, linked.trace.strings
    idle = _idle(worked)
    next_op = worked.op[np.searchsorted(device.start_ns[worked.op], idle.end_ns)]
    cut = segments(graph, linked, idle, next_op)
    exchange = np.append(of_rows(ops, len(device.start_ns), on_host=False), NOWHERE)[cut.op]
    late = (exchange == NOWHERE) & (cut.call != NOWHERE)
    at = np.flatnonzero(late)
    touching = (cut.end_ns[at[:-1]] == cut.start_ns[at[1:]]) & (cut.next[at[:-1]] == cut.next[at[1:]])
    first, last = at[np.append(True, ~touching)[: len(at)]], at[np.append(~touching, True)[: len(at)]]
    launches = [f"{strings[k]} came late" for k in linked.trace.calls.name[cut.call[last]].tolist()]
    by_host = explained(Spans(cut.start_ns[first], cut.end_ns[last]), launches, reasons)
    by_device = _by_device(linked, take(cut, ~late), exchange[~late])
    return _with_exchanges(joined(by_host, by_device), ops)


def host_delays(linked: Linked, entries: Entries, worked: Worked, reasons: Delays) -> Delays:
    """Explain the idle time of a run without device ops: what its thread does between ranges keeps it from the next."""
    rows, strings = linked.trace.host, linked.trace.strings
    marks = step_marks(linked.trace)
    outermost = (linked.parent == NOWHERE) | marks[np.maximum(linked.parent, 0)]
    outer = np.flatnonzero(outermost & ~marks & ~linked.crossing & np.isin(rows.tid, entries.tid))
    pieces = spans.cut(_idle(worked), rows.start_ns[outer], rows.end_ns[outer])
    words = [
        f"host: {strings[rows.name[outer[k]]]}" if k != NOWHERE else "host between operators"
        for k in pieces.by.tolist()
    ]
    return explained(pieces, words, reasons)


def joined(*tables: Delays) -> Delays:
    """Put tables together, sorted by start; of equal starts those of the first table come first."""
    texts = {text: k for k, text in enumerate(dict.fromkeys(["", *(text for table in tables for text in table.texts)]))}
    numbered = (
        replace(table, evidence=np.array([texts[text] for text in table.texts], np.int32)[table.evidence])
        for table in tables
    )
    whole = concat(*numbered)
    return replace(take(whole, np.argsort(whole.start_ns, kind="stable")), texts=tuple(texts))


def _table(start_ns: I64, end_ns: I64, cause: Cause, words: list[str], exchange: I32 | None = None) -> Delays:
    """Return a table of one cause, one entry per text."""
    exchange = np.full(len(words), NOWHERE, np.int32) if exchange is None else exchange
    evidence, texts = numbered_texts(["", *words])
    return Delays(start_ns, end_ns, np.full(len(start_ns), cause, np.uint8), exchange, evidence[1:], texts)


def _idle(worked: Worked) -> Spans:
    mine = worked.ranges.phase != Pass.OPT
    work = spans.union(worked.work.start_ns, worked.work.end_ns)
    return spans.complement(work, int(worked.ranges.start_ns[mine].min()), int(worked.ranges.end_ns[mine].max()))


def _by_device(linked: Linked, cut: Segments, exchange: I64) -> Delays:
    """Name the device ops outside ranges that ran in idle time."""
    device, strings = linked.trace.device, linked.trace.strings
    foreign = (cut.op != NOWHERE) & (exchange == NOWHERE)
    words = [
        f"{strings[device.name[op]]} outside any range" if is_foreign else ""
        for op, is_foreign in zip(cut.op.tolist(), foreign.tolist(), strict=True)
    ]
    table = _table(cut.start_ns, cut.end_ns, Cause.UNKNOWN, words, exchange.astype(np.int32))
    table.cause[foreign & _loads(linked, cut.op)] = Cause.DATA_LOADING
    return table


def _loads(linked: Linked, row: I32) -> Bool:
    """Return which device rows are copies from the host; none where ``row`` is ``NOWHERE``."""
    device, strings = linked.trace.device, linked.trace.strings
    out = np.zeros(len(row), np.bool_)
    copies = np.flatnonzero(row != NOWHERE)
    copies = copies[device.kind[row[copies]] == DeviceKind.MEMCPY]
    out[copies] = ["HtoD" in strings[k] for k in device.name[row[copies]].tolist()]
    return out


def _with_exchanges(delays: Delays, ex: CommOps) -> Delays:
    """Add the communication that ran meanwhile, though nothing says that it was waited for.

    Nobody waits for a send. Of a late host's time only collectives count, as one in parallel with compute does, since
    no row tells what comes after them; the profiler's own time and work outside ranges stay what they are.
    """
    late = np.isin(delays.cause, (Cause.LAUNCH_STARVED, Cause.HOST_SYNC, Cause.DATA_LOADING, Cause.MEMORY_MANAGEMENT))
    delays = _meanwhile(delays, ex, late, ex.kind == CommKind.COLLECTIVE)
    unexplained = (delays.cause == Cause.UNKNOWN) & (delays.evidence == 0)
    return _meanwhile(delays, ex, unexplained, ex.kind != CommKind.SEND)


def _meanwhile(delays: Delays, ex: CommOps, which: Bool, usable: Bool) -> Delays:
    """Give those ``which`` have no exchange the ``usable`` ones that ran meanwhile."""
    x = np.flatnonzero(usable)
    pieces = spans.cut(delays, ex.start_ns[x], ex.end_ns[x])
    of, by = pieces.of, pieces.by
    free = which[of] & (delays.exchange[of] == NOWHERE) & (by != NOWHERE)
    exchange = delays.exchange[of].copy()
    exchange[free] = x[by[free]]
    return Delays(pieces.start_ns, pieces.end_ns, delays.cause[of], exchange, delays.evidence[of], delays.texts)


def host_reasons(graph: Graph, linked: Linked, ops: CommOps, waits: WaitSlices, threads: I64) -> Delays:
    """Return what may have blocked the host threads ``threads`` (ids); may overlap. ``waits`` in graph time."""
    trace, strings = linked.trace, linked.trace.strings
    overhead = trace.overhead
    words = [f"profiler: {strings[name]}" for name in overhead.name.tolist()]
    tables = [_table(overhead.start_ns, overhead.end_ns, Cause.PROFILER_ARTEFACT, words)]
    for table, pattern, cause in (
        (trace.calls, ALLOCATOR, Cause.MEMORY_MANAGEMENT),
        (trace.host, LOADER, Cause.DATA_LOADING),
    ):
        fitting = [k for k in np.unique(table.name).tolist() if pattern.fullmatch(strings[k])]
        mine = np.flatnonzero(np.isin(table.name, fitting) & np.isin(table.tid, threads))
        words = [strings[k] for k in table.name[mine].tolist()]
        tables.append(_table(table.start_ns[mine], table.end_ns[mine], cause, words))
    return joined(*tables, _waited(graph, linked, ops, waits, threads))


def _waited(graph: Graph, linked: Linked, ops: CommOps, waits: WaitSlices, threads: I64) -> Delays:
    """Classify waits by what was waited for: a communication, a copy from the host, or other device work."""
    strings, device, calls = linked.trace.strings, linked.trace.device, linked.trace.calls
    mine = take(waits, np.isin(graph.tid[waits.part], threads))
    source = last_source(graph, numbered(graph, mine.part), len(mine.part), (EdgeKind.SYNC,))
    by_host = (source != NOWHERE) & (graph.kind[source] == NodeKind.HOST_COMM)
    by_device = (source != NOWHERE) & ~by_host
    row = np.where(source == NOWHERE, NOWHERE, graph.row[source])
    exchange = np.full(len(row), NOWHERE, np.int32)
    for of, on_host, count in (
        (by_host, True, len(linked.trace.host.start_ns)),
        (by_device, False, len(device.start_ns)),
    ):
        exchange[of] = of_rows(ops, count, on_host=on_host)[row[of]]
    words = []
    for call, at, is_exchange in zip(
        mine.call.tolist(), row.tolist(), (by_host | (exchange != NOWHERE)).tolist(), strict=True
    ):
        by = strings[calls.name[call]] if call != NOWHERE else "wait"
        words.append(
            by if is_exchange else f"{by} waited for {strings[device.name[at]] if at != NOWHERE else 'device work'}"
        )
    out = _table(mine.start_ns + graph.epoch_ns, mine.end_ns + graph.epoch_ns, Cause.HOST_SYNC, words, exchange)
    out.cause[_loads(linked, np.where(by_device, row, NOWHERE))] = Cause.DATA_LOADING
    out.cause[by_host | (exchange != NOWHERE)] = Cause.UNKNOWN
    return out


def receive_waits(linked: Linked, comm: Communication, threads: I64) -> Delays:
    """Return host-side receives and collectives that somebody waited for on ``threads``.

    Such a row ends when its waiter returns; that one has waited since its thread last began or ended something, or
    since the row began. The graph takes fewer of these for waits (only where the next row begins within 50 us), so that
    nothing else is hidden in them.
    """
    rows = linked.trace.host
    row = comm.host_row[~comm.host_sends]
    row = row[np.isin(rows.tid[row], threads)]
    start = rows.start_ns[row].copy()
    for tid in np.unique(rows.tid[row]).tolist():
        nested = (rows.tid == tid) & ~linked.crossing
        marks = np.sort(np.append(rows.start_ns[nested], rows.end_ns[nested]))
        mine = rows.tid[row] == tid
        last = np.searchsorted(marks, rows.end_ns[row[mine]], side="left") - 1
        start[mine] = np.maximum(
            start[mine], np.where(last >= 0, marks[np.maximum(last, 0)], start[mine]) if len(marks) else start[mine]
        )
    exchange = of_rows(comm.ops, len(rows.start_ns), on_host=True)[row]
    return _table(start, rows.end_ns[row], Cause.UNKNOWN, ["wait"] * len(row), exchange)


def explained(late: Spans, otherwise: list[str], reasons: Delays) -> Delays:
    """Cut ``late`` spans by what blocked the host; ``otherwise``: the evidence of each where nothing did. O(n
    log n).
    """
    first = (Cause.PROFILER_ARTEFACT, Cause.MEMORY_MANAGEMENT, Cause.DATA_LOADING)
    groups = [np.flatnonzero(reasons.cause == cause) for cause in first]
    left = Pieces(late.start_ns, late.end_ns, np.arange(len(late.start_ns)), np.full(len(late.start_ns), NOWHERE))
    done: list[Pieces] = []
    for group in (*groups, np.flatnonzero(~np.isin(reasons.cause, first))):
        pieces = spans.cut(left, reasons.start_ns[group], reasons.end_ns[group])
        of, hit = left.of[pieces.of], pieces.by != NOWHERE
        done.append(Pieces(pieces.start_ns[hit], pieces.end_ns[hit], of[hit], group[pieces.by[hit]]))
        left = Pieces(pieces.start_ns[~hit], pieces.end_ns[~hit], of[~hit], pieces.by[~hit])
    cut = concat(*done, left)
    cut = _with_latency(_blocked_before(late, take(cut, np.argsort(cut.start_ns, kind="stable")), reasons))
    of, by = cut.of.tolist(), cut.by.tolist()
    words = [otherwise[o] if b == NOWHERE else reasons.texts[reasons.evidence[b]] for o, b in zip(of, by, strict=True)]
    out = _table(cut.start_ns, cut.end_ns, Cause.LAUNCH_STARVED, words)
    known = cut.by != NOWHERE
    out.cause[known], out.exchange[known] = reasons.cause[cut.by[known]], reasons.exchange[cut.by[known]]
    return out


def _blocked_before(late: Spans, cut: Pieces, reasons: Delays) -> Pieces:
    """Give free time to the reason in force when the device ran empty, as much as that had blocked the host before."""
    count = len(late.start_ns)
    head = cut.start_ns == late.start_ns[cut.of]
    in_force = np.full(count, NOWHERE)
    in_force[cut.of[head]] = cut.by[head]
    some = in_force != NOWHERE
    budget = np.zeros(count, np.int64)
    budget[some] = late.start_ns[some] - reasons.start_ns[in_force[some]]
    free = np.where(cut.by == NOWHERE, cut.end_ns - cut.start_ns, 0)
    before = np.cumsum(free) - free
    first = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(first, cut.of, before)
    given = np.clip(budget[cut.of] - (before - first[cut.of]), 0, free)
    return _split(cut, given, in_force[cut.of])


def _with_latency(cut: Pieces) -> Pieces:
    """Give what a launch takes right after the host was blocked, or before it is blocked inside, to that reason."""
    before = np.append(NOWHERE, cut.by)[: len(cut.by)]
    follows = np.append(False, cut.of[1:] == cut.of[:-1])[: len(cut.by)] & (before != NOWHERE)
    free = np.where(cut.by == NOWHERE, cut.end_ns - cut.start_ns, 0)
    cut = _split(cut, np.where(follows, np.minimum(free, LATENCY_NS), 0), before)
    short = np.flatnonzero((cut.by[:-1] == NOWHERE) & (cut.end_ns[:-1] - cut.start_ns[:-1] <= LATENCY_NS))
    ahead = short[cut.of[short + 1] == cut.of[short]]
    by = cut.by.copy()
    by[ahead] = by[ahead + 1]
    return Pieces(cut.start_ns, cut.end_ns, cut.of, by)


def _split(cut: Pieces, given_ns: I64, to: I64) -> Pieces:
    """Give the first ``given_ns`` of each piece to reason ``to``."""
    middle = cut.start_ns + given_ns
    parts = np.flatnonzero((given_ns > 0) & (middle < cut.end_ns))
    end = cut.end_ns.copy()
    end[parts] = middle[parts]
    out = Pieces(
        np.append(cut.start_ns, middle[parts]),
        np.append(end, cut.end_ns[parts]),
        np.append(cut.of, cut.of[parts]),
        np.append(np.where(given_ns > 0, to, cut.by), np.full(len(parts), NOWHERE)),
    )
    return take(out, np.argsort(out.start_ns, kind="stable"))
