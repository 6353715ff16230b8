"""What a device waited for while it was idle, by the edges of its graph.

From the op that ends an idle interval the walk goes back to what it started after: its launch, or the device op before it on its
stream or behind an event. A communication kernel there ran in the interval, and is the reason as long as it ran; before it counts
what that kernel started after. Where the launch came last the host was late, and ``delays`` says what it did.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I32, I64, NOWHERE, EdgeKind, Graph, Linked, NodeKind
from graphlink.pipeline.records import Spans

LATENCY_NS: Final = 20_000  # an op may start so much after what it waited for without a reason of its own
_DEVICE: Final = (EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.COLLECTIVE)
_FAR: Final = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Segments(Spans):
    """Idle time cut by reason, times absolute. ``next``: the work op that was delayed.

    ``op``: the device row that ran, or had just ended, ``NOWHERE`` for none. ``call``: the launch call that came later still, ``NOWHERE``
    if the launch was in time. Neither: nothing explains it.
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
    near = _Near.of(graph, linked, np.union1d(first, _ended_inside(graph, idle)))
    out = array("q")
    starts = np.searchsorted(near.node, first).tolist()
    for low, until, at, op in zip(idle.start_ns.tolist(), idle.end_ns.tolist(), starts, next_op.tolist(), strict=True):
        near.walk(out, low, until, at, op)
    rows = np.frombuffer(out, np.int64).reshape(-1, 5)
    start, end, op, call, following = rows[np.argsort(rows[:, 0], kind="stable")].T
    return Segments(start, end, op.astype(np.int32), call.astype(np.int32), following.astype(np.int32))


def _ended_inside(graph: Graph, idle: Spans) -> I64:
    """Return device nodes that ended in idle intervals, or with them: a walk meets no others."""
    node = np.flatnonzero(np.isin(graph.kind, (NodeKind.DEVICE_OP, NodeKind.DEVICE_DELAY)))
    end_ns = graph.end_ns[node] + graph.epoch_ns
    before = np.searchsorted(idle.start_ns, end_ns) - 1
    return np.asarray(node[(before >= 0) & (end_ns <= idle.end_ns[before])] if len(idle.start_ns) else node[:0])


@dataclass(frozen=True, slots=True)
class _Near:
    """Device nodes that walks may meet, ascending, and what each of them started after. Times absolute, lists because walks are plain
    Python; ``_FAR`` and ``NOWHERE`` where there is nothing. ``source`` points into these nodes."""

    node: I64
    start_ns: list[int]
    row: list[int]  # the device row, NOWHERE of a delay
    source: list[int]
    done_ns: list[int]  # when the source ended
    call: list[int]
    called_ns: list[int]
    returned_ns: list[int]

    @staticmethod
    def of(graph: Graph, linked: Linked, node: I64) -> _Near:
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
        return _Near(node, *(column.tolist() for column in columns))

    def walk(self, out: array[int], low: int, until: int, at: int, next_op: int) -> None:
        """Append the segments of [low, until), which ends with node ``at``: start, end, op, call, next."""
        call = NOWHERE
        while until > low:
            done, called = self.done_ns[at], self.called_ns[at]
            if called >= done and low < called < until:
                begin = max(low, done)
                reached = min(max(self.returned_ns[at] + LATENCY_NS, begin), until)
                _add(out, reached, until, NOWHERE, call, next_op)
                call = self.call[at]
                _add(out, begin, reached, NOWHERE, call, next_op)
                until = begin
            elif low < done <= until:
                at = self.source[at]
                row = self.row[at]
                began = max(low, self.start_ns[at])
                ran = until if row != NOWHERE and until - done <= LATENCY_NS else done
                _add(out, began, ran, row, call, next_op)
                _add(out, ran, until, NOWHERE, call, next_op)
                until = began
            else:
                _add(out, low, until, NOWHERE, call, next_op)
                return


def _add(out: array[int], start_ns: int, end_ns: int, *what: int) -> None:
    if start_ns < end_ns:
        out.extend((start_ns, end_ns, *what))


def _last_device(graph: Graph, node: I64) -> tuple[I64, I64]:
    """Return the device dependency of each node that ended last, and when it did (graph time); ``NOWHERE`` without any."""
    first, count = graph.first[node], graph.first[node + 1] - graph.first[node]
    source, ended = np.full(len(node), NOWHERE), np.full(len(node), _FAR)
    which = np.repeat(np.arange(len(node)), count)
    edge = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    device = np.isin(graph.edge_kind[edge], _DEVICE)
    which, edge = which[device], edge[device]
    from_ = graph.source[edge]
    end_ns = graph.end_ns[from_]
    order = np.lexsort((from_, end_ns, which))
    last = order[np.append(which[order][1:] != which[order][:-1], True)] if len(order) else order
    source[which[last]], ended[which[last]] = from_[last], end_ns[last]
    return source, ended
