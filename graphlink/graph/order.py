"""Passes over nodes in their order, and which node comes before another by its dependencies. Nothing here recurses."""

from __future__ import annotations

from collections.abc import Iterator
from operator import add as plus
from typing import Final

import msgspec
import numpy as np

from graphlink.graph_model import IncomingEdges
from graphlink.model import I32, I64, NOWHERE, Bool
from graphlink.tables import counted_from, heads, marked, spread, tuples

BLOCK: Final = 1 << 15
PAIR_STEPS, ALL_STEPS = 20_000, 3_000_000  # of walks back, beyond which the answer is "not decided"


class Reach:
    """Answers whether nodes come before others. Nodes are placed on chains; along a chain the answer is a comparison of
    places.
    """

    def __init__(self, edges: IncomingEdges, order: I64, lane: I64):
        """Build the chains. ``lane`` by node: where nodes follow each other (thread, stream); chains stay inside it.
        Linear.
        """
        n = len(lane)
        assert len(order) == n, "only for graphs without cycles"
        self._edges = edges
        self._rank: I64 = spread(n, order, np.arange(n))
        chain, place = [0] * n, [0] * n
        ends = [True] * n  # nothing continues the chain behind it
        first, source, lanes = edges.first.tolist(), edges.source.tolist(), lane.tolist()
        chains = 0
        for i in order.tolist():
            follows = NOWHERE
            for s in source[first[i] : first[i + 1]]:
                if ends[s] and lanes[s] == lanes[i]:
                    follows = s
                    break
            if follows == NOWHERE:
                chain[i] = chains
                chains += 1
            else:
                ends[follows] = False
                chain[i], place[i] = chain[follows], place[follows] + 1
        self._chain, self._place = np.array(chain, np.int64), np.array(place, np.int64)

    def __call__(self, before: I64 | I32, after: I64 | I32) -> tuple[Bool, Bool]:
        """Return of each pair whether the first is known to come before the second, and which took too long to follow.

        Linear where chains or the next dependencies tell, else a walk back for the pair.
        """
        yes = self._along(before, after) & (before != after)
        undecided = np.zeros(len(before), np.bool_)
        open_ = np.flatnonzero(~yes & (self._rank[before] < self._rank[after]))
        low, count = self._edges.first[after[open_]], np.diff(self._edges.first)[after[open_]]
        pair = np.repeat(open_, count)
        yes[pair[self._along(before[pair], self._edges.source[counted_from(low, count)])]] = True
        left = ALL_STEPS
        for i in open_[~yes[open_]].tolist():
            steps, found = self._walk(int(before[i]), int(after[i]), min(left, PAIR_STEPS))
            left -= steps
            yes[i], undecided[i] = found is True, found is None
        return yes, undecided

    def _along(self, before: I64 | I32, after: I64 | I32) -> Bool:
        return np.asarray((self._chain[before] == self._chain[after]) & (self._place[before] <= self._place[after]))

    def _walk(self, before: int, after: int, most: int) -> tuple[int, bool | None]:
        """Return (steps taken, answer or None); only nodes that come later than ``before`` are visited."""
        chain, place, rank = self._chain, self._place, self._rank
        first, source = self._edges.first, self._edges.source
        lowest, on, at_least = rank[before], chain[before], place[before]
        seen, todo = {after}, [after]
        while todo:
            if len(seen) > most:
                return len(seen), None
            node = todo.pop()
            for s in source[first[node] : first[node + 1]].tolist():
                if chain[s] == on and place[s] >= at_least:
                    return len(seen), True
                if s not in seen and rank[s] > lowest:
                    seen.add(s)
                    todo.append(s)
        return len(seen), False


class OrderedNodes(msgspec.Struct, frozen=True):
    """Some nodes, one after the other, with all edges that enter them: slices of columns of nodes and of edges."""

    nodes: slice
    edges: slice
    bounds: I64  # of the edges of each node, from the first edge of the block

    @property
    def degree(self) -> I64:
        """Count how many edges enter each node."""
        return np.diff(self.bounds)

    @property
    def target(self) -> I64:
        """Return the node that each edge enters."""
        return np.repeat(np.arange(self.nodes.start, self.nodes.stop), self.degree)

    def entered(self, edges: Bool) -> Bool:
        """Mark the nodes that some of the block's ``edges`` enter."""
        return marked(len(self.bounds) - 1, self.target[edges] - self.nodes.start)


