"""Relief: how much earlier a graph ends if sets of its nodes cost less: many sets at once, exactly.

The length of a path with a set relieved is the length of the whole replay less what the path *loses*: the gaps along it
(where it waits for other paths) and the relieved cost of the set's nodes on it. The gain of a set is the least loss of
any path, found by one pass over the graph with a column per set. Three steps before make the graph small without
changing a gain: what loses more than any gain could be is left out, so are edges that others imply, and chains become
one node.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from graphlink.graph.order import BLOCK, blocks
from graphlink.graph.slack import NEVER, Slack, leads_nowhere
from graphlink.graph_model import EdgeKind, Graph
from graphlink.model import EMPTY, I32, I64, NOWHERE, U8, Bool
from graphlink.tables import among, begins, concat, heads, how_many, marked, places, spread

PAGEABLE = re.compile("Pageable")
_DEEPEST = 256  # of callers
_STAGES = 0.9  # of the longer of the two that a copy and what stages it run side by side
_ROWS = 128  # chains whose relieved costs are spread out at a time: few enough to stay in the processor's cache


@dataclass(frozen=True, slots=True)
class Relief:
    """The nodes that are relieved, and of how much, in parallel columns: ``node`` costs ``less_ns`` less in set
    ``column``.
    """

    column: I32
    node: I32
    less_ns: I64


def gains(graph: Graph, slack: Slack, relief: Relief, bound_ns: I64) -> I64:
    """Return by how much the replay gets shorter with each set; shape (sets,), int64 ns.

    Args:
        graph: nodes in an order in which edges run forward.
        slack: of the replay that is to be shortened.
        relief: at most what each node costs; a node may be in many sets, and several times in one.
        bound_ns: at least the gain of each set, e.g. what it costs on a critical path; shape (sets,).

    Cost: O((nodes + edges) (1 + sets)), of which all but O(sets) a contracted node is numpy over columns.
    """
    most = int(bound_ns.max(initial=0))
    if most <= 0:
        return np.zeros(len(bound_ns), np.int64)
    chains = _contracted(graph, slack, most)
    return np.minimum(_least_loss(chains, relief, len(bound_ns)), bound_ns)


def staging(
    kind: U8, source: I64 | I32, target: I64, pageable: Bool, is_part: Bool, start_ns: I64, end_ns: I64
) -> Relief:
    """Return for how long a part of the op that launched a copy from or to pageable memory ran beside it (``less_ns``):
    of the copy ``column`` the host node ``node``. Edges in columns, then columns of nodes.

    The host fills a buffer of the driver's as the device empties it, or the other way round, so neither is quicker than
    the other (CUDA, "API synchronization behavior"): that time is what staging took, and changes as the copy's does.
    """
    launch = np.flatnonzero((kind == EdgeKind.LAUNCH) & pageable[target])
    chain = np.flatnonzero((kind == EdgeKind.HOST) & is_part[target])
    then = spread(len(pageable), source[chain], target[chain])
    copy = np.unique(target[launch])
    by = spread(len(pageable), target[launch], source[launch])[copy]
    found = [Relief(copy[:0].astype(np.int32), copy[:0].astype(np.int32), copy[:0])]
    while len(by):
        beside_ns = np.minimum(end_ns[by], end_ns[copy]) - np.maximum(start_ns[by], start_ns[copy])
        longer_ns = np.maximum(end_ns[copy] - start_ns[copy], end_ns[by] - start_ns[by])
        some = (beside_ns > 0) & (beside_ns >= _STAGES * longer_ns)
        found.append(Relief(copy[some].astype(np.int32), by[some].astype(np.int32), beside_ns[some]))
        on = then[by] != NOWHERE
        copy, by = copy[on], then[by[on]]
    return concat(*found)


def carried(host: Bool, caller: I64 | I32, took_ns: I64, self_ns: I64) -> Relief:
    """Return what host nodes carry of the ops around them, which were too short for nodes of their own: of the op whose
    node is ``column`` in ``node``. ``self_ns``: what an op took itself, wherever that is, at its own node.

    A rest lies in a node inside the op, and in the order of time: what a node has beyond its own goes to the innermost
    op that lacks as much. What no op lacks was between ops, and stays. Linear in nodes that carry any, for each op
    around one.
    """
    free_ns, node = np.maximum(self_ns - took_ns, 0), np.flatnonzero(host & (took_ns > self_ns))
    at, left_ns = caller[node].astype(np.int64), (took_ns - self_ns)[node]
    out = [Relief(node[:0].astype(np.int32), node[:0].astype(np.int32), left_ns[:0])]
    for _ in range(_DEEPEST if self_ns.any() else 0):  # in the file of somebody else callers may go in a circle
        on = (at != NOWHERE) & (left_ns > 0)
        node, at, left_ns = node[on], at[on], left_ns[on]
        if not len(node):
            break
        order = np.argsort(at, kind="stable")
        node, at, left_ns = node[order], at[order], left_ns[order]
        before_ns, new = np.cumsum(left_ns) - left_ns, np.flatnonzero(begins(at))
        before_ns -= np.repeat(before_ns[new], np.diff(np.append(new, len(at))))
        own_ns = np.minimum(left_ns, np.maximum(free_ns[at] - before_ns, 0))
        np.subtract.at(free_ns, at, own_ns)
        some = own_ns > 0
        out.append(Relief(at[some].astype(np.int32), node[some].astype(np.int32), own_ns[some]))
        at, left_ns = caller[at].astype(np.int64), left_ns - own_ns
    return concat(*out)


def _one_a_node(graph: Graph) -> I32:
    """Return the node before each along its thread or stream, itself where there is none: at most one node is before
    and behind each.
    """
    count = len(graph.kind)
    after = np.full(count, -1, np.int32)
    for block in reversed([*blocks(graph.first)]):
        lane = among(graph.edge_kind[block.edges], (EdgeKind.HOST, EdgeKind.STREAM))
        after[graph.source[block.edges][lane][::-1]] = block.target[lane][::-1]
    some = np.flatnonzero(after >= 0)
    before = np.arange(count, dtype=np.int32)
    before[after[some]] = some
    return before


def _implied(graph: Graph, before: I32, lag_ns: I64) -> Bool:
    """Mark the edges without a lag beside which a longer way leads from source to target: later out of the source's
    lane and earlier into the target's."""
    head = heads(before)
    is_head = head == np.arange(len(head))
    lane, lanes = (np.cumsum(is_head) - 1)[head], how_many(is_head)
    out = np.zeros(len(graph.source), np.bool_)
    crossing, pairs = [EMPTY], [EMPTY]
    for block in blocks(graph.first):
        source, target = graph.source[block.edges], block.target
        from_, to = lane[source], lane[target]
        out[block.edges] = (from_ == to) & (before[target] != source)
        at = np.flatnonzero(from_ != to)
        crossing.append(block.edges.start + at)
        pairs.append(from_[at] * lanes + to[at])
    cross, pair = np.concatenate(crossing), np.concatenate(pairs)
    # targets ascend inside a pair of lanes, as in the graph; numpy sorts what fits into 16 bits by radix
    order = np.argsort(pair.astype(np.min_scalar_type(lanes * lanes)), kind="stable")
    new = np.diff(pair[order], prepend=-1) != 0
    lifted = graph.source[cross][order] + np.cumsum(new) * len(lane)  # a pair of lanes stands above the one before it
    highest = np.maximum.accumulate(lifted)
    out[cross[order[1:]]] = ~new[1:] & (highest[:-1] >= lifted[1:])
    out &= lag_ns == 0
    return out


