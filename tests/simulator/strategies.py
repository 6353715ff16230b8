"""Hypothesis strategies of programs. A program is drawn as nested lists of small steps, so a failing one shrinks to a
few calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import strategies as st

from tests.simulator.execution import Execution
from tests.simulator.kineto import Variation
from tests.simulator.machine import run
from tests.simulator.program import Action, Api, Begin, Call, End, Host, Program, Thread, Work

_NAMES = {
    Api.RECORD: "cudaEventRecord",
    Api.WAIT_EVENT: "cudaStreamWaitEvent",
    Api.STREAM_SYNC: "cudaStreamSynchronize",
    Api.DEVICE_SYNC: "cudaDeviceSynchronize",
    Api.EVENT_SYNC: "cudaEventSynchronize",
    Api.EVENT_QUERY: "cudaEventQuery",
}
_STREAMS = (7, 20, 24, 28, 32, 36)


@dataclass(frozen=True, slots=True)
class Limits:
    """How large drawn programs may be."""

    threads: int = 2
    devices: int = 2
    streams: int = 3
    events: int = 2
    steps: int = 12  # of a thread
    depth: int = 2  # of nested ops
    queries: bool = True


Steps: TypeAlias = list[Action]


def _launches(limits: Limits) -> st.SearchStrategy[Steps]:
    def call(name: str, stream: int, device: int, durations_us: list[int]) -> Steps:
        kind = "gpu_memcpy" if name.startswith("cudaMemcpy") else "kernel"
        work = tuple(
            Work(kind, 1_000 * us, kind) for us in (durations_us if name == "cudaGraphLaunch" else durations_us[:1])
        )
        return [Call(Api.LAUNCH, name, 5_000, device, stream, None, work, name == "cudaMemcpy", 4_000), Host(500)]

    names = st.sampled_from(
        ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaGraphLaunch", "cudaLaunchCooperativeKernel", "cudaMemcpy")
    )
    streams, devices = st.sampled_from(_STREAMS[: limits.streams]), st.integers(0, limits.devices - 1)
    return st.builds(call, names, streams, devices, st.lists(st.integers(1, 300), min_size=1, max_size=3))


def _other_calls(limits: Limits) -> st.SearchStrategy[Steps]:
    def call(api: Api, stream: int, device: int, event: int) -> Steps:
        named = event if api in (Api.RECORD, Api.WAIT_EVENT, Api.EVENT_SYNC, Api.EVENT_QUERY) else None
        return [Call(api, _NAMES[api], 1_500, device, stream, named, return_ns=5_000), Host(500)]

    apis = [api for api in _NAMES if limits.queries or api is not Api.EVENT_QUERY]
    streams, devices = st.sampled_from(_STREAMS[: limits.streams]), st.integers(0, limits.devices - 1)
    return st.builds(call, st.sampled_from(apis), streams, devices, st.integers(0, limits.events - 1))


def _steps(limits: Limits) -> st.SearchStrategy[Steps]:
    def host_for(us: int) -> Steps:
        return [Host(1_000 * us)]

    host = st.integers(1, 60).map(host_for)
    leaf: st.SearchStrategy[Steps] = _launches(limits) | _other_calls(limits) | host

    def op(inner: list[Steps], annotation: bool) -> Steps:
        name = "## range ##" if annotation else "aten::mm"
        return [
            Begin(name, annotation, ns=1_000),
            *(action for steps in inner for action in steps),
            Host(700),
            End(300),
        ]

    step = leaf
    for _ in range(limits.depth):
        step = leaf | st.builds(op, st.lists(step, max_size=4), st.booleans())
    return step


def programs(limits: Limits | None = None) -> st.SearchStrategy[Program]:
    """Programs of up to ``limits``: all that CUDA allows, threads included that race for a stream."""
    limits = limits or Limits()

    def program(threads: list[list[Steps]]) -> Program:
        built = [
            Thread(f"thread_{i}", tuple(action for steps in thread for action in steps), start_ns=5_000 * i)
            for i, thread in enumerate(threads)
        ]
        return Program(tuple(built))

    thread = st.lists(_steps(limits), max_size=limits.steps)
    return st.lists(thread, min_size=1, max_size=limits.threads).map(program)


def executions(limits: Limits | None = None) -> st.SearchStrategy[Execution]:
    """What the machine made of drawn programs, with the truth."""
    return programs(limits).map(run)


def variations() -> st.SearchStrategy[Variation]:
    """Kineto variations that lose no information: order of rows, white space, flows, noise."""
    return st.builds(
        Variation,
        forward_flows=st.booleans(),
        launch_flows=st.booleans(),
        gpu_annotations=st.booleans(),
        python_rows=st.booleans(),
        other_rows=st.booleans(),
        shuffle_seed=st.none() | st.integers(0, 99),
        indent=st.none() | st.just(2),
    )
