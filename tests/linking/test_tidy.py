from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from graphlink.linking.tidy import tidy
from graphlink.model import SyncKind, Trace
from graphlink.tables import lookup
from tests.build import Call, Device, Host, Sync, build_trace


def calls_of_ops(trace: Trace) -> list[int]:
    return lookup(trace.calls.correlation, trace.device.correlation).tolist()


def test_what_is_as_it_can_be_stays() -> None:
    trace = build_trace([Host("a", 0, 9), Host("b", 1, 4)], [Call("cudaLaunchKernel", 2, 3, 1)], [Device("k", 4, 5, 1)])
    put_right = tidy(trace)
    assert put_right.mended == {}
    assert put_right.warnings == ()
    assert put_right.device is trace.device


def test_rows_that_are_there_twice_count_once() -> None:
    op = Device("k", 10, 14, 1)
    trace = tidy(
        build_trace(
            [Host("a", 0, 9, rf_id=1), Host("a", 0, 9, rf_id=1), Host("a", 0, 9, tid=2, rf_id=2)],
            [Call("cudaLaunchKernel", 2, 3, 1), Call("cudaLaunchKernel", 2, 3, 1)],
            [op, op, op._replace(stream=8), op._replace(name="other", correlation=2, start=14, end=15)],
        )
    )
    assert [len(rows.start_ns) for rows in (trace.host, trace.calls, trace.device)] == [2, 1, 3]
    assert trace.mended["rows-twice"] == 3
    assert any("3 rows there twice" in text for text in trace.warnings)


def test_synchronisation_rows_that_are_there_twice_count_once() -> None:
    calls = [Call("cudaStreamSynchronize", 2, 20, 2), Call("cudaStreamSynchronize", 2, 20, 3, tid=2)]
    row = Sync(SyncKind.STREAM, 3, 20, 2, stream=7)
    trace = tidy(build_trace([], calls, [Device("k", 4, 18, 1)], [row, row, row._replace(correlation=3)]))
    assert trace.syncs.correlation.tolist() == [2, 3]
    assert trace.mended == {"rows-twice": 1}


def test_rows_that_rounding_made_equal_stay() -> None:
    """Kernels of a graph share its call's number, and several may begin in one us."""
    op = Device("k", 10, 11, 1)
    assert len(tidy(build_trace([], [], [op, op], resolution_ns=1000)).device.start_ns) == 2


def test_a_number_of_its_own_tells_that_a_row_too_short_to_be_told_by_its_times_is_there_twice() -> None:
    op, memset = Host("a", 0, 1), Device("m", 10, 11, 1)
    calls = [Call("cudaMemsetAsync", 2, 3, 1), Call("cudaGraphLaunch", 4, 5, 2)]
    ops = [memset, memset, memset._replace(correlation=2), memset._replace(correlation=2)]
    trace = build_trace([op, op, op], calls, ops, resolution_ns=1000)
    trace = replace(trace, host=replace(trace.host, order=np.array([0, 7, 7])))
    put_right = tidy(trace)
    assert put_right.host.order.tolist() == [0, 7]
    assert put_right.device.correlation.tolist() == [1, 2, 2], "the nodes of a graph have one call"


def test_a_call_inside_one_of_its_number_is_that_call() -> None:
    calls = [
        Call("cudaMemcpy", 0, 20, 5),
        Call("cudaMemcpy_v3020", 1, 18, 5),
        Call("cuMemcpy", 2, 9, 5),
        Call("cuMemcpyDtoH", 10, 12, 5),
        Call("cudaMemcpy", 1, 18, 5, tid=2),
    ]
    trace = tidy(build_trace([], calls, [Device("Memcpy", 3, 8, 5)]))
    assert trace.mended == {"calls-twice": 3, "repeated-calls": 1}
    assert calls_of_ops(trace) == [1], "the last call of its number that began before it"
    assert trace.calls.end_ns.tolist() == [20_000, 18_000]


def test_a_repeated_number_belongs_to_the_last_call_before() -> None:
    calls = [Call("cudaLaunchKernel", at, at + 2, number) for at, number in ((0, 5), (10, 6), (1000, 5), (1010, 6))]
    calls.append(Call("cudaStreamSynchronize", 2000, 2010, 5))
    ops = [Device("k", at, at + 2, number) for at, number in ((4, 5), (14, 6), (1004, 5), (1014, 6))]
    syncs = [Sync(SyncKind.STREAM, 2001, 2009, 5, stream=7)]
    trace = tidy(build_trace([], calls, ops, syncs))
    assert calls_of_ops(trace) == [0, 1, 2, 3]
    assert lookup(trace.calls.correlation, trace.syncs.correlation).tolist() == [4]
    assert len(set(trace.calls.correlation.tolist())) == 5
    assert trace.mended == {"repeated-calls": 3}


