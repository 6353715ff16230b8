"""Nodes that a replay starts at another time than recorded, that waited for a slot, or that never run."""

from __future__ import annotations

import numpy as np

from graphlink.model import I64, NOWHERE
from graphlink.replay.matching import COLLECTIVE, RECEIVE
from graphlink.replay.played import HELD_WORDS, NOT_RUN, SLOT, Played, binding
from graphlink.replay.records import Drift, NodeAt, SlotWaitEntry, StuckEntry
from graphlink.replay.workload import Slot, Workload
from graphlink.tables import codes, largest, most, parted, spread


def drifts(work: Workload, played: Played, top: int = 10) -> list[Drift]:
    """Find where the drift (replayed start less recorded start) changes most from what delayed a node to the node,
    largest first.

    Of the nodes that one node holds back only the one with the largest change counts. Drift is counted from the first
    start of each rank, replayed and recorded. n log n; nothing for files without times.
    """
    if not len(work) or not all(file.timed for file in work.files):
        return []
    start = np.where(played.ran, played.start_ns - played.rank_begin_ns[work.member], 0)
    drift, held = start - recorded_start_ns(work), played.held_by
    change = np.where(played.ran, drift - np.where(held == NOWHERE, 0, drift[held]), 0)
    size = np.abs(change)
    most = largest(len(work) + 1, held, size)  # by holder; NOWHERE finds the last entry
    roots = np.flatnonzero((held == NOWHERE) & (size > 0))  # each is its own place
    others = np.flatnonzero((held != NOWHERE) & (size > 0) & (size == most[held]))
    first = spread(len(work), held[others[::-1]], others[::-1])
    nodes = np.append(roots, first[first != NOWHERE])
    return [
        Drift(
            node=_node(work, node),
            held_by=None if held[node] == NOWHERE else _node(work, int(held[node])),
            edge=HELD_WORDS[int(played.held_kind[node])],
            drift_ns=int(drift[node]),
            change_ns=int(change[node]),
        )
        for node in nodes[np.lexsort((nodes, -size[nodes]))[:top]].tolist()
    ]


def recorded_start_ns(work: Workload) -> I64:
    """Return when each node was recorded to start, since the earliest node of its rank."""
    first = np.array([file.start_ns.min(initial=0) for file in work.files], np.int64)
    return work.column("start_ns") - first[work.member]


def _node(work: Workload, node: int) -> NodeAt:
    return NodeAt(rank=work.rank(node), id=work.id(node), name=work.name(node))


def slot_waits(work: Workload, played: Played) -> list[SlotWaitEntry]:
    """Find the devices, threads and streams that waited for a slot, longest first: what makes a machine with slots
    slower than the recording. n log n."""
    nodes = np.flatnonzero(played.held_kind == SLOT)
    if not len(nodes):
        return []
    host, device = work.slot == Slot.CPU, work.column("device")
    number = np.where(host, work.column("tid"), work.column("stream"))
    lane = codes(work.member, host, np.where(host, 0, device), number)

    def lane_name(node: int) -> str:
        return f"thread {number[node]}" if host[node] else f"stream {number[node]} of device {device[node]}"

    holder, waited_ns = played.held_by[nodes], played.start_ns[nodes] - binding(work, played.end_ns).ended_ns[nodes]
    same = codes(lane[nodes], work.slot[nodes])
    out = []
    for rows in parted(same, int(same.max()) + 1):
        behind, behind_ns = most(lane[holder[rows]], waited_ns[rows])
        node = int(nodes[rows[0]])
        out.append(
            SlotWaitEntry(
                rank=work.rank(node),
                lane=lane_name(node),
                slot=Slot(work.slot[node]).name.lower(),
                nodes=len(rows),
                waited_ns=int(waited_ns[rows].sum()),
                behind=lane_name(int(np.argmax(lane == behind))),
                behind_ns=behind_ns,
            )
        )
    return sorted(out, key=lambda entry: -entry.waited_ns)


def stuck(work: Workload, played: Played) -> list[StuckEntry]:
    """Return one entry per rank that did not finish, with the first node of those that never end. Linear."""
    out = []
    for (low, high), rank in zip(work.bounds, work.ranks, strict=True):
        left = low + np.flatnonzero(played.end_ns[low:high] == NOT_RUN)
        if not len(left):
            continue
        begun = left[played.start_ns[left] != NOT_RUN]
        if len(begun):
            node = int(begun[0])
            waits_for = _partner(work, played, node)
        else:
            node, waits_for = _in_cycle(work, played, int(left[0]))
        out.append(StuckEntry(rank=rank, left=len(left), node=_node(work, node), waits_for=waits_for))
    return out


def _in_cycle(work: Workload, played: Played, node: int) -> tuple[int, str]:
    """Go back over dependencies that did not end, until one has none or they go in a circle; say what it waits for."""
    seen = {node}
    while (before := _blocked_by(work, played, node)) is not None and before not in seen:
        seen.add(before)
        node = before
    if before is None:
        return node, "its slot, which is never free again"
    return node, f"node {work.id(before)} ({work.name(before)[:60]}), which waits for it: a cycle"


def _blocked_by(work: Workload, played: Played, node: int) -> int | None:
    before = work.source[work.first[node] : work.first[node + 1]]
    blocked = before[played.end_ns[before] == NOT_RUN]
    return int(blocked[0]) if len(blocked) else None


def _partner(work: Workload, played: Played, node: int) -> str:
    """Return what a communication node waits for that has started and does not end."""
    match, file, position = played.match, work.file_of(node), int(work.position[node])
    if match.code[node] == COLLECTIVE:
        collective = int(match.partner[node])
        members = np.flatnonzero((match.code == COLLECTIVE) & (match.partner == collective))
        missing = members[played.start_ns[members] == NOT_RUN]
        number = f"collective {int(match.turn[collective]) + 1} of group {int(match.group[collective])}"
        if len(missing):
            return f"rank {int(work.node_rank[missing].min())} in {number}, which it never starts there"
        return f"{number}: only {len(members)} of {int(match.expected[collective])} ranks have it"
    if match.code[node] == RECEIVE:
        what = f"tag {int(file.comm_tag[position])}, {int(file.comm_size[position])} bytes"
        source = int(file.comm_src[position])
        if match.partner[node] == NOWHERE:
            return f"a send from rank {source} that is not there ({what})"
        return f"the send of rank {source} ({what}), which it never starts"
    return "its own end"