class _Chains(msgspec.Struct, frozen=True):
    """A graph of chains, edges by target, without gap first."""

    of_node: I32  # NOWHERE: in none
    first: I64
    source: I32
    gap_ns: I64
    last_use: Bool  # an edge: no later one has its source
    end_ns: I64


def _contracted(graph: Graph, slack: Slack, most_ns: int) -> _Chains:
    """Keep the nodes and edges that some relevant path uses: one that loses less than ``most_ns``."""
    # What implies an edge that is worth looking at loses no more than the edge, so it is kept too.
    kept = ~_implied(graph, _one_a_node(graph), slack.lag_ns) & (slack.edge_ns < most_ns)
    used, count = slack.node_ns < most_ns, len(graph.kind)
    from_, to, gap_ns = graph.source[kept], graph.target[kept].astype(np.int32), slack.gap_ns[kept]
    new = np.diff(to, prepend=-1, append=-1) != 0
    inner = new[1:] & new[:-1] & (np.bincount(from_, minlength=count) == 1)[from_]
    before = np.arange(count, dtype=np.int32)
    before[to[inner]] = from_[inner]
    head = heads(before)
    is_head = (before == np.arange(count)) & used
    of_node = np.where(used, (np.cumsum(is_head, dtype=np.int32) - 1)[head], NOWHERE)
    chains = how_many(is_head)
    # A chain's edges leave from its last node and enter its first, so chains in the order of their first nodes run
    # forward too.
    outer = ~inner
    source, target, gap = of_node[from_[outer]], of_node[to[outer]], gap_ns[outer]
    order = np.argsort(
        2 * target.astype(np.int64) + (gap > 0), kind="stable"
    )  # targets ascend already: what holds them back comes first
    source = source[order]
    last = places(source, chains)
    last_use = marked(len(source), last[last != NOWHERE])
    ending = np.flatnonzero(used & leads_nowhere(graph))
    end_ns = spread(chains, of_node[ending], slack.node_ns[ending], NEVER)  # what a path that ends there loses by it
    return _Chains(of_node, np.searchsorted(target, np.arange(chains + 1)), source, gap[order], last_use, end_ns)


