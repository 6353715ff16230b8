"""How much later each node and each edge of a replay could be without anything ending later."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from graphlink.model import I64, Graph

NEVER = np.iinfo(np.int64).max // 4  # a loss that nothing reaches; sums of a few of them stay inside int64


BLOCK = 1 << 15  # few enough numbers to stay in the processor's cache


@dataclass(frozen=True, slots=True)
class Slack:
    """Slack in a replay, all int64 ns. ``start_ns`` and ``end_ns`` of each node are those of the replay.

    ``node_ns`` (one entry a node): latest minus earliest end. ``gap_ns`` (one entry an edge): from the end of the source to the start of
    the target. ``edge_ns`` (one entry an edge): by how much the longest path through the edge is shorter than the replay.
    """

    total_ns: int
    start_ns: I64
    end_ns: I64
    node_ns: I64
    gap_ns: I64
    edge_ns: I64


def slack(graph: Graph, end_ns: I64, cost_ns: I64) -> Slack:
    """Slack of every node and edge, from when each node ended (``end_ns``) and what it costs. One pass back over the edges."""
    total = int(end_ns.max(initial=0))
    node = total - end_ns - _after_ns(graph, cost_ns)
    target = np.repeat(np.arange(len(end_ns)), np.diff(graph.first))
    start = end_ns - cost_ns
    gap = start[target] - end_ns[graph.source]
    return Slack(total, start, end_ns, node, gap, gap + node[target])


def _after_ns(graph: Graph, cost_ns: I64) -> I64:
    """The longest way from the end of each node to the end of a graph. Columns become Python numbers a block at a time (``BLOCK``)."""
    after = [0] * len(cost_ns)
    for begin in range((len(cost_ns) - 1) // BLOCK * BLOCK, -1, -BLOCK):
        first = graph.first[begin : begin + BLOCK + 1]
        sources = graph.source[first[0] : first[-1]].tolist()
        costs = cost_ns[begin : begin + BLOCK].tolist()
        bounds = (first[::-1] - first[0]).tolist()
        v = begin + len(costs)
        for high, low in pairwise(bounds):
            v -= 1
            count = high - low
            if count == 1:
                length = after[v] + costs[v - begin]
                source = sources[low]
                if after[source] < length:
                    after[source] = length
            elif count:
                length = after[v] + costs[v - begin]
                for source in sources[low:high]:
                    if after[source] < length:
                        after[source] = length
    return np.array(after, np.int64)


@dataclass(frozen=True, slots=True)
class Spans:
    """Every way across a place of the node order: the edges, and the free start and end of nodes that nothing comes before or after.

    ``before`` and ``after`` are nodes (-1: from the start; number of nodes: to the end); a path crosses every place between two
    neighbours of the order by exactly one of them, and is at least ``loss_ns`` shorter than the replay if it uses it. ``edge`` is the
    position in ``Graph.source``, -1 for starts and ends.
    """

    before: I64
    after: I64
    loss_ns: I64
    edge: I64


def spans(graph: Graph, slack: Slack) -> Spans:
    """The edges with the starts and ends, in no order."""
    count = len(graph.kind)
    in_degree = np.diff(graph.first)
    starts = np.flatnonzero(in_degree == 0)
    ends = np.flatnonzero(np.bincount(graph.source, minlength=count) == 0)
    edges = np.arange(len(graph.source))
    nowhere = np.full(len(starts) + len(ends), -1)
    return Spans(
        before=np.concatenate((graph.source.astype(np.int64), np.full(len(starts), -1), ends)),
        after=np.concatenate((np.repeat(np.arange(count), in_degree), starts, np.full(len(ends), count))),
        loss_ns=np.concatenate((slack.edge_ns, slack.node_ns[starts], slack.node_ns[ends])),
        edge=np.concatenate((edges, nowhere)),
    )


def least_over(count: int, low: I64, high: I64, value: I64) -> I64:
    """The least ``value`` among the intervals ``low <= i < high`` that hold i, for each i below ``count``; ``NEVER`` where none does.

    A sparse table filled from its top: an interval is two runs of a power of two that overlap. n log n in numpy.
    """
    some = np.flatnonzero(low < high)
    low, high, value = low[some], high[some], value[some]
    level = np.frexp((high - low).astype(np.float64))[1] - 1
    order = np.argsort(level, kind="stable")
    bounds = np.searchsorted(level[order], np.arange(int(level.max(initial=0)) + 2))
    out = np.full(count, NEVER, np.int64)
    for k in range(len(bounds) - 2, -1, -1):
        mine = order[bounds[k] : bounds[k + 1]]
        np.minimum.at(out, low[mine], value[mine])
        np.minimum.at(out, high[mine] - (1 << k), value[mine])
        if k:
            half = 1 << (k - 1)
            wider = out.copy()
            np.minimum(wider[half:], out[:-half], out=wider[half:])
            out = wider
    return out
