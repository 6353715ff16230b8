"""What the clocks of devices are ahead: found from launches on an idle stream and from waits, and it moves with the
rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.linking.clock_evidence import CHANGE_US, cheapest, slope
from graphlink.linking.clocks import on_host_clock, together
from graphlink.linking.launch import joined, link
from graphlink.linking.match import match_hosts
from graphlink.model import NOWHERE, DeviceClock, DeviceKind, GraphDeps, SyncKind, Trace
from tests.build import Call, Device, Sync, build_trace

LAG = 1.0  # us from the end of a launch call to its kernel, which is what an idle stream of CUDA takes


def launches(
    count: int, ahead: float = 0, first: int = 1, since: float = 0, lag: float = LAG
) -> tuple[list[Call], list[Device]]:
    """One kernel of 5 us every 20 us, each on an idle stream; its rows ``ahead`` us late."""
    starts = [since + 20 * i for i in range(count)]
    calls = [Call("cudaLaunchKernel", t, t + 4, first + i) for i, t in enumerate(starts)]
    ops = [Device(f"k{first + i}", t + 4 + lag + ahead, t + 9 + lag + ahead, first + i) for i, t in enumerate(starts)]
    return calls, ops


def clock_of(trace: Trace) -> DeviceClock:
    clocks = on_host_clock(trace).clocks
    assert clocks is not None
    return clocks.devices[0]


def offsets_us(trace: Trace) -> list[float]:
    clocks = on_host_clock(trace).clocks
    assert clocks is not None
    return [float(ns) / 1000 for ns in clocks.offset_ns]


@pytest.mark.parametrize("ahead", [-20, -3.5, 0, 8, 20])
def test_a_clock_that_is_ahead_is_found_and_taken_off(ahead: float) -> None:
    calls, ops = launches(10, ahead)
    moved = on_host_clock(build_trace(calls=calls, device=ops))
    assert np.abs(moved.device.start_ns - [1000 * (20 * i + 4 + LAG) for i in range(10)]).max() <= 250
    assert (moved.device.end_ns - moved.device.start_ns == 5_000).all()
    assert clock_of(build_trace(calls=calls, device=ops)).anchored


@given(st.integers(-20, 20), st.lists(st.floats(0, 30), min_size=5, max_size=40), st.integers(0, 2**32))
def test_the_offset_moves_with_the_rows(moved: int, lags: list[float], seed: int) -> None:
    """However launches behave, if five find their stream idle."""
    chance = np.random.default_rng(seed)
    (calls, ops), at = launches(5), 100.0
    for i, lag in enumerate(lags, 5):
        at += float(chance.uniform(3, 60))
        calls.append(Call("cudaLaunchKernel", at, at + 3, i + 1))
        begins = max(at + 3 + lag, ops[-1].end)
        ops.append(Device("k", begins, begins + float(chance.uniform(1, 40)), i + 1))
    before = offsets_us(build_trace(calls=calls, device=ops))
    after = offsets_us(
        build_trace(calls=calls, device=[op._replace(start=op.start + moved, end=op.end + moved) for op in ops])
    )
    assert np.allclose(np.array(after) - before, moved, atol=0.002)


@pytest.mark.parametrize(
    ("count", "after_us", "waits", "told"), [(3, 500, 1, False), (3, 500, 0, True), (3, 3, 1, True), (5, 500, 1, True)]
)
def test_waits_are_named_where_nothing_tells_a_clock(count: int, after_us: int, waits: int, told: bool) -> None:
    """A wait tells it that began before its op ended, five launches do; where nothing waits it is no loss."""
    calls, ops = launches(count)
    at = ops[-1].end + after_us - 5
    calls += [Call("cudaStreamSynchronize", at, at + 10, 99)] * waits
    trace = on_host_clock(build_trace(calls=calls, device=ops))
    texts = [text for text in link(trace, None, match_hosts(trace, None)).warnings if "clock of a device" in text]
    assert (texts == []) is told
    assert all("what 1 calls waited for, 10.0 us, may be" in text for text in texts)


@pytest.mark.parametrize("step", [-12, -5, 3, 12, 20])
def test_a_step_is_found_where_it_is(step: float) -> None:
    (calls, ops), (more, late) = launches(20), launches(20, step, first=21, since=400)
    trace = build_trace(calls=[*calls, *more], device=[*ops, *late])
    assert np.abs(np.array(offsets_us(trace)) - np.repeat([0, step], 20)).max() <= 0.5
    assert clock_of(trace).steps == 1


@pytest.mark.parametrize("step", [-200, 200, 1_000])
def test_a_large_step_is_found_by_waits_and_launches_that_contradict_those_before_it(step: float) -> None:
    """Queues of three kernels, each waited for."""
    calls, ops = list[Call](), list[Device]()
    for k in range(20):
        at, ahead = 2_000.0 * k, step if k >= 10 else 0
        calls += [Call("cudaLaunchKernel", at + 5 * n, at + 5 * n + 4, 4 * k + n + 1) for n in range(3)]
        ops += [
            Device(
                f"k{4 * k + n + 1}", at + 5 + LAG + 30 * n + ahead, at + 5 + LAG + 30 * n + 29 + ahead, 4 * k + n + 1
            )
            for n in range(3)
        ]
        calls.append(Call("cudaDeviceSynchronize", at + 15, at + 100, 4 * k + 4))
    offsets = offsets_us(build_trace(calls=calls, device=ops))
    assert np.ptp(offsets[:30]) == 0
    assert np.ptp(offsets[30:]) == 0
    assert offsets[30] - offsets[29] == pytest.approx(step, abs=1)


@pytest.mark.parametrize("step", [-2_000, -200, 200, 2_000])
def test_a_large_step_is_found_by_launches_alone(step: float) -> None:
    """Five together are on another clock; that a stream has its first op, here late before the step, says nothing."""
    (calls, ops), (more, late) = launches(20), launches(20, step, first=21, since=5_000)
    ops[-1] = Device("waited", ops[-1].start + 230, ops[-1].start + 235, 20, stream=9)
    trace = on_host_clock(build_trace(calls=[*calls, *more], device=[*ops, *late]))
    assert trace.clocks is not None
    offsets = dict(zip(trace.device.correlation.tolist(), trace.clocks.offset_ns.tolist(), strict=True))
    assert [offsets[k + 1] for k in range(40)] == pytest.approx([0] * 20 + [1000 * step] * 20, abs=500)


@pytest.mark.parametrize(
    ("lag_ns", "busy", "last"),
    [
        ([300, 290, 310, 300, 300], [], [4]),
        ([300, 290, 310, 300], [], []),
        ([300, 290, 310, 300, 300], [2], []),
        ([300, 290, 310, 900, 300, 300], [3], [5]),
        ([300, 290, 310, 7, 300, 300], [3], []),  # a device that was cold
        ([300, 290, 330, 300, 300], [], []),
    ],
)
def test_launches_are_together_where_none_is_sooner_and_the_device_had_paused(
    lag_ns: list[int], busy: list[int], last: list[int]
) -> None:
    """A queue that is as long for each, and a device that is slow to begin after a pause, are no step of a clock."""
    idle = ~np.isin(np.arange(len(lag_ns)), busy)
    rows, least_ns = together(1_000 * np.array(lag_ns), idle)
    assert rows.tolist() == last
    assert least_ns.tolist() == [290_000] * len(last)


def test_an_op_that_cannot_be_is_no_step() -> None:
    calls, ops = launches(40)
    calls += [Call("cudaDeviceSynchronize", 20 * i + 5, 20 * i + 12, 50 + i) for i in range(40)]
    ops[20] = Device("k21", 1_105, 1_110, 21)
    assert np.ptp(offsets_us(build_trace(calls=calls, device=ops))) == 0


def test_a_few_slow_launches_are_no_step() -> None:
    calls, ops = launches(30)
    slow = [op._replace(start=op.start + 9, end=op.end + 9) if 12 <= i < 16 else op for i, op in enumerate(ops)]
    assert clock_of(build_trace(calls=calls, device=slow)).windows == 1


def test_launches_behind_other_work_tell_nothing() -> None:
    calls = [Call("cudaLaunchKernel", 2 * i, 2 * i + 1, i + 1) for i in range(20)]
    ops = [Device("k", 7 + 50 * i, 57 + 50 * i, i + 1) for i in range(20)]  # only the first found its stream idle
    clock = clock_of(build_trace(calls=calls, device=ops))
    assert not clock.anchored
    assert clock.offset_ns == (0, 0)


@pytest.mark.parametrize("moved", [-2000, -150, -60, 60, 2000])
def test_the_one_op_that_found_its_stream_idle_and_the_wait_for_the_last_tell_a_clock(moved: float) -> None:
    calls = [Call("cudaLaunchKernel", 2 * i, 2 * i + 1, i + 1) for i in range(20)]
    starts = [7 + 3000 * i + moved for i in range(20)]
    ops = [Device("k", start, start + 3000, i + 1) for i, start in enumerate(starts)]
    trace = build_trace(calls=[*calls, Call("cudaDeviceSynchronize", 45, 60_013, 21)], device=ops)
    linked = link(on_host_clock(trace), None, match_hosts(trace, None))
    assert linked.device_call.tolist() == [*range(20)]
    assert max(abs(ns - 1000 * moved) for ns in clock_of(trace).offset_ns) <= 10_000


@pytest.mark.parametrize("moved", [-2000, 0, 2000])
def test_devices_show_a_clock_together_that_none_shows_alone(moved: float) -> None:
    """Three launches on an idle stream each, and no wait that names its device."""
    calls = [Call("cudaLaunchKernel", 200 * k, 200 * k + 4, k + 1) for k in range(6)]
    starts = [200 * k + 5 + moved for k in range(6)]
    ops = [Device("k", start, start + 9, k + 1, device=k % 2) for k, start in enumerate(starts)]
    trace = on_host_clock(build_trace(calls=calls, device=ops))
    assert trace.clocks is not None
    assert np.abs(np.array([clock.offset_ns for clock in trace.clocks.devices]) - 1000 * moved).max() <= 10_000


def test_an_op_that_begins_early_alone_moves_no_clock() -> None:
    """The wait returned in time: what began 150 us before its call is damaged, or of another call."""
    calls, ops = launches(10)
    calls.append(Call("cudaDeviceSynchronize", 190, ops[-1].end + 5, 11))
    ops[4] = ops[4]._replace(start=ops[4].start - 150, end=ops[4].end - 150)
    assert clock_of(build_trace(calls=calls, device=ops)).offset_ns[1] <= 3_000


def test_what_must_hold_holds_even_where_nothing_anchors_the_clock() -> None:
    trace = build_trace(calls=[Call("cudaLaunchKernel", 10, 14, 1)], device=[Device("k", 2, 5, 1)])
    linked = link(on_host_clock(trace), None, match_hosts(trace, None))
    assert linked.device_call.tolist() == [0], "an op lost its launch to the clock"
    assert linked.trace.device.start_ns.tolist() == [10_000]


def test_what_begins_long_before_its_call_has_another_call() -> None:
    calls, ops = launches(10)
    trace = on_host_clock(
        build_trace(
            calls=[*calls, Call("cudaLaunchKernel", 900, 904, 99)], device=[*ops, Device("reused", 250, 252, 99)]
        )
    )
    linked = link(trace, None, match_hosts(trace, None))
    assert linked.orphans == {"starts before its launch call": 1}


def test_a_wait_that_is_over_bounds_the_clock() -> None:
    """No launch on an idle stream tells, but the synchronisation returned 5 us before its op ended by the device's
    clock.
    """
    calls = [
        Call("cudaLaunchKernel", 0, 4, 1),
        Call("cudaLaunchKernel", 5, 8, 2),
        Call("cudaStreamSynchronize", 9, 200, 3),
    ]
    ops = [Device("a", 35, 100, 1), Device("b", 101, 205, 2)]
    trace = build_trace(calls=calls, device=ops, syncs=[Sync(SyncKind.STREAM, 9, 200, 3, stream=7)])
    clock = clock_of(trace)
    assert clock.anchored
    assert clock.offset_ns[0] >= 5_000
    assert (on_host_clock(trace).device.end_ns <= 200_000).all()


@pytest.mark.parametrize(("between", "bounded"), [([], True), ([Call("cudaEventRecord", 211, 212, 22)], False)])
def test_a_synchronisation_right_behind_a_copy_to_the_host_bounds_the_clock(between: list[Call], bounded: bool) -> None:
    """As ``item()`` does it, whatever other streams there are; what the launches say would have it end after the
    return.
    """
    calls, ops = launches(10)
    copy, sync = Call("cudaMemcpyAsync", 205, 210, 20), Call("cudaStreamSynchronize", 213, 240, 21)
    rows = [
        *ops,
        Device("k", 190, 195, 1, stream=9),
        Device("Memcpy DtoH (Device -> Pinned)", 246, 248, 20, kind=DeviceKind.MEMCPY),
    ]
    found = offsets_us(build_trace(calls=[*calls, copy, *between, sync], device=rows))
    assert (found[-1] >= 8) == bounded


@pytest.mark.parametrize(("took", "bounded"), [(30, True), (5, False)])
def test_an_asynchronous_copy_to_pageable_memory_bounds_the_clock_unless_one_outran_its_call(
    took: float, bounded: bool
) -> None:
    """By CUDA its call returns when the copy is done: a call that took less than its copy did not wait."""
    calls, ops = launches(10)
    calls += [Call("cudaMemcpyAsync", 205, 240, 20), Call("cudaMemcpyAsync", 400, 400 + took, 21)]
    copies = [
        Device("Memcpy DtoH (Device -> Pageable)", start, start + 7, row, kind=DeviceKind.MEMCPY)
        for start, row in ((241, 20), (407, 21))
    ]
    found = offsets_us(build_trace(calls=calls, device=[*ops, *copies]))
    assert (found[-2] >= 8) == bounded


def test_a_query_and_a_copy_from_the_host_bound_nothing() -> None:
    calls, ops = launches(10)
    calls += [
        Call("cudaMemcpy", 300, 310, 50),
        Call("cudaEventQuery", 320, 321, 51),
        Call("cudaEventRecord", 299, 300, 52),
    ]
    ops.append(Device("Memcpy HtoD (Pageable -> Device)", 311, 330, 50, kind=DeviceKind.MEMCPY))
    syncs = [Sync(SyncKind.EVENT, 320, 321, 51, record=52, record_stream=7)]
    assert abs(clock_of(build_trace(calls=calls, device=ops, syncs=syncs)).offset_ns[1]) <= 250


def test_each_device_has_a_clock() -> None:
    (calls, ops), (more, others) = launches(10, 6), launches(10, -4, first=21, since=7)
    trace = build_trace(calls=[*calls, *more], device=[*ops, *(op._replace(device=1) for op in others)])
    clocks = on_host_clock(trace).clocks
    assert clocks is not None
    assert [round(c.offset_ns[0] / 1000) for c in clocks.devices] == [6, -4]


def test_a_device_that_shows_nothing_has_the_clock_of_the_others_if_that_is_one() -> None:
    (calls, ops), (more, others), (last, few) = launches(10, 6), launches(10, 6, 21, 3), launches(1, 6, 41, 7)
    few = [op._replace(device=2) for op in few]
    for ahead, offsets in ((0, [6, 6, 6]), (-20, [6, -14, 0])):
        second = [op._replace(device=1, start=op.start + ahead, end=op.end + ahead) for op in others]
        clocks = on_host_clock(build_trace(calls=[*calls, *more, *last], device=[*ops, *second, *few])).clocks
        assert clocks is not None
        assert [round(c.offset_ns[0] / 1000) for c in clocks.devices] == offsets
        assert [c.anchored for c in clocks.devices] == [True, True, not ahead]


def test_hip_returns_sooner_before_its_kernels_begin() -> None:
    calls, ops = launches(10, lag=4.7)
    assert (
        abs(clock_of(build_trace(calls=[c._replace(name="hipLaunchKernel") for c in calls], device=ops)).offset_ns[0])
        <= 250
    )


def test_rows_stay_sorted_and_keep_their_communication() -> None:
    (calls, ops), (more, others) = launches(10, 20), launches(10, 0, first=21, since=13)
    trace = build_trace(calls=[*calls, *more], device=[*ops, *(op._replace(device=1) for op in others)])
    moved = on_host_clock(trace)
    assert (np.diff(moved.device.start_ns) >= 0).all()
    assert moved.clocks is not None
    recorded = dict(zip(trace.device.correlation.tolist(), trace.device.start_ns.tolist(), strict=True))
    back = moved.device.start_ns + moved.clocks.offset_ns
    assert [recorded[c] for c in moved.device.correlation.tolist()] == back.tolist()
    assert (joined(moved) != NOWHERE).all()


def cheapest_of_all(costs: list[list[float]]) -> float:
    """The plain way: every path."""
    paths: Iterable[tuple[int, ...]] = itertools.product(range(len(costs[0])), repeat=len(costs))
    return min(price(costs, path) for path in paths)


def price(costs: list[list[float]], path: Iterable[int]) -> float:
    steps = list(path)
    changes = sum(a != b for a, b in itertools.pairwise(steps))
    return sum(row[level] for row, level in zip(costs, steps, strict=True)) + CHANGE_US * changes


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(st.floats(0, 40), min_size=n, max_size=n), min_size=1, max_size=6)
    )
)
def test_no_path_through_the_levels_is_cheaper(costs: list[list[float]]) -> None:
    assert price(costs, cheapest(np.array(costs), np.full(len(costs), CHANGE_US)).tolist()) == pytest.approx(
        cheapest_of_all(costs)
    )


@pytest.mark.parametrize(("ahead", "since"), [(20, 216), (0, 216), (0, 214), (0, 218), (-3000, 216)])
def test_a_node_that_calls_the_host_is_between_those_that_it_waited_for_and_that_waited_for_it(
    ahead: float, since: float
) -> None:
    """At 216 us, on the host's clock, which is known to a few us alone."""
    calls, ops = launches(10, ahead)
    nodes = [("before", 206, 215), ("HostNode", since - ahead, since + 30 - ahead), ("after", 247, 250)]
    kinds = (DeviceKind.KERNEL, DeviceKind.HOST, DeviceKind.KERNEL)
    ops += [
        Device(name, begin + ahead, end + ahead, 11, kind=kind, graph=2, graph_node=k)
        for k, ((name, begin, end), kind) in enumerate(zip(nodes, kinds, strict=True))
    ]
    trace = build_trace(calls=[*calls, Call("cudaGraphLaunch", 200, 203, 11)], device=ops)
    deps = GraphDeps(*np.array([(2, 0, NOWHERE), (2, 1, 0), (2, 2, 1)], np.int64).T)
    moved = on_host_clock(replace(trace, graph_deps=deps)).device
    assert moved.start_ns[-2] == 1000 * min(max(since, 215), 217)
    assert moved.end_ns[-2] - moved.start_ns[-2] == 30_000
    assert moved.end_ns[-3] <= moved.start_ns[-2] and moved.end_ns[-2] <= moved.start_ns[-1]


