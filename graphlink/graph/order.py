"""Passes over nodes in their order, and which node comes before another by its dependencies. Nothing here recurses."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from operator import add as plus
from typing import Final

import msgspec
import numpy as np

from graphlink.graph_model import IncomingEdges
from graphlink.model import I32, I64, NOWHERE, Bool
from graphlink.tables import counted_from, marked, spread

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


def longest_path(first: I64, source: I32, cost_ns: I64, lag_ns: I64 | None = None) -> I64:
    """Return when each node ends: ``cost_ns`` after the last of its dependencies, ``lag_ns`` (one entry per edge)
    later.

    Every edge (CSR by target) must run from a lower to a higher node. Linear.
    """
    ends: list[int] = []
    end_of = ends.__getitem__
    add = ends.append
    for block in blocks(first):
        sources = source[block.edges].tolist()
        costs = cost_ns[block.nodes].tolist()
        lags = np.zeros(0, np.int64) if lag_ns is None else lag_ns[block.edges]
        lagging = repeat(False, len(costs)) if lag_ns is None else block.entered(lags > 0).tolist()
        late_by = lags.tolist()
        low = 0
        for high, cost, late in zip(block.bounds[1:].tolist(), costs, lagging, strict=True):
            count = high - low
            if late:
                add(max(map(plus, map(end_of, sources[low:high]), late_by[low:high])) + cost)
            elif count == 1:
                add(ends[sources[low]] + cost)
            elif count:
                add(max(map(end_of, sources[low:high])) + cost)
            else:
                add(cost)
            low = high
    return np.array(ends, dtype=np.int64)
