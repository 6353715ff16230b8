"""Which communication of several ranks belongs together: the k-th collective of a group on each member, the k-th send and receive.

Order is that of ids (as recorded), so which nodes meet does not depend on the replay. A rank that is not there is not waited for;
a node that a rank which is there lacks is, for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I32, I64, NOWHERE, U8
from graphlink.read.chakra import NO_GROUP, NodeType
from graphlink.replay.workload import Workload, work_bounds

PLAIN: Final = 0  # takes its cost, waits for nobody
COLLECTIVE: Final = 1
RECEIVE: Final = 2


@dataclass(frozen=True, slots=True)
class Meetings:
    """``code``, ``partner`` and ``cost_ns`` have one entry a node, the others one a meeting.

    ``partner`` of a collective is its meeting, of a receive its send (``NOWHERE``: there is none, it waits for ever). ``cost_ns``: of a
    send the shorter of its own and its receive's time (the other one waited); of a receive what it takes after its send has ended.
    ``begin_ns``: when each rank begins. ``took_ns``: the shortest time of a member: the one that came last waited for nobody.
    """

    code: U8
    partner: I32
    cost_ns: I64
    expected: I64  # members among the ranks that are there
    took_ns: I64
    begin_ns: I64
    group: I64
    turn: I64  # 0 = first collective of the group
    notes: tuple[str, ...]


def meetings(work: Workload, groups: Mapping[int, Sequence[int]], *, together: bool = False) -> Meetings:
    """Pairs the communication of ``work``; ``groups`` is ``comm_group.json``: an id it lacks (and none) is all ranks. n log n.

    Ranks begin as their recordings did, or with ``together`` all at once as in ASTRA-sim.
    """
    cost_ns = work.micros_ns
    code = np.full(len(work), PLAIN, np.uint8)
    partner = np.full(len(work), NOWHERE, np.int32)
    cost = cost_ns.copy()
    notes: list[str] = []
    column = _Columns(work)
    collected = _collectives(column, groups, cost_ns, code, partner, notes)
    _messages(column, code, partner, cost, notes)
    begin = np.zeros(len(work.ranks), np.int64) if together else _begins(work, notes)
    return Meetings(code, partner, cost, collected.expected, collected.took_ns, begin, collected.group, collected.turn, tuple(notes))


def _begins(work: Workload, notes: list[str]) -> I64:
    """When each rank began, on the clock of the recordings; 0 for all where their clocks cannot be the same."""
    begin = np.zeros(len(work.ranks), np.int64)
    if any(r.file.metadata.epoch_ns is None or not len(r.file.id) for r in work.ranks) or not len(begin):
        notes.append("the graphs do not say when their ranks began: all begin together")
        return begin
    start = np.array([(r.file.metadata.epoch_ns or 0) + int(r.file.start_ns.min()) for r in work.ranks], np.int64)
    end = np.array([(r.file.metadata.epoch_ns or 0) + int(r.file.end_ns.max()) for r in work.ranks], np.int64)
    if start.max() >= end.min():
        notes.append("the recordings of the ranks do not overlap in time, so their clocks differ: all begin together")
        return begin
    began: I64 = start - start.min()
    return began


@dataclass(frozen=True, slots=True)
class _Collected:
    expected: I64
    took_ns: I64
    group: I64
    turn: I64


class _Columns:
    """Columns of all files in the order of the workload."""

    def __init__(self, work: Workload) -> None:
        self.work = work
        self.rank = np.array([r.rank for r in work.ranks], np.int64)[work.member] if len(work) else np.zeros(0, np.int64)
        self.type = self.of("type")
        self.host = self.of("host") != 0

    def of(self, name: str) -> I64:
        low, work = work_bounds(self.work), self.work
        parts = [getattr(r.file, name)[work.position[a:b]].astype(np.int64) for r, (a, b) in zip(work.ranks, low, strict=True)]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def clock_ns(self, name: str) -> I64:
        """A time on the common clock; files without an epoch count from 0."""
        epoch = np.array([r.file.metadata.epoch_ns or 0 for r in self.work.ranks], np.int64)
        skew: I64 = epoch - (epoch.min() if len(epoch) else 0)
        return self.of(name) + skew[self.work.member]


def _turns(*keys: I64) -> I64:
    """How many rows before each row have the same keys."""
    n = len(keys[0])
    order = np.lexsort((np.arange(n), *keys))
    new = np.ones(n, np.bool_)
    for key in keys:
        new[1:] &= key[order][1:] == key[order][:-1]
    new[1:] = ~new[1:]
    begin = np.maximum.accumulate(np.where(new, np.arange(n), 0))
    out = np.empty(n, np.int64)
    out[order] = np.arange(n) - begin
    return out


def _collectives(
    column: _Columns, groups: Mapping[int, Sequence[int]], cost_ns: I64, code: U8, partner: I32, notes: list[str]
) -> _Collected:
    here = sorted(int(r.rank) for r in column.work.ranks)
    nodes = np.flatnonzero((column.type == NodeType.COMM_COLL) & ~column.host)
    group = column.of("group")[nodes]
    members = {int(g): _present(int(g), groups, here) for g in np.unique(group)}
    # a rank outside the group, or alone in it here, has nobody to wait for
    joins = np.array(
        [len(members[g]) > 1 and r in members[g] for g, r in zip(group.tolist(), column.rank[nodes].tolist(), strict=True)], bool
    )
    outside = int(np.count_nonzero(~joins))
    if outside:
        notes.append(f"{outside} collectives have no other member among these ranks: they take their recorded time")
    nodes, group = nodes[joins], group[joins]
    turn = _turns(group, column.rank[nodes])
    pairs, meeting = np.unique(np.stack([group, turn], axis=1), axis=0, return_inverse=True)
    meeting = meeting.reshape(-1)
    took = np.full(len(pairs), np.iinfo(np.int64).max)
    np.minimum.at(took, meeting, cost_ns[nodes])
    code[nodes], partner[nodes] = COLLECTIVE, meeting
    expected = np.array([len(members[g]) for g in pairs[:, 0].tolist()], np.int64)
    for what in ("comm_type", "comm_size"):
        value = column.of(what)[nodes]
        low, high = np.full(len(pairs), np.iinfo(np.int64).max), np.full(len(pairs), np.iinfo(np.int64).min)
        np.minimum.at(low, meeting, value)
        np.maximum.at(high, meeting, value)
        differ = np.flatnonzero(low != high)
        if len(differ):
            g, k = pairs[differ[0]].tolist()
            notes.append(
                f"{len(differ)} collectives differ in {what} between ranks, first: number {k + 1} of group {g}; ASTRA-sim never ends there"
            )
    return _Collected(expected, np.maximum(took, 1), pairs[:, 0], pairs[:, 1])


def _present(group: int, groups: Mapping[int, Sequence[int]], here: Sequence[int]) -> frozenset[int]:
    named = groups.get(group) if group != NO_GROUP else None
    return frozenset(here if named is None else set(named) & set(here))


def _messages(column: _Columns, code: U8, partner: I32, cost: I64, notes: list[str]) -> None:
    here = np.array(sorted({r.rank for r in column.work.ranks}), np.int64)
    sends = np.flatnonzero((column.type == NodeType.COMM_SEND) & ~column.host)
    receives = np.flatnonzero((column.type == NodeType.COMM_RECV) & ~column.host)
    src, dst, tag, size = (column.of(n) for n in ("comm_src", "comm_dst", "comm_tag", "comm_size"))
    src[sends], dst[receives] = column.rank[sends], column.rank[receives]
    away = ~np.isin(src[receives], here)
    if away.any():
        notes.append(f"{np.count_nonzero(away)} receives come from ranks that are not here: they take their recorded time")
    receives = receives[~away]
    key = {}
    for side, nodes in (("send", sends), ("receive", receives)):
        ends = src[nodes], dst[nodes], tag[nodes], size[nodes]
        key[side] = list(zip(*(k.tolist() for k in (*ends, _turns(*ends) if len(nodes) else nodes)), strict=True))
    send_at = dict(zip(key["send"], sends.tolist(), strict=True))
    sent = np.array([send_at.get(k, NOWHERE) for k in key["receive"]], np.int64)
    code[receives], partner[receives] = RECEIVE, sent
    unread = len(sends) - int(np.count_nonzero(sent != NOWHERE)) - int(np.count_nonzero(~np.isin(dst[sends], here)))
    if unread:
        notes.append(f"{unread} sends have no receive: nobody waits for them")
    ok = sent != NOWHERE
    send, receive = sent[ok], receives[ok]
    start, end = column.clock_ns("start_ns"), column.clock_ns("end_ns")
    # gloo's sends cost nothing (their rows end when somebody waits for them): the receive shows the transfer, from when both are there
    free = cost[send] == 0
    both = np.maximum(start[send], start[receive])
    transfer = np.clip(end[receive] - both, 0, cost[receive])
    cost[send] = np.minimum(cost[send], cost[receive])
    cost[receive] = np.where(free, transfer, 0)