def blocks(first: I64) -> Iterator[OrderedNodes]:
    """Yield the nodes of a graph a block at a time, lowest first (``first``: CSR by target, as in ``Graph``).

    What is made of a block stays in the processor's cache, and in memory that is used again. A column of all edges does
    neither: the system gives fresh pages for it every time (glibc: above 32 MB), which cost more than the numbers in
    them.
    """
    last = len(first) - 1
    for low in range(0, last, BLOCK):
        bounds = first[low : min(low + BLOCK, last) + 1]
        yield OrderedNodes(
            slice(low, low + len(bounds) - 1), slice(int(bounds[0]), int(bounds[-1])), bounds - bounds[0]
        )


class Chains:
    """A graph (CSR by target) whose nodes with one dependency, a lower node, are joined with it, of several the first;
    but for those that stand ``apart``. What is left are chains, each of which ends so long after its ``head`` as its
    costs add up to. n log n.

    ``of_node``: the chain of each node. ``first``, ``source``: the edges into heads, CSR by chain, and the chains they
    come from; ``edge``, ``node``: their positions among all, and the nodes they come from.
    """

    def __init__(self, first: I64, source: I32, apart: Bool | None = None) -> None:
        count = np.diff(first)
        alone = np.flatnonzero(count == 1 if apart is None else (count == 1) & ~apart)
        comes_after = source[first[alone]]
        lower = comes_after < alone
        after = spread(len(count), comes_after[lower][::-1], alone[lower][::-1])
        followed = np.flatnonzero(after != NOWHERE)
        before = np.arange(len(count), dtype=np.int32)
        before[after[followed]] = followed
        begins = before == np.arange(len(count))
        head = heads(before)
        self.head = np.flatnonzero(begins)
        self.of_node: I64 = (np.cumsum(begins) - 1)[head]
        self._order = np.argsort(head, kind="stable")
        self._along = np.where(begins, NOWHERE, first[:-1])[self._order]
        self._size = np.bincount(self.of_node, minlength=len(self.head))
        self.first = np.append(0, np.cumsum(count[self.head]))
        self.edge = counted_from(first[:-1][self.head], count[self.head])
        self.node = source[self.edge]
        self.source = self.of_node[self.node]

    def behind_ns(self, cost_ns: I64, lag_ns: I64 | None) -> I64:
        """Return how long after the head of its chain each node ends."""
        own_ns, begins = cost_ns[self._order], self._along == NOWHERE
        if lag_ns is not None:
            own_ns += np.append(lag_ns, 0)[self._along]
        own_ns[begins] = 0
        ends_ns = np.cumsum(own_ns, dtype=np.int64)
        return spread(len(ends_ns), self._order, ends_ns - np.repeat(ends_ns[begins], self._size))


def longest_path(first: I64, source: I32, cost_ns: I64, lag_ns: I64 | None = None, chains: Chains | None = None) -> I64:
    """Return when each node ends: ``cost_ns`` after the last of its dependencies, ``lag_ns`` (one entry per edge)
    later. ``chains``: of the graph, if they are known.

    Every edge (CSR by target) must run from a lower to a higher node. n log n, or linear with ``chains``.
    """
    chains = chains or Chains(first, source)
    behind_ns = chains.behind_ns(cost_ns, lag_ns)
    lags = behind_ns[chains.node]
    if lag_ns is not None:
        lags += lag_ns[chains.edge]
    return passed(chains.first, chains.source, cost_ns[chains.head], lags)[chains.of_node] + behind_ns


def passed(first: I64, source: I64, cost_ns: I64, lag_ns: I64) -> I64:
    """Return the same as ``longest_path``, node by node. Linear."""
    ends: list[int] = []
    end_of, add = ends.__getitem__, ends.append
    for block in blocks(first):
        sources, lags = source[block.edges].tolist(), lag_ns[block.edges].tolist()
        low = 0
        for high, cost in tuples(block.bounds[1:], cost_ns[block.nodes]):
            if high - low == 2:
                one, other = ends[sources[low]] + lags[low], ends[sources[low + 1]] + lags[low + 1]
                add((one if one > other else other) + cost)
            elif high > low:
                add(max(map(plus, map(end_of, sources[low:high]), lags[low:high])) + cost)
            else:
                add(cost)
            low = high
    return np.array(ends, np.int64)
