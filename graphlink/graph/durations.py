"""Whole microseconds of nodes: rounded so that the sums along each thread and stream stay exact."""

from __future__ import annotations

from typing import Final

import numpy as np

from graphlink.model import I64, Graph, NodeKind
from graphlink.tables import begins, spread

CHAINED: Final = (NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_CALL, NodeKind.HOST_GAP)  # follow each other on their thread

_ON_HOST = np.zeros(len(NodeKind), np.bool_)
_ON_HOST[[*CHAINED, NodeKind.HOST_ASYNC, NodeKind.END]] = True


def on_host(graph: Graph) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Mark the nodes that are host nodes (``is_cpu_op``); HOST_COMM stands for a device-side op and is none."""
    return _ON_HOST[graph.kind]


def cost_ns(graph: Graph) -> I64:
    """Return the cost of each node in a replay, one int64 ns per node: ``duration_ns``, of device nodes with their start delay."""
    return graph.duration_ns + np.where(on_host(graph), 0, graph.start_delay_ns)


def lanes(graph: Graph) -> tuple[I64, I64]:
    """Return where each node runs: (device or ``NOWHERE``, thread or stream); HOST_COMM has the place (-1, -1) of its own."""
    host = on_host(graph)
    beside = graph.kind == NodeKind.HOST_COMM
    major = np.where(beside, -1, np.where(host, 0, graph.device))
    minor = np.where(beside, -1, np.where(host, graph.tid, graph.stream))
    return major, minor


def micros(graph: Graph) -> I64:
    """Return ``duration_micros`` of each node: what is rounded off one node is carried to the next on its thread or stream.

    After every node, the sum over its thread or stream is the nearest whole microsecond to the sum in ns.
    """
    major, minor = lanes(graph)
    host = on_host(graph)
    order = np.lexsort((minor, major, host))  # stable: node order stays inside a thread or stream
    total = np.cumsum(cost_ns(graph)[order])
    first = begins(major[order], minor[order], host[order])
    starts = np.flatnonzero(first)
    before = np.where(starts > 0, total[starts - 1], 0) if len(starts) else starts
    within = total - np.repeat(before, np.diff(np.append(starts, len(order))))
    rounded = (within + 500) // 1000
    return spread(len(order), order, np.where(first, rounded, rounded - np.roll(rounded, 1)))
