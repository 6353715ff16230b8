"""Waits of host threads that are taken away, or moved to a later place of their thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from graphlink.errors import UsageError
from graphlink.graph_model import EdgeKind
from graphlink.linking.call_roles import Role, role_of
from graphlink.model import EMPTY, I64, NOWHERE, Bool
from graphlink.replay.assumptions import made
from graphlink.replay.changes import ALL, WaitChange
from graphlink.replay.draft import Draft
from graphlink.replay.records import Made
from graphlink.replay.selection import Selection
from graphlink.replay.syncs import NUMBER, SyncWait, edges_of
from graphlink.replay.workload import Work, Workload, names_found
from graphlink.tables import MOST, codes, grouped, how_many, nowhere, spread, tuples

_OF_THE_WAITING: Final = ("rank", "step", "thread", "path", "line", "nth", "every")
_OF_THE_AWAITED: Final = ("stream", "sort")


def change_wait(draft: Draft, selection: Selection, change: WaitChange) -> Made:
    """Remove or move waits in ``draft``.

    Raises:
        UsageError: it chooses no wait.
    """
    work, waits = draft.work, draft.waits
    if not waits:
        raise UsageError(
            f"{change.title}: the host waits for nothing in this graph (no sync edges but those that close it)",
            todo="a wait for another thread is none of these, and no what-if changes it",
        )
    chosen = _chosen(selection, waits, change)
    if not chosen.any():
        counts = Counter(sorted(name for wait in waits for name in wait.names))  # of equal counts by name
        frequent = [name[:40] for name, _ in counts.most_common(4)]
        raise UsageError(
            f"{change.title}: no wait of that id or name among {len(waits)}",
            todo=f"the most frequent are {', '.join(frequent)}; or {ALL}",
        )
    before, stay = edges_of(work, waits, draft.no_wait), 0
    if change.remove:
        draft.remove_waits(chosen)
    else:
        chosen &= ~draft.removed_waits
        which = np.flatnonzero(chosen)
        places, streams = _places(selection, draft.waits, which, change), _Streams(draft.work)
        for i, place in tuples(which, places):
            if place != NOWHERE:
                draft.move_wait(i, place, streams.awaited(draft.waits[i], place))
        stay = how_many(places == NOWHERE)
    edges = how_many(edges_of(work, waits, draft.no_wait) & ~before)
    count = how_many(chosen) - stay
    note = f"; {stay:,} stay, as there is no such place behind them" if stay else ""
    return made(change, f"{count:,} waits, {edges:,} edges{note}", count, 0)


def _chosen(selection: Selection, waits: Sequence[SyncWait], change: WaitChange) -> Bool:
    work, which = selection.work, str(change.which)
    if which == ALL:
        out = np.ones(len(waits), np.bool_)
    elif NUMBER.fullmatch(which):
        ids = [{work.id(node) for node in (*wait.sources, *wait.targets)} for wait in waits]
        out = np.array([int(which) in of_wait for of_wait in ids])
    else:
        out = np.array([which in wait.names for wait in waits])
    if change.name is not None:
        pattern = change.name
        out &= np.array([any(pattern.search(name) for name in sorted(wait.names)) for wait in waits])
    waiting, awaited = change.part(*_OF_THE_WAITING), change.part(*_OF_THE_AWAITED)
    if waiting.anything:
        out &= selection.nodes(waiting)[[wait.part for wait in waits]]
    if awaited.anything:
        nodes = selection.nodes(awaited)
        out &= np.array([bool(nodes[[*wait.sources]].any()) for wait in waits])
    return out


def _places(selection: Selection, waits: Sequence[SyncWait], which: I64, change: WaitChange) -> I64:
    """Return before which node of its thread each wait goes, ``NOWHERE`` where there is none behind it."""
    work = selection.work
    host = work.column("host") != 0
    if change.move_before is not None:
        host &= names_found(work, change.move_before, families=False) & ~work.is_part
    start, thread = work.column("start_ns"), work.column("tid") * len(work.ranks) + work.member
    nodes = np.flatnonzero(host)
    nodes = nodes[np.lexsort((nodes, start[nodes], thread[nodes]))]
    out = nowhere(len(which))
    for k, i in enumerate(which.tolist()):
        waiting = waits[i].targets[0]
        since_ns = int(start[waiting])
        if change.move_before is None:  # to the end of the step that it begins in
            marks = selection.marks[int(work.member[waiting])]
            since_ns = min((end for _, begin, end in marks if begin <= since_ns < end), default=NOWHERE)
        low, high = np.searchsorted(thread[nodes], [thread[waiting], thread[waiting] + 1])
        place = low + np.searchsorted(start[nodes[low:high]], since_ns)
        if since_ns != NOWHERE and place < high:
            out[k] = nodes[place]
    return out


class _Streams:
    """What is on each stream, in the order of launches. Streams and devices have a number for each node."""

    def __init__(self, work: Workload) -> None:
        device = work.column("device")
        self.work, self.start = work, work.column("start_ns")
        self.device, self.stream = codes(work.member, device), codes(work.member, device, work.column("stream"))
        edge = np.flatnonzero((work.kind == EdgeKind.LAUNCH) & (work.work[work.target] != Work.DELAY))
        op, launched_ns = work.target[edge], self.start[work.source[edge]]
        self.launched_ns = spread(len(work), op, launched_ns, none=MOST)  # far in the future for what was not launched
        order = np.lexsort((op, launched_ns, self.stream[op]))
        self.op, self.at_ns = op[order], launched_ns[order]
        both = np.unique(np.stack([self.device[op], self.stream[op]], axis=1), axis=0)
        self.of_device: dict[int, list[int]] = grouped(both.tolist())
        self.first = np.searchsorted(self.stream[self.op], np.arange(int(self.stream.max(initial=0)) + 2))

    def launched(self, stream: int) -> tuple[I64, I64]:
        """Return the ops of a stream in the order of launches, and when each was launched."""
        rows = slice(int(self.first[stream]), int(self.first[stream + 1]))
        return self.op[rows], self.at_ns[rows]

    def awaited(self, wait: SyncWait, place: int) -> list[int]:
        """Return what a call awaits before the node ``place``: a stream or device synchronisation what is on the
        stream, or on all, by then; all others what they awaited. So does one that awaited several streams where the
        graph does not tell which it names."""
        roles = {role_of(name) for name in wait.names}
        since_ns, at_ns = self.start[[wait.targets[0], place]].tolist()
        streams = self._named(wait)
        if Role.DEVICE_SYNC in roles:
            devices = {int(self.device[source]) for source in wait.sources if self.stream[source] in streams}
            streams = [stream for device in devices for stream in self.of_device.get(device, ())]
        elif roles & {Role.EVENT_SYNC, Role.EVENT_QUERY, Role.COPY} or len(streams) > 1:
            return [*wait.sources]
        return sorted({*wait.sources, *(op for stream in streams for op in self._before(stream, at_ns, since_ns))})

    def _before(self, stream: int, at_ns: int, since_ns: int) -> list[int]:
        """Return what a synchronisation of a stream awaits at a moment: the last op launched before, and what an event
        makes the next one wait for, if the stream was told so by then. When that was is not in the graph: after the
        launch of what is awaited, that of the stream's last op, and ``since_ns``, when it was not awaited yet; before
        the launch of the next op. The middle is taken.
        """
        op, launched_ns = self.launched(stream)
        count = int(np.searchsorted(launched_ns, at_ns))
        last, told = slice(max(count - 1, 0), count), self._told(stream, at_ns)
        earliest_ns = np.maximum(self.launched_ns[told], max(since_ns, *launched_ns[last].tolist(), 0))
        by_then = (earliest_ns < at_ns) & (at_ns - earliest_ns >= launched_ns[count : count + 1] - at_ns)
        return [*op[last].tolist(), *told[by_then].tolist()]

    def _told(self, stream: int, at_ns: int) -> I64:
        """Return what the first op that is launched on a stream from a moment on waits for by events."""
        op, launched_ns = self.launched(stream)
        following = op[np.searchsorted(launched_ns, at_ns) :]
        if not len(following):
            return EMPTY
        into = slice(int(self.work.first[following[0]]), int(self.work.first[following[0] + 1]))
        return np.asarray(self.work.source[into][self.work.kind[into] == EdgeKind.EVENT])

    def _named(self, wait: SyncWait) -> list[int]:
        """Return the stream that a call named which awaited several: the one whose next op waits by events for what is
        on the others; all of them where no one stream or several are like that."""
        sources = np.array(wait.sources, np.int64)
        streams, at_ns = np.unique(self.stream[sources]).tolist(), int(self.start[wait.targets[0]])
        likely = [
            stream
            for stream in streams
            if np.isin(sources[self.stream[sources] != stream], self._told(stream, at_ns)).all()
        ]
        return likely if len(likely) == 1 else streams