@pytest.mark.parametrize("off_us", [-300, 300])
def test_a_repeated_number_bears_a_clock_that_is_off(off_us: int) -> None:
    calls = [Call("cudaLaunchKernel", at, at + 2, k) for k, at in enumerate(range(0, 2000, 100), 10)]
    ops = [Device("k", call.start + 4 + off_us, call.start + 8 + off_us, call.correlation) for call in calls]
    for at in (5000, 9000):
        calls.append(Call("cudaLaunchKernel", at, at + 2, 10))
        ops.append(Device("k", at + 4 + off_us, at + 8 + off_us, 10))
    trace = tidy(build_trace([], calls, ops))
    assert calls_of_ops(trace) == list(range(len(calls)))


def test_an_op_behind_which_another_one_ended_ended_where_that_began() -> None:
    ops = [
        Device("long", 0, 2500, 1),
        Device("a", 100, 200, 2),
        Device("b", 205, 300, 3),
        Device("ahead", 400, 500, 4),
        Device("behind", 498, 600, 5),
        Device("elsewhere", 100, 2600, 6, stream=8),
    ]
    trace = tidy(build_trace([], [], ops))
    ends = dict(zip((trace.strings[k] for k in trace.device.name), trace.device.end_ns.tolist(), strict=True))
    assert ends["long"] == 100_000
    assert ends["ahead"] == 500_000, "launched ahead of its end"
    assert ends["elsewhere"] == 2_600_000
    assert trace.device.cut_ns is not None
    assert trace.device.cut_ns.sum() == 2_400_000
    assert trace.mended == {"ends-overrun": 1}
    assert "long, recorded with 2.500 ms" in trace.warnings[0]


@pytest.mark.parametrize("back_us", [150, 220, 380])
def test_ops_on_a_clock_that_was_set_back_end_as_recorded_and_so_do_those_they_overlap(back_us: int) -> None:
    calls = [Call("cudaLaunchKernel", at, at + 2, k) for k, at in enumerate(range(0, 1000, 100), 10)]
    lengths = (90, 30, 95, 80, 20, 90, 10, 85, 40, 90)
    ops = []
    for k, (call, length) in enumerate(zip(calls, lengths, strict=True)):
        start = call.start + 4 - back_us * (k >= 5)
        ops.append(Device("k", start, start + length, call.correlation))
    trace = tidy(build_trace([], calls, ops))
    assert (trace.mended, trace.device.cut_ns) == ({}, None)
    ops[1] = ops[1]._replace(end=ops[1].start + 700)  # that one is damaged
    assert tidy(build_trace([], calls, ops)).mended == {"ends-overrun": 1}


def test_nodes_of_one_graph_may_run_beside_each_other() -> None:
    ops = [Device("a", 0, 100, 1, graph=3), Device("b", 10, 20, 1, graph=3), Device("c", 130, 140, 2)]
    assert tidy(build_trace([], [], ops)).mended == {}


@pytest.mark.parametrize("over_us", [0.002, 0.5, 1, 5, 99])
def test_marks_of_steps_end_where_the_next_begins(over_us: float) -> None:
    marks = [
        Host("ProfilerStep#1", 0, 100 + over_us, annotation=True),
        Host("iteration 7", 50, 160, annotation=True),
        Host("ProfilerStep#2", 100, 200 + over_us / 2, annotation=True),
        Host("ProfilerStep#3", 150, 300, annotation=True, tid=2),
        Host("ProfilerStep#3", 200, 310, annotation=True),
    ]
    trace = tidy(build_trace(marks))
    assert trace.host.end_ns.tolist() == [100_000, 160_000, 200_000, 300_000, 310_000]
    assert trace.mended == {"steps-overlap": 2}
    assert (
        f"2 marks of steps running into the next one, or what is behind it, by up to {over_us:.3f} us: cut"
        in (trace.warnings[0])
    )


