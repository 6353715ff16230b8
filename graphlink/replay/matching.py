"""Matches the communication of several ranks: the k-th collective of a group on each member, the k-th send and receive;
and their clock.

Order is that of ids (as recorded), or where dependencies run against these, of dependencies, so which nodes match does
not depend on the replay. A rank that is not there is not waited for; a node that a rank which is there lacks is, for
ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from graphlink.depend.edges import topological
from graphlink.graph_model import NO_GROUP, EdgeKind, Graph, Groups, NodeType
from graphlink.model import EMPTY, I32, I64, NOWHERE, U8
from graphlink.replay.workload import Workload, measured_ns
from graphlink.tables import codes, how_many, least, nowhere, numbered_rows, places, spread, tuples, turns, values_at

PLAIN: Final = 0  # takes its cost, waits for nobody
COLLECTIVE: Final = 1
RECEIVE: Final = 2
_COMMUNICATION: Final = (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV)
_FAR: Final = 1 << 61  # ns: no clocks are so far apart
_APART: Final = "the recordings of the ranks do not overlap in time, so their clocks differ"


@dataclass(frozen=True, slots=True)
class RunClock:
    """The clock that the ranks of a run have in common, as their graphs tell it. Only times of different ranks are
    compared on it: durations stay as a rank's own clock measured them, as a drift of some parts in a million changes
    none by a ns that matters.

    ``begin_ns``: when each rank begins: its first start, from the first of all ranks; 0 for all where ranks begin
    together, or if ``differ``.

    ``skew_ns`` of each rank is its ``start_ns`` 0 from the same moment, ``origin_ns`` that moment since the epoch,
    ``measured_ns`` the time from it to the last end of all, None where ranks begin together. ``differ`` says why there
    is no such clock; then both are None and the skews 0.
    """

    begin_ns: I64
    skew_ns: I64
    origin_ns: int | None
    measured_ns: int | None
    differ: str


@dataclass(frozen=True, slots=True)
class Matched:
    """``code`` and ``partner`` have one entry per node, ``expected``, ``group`` and ``turn`` one a collective (matched
    over ranks).

    ``partner`` of a collective is its number, of a receive its send (``NOWHERE``: there is none, it waits for ever).
    """

    code: U8
    partner: I32
    clock: RunClock
    expected: I64  # members among the ranks that are there
    group: I64
    turn: I64  # 0 = first collective of the group
    notes: tuple[str, ...]


def matched(work: Workload, groups: Groups, *, together: bool = False) -> Matched:
    """Match the communication of ``work``; ``groups`` is ``comm_group.json``: an id it lacks (and none) is all ranks. n
    log n.

    Ranks begin as their recordings did, or with ``together`` all at once as in ASTRA-sim.
    """
    code = np.full(len(work), PLAIN, np.uint8)
    partner = nowhere(len(work), np.int32)
    notes: list[str] = []
    members = {group: _present(group, groups, work.ranks) for group in np.unique(work.column("group")).tolist()}
    communicates = np.isin(work.column("type"), _COMMUNICATION) & (work.column("host") == 0)
    nodes = _in_order(work, np.flatnonzero(communicates))
    pairs = _collectives(work, nodes, members, code, partner, notes)
    expected = np.array([len(members[group]) for group in pairs[:, 0].tolist()], np.int64)
    _messages(work, nodes, code, partner, notes)
    # nodes that are gone wait for nobody, and nobody waits for them
    left = work.gone & (code == COLLECTIVE)
    np.subtract.at(expected, partner[left], 1)
    without_send = (code == RECEIVE) & (partner != NOWHERE) & work.gone[partner]
    code[work.gone | without_send] = PLAIN
    partner[work.gone | without_send] = NOWHERE
    clock = run_clock(work.files)
    if together:
        clock = replace(clock, begin_ns=np.zeros(len(work.ranks), np.int64), measured_ns=None)
    elif clock.differ:
        notes.append(f"{clock.differ}: all begin together")
    return Matched(code, partner, clock, expected, pairs[:, 0], pairs[:, 1], tuple(notes))


def _in_order(work: Workload, nodes: I64) -> I64:
    """Return ``nodes`` in the order in which they are matched. n log n where dependencies run against ids."""
    if bool((work.source < work.target).all()):
        return nodes
    order = topological(work.source, work.target, np.arange(len(work)))
    return nodes[np.argsort(places(order, len(work))[nodes], kind="stable")]


def unmatched(work: Workload) -> Matched:
    """Return what ``matched`` does of ranks that wait for nobody, each replayed by itself."""
    code, partner = np.full(len(work), PLAIN, np.uint8), nowhere(len(work), np.int32)
    none = EMPTY
    clock = replace(_no_clock(work.files, ""), measured_ns=measured_ns(work.files[0]))
    return Matched(code, partner, clock, none, none, none, ())


def _collectives(
    work: Workload, nodes: I64, members: Mapping[int, frozenset[int]], code: U8, partner: I32, notes: list[str]
) -> I64:
    """Fill ``code`` and ``partner`` of collectives among ``nodes``; return group and turn of each, one row per
    collective.
    """
    nodes = nodes[work.column("type")[nodes] == NodeType.COMM_COLL]
    group, rank = work.column("group")[nodes], work.node_rank[nodes]
    # a rank outside the group, or alone in it here, has nobody to wait for
    joins = np.array([len(members[g]) > 1 and r in members[g] for g, r in tuples(group, rank)], np.bool_)
    outside = how_many(~joins)
    if outside:
        notes.append(f"{outside} collectives have no other member among these ranks: they take their recorded time")
    nodes, group = nodes[joins], group[joins]
    turn = turns(group, rank[joins])
    pairs, collective = numbered_rows(group, turn)
    code[nodes], partner[nodes] = COLLECTIVE, collective
    for what in ("comm_type", "comm_size"):
        value = work.column(what)[nodes]
        differ = np.unique(collective[value != spread(len(pairs), collective, value)[collective]])
        if len(differ):
            first_group, first_turn = pairs[differ[0]].tolist()
            notes.append(
                f"{len(differ)} collectives differ in {what} between ranks, first: number {first_turn + 1} of group "
                f"{first_group}; ASTRA-sim never ends there"
            )
    return pairs


def _present(group: int, groups: Groups, here: Sequence[int]) -> frozenset[int]:
    named = groups.get(group) if group != NO_GROUP else None
    return frozenset(here if named is None else set(named) & set(here))


def _messages(work: Workload, nodes: I64, code: U8, partner: I32, notes: list[str]) -> None:
    """Fill ``code`` and ``partner`` of receives among ``nodes``."""
    kind, rank = work.column("type")[nodes], work.node_rank
    sends, receives = nodes[kind == NodeType.COMM_SEND], nodes[kind == NodeType.COMM_RECV]
    source, target = work.column("comm_src").copy(), work.column("comm_dst").copy()
    source[sends], target[receives] = rank[sends], rank[receives]
    away = ~np.isin(source[receives], work.ranks)
    if away.any():
        notes.append(
            f"{np.count_nonzero(away)} receives come from ranks that are not here: they take their recorded time"
        )
    receives = receives[~away]
    nodes, is_send = np.append(sends, receives), np.repeat([True, False], [len(sends), len(receives)])
    ends = [column[nodes] for column in (source, target, work.column("comm_tag"), work.column("comm_size"))]
    message = codes(*ends, turns(*ends, is_send))
    sent = spread(len(nodes), message[is_send], sends)[message[~is_send]]
    code[receives], partner[receives] = RECEIVE, sent
    elsewhere = how_many(~np.isin(target[sends], work.ranks))
    unread = len(sends) - how_many(sent != NOWHERE) - elsewhere
    if unread:
        notes.append(f"{unread} sends have no receive: nobody waits for them")


@dataclass(frozen=True, slots=True)
class Messages:
    """Sends and receives that match: their nodes, one entry per message, and recorded times (ns) on the clock that the
    ranks share.
    """

    send: I64
    receive: I64
    both_ns: I64  # both had begun
    received_ns: I64  # the receive ended
    early_ns: I64  # how long the receive ended before the row of its send began: gloo begins it late where it is held

    def costs_ns(self, own_ns: I64) -> tuple[I64, I64]:
        """Return what each send takes, and each receive once both are there: the shorter of their own times, as the
        other one waited. A send of gloo's costs nothing, as its row ends when somebody waits for it: there the receive
        shows the transfer, from when both are there.
        """
        sent, received = own_ns[self.send], own_ns[self.receive]
        took, transfer = np.minimum(sent, received), np.clip(self.received_ns - self.both_ns, 0, received)
        return took, np.where(sent == 0, transfer, took)


def messages(work: Workload, match: Matched) -> Messages:
    """Return the messages of ``match``. Linear."""
    receive = np.flatnonzero((match.code == RECEIVE) & (match.partner != NOWHERE))
    send = match.partner[receive].astype(np.int64)
    both = np.maximum(*(recorded_ns(work, match.clock, "start_ns", nodes) for nodes in (send, receive)))
    received = recorded_ns(work, match.clock, "end_ns", receive)
    early = np.maximum(both - received, 0)
    if early.any():  # it left in the op before the row, which may be shorter now; what is before that, clocks differ
        op = values_at(work.source_of(EdgeKind.HOST), work.source_of(EdgeKind.LAUNCH)[send])
        was, now = (np.append(cost, 0)[op] for cost in (work.column("cost_ns"), work.cost_ns))
        early -= np.maximum(np.minimum(early, was) - now, 0)
    return Messages(send, receive, both, received, early)


def shortest_ns(match: Matched, cost_ns: I64) -> I64:
    """Return for each collective the shortest time of a member: of the one that came last, which waited for nobody."""
    nodes = np.flatnonzero(match.code == COLLECTIVE)
    return least(len(match.expected), match.partner[nodes], cost_ns[nodes])


def recorded_ns(work: Workload, clock: RunClock, time: str, nodes: I64) -> I64:
    """Return ``start_ns`` or ``end_ns`` of some nodes on the clock of the run."""
    out = np.empty(len(nodes), np.int64)
    for i, file in enumerate(work.files):
        rows = np.flatnonzero(work.member[nodes] == i)
        out[rows] = clock.skew_ns[i] + elapsed(file, getattr(file, time)[work.position[nodes[rows]]])
    return out


def run_clock(files: Sequence[Graph]) -> RunClock:
    """Return the common clock of the ranks: there is one if all say when they began and their recordings overlap.
    Linear.
    """
    if not files or any(file.metadata.epoch_ns is None or not len(file.id) for file in files):
        return _no_clock(files, "the graphs do not say when their ranks began")
    zero = [file.epoch_ns + file.metadata.clock_offset_ns for file in files]
    low = min(zero)
    if max(zero) - low > _FAR:
        return _no_clock(files, _APART)
    skew = np.array([ns - low for ns in zero], np.int64)
    start = skew + np.array([elapsed(f, f.start_ns[[f.start_ns.argmin()]])[0] for f in files], np.int64)
    end = skew + np.array([elapsed(f, f.end_ns[[f.end_ns.argmax()]])[0] for f in files], np.int64)
    first = int(start.min())
    if len(files) > 1 and start.max() >= end.min():
        return _no_clock(files, _APART)
    return RunClock(start - first, skew - first, low + first, int(end.max()) - first, "")


def elapsed(file: Graph, ns: I64) -> I64:
    """Return times of a file as the run's clock has them since the file's ``start_ns`` 0."""
    drift = file.metadata.clock_drift_ppb
    return ns + np.rint(ns * (drift / 1e9)).astype(np.int64) if drift else ns


def _no_clock(files: Sequence[Graph], why: str) -> RunClock:
    zero = np.zeros(len(files), np.int64)
    return RunClock(zero, zero, None, None, why)
