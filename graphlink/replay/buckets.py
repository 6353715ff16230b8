"""Buckets of gradients of another size, as a what-if: collectives of one group and step joined or divided.

Which collectives reduce gradients is seen from who waits for them: nobody does before the last of the step is on its
way. Such a series is joined in its order up to the size that is asked for; what is larger is divided.

A joined one is launched where its last part was; who waited for a part waits for it. Of a divided one the pieces follow
each other on its stream, and each begins once its gradients are there: those come evenly over the device work since the
collective before. The node of the recording stands for its last piece. The pieces before are lags of its edges, as the
last one ends so much later than each may begin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from graphlink.depend.edges import successors
from graphlink.errors import UsageError
from graphlink.graph_model import EdgeKind, Groups, NodeType
from graphlink.linking.commtypes import CollectiveType, wire_share
from graphlink.model import I32, I64, NOWHERE
from graphlink.records import counted
from graphlink.replay.assumptions import made
from graphlink.replay.changes import BucketChange
from graphlink.replay.draft import NewEdges, rewired
from graphlink.replay.network import group_sizes, in_group
from graphlink.replay.records import Made
from graphlink.replay.workload import Work, Workload
from graphlink.tables import least, marked, numbered_rows, places

MB: Final = 1 << 20
MOST_PIECES: Final = 1024
MOST_PIECE_NS: Final = 1 << 50
_REDUCING: Final = (CollectiveType.ALL_REDUCE, CollectiveType.REDUCE_SCATTER, CollectiveType.REDUCE_SCATTER_BLOCK)
_Key = tuple[int, int]  # group, type


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Collectives ``first`` to ``last`` of a group (by turn), of a ``series`` of them, as one in so many ``pieces``."""

    series: range
    first: int
    last: int
    size_bytes: int
    pieces: int


@dataclass(frozen=True, slots=True)
class _Cost:
    """What a collective takes: ``latency_ns`` + its bytes x ``ns_per_byte``."""

    latency_ns: float
    ns_per_byte: float

    def of(self, size_bytes: float) -> int:
        """Return what so many bytes take. Raises UsageError for more than 2**50 ns, 13 days."""
        ns = self.latency_ns + self.ns_per_byte * size_bytes
        if ns > MOST_PIECE_NS:
            raise UsageError(
                f"a collective of {size_bytes:,.0f} bytes would take more than 13 days", todo="give a larger bandwidth"
            )
        return max(1, round(ns))


def with_buckets(work: Workload, change: BucketChange, groups: Groups) -> tuple[Workload, Made]:
    """Return ``work`` with other buckets, and what was done. n log n in edges.

    Raises:
        UsageError: no group has gradients in several collectives of a step, all are of that size, or what another size
            takes is not known.
    """
    turns = turns_of(work, change)
    if not turns:
        raise UsageError(
            f"{change.title}: no group reduces gradients in several collectives that nobody waits for before the last",
            todo="with one bucket a step, or one rank of a group that is waited for at once, there is nothing to join "
            "or divide",
        )
    edit, notes = _Edit(work, change), []
    for (group, kind), (by_rank, series) in turns.items():
        buckets = list(_planned(work, by_rank, series, change))
        changed = [bucket for bucket in buckets if bucket.first < bucket.last or bucket.pieces > 1]
        if not changed:
            continue
        lasts = [turns[-1] for turns in series]
        cost = _cost(work, by_rank, kind, change, groups, lasts)
        for nodes in by_rank.values():
            for bucket in changed:
                if bucket.last < len(nodes):
                    edit.make(nodes, bucket, cost)
        before = counted(sum(bucket.last - bucket.first + 1 for bucket in buckets), CollectiveType(kind).name)
        after = sum(bucket.pieces for bucket in buckets)
        rate = 1 / cost.ns_per_byte if cost.ns_per_byte else 0
        notes.append(
            f"{before} of {'all ranks' if group <= 0 else f'group {group}'} become {after:,}, "
            f"{cost.latency_ns / 1e3:,.1f} us + {rate:,.1f} GB/s of data"
        )
    if not notes:
        raise UsageError(f"{change.title}: the buckets are of that size", todo="choose another size")
    out = edit.workload()
    grown_ns = int((out.cost_ns - work.cost_ns).sum())
    return out, made(change, "; ".join(notes), edit.changed, grown_ns)


