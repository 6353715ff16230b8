"""How much earlier a graph ends if sets of its nodes cost less: many sets at once, exactly.

The length of a path with a set relieved is the length of the whole replay less what the path *loses*: the gaps along it (where it
waits for other paths) and the relieved cost of the set's nodes on it. The gain of a set is the least loss of any path, found by one
pass over the graph with a column a set. Three steps before make the graph small without changing a gain: what loses more than any
gain could be is left out, so are edges that others imply, and chains become one node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.annotate.slack import NEVER, Slack
from graphlink.model import I64, Bool, EdgeKind, Graph

_ROWS = 2048  # contracted nodes whose relieved costs are spread out at a time


@dataclass(frozen=True, slots=True)
class Relief:
    """Which nodes are relieved of how much, in parallel columns: ``node`` costs ``less_ns`` less in set ``column``."""

    column: I64
    node: I64
    less_ns: I64


def gains(graph: Graph, slack: Slack, relief: Relief, bound_ns: I64) -> I64:
    """By how much the replay gets shorter with each set; shape (sets,), int64 ns.

    Args:
        graph: nodes in an order in which edges run forward.
        slack: of the replay that is to be shortened.
        relief: at most what each node costs; a node may be in many sets.
        bound_ns: at least the gain of each set, e.g. what it costs on a critical path; shape (sets,).

    Cost: O((nodes + edges) (1 + sets)), of which all but O(sets) a contracted node is numpy over columns.
    """
    most = int(bound_ns.max(initial=0))
    if most <= 0:
        return np.zeros(len(bound_ns), np.int64)
    small = _contracted(_edges(graph, slack, most), relief, len(bound_ns))
    return np.minimum(_least_loss(small, len(bound_ns)), bound_ns)


@dataclass(frozen=True, slots=True)
class _Edges:
    """The nodes and edges that some path worth looking at uses; targets ascend.

    ``used`` and ``end_ns`` have one entry a node, the others one an edge. ``lane``: along a thread or stream.
    """

    used: Bool
    source: I64
    target: I64
    gap_ns: I64
    lane: Bool
    end_ns: I64  # what a path that ends in a node loses by it, NEVER where others come after


def _edges(graph: Graph, slack: Slack, most_ns: int) -> _Edges:
    count = len(graph.kind)
    kept = np.flatnonzero(slack.edge_ns < most_ns)
    target = np.repeat(np.arange(count), np.diff(graph.first))[kept]
    last = np.bincount(graph.source, minlength=count) == 0
    lane = (graph.edge_kind[kept] == EdgeKind.HOST) | (graph.edge_kind[kept] == EdgeKind.STREAM)
    edges = _Edges(
        used=slack.node_ns < most_ns,
        source=graph.source[kept].astype(np.int64),
        target=target,
        gap_ns=slack.gap_ns[kept],
        lane=lane,
        end_ns=np.where(last, slack.node_ns, NEVER),
    )
    kept = np.flatnonzero(~_implied(edges, _one_a_node(edges, count)))
    return _Edges(edges.used, edges.source[kept], edges.target[kept], edges.gap_ns[kept], edges.lane[kept], edges.end_ns)


def _one_a_node(edges: _Edges, count: int) -> I64:
    """The node before each on its lane, itself where there is none: at most one lane edge leaves and enters a node."""
    at = np.flatnonzero(edges.lane)
    after = np.full(count, -1)
    after[edges.source[at[::-1]]] = edges.target[at[::-1]]
    some = np.flatnonzero(after >= 0)
    before = np.arange(count)
    before[after[some]] = some
    return before


def _heads(before: I64) -> I64:
    """The first node of each node's chain; ``before`` is a lower node, or the node itself at the head."""
    head: list[int] = before.tolist()
    for v, b in enumerate(head):
        head[v] = head[b]
    return np.array(head, np.int64)


def _implied(edges: _Edges, before: I64) -> Bool:
    """Edges beside which a longer way leads from source to target: later out of the source's lane and earlier into the target's."""
    lane = _heads(before)
    own = before[edges.target] == edges.source
    from_, to = lane[edges.source], lane[edges.target]
    out: Bool = (from_ == to) & ~own
    cross = np.flatnonzero(from_ != to)
    pair = from_[cross] * len(lane) + to[cross]
    order = np.argsort(pair, kind="stable")  # targets ascend inside a pair of lanes, as in the graph
    new = np.diff(pair[order], prepend=-1) != 0
    lifted = edges.source[cross][order] + np.cumsum(new) * len(lane)  # a pair of lanes stands above the one before it
    highest = np.maximum.accumulate(lifted)
    out[cross[order[1:]]] = ~new[1:] & (highest[:-1] >= lifted[1:])
    return out