def test_a_recording_without_device_rows_stays_as_it_is() -> None:
    trace = build_trace(calls=[Call("cudaLaunchKernel", 0, 4, 1)])
    moved = on_host_clock(trace)
    assert replace(moved, clocks=None).calls is trace.calls
    assert moved.clocks is not None
    assert moved.clocks.devices == ()


@pytest.mark.parametrize(("rate", "found"), [(1e-4, 1e-4), (-1e-4, -1e-4), (0.5, 0.0), (0.0, 0.0)])
def test_a_rate_that_no_clock_has_is_a_device_that_falls_behind(rate: float, found: float) -> None:
    at_ns = np.arange(200, dtype=np.int64) * 10**7
    lag_ns = (rate * at_ns).astype(np.int64) + at_ns // 10**7 % 7 * 100
    none = np.zeros(0, np.int64)
    assert slope(at_ns, lag_ns, at_ns >= 0, none, none) == pytest.approx(found, rel=0.05)


@pytest.mark.parametrize(("over_ns", "found"), [(-9_000, 0.0), (1_990_000, 1e-4), (2_990_000, 0.0)])
def test_launches_at_both_ends_of_a_recording_tell_a_drift_where_a_wait_needs_one(over_ns: int, found: float) -> None:
    """Two places are on a line whatever the clock does; a wait that is over after the op ended is what tells."""
    at_ns = np.concatenate([np.arange(20), 20_000 + np.arange(20)]).astype(np.int64) * 10**6
    lag_ns = (1e-4 * at_ns).astype(np.int64) + 7_000
    waits = np.array([10**6, 20_001 * 10**6]), np.array([0, over_ns])
    assert slope(at_ns, lag_ns, at_ns >= 0, *waits) == pytest.approx(found, rel=0.01)


