"""The work that a device waited for while it was idle, by the edges of its graph.

From the op that ends an idle interval the walk goes back to what it started after: its launch, or the device op before
it on its stream or behind an event. A communication kernel there ran in the interval, and is the reason as long as it
ran; before it counts what that kernel started after. Where the launch came last the host was late, and ``delays`` says
what it did.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.choices import LATENCY_NS
from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.model import I32, I64, NOWHERE, Linked
from graphlink.spans import Spans
from graphlink.tables import counted_from

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