@dataclass(frozen=True, slots=True)
class _Contracted:
    """A graph of chains, edges by target, without gap first, with what each chain is relieved of, by chain."""

    first: I64
    source: I64
    gap_ns: I64
    last_use: Bool  # an edge: no later one has its source
    end_ns: I64
    relieved: I64  # chain x sets + set, ascending and unique
    less_ns: I64


def _contracted(edges: _Edges, relief: Relief, sets: int) -> _Contracted:
    count = len(edges.used)
    in_degree = np.bincount(edges.target, minlength=count)
    out_degree = np.bincount(edges.source, minlength=count)
    inner = (in_degree[edges.target] == 1) & (out_degree[edges.source] == 1)
    before = np.arange(count)
    before[edges.target[inner]] = edges.source[inner]
    head = _heads(before)
    is_head = (head == np.arange(count)) & edges.used
    chain = (np.cumsum(is_head) - 1)[head]
    chains = int(np.count_nonzero(is_head))
    # A chain's edges leave from its last node and enter its first, so chains in the order of their first nodes run forward too.
    source, target, gap = chain[edges.source[~inner]], chain[edges.target[~inner]], edges.gap_ns[~inner]
    order = np.argsort(2 * target + (gap > 0), kind="stable")  # targets ascend already: what holds them back comes first
    source, target = source[order], target[order]
    last = np.full(chains, -1)
    last[source] = np.arange(len(source))
    last_use = np.zeros(len(source), np.bool_)
    last_use[last[last >= 0]] = True
    end_ns = np.full(chains, NEVER, np.int64)
    ending = np.flatnonzero(edges.used & (edges.end_ns < NEVER))
    end_ns[chain[ending]] = edges.end_ns[ending]
    inside = edges.used[relief.node]
    key = chain[relief.node[inside]] * sets + relief.column[inside]
    by_key = np.argsort(key, kind="stable")
    key, less = key[by_key], relief.less_ns[inside][by_key]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    return _Contracted(
        first=np.searchsorted(target, np.arange(chains + 1)),
        source=source,
        gap_ns=gap[order],
        last_use=last_use,
        end_ns=end_ns,
        relieved=key[starts],
        less_ns=np.add.reduceat(less, starts) if len(starts) else less,
    )


def _least_loss(graph: _Contracted, sets: int) -> I64:
    """The least loss of a path from a start to an end, a column a set."""
    chains = len(graph.end_ns)
    first, sources = graph.first.tolist(), graph.source.tolist()
    last_use, ends = graph.last_use.tolist(), graph.end_ns.tolist()
    leads_on = (np.bincount(graph.source, minlength=chains) > 0).tolist()
    wide_gaps = np.broadcast_to(graph.gap_ns[:, None], (len(sources), sets))
    rows: list[I64] = [np.zeros(0, np.int64)] * chains
    done = rows[0] if rows else np.zeros(0, np.int64)
    best = np.full(sets, NEVER, np.int64)
    spread = np.zeros((_ROWS, sets), np.int64)
    flat = spread.reshape(-1)
    add, minimum = np.add, np.minimum
    for start in range(0, chains, _ROWS):
        stop = min(start + _ROWS, chains)
        low, high = np.searchsorted(graph.relieved, (start * sets, stop * sets))
        at = graph.relieved[low:high] - start * sets
        flat[at] = graph.less_ns[low:high]
        offset = first[start]
        gaps = list(wide_gaps[offset : first[stop]])
        for i, less in enumerate(spread[: stop - start], start):
            edge, end = first[i], first[i + 1]
            if edge == end:
                row = less.copy()
            else:
                source = sources[edge]
                row = rows[source]  # what holds the chain back: no gap
                if last_use[edge]:
                    rows[source] = done
                if end - edge == 1:
                    row = add(row, less)
                else:
                    for e in range(edge + 1, end):
                        source = sources[e]
                        other = add(rows[source], gaps[e - offset])
                        row = minimum(row, other, out=other)
                        if last_use[e]:
                            rows[source] = done
                    add(row, less, out=row)
            if leads_on[i]:
                rows[i] = row
            if ends[i] < NEVER:
                minimum(best, row + ends[i], out=best)
        flat[at] = 0
    return best