@pytest.mark.parametrize(("begins", "resolution_ns", "ends"), [(99.1, 1, 99.1), (99.1, 1000, 100), (97, 1, 100)])
def test_a_mark_ends_where_a_call_or_an_op_begins_at_its_very_end_that_outlasts_it(
    begins: float, resolution_ns: int, ends: float
) -> None:
    """A device synchronisation behind the last step, whose mark is recorded too long: the call keeps its time."""
    calls = [Call("cudaDeviceSynchronize", begins, 400, 1), Call("cudaDeviceSynchronize", begins, 400, 2, tid=2)]
    marks = [Host("ProfilerStep#1", 0, 100, annotation=True)]
    trace = tidy(build_trace(marks, calls, resolution_ns=resolution_ns))
    assert trace.host.end_ns.tolist() == [1000 * ends]
    trace = tidy(build_trace([*marks, Host("aten::mm", begins, 400)], resolution_ns=resolution_ns))
    assert trace.host.end_ns.tolist() == [1000 * ends, 400_000]


def test_a_mark_inside_another_one_of_its_number_changes_nothing() -> None:
    marks = [
        Host("ProfilerStep#1", 0, 100.5, annotation=True),
        Host("ProfilerStep#1", 2, 98, annotation=True),
        Host("ProfilerStep#2", 90, 100.5, annotation=True),
        Host("ProfilerStep#2", 100, 200, annotation=True),
    ]
    assert tidy(build_trace(marks)).host.end_ns.tolist() == [100_000, 98_000, 100_500, 200_000]


@pytest.mark.parametrize(("of_call", "of_row"), [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize("kind", [SyncKind.DEVICE, SyncKind.STREAM, SyncKind.EVENT])
def test_a_sync_row_is_of_the_one_call_around_it(kind: SyncKind, of_call: int, of_row: int) -> None:
    names = {SyncKind.DEVICE: "DeviceSynchronize", SyncKind.STREAM: "StreamSynchronize", SyncKind.EVENT: "EventQuery"}
    calls = [
        Call("cudaLaunchKernel", 0, 2, 4),
        Call("cudaThreadExchangeStreamCaptureMode", 2, 40, 0),
        Call(f"cuda{names[kind]}", 3, 30, of_call),
        Call("cudaStreamWaitEvent", 3, 30, 0, tid=2),
    ]
    trace = tidy(build_trace([], calls, [Device("k", 4, 25, 4)], [Sync(kind, 4, 29, of_row, stream=7)]))
    (call,) = lookup(trace.calls.correlation, trace.syncs.correlation).tolist()
    assert trace.strings[trace.calls.name[call]] == f"cuda{names[kind]}"
    assert calls_of_ops(trace) == [0]
    assert trace.mended == {"syncs-without-id": 1}


@pytest.mark.parametrize(
    ("calls", "rows"),
    [
        ([(3, 30, 0, 1), (2, 31, 0, 2)], [(4, 29, 5)]),  # two calls around it
        ([(3, 30, 0, 1)], [(4, 29, 5), (6, 28, 6)]),  # two rows in one call
        ([(3, 30, 4, 1)], [(4, 29, 5)]),  # numbers that contradict each other
        ([(3, 28, 0, 1)], [(4, 29, 5)]),  # over before it
        ([(3, 30, 4, 1)], [(4, 29, 4), (5, 28, 0)]),  # a call with a row of its own
    ],
)
def test_a_sync_row_of_no_one_call_stays_alone(
    calls: list[tuple[int, int, int, int]], rows: list[tuple[int, int, int]]
) -> None:
    trace = build_trace(
        [],
        [Call("cudaDeviceSynchronize", start, end, number, tid) for start, end, number, tid in calls],
        [],
        [Sync(SyncKind.DEVICE, *row) for row in rows],
    )
    assert tidy(trace).mended == {}


def test_sync_rows_of_many_threads_take_memory_by_row() -> None:
    count = 1_500  # of threads, and of rows: pairs of them would take 18 MB a column
    calls = [Call("cudaEventSynchronize", 10 * i, 10 * i + 5, 0, tid=i) for i in range(count)]
    trace = build_trace([], calls, [], [Sync(SyncKind.EVENT, 10 * i + 1, 10 * i + 4, 0) for i in range(count)])
    tracemalloc.start()
    mended = tidy(trace).mended
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert mended == {"syncs-without-id": count}
    assert most_bytes < 4_000_000


def test_no_rows_are_put_right_at_once() -> None:
    empty = build_trace()
    assert tidy(empty).mended == {}
    assert np.array_equal(tidy(replace(empty, resolution_ns=1000)).device.start_ns, [])
