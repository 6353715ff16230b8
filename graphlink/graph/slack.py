"""Slack: how much later each node and each edge of a replay could be without anything ending later."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from graphlink.graph.latency import costs
from graphlink.graph.order import blocks, longest_path
from graphlink.graph_model import EdgeKind, Graph
from graphlink.model import I32, I64, NOWHERE, Bool, TimedRows
from graphlink.tables import concat, marked

NEVER = np.iinfo(np.int64).max // 4  # a loss that nothing reaches; sums of a few of them stay inside int64
_MUCH: Final = 100  # times what full queues held is the length: else no gain changes by a hundredth of it
_RUN: Final = 64


@dataclass(frozen=True, slots=True)
class Slack(TimedRows):
    """Slack in a replay, all int64 ns. ``start_ns`` and ``end_ns`` of each node are those of the replay.

    ``node_ns`` (one entry per node): latest minus earliest end. ``gap_ns`` (one entry per edge): from the end of the
    source and its lag to the start of the target. ``edge_ns`` (one entry per edge): by how much the longest path
    through the edge is shorter than the replay. ``lag_ns`` (one entry per edge): how long after the end of its source
    its target may begin.
    """

    total_ns: int
    node_ns: I64
    gap_ns: I64
    edge_ns: I64
    lag_ns: I64


def slack(graph: Graph, end_ns: I64, cost_ns: I64) -> Slack:
    """Compute the slack of every node and edge, from when each node ended (``end_ns``) and what it costs. One pass back
    over the edges.
    """
    own_ns, lag_ns = costs(graph, end_ns, cost_ns)
    total = int(end_ns.max(initial=0))
    node = total - end_ns - _after_ns(graph, own_ns, lag_ns)
    start = end_ns - own_ns
    gap, edge = np.empty(len(graph.source), np.int64), np.empty(len(graph.source), np.int64)
    for block in blocks(graph.first):
        gap[block.edges] = (
            np.repeat(start[block.nodes], block.degree) - end_ns[graph.source[block.edges]] - lag_ns[block.edges]
        )
        edge[block.edges] = gap[block.edges] + np.repeat(node[block.nodes], block.degree)
    return Slack(start, end_ns, total, node, gap, edge, lag_ns)


def without_queues(graph: Graph, late: Slack, cost_ns: I64) -> Slack:
    """Return the slack in a replay in which no full queue holds a launch: its length then hangs on the device alone.
    ``late`` where that is less than a hundredth of it. Linear.
    """
    waits = marked(len(cost_ns), graph.target[graph.edge_kind == EdgeKind.SYNC])
    own_ns = cost_ns - np.where(waits, 0, graph.wake_ns)
    if _MUCH * int((cost_ns - own_ns).sum()) < late.total_ns:
        return late
    return slack(graph, longest_path(graph.first, graph.source, own_ns), own_ns)


def _after_ns(graph: Graph, cost_ns: I64, lag_ns: I64) -> I64:
    """Return the longest way from the end of each node to the end of a graph; ``cost_ns``: of nodes, ``lag_ns``: of
    edges.
    """
    out = np.empty(len(cost_ns), np.int64)
    after = [0] * len(out)
    for block in reversed([*blocks(graph.first)]):
        nodes = block.nodes
        sources = graph.source[block.edges].tolist()
        own = cost_ns[nodes][::-1].tolist()
        lags = lag_ns[block.edges]
        lag_of, late = lags.tolist(), block.entered(lags > 0)[::-1].tolist()
        each = zip(
            range(nodes.stop - 1, nodes.start - 1, -1), own, late, pairwise(block.bounds[::-1].tolist()), strict=True
        )
        for v, cost, lagging, (high, low) in each:
            count = high - low
            length = after[v] + cost
            if lagging:
                for source, lag in zip(sources[low:high], lag_of[low:high], strict=True):
                    if after[source] < length + lag:
                        after[source] = length + lag
            elif count == 1:
                source = sources[low]
                if after[source] < length:
                    after[source] = length
            elif count:
                for source in sources[low:high]:
                    if after[source] < length:
                        after[source] = length
        out[nodes] = after[nodes]
        del after[nodes]
    return out


def leads_nowhere(graph: Graph) -> Bool:
    """Mark the nodes that no edge leaves."""
    return ~marked(len(graph.kind), graph.source)


@dataclass(frozen=True, slots=True)
class Crossing:
    """Ways across places that were asked for, each across all from ``low`` to below ``high``; one of them loses
    ``loss_ns`` or more.

    ``edge`` is a position in ``Graph.source``, ``NOWHERE`` for starts and ends.
    """

    low: I32
    high: I32
    loss_ns: I64
    edge: I64


def crossing(graph: Graph, slack: Slack, nodes: I32, *, past: bool, below_ns: int = NEVER) -> Crossing:
    """Find the ways across any place right before one of ``nodes`` (ascending), or with ``past`` those that lead past a
    node.

    Ways are the edges, and the free start and end of nodes that nothing comes before or after: a path crosses every
    place between two neighbours of the node order by exactly one of them, and by what that one loses it is shorter than
    the replay, or by more.

    Left out are ways that lose ``below_ns`` or more. Linear.
    """
    first, source = graph.first, graph.source
    starts, ends = np.flatnonzero(np.diff(first) == 0), np.flatnonzero(leads_nowhere(graph))
    asked = marked(len(first) - 1, nodes).astype(np.int32)
    low = asked.cumsum(dtype=np.int32)  # of a way that leaves the node
    high = low - asked if past else low  # of a way that enters it

    def across(low: I32, high: I32, loss_ns: I64, edge: I64) -> Crossing:
        at = np.flatnonzero((low < high) & (loss_ns < below_ns))
        return Crossing(low[at], high[at], loss_ns[at], edge[at])

    before_all, after_all = np.zeros(len(starts), np.int32), np.full(len(ends), len(nodes), np.int32)
    node_ns, edge_ns = slack.node_ns, slack.edge_ns
    parts = [
        across(before_all, high[starts], node_ns[starts], np.full(len(starts), NOWHERE)),
        across(low[ends], after_all, node_ns[ends], np.full(len(ends), NOWHERE)),
    ]
    for block in blocks(first):
        edges = block.edges
        entered = np.repeat(high[block.nodes], block.degree)
        parts.append(across(low[source[edges]], entered, edge_ns[edges], np.arange(edges.start, edges.stop)))
    return concat(*parts)


def least_over(count: int, low: I32, high: I32, value: I64) -> I64:
    """Return the least ``value`` among the intervals ``low <= i < high`` that hold i, for each i below ``count``;
    ``NEVER`` where none does.

    Of a long interval, what fills whole runs of ``_RUN`` places is asked of the runs, in the same way, and its two ends
    are short. A short one is two ranges of a power of two that overlap: a sparse table, filled from its top. Linear in
    places.
    """
    some = np.flatnonzero(low < high)
    low, high, value = low[some], high[some], value[some]
    long = np.flatnonzero(high - low >= 2 * _RUN)
    if not len(long):
        return _least_over_short(count, low, high, value)
    begin, end = -(-low[long] // _RUN), high[long] // _RUN
    over_runs = np.repeat(least_over(-(-count // _RUN), begin, end, value[long]), _RUN)[:count]
    heads_end = high.copy()
    heads_end[long] = begin * _RUN
    lows, highs = np.concatenate((low, end * _RUN)), np.concatenate((heads_end, high[long]))
    return np.minimum(over_runs, _least_over_short(count, lows, highs, np.concatenate((value, value[long]))))


def _least_over_short(count: int, low: I32, high: I32, value: I64) -> I64:
    level = np.frexp((high - low).astype(np.float64))[1].astype(np.int8) - 1  # -1: empty
    out = np.full(count, NEVER, np.int64)
    for k in range(int(level.max(initial=-1)), -1, -1):
        mine = np.flatnonzero(level == k)
        np.minimum.at(out, low[mine], value[mine])
        np.minimum.at(out, high[mine] - (1 << k), value[mine])
        if k:
            half = 1 << (k - 1)
            out[half:] = np.minimum(out[half:], out[:-half])
    return out
