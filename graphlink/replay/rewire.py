"""Edits the edges of a workload for a what-if; nodes stay where they are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from graphlink.graph_model import EdgeKind
from graphlink.model import I64, NOWHERE, Bool
from graphlink.replay.selection import Selection
from graphlink.replay.workload import Work, Workload


@dataclass(frozen=True, slots=True)
class Restructured:
    """A workload with another structure: ``what`` became of it, of how many ``nodes``, and by how much their times
    grew, added up.
    """

    work: Workload
    what: str
    nodes: int
    ns: int


@dataclass(slots=True)
class NewEdges:
    """Edges to be added: ``target`` begins ``lag_ns`` after ``source`` has ended. Those without a source or target are
    left out.
    """

    source: list[int] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    lag_ns: list[int] = field(default_factory=list)

    def add(self, source: int, target: int, kind: EdgeKind, lag_ns: int = 0) -> None:
        if NOWHERE not in (source, target):
            self.source.append(source)
            self.target.append(target)
            self.kind.append(kind)
            self.lag_ns.append(lag_ns)


def rewired(work: Workload, gone: Bool, new: NewEdges | None = None) -> Workload:
    """Return ``work`` without the edges ``gone`` (one entry per edge) and with those of ``new``. n log n in edges."""
    new = new or NewEdges()
    target = np.concatenate([work.target[~gone], np.array(new.target, np.int64)])
    source = np.concatenate([work.source[~gone], np.array(new.source, np.int32)])
    kind = np.concatenate([work.kind[~gone], np.array(new.kind, np.uint8)])
    order = np.lexsort((source, target))
    first = np.append(0, np.cumsum(np.bincount(target, minlength=len(work))))
    lags = np.concatenate([work.lags()[~gone], np.array(new.lag_ns, np.int64)])[order]
    lag_ns = None if work.lag_ns is None and not lags.any() else lags
    return replace(work, first=first, source=source[order], kind=kind[order], lag_ns=lag_ns)


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
