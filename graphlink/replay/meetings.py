"""Which communication of several ranks belongs together: the k-th collective of a group on each member, the k-th send and receive.

Order is that of ids (as recorded), so which nodes meet does not depend on the replay. A rank that is not there is not waited for;
a node that a rank which is there lacks is, for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.graph.chakra import NO_GROUP, NodeType
from graphlink.model import I32, I64, NOWHERE, U8
from graphlink.replay.clock import RunClock, elapsed, run_clock
from graphlink.replay.workload import Workload, work_bounds

PLAIN: Final = 0  # takes its cost, waits for nobody
COLLECTIVE: Final = 1
RECEIVE: Final = 2


@dataclass(frozen=True, slots=True)
class Meetings:
    """``code`` and ``partner`` have one entry a node, ``expected``, ``group`` and ``turn`` one a meeting of a collective.

    ``partner`` of a collective is its meeting, of a receive its send (``NOWHERE``: there is none, it waits for ever). ``begin_ns``: when
    each rank begins. ``measured_ns``: the recorded time of all ranks, None where they have no clock in common or begin together.
    """

    code: U8
    partner: I32
    begin_ns: I64
    measured_ns: int | None
    clock: RunClock
    expected: I64  # members among the ranks that are there
    group: I64
    turn: I64  # 0 = first collective of the group
    notes: tuple[str, ...]


def meetings(work: Workload, groups: Mapping[int, Sequence[int]], *, together: bool = False) -> Meetings:
    """Pairs the communication of ``work``; ``groups`` is ``comm_group.json``: an id it lacks (and none) is all ranks. n log n.

    Ranks begin as their recordings did, or with ``together`` all at once as in ASTRA-sim.
    """
    code = np.full(len(work), PLAIN, np.uint8)
    partner = np.full(len(work), NOWHERE, np.int32)
    notes: list[str] = []
    column = _Columns(work)
    collected = _collectives(column, groups, code, partner, notes)
    _messages(column, code, partner, notes)
    clock = run_clock([r.file for r in work.ranks])
    if clock.differ and not together:
        notes.append(f"{clock.differ}: all begin together")
    begin = np.zeros(len(work.ranks), np.int64) if together else clock.begin_ns
    measured = None if together else clock.measured_ns
    return Meetings(code, partner, begin, measured, clock, collected.expected, collected.group, collected.turn, tuple(notes))


@dataclass(frozen=True, slots=True)
class _Collected:
    expected: I64
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
        parts = [
            getattr(r.file, name)[self.work.position[a:b]].astype(np.int64)
            for r, (a, b) in zip(self.work.ranks, work_bounds(self.work), strict=True)
        ]
        return np.concatenate([np.zeros(0, np.int64), *parts])


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


def _collectives(column: _Columns, groups: Mapping[int, Sequence[int]], code: U8, partner: I32, notes: list[str]) -> _Collected:
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
    return _Collected(expected, pairs[:, 0], pairs[:, 1])


def _present(group: int, groups: Mapping[int, Sequence[int]], here: Sequence[int]) -> frozenset[int]:
    named = groups.get(group) if group != NO_GROUP else None
    return frozenset(here if named is None else set(named) & set(here))


def _messages(column: _Columns, code: U8, partner: I32, notes: list[str]) -> None:
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


@dataclass(frozen=True, slots=True)
class Messages:
    """Sends and receives that meet: their nodes, one entry a message, and recorded times (ns) on the clock that the ranks share."""

    send: I64
    receive: I64
    sent_ns: I64  # the send began
    both_ns: I64  # both had begun
    received_ns: I64  # the receive ended


def messages(work: Workload, meetings: Meetings) -> Messages:
    """The messages of ``meetings``. Linear."""
    receive = np.flatnonzero((meetings.code == RECEIVE) & (meetings.partner != NOWHERE))
    send = meetings.partner[receive].astype(np.int64)
    sent = recorded_ns(work, meetings.clock, "start_ns", send)
    both = np.maximum(sent, recorded_ns(work, meetings.clock, "start_ns", receive))
    return Messages(send, receive, sent, both, recorded_ns(work, meetings.clock, "end_ns", receive))


def recorded_ns(work: Workload, clock: RunClock, time: str, nodes: I64) -> I64:
    """``start_ns`` or ``end_ns`` of some nodes on the clock of the run."""
    out = np.empty(len(nodes), np.int64)
    for i, ranked in enumerate(work.ranks):
        mine = np.flatnonzero(work.member[nodes] == i)
        out[mine] = clock.skew_ns[i] + elapsed(ranked.file, getattr(ranked.file, time)[work.position[nodes[mine]]])
    return out
