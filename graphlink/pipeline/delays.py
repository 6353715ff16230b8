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
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from graphlink import spans
from graphlink.causes import Cause, recorded_causes
from graphlink.choices import LATENCY_NS
from graphlink.graph.waits import ON_DEVICE, WaitSlices, last_source, waited_for
from graphlink.graph_model import Graph, NodeKind
from graphlink.model import I32, I64, NOWHERE, Bool, CommKind, CommOps, Communication, DeviceKind, Linked
from graphlink.patterns import containing
from graphlink.pipeline.between_ranks import of_rows
from graphlink.pipeline.named_ranges import Entries
from graphlink.pipeline.records import Delays, Pass
from graphlink.pipeline.work import Worked
from graphlink.read.columns import Strings
from graphlink.spans import NEVER, Neighbours, Pieces, Spans
from graphlink.steps import step_marks
from graphlink.tables import MOST, begins, concat, least, nowhere, spread, take, take_as, tuples, values_at

# what blocks a host, in the order in which it counts; waits come after these
_FIRST_REASONS: Final = (Cause.PROFILER_ARTEFACT, Cause.MEMORY_MANAGEMENT, Cause.DATA_LOADING)
_OF_LATE_HOST: Final = (Cause.LAUNCH_STARVED, Cause.HOST_SYNC, Cause.DATA_LOADING, Cause.MEMORY_MANAGEMENT)


def device_delays(
    graph: Graph, linked: Linked, worked: Worked, ops: CommOps, reasons: Delays, texts: Strings
) -> Delays:
    """Explain the idle time of a device. ``reasons``: what may have blocked its host (``host_reasons``).

    First counts communication that the next work waited for, then its late launch, then communication that just ran
    meanwhile.
    """
    device, strings = linked.trace.device, linked.trace.strings
    idle = _idle(worked)
    next_op = worked.op[np.searchsorted(device.start_ns[worked.op], idle.end_ns)]
    segments = _segments(graph, linked, idle, next_op)
    exchange = np.append(of_rows(ops, len(device.start_ns), on_host=False), NOWHERE)[segments.op]
    launched_late = (exchange == NOWHERE) & (segments.call != NOWHERE)
    delayed = take(segments, np.flatnonzero(launched_late))
    first, last = spans.continued(delayed.start_ns, delayed.end_ns, delayed.next)
    launches = texts.of_names(linked.trace.calls.name[delayed.call[last]], strings, "{} came late")
    by_host = _by_reason(Spans(delayed.start_ns[first], delayed.end_ns[last]), launches, reasons)
    by_host = while_it_ran(by_host, ops)
    by_device = _by_device(linked, take(segments, ~launched_late), exchange[~launched_late], texts)
    return replace(with_exchanges(joined(by_host, by_device), ops), texts=tuple(texts))


def host_delays(linked: Linked, entries: Entries, worked: Worked, reasons: Delays, texts: Strings) -> Delays:
    """Explain the idle time of a run without device ops: what its thread does between ranges keeps it from the next."""
    rows, marks = linked.trace.host, step_marks(linked.trace)
    outermost = (linked.parent == NOWHERE) | marks[np.maximum(linked.parent, 0)]
    outer = np.flatnonzero(outermost & ~marks & ~linked.crossing & np.isin(rows.tid, entries.tid))
    pieces = spans.cut(_idle(worked), rows.start_ns[outer], rows.end_ns[outer])
    names = texts.of_names(rows.name[outer], linked.trace.strings, "host: {}")
    otherwise = values_at(names, pieces.by, texts["host between operators"])
    return replace(_by_reason(pieces, otherwise, reasons), texts=tuple(texts))


def joined(*tables: Delays) -> Delays:
    """Put tables together, sorted by start; of equal starts those of the first table come first."""
    whole = concat(*tables)
    return take(whole, np.argsort(whole.start_ns, kind="stable"))


