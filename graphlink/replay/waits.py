"""Waits of host threads that are taken away, or moved to a later place of their thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.errors import UsageError
from graphlink.graph_model import EdgeKind
from graphlink.linking.call_roles import Role, role_of
from graphlink.model import I32, I64, NOWHERE, Bool
from graphlink.replay.assumptions import made
from graphlink.replay.changes import ALL, Selector, WaitChange
from graphlink.replay.draft import Draft
from graphlink.replay.records import Made
from graphlink.replay.selection import Selection
from graphlink.replay.syncs import NUMBER, SyncWait, edges_of
from graphlink.replay.workload import Work, Workload, names_found

_OF_THE_WAITING: Final = ("rank", "step", "thread", "path", "line")
_OF_THE_AWAITED: Final = ("stream", "sort")


def change_wait(draft: Draft, selection: Selection, change: WaitChange) -> Made:
    """Remove or move waits in ``draft``.

    Raises:
        UsageError: it chooses no wait.
    """
    waits = draft.waits
    if not waits:
        what = f"{change.title}: the host waits for nothing in this graph (no sync edges but those that close it)"
        raise UsageError(what, todo="a wait for another thread is none of these, and no what-if changes it")
    named = _chosen(selection, waits, change)
    if not named.any():
        what = f"{change.title}: no wait of that id or name among {len(waits)}"
        raise UsageError(what, todo=f"the most frequent are {', '.join(_examples(waits))}; or {ALL}")
    if not change.remove:
        named &= ~draft.removed_waits
    before = edges_of(draft.work, waits, draft.no_wait)
    stay = 0 if change.remove else _move(draft, selection, named, change)
    if change.remove:
        draft.remove_waits(named)
    edges = int(np.count_nonzero(edges_of(draft.work, waits, draft.no_wait) & ~before))
    count = int(np.count_nonzero(named)) - stay
    note = f"; {stay:,} stay, as there is no such place behind them" if stay else ""
    return made(change.kind, f"{change.done}: {count:,} waits, {edges:,} edges{note}", count, 0)


def _move(draft: Draft, selection: Selection, named: Bool, change: WaitChange) -> int:
    """Move the waits ``named``; return how many stay, as there is no such place behind them."""
    which, streams = np.flatnonzero(named), _streams(draft.work)
    places = _places(selection, draft.waits, which, change)
    for i, place in zip(which.tolist(), places.tolist(), strict=True):
        if place != NOWHERE:
            draft.move_wait(i, place, _awaited(draft.waits[i], place, streams))
    return int(np.count_nonzero(places == NOWHERE))


def _chosen(selection: Selection, waits: Sequence[SyncWait], change: WaitChange) -> Bool:
    work, which = selection.work, str(change.which)
    out = np.array([which == ALL or _answers(work, wait, which) for wait in waits])
    if change.name is not None:
        pattern = change.name
        out &= np.array([any(pattern.search(name) for name in sorted(wait.names)) for wait in waits])
    waiting, awaited = (
        Selector(**{name: getattr(change, name) for name in names}) for names in (_OF_THE_WAITING, _OF_THE_AWAITED)
    )
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
        since_ns = int(start[node]) if change.move_before is not None else _end_of_step(selection, node)
        low, high = (
            np.searchsorted(thread[host], thread[node], "left"),
            np.searchsorted(thread[host], thread[node], "right"),
        )
        at = low + np.searchsorted(start[host[low:high]], since_ns)
        if since_ns != NOWHERE and at < high:
            out[k] = host[at]
    return out


def _end_of_step(selection: Selection, node: int) -> int:
    """Return when the step ends that a node begins in; ``NOWHERE`` where it is in none."""
    at_ns = int(selection.work.column("start_ns")[node])
    marks = selection.marks[int(selection.work.member[node])]
    return min((end for _, start, end in marks if start <= at_ns < end), default=NOWHERE)


_StreamKey = tuple[int, int, int]  # member, device, stream
_NOTHING: Final = (np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class _Streams:
    """What is on each stream, in the order of launches: ``of`` has when each op was launched, and the ops; ``key``: a
    row for each node.
    """

    work: Workload
    of: dict[_StreamKey, tuple[I64, I64]]
    key: I64
    launched_ns: I64  # of each node; far in the future for what was not launched

    def before(self, key: _StreamKey, at_ns: int, since_ns: int) -> list[int]:
        """Return what a synchronisation of a stream awaits at a moment: the last op launched before, and what an event
        makes the next one wait for, if the stream was told so by then. When that was is not in the graph: after the
        launch of what is awaited, that of the stream's last op, and ``since_ns``, when it was not awaited yet; before
        the launch of the next op. The middle is taken.
        """
        launched_ns, node = self.of.get(key, _NOTHING)
        at = int(np.searchsorted(launched_ns, at_ns))
        last, told = slice(max(at - 1, 0), at), self.told(key, at_ns)
        earliest_ns = np.maximum(self.launched_ns[told], max(since_ns, *launched_ns[last].tolist(), 0))
        by_then = (earliest_ns < at_ns) & (at_ns - earliest_ns >= launched_ns[at : at + 1] - at_ns)
        return [*map(int, node[last]), *map(int, told[by_then])]

    def told(self, key: _StreamKey, at_ns: int) -> I32:
        """Return what the first op that is launched on a stream from a moment on waits for by events."""
        launched_ns, node = self.of.get(key, _NOTHING)
        at = int(np.searchsorted(launched_ns, at_ns))
        edges = (
            slice(int(self.work.first[node[at]]), int(self.work.first[node[at] + 1])) if at < len(node) else slice(0)
        )
        return np.asarray(self.work.source[edges][self.work.kind[edges] == EdgeKind.EVENT], np.int32)

    def named(self, wait: SyncWait) -> set[_StreamKey]:
        """Return the stream that a call named which awaited several: the one whose next op waits by events for what is
        on the others; all of them where no one stream or several are like that."""
        keys: set[_StreamKey] = {(a, b, c) for a, b, c in self.key[[*wait.sources]].tolist()}
        at_ns = int(self.work.column("start_ns")[wait.targets[0]])
        likely = {
            key
            for key in keys
            if {s for s in wait.sources if tuple(self.key[s].tolist()) != key} <= set(self.told(key, at_ns).tolist())
        }
        return likely if len(likely) == 1 else keys


def _streams(work: Workload) -> _Streams:
    key = np.stack([work.member.astype(np.int64), work.column("device"), work.column("stream")], axis=1)
    edge = np.flatnonzero(work.kind == EdgeKind.LAUNCH)
    edge = edge[work.work[work.target[edge]] != Work.DELAY]
    node, launched_ns = work.target[edge], work.column("start_ns")[work.source[edge]]
    of_node = np.full(len(work), np.iinfo(np.int64).max)
    of_node[node] = launched_ns
    order = np.lexsort((node, launched_ns))
    node, launched_ns = node[order], launched_ns[order]
    rows, which = np.unique(key[node], axis=0, return_inverse=True)
    which = which.reshape(-1)
    of = {(a, b, c): (launched_ns[which == i], node[which == i]) for i, (a, b, c) in enumerate(rows.tolist())}
    return _Streams(work, of, key, of_node)


def _awaited(wait: SyncWait, place: int, streams: _Streams) -> list[int]:
    """Return what a call awaits at another place: a stream or device synchronisation what is on the stream, or on all,
    by then; all others what they awaited. So does one that awaited several streams where the graph does not tell which
    it names."""
    roles = {role_of(name) for name in wait.names}
    keys = streams.named(wait)
    if Role.DEVICE_SYNC in roles:
        keys = {key for key in streams.of if any(key[:2] == one[:2] for one in keys)}
    elif roles & {Role.EVENT_SYNC, Role.EVENT_QUERY, Role.COPY} or len(keys) > 1:
        return [*wait.sources]
    since_ns, at_ns = streams.work.column("start_ns")[[wait.targets[0], place]].tolist()
    return sorted({*wait.sources, *(op for key in keys for op in streams.before(key, at_ns, since_ns))})
