"""A simulated machine with exact CUDA semantics: runs a ``Program`` and says what happened and what waited for what.

Host threads run in parallel; calls take effect at their start in the order of starts over all threads (distinct to the
ns); device ops run first in, first out per (device, stream); events are snapshots taken at their record. All sources of
an op are enqueued before it, so its times are known when it is enqueued, but behind an op that meets others of programs
that run together: then once the last of those has started. O(n log threads) for n actions, plus the number of sources.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tests.simulator.execution import (
    CallRow,
    DeviceOp,
    Execution,
    Handover,
    HostOp,
    OverheadRow,
    Site,
    SpinRow,
    StreamKey,
    WorkSite,
)
from tests.simulator.program import Action, Api, Await, Begin, Call, End, Host, Overhead, Program, Signal, Spin, Work

BLOCKING = (Api.STREAM_SYNC, Api.DEVICE_SYNC, Api.EVENT_SYNC)


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
        return HostOp(
            self.site[0], b.name, b.annotation, *times, self.parent, b.seq, b.backward, b.fwd_thread, b.comm, self.site
        )


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
class _OpDraft:
    work: Work
    call: int
    key: StreamKey
    ready_ns: int
    sources: frozenset[int]
    previous: int | None
    before: frozenset[int]  # the sources, and the previous
    site: WorkSite
    start_ns: int = -1
    end_ns: int = -1  # as long as it is not known

    def made(self) -> DeviceOp:
        return DeviceOp(
            self.work, self.call, *self.key, self.start_ns, self.end_ns, self.sources, self.previous, self.site
        )


@dataclass(slots=True)
class _Waiter:
    lacks: int
    then: Callable[[], None]


@dataclass(slots=True)
class _Together:
    """What programs that run together share: who goes on when (time, program, thread), what is due now, who has come to
    a meeting.
    """

    ready: list[tuple[int, int, int]] = field(default_factory=list)
    due: list[Callable[[], None]] = field(default_factory=list)
    come: dict[int, list[tuple[_Devices, int]]] = field(default_factory=dict)


class _Devices:
    """Streams and events: the state of ``cuda-sync`` semantics, and the device ops enqueued so far."""

    def __init__(self, scale: Callable[[Work], float], together: _Together):
        self.scale, self.together = scale, together
        self.ops: list[_OpDraft] = []
        self.tail: dict[StreamKey, int] = {}
        self.pending: dict[StreamKey, set[int]] = {}
        self.snapshot: dict[int, frozenset[int]] = {}  # of an event, as last recorded
        self.record: dict[int, int] = {}  # event -> call index of that record
        self.waiting: dict[int, list[_Waiter]] = {}  # op -> who goes on once its end is known

    def at_stream(self, key: StreamKey) -> frozenset[int]:
        tail = self.tail.get(key)
        return frozenset(self.pending.get(key, ())) | (frozenset() if tail is None else {tail})

    def at_device(self, device: int) -> frozenset[int]:
        found = {op for key, op in self.tail.items() if key[0] == device}
        for key, ops in self.pending.items():
            if key[0] == device:
                found.update(op for op in ops if self.ops[op].key[0] != device)
        return frozenset(found)

    def at_event(self, event: int | None) -> frozenset[int]:
        return frozenset() if event is None else self.snapshot.get(event, frozenset())

    def last_end_ns(self, ops: frozenset[int]) -> int:
        return max((self.ops[op].end_ns for op in ops), default=-1)

    def ended(self, ops: frozenset[int], ns: int) -> bool:
        return all(0 <= self.ops[op].end_ns <= ns for op in ops)

    def wait(self, key: StreamKey, event: int | None) -> None:
        sources = {op for op in self.at_event(event) if self.ops[op].key != key}
        self.pending.setdefault(key, set()).update(sources)

    def enqueue(self, work: Work, key: StreamKey, call: int, ready_ns: int, site: WorkSite) -> int:
        op = len(self.ops)
        sources, previous = frozenset(self.pending.pop(key, ())), self.tail.get(key)
        before = sources if previous is None else sources | {previous}
        draft = _OpDraft(work, call, key, ready_ns, sources, previous, before, site)
        self.ops.append(draft)
        self.tail[key] = op
        self.when_known(draft.before, lambda: self.start(op))
        return op

    def when_known(self, ops: frozenset[int], then: Callable[[], None]) -> None:
        """Call ``then`` once the ends of ``ops`` are known."""
        unknown = [op for op in ops if self.ops[op].end_ns < 0]
        if not unknown:
            then()
            return
        waiter = _Waiter(len(unknown), then)
        for op in unknown:
            self.waiting.setdefault(op, []).append(waiter)

    def start(self, op: int) -> None:
        draft = self.ops[op]
        after_ns = self.last_end_ns(draft.before)
        draft.start_ns = max(draft.ready_ns, after_ns + draft.work.gap_ns) if after_ns >= 0 else draft.ready_ns
        members, meeting = [(self, op)], draft.work.meeting
        if meeting is not None:
            members = self.together.come.setdefault(meeting.key, [])
            members.append((self, op))
            if len(members) < meeting.members:
                return
        last_ns = max(devices.ops[member].start_ns for devices, member in members)
        for devices, member in members:
            devices.end(member, last_ns)

    def end(self, op: int, from_ns: int) -> None:
        draft = self.ops[op]
        draft.end_ns = from_ns + max(1, round(draft.work.duration_ns * self.scale(draft.work)))
        for waiter in self.waiting.pop(op, ()):
            waiter.lacks -= 1
            if not waiter.lacks:
                self.together.due.append(waiter.then)  # not at once: a stream may be long


class _Machine:
    def __init__(
        self, program: Program, number: int, together: _Together, scale: Callable[[Work], float], host_scale: float
    ):
        self.program, self.number, self.together = program, number, together
        self.host_scale = host_scale
        self.devices = _Devices(scale, together)
        self.threads = [_ThreadState(thread.start_ns) for thread in program.threads]
        self.host: list[_OpenOp] = []
        self.calls: list[CallRow] = []
        self.handovers: list[Handover] = []
        self.signalled: dict[str, tuple[int, int]] = {}  # key -> thread, when
        self.asleep: dict[str, tuple[int, int]] = {}  # key -> thread, wake_ns
        self.waits: set[tuple[int, int]] = set()
        self.overheads: list[OverheadRow] = []
        self.spins: list[SpinRow] = []
        self.last_start_ns = -1
        for i in range(len(self.threads)):
            self.goes_on(i)

    def goes_on(self, index: int) -> None:
        heapq.heappush(self.together.ready, (self.threads[index].clock_ns, self.number, index))

    def act(self, now_ns: int, index: int) -> None:
        """Run the next actions of a thread, up to where another is first or something is due."""
        thread, actions = self.threads[index], self.program.threads[index].actions
        ready, due = self.together.ready, self.together.due
        thread.clock_ns = now_ns
        while thread.next_action < len(actions):
            site = (index, thread.next_action)
            thread.next_action += 1
            if not self.step(thread, actions[site[1]], site):
                return
            if due or (ready and ready[0] < (thread.clock_ns, self.number, index)):
                self.goes_on(index)
                return

    def step(self, thread: _ThreadState, action: Action, site: Site) -> bool:
        """Run one action at the thread's clock; False if the thread fell asleep, or goes on once it is known when."""
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
                return False
            case Overhead():
                self.overheads.append(OverheadRow(site[0], action.name, thread.clock_ns, thread.clock_ns + action.ns))
                thread.clock_ns += action.ns
            case Spin():
                self.spin(thread, action, site[0])
                return False
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
            self.handovers[thread.wakeup] = replace(self.handovers[thread.wakeup], to_op=thread.last_op)
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
        waits = call.blocking or call.api in BLOCKING
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
                sources = devices.at_stream(key)
            case Api.DEVICE_SYNC:
                sources = devices.at_device(call.device)
            case Api.EVENT_SYNC:
                sources = devices.at_event(call.event)
            case Api.EVENT_QUERY:
                sources = devices.at_event(call.event)
                if not devices.ended(sources, end_ns):
                    sources = frozenset()
        if waits or call.api is Api.EVENT_QUERY:
            self.waits.update((op, index) for op in sources)
        op = thread.stack[-1] if thread.stack else None
        self.calls.append(CallRow(site[0], call, start_ns, end_ns, op, sources, 0, record, site))
        thread.last_call = index
        awaited = sources if waits else frozenset[int]()
        devices.when_known(awaited, lambda: self.returns(index, awaited))

    def returns(self, index: int, awaited: frozenset[int]) -> None:
        row = self.calls[index]
        call, start_ns, end_ns = row.call, row.start_ns, row.end_ns
        blocked_ns = max(0, self.devices.last_end_ns(awaited) - start_ns)
        if blocked_ns:
            end_ns = max(end_ns, start_ns + blocked_ns + call.return_ns)
            self.calls[index] = replace(row, end_ns=end_ns, blocked_ns=blocked_ns)
        if call.overhead:
            margin_ns = min(1_000, (end_ns - start_ns) // 4)
            self.overheads.append(OverheadRow(row.thread, call.overhead, start_ns + margin_ns, end_ns - margin_ns))
        self.threads[row.thread].clock_ns = end_ns
        self.goes_on(row.thread)

    def spin(self, thread: _ThreadState, action: Spin, index: int) -> None:
        source, start_ns = thread.last_launched, thread.clock_ns
        if source is None:
            raise ValueError("a thread spins that has launched nothing")
        op = thread.stack[-1] if thread.stack else None

        def seen() -> None:
            polled = self.devices.ops[source]
            thread.clock_ns = max(start_ns, polled.start_ns, polled.end_ns + action.ns)
            self.spins.append(SpinRow(index, op, source, start_ns, thread.clock_ns))
            self.goes_on(index)

        self.devices.when_known(frozenset({source}), seen)

    def signal(self, thread: _ThreadState, action: Signal, index: int) -> None:
        self.signalled[action.key] = (index, thread.clock_ns)
        if action.key in self.asleep:
            sleeper, wake_ns = self.asleep.pop(action.key)
            woken = self.threads[sleeper]
            asleep_ns, woken.clock_ns = woken.clock_ns, thread.clock_ns + wake_ns
            woken.wakeup = len(self.handovers)
            times_ns = (asleep_ns, thread.clock_ns, woken.clock_ns)
            self.handovers.append(Handover(index, sleeper, *times_ns, thread.last_op, thread.last_call, None))
            self.goes_on(sleeper)

    def fall_asleep(self, thread: _ThreadState, action: Await, index: int) -> bool:
        if action.key in self.signalled:
            return True
        if action.key in self.asleep:
            raise ValueError(f"two threads await {action.key!r}")
        self.asleep[action.key] = (index, action.wake_ns)
        return False

    def result(self) -> Execution:
        if any(op.end_ns < 0 for op in self.devices.ops):
            raise ValueError("device ops wait for ever: not all that they are to meet are enqueued")
        if self.asleep:
            raise ValueError(f"threads sleep for ever: nobody signals {sorted(self.asleep)}")
        if any(op.end_ns is None for op in self.host):
            raise ValueError("a thread ends with an op still open")
        host = tuple(op.closed() for op in self.host)
        device = tuple(op.made() for op in self.devices.ops)
        edges = frozenset((source, i) for i, op in enumerate(device) for source in op.sources)
        return Execution(
            program=self.program,
            host=host,
            calls=tuple(self.calls),
            device=device,
            handovers=tuple(self.handovers),
            waits=frozenset(self.waits),
            event_edges=edges,
            overheads=tuple(self.overheads),
            spins=tuple(self.spins),
        )


def run(
    program: Program,
    kernel_scale: float = 1.0,
    *,
    host_scale: float = 1.0,
    scale_work: Callable[[Work], float] | None = None,
) -> Execution:
    """Run a program; deterministic.

    ``kernel_scale`` multiplies the duration of every device op, ``scale_work`` instead gives a factor for each,
    ``host_scale`` multiplies the ``Host`` times. Latencies and call durations stay. A program in which threads race for
    a stream may enqueue in another order when scaled: compare ``Execution.structure()``.

    Raises ValueError for a program that cannot end (nobody signals an awaited key) or leaves an op open.
    """

    def uniform(_: Work) -> float:
        return kernel_scale

    return run_together([program], host_scale=host_scale, scale_work=scale_work or uniform)[0]


def run_together(
    programs: Sequence[Program], *, host_scale: float = 1.0, scale_work: Callable[[Work], float] = lambda _: 1.0
) -> tuple[Execution, ...]:
    """Run programs whose device ops meet, on one true time and each on devices and threads of its own; deterministic.

    A query of an op whose end depends on a member of a meeting that has not started is answered with no. Otherwise as
    ``run``.
    """
    together = _Together()
    machines = [_Machine(program, number, together, scale_work, host_scale) for number, program in enumerate(programs)]
    while together.ready:
        now_ns, number, index = heapq.heappop(together.ready)
        machines[number].act(now_ns, index)
        while together.due:
            together.due.pop()()
    return tuple(machine.result() for machine in machines)