def _table(
    start_ns: I64, end_ns: I64, cause: I64 | Cause, evidence: I32 | I64 | int, exchange: I32 | I64 | int = NOWHERE
) -> Delays:
    whole = np.zeros(len(start_ns), np.int64)
    cause, exchange, evidence = whole + cause, whole + exchange, whole + evidence
    return Delays(start_ns, end_ns, cause.astype(np.uint8), evidence.astype(np.int32), exchange.astype(np.int32), ())


def _idle(worked: Worked) -> Spans:
    passes = worked.ranges.phase != Pass.OPT
    work = spans.union(worked.work.start_ns, worked.work.end_ns)
    return spans.complement(work, int(worked.ranges.start_ns[passes].min()), int(worked.ranges.end_ns[passes].max()))


# the walk over the edges of a device


@dataclass(frozen=True, slots=True)
class _Segments(Spans):
    """Idle time cut by reason, times absolute. ``next``: the work op that was delayed.

    ``op``: the device row that ran, or had just ended, ``NOWHERE`` for none. ``call``: the launch call that came later
    still, ``NOWHERE`` if the launch was in time. Neither: nothing explains it.
    """

    op: I32
    call: I32
    next: I32


def _segments(graph: Graph, linked: Linked, idle: Spans, next_op: I64) -> _Segments:
    """Cut ``idle`` intervals, ascending, each ended by the start of device row ``next_op``.

    O(n log n) in device ops and edges, and a step of plain Python for each op that ran, or ended, inside an interval.
    """
    ops = graph.nodes_of(NodeKind.DEVICE_OP)
    last = spread(len(linked.trace.device.start_ns), graph.row[ops], ops)[next_op]
    device = graph.nodes_of(NodeKind.DEVICE_OP, NodeKind.DEVICE_DELAY)
    # a walk meets only nodes that ended in idle intervals, or with them
    node = np.union1d(last, device[spans.holding(idle, graph.end_ns[device] + graph.epoch_ns - 1) != NOWHERE])
    starts, out = _started_after(graph, linked, node), array("q")
    places = np.searchsorted(node, last).tolist()
    rows = zip(idle.start_ns.tolist(), idle.end_ns.tolist(), places, next_op.tolist(), strict=True)
    for start_ns, end_ns, place, op in rows:
        _walk(out, starts, start_ns, end_ns, place, op)
    table = np.frombuffer(out, np.int64).reshape(-1, 5)
    start, end, op, call, following = table[np.argsort(table[:, 0], kind="stable")].T
    return _Segments(start, end, op.astype(np.int32), call.astype(np.int32), following.astype(np.int32))


def _started_after(graph: Graph, linked: Linked, node: I64) -> list[tuple[int, ...]]:
    """Return, for device nodes that walks may meet (ascending), when each started, its device row (``NOWHERE`` of a
    delay), what it started after (a position in ``node``), when that ended, its launch call, when that was called and
    when it returned.

    Times absolute; ``NEVER`` and ``NOWHERE`` where there is nothing. Tuples, because walks are plain Python.
    """
    calls, source = linked.trace.calls, last_source(graph, node, ON_DEVICE)
    call = linked.device_call[graph.row[node]].astype(np.int64)
    columns = (
        graph.start_ns[node] + graph.epoch_ns,
        np.where(graph.kind[node] == NodeKind.DEVICE_OP, graph.row[node], NOWHERE),
        # a source that is none of these nodes ended outside all idle time: its walk ends there
        np.where(source == NOWHERE, NOWHERE, np.searchsorted(node, source)),
        np.where(source == NOWHERE, NEVER, graph.end_ns[source] + graph.epoch_ns),
        call,
        values_at(calls.start_ns, call, NEVER),
        values_at(calls.end_ns, call, NEVER),
    )
    return list(tuples(*columns))


