"""Puts host nodes, device ops, delays and all edges into one ``Graph``."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from graphlink.depend.device import DeviceSide, collective_order
from graphlink.depend.edges import Edges, Unordered, number
from graphlink.depend.host import HostSide
from graphlink.depend.reject import Dependencies, next_operator, operator_after
from graphlink.errors import InputError
from graphlink.graph_model import (
    OF_HOST_ROWS,
    ON_HOST,
    PART,
    SCHEMA_VERSION,
    EdgeKind,
    Graph,
    Metadata,
    NodeKind,
    NodeRows,
    NodeType,
    SyncCalls,
)
from graphlink.model import (
    I32,
    I64,
    NOWHERE,
    U8,
    Bool,
    CommKind,
    Communication,
    DeviceKind,
    DeviceRows,
    FoundBy,
    Linked,
    Trace,
)
from graphlink.records import first_few
from graphlink.tables import marked, nowhere, numbered_texts, places, spread, stacked, take
from graphlink.version import __version__

_FIXED: Final = {NodeKind.HOST_GAP: "host gap", NodeKind.DEVICE_DELAY: "device delay", NodeKind.END: "end"}


class _Parts(msgspec.Struct, frozen=True):
    """The parts of a graph, and provisional node numbers.

    Host nodes come first, then asynchronous rows, host-side communication from ``comm_at``, device ops, delays, and the
    end.
    """

    linked: Linked
    comm: Communication
    found: Dependencies
    host: HostSide
    device: DeviceSide
    comm_at: int
    device_at: int
    delay_at: int
    end: int
    async_row: I32  # crossing host rows
    async_of: I32  # a host row: its provisional node, NOWHERE if it nests


def assemble(linked: Linked, comm: Communication, found: Dependencies, host: HostSide, device: DeviceSide) -> Graph:
    """Put nodes into id order with their edges, CSR by target. Cost: O(n log n).

    Raises InputError on a cycle, which it prints node by node with edge kinds.
    """
    x = _parts(linked, comm, found, host, device)
    edges = Edges.join([*_host_edges(x), *_device_edges(x), *_sync_edges(x)])
    columns = _columns(x)
    edges = Edges.join([edges, *_to_end(columns, x, edges)])
    node = np.arange(x.end + 1)
    asynchronous = (node >= x.comm_at - len(x.async_row)) & (node < x.comm_at)
    # a row that an op began comes before what follows in the op: it begins late else where the host has one slot
    rank = np.select([columns["kind"] == NodeKind.END, asynchronous, node < x.device_at], [3, 0, 1], 2)
    try:
        order, columns["start_ns"] = number(columns["start_ns"], rank * (x.end + 1) + node, edges)
    except Unordered as cycle:
        raise _circle(x, columns, edges, cycle.nodes) from None
    new = places(order, len(order))
    source, target = new[edges.source], new[edges.target]
    by_target, is_sync = np.lexsort((source, target)), edges.kind == EdgeKind.SYNC
    c = {name: columns.pop(name)[order] for name in [*columns]}  # one after the other, as each is as large as the graph
    kind, row = c["kind"].astype(np.uint8), c["row"].astype(np.int32)
    name, strings = names(linked.trace, kind, row)
    return Graph(
        metadata=Metadata(SCHEMA_VERSION, __version__, x.host.start_ns),
        strings=strings,
        name=name,
        type=np.full(len(kind), NodeType.COMP, np.int32),
        host=ON_HOST[kind],
        start_ns=c["start_ns"] - x.host.start_ns,
        end_ns=np.maximum(c["end_ns"], c["start_ns"]) - x.host.start_ns,
        duration_ns=c["duration_ns"],
        self_ns=c["self_ns"],
        wait_ns=c["wait_ns"],
        wake_ns=c["wake_ns"],
        start_delay_ns=c["start_delay_ns"],
        launch_latency_ns=c["launch_latency_ns"],
        overlap_ns=c["overlap_ns"],
        tid=c["tid"],
        device=c["device"],
        stream=c["stream"],
        caller=np.append(new, NOWHERE)[c["caller"]].astype(np.int32),
        first=np.searchsorted(target[by_target], np.arange(len(order) + 1)).astype(np.int64),
        source=source[by_target].astype(np.int32),
        edge_kind=edges.kind[by_target],
        rows=NodeRows(
            kind=kind,
            row=row,
            found_by=edges.found_by[by_target],
            sync_calls=_calls_of(_sync_calls(x).renumbered(new), len(new), source[is_sync], target[is_sync]),
            linked=linked,
        ),
    )


def _calls_of(calls: SyncCalls, nodes: int, source: I64, target: I64) -> SyncCalls:
    """Return the calls of the ``sync`` edges between ``nodes`` nodes that are there: findings that were rejected have
    none."""
    edge = calls.target.astype(np.int64) * nodes + calls.source
    return take(calls, np.isin(edge, target * nodes + source))


def _circle(x: _Parts, columns: dict[str, I64], edges: Edges, nodes: list[int]) -> InputError:
    kind_of = {
        (int(a), int(b)): EdgeKind(int(k)).name.lower()
        for a, b, k in zip(edges.source, edges.target, edges.kind, strict=True)
    }
    trace = x.linked.trace
    names = {
        NodeKind.DEVICE_OP: trace.device.name,
        NodeKind.DEVICE_DELAY: trace.device.name,
        NodeKind.HOST_CALL: trace.calls.name,
    }

    def told(node: int) -> str:
        kind, row = NodeKind(int(columns["kind"][node])), int(columns["row"][node])
        name = trace.strings[names.get(kind, trace.host.name)[row]][:40] if row != NOWHERE else ""
        return f"{kind.name.lower()} {name} at {(int(columns['start_ns'][node]) - x.host.start_ns) / 1000:.3f} us"

    steps = [f"{told(a)} -{kind_of[a, b]}->" for a, b in zip(nodes, nodes[1:] + nodes[:1], strict=True)]
    return InputError(
        f"the dependencies of {len(nodes)} nodes go round in a circle",
        path=trace.path,
        where=first_few(steps, 6, " "),
        todo="the recorded times contradict each other there: record again, or cut the place out with --step",
    )


def _parts(linked: Linked, comm: Communication, found: Dependencies, host: HostSide, device: DeviceSide) -> _Parts:
    async_row = np.flatnonzero(linked.crossing).astype(np.int32)
    asynchronous = len(host.nodes.kind)
    comm_at = asynchronous + len(async_row)
    device_at = comm_at + len(comm.host_row)
    delay_at = device_at + len(linked.trace.device.start_ns)
    end = delay_at + len(device.delays.row)
    async_of = spread(len(linked.crossing), async_row, asynchronous + np.arange(len(async_row), dtype=np.int32))
    return _Parts(linked, comm, found, host, device, comm_at, device_at, delay_at, end, async_row, async_of)


def _node_of_row(x: _Parts, row: I32) -> I32:
    """Return the node of each host row itself."""
    element = x.host.elements.of_row[row]
    return np.where(element != NOWHERE, np.append(x.host.nodes.first, NOWHERE)[element], x.async_of[row])


def _host_edges(x: _Parts) -> list[Edges]:
    nodes, sleeps = x.host.nodes, x.host.sleeps
    i = np.arange(len(nodes.kind) - 1)
    chained = i[nodes.tid[1:] == nodes.tid[:-1]] if len(i) else i
    woken = np.flatnonzero(nodes.sleep != NOWHERE)
    sleep = nodes.sleep[woken]
    nothing = nowhere(len(woken), np.int32)
    waker = nodes.carrying(nodes.axis.of(sleeps.by_tid[sleep], sleeps.release_ns[sleep]), nothing)
    forward, backward = x.host.autograd
    asked = x.host.begun
    with_thread = x.async_row[nodes.axis.has(asked.tid[x.async_row])]
    beginner = nodes.carrying(
        nodes.axis.of(asked.tid[with_thread], asked.at_ns[with_thread]), nowhere(len(with_thread), np.int32)
    )
    begun = (
        nodes.start_ns[beginner] <= asked.at_ns[with_thread]
    )  # a row may begin while its thread sleeps, before its first node
    beginner, with_thread = beginner[begun], with_thread[begun]
    handed = asked.elsewhere[with_thread]
    comm_of = spread(
        len(asked.tid) + 1, x.comm.host_row, x.comm_at + np.arange(len(x.comm.host_row))
    )  # the last entry is of NOWHERE
    run = x.host.run
    asker = nodes.carrying(nodes.axis.of(run.by_tid, run.asked_ns), nowhere(len(run.row), np.int32))
    queued = np.flatnonzero((comm_of[:-1] != NOWHERE) & (comm_of[asked.behind] != NOWHERE))
    return [
        Edges.of(EdgeKind.HOST, chained, chained + 1),
        Edges.of(EdgeKind.THREAD, waker, woken),
        Edges.of(EdgeKind.THREAD, _node_of_row(x, forward), _node_of_row(x, backward)),
        Edges.of(EdgeKind.HOST, beginner[~handed], x.async_of[with_thread[~handed]]),
        Edges.of(EdgeKind.THREAD, beginner[handed], x.async_of[with_thread[handed]]),
        Edges.of(EdgeKind.THREAD, asker, x.async_of[run.row]),
        Edges.of(EdgeKind.LAUNCH, x.async_of[x.comm.host_row], x.comm_at + np.arange(len(x.comm.host_row))),
        Edges.of(EdgeKind.COLLECTIVE, comm_of[asked.behind[queued]], comm_of[queued]),
    ]


def _device_edges(x: _Parts) -> list[Edges]:
    """Return the edges of what a device op depends on; the delays that begin with the dependencies of an op have the
    same ones.
    """
    side, late, device = x.device, x.device.delays, x.linked.trace.device
    launched, followed = np.flatnonzero(x.host.launcher != NOWHERE), np.flatnonzero(side.order.before != NOWHERE)
    heads = np.flatnonzero(late.heads)[::-1]
    head = spread(
        len(device.start_ns), late.row[heads], x.delay_at + heads
    )  # an op: the delay that begins with its dependencies

    def both(kind: EdgeKind, source: I64 | I32, op: I64 | I32, bits: U8 | int = 0) -> list[Edges]:
        delayed = head[op] != NOWHERE
        again = bits if isinstance(bits, int) else bits[delayed]
        return [
            Edges.of(kind, source, x.device_at + op, bits),
            Edges.of(kind, source[delayed], head[op[delayed]], again),
        ]

    number, stream = _places(device)

    def same(a: I64 | I32, b: I64 | I32) -> Bool:
        return np.asarray((number[a] == number[b]) & (stream[a] == stream[b]))

    def after(source: I64 | I32, op: I64 | I32, bits: U8) -> list[Edges]:
        in_stream, node = same(source, op), x.device_at + source.astype(np.int64)
        kinds = (EdgeKind.STREAM, in_stream), (EdgeKind.EVENT, ~in_stream)
        return [edges for kind, of in kinds for edges in both(kind, node[of], op[of], bits[of])]

    touching = np.flatnonzero(late.after != NOWHERE)
    released = np.flatnonzero(late.releases != NOWHERE)
    ender = late.releases[released]
    earlier, later = collective_order(x.linked, x.comm)
    own, own_op = same(late.row[late.after[touching]], late.row[touching]), same(late.row[ender], released)
    return [
        *both(EdgeKind.LAUNCH, x.host.launcher[launched], launched),
        *after(side.order.before[followed], followed, np.zeros(len(followed), np.uint8)),
        *after(side.events.source, side.events.device_op, side.events.found_by),
        Edges.of(EdgeKind.STREAM, x.delay_at + late.after[touching][own], x.delay_at + touching[own]),
        Edges.of(
            EdgeKind.EVENT, x.delay_at + late.after[touching][~own], x.delay_at + touching[~own], FoundBy.INFERRED
        ),
        Edges.of(EdgeKind.STREAM, x.delay_at + ender[own_op], x.device_at + released[own_op]),
        Edges.of(EdgeKind.EVENT, x.delay_at + ender[~own_op], x.device_at + released[~own_op], FoundBy.INFERRED),
        Edges.of(EdgeKind.COLLECTIVE, x.device_at + earlier, x.device_at + later),
    ]


def _places(device: DeviceRows) -> tuple[I64, I64]:
    """Return device and stream of the nodes of device rows: -1 where the host was called, which is on none."""
    on_host = device.kind == DeviceKind.HOST
    return np.where(on_host, -1, device.device), np.where(on_host, -1, device.stream)


def _sync_edges(x: _Parts) -> list[Edges]:
    found, host = x.found, x.host
    cut = np.flatnonzero(host.part[found.host.call] != NOWHERE)
    waits = host.comm_waits
    spun = host.spins
    axis, device = host.nodes.axis, x.linked.trace.device
    polled_ns = np.maximum(host.elements.end_ns[spun.blocked.element], device.end_ns[spun.source])
    then = operator_after(x.linked, axis.tids[axis.thread(spun.ended_ns)], polled_ns)
    known, early = then != NOWHERE, spun.before != NOWHERE
    no_operator = ~np.isin(found.host.source, found.sync_source) & (host.part[found.host.call] == NOWHERE)
    to_end = found.host.source[no_operator]
    return [
        Edges.of(
            EdgeKind.SYNC, x.device_at + found.sync_source, _node_of_row(x, found.sync_target), found.sync_found_by
        ),
        Edges.of(
            EdgeKind.SYNC,
            x.device_at + found.host.source[cut],
            host.part[found.host.call[cut]],
            found.host.found_by[cut],
        ),
        Edges.of(EdgeKind.SYNC, x.comm_at + waits.comm, host.nodes.opening(waits.blocked.until_ns), FoundBy.INFERRED),
        Edges.of(EdgeKind.SYNC, x.device_at + spun.source, host.nodes.opening(spun.ended_ns), FoundBy.INFERRED),
        Edges.of(
            EdgeKind.SYNC,
            x.device_at + spun.before[early],
            host.nodes.opening(spun.blocked.until_ns[early]),
            FoundBy.INFERRED,
        ),
        Edges.of(EdgeKind.SYNC, x.device_at + spun.source[known], _node_of_row(x, then[known]), FoundBy.INFERRED),
        Edges.of(EdgeKind.SYNC, x.device_at + to_end, np.full(len(to_end), x.end), found.host.found_by[no_operator]),
    ]


def _sync_calls(x: _Parts) -> SyncCalls:
    """Return the calls behind ``sync`` edges, between provisional nodes: to the part after the cut, else to the next
    operator or to ``end``."""
    call = x.found.host.call
    target = x.host.part[call].copy()
    whole = np.flatnonzero(target == NOWHERE)
    row = next_operator(x.linked, call[whole])
    known = row != NOWHERE
    target[whole] = x.end
    target[whole[known]] = _node_of_row(x, row[known])
    return SyncCalls((x.device_at + x.found.host.source).astype(np.int32), target, call)


def _to_end(columns: dict[str, I64], x: _Parts, edges: Edges) -> list[Edges]:
    """Return the edges to ``end``, which follows every leaf: ``host`` from its thread, ``thread`` from others, ``sync``
    from device ops.
    """
    leaves = np.flatnonzero(~marked(x.end, edges.source))
    host = leaves[leaves < x.comm_at]
    own = columns["tid"][host] == columns["tid"][x.end]
    device = leaves[leaves >= x.comm_at]
    return [
        Edges.of(EdgeKind.HOST, host[own], np.full(int(own.sum()), x.end)),
        Edges.of(EdgeKind.THREAD, host[~own], np.full(int((~own).sum()), x.end)),
        Edges.of(EdgeKind.SYNC, device, np.full(len(device), x.end)),
    ]


def _columns(x: _Parts) -> dict[str, I64]:
    """Return the node columns by provisional node."""
    trace, nodes, late, begun = x.linked.trace, x.host.nodes, x.device.delays, x.host.begun
    device, rows, comm_row, async_row = trace.device, trace.host, x.comm.host_row, x.async_row
    counts = (len(nodes.kind), len(async_row), len(comm_row), len(device.start_ns), len(late.row), 1)

    def column(
        host: I64 | U8 | int = 0,
        crossing: I64 | I32 | int = 0,
        comm: I64 | I32 | int = 0,
        ops: I64 | I32 | int = 0,
        delays: I64 | I32 | int = 0,
        end: int = 0,
    ) -> I64:
        return stacked(counts, (host, crossing, comm, ops, delays, end))

    row, end_ns = _host_rows(x)
    ended_ns = x.host.comm_waits.ended_ns
    comm_ns = np.where(x.comm.host_are(CommKind.SEND), 0, np.maximum(ended_ns - begun.start_ns, 0)[comm_row])
    order, (number, stream) = x.device.order, _places(device)
    kinds = (NodeKind.HOST_ASYNC, NodeKind.HOST_COMM, NodeKind.DEVICE_OP, NodeKind.DEVICE_DELAY, NodeKind.END)
    return {
        "kind": column(nodes.kind, *kinds),
        "row": column(row, async_row, comm_row, np.arange(len(device.start_ns)), late.row, NOWHERE),
        "start_ns": column(
            nodes.start_ns,
            begun.start_ns[async_row],
            begun.start_ns[comm_row],
            device.start_ns,
            late.start_ns,
            x.host.end_ns,
        ),
        "end_ns": column(end_ns, ended_ns[async_row], ended_ns[comm_row], device.end_ns, late.end_ns, x.host.end_ns),
        "duration_ns": column(
            nodes.duration_ns, comm=comm_ns, ops=order.end_ns - device.start_ns, delays=late.end_ns - late.start_ns
        ),
        "self_ns": column(nodes.self_ns),
        "wait_ns": column(nodes.wait_ns),
        "wake_ns": column(x.host.wake_ns),
        "start_delay_ns": column(comm=begun.delay_ns(ended_ns)[comm_row], ops=late.start_delay_ns),
        "launch_latency_ns": column(ops=x.device.latency_ns, delays=x.device.delay_latency_ns),
        "overlap_ns": column(ops=order.overlap_ns + (0 if device.cut_ns is None else device.cut_ns)),
        "tid": column(nodes.tid, rows.tid[async_row], end=_main_thread(x)),
        "device": column(comm=-1, ops=number, delays=number[late.row]),
        "stream": column(comm=-1, ops=stream, delays=stream[late.row]),
        "caller": _callers(x),
    }


def _host_rows(x: _Parts) -> tuple[I64, I64]:
    """Return of each host node its row, of the calls or of the host, and when it ended, its parts included."""
    nodes, elements = x.host.nodes, x.host.elements
    element, is_call = nodes.element, nodes.kind == NodeKind.HOST_CALL
    row = np.where(is_call, np.append(elements.call, NOWHERE)[element], np.append(elements.row, NOWHERE)[element])
    end_ns = nodes.until_ns.copy()
    own = (nodes.kind == NodeKind.HOST_OP) | is_call
    end_ns[own] = np.maximum(elements.end_ns[element[own]], nodes.start_ns[own])
    return row, end_ns


def _callers(x: _Parts) -> I64:
    """Return the callers: host parent, or the op whose call launched it; provisional nodes, NOWHERE where there is
    none.
    """
    nodes, el, linked = x.host.nodes, x.host.elements, x.linked
    out = nowhere(x.end + 1)
    own = np.flatnonzero(nodes.kind == NodeKind.HOST_OP)
    parent = el.parent[nodes.element[own]]
    out[own[parent != NOWHERE]] = nodes.first[parent[parent != NOWHERE]]
    part = np.flatnonzero(nodes.kind == NodeKind.HOST_PART)
    out[part] = nodes.first[nodes.element[part]]
    out[x.comm_at : x.device_at] = x.async_of[x.comm.host_row]
    launched = np.flatnonzero(linked.device_call != NOWHERE)
    out[x.device_at + launched] = nodes.first[el.of_call[linked.device_call[launched]]]
    out[x.delay_at : x.end] = out[x.device_at + x.device.delays.row]
    return out


def _main_thread(x: _Parts) -> int:
    """Return the thread that has the process's id, else the one with most nodes (the lowest id of equals)."""
    trace, nodes = x.linked.trace, x.host.nodes
    if trace.pid is not None and trace.pid in nodes.axis.tids:
        return int(trace.pid)
    if not len(nodes.tid):
        return int(trace.host.tid[0]) if len(trace.host.tid) else 0
    tids, counts = np.unique(nodes.tid, return_counts=True)
    return int(tids[np.argmax(counts)])


def names(trace: Trace, kind: U8, row: I32) -> tuple[I32, tuple[str, ...]]:
    """Return the name of each node, by ``NodeKind`` and row as in ``Graph``, as a position among texts that differ.
    Linear.
    """
    raw: I64 = np.zeros(len(kind), np.int64)
    for kinds, column in (
        (OF_HOST_ROWS, trace.host.name),
        ((NodeKind.HOST_CALL,), trace.calls.name),
        ((NodeKind.DEVICE_OP,), trace.device.name),
    ):
        mine = np.isin(kind, kinds)
        raw[mine] = column[row[mine]]
    for k, fixed in enumerate(_FIXED):
        raw[kind == fixed] = len(trace.strings) + k
    raw = 2 * raw + (kind == NodeKind.HOST_PART)
    strings = (*trace.strings, *_FIXED.values())
    used = np.flatnonzero(marked(2 * len(strings), raw))
    number, texts = numbered_texts(strings[k >> 1] + PART * (k & 1) for k in used.tolist())
    return spread(2 * len(strings), used, number)[raw], texts
