"""Device time: stream order, overlaps, start delays and the event waits that explain them. Times are us."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.depend.devicetime import delays, infer_turns, stream_order
from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.model import SyncKind, Trace
from tests.build import Call, Device, Host, Sync, build_trace
from tests.depend.test_host import edges, graph_of


def op(graph: Graph, start: float) -> int:
    """The device op that starts at a time."""
    return int(np.flatnonzero((graph.kind == NodeKind.DEVICE_OP) & (graph.start_ns == round(start * 1000)))[0])


def launches(*device: Device, calls: tuple[Call, ...] = (), syncs: tuple[Sync, ...] = ()) -> Trace:
    """Ops launched by calls of 1 us, one after the other from 0, inside one host op."""
    made = [Call("cudaLaunchKernel", 2.0 * i, 2.0 * i + 1, d.correlation) for i, d in enumerate(device)]
    return build_trace(host=[Host("op", 0, 2000)], calls=[*made, *calls], device=device, syncs=syncs)


def test_ops_of_a_stream_follow_each_other_and_those_of_another_device_do_not() -> None:
    graph = graph_of(launches(Device("a", 10, 20, 1), Device("b", 21, 30, 2), Device("c", 12, 40, 3, device=1)))
    assert edges(graph, EdgeKind.STREAM) == {(op(graph, 10), op(graph, 21))}


def test_an_overlap_is_taken_off_the_earlier_op() -> None:
    graph = graph_of(launches(Device("a", 10, 25, 1), Device("b", 21, 30, 2)))
    a = op(graph, 10)
    assert (graph.duration_ns[a], graph.overlap_ns[a], graph.end_ns[a]) == (11_000, 4_000, 25_000)
    assert edges(graph, EdgeKind.STREAM) == {(a, op(graph, 21))}


def test_small_start_delays_cost_with_their_op_and_large_ones_are_nodes() -> None:
    graph = graph_of(launches(Device("a", 10, 20, 1), Device("b", 40, 50, 2)))
    assert graph.start_delay_ns[[op(graph, 10), op(graph, 40)]].tolist() == [
        7_000,
        20_000,
    ]  # the first from 3, when both were launched
    assert not (graph.kind == NodeKind.DEVICE_DELAY).any()
    graph = graph_of(launches(Device("a", 10, 20, 1), Device("b", 41, 50, 2)))
    delay = int(np.flatnonzero(graph.kind == NodeKind.DEVICE_DELAY)[0])
    assert (graph.start_ns[delay], graph.duration_ns[delay]) == (20_000, 21_000)
    assert graph.start_delay_ns[op(graph, 41)] == 0
    assert {(op(graph, 10), delay), (delay, op(graph, 41))} <= edges(graph, EdgeKind.STREAM)


def test_what_starts_when_it_is_ready_has_no_delay() -> None:
    graph = graph_of(launches(Device("a", 3, 20, 1), Device("b", 20, 50, 2)))
    assert graph.start_delay_ns[[op(graph, 3), op(graph, 20)]].tolist() == [0, 0]


@pytest.mark.parametrize(("ended", "explained"), [(100, True), (99, True), (70, True), (69, False)])
def test_an_op_of_another_stream_that_ended_up_to_30_us_before_explains_a_late_start(
    ended: float, explained: bool
) -> None:
    graph = graph_of(launches(Device("a", 10, ended, 1, stream=9), Device("b", 100, 110, 2)))
    assert ((op(graph, 10), op(graph, 100)) in edges(graph, EdgeKind.EVENT)) == explained


@pytest.mark.parametrize(
    ("ended", "resolution_ns", "explained"), [(100, 1, True), (100, 1000, False), (99, 1000, True)]
)
def test_what_ended_in_the_us_of_the_start_may_have_ended_after_it_where_times_are_rounded(
    ended: float, resolution_ns: int, explained: bool
) -> None:
    trace = replace(
        launches(Device("a", 10, ended, 1, stream=9), Device("b", 100, 110, 2)), resolution_ns=resolution_ns
    )
    graph = graph_of(trace)
    assert ((op(graph, 10), op(graph, 100)) in edges(graph, EdgeKind.EVENT)) == explained


@pytest.mark.parametrize(("ready", "late"), [(80, False), (79.999, True)])
def test_only_a_start_more_than_20_us_late_is_explained_by_an_unseen_wait(ready: float, late: bool) -> None:
    """However long delays may stay with their op: that limit is another one."""
    ops = (Device("before", 10, ready, 1), Device("a", 12, 99, 2, stream=9), Device("b", 100, 110, 3))
    for gap_ns in (20_000, 50_000):
        graph = graph_of(launches(*ops), gap_ns=gap_ns)
        assert edges(graph, EdgeKind.EVENT) == ({(op(graph, 12), op(graph, 100))} if late else set())
        assert graph.start_delay_ns[op(graph, 100)] == (1_000 if late else 20_000)


@pytest.mark.parametrize(("ended", "explains"), [(75, False), (75.001, True)])
def test_what_ended_before_the_op_was_ready_anyway_explains_nothing(ended: float, explains: bool) -> None:
    graph = graph_of(
        launches(Device("before", 10, 75, 1), Device("a", 12, ended, 2, stream=9), Device("b", 100, 110, 3))
    )
    assert ((op(graph, 12), op(graph, 100)) in edges(graph, EdgeKind.EVENT)) == explains


@pytest.mark.parametrize(
    ("elsewhere", "ended", "explains"), [(95, 90, False), (94.999, 90, True), (95, 95, True), (96, 94.999, False)]
)
def test_where_another_device_ended_within_5_us_so_must_what_explains_a_late_start(
    elsewhere: float, ended: float, explains: bool
) -> None:
    """Waits go across devices as well."""
    ops = (Device("other", 10, elsewhere, 1, device=1), Device("a", 12, ended, 2, stream=9), Device("b", 100, 110, 3))
    graph = graph_of(launches(*ops))
    assert edges(graph, EdgeKind.EVENT) == ({(op(graph, 12), op(graph, 100))} if explains else set())


def test_of_several_that_explain_a_late_start_the_last_one_does() -> None:
    ops = (Device("a", 10, 90, 1, stream=9), Device("c", 11, 98, 2, stream=11), Device("b", 100, 110, 3))
    graph = graph_of(launches(*ops))
    assert edges(graph, EdgeKind.EVENT) == {(op(graph, 11), op(graph, 100))}


def test_what_was_launched_later_or_ran_on_another_device_explains_no_late_start() -> None:
    later = graph_of(launches(Device("b", 100, 110, 2), Device("a", 12, 99, 1, stream=9)))
    assert edges(later, EdgeKind.EVENT) == set()
    elsewhere = graph_of(launches(Device("a", 10, 99, 1, stream=9, device=1), Device("b", 100, 110, 2)))
    assert edges(elsewhere, EdgeKind.EVENT) == set()


def test_ops_of_one_graph_launch_order_themselves() -> None:
    """Even where a record says that nothing else can have waited for the first."""
    calls = [Call("cudaEventRecord", 0, 0.5, 8), Call("cudaGraphLaunch", 1, 2, 1), Call("cudaLaunchKernel", 3, 4, 2)]
    device = [Device("a", 10, 99, 1, stream=9), Device("b", 100, 110, 1), Device("c", 130, 140, 2, stream=11)]
    graph = graph_of(build_trace(host=[Host("op", 0, 2000)], calls=calls, device=device))
    assert edges(graph, EdgeKind.EVENT) == {(op(graph, 10), op(graph, 100))}, (
        "c is late, too, but nothing was recorded behind b"
    )


@pytest.mark.parametrize(("correlation", "explains"), [(0, True), (1, False)])
def test_what_was_launched_unseen_waited_for_what_was_launched_unseen(correlation: int, explains: bool) -> None:
    calls = [Call("cudaEventRecord", 0, 0.5, 8), Call("cudaLaunchKernel", 1, 2, 1)]
    device = [Device("a", 10, 99, correlation, stream=9), Device("b", 100, 110, 0)]
    graph = graph_of(build_trace(host=[Host("op", 0, 2000)], calls=calls, device=device))
    assert edges(graph, EdgeKind.EVENT) == ({(op(graph, 10), op(graph, 100))} if explains else set())


@pytest.mark.parametrize(("recorded", "explains"), [(1.2, False), (3.2, True), (5.2, False)])
def test_an_event_was_recorded_between_the_launches_if_any_record_is_known(recorded: float, explains: bool) -> None:
    """The launches begin at 0, 2 and 4."""
    ops = (Device("first", 5, 6, 1, stream=11), Device("a", 10, 99, 2, stream=9), Device("b", 100, 110, 3))
    graph = graph_of(launches(*ops, calls=(Call("cudaEventRecord", recorded, recorded + 0.2, 8),)))
    assert edges(graph, EdgeKind.EVENT) == ({(op(graph, 10), op(graph, 100))} if explains else set())


@pytest.mark.parametrize(
    ("calls", "row", "explains"),
    [
        ([("cudaStreamWaitEvent", 3.2)], None, True),
        ([("cudaStreamWaitEvent", 3.2)], 5, False),  # a row tells what this call waits for, and that is something else
        ([("cudaStreamWaitEvent", 1.2), ("cudaStreamWaitEvent", 3.2)], 5, False),  # the one without a row came before a
        ([("cudaStreamWaitEvent", 3.2), ("cudaStreamWaitEvent", 1.2)], 5, True),  # and here behind it
        ([("cudaMalloc", 3.2)], None, False),
    ],
)
def test_with_rows_the_wait_call_without_one_lies_between_the_launches(
    calls: list[tuple[str, float]], row: int | None, explains: bool
) -> None:
    """The last of ``calls`` has a row, which tells the record (``row``) or none; the launches begin at 0, 2 and 4."""
    ops = (Device("first", 5, 6, 1, stream=11), Device("a", 10, 99, 2, stream=9), Device("b", 100, 110, 3))
    made = tuple(Call(name, at, at + 0.2, 20 + i) for i, (name, at) in enumerate(calls))
    rows = (
        Sync(
            SyncKind.STREAM_WAIT,
            made[-1].start,
            made[-1].end,
            made[-1].correlation,
            stream=7,
            record=row,
            record_stream=11,
        ),
    )
    graph = graph_of(launches(*ops, calls=made, syncs=rows))
    assert ((op(graph, 10), op(graph, 100)) in edges(graph, EdgeKind.EVENT)) == explains


def test_with_rows_a_late_start_is_explained_only_behind_a_wait_call_that_has_none() -> None:
    ops = (Device("a", 10, 99, 1, stream=9), Device("b", 100, 110, 2))
    rows = (Sync(SyncKind.STREAM, 500, 510, 9, stream=9),)
    told = graph_of(launches(*ops, syncs=rows))
    assert edges(told, EdgeKind.EVENT) == set()
    unseen = graph_of(launches(*ops, calls=(Call("cudaStreamWaitEvent", 1.2, 1.5, 8),), syncs=rows))
    assert edges(unseen, EdgeKind.EVENT) == {(op(unseen, 10), op(unseen, 100))}


def test_a_row_without_the_stream_that_waits_hides_nothing_that_its_call_alone_would_explain() -> None:
    ops = (Device("first", 5, 6, 1, stream=11), Device("a", 10, 99, 2, stream=9), Device("b", 100, 110, 3))
    rows = (Sync(SyncKind.STREAM_WAIT, 3.2, 3.4, 8, record=5),)
    graph = graph_of(launches(*ops, calls=(Call("cudaStreamWaitEvent", 3.2, 3.4, 8),), syncs=rows))
    assert (op(graph, 10), op(graph, 100)) in edges(graph, EdgeKind.EVENT)


def test_work_launched_behind_a_finished_wait_comes_after_what_was_awaited() -> None:
    """The call blocks nothing, but the op is cut behind it: the sync edge to the next operator would let the launch run
    ahead.
    """
    trace = build_trace(
        host=[Host("op", 0, 100), Host("next", 110, 120)],
        calls=[
            Call("cudaLaunchKernel", 2, 4, 1),
            Call("cudaStreamSynchronize", 30, 31, 2),
            Call("cudaLaunchKernel", 40, 42, 3),
        ],
        device=[Device("a", 6, 20, 1), Device("b", 45, 50, 3, stream=9)],
        syncs=[Sync(SyncKind.STREAM, 30, 31, 2, stream=7)],
    )
    graph = graph_of(trace)
    part = int(np.flatnonzero((graph.kind == NodeKind.HOST_PART) & (graph.start_ns == 31_000))[0])
    assert (op(graph, 6), part) in edges(graph, EdgeKind.SYNC)
    assert (part, op(graph, 45)) in edges(graph, EdgeKind.LAUNCH)
    assert not graph.wait_ns.any()


@pytest.mark.parametrize(("begins", "cut"), [(60, 55), (75, 55), (75.001, 75.001)])
def test_a_delay_is_cut_where_an_op_of_another_stream_begins_with_its_start_delay(begins: float, cut: float) -> None:
    """b is ready at 20 and starts at 100; c is ready at 55, and 20 us later its delay is no longer its own."""
    device = build_trace(device=[Device("c", begins, begins + 10, 1, stream=9), Device("b", 100, 110, 2)]).device
    found = delays(device, np.array([55_000, 20_000]), 20_000)
    assert (found.start_ns / 1000).tolist() == [20, cut]
    assert (found.end_ns / 1000).tolist() == [cut, 100]
    assert (found.start_delay_ns / 1000).tolist() == [begins - 55 if cut == 55 else 0, 0]


@pytest.mark.parametrize("begins", [20, 100])
def test_what_begins_with_a_delay_or_as_it_ends_does_not_cut_it(begins: float) -> None:
    device = build_trace(device=[Device("c", begins, begins + 10, 1, stream=9), Device("b", 100, 110, 2)]).device
    found = delays(device, np.array([round(begins * 1000), 20_000]), 20_000)
    assert (found.start_ns.tolist(), found.end_ns.tolist()) == ([20_000], [100_000])


def test_a_delay_that_begins_as_another_ends_comes_after_nothing_but_its_own_dependencies() -> None:
    device = build_trace(device=[Device("a", 60, 70, 1, stream=9), Device("b", 100, 110, 2)]).device
    found = delays(device, np.array([20_000, 60_000]), 20_000)
    assert (found.after.tolist(), found.heads.tolist(), found.row.tolist()) == ([-1, -1], [True, True], [0, 1])
    found = delays(device, np.array([20_000, 59_999]), 20_000)
    assert (found.after.tolist(), found.heads.tolist(), found.row.tolist()) == ([-1, 0], [True, True], [0, 1])


lates = st.lists(
    st.tuples(st.integers(0, 500), st.integers(21, 300)), min_size=1, max_size=12, unique_by=lambda x: x[0] + x[1]
)


@given(lates)
def test_delay_nodes_share_no_moment_and_cover_every_late_op(late: list[tuple[int, int]]) -> None:
    """Ready at a, started at a + b, each on a stream of its own: the nodes' union is the delays' union."""
    late = sorted(late, key=sum)
    ops = [Device("k", a + b, a + b + 1, i + 1, stream=i) for i, (a, b) in enumerate(late)]
    device = build_trace(device=ops).device
    ready = np.array([a * 1000 for a, _ in late], np.int64)
    found = delays(device, ready, 20_000)
    spans = sorted(zip(found.start_ns.tolist(), found.end_ns.tolist(), strict=True))
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    covered = {t for s, e in spans for t in range(s // 1000, e // 1000)}
    assert covered == {t for a, b in late for t in range(a, a + b)}
    ends = found.end_ns[found.releases]
    assert (ends == device.start_ns).all()
    for i, before in enumerate(found.after.tolist()):
        assert before == -1 or found.end_ns[before] == found.start_ns[i]
    owners = found.row.tolist()
    assert all(
        ready[owners[i]] <= found.start_ns[i] and found.end_ns[i] <= device.start_ns[owners[i]]
        for i in range(len(owners))
    )


def test_stream_order_of_nothing() -> None:
    order = stream_order(build_trace().device)
    assert len(order.before) == len(order.end_ns) == 0


def turns(*, lag_us: float = 32, others_us: tuple[float, ...] = (), overlap_us: float = 0) -> list[tuple[int, int]]:
    """Return what is inferred of kernels of 1 ms on four streams, all launched at once, each so long after the end of
    the one before; ``others_us``: lags of those that came late for another reason."""
    rows, at = [], 0.0
    for k, lag in enumerate([lag_us] * 20 + [*others_us]):
        begin = at + lag - (overlap_us if k == 5 else 0)
        at = begin + 1000
        rows.append(Device(f"k{k}", begin, at, correlation=k + 1, stream=k % 4))
    device = build_trace(device=rows).device
    ready = np.full(len(rows), round(lag_us * 1000))
    ready[4:] = np.maximum(ready[4:], device.end_ns[:-4])
    found = infer_turns(device, ready, 0)
    return [*zip(found.source.tolist(), found.device_op.tolist(), strict=True)]


def test_streams_that_take_turns_wait_for_each_other() -> None:
    """By a lag that is the device's own, and longer than any that rows of CUDA show."""
    assert turns() == [(k, k + 1) for k in range(19)]
    assert turns(others_us=(90, 400)) == [(k, k + 1) for k in range(19)]


def test_turns_are_edges_of_the_graph() -> None:
    ops = [Device("a", 50 + 132 * k, 150 + 132 * k, k + 1, stream=7 + k % 2) for k in range(12)]
    graph = graph_of(launches(*ops))
    pairs = {(op(graph, one.start), op(graph, other.start)) for one, other in pairwise(ops)}
    assert edges(graph, EdgeKind.EVENT) >= pairs


def test_streams_take_no_turns_where_two_ran_at_once_or_no_lag_is_usual() -> None:
    assert turns(overlap_us=40) == []
    assert turns(others_us=tuple(50 * 1.3**k for k in range(30))) == []