def test_a_launch_that_cannot_be_tells_no_drift() -> None:
    at_ns = np.arange(40, dtype=np.int64) * 10**8
    lag_ns = np.where(np.arange(40) == 12, -150_000, 7_000)
    waits = at_ns[[38, 39]] + 10**6, np.array([-9_000, -9_000])
    assert slope(at_ns, lag_ns, at_ns >= 0, *waits) == 0


@pytest.mark.parametrize(("took", "ends"), [(5_000_000.0, 209.0), (60.0, 245.0)])
def test_the_last_op_of_a_stream_ends_where_a_wait_for_it_was_over(took: float, ends: float) -> None:
    """No op behind it shows that its end is damaged. What ends 36 us late may be the clock's doing."""
    calls, ops = launches(10)
    ops[-1] = ops[-1]._replace(end=ops[-1].start + took)
    trace = on_host_clock(build_trace(calls=[*calls, Call("cudaDeviceSynchronize", 185, 209, 99)], device=ops))
    assert trace.clocks is not None and trace.device.end_ns[-1] + trace.clocks.offset_ns[-1] == ends * 1000
    assert trace.mended == ({"ends-overrun": 1} if took > 60 else {})
    assert [text.startswith("1 device op at the end of a stream") for text in trace.warnings] == [True] * (took > 60)
