"""Programs whose streams wait around communication as PyTorch makes them, and programs that look alike but are not.

ProcessGroupNCCL: record on the current stream, wait of its own stream, launch, record of the end; ``wait()`` makes the
current stream wait for that end. NCCL itself adds waits with a stream of its own before and after the launch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.simulator.build import ThreadBuilder
from tests.simulator.program import CommArgs, Group, Program

COMPUTE, COPY, SIDE, COMM, OTHER_COMM, HIDDEN, NCCL_OWN = 7, 13, 16, 24, 28, 31, 99


@dataclass(frozen=True, slots=True)
class Communicating:
    """What happens in each layer of a step.

    ``awaited``: "at once" (as with async_op=False), "in order" (all works of the step, oldest first, as DDP does;
    outside any op), "last" (that of the step alone) or "never". ``own_waits``: NCCL's own waits around the launch.

    What is not as it seems: ``hidden``: gathers are called on a stream that holds no work (as FSDP's), so they do not
    wait for compute. ``side``: they are called on a stream of their own, with a kernel there. ``copies``: the compute
    stream waits for the user's copies while works are open. ``two``: works of two communicators are open at once, and
    awaited newest first.
    """

    steps: int = 4
    layers: int = 6
    awaited: str = "at once"
    own_waits: bool = True
    hidden: bool = False
    side: bool = False
    copies: bool = False
    two: bool = False


class _Caller:
    def __init__(self, seed: int, what: Communicating):
        self.what, self.rng = what, random.Random(seed)
        self.main = ThreadBuilder("python", self.rng)
        self.events, self.seq, self.current = 0, 0, COMPUTE
        self.slow = self.rng.choice((1, 1, 4))  # of hosts: then the device waits for them

    def event(self) -> int:
        self.events += 1
        return self.events

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def wait_stream(self, after: int, before: int) -> None:
        event = self.event()
        self.main.record(event, before)
        self.main.wait_event(event, after)

    def kernels(self, n: int) -> None:
        for _ in range(n):
            with self.main.op("aten::mm"):
                self.main.host(self.main.between(2_000, 20_000) * self.slow)
                self.main.launch(self.current, self.main.between(10_000, 90_000))

    def collective(self, name: str, stream: int) -> tuple[int, int]:
        """Launch one on the current stream's behalf; the event of its end, and its sequence number."""
        main, op = self.main, {"allreduce": "c10d::allreduce_", "_allgather_base": "c10d::_allgather_base_"}[name]
        self.seq += 1
        comm = CommArgs(name, "Float", 4, 4096, 4096, "0", self.seq)
        with main.op(op), main.op("record_param_comms", comm=comm):
            self.wait_stream(stream, self.current)
            if self.what.own_waits:
                self.wait_stream(stream, NCCL_OWN)
            kernel = f"ncclDevKernel_{'AllReduce_Sum_f32' if name == 'allreduce' else 'AllGather'}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            main.launch(stream, main.between(20_000, 150_000), name=kernel, call="cuLaunchKernelEx", comm=comm)
            if self.what.own_waits:
                self.wait_stream(NCCL_OWN, stream)
            end = self.event()
            main.record(end, stream)
        return end, self.seq

    def wait(self, work: tuple[int, int], *, inside: bool) -> None:
        end, seq = work
        if inside:
            with self.main.op("record_param_comms", comm=CommArgs("wait", "Byte", 1, seq=seq)):
                self.main.wait_event(end, self.current)
        else:
            self.main.wait_event(end, self.current)

    def layer(self) -> tuple[int, int]:
        what = self.what
        self.kernels(self.main.between(1, 4))
        if what.hidden:
            with self.on(HIDDEN):
                return self.collective("_allgather_base", COMM)
        if what.side:
            self.wait_stream(SIDE, COMPUTE)
            with self.on(SIDE):
                self.kernels(1)
                return self.collective("allreduce", COMM)
        stream = OTHER_COMM if what.two and self.rng.random() < 0.5 else COMM
        return self.collective("allreduce", stream)

    def step(self) -> None:
        what, works = self.what, []
        if what.hidden:
            self.wait_stream(HIDDEN, COMPUTE)
        for _ in range(what.layers):
            work = self.layer()
            if what.copies:
                self.main.launch(
                    COPY, self.main.between(5_000, 200_000), kind="gpu_memcpy", name="Memcpy HtoD (Pinned -> Device)"
                )
                self.wait_stream(COMPUTE, COPY)
            if what.awaited == "at once":
                self.wait(work, inside=True)
            works.append(work)
        if what.awaited == "in order":
            for work in reversed(works) if what.two else works:
                self.wait(work, inside=False)
                self.kernels(1)
        if what.awaited == "last":
            self.wait(works[-1], inside=True)
        self.kernels(2)


def communicating_program(seed: int, what: Communicating) -> Program:
    """Steps of ``what`` on one thread, ended by a device synchronisation."""
    caller = _Caller(seed, what)
    for number in range(what.steps):
        with caller.main.op(f"ProfilerStep#{number}", annotation=True):
            caller.step()
    caller.main.device_sync()
    with caller.main.op("aten::zeros"):
        caller.main.host()
    return Program(
        (caller.main.thread(),), (Group("0", "default_pg", (0, 1)),), 0, 2, pid=6000 + seed % 1000, seed=seed
    )
