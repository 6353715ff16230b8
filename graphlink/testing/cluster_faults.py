"""What can be wrong with the recordings of a cluster, and what each rank then recorded of what happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from graphlink.testing.cluster_machine import RankTimes
from graphlink.testing.cluster_program import ClusterGroup, Op
from graphlink.testing.cluster_records import COLLECTIVE, NOWHERE, TYPE_NAMES, Bool, ClusterTraining


@dataclass(frozen=True, slots=True)
class LateStart:
    """The recording of a rank lacks what was issued before a moment: a ``share`` of the run, or after its first ``meetings`` ops."""

    rank: int
    share: float | None = None
    meetings: int | None = None


@dataclass(frozen=True, slots=True)
class EarlyEnd:
    """The recording of a rank lacks what ended after a moment: a ``share`` of the run, or before its last ``meetings`` ops to end."""

    rank: int
    share: float | None = None
    meetings: int | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """The rank's ``k``-th op of its group of a sort ("tensor", "data", "twin", "expert", "pipeline", "world") happened but is missing."""

    rank: int
    group: str
    k: int


@dataclass(frozen=True, slots=True)
class OtherOrder:
    """The ``k``-th and the next collective of a group are recorded with each other's function and size."""

    rank: int
    group: str
    k: int


@dataclass(frozen=True, slots=True)
class Differs:
    """The ``k``-th collective of a group is recorded with another function or size; where neither is given, with twice the size."""

    rank: int
    group: str
    k: int
    type: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MissingRank:
    """Nothing of the rank was recorded."""

    rank: int


@dataclass(frozen=True, slots=True)
class ProfilerStart:
    """Starting the profiler takes each rank another while, up to ``spread_ns``, before it goes on: the others wait for it in their first
    collectives, which without the profiler they would not."""

    spread_ns: int


@dataclass(frozen=True, slots=True)
class ProfilerOverhead:
    """The profiler holds up the host of a rank for ``ns`` as it begins a step; an overhead row says so."""

    rank: int
    step: int
    ns: int
    name: str = "Buffer Flush"


Fault: TypeAlias = LateStart | EarlyEnd | Dropped | OtherOrder | Differs | MissingRank | ProfilerStart | ProfilerOverhead


@dataclass(slots=True)
class Recorded:
    """What a rank recorded of its ops. ``ops`` as recorded, positions as issued; times in true ns since the run began.

    ``window``: who was in the recording's window; ``kept``: whose kernel was recorded. ``altered``: position -> why it is not as issued.
    """

    ops: list[Op]
    began_ns: int
    ended_ns: int
    window: Bool
    kept: Bool
    altered: dict[int, str] = field(default_factory=dict)


def check_faults(training: ClusterTraining, faults: Sequence[Fault]) -> None:
    for fault in faults:
        if isinstance(fault, ProfilerStart):
            if fault.spread_ns < 0:
                raise ValueError(f"{fault}: nothing takes less than no time")
            continue
        if not 0 <= fault.rank < training.world:
            raise ValueError(f"{fault}: there are {training.world} ranks")
        if isinstance(fault, LateStart | EarlyEnd):
            if (fault.share is None) == (fault.meetings is None):
                raise ValueError(f"{fault}: give a share or a number of meetings")
        elif isinstance(fault, ProfilerOverhead) and not (0 <= fault.step < training.steps and fault.ns > 0):
            raise ValueError(f"{fault}: there are {training.steps} steps, and overhead takes time")


def profiler_starts(training: ClusterTraining, faults: Sequence[Fault]) -> list[int]:
    """When the program of each rank goes on after its profiler started."""
    spread_ns = sum(fault.spread_ns for fault in faults if isinstance(fault, ProfilerStart))
    rng = np.random.default_rng([training.seed, 2])
    starts = np.rint(spread_ns * rng.permutation(training.world) / (training.world - 1)).astype(np.int64)
    return [int(ns) for ns in starts]


def held_up(faults: Sequence[Fault]) -> dict[tuple[int, int], int]:
    """(rank, step) -> how long the profiler holds up the host. Raises ValueError where two faults are about one step of a rank."""
    held: dict[tuple[int, int], int] = {}
    for fault in faults:
        if isinstance(fault, ProfilerOverhead):
            if (fault.rank, fault.step) in held:
                raise ValueError(f"{fault}: the profiler holds up that step already")
            held[fault.rank, fault.step] = fault.ns
    return held


