"""The critical path of a replay, and what its time is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from graphlink.model import I32, I64, NOWHERE, U8, Communication, DeviceKind, EdgeKind, Graph, Linked, NodeKind


class Share(IntEnum):
    """What the time of a node counts as."""

    HOST = 0
    COMPUTE = 1
    COMMUNICATION = 2
    COPY = 3  # copies and memsets
    IDLE = 4  # gaps, device delays and start delays


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The chain of nodes that a replay's end hangs on, first node first: each was held back by the one before it.

    All columns have one entry a node of the path. ``dependency`` is the edge that held it back, a position in ``Graph.source``, and
    ``edge`` its ``EdgeKind``; both are ``NOWHERE`` for the first node. ``share_ns`` sums up to ``length_ns``.
    """

    node: I32
    edge: I32
    dependency: I64
    share: U8
    length_ns: int
    share_ns: dict[str, int]
    gap_ns: int  # host gaps on the path
    delay_ns: int  # device delay nodes and start delays on the path


def critical_path(graph: Graph, end_ns: I64, cost_ns: I64, shares: U8) -> CriticalPath:
    """Walks back from the node that ends last (``end_ns`` of a replay), always to the dependency that ended last.

    Of several the one that stands last is taken, so that the path is the same from run to run. Linear in nodes and edges.
    """
    held = _held_by(graph, end_ns)
    before = np.where(held == NOWHERE, NOWHERE, graph.source[held] if len(graph.source) else NOWHERE).tolist()
    nodes: list[int] = []
    at = int(np.flatnonzero(end_ns == end_ns.max())[-1]) if len(end_ns) else NOWHERE
    while at != NOWHERE:
        nodes.append(at)
        at = before[at]
    path = np.array(nodes[::-1], np.int32)
    return _summed(graph, path, held[path], cost_ns, shares)


def _held_by(graph: Graph, end_ns: I64) -> I64:
    """Of every node, the edge from the dependency that ended last (of several the last one); ``NOWHERE`` without dependencies."""
    held = np.full(len(graph.kind), NOWHERE, np.int64)
    some = np.flatnonzero(np.diff(graph.first))
    if not len(some):
        return held
    low = graph.first[some]
    ends = end_ns[graph.source]
    last = np.maximum.reduceat(ends, low)
    edges = np.where(ends == np.repeat(last, np.diff(np.append(low, len(ends)))), np.arange(len(ends)), NOWHERE)
    held[some] = np.maximum.reduceat(edges, low)
    return held


def _summed(graph: Graph, path: I32, dependency: I64, cost_ns: I64, shares: U8) -> CriticalPath:
    cost, share, kind = cost_ns[path], shares[path], graph.kind[path]
    delay = np.where(kind == NodeKind.DEVICE_OP, graph.start_delay_ns[path], 0)
    by_share = {s.name.lower(): int((cost - delay)[share == s].sum()) for s in Share}
    by_share[Share.IDLE.name.lower()] += int(delay.sum())
    edge = np.full(len(path), NOWHERE, np.int32)
    edge[1:] = graph.edge_kind[dependency[1:]]
    return CriticalPath(
        node=path,
        edge=edge,
        dependency=dependency,
        share=share,
        length_ns=int(cost.sum()),
        share_ns=by_share,
        gap_ns=int(cost[kind == NodeKind.HOST_GAP].sum()),
        delay_ns=int(cost[kind == NodeKind.DEVICE_DELAY].sum() + delay.sum()),
    )


def shares(graph: Graph, linked: Linked, comm: Communication) -> U8:
    """What each node's own time counts as, one ``Share`` a node (the start delay of a device op is idle on top)."""
    out = np.full(len(graph.kind), Share.HOST, np.uint8)
    out[np.isin(graph.kind, (NodeKind.HOST_GAP, NodeKind.DEVICE_DELAY))] = Share.IDLE
    out[graph.kind == NodeKind.HOST_COMM] = Share.COMMUNICATION
    device = np.full(len(linked.trace.device.kind), Share.COPY, np.uint8)
    device[linked.trace.device.kind == DeviceKind.KERNEL] = Share.COMPUTE
    device[comm.device_row] = Share.COMMUNICATION
    op = graph.kind == NodeKind.DEVICE_OP
    out[op] = device[graph.row[op]]
    return out


def edge_name(kind: int) -> str | None:
    """The contract's word for an ``EdgeKind``; None for ``NOWHERE``."""
    return None if kind == NOWHERE else EdgeKind(kind).name.lower()
