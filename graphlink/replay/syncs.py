"""Waits of host threads: which edges stand for one wait."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from graphlink.graph.families import family_of
from graphlink.graph_model import EdgeKind
from graphlink.linking.call_roles import Role, role_of
from graphlink.model import I64, NOWHERE, Bool
from graphlink.patterns import END
from graphlink.replay.workload import Work, Workload, names_found

RUNTIME_CALL: Final = re.compile(r"(?:cuda|cu|hip)[A-Z]\w*")
NUMBER: Final = re.compile(r"\d{1,20}")
_CUT: Final = re.compile(r" \(cont\.\)\Z")


@dataclass(frozen=True, slots=True)
class SyncWait:
    """One wait of a host thread: the edges that stand for it (to the part after the cut, and on to the next operator),
    by target.

    ``part``: the node that follows in the waiting op, else the next operator; ``names``: the waiting op, and the call
    where the graph has it.
    """

    part: int
    edges: tuple[int, ...]
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    names: frozenset[str]


def sync_waits(work: Workload) -> list[SyncWait]:
    """Return the waits of a workload, by the node that follows. A wait that was cut has an edge to the part after the
    cut, and one from the same device op to the next operator of the thread: both are one wait. A wait that found all
    done was not cut and has the latter alone; so an edge to an operator may stand for several. A stream synchronisation
    behind a copy that blocked for itself is in the op that copied (``.cpu()`` makes both calls). ``end`` follows every
    leaf: it waits only where the graph names a call whose wait ended there. n log n in ``sync`` edges.
    """
    cut = names_found(work, _CUT, families=False) | (work.work == Work.GAP)
    end = names_found(work, END, families=False) & (work.work == Work.HOST)
    edges = np.flatnonzero(work.kind == EdgeKind.SYNC)
    all_targets = work.target
    source, target = work.source[edges], all_targets[edges]
    thread = work.column("tid")[target]
    waits: dict[tuple[int, str], list[int]] = defaultdict(list)  # by the node that follows and the call
    opened: tuple[int, str] | None = None
    before = (NOWHERE, NOWHERE)
    for i in np.lexsort((edges, target, thread, source)).tolist():
        edge, node = int(edges[i]), int(target[i])
        source_and_thread = int(source[i]), int(thread[i])
        if source_and_thread != before:
            before, opened = source_and_thread, None
        calls = _calls(work, edge, node)
        if cut[node]:
            owners = [opened := (node, calls)]
        else:
            owners = [(opened[0] if opened and _copied(opened[1], call) else node, call) for call in calls.split()]
            owners += [opened] if opened else [] if owners or end[node] else [(node, "")]
            opened = None
        for owner in owners:
            waits[owner].append(edge)
    return [_wait(work, all_targets, part, calls, sorted(own)) for (part, calls), own in sorted(waits.items())]


def _calls(work: Workload, edge: int, node: int) -> str:
    """Return the names of the calls that a ``sync`` edge into ``node`` stands for by itself, with spaces between; ""
    where the graph has none.
    """
    calls = work.file_of(node).file.sync_call.get(int(work.position[node]), ())
    low, high = int(work.first[node]), int(work.first[node + 1])
    return calls[edge - low] if len(calls) == high - low else " ".join(calls)


def _copied(before: str, call: str) -> bool:
    """Tell whether ``call`` awaits the stream of a copy that the call ``before`` awaited."""
    return role_of(before) in (Role.COPY, Role.COPY_ASYNC) and role_of(call) == Role.STREAM_SYNC


def _wait(work: Workload, target: I64, part: int, calls: str, edges: list[int]) -> SyncWait:
    names = {family_of(work.name(part))}
    if work.work[part] == Work.GAP:  # after a call outside any op, which is the node before
        into = slice(int(work.first[part]), int(work.first[part + 1]))
        names = {work.name(node) for node in work.source[into][work.kind[into] == EdgeKind.HOST].tolist()}
    sources, targets = (np.unique(ends[edges]).tolist() for ends in (work.source, target))
    return SyncWait(part, tuple(edges), tuple(sources), tuple(targets), frozenset(names | set(calls.split())))


def edges_of(work: Workload, waits: Sequence[SyncWait], which: Bool) -> Bool:
    """Return the edges that stand for the waits ``which`` and for no others: an edge that stands for several goes with
    the last of them.
    """
    count = len(work.kind)
    every = np.bincount([edge for wait in waits for edge in wait.edges], minlength=count)
    chosen = [wait for wait, is_chosen in zip(waits, which.tolist(), strict=True) if is_chosen]
    gone = np.bincount([edge for wait in chosen for edge in wait.edges], minlength=count)
    return np.asarray((gone > 0) & (gone == every))


def waiting_ranks(work: Workload, node_id: int) -> tuple[int, ...]:
    """Return the ranks on which the node of this id waits or is waited for."""
    sync = work.kind == EdgeKind.SYNC
    ends = np.unique(np.append(work.source[sync], work.target[sync])).tolist()
    return tuple(sorted({work.rank(node) for node in ends if work.id(node) == node_id}))


def waiting_lines(operations: Mapping[int, Any], op: str) -> Counter[str]:
    """Return for how many ns each Python line waited in an op or call of this name; empty where no stack was
    recorded.
    """
    waited = Counter[str]()
    for file in operations.values():
        for one in file.waits:
            if one.stack and op in (one.call, *one.path[-1:]):
                waited[one.stack[-1]] += one.ns
    return waited


def awaited(work: Workload, waits: Sequence[SyncWait]) -> list[int]:
    """Return of each wait the node that ended last of those that were waited for."""
    ended = work.column("start_ns") + work.column("duration_ns")
    return [max(wait.sources, key=lambda one: int(ended[one])) for wait in waits]


def waiting_ops(wait: SyncWait) -> list[str]:
    """Return the names of the op that waits; of the call, where that lies outside any op."""
    return sorted(name for name in wait.names if not RUNTIME_CALL.fullmatch(name)) or sorted(wait.names)


def blocked_ns(work: Workload) -> I64:
    """Return for how long the thread of each host node did nothing before it, as recorded."""
    source = work.source_of(EdgeKind.HOST)
    start = work.column("start_ns")
    ended = start + work.column("duration_ns") - work.column("wake_ns")
    return np.where(source == NOWHERE, 0, np.maximum(start - ended[source], 0))
