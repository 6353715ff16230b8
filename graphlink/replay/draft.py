"""A workload whose times and waits are being changed, and the workload that becomes of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from graphlink.errors import UsageError
from graphlink.graph.latency import lag_ns
from graphlink.graph_model import EdgeKind
from graphlink.model import I64, U8, Bool
from graphlink.replay.syncs import SyncWait, edges_of
from graphlink.replay.workload import MOST_NS, Workload, delays
from graphlink.tables import begins

_BETWEEN_DEVICE_OPS: Final = (EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.COLLECTIVE)
_FROM_DEVICE_OPS: Final = (*_BETWEEN_DEVICE_OPS, EdgeKind.SYNC)


@dataclass
class Draft:
    """The times of the nodes of ``work``, an entry per node, and its waits, both edited in place.

    ``cost``, ``fixed``: as in ``Workload``. ``wake``: what of the cost is only spent because a call had to wait.
    ``launch``, ``stream``, ``explained``: as ``Delayed``. ``gone``: nodes that were removed. Of ``waits``, ``no_wait``
    are not where they were; those that are elsewhere are in ``moved``, with the node before which they wait, and the
    device ops that they wait for there.
    """

    work: Workload
    cost: I64
    fixed: I64
    wake: I64
    launch: I64
    stream: I64
    explained: I64
    gone: Bool
    waits: list[SyncWait]
    no_wait: Bool
    moved: dict[int, tuple[int, list[int]]] = field(default_factory=dict)

    @staticmethod
    def of(work: Workload, waits: list[SyncWait]) -> Draft:
        """Return all as recorded."""
        start = work.column("start_ns")
        split = delays(work, start + work.column("duration_ns"), start - work.fixed_ns)
        wake = np.where(work.cost_ns > 0, work.column("wake_ns"), 0)
        parts = (split.launch_ns, split.stream_ns, split.explained_ns)
        none = np.zeros(len(work), np.bool_)
        return Draft(
            work, work.cost_ns.copy(), work.fixed_ns.copy(), wake, *parts, none, waits, np.zeros(len(waits), np.bool_)
        )

    def workload(self) -> Workload:
        """Return the workload with these times and waits.

        What a call took to wake up can now go, and launch latency runs in parallel with what else an op waits for: both
        are as recorded in the recording, so only a what-if tells them from the rest.

        Raises:
            UsageError: the times add up to more than int64 ns can be sure to hold.
        """
        if float(np.abs(self.cost, dtype=np.float64).sum()) > MOST_NS:
            raise UsageError("the changed times add up to more than 36 years", todo="choose smaller ones")
        work = self.work
        explained = np.minimum(self.explained, self.cost)
        wake = np.minimum(self.wake, self.cost - explained)
        lags = lag_ns(work.first, work.kind, self.launch, self.stream, wake)
        edges = _Edges(work.target, work.source.astype(np.int64), work.kind, lags)
        edges = edges.of(~edges_of(work, self.waits, self.no_wait)).with_waits(self._moved(lags))
        if self.gone.any():
            edges = _past(work, edges, self.gone & (work.column("host") == 0))
        return replace(
            work,
            cost_ns=self.cost - wake - explained,
            micros_ns=np.maximum(work.micros_ns + self.cost - work.cost_ns, 0),
            fixed_ns=np.maximum(self.fixed - explained, 0),
            first=np.append(0, np.cumsum(np.bincount(edges.target, minlength=len(work)))),
            source=edges.source.astype(np.int32),
            kind=edges.kind,
            lag_ns=edges.lag_ns,
            gone=self.gone if self.gone.any() else None,
        )

    def _moved(self, lags: I64) -> I64:
        """Return (target, source, lag) of the edges of waits that were moved. One that found all done where it was
        recorded, and may have to wait now, takes the median of the others to wake up."""
        waking = lags[(self.work.kind == EdgeKind.SYNC) & (lags > 0)]
        usual_ns = round(float(np.median(waking))) if len(waking) else 0
        rows = [
            (place, source, int(lags[[*self.waits[i].edges]].max()) or usual_ns)
            for i, (place, sources) in self.moved.items()
            for source in sources
        ]
        return np.array(rows, np.int64).reshape(-1, 3)

    def scale(self, nodes: Bool, factor: float) -> None:
        """Multiply the time of nodes, but for start delays."""
        self.cost[nodes] = times(self.cost[nodes] - self.fixed[nodes], factor) + self.fixed[nodes]
        self.wake[nodes] = times(self.wake[nodes], factor)

    def scale_delays(self, nodes: Bool, factor: float) -> None:
        """Multiply what launch and stream explain of the delays of nodes."""
        for ns in (self.launch, self.stream, self.explained):
            ns[nodes] = times(ns[nodes], factor)

    def scale_start_delays(self, nodes: Bool, factor: float) -> None:
        """Multiply the start delays of nodes."""
        less = times(self.fixed[nodes], factor)
        self.cost[nodes] += less - self.fixed[nodes]
        self.fixed[nodes] = less

    def set_own(self, nodes: I64, own_ns: I64) -> None:
        """Set the time of nodes, but for start delays; what they take to wake up becomes no more than that."""
        self.cost[nodes] = own_ns + self.fixed[nodes]
        self.wake[nodes] = np.minimum(self.wake[nodes], own_ns)

    def remove(self, nodes: Bool) -> None:
        """Let nodes take no time, delay nothing and meet nobody."""
        for ns in (self.cost, self.fixed, self.wake, self.launch, self.stream, self.explained):
            ns[nodes] = 0
        self.gone |= nodes

    @property
    def removed_waits(self) -> Bool:
        """Return which waits are nowhere any more."""
        out = self.no_wait.copy()
        out[[*self.moved]] = False
        return out

    def remove_waits(self, which: Bool) -> None:
        """Remove waits, wherever they are by now."""
        self.no_wait |= which
        self.moved = {i: place for i, place in self.moved.items() if not which[i]}

    def move_wait(self, which: int, place: int, awaited: list[int]) -> None:
        """Let a wait be before the node ``place``, for the device ops ``awaited``."""
        self.no_wait[which] = True
        self.moved[which] = place, awaited


@dataclass(frozen=True, slots=True)
class _Edges:
    """Edges by target, an entry each, as in ``Workload``."""

    target: I64
    source: I64
    kind: U8
    lag_ns: I64

    def of(self, which: Bool | I64) -> _Edges:
        """Return some of the edges, or all in another order."""
        return _Edges(self.target[which], self.source[which], self.kind[which], self.lag_ns[which])

    def with_waits(self, rows: I64) -> _Edges:
        """Return these and ``sync`` edges: target, source, lag. Of several edges between two nodes the one with the
        longest lag stays.
        """
        return self.joined(_Edges(rows[:, 0], rows[:, 1], np.full(len(rows), EdgeKind.SYNC, np.uint8), rows[:, 2]))

    def joined(self, more: _Edges) -> _Edges:
        """Return these and ``more``, of several between two nodes the one with the longest lag."""
        if not len(more.target):
            return self
        both = _Edges(*(np.concatenate([getattr(self, name), getattr(more, name)]) for name in _Edges.__slots__))
        both = both.of(np.lexsort((-both.lag_ns, both.source, both.target)))
        return both.of(begins(both.source, both.target))


def _past(work: Workload, edges: _Edges, gone: Bool) -> _Edges:
    """Return the edges where what waited for device ops that are ``gone`` waits for what those had waited for on the
    device.
    """
    between = np.isin(edges.kind, _BETWEEN_DEVICE_OPS)
    into = np.flatnonzero(gone[edges.target] & between)
    before: dict[int, dict[tuple[int, int, int], int]] = {}  # node -> the last op of each stream that it waits for
    key = np.stack([work.member.astype(np.int64), work.column("device"), work.column("stream")], axis=1)
    for target, source in zip(edges.target[into].tolist(), edges.source[into].tolist(), strict=True):
        mine = before.setdefault(target, {})
        for one in before.get(source, {}).values() if gone[source] else (source,):
            of = tuple(key[one].tolist())
            mine[of] = max(mine.get(of, one), one)
    out = gone[edges.source] & np.isin(edges.kind, _FROM_DEVICE_OPS)
    rows = [
        (target, one, kind, lag)
        for target, source, kind, lag in zip(
            *(getattr(edges.of(out), name).tolist() for name in _Edges.__slots__), strict=True
        )
        for one in before.get(source, {}).values()
        if not gone[target]
    ]
    new = np.array(rows, np.int64).reshape(-1, 4)
    return edges.of(~out).joined(_Edges(new[:, 0], new[:, 1], new[:, 2].astype(np.uint8), new[:, 3]))


def times(ns: I64, factor: float) -> I64:
    """Multiply times.

    Raises:
        UsageError: one gets beyond 2**60 ns.
    """
    scaled = np.rint(ns * factor)
    if np.abs(scaled).max(initial=0) >= MOST_NS:
        raise UsageError(
            f"a time x {factor:g} is beyond 2**60 ns",
            todo="give a smaller factor, or check the graph with graphlink check",
        )
    out: I64 = scaled.astype(np.int64)
    return out
