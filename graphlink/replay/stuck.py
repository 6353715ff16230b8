"""Ranks that cannot finish, and what they wait for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.model import NOWHERE
from graphlink.replay.meetings import COLLECTIVE, RECEIVE, Meetings
from graphlink.replay.played import NOT_RUN, Played
from graphlink.replay.workload import Workload, work_bounds


@dataclass(frozen=True, slots=True)
class Stuck:
    """``left`` nodes of ``rank`` never end; ``node`` is the one that stands at the head of them, ``waits_for`` says for what."""

    rank: int
    left: int
    node: int
    waits_for: str


def stuck(work: Workload, played: Played, meetings: Meetings | None = None) -> list[Stuck]:
    """One entry a rank that did not finish. Linear."""
    out = []
    for (low, high), ranked in zip(work_bounds(work), work.ranks, strict=True):
        left = low + np.flatnonzero(played.end_ns[low:high] == NOT_RUN)
        if not len(left):
            continue
        begun = left[played.start_ns[left] != NOT_RUN]
        if len(begun) and meetings is not None:
            head = int(begun[0])
            out.append(Stuck(ranked.rank, len(left), head, _partner(work, played, meetings, head)))
        else:
            head = _head(work, played, int(left[0]))
            out.append(Stuck(ranked.rank, len(left), head, _dependency(work, played, head)))
    return out


def _head(work: Workload, played: Played, node: int) -> int:
    """Back over dependencies that did not end, until one has none or they go in a circle."""
    seen = {node}
    while (before := _blocked_by(work, played, node)) is not None and before not in seen:
        seen.add(before)
        node = before
    return node


def _blocked_by(work: Workload, played: Played, node: int) -> int | None:
    before = work.source[work.first[node] : work.first[node + 1]]
    blocked = before[played.end_ns[before] == NOT_RUN]
    return int(blocked[0]) if len(blocked) else None


def _dependency(work: Workload, played: Played, node: int) -> str:
    before = _blocked_by(work, played, node)
    if before is None:
        return "its slot, which is never free again"
    return f"node {work.id(before)} ({work.name(before)[:60]}), which waits for it: a cycle"


def _partner(work: Workload, played: Played, meetings: Meetings, node: int) -> str:
    position, file = int(work.position[node]), work.file_of(node)
    if meetings.code[node] == COLLECTIVE:
        meeting = int(meetings.partner[node])
        same = np.flatnonzero((meetings.code == COLLECTIVE) & (meetings.partner == meeting))
        came = {work.rank(i) for i in same.tolist() if played.start_ns[i] != NOT_RUN}
        late = sorted({work.rank(i) for i in same.tolist()} - came)
        number = f"collective {int(meetings.turn[meeting]) + 1} of group {int(meetings.group[meeting])}"
        if late:
            return f"rank {late[0]} in {number}, which it never starts there"
        return f"{number}: only {len(same)} of {int(meetings.expected[meeting])} ranks have it"
    if meetings.code[node] == RECEIVE:
        what = f"tag {int(file.comm_tag[position])}, {int(file.comm_size[position])} bytes"
        source = int(file.comm_src[position])
        if meetings.partner[node] == NOWHERE:
            return f"a send from rank {source} that is not there ({what})"
        return f"the send of rank {source} ({what}), which it never starts"
    return "its own end"
