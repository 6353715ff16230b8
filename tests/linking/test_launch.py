from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graphlink.linking.launch import BEFORE_WINDOW, NO_CALL, NO_CORRELATION, STARTS_EARLY, launches_without_ops, link
from graphlink.linking.match import match_hosts
from graphlink.model import NOWHERE, Linked, Trace
from tests.build import Call, Device, Host, build_trace


def linked(trace: Trace) -> Linked:
    return link(trace, None, match_hosts(trace, None))


def op_of(rows: list[Host], call: Call, resolution_ns: int = 1) -> str | None:
    got = linked(build_trace(rows, [call], resolution_ns=resolution_ns))
    row = got.call_op[0]
    return None if row == NOWHERE else got.trace.strings[got.trace.host.name[row]]


def test_the_op_of_a_call_is_the_innermost_cpu_op_on_its_thread() -> None:
    rows = [
        Host("step", 0, 100, annotation=True),
        Host("outer", 5, 60),
        Host("inner", 10, 30),
        Host("nccl:all_reduce", 12, 28, annotation=True),
        Host("sibling", 31, 40),
        Host("elsewhere", 14, 25, tid=2),
    ]
    assert op_of(rows, Call("cudaLaunchKernel", 15, 17, 1)) == "inner"
    assert op_of(rows, Call("cudaLaunchKernel", 45, 47, 1)) == "outer"
    assert op_of(rows, Call("cudaLaunchKernel", 70, 80, 1)) == "step"
    assert op_of(rows, Call("cudaLaunchKernel", 120, 130, 1)) is None
    assert op_of(rows, Call("cudaLaunchKernel", 26, 27, 1, tid=2)) is None


def test_an_asynchronous_range_launches_nothing() -> None:
    rows = [
        Host("c10d::send", 0, 10),
        Host("gloo:send", 5, 90, annotation=True),
        Host("gloo:recv", 20, 21, annotation=True),
    ]
    got = linked(build_trace(rows, [Call("cudaLaunchKernel", 6, 7, 1), Call("cudaLaunchKernel", 50, 51, 2)]))
    assert got.crossing.tolist() == [False, True, True]
    assert got.call_op.tolist() == [0, NOWHERE]


def test_an_op_whose_end_was_rounded_down_keeps_its_last_call() -> None:
    rows = [Host("op", 0, 10)]
    assert op_of(rows, Call("cudaLaunchKernel", 10, 11, 1), resolution_ns=1000) == "op"
    assert op_of(rows, Call("cudaDeviceSynchronize", 10, 500, 1), resolution_ns=1000) is None
    assert op_of(rows, Call("cudaLaunchKernel", 10, 11, 1)) is None


def test_one_call_may_launch_many_device_ops() -> None:
    trace = build_trace(
        [Host("op", 0, 10)],
        [Call("cudaGraphLaunch", 1, 2, 7), Call("cudaLaunchKernel", 3, 4, 9)],
        [Device("a", 5, 6, 7), Device("b", 7, 8, 7), Device("c", 9, 10, 9)],
    )
    assert linked(trace).device_call.tolist() == [0, 0, 1]
    assert linked(trace).orphans == {}


def test_orphans_say_why() -> None:
    trace = build_trace(
        [],
        [Call("cudaLaunchKernel", 100, 104, 20), Call("cudaLaunchKernel", 200, 204, 30)],
        [
            Device("older id", 300, 310, 19),
            Device("older time", 50, 60, 25),
            Device("missing", 400, 410, 25),
            Device("no id", 420, 430, 0),
            Device("early", 150, 160, 30),
            Device("right", 110, 120, 20),
        ],
    )
    got = linked(trace)
    assert got.orphans == {NO_CORRELATION: 1, BEFORE_WINDOW: 2, NO_CALL: 1, STARTS_EARLY: 1}
    assert len(got.device_call) == (got.device_call != NOWHERE).sum() + sum(got.orphans.values())


def test_a_call_that_starts_within_the_rounding_after_its_op_is_its_call() -> None:
    rows = [Call("cudaLaunchKernel", 101, 104, 20)], [Device("k", 100, 120, 20)]
    assert linked(build_trace([], *rows, resolution_ns=1000)).orphans == {}
    assert linked(build_trace([], *rows)).orphans == {STARTS_EARLY: 1}


