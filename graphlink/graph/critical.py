"""The critical path of a replay, and what its time is made of."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec
import numpy as np

from graphlink.graph.latency import costs
from graphlink.graph.order import blocks
from graphlink.graph_model import Graph, NodeKind
from graphlink.model import I32, I64, NOWHERE, U8, Communication, Linked
from graphlink.records import Short
from graphlink.tables import among, nowhere


class ShareNs(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the critical path; they sum up to its length."""

    host: int
    compute: int
    communication: int
    copy: int
    idle: int


class Share(IntEnum):
    """The part of the critical path that the time of a node counts as."""

    HOST = 0
    COMPUTE = 1
    COMMUNICATION = 2
    COPY = 3  # copies and memsets
    IDLE = 4  # gaps, device delays and start delays


SHARES: Final = tuple(s.name.lower() for s in Share)


class CriticalChain(Short, msgspec.Struct, frozen=True):
    """The chain of nodes that a replay's end hangs on, first node first: each was delayed by the one before it.

    All columns have one entry per node of the path. ``cost_ns``: from the end of the node before to its own,
    ``late_ns`` of it before its work began: launch latency and start delay. ``dependency`` is the edge that delayed it,
    a position in ``Graph.source``, and ``edge`` its ``EdgeKind``; both are ``NOWHERE`` for the first node. ``share_ns``
    sums up to ``length_ns``.
    """

    node: I32
    cost_ns: I64
    late_ns: I64
    edge: I32
    dependency: I64
    share: U8
    length_ns: int
    share_ns: dict[str, int]
    gap_ns: int  # host gaps on the path
    delay_ns: int  # device delay nodes and start delays on the path

    @property
    def gap_share(self) -> float:
        """Return the share of host gaps in the path, which no op explains."""
        return share(self.gap_ns, self.length_ns)

    @property
    def delay_share(self) -> float:
        """Return the share of device delays and start delays in the path, which nothing explains."""
        return share(self.delay_ns, self.length_ns)


def cost_ns(graph: Graph) -> I64:
    """Return the cost of each node in a replay, one int64 ns per node: ``duration_ns``, of device nodes with their
    start delay.
    """
    return graph.cost_ns


def share(part: int, total: int) -> float:
    """Return the share of ``part`` as files have it; 0 of nothing."""
    return round(part / total, 6) if total else 0.0


def critical_path(graph: Graph, end_ns: I64, cost_ns: I64, shares: U8) -> CriticalChain:
    """Walk back from the node that ends last, always to the dependency that delayed the node longest: that ended last,
    a launch with its latency.

    ``end_ns`` (of a replay), ``cost_ns`` and ``shares`` have one entry per node, times in ns.

    Of several the one that stands last is taken, so that the path is the same from run to run. Linear in nodes and
    edges.
    """
    return path_by_lags(graph, end_ns, costs(graph, end_ns, cost_ns)[1], shares)


def path_by_lags(graph: Graph, end_ns: I64, lag_ns: I64, shares: U8) -> CriticalChain:
    """Find the critical path as ``critical_path`` does, with the lag of each edge."""
    held = held_by(graph.first, graph.source, end_ns, lag_ns)
    before = np.append(graph.source, NOWHERE)[held].data  # of NOWHERE the last; a list would take five times the memory
    path: list[int] = []
    at = int(np.flatnonzero(end_ns == end_ns.max())[-1]) if len(end_ns) else NOWHERE
    while at != NOWHERE:
        path.append(at)
        at = before[at]
    node = np.array(path[::-1], np.int32)
    dependency = held[node]
    cost, share, kind = np.diff(end_ns[node], prepend=0), shares[node], graph.kind[node]
    delay = cost - graph.duration_ns[node]
    by_share = {s.name.lower(): int((cost - delay)[share == s].sum()) for s in Share}
    by_share[Share.IDLE.name.lower()] += int(delay.sum())
    edge = np.append(NOWHERE, graph.edge_kind[dependency[1:]])[: len(node)].astype(np.int32)
    return CriticalChain(
        node=node,
        cost_ns=cost,
        late_ns=delay,
        edge=edge,
        dependency=dependency,
        share=share,
        length_ns=int(cost.sum()),
        share_ns=by_share,
        gap_ns=int(cost[kind == NodeKind.HOST_GAP].sum()),
        delay_ns=int(np.where(kind == NodeKind.DEVICE_DELAY, cost, delay).sum()),
    )


def held_by(first: I64, source: I32, end_ns: I64, lag_ns: I64 | None = None) -> I64:
    """Return for every node the edge (CSR by target) from the dependency that ended last (with its lag), of several the
    last one; ``NOWHERE`` without any."""
    held = nowhere(len(first) - 1)
    for block in blocks(first):
        degree = block.degree
        some = np.flatnonzero(degree)
        if not len(some):
            continue
        low, ends = block.bounds[some], end_ns[source[block.edges]]
        if lag_ns is not None:
            ends += lag_ns[block.edges]
        is_last = ends == np.repeat(np.maximum.reduceat(ends, low), degree[some])
        last = np.maximum.reduceat(np.where(is_last, np.arange(len(ends)), NOWHERE), low)
        held[block.nodes.start + some] = block.edges.start + last
    return held


def shares(graph: Graph, linked: Linked, comm: Communication) -> U8:
    """Classify each node's own time, one ``Share`` (uint8) per node; the start delay of a device op is idle on top."""
    out = np.full(len(graph.kind), Share.HOST, np.uint8)
    out[among(graph.kind, (NodeKind.HOST_GAP, NodeKind.DEVICE_DELAY))] = Share.IDLE
    out[graph.kind == NodeKind.HOST_COMM] = Share.COMMUNICATION
    device = np.array([Share.COMPUTE, Share.COPY, Share.COPY, Share.HOST], np.uint8)[linked.trace.device.kind]
    device[comm.device_row] = Share.COMMUNICATION
    op = graph.kind == NodeKind.DEVICE_OP
    out[op] = device[graph.row[op]]
    return out
