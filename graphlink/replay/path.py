"""The critical path of what a machine played, through slots, collectives and messages too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.graph.latency import lag_ns
from graphlink.model import I32, I64, NOWHERE, U8, Bool
from graphlink.replay.played import MEETING, MESSAGE, Binding, Played, binding
from graphlink.replay.records import FamilyEntry
from graphlink.replay.selection import Selection
from graphlink.replay.workload import Slot, Work, Workload, delays
from graphlink.tables import marked, sums

_OWN_LAG: Final = (Work.DELAY, Work.HOST, Work.GAP)  # a delay node is one anyway; a thread that wakes up works


@dataclass(frozen=True, slots=True)
class ReplayPath:
    """The chain of nodes that the end hangs on, first node first; times sum up to ``length_ns``.

    ``kind`` of a node says what delayed it (``Played.held_kind``, or ``MEETING`` / ``MESSAGE`` of what it joined).
    ``own_ns`` is its part of the length, ``fixed_ns`` the start delay in that. A node that others wait for stands
    before the one on whose rank the path goes on, with what it took until that one could begin.
    """

    node: I32
    kind: U8
    own_ns: I64
    fixed_ns: I64

    @property
    def length_ns(self) -> int:
        return int(self.own_ns.sum())


def critical_path(work: Workload, played: Played) -> ReplayPath:
    """Walk back from the node that ends last, of several from the last one. Linear in nodes and edges.

    On machines without slots a launch delays a node with its latency, which runs in parallel with the stream
    (``graph.critical``).
    """
    bound, fixed_ns = _bound(work, played)
    node, joins = _walk(bound.dependency, played)
    since = np.where(joins, played.begin_ns[node], bound.ended_ns[node])
    until = np.where(
        np.append(False, joins[:-1])[: len(node)], np.roll(since, 1), played.end_ns[node]
    )  # or until another had waited enough
    own_ns = until - since
    kind = np.where(joins, np.where(work.slot[node] == Slot.NONE, MESSAGE, MEETING), bound.kind[node]).astype(np.uint8)
    delay_ns = fixed_ns[node] + np.where(np.isin(work.work[node], _OWN_LAG), 0, bound.lag_ns[node])
    start_delay_ns = np.where(joins, 0, np.minimum(delay_ns, own_ns))
    return ReplayPath(node[::-1], kind[::-1], own_ns[::-1], start_delay_ns[::-1])


def _walk(dependency: I32, played: Played) -> tuple[I32, Bool]:
    """Return the nodes of the path, from its end back to its start, and at which of them it goes on with what the node
    joined.
    """
    held, joined = dependency.tolist(), played.joined.tolist()
    at = int(np.flatnonzero(played.end_ns == played.end_ns.max())[-1]) if played.ran.any() else NOWHERE
    nodes: list[int] = []
    flags: list[bool] = []
    joins = False
    while at != NOWHERE:
        joins = joined[at] != NOWHERE and not joins
        nodes.append(at)
        flags.append(joins)
        at = joined[at] if joins else held[at]
    return np.array(nodes, np.int32), np.array(flags, np.bool_)


def _bound(work: Workload, played: Played) -> tuple[Binding, I64]:
    """Return what held each node back, ``ended_ns`` when the node was free to start, and the start delay that the lag
    does not explain.
    """
    fixed_ns = np.where(work.work == Work.DELAY, 0, work.fixed_ns)
    if not played.has_lags:
        return Binding(played.held_by, played.held_kind, played.start_ns, np.zeros(len(work), np.int64)), fixed_ns
    lags = work.lag_ns
    if lags is None:
        split = delays(work, played.end_ns, played.start_ns)
        fixed_ns = np.maximum(fixed_ns - split.explained_ns, 0)
        lags = lag_ns(work.target, work.kind, split.launch_ns, split.stream_ns, np.zeros_like(fixed_ns))
    bound = binding(work, played.end_ns, lags)
    return bound._replace(ended_ns=np.where(bound.dependency == NOWHERE, played.start_ns, bound.ended_ns)), fixed_ns


def own_times(work: Workload, path: ReplayPath) -> tuple[I64, I64]:
    """Return the nodes of a path with their time on it, without start delays; then nodes around these, with what the
    path's carry of them (``relief.carried``), and the carrying ones with as much less.
    """
    rests = Selection(work).carried
    on = marked(len(work), path.node)[rests.node]
    owner, node, less_ns = rests.column[on], rests.node[on], rests.less_ns[on]
    return np.concatenate((path.node, owner, node)), np.concatenate((path.own_ns - path.fixed_ns, less_ns, -less_ns))


def families(work: Workload, path: ReplayPath, most: int) -> list[FamilyEntry]:
    """Return the nodes of one name and sort that take most of the path, largest first; start delays are none of their
    time, and what they carry of the ops around them is of these, as in the gains of a rank. ``nodes``: those on it.
    """
    code, texts = work.names()
    node, own_ns = own_times(work, path)
    keys, place = np.unique(code[node] * len(Work) + work.work[node], return_inverse=True)
    nodes, ns = np.bincount(place[: len(path.node)], minlength=len(keys)), sums(len(keys), place, own_ns)
    found = [
        (-took, texts[k // len(Work)], k % len(Work), n)
        for k, n, took in zip(keys.tolist(), nodes.tolist(), ns.tolist(), strict=True)
    ]
    late = np.flatnonzero(work.work[path.node] == Work.DELAY)
    before = work.before_what(path.node[late], path.own_ns[late])
    return [
        FamilyEntry(
            name=name, work=Work(sort).name.lower(), nodes=n, ns=-took, before=before if sort == Work.DELAY else []
        )
        for took, name, sort, n in sorted(found)[:most]
    ]


def by_work(work: Workload, path: ReplayPath) -> dict[str, int]:
    """Return the path's length by what it is spent on; start delays count as ``delay``."""
    return dict(
        zip((w.name.lower() for w in Work), spent_ns(path, work.work[path.node], len(Work), Work.DELAY), strict=True)
    )


def spent_ns(path: ReplayPath, sort: I64 | U8, sorts: int, idle: int, which: Bool | slice = slice(None)) -> list[int]:
    """Return the time of the nodes ``which`` of the path by ``sort`` (of each node, below ``sorts``); start delays
    count as ``idle``.
    """
    out = sums(sorts, sort[which], (path.own_ns - path.fixed_ns)[which])
    out[idle] += path.fixed_ns[which].sum()
    return [*out.tolist()]