def test_recordings_without_calls_or_host_rows_link() -> None:
    assert linked(build_trace()).orphans == {}
    assert linked(build_trace([], [], [Device("k", 4, 5, 5)])).orphans == {NO_CALL: 1}


def test_rows_that_the_recording_sets_apart_enclose_nothing() -> None:
    """Start/end ranges of NVTX that end on another thread: even where they seem to nest."""
    trace = build_trace(
        host=[Host("range", 0, 100, annotation=True), Host("aten::mm", 10, 20)],
        calls=[Call("cudaLaunchKernel", 12, 14, correlation=7), Call("cudaLaunchKernel", 50, 52, correlation=8)],
        device=[],
    )
    within = link(trace, None, match_hosts(trace, None))
    assert (within.parent.tolist(), within.crossing.tolist(), within.call_op.tolist()) == (
        [-1, 0],
        [False, False],
        [1, 0],
    )
    trace = replace(trace, host=replace(trace.host, apart=np.array([True, False])))
    apart = link(trace, None, match_hosts(trace, None))
    assert (apart.parent.tolist(), apart.crossing.tolist(), apart.call_op.tolist()) == (
        [-1, -1],
        [True, False],
        [1, -1],
    )


def test_launches_without_a_device_op_are_named() -> None:
    calls = [
        Call("cudaLaunchKernel", 10, 12, 1),
        Call("cudaLaunchKernel", 20, 22, 2),
        Call("cudaLaunchHostFunc", 30, 31, 3),
        Call("cudaMemcpyAsync", 40, 41, 4),
        Call("cudaMemsetAsync", 50, 51, 5),
    ]
    trace = build_trace([Host("aten::add", 0, 100)], calls, device=[Device("k", 15, 18, 1)])
    assert launches_without_ops(trace) == {"cudaLaunchKernel": 1, "cudaMemcpyAsync": 1}
    lost = "2 launch calls without a device op (1 x cudaLaunchKernel, 1 x cudaMemcpyAsync)"
    assert any(lost in text for text in linked(trace).warnings)


@pytest.mark.parametrize(("start_us", "named"), [(-100, False), (-110, True), (150, False), (160, True)])
def test_device_ops_far_from_all_else_are_named(start_us: int, named: bool) -> None:
    """One of 50 us without a call, beside 100 us of all else."""
    calls = [Call("cudaLaunchKernel", 10, 12, 1)]
    device = [Device("k", 15, 18, 1), Device("ghost", start_us, start_us + 50, 2)]
    trace = build_trace([Host("aten::add", 0, 100)], calls, device=sorted(device, key=lambda op: op.start))
    assert any("device ops without a launch call (1) reach" in text for text in linked(trace).warnings) == named


@pytest.mark.parametrize(
    ("start_us", "end_us", "tid", "named"),
    [(-110, -105, 2, True), (-110, -105, 1, False), (5, 210, 2, True), (5, 200, 2, False)],
)
def test_an_op_alone_on_its_thread_that_reaches_far_beyond_all_else_is_named(
    start_us: int, end_us: int, tid: int, named: bool
) -> None:
    host = [Host("aten::add", 0, 100), Host("far", start_us, end_us, tid=tid)]
    trace = build_trace(sorted(host, key=lambda op: op.start), [Call("cudaLaunchKernel", 10, 12, 1)])
    assert any("ops alone on their thread (1) reach up to 0.11" in text for text in linked(trace).warnings) == named
    assert not any("reach" in text for text in linked(build_trace([Host("aten::add", 10, 100)])).warnings)


def test_a_launch_may_be_that_of_a_device_op_without_correlation() -> None:
    calls = [Call("cudaLaunchKernel", 10, 12, 1), Call("hipLaunchKernel", 20, 22, 2)]
    trace = build_trace([Host("aten::add", 0, 100)], calls, device=[Device("k", 15, 18, 1), Device("k", 25, 28, 0)])
    assert launches_without_ops(trace) == {}
    assert linked(trace).warnings == ()