def _walk(
    out: array[int], starts: list[tuple[int, ...]], start_ns: int, until_ns: int, place: int, next_op: int
) -> None:
    """Append the segments of [start_ns, until_ns), which ends with node ``place`` of ``starts``: start, end, op, call,
    next.
    """
    late = NOWHERE  # the launch call that came later

    def add(start: int, end: int, op: int) -> None:
        if start < end:
            out.extend((start, end, op, late, next_op))

    while until_ns > start_ns:
        _, _, source, done_ns, call, called_ns, returned_ns = starts[place]
        if called_ns >= done_ns and start_ns < called_ns < until_ns:
            begin_ns = max(start_ns, done_ns)
            reached_ns = min(max(returned_ns + LATENCY_NS, begin_ns), until_ns)
            add(reached_ns, until_ns, NOWHERE)
            late = call
            add(begin_ns, reached_ns, NOWHERE)
            until_ns = begin_ns
        elif start_ns < done_ns <= until_ns:
            place = source
            begin_ns, row, *_ = starts[place]
            begin_ns = max(start_ns, begin_ns)
            ran_until_ns = until_ns if row != NOWHERE and until_ns - done_ns <= LATENCY_NS else done_ns
            add(begin_ns, ran_until_ns, row)
            add(ran_until_ns, until_ns, NOWHERE)
            until_ns = begin_ns
        else:
            add(start_ns, until_ns, NOWHERE)
            return


def _by_device(linked: Linked, segments: _Segments, exchange: I64, texts: Strings) -> Delays:
    """Name the device ops outside ranges that ran in idle time."""
    foreign = (segments.op != NOWHERE) & (exchange == NOWHERE)
    names = linked.trace.device.name[segments.op[foreign]]
    named = texts.of_names(names, linked.trace.strings, "{} outside any range")
    cause = np.where(foreign & _loads(linked, segments.op), Cause.DATA_LOADING, Cause.UNKNOWN)
    evidence = spread(len(foreign), foreign, named, 0)
    return _table(segments.start_ns, segments.end_ns, cause, evidence, exchange)


def while_it_ran(delays: Delays, exchanges: CommOps) -> Delays:
    """Count what a wait for communication took from the host after that had ended as any other wait's."""
    done = np.clip(values_at(exchanges.end_ns, delays.exchange, MOST), delays.start_ns, delays.end_ns)
    rest = replace(
        delays,
        start_ns=done,
        cause=np.full_like(delays.cause, Cause.HOST_SYNC),
        exchange=np.full_like(delays.exchange, NOWHERE),
    )
    both = joined(replace(delays, end_ns=done), rest)
    return take(both, both.start_ns < both.end_ns)


def _loads(linked: Linked, row: I32 | I64) -> Bool:
    """Return which device rows are copies from the host; none where ``row`` is ``NOWHERE``."""
    device = linked.trace.device
    copies = (device.kind == DeviceKind.MEMCPY) & containing(linked.trace.strings, "HtoD")[device.name]
    return np.append(copies, False)[row]


def with_exchanges(delays: Delays, exchanges: CommOps) -> Delays:
    """Add the communication that ran meanwhile, though nothing says that it was waited for.

    Nobody waits for a send. Of a late host's time only collectives count, as one in parallel with compute does, since
    no row tells what comes after them; the profiler's own time and work outside ranges stay what they are. Of time that
    nothing explains only communication counts that ended before work went on: nobody waited for the rest.
    """
    collective = np.flatnonzero(exchanges.kind == CommKind.COLLECTIVE)
    delays = _meanwhile(
        delays, take_as(exchanges, collective, Spans), collective, lambda cut: np.isin(cut.cause, _OF_LATE_HOST)
    )
    around = spans.holding(Spans(delays.start_ns, delays.end_ns), exchanges.end_ns - 1)
    ended = np.flatnonzero((around != NOWHERE) & (exchanges.kind != CommKind.SEND))
    inside = Spans(np.maximum(exchanges.start_ns[ended], delays.start_ns[around[ended]]), exchanges.end_ns[ended])
    return _meanwhile(delays, inside, ended, lambda cut: (cut.cause == Cause.UNKNOWN) & (cut.evidence == 0))


