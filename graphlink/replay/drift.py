"""Where replay and recording drift apart, and which lanes waited for a slot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.model import I64, NOWHERE, Bool
from graphlink.replay.played import SLOT, Played, binding
from graphlink.replay.workload import Slot, Workload


@dataclass(frozen=True, slots=True)
class Place:
    """``node`` starts ``drift_ns`` later than recorded (before 0: earlier), ``change_ns`` more than ``held_by``, which held it back.

    ``kind`` is the edge between them (``Played.held_kind``); ``held_by`` is None for a node that nothing held back.
    """

    node: int
    held_by: int | None
    kind: int
    drift_ns: int
    change_ns: int


def places(work: Workload, played: Played, most: int = 10) -> list[Place]:
    """Where the drift (replayed start less recorded start) changes most from what held a node back to the node, largest first.

    Of the nodes that one node holds back only the one with the largest change counts. Drift is counted from the first start of each
    rank, replayed and recorded. Linear; nothing for files without times.
    """
    if not len(work) or not all(r.file.timed for r in work.ranks):
        return []
    start = np.where(played.ran, played.start_ns - played.rank_begin_ns[work.member], 0)
    drift = start - work.recorded_start_ns()
    held = played.held_by
    change = np.where(played.ran, drift - np.where(held == NOWHERE, 0, drift[held]), 0)
    size = np.abs(change)
    largest = np.zeros(len(work) + 1, np.int64)  # by holder; NOWHERE finds the last entry
    np.maximum.at(largest, held, size)
    roots = np.flatnonzero((held == NOWHERE) & (size > 0))  # each is its own place
    others = np.flatnonzero((held != NOWHERE) & (size > 0) & (size == largest[held]))
    first = np.full(len(work), NOWHERE)
    first[held[others[::-1]]] = others[::-1]
    found = np.concatenate((roots, first[first != NOWHERE]))
    if len(found) > most:
        found = found[size[found] >= np.partition(size[found], -most)[-most]]
    top = found[np.lexsort((found, -size[found]))[:most]]
    return [
        Place(i, None if held[i] == NOWHERE else int(held[i]), int(played.held_kind[i]), int(drift[i]), int(change[i]))
        for i in top.tolist()
    ]


@dataclass(frozen=True, slots=True)
class Lane:
    """A thread (``device`` None, ``number`` its tid) or a stream of a rank."""

    rank: int
    device: int | None
    number: int

    def __str__(self) -> str:
        return f"thread {self.number}" if self.device is None else f"stream {self.number} of device {self.device}"


@dataclass(frozen=True, slots=True)
class SlotWait:
    """Nodes of ``lane`` stood ready for ``waited_ns`` in all since their slot was taken; ``behind`` is whose they waited for most."""

    lane: Lane
    slot: Slot
    nodes: int
    waited_ns: int
    behind: Lane
    behind_ns: int


def slot_waits(work: Workload, played: Played) -> list[SlotWait]:
    """Lanes that waited for a slot, longest first: what makes a machine with slots slower than the recording. n log n."""
    at = np.flatnonzero(played.held_kind == SLOT)
    if not len(at):
        return []
    waited = played.start_ns[at] - binding(work.first, work.source, played.end_ns).ended_ns[at]
    lane_of, lanes = _lanes(work, np.concatenate([at, played.held_by[at]]))
    mine, behind, slot = lane_of[: len(at)], lane_of[len(at) :], work.slot[at]
    out = []
    for lane, taken in sorted(set(zip(mine.tolist(), slot.tolist(), strict=True))):
        here = (mine == lane) & (slot == taken)
        others = np.bincount(behind[here], weights=waited[here], minlength=len(lanes))
        most = int(others.argmax())
        entry = SlotWait(lanes[lane], Slot(taken), int(here.sum()), int(waited[here].sum()), lanes[most], int(others[most]))
        out.append(entry)
    return sorted(out, key=lambda w: -w.waited_ns)


def _lanes(work: Workload, nodes: I64) -> tuple[I64, list[Lane]]:
    """The lane of each of ``nodes``: position in the list of those that occur."""
    host: Bool = work.slot[nodes] == Slot.CPU
    rows = np.empty((len(nodes), 4), np.int64)
    for i, ranked in enumerate(work.ranks):
        mine = work.member[nodes] == i
        p, file, on_host = work.position[nodes[mine]], ranked.file, host[mine]
        rows[mine, 0] = ranked.rank
        rows[mine, 1] = on_host
        rows[mine, 2] = np.where(on_host, 0, file.device[p])
        rows[mine, 3] = np.where(on_host, file.tid[p], file.stream[p])
    values, lane = np.unique(rows, axis=0, return_inverse=True)
    return lane.reshape(-1), [Lane(r, None if h else d, n) for r, h, d, n in values.tolist()]
