"""Collects edges between provisional nodes, and numbers the nodes so that every edge runs from a lower to a higher one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.model import I32, I64, U8, EdgeKind


@dataclass(frozen=True, slots=True)
class Edges:
    source: I64
    target: I64
    kind: U8
    found_by: U8

    @staticmethod
    def of(kind: EdgeKind, source: I64 | I32, target: I64 | I32, found_by: U8 | int = 0) -> Edges:
        n = len(source)
        bits = np.full(n, found_by, np.uint8) if isinstance(found_by, int) else found_by
        return Edges(source.astype(np.int64), target.astype(np.int64), np.full(n, kind, np.uint8), bits)

    @staticmethod
    def join(parts: list[Edges]) -> Edges:
        """Join edges into one a pair of nodes: the kind that comes first in ``EdgeKind`` stays, the evidence of all is kept."""
        source, target = np.concatenate([p.source for p in parts]), np.concatenate([p.target for p in parts])
        kind, bits = np.concatenate([p.kind for p in parts]), np.concatenate([p.found_by for p in parts])
        if not len(source):
            return Edges(source, target, kind, bits)
        order = np.lexsort((kind, source, target))
        source, target, kind, bits = source[order], target[order], kind[order], bits[order]
        first = np.flatnonzero(np.append(True, (source[1:] != source[:-1]) | (target[1:] != target[:-1])))
        return Edges(source[first], target[first], kind[first], np.bitwise_or.reduceat(bits, first))


class Unordered(Exception):
    """Edges go round in a circle: ``nodes`` in their order, each depending on the one before, the first on the last."""

    def __init__(self, nodes: list[int]):
        self.nodes = nodes
        super().__init__(f"cycle of {len(nodes)} nodes")


QUICK_ROUNDS = 64


def number(start_ns: I64, rank: I64, edges: Edges, *, quick_rounds: int = QUICK_ROUNDS) -> tuple[I64, I64]:
    """Return (order, starts): provisional nodes in id order, and the start of each, moved up where rounding crossed an edge.

    Ids go by start; nodes that start together by their edges, then by ``rank``. Raises Unordered on a cycle.

    Few edges join nodes that start together, so a few rounds over those settle it; where they do not, one walk in topological order.
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
    """(starts, level among nodes that start together) by one pass in topological order."""
    starts, level = start_ns.tolist(), [0] * len(start_ns)
    waiting = np.bincount(edges.target, minlength=len(starts)).tolist()
    by_source = np.argsort(edges.source, kind="stable")
    first = np.searchsorted(edges.source[by_source], np.arange(len(starts) + 1)).tolist()
    targets = edges.target[by_source].tolist()
    ready = [i for i, k in enumerate(waiting) if not k]
    left = len(starts)
    while ready:
        i = ready.pop()
        left -= 1
        for t in targets[first[i] : first[i + 1]]:
            if starts[i] > starts[t]:
                starts[t], level[t] = starts[i], level[i] + 1
            elif starts[i] == starts[t]:
                level[t] = max(level[t], level[i] + 1)
            waiting[t] -= 1
            if not waiting[t]:
                ready.append(t)
    if left:
        raise Unordered(_cycle(edges, {i for i, k in enumerate(waiting) if k}))
    return np.array(starts, np.int64), np.array(level, np.int64)


def _cycle(edges: Edges, stuck: set[int]) -> list[int]:
    """Nodes of one cycle in order; every node of ``stuck`` has a source among them."""
    sources = {t: s for s, t in zip(edges.source.tolist(), edges.target.tolist(), strict=True) if s in stuck and t in stuck}
    at = next(iter(stuck))
    seen: dict[int, int] = {}
    path: list[int] = []
    while at not in seen:
        seen[at] = len(path)
        path.append(at)
        at = sources[at]
    return path[seen[at] :][::-1]