def turns_of(work: Workload, change: BucketChange) -> dict[_Key, tuple[dict[int, I64], list[range]]]:
    """Return ``_turns``, of all groups once for all what-ifs."""
    return _turns(work, change) if change.group is not None else work.of_edges("turns", lambda: _turns(work, change))


def _turns(work: Workload, change: BucketChange) -> dict[_Key, tuple[dict[int, I64], list[range]]]:
    """Return by group and type the collectives of each rank (position), in their order, and their turns in series,
    where several are under way in a step.
    """
    kind, group = work.column("comm_type"), work.column("group")
    reduces = (work.column("type") == NodeType.COMM_COLL) & np.isin(kind, _REDUCING) & (work.column("comm_size") > 0)
    nodes = np.flatnonzero(reduces & in_group(work, change))
    keys, which = numbered_rows(work.member[nodes], group[nodes], kind[nodes])
    out: dict[_Key, dict[int, I64]] = defaultdict(dict)
    for i, (member, *key) in enumerate(keys.tolist()):
        out[key[0], key[1]][member] = nodes[which == i]
    start, edges = work.column("start_ns"), _waiting(work, nodes)
    series = {key: _series(start, edges, by_rank) for key, by_rank in out.items()}
    return {
        key: (by_rank, series[key])
        for key, by_rank in out.items()
        if change.group is not None or any(len(turns) > 1 for turns in series[key])
    }


def _waiting(work: Workload, nodes: I64) -> tuple[I32, I64]:
    """Return (source, target) of the edges from collectives to what waits for them, but for delays of their stream."""
    edges = np.flatnonzero(marked(len(work), nodes)[work.source])
    source, target, stream = work.source[edges], work.target[edges], work.column("stream")
    waits = (work.work[target] != Work.DELAY) | (stream[target] != stream[source])
    return source[waits], target[waits]


def _series(start_ns: I64, edges: tuple[I32, I64], by_rank: Mapping[int, I64]) -> list[range]:
    """Return the turns of a group in series: a new one begins where on some rank something but a later collective
    waited for the collective before. ``edges``: as ``_waiting`` returns them.
    """
    nodes, (source, target) = np.concatenate([*by_rank.values()]), edges
    row = places(nodes, len(start_ns))
    waits = (row[source] != NOWHERE) & (row[target] == NOWHERE)
    first_ns = least(len(nodes), row[source[waits]], start_ns[target[waits]])
    begins = np.arange(max(map(len, by_rank.values()))) == 0
    ends = np.cumsum([len(own) for own in by_rank.values()])[:-1]
    for own, waited_ns in zip(by_rank.values(), np.split(first_ns, ends), strict=True):
        begins[1 : len(own)] |= waited_ns[:-1] <= start_ns[own[1:]]
    return [range(first, stop) for first, stop in pairwise([*np.flatnonzero(begins).tolist(), len(begins)])]


def _planned(
    work: Workload, by_rank: Mapping[int, I64], series: Sequence[range], change: BucketChange
) -> Iterator[_Bucket]:
    """Yield the new buckets of a group, in their order."""
    longest = max(by_rank.values(), key=len)
    size = work.column("comm_size")[longest].tolist()
    for turns in series:
        first, total = turns.start, 0
        for turn in turns:
            if change.size_mb is None:
                full = turn - first == change.join
            else:
                full = total > 0 and total + size[turn] > change.size_mb * MB
            if full:
                yield _bucket(turns, first, turn - 1, total, change)
                first, total = turn, 0
            total += size[turn]
        yield _bucket(turns, first, turns.stop - 1, total, change)