def recorded(
    rank: int, ops: list[Op], times: RankTimes, groups: Sequence[ClusterGroup], faults: Sequence[Fault], window_ns: tuple[int, int]
) -> Recorded | None:
    """What the rank recorded; None where nothing. ``window_ns``: of a recording without faults. Raises ValueError for a fault that
    does not fit."""
    mine = [fault for fault in faults if not isinstance(fault, ProfilerStart) and fault.rank == rank]
    if any(isinstance(fault, MissingRank) for fault in mine):
        return None
    began_ns, ended_ns = window_ns
    comms = np.flatnonzero(times.meeting != NOWHERE)
    for fault in mine:
        if isinstance(fault, LateStart):
            began_ns = max(began_ns, _late_ns(fault, times.issue_ns[comms].tolist(), ended_ns))
        elif isinstance(fault, EarlyEnd):
            ended_ns = min(ended_ns, _early_ns(fault, sorted(times.end_ns[comms].tolist()), ended_ns))
    window = (times.issue_ns >= began_ns) & (times.end_ns <= ended_ns)
    found = Recorded(list(ops), began_ns, ended_ns, window, window.copy())
    for fault in mine:
        if isinstance(fault, Dropped):
            found.kept[_position(fault, ops, groups)] = False
        elif isinstance(fault, OtherOrder):
            _exchange(fault, found, groups)
        elif isinstance(fault, Differs):
            at = _position(fault, ops, groups)
            _alter(found, at, fault, "differs", fault.type, fault.bytes)
    return found


def _late_ns(fault: LateStart, issued_ns: list[int], ended_ns: int) -> int:
    if fault.share is not None:
        return round(ended_ns * fault.share)
    assert fault.meetings is not None, "checked before"
    if not 0 <= fault.meetings < len(issued_ns):
        raise ValueError(f"{fault}: the rank has {len(issued_ns)}")
    return issued_ns[fault.meetings]


def _early_ns(fault: EarlyEnd, ends_ns: list[int], ended_ns: int) -> int:
    if fault.share is not None:
        return round(ended_ns * fault.share)
    assert fault.meetings is not None, "checked before"
    if not 0 <= fault.meetings < len(ends_ns):
        raise ValueError(f"{fault}: the rank has {len(ends_ns)}")
    return ended_ns if not fault.meetings else ends_ns[-1 - fault.meetings]


def _position(fault: Dropped | OtherOrder | Differs, ops: Sequence[Op], groups: Sequence[ClusterGroup], later: int = 0) -> int:
    """Position of the ``k``-th (and ``later``) op of the group; of "pipeline" any message, else a collective."""
    found = [i for i, op in enumerate(ops) if op.group != NOWHERE and groups[op.group].sort == fault.group]
    if not 0 <= fault.k < len(found) - later:
        raise ValueError(f"{fault}: the rank has {len(found)} ops of that group")
    return found[fault.k + later]


def _alter(found: Recorded, at: int, fault: Fault, why: str, type_: int | None, size: int | None) -> None:
    op = found.ops[at]
    if op.kind != COLLECTIVE or op.splits[0]:
        raise ValueError(f"{fault}: of collectives without splits only")
    if type_ is None and size is None:
        size = 2 * op.bytes
    new = op._replace(type=op.type if type_ is None else type_, bytes=op.bytes if size is None else size)
    if new.type not in TYPE_NAMES or new.bytes % new.elem_bytes or new == op:
        raise ValueError(f"{fault}: changes nothing, or into what cannot be recorded")
    found.ops[at] = new
    found.altered[at] = why


def _exchange(fault: OtherOrder, found: Recorded, groups: Sequence[ClusterGroup]) -> None:
    first, second = (_position(fault, found.ops, groups, later) for later in (0, 1))
    a, b = found.ops[first], found.ops[second]
    if (a.type, a.bytes) == (b.type, b.bytes):
        raise ValueError(f"{fault}: both are alike")
    for at, op in ((first, b), (second, a)):
        found.ops[at] = found.ops[at]._replace(elem_bytes=op.elem_bytes)
        _alter(found, at, fault, "other order", op.type, op.bytes)
