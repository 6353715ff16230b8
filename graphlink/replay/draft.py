"""A workload whose times, waits and edges are being changed, and the workload that becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from graphlink.errors import UsageError
from graphlink.graph.latency import lag_ns
from graphlink.graph.waits import ON_DEVICE
from graphlink.graph_model import EdgeKind
from graphlink.model import I64, NOWHERE, U8, Bool
from graphlink.replay.selection import Selection
from graphlink.replay.syncs import SyncWait, edges_of
from graphlink.replay.workload import MOST_NS, Work, Workload
from graphlink.tables import begins, codes, concat, skipped, take

_FROM_DEVICE_OPS: Final = (*ON_DEVICE, EdgeKind.SYNC)
Row = tuple[int, int, int, int]  # target, source, kind, lag (ns)


class Draft:
    """The times of the nodes of ``work``, an entry per node, and its waits, both edited in place; at first all is as
    recorded.

    ``cost``, ``fixed``: as in ``Workload``. ``wake``: what of the cost is only spent because a call had to wait.
    ``launch``, ``stream``, ``explained``: as ``Delayed``. ``gone``: nodes that were removed. Of ``waits``, ``no_wait``
    are not where they were; those that are elsewhere are in ``moved``, with the node before which they wait, and the
    device ops that they wait for there.
    """

    def __init__(self, selection: Selection, waits: list[SyncWait]) -> None:
        work, delayed = selection.work, selection.delayed
        self.work, self.waits = work, waits
        self.cost, self.fixed = work.cost_ns.copy(), work.fixed_ns.copy()
        self.wake = np.where(work.cost_ns > 0, work.column("wake_ns"), 0)
        self.launch, self.stream = delayed.launch_ns.copy(), delayed.stream_ns.copy()
        self.explained = delayed.explained_ns.copy()
        self.gone = np.zeros(len(work), np.bool_)
        self.no_wait = np.zeros(len(waits), np.bool_)
        self.moved: dict[int, tuple[int, list[int]]] = {}

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
        lags = lag_ns(work.target, work.kind, self.launch, self.stream, wake)
        changed: dict[str, Any] = {
            "cost_ns": self.cost - wake - explained,
            "micros_ns": work.micros_with(self.cost),
            "fixed_ns": np.maximum(self.fixed - explained, 0),
        }
        if not (self.no_wait.any() or self.gone.any()):
            return replace(work, lag_ns=lags, **changed)
        edges = Edges(work.target, work.source.astype(np.int64), work.kind, lags)
        edges = take(edges, ~edges_of(work, self.waits, self.no_wait)).joined(self._moved_waits(lags))
        if self.gone.any():
            edges = _past(work, edges, self.gone & (work.column("host") == 0))
        return edges.into(work, gone=self.gone, **changed)

    def _moved_waits(self, lags: I64) -> Edges:
        """Return the edges of waits that were moved. One that found all done where it was recorded, and may have to
        wait now, takes the median of the others to wake up."""
        waking = lags[(self.work.kind == EdgeKind.SYNC) & (lags > 0)]
        usual_ns = round(float(np.median(waking))) if len(waking) else 0
        rows = [
            (place, source, EdgeKind.SYNC, int(lags[[*self.waits[wait].edges]].max()) or usual_ns)
            for wait, (place, sources) in self.moved.items()
            for source in sources
        ]
        return Edges.of(rows)

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
        scaled = times(self.fixed[nodes], factor)
        self.cost[nodes] += scaled - self.fixed[nodes]
        self.fixed[nodes] = scaled

    def set_own(self, nodes: I64, own_ns: I64) -> None:
        """Set the time of nodes, but for start delays; what they take to wake up becomes no more than that."""
        self.cost[nodes] = own_ns + self.fixed[nodes]
        self.wake[nodes] = np.minimum(self.wake[nodes], own_ns)

    def remove(self, nodes: Bool) -> None:
        """Let nodes take no time, delay nothing and wait for nobody."""
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
        self.moved = {wait: place for wait, place in self.moved.items() if not which[wait]}

    def move_wait(self, which: int, place: int, awaited: list[int]) -> None:
        """Let a wait be before the node ``place``, for the device ops ``awaited``."""
        self.no_wait[which] = True
        self.moved[which] = place, awaited


def _past(work: Workload, edges: Edges, gone: Bool) -> Edges:
    """Return the edges where what waited for device ops that are ``gone`` waits for what those had waited for on the
    device.
    """
    between = np.isin(edges.kind, ON_DEVICE)
    into = np.flatnonzero(gone[edges.target] & between)
    before: dict[int, dict[int, int]] = {}  # node -> the last op of each stream that it waits for
    stream = codes(work.member, work.column("device"), work.column("stream")).tolist()
    for target, source in zip(edges.target[into].tolist(), edges.source[into].tolist(), strict=True):
        last = before.setdefault(target, {})
        for op in before.get(source, {}).values() if gone[source] else (source,):
            last[stream[op]] = max(last.get(stream[op], op), op)
    leaves = gone[edges.source] & np.isin(edges.kind, _FROM_DEVICE_OPS)
    leaving = take(edges, leaves)
    columns = (leaving.target, leaving.source, leaving.kind, leaving.lag_ns)
    rows = [
        (target, op, kind, lag)
        for target, source, kind, lag in zip(*(column.tolist() for column in columns), strict=True)
        for op in before.get(source, {}).values()
        if not gone[target]
    ]
    return take(edges, ~leaves).joined(Edges.of(rows))


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
    return np.asarray(scaled.astype(np.int64))


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


def outermost(work: Workload, head: Bool) -> I64:
    """Return for every host node the outermost of the nodes ``head`` that called it on its thread, itself included;
    ``NOWHERE`` without one. n log n."""
    tid, caller = work.column("tid"), Selection(work).callers
    inside = (caller != NOWHERE) & (work.work == Work.HOST) & (tid == tid[caller])
    above = np.where(inside, caller, NOWHERE)
    nested = head & inside & (skipped(above, ~head)[caller] != NOWHERE)
    return skipped(above, ~(head & ~nested))
