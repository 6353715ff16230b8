"""A simulated machine with exact CUDA semantics: runs a ``Program`` and says what happened and what waited for what.

Host threads run in parallel; calls take effect at their start in the order of starts over all threads (distinct to the ns); device
ops run first in, first out per (device, stream); events are snapshots taken at their record. Because all sources of an op are enqueued
before it, its times are known when it is enqueued. O(n log threads) for n actions, plus the number of sources.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from graphlink.testing.program import Action, Api, Await, Begin, Call, CommArgs, End, Host, Overhead, Program, Signal, Spin, Work

StreamKey = tuple[int, int]  # device, stream
Site = tuple[int, int]  # thread, position in its actions: the same in every run of a program
WorkSite = tuple[int, int, int]  # the launching call's site, position in its work


@dataclass(frozen=True, slots=True)
class HostOp:
    """A host op as it ran. Times are ns since the program began; ``parent`` is an index into ``Execution.host`` or None."""

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
    """A call as it ran. ``sources`` (device op indices) is what it stands for: what a synchronisation call waited for, what a record
    or wait captured. ``record`` is the call index of the record that a wait, query or event synchronisation refers to.
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
    """A device op as it ran. ``sources``: the ops of other streams that it had to wait for; ``previous``: the op before it on its
    stream.
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
    """``to_thread`` slept and was released by ``from_thread``. ``from_op`` is the last host op that ``from_thread`` had begun,
    ``from_call`` its last call, ``to_op`` the first op that ``to_thread`` began afterwards; None where there is none.
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
    """What happened, and the truth about it. Indices: position in ``host`` (by start), ``calls`` (by start), ``device`` (as enqueued)."""

    program: Program
    host: tuple[HostOp, ...]
    calls: tuple[CallRow, ...]
    device: tuple[DeviceOp, ...]
    handovers: tuple[Handover, ...]
    waits: frozenset[tuple[int, int]]  # (device op, call): what synchronisation calls, ready queries and blocking copies waited for
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


@dataclass(slots=True)
class _OpenOp:
    begin: Begin
    start_ns: int
    parent: int | None
    site: Site
    end_ns: int | None = None

    def closed(self) -> HostOp:
        assert self.end_ns is not None, "run() refuses programs that leave an op open"
        b = self.begin
        times = (self.start_ns, self.end_ns)
        return HostOp(self.site[0], b.name, b.annotation, *times, self.parent, b.seq, b.backward, b.fwd_thread, b.comm, self.site)


@dataclass(slots=True)
class _ThreadState:
    clock_ns: int
    next_action: int = 0
    stack: list[int] = field(default_factory=list)
    last_op: int | None = None
    last_call: int | None = None
    last_launched: int | None = None
    wakeup: int | None = None  # hand-over whose first op is still to come


@dataclass(slots=True)
class _HandoverDraft:
    from_thread: int
    to_thread: int
    asleep_ns: int
    signal_ns: int
    woken_ns: int
    from_op: int | None
    from_call: int | None
    to_op: int | None = None


class _Devices:
    """Streams and events: the state of ``cuda-sync`` semantics, and the device ops run so far."""

    def __init__(self, scale: Callable[[Work], float]):
        self.scale = scale
        self.ops: list[DeviceOp] = []
        self.tail: dict[StreamKey, int] = {}
        self.pending: dict[StreamKey, set[int]] = {}
        self.snapshot: dict[int, frozenset[int]] = {}  # of an event, as last recorded
        self.record: dict[int, int] = {}  # event -> call index of that record

    def on(self, op: int) -> StreamKey:
        return self.ops[op].device, self.ops[op].stream

    def at_stream(self, key: StreamKey) -> frozenset[int]:
        tail = self.tail.get(key)
        return frozenset(self.pending.get(key, ())) | (frozenset() if tail is None else {tail})

    def at_device(self, device: int) -> frozenset[int]:
        found = {op for key, op in self.tail.items() if key[0] == device}
        for key, ops in self.pending.items():
            if key[0] == device:
                found.update(op for op in ops if self.on(op)[0] != device)
        return frozenset(found)

    def at_event(self, event: int | None) -> frozenset[int]:
        return frozenset() if event is None else self.snapshot.get(event, frozenset())

    def last_end_ns(self, ops: frozenset[int]) -> int:
        return max((self.ops[op].end_ns for op in ops), default=-1)

    def wait(self, key: StreamKey, event: int | None) -> None:
        sources = {op for op in self.at_event(event) if self.on(op) != key}
        self.pending.setdefault(key, set()).update(sources)

    def enqueue(self, work: Work, key: StreamKey, call: int, ready_ns: int, site: WorkSite) -> int:
        sources = frozenset(self.pending.pop(key, ()))
        previous = self.tail.get(key)
        after_ns = self.last_end_ns(sources if previous is None else sources | {previous})
        start_ns = max(ready_ns, after_ns + work.gap_ns) if after_ns >= 0 else ready_ns
        duration_ns = max(1, round(work.duration_ns * self.scale(work)))
        op = DeviceOp(work, call, key[0], key[1], start_ns, start_ns + duration_ns, sources, previous, site)
        self.ops.append(op)
        self.tail[key] = len(self.ops) - 1
        return len(self.ops) - 1