def _by_rows(chains: _Chains, relief: Relief) -> tuple[I64, I64]:
    """Order the entries of ``relief`` by ``_ROWS`` chains: those of rows k are ``order[first[k] : first[k + 1]]``."""
    rows = -(-len(chains.end_ns) // _ROWS)
    dtype: np.dtype[Any] = np.dtype(np.uint16 if rows < 1 << 16 else np.int64)  # numpy sorts 16 bits by radix
    row = np.empty(len(relief.node), dtype)
    for low in range(0, len(row), BLOCK):
        chain = chains.of_node[relief.node[low : low + BLOCK]]
        row[low : low + BLOCK] = np.where(chain == NOWHERE, rows, chain // _ROWS)  # what is in no chain comes last
    counts = np.bincount(row, minlength=rows + 1)
    return np.argsort(row, kind="stable"), np.append(0, np.cumsum(counts[:rows]))


def _least_loss(graph: _Chains, relief: Relief, sets: int) -> I64:
    """Return the least loss of a path from a start to an end, a column per set."""
    chains = len(graph.end_ns)
    leads_on = np.bincount(graph.source, minlength=chains) > 0
    wide_gaps = np.broadcast_to(graph.gap_ns[:, None], (len(graph.gap_ns), sets))
    done = EMPTY
    rows = [done] * chains
    best = np.full(sets, NEVER, np.int64)
    spread = np.zeros((_ROWS, sets), np.int64)
    flat = spread.reshape(-1)
    add, minimum = np.add, np.minimum
    order, first = _by_rows(graph, relief)
    for start, low, high in zip(range(0, chains, _ROWS), first, first[1:], strict=False):
        mine = order[low:high]
        at = (graph.of_node[relief.node[mine]].astype(np.int64) - start) * sets + relief.column[mine]
        np.add.at(flat, at, relief.less_ns[mine])
        here = slice(start, start + _ROWS)
        bounds = graph.first[start : start + _ROWS + 1]
        edges = slice(bounds[0], bounds[-1])
        sources, gaps, last_use = graph.source[edges].tolist(), wide_gaps[edges], graph.last_use[edges].tolist()
        ends, leading = graph.end_ns[here].tolist(), leads_on[here].tolist()
        edge = 0
        for i, (end, less) in enumerate(zip((bounds[1:] - bounds[0]).tolist(), spread, strict=False)):
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
                        other = add(rows[source], gaps[e])
                        row = minimum(row, other, out=other)
                        if last_use[e]:
                            rows[source] = done
                    add(row, less, out=row)
            if leading[i]:
                rows[start + i] = row
            if ends[i] < NEVER:
                minimum(best, row + ends[i], out=best)
            edge = end
        flat[at] = 0
    return best
