"""What real machines do to a program that a clean one does not: threads and calls that wake up late, threads that
others take the core from, hosts that poll memory, communication under other names. The program that comes out is run
like any other, so its truth is known.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulator.machine import BLOCKING
from tests.simulator.program import Action, Api, Await, Begin, Call, End, Host, Program, Spin, Work


def with_slow_wakeups(
    program: Program, call_ns: tuple[int, int] = (20_000, 200_000), thread_ns: tuple[int, int] = (200_000, 2_500_000)
) -> Program:
    """Blocking synchronisation returns late, and threads that were signalled run late, each by what is usual on this
    machine.

    ``call_ns`` and ``thread_ns`` bound the usual time, which is one of a machine; each waking differs from it by up to
    a tenth.
    """
    rng = random.Random(program.seed + 11)
    usual_call_ns, usual_thread_ns = rng.randrange(*call_ns), rng.randrange(*thread_ns)

    def about(usual_ns: int) -> int:
        return usual_ns + rng.randrange(-usual_ns // 10, usual_ns // 10)

    def late(action: Action) -> Iterator[Action]:
        if isinstance(action, Call) and (action.api in BLOCKING or action.blocking):
            yield replace(action, return_ns=about(usual_call_ns))
        elif isinstance(action, Await):
            yield replace(action, wake_ns=about(usual_thread_ns))
        else:
            yield action

    return _each(program, late)


def with_busy_cores(
    program: Program, share: float = 0.05, off_ns: tuple[int, int] = (3_000_000, 40_000_000)
) -> Program:
    """Other processes want the cores: a thread that was signalled waits for one, and a ``share`` of the ops loses it in
    its midst.

    ``off_ns`` bounds how long a thread is off its core. No row shows it: an op, or a silence, is longer.
    """
    rng = random.Random(program.seed + 17)

    def preempted(action: Action) -> Iterator[Action]:
        if isinstance(action, Await):
            yield replace(action, wake_ns=rng.randrange(*off_ns))
            return
        yield action
        if isinstance(action, Begin) and rng.random() < share:
            yield Host(rng.randrange(*off_ns))

    return _each(program, preempted)


def with_spins(program: Program, share: float = 0.1, stream: int = 47) -> Program:
    """Between ops of the first level, for a ``share`` of them, an op as of DeepEP: a kernel tells how much will come,
    the host polls for what it has written a little before its end, and launches the kernel that receives.
    """
    rng = random.Random(program.seed + 13)
    before_ns = rng.randrange(25_000, 60_000)
    depth = 0

    def spinning(action: Action) -> Iterator[Action]:
        nonlocal depth
        yield action
        depth += isinstance(action, Begin) - isinstance(action, End)
        if isinstance(action, End) and not depth and rng.random() < share:
            yield from _dispatch(rng, stream, before_ns + rng.randrange(-3_000, 3_000))

    return _each(program, spinning)


def _dispatch(rng: random.Random, stream: int, before_ns: int) -> Iterator[Action]:
    yield Begin("FusedDispatch", ns=rng.randrange(2_000, 6_000))
    for name, ns in (
        ("notify_dispatch", rng.randrange(300_000, 3_000_000)),
        ("dispatch", rng.randrange(100_000, 800_000)),
    ):
        work = Work(
            f"void deep_ep::internode::{name}<false, 4>(int const*, int*)",
            ns,
            launch_delay_ns=rng.randrange(1_000, 8_000),
        )
        yield Call(Api.LAUNCH, "cudaLaunchKernelExC", rng.randrange(4_000, 15_000), stream=stream, work=(work,))
        yield Host(rng.randrange(1_000, 4_000))
        if name == "notify_dispatch":
            yield Spin(-before_ns)
            yield Host(rng.randrange(5_000, 20_000))
    yield End(rng.randrange(200, 1_500))


def with_communication_of(program: Program, op: str, kernel: str) -> Program:
    """The communication of another library: nothing describes it but the name of the op around it and of its kernel."""

    def other(action: Action) -> Iterator[Action]:
        if isinstance(action, Begin) and (action.comm is not None or action.name.startswith("nccl:")):
            yield replace(action, name=op, comm=None, annotation=False)
        elif isinstance(action, Call) and any(work.comm is not None for work in action.work):
            yield replace(action, work=tuple(replace(work, name=kernel, comm=None) for work in action.work))
        else:
            yield action

    return _each(program, other)


def _each(program: Program, change: Callable[[Action], Iterator[Action]]) -> Program:
    threads = tuple(
        replace(t, actions=tuple(new for action in t.actions for new in change(action))) for t in program.threads
    )
    return replace(program, threads=threads)
