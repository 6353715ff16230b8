"""Whole microseconds of nodes: rounded so that the sums along each thread and stream stay exact."""

from __future__ import annotations

from typing import Final

import numpy as np

from graphlink.graph_model import Graph, NodeKind
from graphlink.model import I64
from graphlink.tables import begins, spread

CHAINED: Final = (
    NodeKind.HOST_OP,
    NodeKind.HOST_PART,
    NodeKind.HOST_CALL,
    NodeKind.HOST_GAP,
)  # follow each other on their thread


def cost_ns(graph: Graph) -> I64:
    """Return the cost of each node in a replay, one int64 ns per node: ``duration_ns``, of device nodes with their
    start delay.
    """
    return graph.cost_ns


def lanes(graph: Graph) -> tuple[I64, I64]:
    """Return where each node runs: (device or 0, thread or stream); host-side communication has the place (-1, -1) of
    its own.
    """
    return np.where(graph.host, 0, graph.device), np.where(graph.host, graph.tid, graph.stream)


def micros(graph: Graph) -> I64:
    """Return ``duration_micros`` of each node: what is rounded off one node is carried to the next on its thread or
    stream.

    After every node, the sum over its thread or stream is the nearest whole microsecond to the sum in ns. Of a file: as
    written.
    """
    if graph.read is not None:
        return graph.read.duration_micros
    major, minor = lanes(graph)
    host = graph.host
    order = np.lexsort((minor, major, host))  # stable: node order stays inside a thread or stream
    total = np.cumsum(graph.cost_ns[order])
    first = begins(major[order], minor[order], host[order])
    starts = np.flatnonzero(first)
    before = np.where(starts > 0, total[starts - 1], 0) if len(starts) else starts
    within = total - np.repeat(before, np.diff(np.append(starts, len(order))))
    rounded = (within + 500) // 1000
    return spread(len(order), order, np.where(first, rounded, rounded - np.roll(rounded, 1)))