class _Machine:
    def __init__(self, program: Program, scale: Callable[[Work], float], host_scale: float):
        self.program = program
        self.host_scale = host_scale
        self.devices = _Devices(scale)
        self.threads = [_ThreadState(thread.start_ns) for thread in program.threads]
        self.host: list[_OpenOp] = []
        self.calls: list[CallRow] = []
        self.handovers: list[_HandoverDraft] = []
        self.signalled: dict[str, tuple[int, int]] = {}  # key -> thread, when
        self.asleep: dict[str, tuple[int, int]] = {}  # key -> thread, wake_ns
        self.waits: set[tuple[int, int]] = set()
        self.overheads: list[OverheadRow] = []
        self.spins: list[SpinRow] = []
        self.last_start_ns = -1
        self.ready = [(thread.start_ns, i) for i, thread in enumerate(program.threads)]
        heapq.heapify(self.ready)

    def run(self) -> Execution:
        while self.ready:
            now_ns, index = heapq.heappop(self.ready)
            thread, actions = self.threads[index], self.program.threads[index].actions
            if thread.next_action == len(actions):
                continue
            site = (index, thread.next_action)
            thread.next_action += 1
            thread.clock_ns = now_ns
            if self.step(thread, actions[site[1]], site):
                heapq.heappush(self.ready, (thread.clock_ns, index))
        if self.asleep:
            raise ValueError(f"threads sleep for ever: nobody signals {sorted(self.asleep)}")
        if any(op.end_ns is None for op in self.host):
            raise ValueError("a thread ends with an op still open")
        return self.result()

    def step(self, thread: _ThreadState, action: Action, site: Site) -> bool:
        """Run one action at the thread's clock; False if the thread fell asleep."""
        match action:
            case Host():
                thread.clock_ns += round(action.ns * self.host_scale)
            case Begin():
                self.begin(thread, action, site)
            case End():
                self.host[thread.stack.pop()].end_ns = thread.clock_ns
                thread.clock_ns += action.ns
            case Call():
                self.call(thread, action, site)
            case Overhead():
                self.overheads.append(OverheadRow(site[0], action.name, thread.clock_ns, thread.clock_ns + action.ns))
                thread.clock_ns += action.ns
            case Spin():
                self.spin(thread, action, site[0])
            case Signal():
                self.signal(thread, action, site[0])
            case Await():
                return self.fall_asleep(thread, action, site[0])
        return True

    def begin(self, thread: _ThreadState, action: Begin, site: Site) -> None:
        start_ns = self.distinct_start(thread)
        thread.last_op = len(self.host)
        self.host.append(_OpenOp(action, start_ns, thread.stack[-1] if thread.stack else None, site))
        thread.stack.append(thread.last_op)
        thread.clock_ns = start_ns + max(1, action.ns)
        if thread.wakeup is not None:
            self.handovers[thread.wakeup].to_op = thread.last_op
            thread.wakeup = None

    def distinct_start(self, thread: _ThreadState) -> int:
        """Starts are distinct to the ns over all threads: what happened first is then never ambiguous."""
        self.last_start_ns = max(thread.clock_ns, self.last_start_ns + 1)
        return self.last_start_ns

    def call(self, thread: _ThreadState, call: Call, site: Site) -> None:
        start_ns, index, devices = self.distinct_start(thread), len(self.calls), self.devices
        end_ns = start_ns + max(1, call.call_ns)
        key = (call.device, call.stream)
        sources: frozenset[int] = frozenset()
        record = None if call.event is None else devices.record.get(call.event)
        waits = call.blocking
        match call.api:
            case Api.LAUNCH:
                ready_ns, last = start_ns + max(1, call.call_ns + call.work[0].launch_delay_ns), 0
                for part, work in enumerate(call.work):
                    last = devices.enqueue(work, key, index, ready_ns, (*site, part))
                thread.last_launched = last
                if call.blocking:
                    sources = frozenset({last})
            case Api.RECORD:
                assert call.event is not None, "a record has an event"
                sources = devices.snapshot[call.event] = devices.at_stream(key)
                devices.record[call.event] = index
                record = None
            case Api.WAIT_EVENT:
                sources = devices.at_event(call.event)
                devices.wait(key, call.event)
            case Api.STREAM_SYNC:
                sources, waits = devices.at_stream(key), True
            case Api.DEVICE_SYNC:
                sources, waits = devices.at_device(call.device), True
            case Api.EVENT_SYNC:
                sources, waits = devices.at_event(call.event), True
            case Api.EVENT_QUERY:
                sources = devices.at_event(call.event)
                if devices.last_end_ns(sources) > end_ns:
                    sources = frozenset()
        blocked_ns = max(0, devices.last_end_ns(sources) - start_ns) if waits and sources else 0
        if blocked_ns:
            end_ns = max(end_ns, start_ns + blocked_ns + call.return_ns)
        if waits or call.api is Api.EVENT_QUERY:
            self.waits.update((op, index) for op in sources)
        if call.overhead:
            margin_ns = min(1_000, (end_ns - start_ns) // 4)
            self.overheads.append(OverheadRow(site[0], call.overhead, start_ns + margin_ns, end_ns - margin_ns))
        op = thread.stack[-1] if thread.stack else None
        self.calls.append(CallRow(site[0], call, start_ns, end_ns, op, sources, blocked_ns, record, site))
        thread.last_call, thread.clock_ns = index, end_ns

    def spin(self, thread: _ThreadState, action: Spin, index: int) -> None:
        if thread.last_launched is None:
            raise ValueError("a thread spins that has launched nothing")
        source, start_ns = self.devices.ops[thread.last_launched], thread.clock_ns
        thread.clock_ns = max(start_ns, source.start_ns, source.end_ns + action.ns)
        op = thread.stack[-1] if thread.stack else None
        self.spins.append(SpinRow(index, op, thread.last_launched, start_ns, thread.clock_ns))

    def signal(self, thread: _ThreadState, action: Signal, index: int) -> None:
        self.signalled[action.key] = (index, thread.clock_ns)
        if action.key in self.asleep:
            sleeper, wake_ns = self.asleep.pop(action.key)
            woken = self.threads[sleeper]
            asleep_ns, woken.clock_ns = woken.clock_ns, thread.clock_ns + wake_ns
            woken.wakeup = len(self.handovers)
            draft = _HandoverDraft(index, sleeper, asleep_ns, thread.clock_ns, woken.clock_ns, thread.last_op, thread.last_call)
            self.handovers.append(draft)
            heapq.heappush(self.ready, (woken.clock_ns, sleeper))

    def fall_asleep(self, thread: _ThreadState, action: Await, index: int) -> bool:
        if action.key in self.signalled:
            return True
        if action.key in self.asleep:
            raise ValueError(f"two threads await {action.key!r}")
        self.asleep[action.key] = (index, action.wake_ns)
        return False

    def result(self) -> Execution:
        host = tuple(op.closed() for op in self.host)
        handovers = tuple(
            Handover(h.from_thread, h.to_thread, h.asleep_ns, h.signal_ns, h.woken_ns, h.from_op, h.from_call, h.to_op)
            for h in self.handovers
        )
        device = tuple(self.devices.ops)
        edges = frozenset((source, i) for i, op in enumerate(device) for source in op.sources)
        return Execution(
            self.program, host, tuple(self.calls), device, handovers, frozenset(self.waits), edges, tuple(self.overheads), tuple(self.spins)
        )


def run(
    program: Program,
    kernel_scale: float = 1.0,
    *,
    host_scale: float = 1.0,
    scale_work: Callable[[Work], float] | None = None,
) -> Execution:
    """Run a program; deterministic.

    ``kernel_scale`` multiplies the duration of every device op, ``scale_work`` instead gives a factor for each, ``host_scale``
    multiplies the ``Host`` times. Latencies and call durations stay. A program in which threads race for a stream may enqueue in
    another order when scaled: compare ``Execution.structure()``.

    Raises ValueError for a program that cannot end (nobody signals an awaited key) or leaves an op open.
    """

    def uniform(_: Work) -> float:
        return kernel_scale

    return _Machine(program, scale_work or uniform, host_scale).run()