def _bucket(series: range, first: int, last: int, size_bytes: int, change: BucketChange) -> _Bucket:
    pieces = 1 if change.size_mb is None or first < last else max(1, round(size_bytes / (change.size_mb * MB)))
    if pieces > MOST_PIECES:
        raise UsageError(
            f"{change.title}: a collective of {size_bytes:,} bytes would be {pieces:,} pieces",
            todo="ask for larger buckets",
        )
    return _Bucket(series, first, last, size_bytes, pieces)


def _cost(
    work: Workload,
    by_rank: Mapping[int, I64],
    kind: int,
    change: BucketChange,
    groups: Groups,
    lasts: Sequence[int],
) -> _Cost:
    """Fit what collectives of a group take, on those of the recording: of each the shortest of its ranks, which waited
    for nobody. On the host, where ops beside a collective take its processors, a joined one takes as long for a byte as
    the ``lasts`` of series, in whose place it begins.

    Raises:
        UsageError: they do not show how their time grows with their size.
    """
    count = min(map(len, by_rank.values()))
    took = np.min([(work.cost_ns - work.fixed_ns)[nodes[:count]] for nodes in by_rank.values()], axis=0)
    nodes = next(iter(by_rank.values()))[:count]
    size = work.column("comm_size")[nodes]
    if change.bandwidth_gb_per_s is not None:
        share = wire_share(np.array([kind]), group_sizes(work, nodes[:1], groups))[0]
        slope = float(share) / change.bandwidth_gb_per_s
        return _Cost(max(0.0, float(np.median(took - slope * size))), slope)
    if work.column("device")[nodes[0]] == NOWHERE:
        last = [turn for turn in lasts if turn < count]
        return _Cost(0.0, float(np.median(took[last] / size[last])))
    sizes = np.unique(size).astype(np.float64)
    todo = "give the bandwidth: --bucket-bandwidth GB/S, or bandwidth_gb_per_s in a file"
    if len(sizes) < 2:
        raise UsageError(
            f"{change.title}: all {count:,} collectives have {int(sizes[0]):,} bytes, which does not show how their "
            "time grows with size",
            todo=todo,
        )
    usual = np.array([np.median(took[size == bytes_]) for bytes_ in sizes])
    slope, latency = np.polyfit(sizes, usual, 1)
    if latency < 0:
        slope, latency = float((usual * sizes).sum() / (sizes**2).sum()), 0.0
    if slope <= 0:
        raise UsageError(f"{change.title}: in the recording larger collectives do not take longer", todo=todo)
    return _Cost(float(latency), float(slope))


