"""What can be wrong with the recordings of a cluster, and what each rank then recorded of what happened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from tests.simulator.cluster_program import ClusterGroup, Op
from tests.simulator.cluster_records import (
    COLLECTIVE,
    I64,
    NOWHERE,
    TYPE_NAMES,
    Bool,
    ClusterTraining,
    RankTimes,
    TrueClock,
)
from tests.simulator.dialects import EPOCH_NS, row_ids
from tests.simulator.execution import CallRow, DeviceOp, Execution, HostOp, OverheadRow
from tests.simulator.program import Overhead


@dataclass(frozen=True, slots=True)
class LateStart:
    """The recording of a rank lacks what was issued before a moment: a ``share`` of the run, or after its first
    ``meetings`` ops.
    """

    rank: int
    share: float | None = None
    meetings: int | None = None


@dataclass(frozen=True, slots=True)
class EarlyEnd:
    """The recording of a rank lacks what ended after a moment: a ``share`` of the run, or before its last ``meetings``
    ops to end.
    """

    rank: int
    share: float | None = None
    meetings: int | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """The rank's ``k``-th op of its group of a sort ("tensor", "data", "twin", "expert", "pipeline", "world") happened
    but is missing.
    """

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
    """The ``k``-th collective of a group is recorded with another function or size; where neither is given, with twice
    the size.
    """

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
    """Starting the profiler takes each rank another while, up to ``spread_ns``, before it goes on: the others wait for
    it in their first collectives, which without the profiler they would not."""

    spread_ns: int


@dataclass(frozen=True, slots=True)
class ProfilerOverhead:
    """The profiler holds up the host of a rank for ``ns`` as it begins a step; an overhead row says so."""

    rank: int
    step: int
    ns: int
    name: str = "Buffer Flush"


Fault: TypeAlias = (
    LateStart | EarlyEnd | Dropped | OtherOrder | Differs | MissingRank | ProfilerStart | ProfilerOverhead
)


@dataclass(frozen=True, slots=True)
class Described:
    """What a rank says of its ops, in the order in which it issues them. ``altered``: position -> why it is not as
    issued.
    """

    ops: list[Op]
    altered: dict[int, str] = field(default_factory=dict)


class Recorded(NamedTuple):
    """The window of a rank's recording, in true ns since the run began, and which of its ops have their kernels
    in it.
    """

    began_ns: int
    ended_ns: int
    kept: Bool


class Recording(NamedTuple):
    """What the profiler of a rank shows, on its clock: rows in ns since the run began, the window in ns since the
    epoch. ``ops``: which op of the rank each device op is."""

    execution: Execution
    ops: I64
    began_ns: int
    ended_ns: int
    clock: TrueClock

    def communication(self) -> dict[int, tuple[int, DeviceOp]]:
        """Op of the rank -> correlation and kernel, of those that communicate."""
        device, correlation = self.execution.device, row_ids(self.execution).device_correlation
        return {
            i: (correlation[at], device[at])
            for at, i in enumerate(self.ops.tolist())
            if device[at].work.comm is not None
        }


Timed = TypeVar("Timed", HostOp, CallRow, DeviceOp, OverheadRow)


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


def held_up(faults: Sequence[Fault]) -> dict[int, dict[int, Overhead]]:
    """Rank -> step -> what holds up the host. Raises ValueError where two faults are about one step of a rank."""
    held: dict[int, dict[int, Overhead]] = {}
    for fault in faults:
        if isinstance(fault, ProfilerOverhead):
            mine = held.setdefault(fault.rank, {})
            if fault.step in mine:
                raise ValueError(f"{fault}: the profiler holds up that step already")
            mine[fault.step] = Overhead(fault.name, fault.ns)
    return held


def of_rank(faults: Sequence[Fault], rank: int) -> list[Fault]:
    return [fault for fault in faults if not isinstance(fault, ProfilerStart) and fault.rank == rank]


def described(ops: Sequence[Op], groups: Sequence[ClusterGroup], faults: Sequence[Fault]) -> Described:
    """``faults``: of the rank. Raises ValueError for one that does not fit."""
    found = Described(list(ops))
    for fault in faults:
        if isinstance(fault, OtherOrder):
            _exchange(fault, found, groups)
        elif isinstance(fault, Differs):
            _alter(found, _position(fault, ops, groups), fault, "differs", fault.type, fault.bytes)
    return found


def recorded(
    ops: Sequence[Op],
    times: RankTimes,
    groups: Sequence[ClusterGroup],
    faults: Sequence[Fault],
    window_ns: tuple[int, int],
) -> Recorded | None:
    """What the rank recorded; None where nothing. ``faults``: its own; ``window_ns``: of a recording without any.
    Raises ValueError for a fault that does not fit."""
    if any(isinstance(fault, MissingRank) for fault in faults):
        return None
    began_ns, ended_ns = window_ns
    comms = np.flatnonzero(times.meeting != NOWHERE)
    for fault in faults:
        if isinstance(fault, LateStart):
            began_ns = max(began_ns, _late_ns(fault, times.issue_ns[comms].tolist(), ended_ns))
        elif isinstance(fault, EarlyEnd):
            ended_ns = min(ended_ns, _early_ns(fault, sorted(times.end_ns[comms].tolist()), ended_ns))
    kept = (times.issue_ns >= began_ns) & (times.end_ns <= ended_ns)
    for fault in faults:
        if isinstance(fault, Dropped):
            kept[_position(fault, ops, groups)] = False
    return Recorded(began_ns, ended_ns, kept)


def recording(execution: Execution, op_of: I64, record: Recorded, clock: TrueClock) -> Recording:
    """``op_of``: of each device op the rank's op. Linear in rows."""

    def inside(row: HostOp | CallRow | OverheadRow) -> bool:
        return row.start_ns >= record.began_ns and row.end_ns <= record.ended_ns

    ops, kept = op_of.tolist(), record.kept.tolist()
    host = _places(map(inside, execution.host))
    calls = _places(map(inside, execution.calls))
    overheads = _places(map(inside, execution.overheads))
    device = _places(
        op.call in calls and op.end_ns <= record.ended_ns and (op.work.comm is None or kept[ops[i]])
        for i, op in enumerate(execution.device)
    )

    def left(sources: frozenset[int]) -> frozenset[int]:
        return frozenset(device[i] for i in sources if i in device) if sources else sources

    shown = Execution(
        program=execution.program,
        host=tuple(
            replace(row, start_ns=a, end_ns=b, parent=_place(host, row.parent))
            for row, a, b in _on(clock, execution.host, host)
        ),
        calls=tuple(
            replace(
                row,
                start_ns=a,
                end_ns=b,
                op=_place(host, row.op),
                sources=left(row.sources),
                record=_place(calls, row.record),
            )
            for row, a, b in _on(clock, execution.calls, calls)
        ),
        device=tuple(
            replace(
                op,
                start_ns=a,
                end_ns=b,
                call=calls[op.call],
                sources=left(op.sources),
                previous=_place(device, op.previous),
            )
            for op, a, b in _on(clock, execution.device, device)
        ),
        handovers=(),
        waits=frozenset((device[op], calls[call]) for op, call in execution.waits if op in device and call in calls),
        event_edges=frozenset((device[a], device[b]) for a, b in execution.event_edges if a in device and b in device),
        overheads=tuple(replace(row, start_ns=a, end_ns=b) for row, a, b in _on(clock, execution.overheads, overheads)),
    )
    began_ns, ended_ns = clock.recorded(np.array([record.began_ns, record.ended_ns], np.int64) + EPOCH_NS).tolist()
    return Recording(shown, op_of[list(device)], began_ns, ended_ns, clock)


