"""Edits the edges of a workload for a what-if; nodes stay where they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphlink.graph_model import EdgeKind
from graphlink.model import I64, NOWHERE, U8, Bool
from graphlink.replay.selection import Selection
from graphlink.replay.workload import Work, Workload
from graphlink.tables import begins, concat, take

Row = tuple[int, int, int, int]  # target, source, kind, lag (ns)


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges, an entry each: ``target`` begins ``lag_ns`` after ``source`` has ended."""

    target: I64
    source: I64
    kind: U8
    lag_ns: I64

    @staticmethod
    def of(rows: Sequence[Row]) -> Edges:
        """Return edges that are given one by one."""
        target, source, kind, lag_ns = np.array(rows, np.int64).reshape(-1, 4).T
        return Edges(target, source, kind.astype(np.uint8), lag_ns)

    def joined(self, more: Edges) -> Edges:
        """Return these and ``more``, of several between two nodes the one with the longest lag."""
        if not len(more.target):
            return self
        both = concat(self, more)
        both = take(both, np.lexsort((-both.lag_ns, both.source, both.target)))
        return take(both, begins(both.source, both.target))

    def into(self, work: Workload, **changes: Any) -> Workload:
        """Return ``work`` with these edges, which stand by target, and other ``changes`` of its fields."""
        first = np.append(0, np.cumsum(np.bincount(self.target, minlength=len(work))))
        source = self.source.astype(np.int32)
        return replace(work, first=first, source=source, kind=self.kind, lag_ns=self.lag_ns, **changes)


class NewEdges(list[Row]):
    """Edges to be added. Those without a source or target are left out."""

    def add(self, source: int, target: int, kind: EdgeKind, lag_ns: int = 0) -> None:
        if NOWHERE not in (source, target):
            self.append((target, source, kind, lag_ns))


def rewired(work: Workload, gone: Bool, new: Sequence[Row] = ()) -> Workload:
    """Return ``work`` without the edges ``gone`` (one entry per edge) and with those of ``new``. n log n in edges."""
    edges = Edges(work.target, work.source.astype(np.int64), work.kind, work.lags())
    edges = concat(take(edges, ~gone), Edges.of(new))
    return take(edges, np.lexsort((edges.source, edges.target))).into(work)


def skipped(beside: I64, gone: Bool) -> I64:
    """Return for every node ``gone`` the first one that stays, going from each to ``beside`` (a node or ``NOWHERE``);
    of others itself.

    ``NOWHERE`` where there is none, as in a circle, which files of others may have. n log n.
    """
    n = len(beside)
    to = np.append(np.where(gone, np.where(beside == NOWHERE, n, beside), np.arange(n)), n)
    for _ in range(n.bit_length()):
        to = to[to]
    to = to[:n]
    return np.where((to == n) | np.append(gone, False)[to], NOWHERE, to)


def outermost(work: Workload, head: Bool) -> I64:
    """Return for every host node the outermost of the nodes ``head`` that called it on its thread, itself included;
    ``NOWHERE`` without one. n log n."""
    tid, caller = work.column("tid"), Selection(work).callers
    inside = (caller != NOWHERE) & (work.work == Work.HOST) & (tid == tid[caller])
    above = np.where(inside, caller, NOWHERE)
    nested = head & inside & (skipped(above, ~head)[caller] != NOWHERE)
    return skipped(above, ~(head & ~nested))
