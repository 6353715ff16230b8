"""What held back the work of a rank while its device was idle, by the edges of its graph.

From the op that ends an idle interval the walk goes back to what it started after: its launch, or the device op before it on its
stream or behind an event. A communication kernel there ran in the interval, and is the reason as long as it ran; before it counts
what that kernel started after. Where the launch came last the host was late, and ``late.py`` says what it did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.annotate.pipeline.records import Spans
from graphlink.model import I32, I64, NOWHERE, EdgeKind, Graph, Linked, NodeKind

LATENCY_NS: Final = 20_000  # an op may start so much after what it waited for without a reason of its own
_DEVICE: Final = (EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.COLLECTIVE)
_FAR: Final = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Segments:
    """Idle time cut by reason, times absolute. ``next``: the work op that was held back.

    ``op``: the device row that ran, or had just ended, ``NOWHERE`` for none. ``call``: the launch call that came later still, ``NOWHERE``
    if the launch was in time. Neither: nothing explains it.
    """

    start_ns: I64
    end_ns: I64
    op: I32
    call: I32
    next: I32


def segments(graph: Graph, linked: Linked, idle: Spans, next_op: I64) -> Segments:
    """``idle`` intervals, each ended by the start of device row ``next_op``. Each round takes all of them one dependency back.

    Cost: O(n log n), and the number of idle intervals times the communication kernels that follow each other inside one.
    """
    walk = _Walk(graph, linked, next_op)
    node_of = np.full(len(linked.trace.device.start_ns), NOWHERE, np.int64)
    ops = np.flatnonzero(graph.kind == NodeKind.DEVICE_OP)
    node_of[graph.row[ops]] = ops
    at, low, until, node = np.arange(len(next_op)), idle.start_ns, idle.end_ns, node_of[next_op]
    while len(at):  # [low, until) is open, and ``node`` is what begins at its end
        until, node = walk.back(at, low, until, node)
        on = until > low
        at, low, until, node = at[on], low[on], until[on], node[on]
    return walk.segments()


class _Walk:
    def __init__(self, graph: Graph, linked: Linked, next_op: I64) -> None:
        self.graph, self.linked, self.next_op = graph, linked, next_op
        self.call = np.full(len(next_op), NOWHERE)  # of each interval, the launch call that was found to come late
        self.parts: list[tuple[I64, ...]] = []

    def back(self, at: I64, low: I64, until: I64, node: I64) -> tuple[I64, I64]:
        """One dependency back: the new end of what is open, and the node that begins there."""
        graph, calls = self.graph, self.linked.trace.calls
        source, done = _last_device(graph, node)
        done_ns = np.where(source == NOWHERE, _FAR, done + graph.epoch_ns)
        call = self.linked.device_call[graph.row[node]]
        called = call != NOWHERE
        called_ns, returned_ns = np.full(len(at), _FAR), np.full(len(at), _FAR)
        called_ns[called], returned_ns[called] = calls.start_ns[call[called]], calls.end_ns[call[called]]

        late = np.flatnonzero((called_ns >= done_ns) & (called_ns > low) & (called_ns < until))
        begin = np.maximum(low[late], done_ns[late])
        reached = np.clip(returned_ns[late] + LATENCY_NS, begin, until[late])
        self._add(at[late], reached, until[late])
        self.call[at[late]] = call[late]
        self._add(at[late], begin, reached)

        followed = (done_ns > low) & (done_ns <= until)
        followed[late] = False
        behind = np.flatnonzero(followed)
        ran = source[behind]
        is_op = graph.kind[ran] == NodeKind.DEVICE_OP
        soon = is_op & (until[behind] - done_ns[behind] <= LATENCY_NS)
        op = np.where(is_op, graph.row[ran], NOWHERE)
        began = np.maximum(low[behind], graph.start_ns[ran] + graph.epoch_ns)
        self._add(at[behind], began, np.where(soon, until[behind], done_ns[behind]), op=op)
        self._add(at[behind], np.where(soon, until[behind], done_ns[behind]), until[behind])

        closed = ~followed
        closed[late] = False
        self._add(at[closed], low[closed], until[closed])
        new_until, new_node = low.copy(), node.copy()
        new_until[late] = begin
        new_until[behind], new_node[behind] = began, ran
        return new_until, new_node

    def _add(self, at: I64, start_ns: I64, end_ns: I64, *, op: I64 | None = None) -> None:
        nothing = np.full(len(at), NOWHERE)
        some = start_ns < end_ns
        self.parts.append(
            (
                start_ns[some],
                end_ns[some],
                (nothing if op is None else op)[some],
                self.call[at[some]],
                self.next_op[at[some]],
            )
        )

    def segments(self) -> Segments:
        columns = [np.concatenate(c) for c in zip(*self.parts, strict=True)] if self.parts else [np.zeros(0, np.int64)] * 5
        order = np.argsort(columns[0], kind="stable")
        start, end, op, call, following = (c[order] for c in columns)
        return Segments(start, end, op.astype(np.int32), call.astype(np.int32), following.astype(np.int32))


def _last_device(graph: Graph, node: I64) -> tuple[I64, I64]:
    """The device dependency of each node that ended last, and when it did (graph time); ``NOWHERE`` without any."""
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
