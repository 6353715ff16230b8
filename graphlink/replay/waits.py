"""Waits of host threads that are taken away, or moved to a later place of their thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from graphlink.errors import UsageError
from graphlink.graph_model import EdgeKind
from graphlink.model import I64, NOWHERE, Bool
from graphlink.replay.assumptions import made
from graphlink.replay.changes import ALL, Selector, WaitChange
from graphlink.replay.records import Made
from graphlink.replay.selection import Selection
from graphlink.replay.syncs import NUMBER, SyncWait, edges_of, sync_waits
from graphlink.replay.workload import Workload, names_found
from graphlink.tables import begins

_OF_THE_WAITING: Final = ("rank", "step", "thread", "path", "line")
_OF_THE_AWAITED: Final = ("stream", "sort")


def change_waits(work: Workload, selection: Selection, changes: Sequence[WaitChange]) -> tuple[Workload, tuple[Made, ...]]:
    """Return ``work`` without the waits that are removed, and with those that are moved at their new place; and what each change did.
    A wait that several changes choose is changed by the first.

    Raises:
        UsageError: a change chooses no wait.
    """
    waits, done = sync_waits(work), []
    if not waits:
        raise UsageError("--remove-sync: the host waits for nothing in this graph (no sync edges but those that close it)")
    gone = np.zeros(len(waits), np.bool_)
    edges = np.zeros(len(work.kind), np.bool_)
    added: list[tuple[int, int, int]] = []  # target, source, lag
    for change in changes:
        named = _chosen(selection, waits, change)
        if not named.any():
            at_most = ", ".join(_examples(waits))
            what = f"{change.title}: no wait of that id or name among {len(waits)}"
            raise UsageError(what, todo=f"the most frequent are {at_most}; or {ALL}")
        mine, note = named & ~gone, ""
        if not change.remove:
            places = _places(selection, waits, np.flatnonzero(mine), change)
            some = np.flatnonzero(mine)
            mine[some[places == NOWHERE]] = False
            stay = int(np.count_nonzero(places == NOWHERE))
            note = f"; {stay:,} stay, as there is no such place behind them" if stay else ""
            for i, place in zip(some.tolist(), places.tolist(), strict=True):
                added += [] if place == NOWHERE else _edges(work, waits[i], place)
        gone |= mine
        now = edges_of(work, waits, gone)
        count = int(np.count_nonzero(now & ~edges))
        shown = int(np.count_nonzero(named)) if change.remove else int(np.count_nonzero(mine))
        done.append(made(change.kind, f"{change.done}: {shown:,} waits, {count:,} edges{note}", shown, 0))
        edges = now
    return _with_edges(work, ~edges, added), tuple(done)


def _chosen(selection: Selection, waits: Sequence[SyncWait], change: WaitChange) -> Bool:
    work, which = selection.work, str(change.which)
    out = np.array([which == ALL or _answers(work, wait, which) for wait in waits])
    if change.name is not None:
        pattern = change.name
        out &= np.array([any(pattern.search(name) for name in sorted(wait.names)) for wait in waits])
    waiting, awaited = (Selector(**{name: getattr(change, name) for name in names}) for names in (_OF_THE_WAITING, _OF_THE_AWAITED))
    if waiting.anything:
        out &= selection.nodes(waiting)[[wait.targets[0] for wait in waits]]
    if awaited.anything:
        nodes = selection.nodes(awaited)
        out &= np.array([bool(nodes[list(wait.sources)].any()) for wait in waits])
    return out


def _answers(work: Workload, wait: SyncWait, what: str) -> bool:
    if NUMBER.fullmatch(what):
        return int(what) in {work.id(i) for i in (*wait.sources, *wait.targets)}
    return what in wait.names


def _examples(waits: Sequence[SyncWait]) -> list[str]:
    counts = Counter(name for w in waits for name in w.names)
    return [name[:40] for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:4]]


def _places(selection: Selection, waits: Sequence[SyncWait], which: I64, change: WaitChange) -> I64:
    """Return before which node of its thread each wait goes, ``NOWHERE`` where there is none behind it."""
    work = selection.work
    host = np.flatnonzero(work.column("host") != 0)
    if change.move_before is not None:
        host = host[names_found(work, change.move_before, families=False)[host] & ~work.is_part[host]]
    start, thread = work.column("start_ns"), work.column("tid") * len(work.ranks) + work.member
    host = host[np.lexsort((host, start[host], thread[host]))]
    out = np.full(len(which), NOWHERE, np.int64)
    for k, i in enumerate(which.tolist()):
        node = waits[i].targets[0]
        since_ns = int(start[node]) + 1 if change.move_before is not None else _end_of_step(selection, node)
        low, high = np.searchsorted(thread[host], thread[node], "left"), np.searchsorted(thread[host], thread[node], "right")
        at = low + np.searchsorted(start[host[low:high]], since_ns)
        if since_ns != NOWHERE and at < high:
            out[k] = host[at]
    return out


def _end_of_step(selection: Selection, node: int) -> int:
    """Return when the step ends that a node begins in; ``NOWHERE`` where it is in none."""
    at_ns = int(selection.work.column("start_ns")[node])
    marks = selection.marks[int(selection.work.member[node])]
    return min((end for _, start, end in marks if start <= at_ns < end), default=NOWHERE)


def _edges(work: Workload, wait: SyncWait, place: int) -> list[tuple[int, int, int]]:
    """Return (target, source, lag) of the edges of a wait at its new place."""
    lags = work.lags()
    late_ns = max(int(lags[edge]) for edge in wait.edges)
    return [(place, source, late_ns) for source in wait.sources]


def _with_edges(work: Workload, kept: Bool, added: Sequence[tuple[int, int, int]]) -> Workload:
    """Return ``work`` with the edges ``kept``, and ``sync`` edges added."""
    new = np.array(added, np.int64).reshape(-1, 3)
    target = np.concatenate([work.target[kept], new[:, 0]])
    source = np.concatenate([work.source[kept], new[:, 1].astype(np.int32)]).astype(np.int32)
    kind = np.concatenate([work.kind[kept], np.full(len(new), EdgeKind.SYNC, np.uint8)])
    lag = np.concatenate([work.lags()[kept], new[:, 2]])
    order = np.lexsort((-lag, source, target)) if len(new) else np.arange(len(target))
    order = order[begins(source[order], target[order])] if len(new) else order
    first = np.append(0, np.cumsum(np.bincount(target[order], minlength=len(work))))
    return replace(work, first=first, source=source[order], kind=kind[order], lag_ns=None if work.lag_ns is None else lag[order])