def _meanwhile(delays: Delays, running: Spans, exchange: I64, which: Callable[[Delays], Bool]) -> Delays:
    """Give those ``which`` have no exchange what was ``running`` meanwhile, of each the ``exchange``."""
    cut, by = spans.cut_rows(delays, running.start_ns, running.end_ns)
    free = which(cut) & (cut.exchange == NOWHERE) & (by != NOWHERE)
    cut.exchange[free] = exchange[by[free]]
    return cut


# what blocked the host


def host_reasons(graph: Graph, linked: Linked, ops: CommOps, waits: WaitSlices, threads: I64, texts: Strings) -> Delays:
    """Return what may have blocked the host threads ``threads`` (ids); may overlap. ``waits`` in graph time."""
    trace, overhead = linked.trace, linked.trace.overhead
    profiler = texts.of_names(overhead.name, trace.strings, "profiler: {}")
    tables = [_table(overhead.start_ns, overhead.end_ns, Cause.PROFILER_ARTEFACT, profiler)]
    for cause, table, rows in recorded_causes(trace):
        own = rows[np.isin(table.tid[rows], threads)]
        named = texts.of_names(table.name[own], trace.strings)
        tables.append(_table(table.start_ns[own], table.end_ns[own], cause, named))
    return joined(*tables, _waited(graph, linked, ops, take(waits, np.isin(graph.tid[waits.part], threads)), texts))


def _waited(graph: Graph, linked: Linked, ops: CommOps, waits: WaitSlices, texts: Strings) -> Delays:
    """Classify waits by what was waited for: a communication, a copy from the host, or other device work."""
    strings, device = linked.trace.strings, linked.trace.device
    _, host_row, device_row = waited_for(graph, waits)
    exchange = np.maximum(
        values_at(of_rows(ops, len(linked.trace.host.start_ns), on_host=True), host_row),
        values_at(of_rows(ops, len(device.start_ns), on_host=False), device_row),
    )
    communicates = (host_row != NOWHERE) | (exchange != NOWHERE)
    called = values_at(linked.trace.calls.name, waits.call).tolist()
    awaited = values_at(device.name, device_row).tolist()
    words = []
    for call, name, is_exchange in zip(called, awaited, communicates.tolist(), strict=True):
        by = "wait" if call == NOWHERE else strings[call]
        of = strings[name] if name != NOWHERE else "communication" if is_exchange else "device work"
        words.append(f"{by} waited for {of}")
    cause = np.where(_loads(linked, device_row), Cause.DATA_LOADING, Cause.HOST_SYNC)
    cause[communicates] = Cause.UNKNOWN
    start, end = waits.start_ns + graph.epoch_ns, waits.end_ns + graph.epoch_ns
    return _table(start, end, cause, texts.column(words), exchange)


def receive_waits(linked: Linked, comm: Communication, threads: I64, texts: Strings) -> Delays:
    """Return host-side receives and collectives that somebody waited for on ``threads``.

    Such a row ends when its waiter returns; that one has waited since its thread last began or ended something, or
    since the row began. The graph takes fewer of these for waits (only where the next row begins within 50 us), so that
    nothing else is hidden in them.
    """
    rows = linked.trace.host
    row = comm.host_row[~comm.host_are(CommKind.SEND)]
    row = row[np.isin(rows.tid[row], threads)]
    nested = np.flatnonzero(~linked.crossing & np.isin(rows.tid, threads))
    moments = np.append(rows.start_ns[nested], rows.end_ns[nested])
    last = Neighbours.of(np.tile(rows.tid[nested], 2), moments).before(rows.tid[row], rows.end_ns[row])
    start = np.maximum(rows.start_ns[row], values_at(moments, last, NEVER))
    exchange = of_rows(comm.ops, len(rows.start_ns), on_host=True)[row]
    return _table(start, rows.end_ns[row], Cause.UNKNOWN, texts["wait"], exchange)


