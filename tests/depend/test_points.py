"""Where the time of a thread is cut into nodes, and who carries what: each rule alone. Times are us."""

from __future__ import annotations

import numpy as np
import pytest

from graphlink.graph.critical import cost_ns
from graphlink.graph_model import NodeKind
from graphlink.model import SyncKind
from graphlink.replay.machines import measured_ns, replay
from tests.build import Call, Device, Host, Sync, build_trace
from tests.depend.test_host import graph_of, nodes


def test_rests_of_different_owners_do_not_add_up() -> None:
    """15 us of the op, then 15 us between ops; 10 us before a cut, 25 us behind it; 5 us and a wait."""
    graph = graph_of(build_trace(host=[Host("op", 0, 95), Host("child", 10, 80), Host("next", 110, 120)]))
    assert nodes(graph, NodeKind.HOST_PART) + nodes(graph, NodeKind.HOST_GAP) == []
    for call, done in (((90, 96), 95), ((85, 112), 110)):
        trace = build_trace(
            host=[Host("op", 0, 140), Host("child", 10, 80), Host("next", 140, 150)],
            calls=[Call("cudaLaunchKernel", 2, 10, 1), Call("cudaStreamSynchronize", *call, 2)],
            device=[Device("k", 15, done, 1)],
            syncs=[Sync(SyncKind.STREAM, *call, 2, stream=7)],
        )
        assert [n[0] for n in nodes(graph_of(trace), NodeKind.HOST_PART)] == [done]


def test_own_time_is_the_ops_wherever_it_is_carried_and_that_between_ops_nobodys() -> None:
    """20 us of the op are folded into its child, 15 us between ops into the op before them."""
    graph = graph_of(
        build_trace(host=[Host("op", 0, 130), Host("child", 10, 80), Host("other", 100, 105), Host("next", 145, 150)])
    )
    assert [n[:2] for n in nodes(graph, NodeKind.HOST_OP)] == [(0, 10), (10, 90), (100, 5), (145, 5)]
    assert (graph.self_ns / 1000).tolist() == [30, 70, 5, 25, 5, 0], (
        "and 25 us of the op are a part of it, with the 15 us behind"
    )
    assert nodes(graph, NodeKind.HOST_PART) == [(105, 40, 0)]
    graph = graph_of(build_trace(host=[Host("op", 0, 30), Host("next", 60, 70)]))
    assert (graph.self_ns / 1000).tolist() == [30, 30, 10, 0], "a gap's time is its own"
    trace = build_trace(
        host=[Host("op", 0, 12), Host("next", 92, 120)],
        calls=[Call("cudaLaunchKernel", 2, 10, 1), Call("cudaStreamSynchronize", 20, 90, 2)],
        device=[Device("k", 15, 85, 1)],
        syncs=[Sync(SyncKind.STREAM, 20, 90, 2, stream=7)],
    )
    graph = graph_of(trace)
    beside = np.isin(graph.kind, (NodeKind.HOST_CALL, NodeKind.HOST_GAP))
    assert (graph.self_ns[beside] / 1000).tolist() == [0, 7], "that behind a call outside ops, too"


def test_a_launch_just_before_its_thread_falls_asleep_is_not_cut_off() -> None:
    """3 us follow, then the thread sleeps until the other one is done."""
    trace = build_trace(
        host=[Host("op", 0, 103), Host("other", 110, 240, tid=2), Host("next", 250, 300)],
        calls=[Call("cudaLaunchKernel", 90, 100, 1)],
        device=[Device("k", 105, 120, 1)],
    )
    graph = graph_of(trace)
    assert nodes(graph, NodeKind.HOST_PART) == []
    assert [n[:2] for n in nodes(graph, NodeKind.HOST_GAP)] == [(103, 7), (240, 10)]


def test_a_launch_just_before_its_thread_ends_is_not_cut_off() -> None:
    trace = build_trace(
        host=[Host("op", 0, 14), Host("other", 20, 40, tid=2)],
        calls=[Call("cudaLaunchKernel", 2, 10, 1)],
        device=[Device("k", 12, 30, 1)],
    )
    assert nodes(graph_of(trace), NodeKind.HOST_PART) == []


def test_a_call_that_takes_no_time_where_its_op_begins_is_in_that_op() -> None:
    """Whole us are recorded: the call ends as the op begins, and as the one before ends."""
    trace = build_trace(
        host=[Host("before", 0, 10), Host("op", 10, 40)],
        calls=[Call("cudaLaunchKernel", 10, 10, 1)],
        device=[Device("k", 15, 30, 1)],
        resolution_ns=1000,
    )
    graph = graph_of(trace)
    kernel = int(np.flatnonzero(graph.kind == NodeKind.DEVICE_OP)[0])
    launcher, caller = int(graph.source[graph.first[kernel]]), int(graph.caller[kernel])
    assert launcher == caller
    assert (graph.row[caller], graph.start_ns[caller], graph.duration_ns[caller]) == (1, 10_000, 0)
    assert nodes(graph, NodeKind.HOST_PART) == [(10, 30, 0)]
    assert nodes(graph, NodeKind.HOST_GAP) == []


