"""Writes the program of a rank and knows, to the ns, when each of its actions begins and each of its device ops
runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.simulator.program import Action, Api, Await, Begin, Call, CommArgs, End, Host, Overhead, Signal, Thread, Work

MAIN, AUTOGRAD = 0, 1
COMPUTE, COPY, COLLECTIVE = 7, 20, 24  # streams
BEGIN_NS, END_NS, CALL_NS, LAUNCH_NS, WAKE_NS = 400, 200, 700, 3_000, 6_000
SOONEST_NS = 1_500  # from the end of a launch call to the start of its kernel
RETURN_NS = 6_000  # from the end of what a call waits for to its return

_END = End(END_NS)


class TooSlow(ValueError):
    """The host cannot launch in time what the plan wants: the ranges are too short."""


@dataclass(slots=True)
class OpenEnd:
    """A launch whose duration is not known yet, and where it is written down."""

    actions: list[Action]
    at: int
    planned: list[tuple[int, int]]
    index: int

    def close(self, start_ns: int, end_ns: int) -> None:
        call = self.actions[self.at]
        assert isinstance(call, Call), "a launch"
        self.actions[self.at] = replace(call, work=(replace(call.work[0], duration_ns=end_ns - start_ns),))
        self.planned[self.index] = (start_ns, end_ns)


class RankHost:
    """The threads of a rank, one awake at a time, and its streams. ``clock_ns`` is when the next action begins.

    ``planned``: start and end of the device ops as enqueued; the machine must find the same.
    """

    def __init__(self, start_ns: int, device: int):
        self.start_ns = self.clock_ns = start_ns
        self.device = device
        self.actions: tuple[list[Action], list[Action]] = ([], [])
        self.thread = MAIN
        self.planned: list[tuple[int, int]] = []
        self.tail_ns: dict[int, int] = {}
        self.awaited_ns: dict[int, int] = {}  # last end of what a stream has been told to wait for
        self.recorded_ns: dict[int, int] = {}
        self.handovers = self.events = 0

    def threads(self) -> tuple[Thread, ...]:
        named = (
            Thread("python", tuple(self.actions[MAIN]), self.start_ns),
            Thread("pt_autograd_0", tuple(self.actions[AUTOGRAD])),
        )
        return named if self.actions[AUTOGRAD] else named[:1]

    def free_ns(self, stream: int) -> int:
        """When a stream has done all that is enqueued and waited for so far; -1 for an unused one."""
        return max(self.tail_ns.get(stream, -1), self.awaited_ns.get(stream, -1))

    # host

    def _add(self, action: Action, ns: int) -> None:
        self.actions[self.thread].append(action)
        self.clock_ns += ns

    def begin(
        self,
        name: str,
        *,
        annotation: bool = False,
        seq: int | None = None,
        backward: bool = False,
        fwd_thread: int | None = None,
        comm: CommArgs | None = None,
    ) -> None:
        self._add(Begin(name, annotation, seq, backward, fwd_thread, comm, BEGIN_NS), BEGIN_NS)

    def end(self, ops: int = 1) -> None:
        for _ in range(ops):
            self._add(_END, END_NS)

    def until(self, ns: int) -> None:
        """The host computes until then."""
        if ns > self.clock_ns:
            self._add(Host(ns - self.clock_ns), ns - self.clock_ns)

    def overhead_until(self, name: str, ns: int) -> None:
        self._add(Overhead(name, ns - self.clock_ns), ns - self.clock_ns)

    def hand_over(self) -> None:
        """The main thread wakes the autograd thread and sleeps until that hands back."""
        if self.thread == MAIN:
            self.handovers += 1
            self.actions[AUTOGRAD].append(Await(f"backward {self.handovers}", WAKE_NS))
            self._add(Signal(f"backward {self.handovers}"), 0)
            self._add(Await(f"done {self.handovers}", WAKE_NS), 0)
        else:
            self._add(Signal(f"done {self.handovers}"), 0)
        self.thread = AUTOGRAD - self.thread
        self.clock_ns += WAKE_NS

    # calls

    def call_until(self, name: str, ns: int) -> None:
        """A call without effect on the device."""
        self._add(Call(Api.OTHER, name, ns - self.clock_ns), ns - self.clock_ns)

    def order(self, before: int, after: int) -> None:
        """What is enqueued on ``after`` from now on waits for what is on ``before``."""
        self.events = self.events % 64 + 1
        self._add(Call(Api.RECORD, "cudaEventRecord", CALL_NS, self.device, before, self.events), CALL_NS)
        self._add(Call(Api.WAIT_EVENT, "cudaStreamWaitEvent", CALL_NS, self.device, after, self.events), CALL_NS)
        self.awaited_ns[after] = max(self.awaited_ns.get(after, -1), self.free_ns(before))

    def record(self, stream: int) -> int:
        self.events = self.events % 64 + 1
        self._add(Call(Api.RECORD, "cudaEventRecord", CALL_NS, self.device, stream, self.events), CALL_NS)
        return self.events

    def wait(self, api: Api, name: str, stream: int, until_ns: int, event: int | None = None) -> None:
        """A synchronisation call for device work that ends at ``until_ns``."""
        if until_ns <= self.clock_ns:
            raise TooSlow(f"{name} at {self.clock_ns} ns has nothing to wait for: its work ended at {until_ns} ns")
        self._add(
            Call(api, name, CALL_NS, self.device, stream, event, return_ns=RETURN_NS),
            until_ns + RETURN_NS - self.clock_ns,
        )

    def launch(
        self,
        stream: int,
        start_ns: int,
        end_ns: int,
        name: str,
        *,
        kind: str = "kernel",
        api_name: str = "cudaLaunchKernel",
        comm: CommArgs | None = None,
        size_bytes: int = 0,
        call_ns: int = LAUNCH_NS,
        overhead: str = "",
        blocking: bool = False,
    ) -> OpenEnd:
        """Enqueue an op that runs from ``start_ns`` to ``end_ns``, whatever has to hold it up for that."""
        after_ns = self.free_ns(stream)
        called_ns = self.clock_ns + call_ns
        if start_ns < max(after_ns, self.clock_ns + 1):
            raise TooSlow(
                f"{name} is to start at {start_ns} ns, but its launch call starts at {self.clock_ns} ns: make ranges "
                "longer"
            )
        gap_ns = start_ns - after_ns if after_ns >= 0 else 0
        delay_ns = start_ns - called_ns if after_ns < 0 else min(SOONEST_NS, start_ns - called_ns)
        work = (Work(name, end_ns - start_ns, kind, delay_ns, gap_ns, size_bytes, comm),)
        return_ns = RETURN_NS if blocking else 0
        done_ns = max(called_ns, end_ns + return_ns) if blocking else called_ns
        call = Call(Api.LAUNCH, api_name, call_ns, self.device, stream, None, work, blocking, return_ns, overhead)
        written = OpenEnd(self.actions[self.thread], len(self.actions[self.thread]), self.planned, len(self.planned))
        self._add(call, done_ns - self.clock_ns)
        self.planned.append((start_ns, end_ns))
        self.tail_ns[stream] = end_ns
        self.awaited_ns.pop(stream, None)
        return written