def _by_reason(delayed: Spans, otherwise: I32 | I64, reasons: Delays) -> Delays:
    """Cut ``delayed`` spans by what blocked the host; ``otherwise``: the evidence of each where nothing did. O(n
    log n).
    """
    groups = [np.flatnonzero(reasons.cause == cause) for cause in _FIRST_REASONS]
    groups.append(np.flatnonzero(~np.isin(reasons.cause, _FIRST_REASONS)))
    count = len(delayed.start_ns)
    whole = Pieces(delayed.start_ns, delayed.end_ns, np.arange(count), nowhere(count))
    *blocked, (left, _) = spans.shared_out(whole, [take(reasons, group) for group in groups])
    done = [replace(pieces, by=group[by]) for group, (pieces, by) in zip(groups, blocked, strict=True)]
    cut = concat(*done, left)
    cut = _with_latency(_blocked_before(delayed, take(cut, np.argsort(cut.start_ns, kind="stable")), reasons))
    evidence = np.where(cut.by == NOWHERE, otherwise[cut.of], values_at(reasons.evidence, cut.by))
    cause = values_at(reasons.cause, cut.by, Cause.LAUNCH_STARVED)
    return _table(cut.start_ns, cut.end_ns, cause, evidence, values_at(reasons.exchange, cut.by))


def _blocked_before(delayed: Spans, cut: Pieces, reasons: Delays) -> Pieces:
    """Give free time to the reason in force when the device ran empty, as much as that had blocked the host before."""
    count = len(delayed.start_ns)
    head = cut.start_ns == delayed.start_ns[cut.of]
    in_force = spread(count, cut.of[head], cut.by[head])
    blocked_ns = np.where(in_force == NOWHERE, 0, delayed.start_ns - values_at(reasons.start_ns, in_force, 0))
    free_ns = np.where(cut.by == NOWHERE, cut.end_ns - cut.start_ns, 0)
    before_ns = np.cumsum(free_ns) - free_ns
    spent_ns = before_ns - least(count, cut.of, before_ns)[cut.of]
    return _split(cut, np.clip(blocked_ns[cut.of] - spent_ns, 0, free_ns), in_force[cut.of])


def _with_latency(cut: Pieces) -> Pieces:
    """Give what a launch takes right after the host was blocked, or before it is blocked inside, to that reason."""
    before = np.append(NOWHERE, cut.by)[: len(cut.by)]
    follows = ~begins(cut.of) & (before != NOWHERE)
    free_ns = np.where(cut.by == NOWHERE, cut.end_ns - cut.start_ns, 0)
    cut = _split(cut, np.where(follows, np.minimum(free_ns, LATENCY_NS), 0), before)
    short = np.flatnonzero((cut.by[:-1] == NOWHERE) & (cut.end_ns[:-1] - cut.start_ns[:-1] <= LATENCY_NS))
    ahead = short[cut.of[short + 1] == cut.of[short]]
    cut.by[ahead] = cut.by[ahead + 1]
    return cut


def _split(cut: Pieces, given_ns: I64, reason: I64) -> Pieces:
    """Give the first ``given_ns`` of each piece to ``reason``."""
    middle = cut.start_ns + given_ns
    parts = np.flatnonzero((given_ns > 0) & (middle < cut.end_ns))
    rest = replace(take(cut, parts), start_ns=middle[parts], by=nowhere(len(parts)))
    given = replace(
        cut,
        end_ns=np.where(given_ns > 0, np.minimum(middle, cut.end_ns), cut.end_ns),
        by=np.where(given_ns > 0, reason, cut.by),
    )
    out = concat(given, rest)
    return take(out, np.argsort(out.start_ns, kind="stable"))