def _places(kept: Iterable[bool]) -> dict[int, int]:
    """Position of a row -> its position among those that are kept."""
    return {i: place for place, i in enumerate(i for i, keep in enumerate(kept) if keep)}


def _place(places: dict[int, int], at: int | None) -> int | None:
    return None if at is None else places.get(at)


def _on(clock: TrueClock, rows: Sequence[Timed], places: Iterable[int]) -> Iterator[tuple[Timed, int, int]]:
    """Each row that is kept, with its start and end as the clock has them, in ns since the run began."""
    rows = [rows[i] for i in places]
    true_ns = np.array([(row.start_ns, row.end_ns) for row in rows], np.int64).reshape(-1, 2)
    for row, (start_ns, end_ns) in zip(rows, (clock.recorded(true_ns + EPOCH_NS) - EPOCH_NS).tolist(), strict=True):
        yield row, start_ns, end_ns


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


def _position(
    fault: Dropped | OtherOrder | Differs, ops: Sequence[Op], groups: Sequence[ClusterGroup], later: int = 0
) -> int:
    """Position of the ``k``-th (and ``later``) op of the group; of "pipeline" any message, else a collective."""
    found = [i for i, op in enumerate(ops) if op.group != NOWHERE and groups[op.group].sort == fault.group]
    if not 0 <= fault.k < len(found) - later:
        raise ValueError(f"{fault}: the rank has {len(found)} ops of that group")
    return found[fault.k + later]


def _alter(found: Described, at: int, fault: Fault, why: str, type_: int | None, size: int | None) -> None:
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


def _exchange(fault: OtherOrder, found: Described, groups: Sequence[ClusterGroup]) -> None:
    first, second = (_position(fault, found.ops, groups, later) for later in (0, 1))
    a, b = found.ops[first], found.ops[second]
    if (a.type, a.bytes) == (b.type, b.bytes):
        raise ValueError(f"{fault}: both are alike")
    for at, op in ((first, b), (second, a)):
        found.ops[at] = found.ops[at]._replace(elem_bytes=op.elem_bytes)
        _alter(found, at, fault, "other order", op.type, op.bytes)
