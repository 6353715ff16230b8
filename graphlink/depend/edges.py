"""Collects edges between provisional nodes, and numbers the nodes so that every edge runs from a lower to a higher one;
cycles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from graphlink.graph_model import EdgeKind
from graphlink.model import I32, I64, U8
from graphlink.tables import begins, concat, marked, spread, take


@dataclass(frozen=True, slots=True)
class Edges:
    source: I64
    target: I64
    kind: U8
    found_by: U8

    @staticmethod
    def of(kind: EdgeKind, source: I64 | I32, target: I64 | I32, found_by: U8 | int = 0) -> Edges:
        """Make edges of one kind; ``found_by``: evidence of each, or of all."""
        n = len(source)
        bits = np.full(n, found_by, np.uint8) if isinstance(found_by, int) else found_by
        return Edges(source.astype(np.int64), target.astype(np.int64), np.full(n, kind, np.uint8), bits)

    @staticmethod
    def join(parts: list[Edges]) -> Edges:
        """Join edges into one per pair of nodes, by target, then source: the kind that comes first in ``EdgeKind``
        stays, the evidence of all is kept.
        """
        every = concat(*parts)
        every = take(every, np.lexsort((every.kind, every.source, every.target)))
        first = np.flatnonzero(begins(every.source, every.target))
        return replace(take(every, first), found_by=np.bitwise_or.reduceat(every.found_by, first))


class Unordered(Exception):
    """Edges go round in a circle: ``nodes`` in their order, each depending on the one before, the first on the last."""

    def __init__(self, nodes: list[int]):
        self.nodes = nodes
        super().__init__(f"cycle of {len(nodes)} nodes")


QUICK_ROUNDS = 64


def number(start_ns: I64, rank: I64, edges: Edges, *, quick_rounds: int = QUICK_ROUNDS) -> tuple[I64, I64]:
    """Return (order, starts): provisional nodes in id order, and the start of each, moved up where rounding crossed an
    edge.

    Ids go by start; nodes that start together by their edges, then by ``rank``. Raises Unordered on a cycle.

    Few edges join nodes that start together, so a few rounds over those settle it; where they do not, one walk in
    topological order.
    """
    source, target = edges.source, edges.target
    starts, level = start_ns.copy(), np.zeros(len(start_ns), np.int64)
    for _ in range(quick_rounds):
        back = starts[source] > starts[target]
        low = (starts[source] == starts[target]) & (level[target] <= level[source])
        if not back.any() and not low.any():
            return np.lexsort((rank, level, starts)), starts
        np.maximum.at(starts, target[back], starts[source[back]])
        np.maximum.at(level, target[low], level[source[low]] + 1)
    starts, level = _walk(start_ns, edges)
    return np.lexsort((rank, level, starts)), starts


def _walk(start_ns: I64, edges: Edges) -> tuple[I64, I64]:
    """Return (starts, level among nodes that start together) by one pass in topological order."""
    count = len(start_ns)
    order = topological(edges.source, edges.target, np.arange(count))
    if len(order) < count:
        raise Unordered(cycle(edges.source, edges.target, order, count)[::-1])
    first, after = (column.tolist() for column in successors(edges.source, edges.target, count))
    starts, level = start_ns.tolist(), [0] * count
    for i in order.tolist():
        for t in after[first[i] : first[i + 1]]:
            starts[t], level[t] = max((starts[t], level[t]), (starts[i], level[i] + 1))
    return np.array(starts, np.int64), np.array(level, np.int64)


def topological(source: I64 | I32, target: I64, wish: I64) -> I64:
    """Return nodes in an order in which every edge runs forward; where there is a cycle, without what is in it or
    behind it.

    Linear; at once where the order ``wish`` (a permutation of the nodes: by id) will do. Does not recurse.
    """
    n = len(wish)
    place = spread(n, wish, np.arange(n))
    if not np.any(place[source] >= place[target]):
        return wish
    waiting = np.bincount(target, minlength=n).tolist()
    first, after = (column.tolist() for column in successors(source, target, n))
    out = [i for i in wish.tolist() if not waiting[i]]
    for i in out:  # grows while it is walked
        for t in after[first[i] : first[i + 1]]:
            waiting[t] -= 1
            if not waiting[t]:
                out.append(t)
    return np.array(out, np.int64)


def successors(source: I64 | I32, target: I64, count: int) -> tuple[I64, I64]:
    """Return the edges of ``count`` nodes as CSR by source: (first, target), targets in the order of the edges."""
    by_source = np.argsort(source, kind="stable")
    return np.append(0, np.cumsum(np.bincount(source, minlength=count))), target[by_source]


def cycle(source: I64 | I32, target: I64, order: I64, count: int) -> list[int]:
    """Return one cycle among the nodes that ``order`` lacks: each node waits for the one after it, the last for the
    first. Linear.
    """
    stuck = ~marked(count, order)
    inside = stuck[source] & stuck[target]
    before = spread(count, target[inside], source[inside])
    at = int(np.flatnonzero(stuck)[0])
    seen: dict[int, int] = {}
    while at not in seen:
        seen[at] = len(seen)
        at = int(before[at])
    return list(seen)[seen[at] :]