class _Edit:
    """A workload that is being changed: entries per node and per edge, edited in place."""

    def __init__(self, work: Workload, change: BucketChange) -> None:
        self.work, self.change, self.changed = work, change, 0
        self.cost = work.cost_ns.copy()
        self.gone = work.gone.copy()
        self.recorded_lags, self.target = work.lags(), work.target
        self.device, self.stream, self.size = map(work.column, ("device", "stream", "comm_size"))
        self.source, self.lags = work.source.copy(), self.recorded_lags.copy()
        self.new = NewEdges()
        self.first, self.edges = successors(work.source, np.arange(len(work.source)), len(work))  # by source

    def workload(self) -> Workload:
        """Return the workload with the changes."""
        work = replace(
            self.work.with_costs(self.cost),
            fixed_ns=np.where(self.gone, 0, self.work.fixed_ns),
            gone=self.gone,
            source=self.source,
            lag_ns=self.lags,
        )
        return rewired(work, np.zeros(len(work.kind), np.bool_), self.new)

    def make(self, nodes: I64, bucket: _Bucket, cost: _Cost) -> None:
        """Make a bucket of the collectives ``nodes`` of a rank."""
        last = int(nodes[bucket.last])
        self.changed += bucket.last - bucket.first + 1
        if bucket.first < bucket.last:
            for part in nodes[bucket.first : bucket.last].tolist():
                self.cost[part] = 0
                self.gone[part] = True
                edges = self.edges[self.first[part] : self.first[part + 1]]
                self.source[edges[self.target[edges] > last]] = last
                self.new.add(part, last, EdgeKind.COLLECTIVE)
            self.cost[last] = self.work.fixed_ns[last] + cost.of(bucket.size_bytes)
        else:
            self._divide(nodes, bucket, cost.of(bucket.size_bytes / bucket.pieces))

    def _divide(self, nodes: I64, bucket: _Bucket, piece_ns: int) -> None:
        """Let a collective be the last of several pieces: of the others only how much later it may begin than they
        might.
        """
        work, node, pieces = self.work, int(nodes[bucket.last]), bucket.pieces
        if self.device[node] == NOWHERE:
            raise UsageError(
                f"{self.change.title}: communication on the host can be joined, not divided",
                todo="ask for larger buckets",
            )
        whole_ns = (pieces - 1) * piece_ns
        edges = np.arange(work.first[node], work.first[node + 1])
        anchors = self._anchors(nodes, bucket)
        waits_for_all = np.isin(work.source[edges], nodes) | (not anchors)
        self.lags[edges[waits_for_all]] += whole_ns
        if bucket.last:
            self.new.add(int(nodes[bucket.last - 1]), node, EdgeKind.STREAM, whole_ns)
        launch_ns = int(self.recorded_lags[edges[work.kind[edges] == EdgeKind.LAUNCH]].max(initial=0))
        for left, op in enumerate(reversed(anchors), 1):
            self.new.add(op, node, EdgeKind.EVENT, left * piece_ns)
            launch = work.last_source(op, EdgeKind.LAUNCH)
            self.new.add(launch, node, EdgeKind.LAUNCH, launch_ns + left * piece_ns)
        self.cost[node] = work.fixed_ns[node] + piece_ns

    def _anchors(self, nodes: I64, bucket: _Bucket) -> list[int]:
        """Return after which device op the gradients of each piece but the last are there; empty where the graph does
        not show it.
        """
        turn, size = bucket.last, self.size
        awaited = self._awaited(int(nodes[turn]))
        if awaited == NOWHERE:
            return []
        ops = self._computation_beside(awaited)
        until = int(np.searchsorted(ops, awaited))
        ns = np.cumsum(self.work.cost_ns[ops])
        if turn > bucket.series.start:
            since = int(np.searchsorted(ops, self._awaited(int(nodes[turn - 1]))))
        elif turn + 1 < bucket.series.stop:  # as fast as up to the next one
            then = int(np.searchsorted(ops, self._awaited(int(nodes[turn + 1]))))
            span_ns = (ns[min(then, len(ns) - 1)] - ns[until]) * size[nodes[turn]] / size[nodes[turn + 1]]
            since = int(np.searchsorted(ns, ns[until] - span_ns))
        else:
            return []
        if not 0 <= since < until:
            return []
        there_ns = ns[since] + (ns[until] - ns[since]) * np.arange(1, bucket.pieces) / bucket.pieces
        return [*ops[np.minimum(np.searchsorted(ns, there_ns), until)].tolist()]

    def _awaited(self, node: int) -> int:
        """Return the last computation that a collective, or the delay before it, waits for."""
        work = self.work
        kinds = (EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.COLLECTIVE)
        sources = work.source[work.first[node] : work.first[node + 1]]
        delays = sources[work.work[sources] == Work.DELAY].tolist()
        return max(work.last_source(waiting, *kinds, sort=Work.KERNEL) for waiting in (node, *delays))

    def _computation_beside(self, node: int) -> I64:
        """Return the computation of the stream of a node."""
        member, device, stream = self.work.member[node], self.device[node], self.stream[node]
        own = slice(*self.work.offset[member : member + 2].tolist())
        on_stream = (self.device[own] == device) & (self.stream[own] == stream)
        return np.asarray(np.flatnonzero(on_stream & (self.work.work[own] == Work.KERNEL)) + own.start)