def test_every_launch_with_more_than_5_us_to_the_next_cut_is_cut_off() -> None:
    """From the last one back: the one at 14 has 4 us to the cut at 18, and that at 10 has 8 us since 14 is none."""
    ends = [10, 14, 18, 30, 41]
    trace = build_trace(
        host=[Host("op", 0, 60)],
        calls=[Call("cudaLaunchKernel", end - 3, end, i + 1) for i, end in enumerate(ends)],
        device=[Device("k", 100 + 10 * i, 105 + 10 * i, i + 1) for i in range(len(ends))],
    )
    assert nodes(graph_of(trace), NodeKind.HOST_PART) == [(10, 8, 0), (18, 12, 0), (30, 11, 0), (41, 19, 0)]


def test_a_call_that_waited_has_one_cut_where_the_wait_ended() -> None:
    """What is launched behind it needs no other at the end of the call."""
    trace = build_trace(
        host=[Host("op", 0, 120), Host("next", 130, 140)],
        calls=[
            Call("cudaLaunchKernel", 2, 10, 1),
            Call("cudaStreamSynchronize", 20, 90, 2),
            Call("cudaLaunchKernel", 95, 97, 3),
        ],
        device=[Device("k", 15, 80, 1), Device("l", 100, 110, 3)],
        syncs=[Sync(SyncKind.STREAM, 20, 90, 2, stream=7)],
    )
    assert [n[0] for n in nodes(graph_of(trace), NodeKind.HOST_PART) if n[0] > 20] == [80, 97]


@pytest.mark.parametrize(("launched", "cut"), [(40, True), (112, False)])
def test_behind_a_call_that_waited_for_nothing_only_a_launch_before_the_next_operator_needs_a_cut(
    launched: float, cut: bool
) -> None:
    trace = build_trace(
        host=[Host("op", 0, 100), Host("next", 110, 130)],
        calls=[
            Call("cudaLaunchKernel", 2, 4, 1),
            Call("cudaStreamSynchronize", 30, 31, 2),
            Call("cudaLaunchKernel", launched, launched + 2, 3),
        ],
        device=[Device("a", 6, 20, 1), Device("b", 115, 120, 3)],
        syncs=[Sync(SyncKind.STREAM, 30, 31, 2, stream=7)],
    )
    assert (31 in [n[0] for n in nodes(graph_of(trace), NodeKind.HOST_PART)]) == cut


@pytest.mark.parametrize(("began", "launched"), [(90, 90), (89.999, 89.999), (30, 30)])
def test_a_call_has_launched_at_its_end_unless_its_op_had_begun_by_then(began: float, launched: float) -> None:
    trace = build_trace(
        host=[Host("op", 0, 200)],
        calls=[Call("cudaMemcpyAsync", 10, 90, 1)],
        device=[Device("Memcpy HtoD (Pageable -> Device)", began, 95, 1)],
    )
    assert [n[0] for n in nodes(graph_of(trace), NodeKind.HOST_PART)] == [launched]


@pytest.mark.parametrize(("began", "setup"), [(12, 7), (25, 20)])
def test_what_a_blocking_copy_takes_to_launch_shows_where_its_stream_was_idle(began: float, setup: float) -> None:
    """A kernel is done before the first copy's call; the second copy is 15 us behind its call since another kernel ran
    until then.
    """
    trace = build_trace(
        host=[Host("op", 0, 45), Host("next", 45, 140)],
        calls=[
            Call("cudaLaunchKernel", 0, 1, 1),
            Call("cudaMemcpy", 5, 40, 2),
            Call("cudaLaunchKernel", 46, 48, 3),
            Call("cudaMemcpy", 60, 130, 4),
        ],
        device=[
            Device("k", 2, 4, 1),
            Device("Memcpy", began, 38, 2),
            Device("k", 49, 74, 3),
            Device("Memcpy", 75, 125, 4),
        ],
    )
    shown = min(setup, 75 - 60)
    assert graph_of(trace).wait_ns.sum() == 1000 * ((38 - began) + (125 - 60 - shown))


def test_an_op_that_begins_inside_its_launch_call_is_not_held_back_by_the_rest_of_it() -> None:
    """Else each wait for such an op would end later in a replay than it did."""
    host, calls, device = [], [], []
    for i in range(20):
        at = 100.0 * i
        host.append(Host("op", at, at + 90))
        calls += [
            Call("cudaLaunchKernel", at + 5, at + 22, 2 * i + 1),
            Call("cudaStreamSynchronize", at + 23, at + 60, 2 * i + 2),
        ]
        device.append(Device("k", at + 10, at + 50, 2 * i + 1))
    graph = graph_of(build_trace(host=host, calls=calls, device=device))
    assert nodes(graph, NodeKind.DEVICE_OP)[0] == (10, 40, 0)
    assert replay(graph, cost_ns(graph)).total_ns == measured_ns(graph)
