"""Waits of host threads: which edges stand for one wait."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.graph.families import family_of
from graphlink.graph_model import EdgeKind
from graphlink.model import I64, NOWHERE, Bool
from graphlink.replay.workload import Work, Workload, names_found

NUMBER: Final = re.compile(r"\d{1,20}")
_END: Final = re.compile(r"\Aend\Z")
_CUT: Final = re.compile(r" \(cont\.\)\Z")


@dataclass(frozen=True, slots=True)
class SyncWait:
    """One wait of a host thread: the edges that stand for it (to the part after the cut, and on to the next operator),
    by target.

    ``names``: the waiting op, and the call where the graph has it.
    """

    edges: tuple[int, ...]
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    names: frozenset[str]


def sync_waits(work: Workload) -> list[SyncWait]:
    """Return the waits of a workload, by the node that follows. A wait that was cut has an edge to the part after the
    cut, and one from the same device op to the next operator of the thread: both are one wait. A wait that found all
    done was not cut and has the latter alone; so an edge to an operator may stand for several. ``end`` follows every
    leaf: it waits only where the graph names a call whose wait ended there. n log n in ``sync`` edges.
    """
    target_of = work.target
    edges = np.flatnonzero(work.kind == EdgeKind.SYNC)
    cut = names_found(work, _CUT, families=False) | (work.work == Work.GAP)
    end = names_found(work, _END, families=False) & (work.work == Work.HOST)
    thread = work.column("tid")
    order = sorted(edges.tolist(), key=lambda e: (int(work.source[e]), int(thread[target_of[e]]), int(target_of[e])))
    waits: dict[tuple[int, str], list[int]] = {}  # by the node that follows and the call
    opened: tuple[int, str] | None = None
    before = (NOWHERE, NOWHERE)
    for e in order:
        target = int(target_of[e])
        source_and_thread = int(work.source[e]), int(thread[target])
        if source_and_thread != before:
            before, opened = source_and_thread, None
        calls = _calls(work, e, target)
        if cut[target]:
            owners = [opened := (target, calls)]
        else:
            owners = [(target, call) for call in calls.split()]
            owners += [opened] if opened else [] if owners or end[target] else [(target, "")]
            opened = None
        for owner in owners:
            waits.setdefault(owner, []).append(e)
    return [_wait(work, target_of, *owner, sorted(es)) for owner, es in sorted(waits.items())]


def _calls(work: Workload, edge: int, target: int) -> str:
    """Return the names of the calls that a ``sync`` edge stands for by itself, with spaces between; "" where the graph
    has none.
    """
    calls = work.file_of(target).file.sync_call.get(int(work.position[target]), ())
    low, high = int(work.first[target]), int(work.first[target + 1])
    return calls[edge - low] if len(calls) == high - low else " ".join(calls)


def _wait(work: Workload, target_of: I64, part: int, calls: str, edges: list[int]) -> SyncWait:
    names = {family_of(work.name(part))}
    if work.work[part] == Work.GAP:  # after a call outside any op, which is the node before
        inside = slice(int(work.first[part]), int(work.first[part + 1]))
        names = {
            work.name(i)
            for i, k in zip(work.source[inside].tolist(), work.kind[inside].tolist(), strict=True)
            if k == EdgeKind.HOST
        }
    return SyncWait(
        tuple(edges),
        tuple(sorted({int(work.source[e]) for e in edges})),
        tuple(sorted({int(target_of[e]) for e in edges})),
        frozenset(names | set(calls.split())),
    )


def edges_of(work: Workload, waits: Sequence[SyncWait], which: Bool) -> Bool:
    """Return the edges that stand for the waits ``which`` and for no others: an edge that stands for several goes with
    the last of them.
    """
    every = np.bincount([e for wait in waits for e in wait.edges], minlength=len(work.kind))
    gone = np.bincount(
        [e for wait, one in zip(waits, which.tolist(), strict=True) if one for e in wait.edges],
        minlength=len(work.kind),
    )
    return np.asarray((gone > 0) & (gone == every))


def waiting_ranks(work: Workload, node_id: int) -> tuple[int, ...]:
    """Return the ranks on which the node of this id waits or is waited for."""
    sync = work.kind == EdgeKind.SYNC
    ends = np.unique(np.concatenate([work.source[sync], work.target[sync]]))
    return tuple(sorted({work.rank(i) for i in ends.tolist() if work.id(i) == node_id}))
