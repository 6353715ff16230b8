"""What a simulated machine did with a program, and the truth about it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulator.program import Call, CommArgs, Program, Work

StreamKey = tuple[int, int]  # device, stream
Site = tuple[int, int]  # thread, position in its actions: the same in every run of a program
WorkSite = tuple[int, int, int]  # the launching call's site, position in its work


@dataclass(frozen=True, slots=True)
class HostOp:
    """A host op as it ran. Times are ns since the program began; ``parent`` is an index into ``Execution.host`` or
    None.
    """

    thread: int
    name: str
    annotation: bool
    start_ns: int
    end_ns: int
    parent: int | None
    seq: int | None
    backward: bool
    fwd_thread: int | None
    comm: CommArgs | None
    site: Site


@dataclass(frozen=True, slots=True)
class CallRow:
    """A call as it ran. ``sources`` (device op indices) is what it stands for: what a synchronisation call waited for,
    what a record or wait captured. ``record`` is the call index of the record that a wait, query or event
    synchronisation refers to.
    """

    thread: int
    call: Call
    start_ns: int
    end_ns: int
    op: int | None  # innermost host op around it
    sources: frozenset[int]
    blocked_ns: int
    record: int | None
    site: Site


@dataclass(frozen=True, slots=True)
class DeviceOp:
    """A device op as it ran. ``sources``: the ops of other streams that it had to wait for; ``previous``: the op before
    it on its stream.
    """

    work: Work
    call: int
    device: int
    stream: int
    start_ns: int
    end_ns: int
    sources: frozenset[int]
    previous: int | None
    site: WorkSite


@dataclass(frozen=True, slots=True)
class OverheadRow:
    """What the profiler itself cost a thread."""

    thread: int
    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class SpinRow:
    """A thread polled until device op ``source`` had written; ``op`` is the innermost host op around it."""

    thread: int
    op: int | None
    source: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Handover:
    """``to_thread`` slept and was released by ``from_thread``. ``from_op`` is the last host op that ``from_thread`` had
    begun, ``from_call`` its last call, ``to_op`` the first op that ``to_thread`` began afterwards; None where there is
    none.
    """

    from_thread: int
    to_thread: int
    asleep_ns: int  # since when
    signal_ns: int
    woken_ns: int
    from_op: int | None
    from_call: int | None
    to_op: int | None


@dataclass(frozen=True, slots=True)
class Structure:
    """What waited for what by site, so that runs of one program can be compared."""

    waits: frozenset[tuple[WorkSite, Site]]
    event_edges: frozenset[tuple[WorkSite, WorkSite]]
    stream_order: frozenset[tuple[WorkSite, WorkSite]]


@dataclass(frozen=True, slots=True)
class Execution:
    """What happened, and the truth about it. Indices: position in ``host`` (by start), ``calls`` (by start), ``device``
    (as enqueued).
    """

    program: Program
    host: tuple[HostOp, ...]
    calls: tuple[CallRow, ...]
    device: tuple[DeviceOp, ...]
    handovers: tuple[Handover, ...]
    waits: frozenset[
        tuple[int, int]
    ]  # (device op, call): what synchronisation calls, ready queries and blocking copies waited for
    event_edges: frozenset[tuple[int, int]]  # (device op, device op) of different streams
    overheads: tuple[OverheadRow, ...] = ()
    spins: tuple[SpinRow, ...] = ()

    @property
    def stream_edges(self) -> frozenset[tuple[int, int]]:
        """(device op, next device op) of the same stream."""
        return frozenset((op.previous, i) for i, op in enumerate(self.device) if op.previous is not None)

    @property
    def start_ns(self) -> int:
        return min((row.start_ns for rows in (self.host, self.calls, self.device) for row in rows), default=0)

    @property
    def end_ns(self) -> int:
        return max((row.end_ns for rows in (self.host, self.calls, self.device) for row in rows), default=0)

    @property
    def makespan_ns(self) -> int:
        """From the first start of any row to the last end."""
        return self.end_ns - self.start_ns

    def structure(self) -> Structure:
        work, call = [op.site for op in self.device], [row.site for row in self.calls]
        return Structure(
            frozenset((work[a], call[b]) for a, b in self.waits),
            frozenset((work[a], work[b]) for a, b in self.event_edges),
            frozenset((work[a], work[b]) for a, b in self.stream_edges),
        )
