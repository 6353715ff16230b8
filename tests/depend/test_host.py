"""Host time: every ns of a thread in exactly one place. Times in the hand-made traces are us."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.depend.build import BuildOptions, find
from graphlink.depend.host import host_side
from graphlink.depend.timeline import behind_rows
from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import NOWHERE, SyncKind, Trace
from tests.build import Call, Device, Flow, Host, Sync, build_trace
from tests.depend.programs import built, linked_of, shape
from tests.simulator import Training, random_program, run, training_program, write_kineto


def graph_of(trace: Trace, **options: object) -> Graph:
    return built(link(trace, None, match_hosts(trace, None)), sync="cuda", **options).graph


def nodes(graph: Graph, kind: NodeKind) -> list[tuple[float, float, float]]:
    """(start, cost, wait) in us of the nodes of a kind."""
    at = np.flatnonzero(graph.kind == kind)
    return [
        (float(graph.start_ns[i]) / 1e3, float(graph.duration_ns[i]) / 1e3, float(graph.wait_ns[i]) / 1e3) for i in at
    ]


def edges(graph: Graph, kind: EdgeKind) -> set[tuple[int, int]]:
    target = np.repeat(np.arange(len(graph.kind)), np.diff(graph.first))
    of = graph.edge_kind == kind
    return set(zip(graph.source[of].tolist(), target[of].tolist(), strict=True))


def test_short_rests_stay_with_the_node_before_and_long_ones_are_parts() -> None:
    """Rule (c): more than 20 us of an op's own time after a child."""
    short = graph_of(build_trace(host=[Host("op", 0, 100), Host("child", 10, 80)]))
    assert nodes(short, NodeKind.HOST_OP) == [(0, 10, 0), (10, 90, 0)]
    assert nodes(short, NodeKind.HOST_PART) == []
    long = graph_of(build_trace(host=[Host("op", 0, 101), Host("child", 10, 80)]))
    assert nodes(long, NodeKind.HOST_OP) == [(0, 10, 0), (10, 70, 0)]
    assert nodes(long, NodeKind.HOST_PART) == [(80, 21, 0)]


def test_a_single_op_is_a_graph() -> None:
    graph = graph_of(build_trace(host=[Host("op", 5, 100)]))
    assert nodes(graph, NodeKind.HOST_OP) == [(0, 95, 0)]
    assert edges(graph, EdgeKind.HOST) == {(0, 1)}


def test_a_single_kernel_is_a_graph() -> None:
    graph = graph_of(build_trace(device=[Device("k", 5, 100, 0)]))
    assert graph.kind.tolist() == [NodeKind.DEVICE_OP, NodeKind.END]
    assert edges(graph, EdgeKind.SYNC) == {(0, 1)}


def test_gaps_between_ops_above_the_limit_are_nodes() -> None:
    rows = [Host("a", 0, 10), Host("b", 30, 40), Host("c", 60.5, 70)]
    assert nodes(graph_of(build_trace(host=rows)), NodeKind.HOST_GAP) == [(40, 20.5, 0)]
    assert nodes(graph_of(build_trace(host=rows), gap_ns=30_000), NodeKind.HOST_GAP) == []


@pytest.mark.parametrize(("rest", "cut"), [(5, False), (5.1, True)])
def test_a_launch_is_cut_off_when_more_than_5_us_follow(rest: float, cut: bool) -> None:
    """Rule (a)."""
    trace = build_trace(
        host=[Host("op", 0, 10 + rest), Host("next", 10 + rest, 50)],
        calls=[Call("cudaLaunchKernel", 2, 10, 1)],
        device=[Device("k", 12, 30, 1)],
        resolution_ns=1,
    )
    graph = graph_of(trace)
    assert nodes(graph, NodeKind.HOST_PART) == ([(10, rest, 0)] if cut else [])
    assert edges(graph, EdgeKind.LAUNCH) == {(0, int(np.flatnonzero(graph.kind == NodeKind.DEVICE_OP)[0]))}


def test_a_later_launch_inside_5_us_is_the_next_node_of_an_earlier_one() -> None:
    """The first is followed by 4 us until the second is cut off, so it is not cut itself."""
    trace = build_trace(
        host=[Host("op", 0, 60)],
        calls=[Call("cudaLaunchKernel", 2, 10, 1), Call("cudaLaunchKernel", 11, 14, 2)],
        device=[Device("k", 12, 30, 1), Device("k", 31, 40, 2)],
    )
    assert nodes(graph_of(trace), NodeKind.HOST_PART) == [(14, 46, 0)]


def sync_trace(*, kernel_end: float = 80, call: tuple[float, float] = (20, 90), rows: bool = True) -> Trace:
    return build_trace(
        host=[Host("op", 0, 100), Host("next", 110, 120)],
        calls=[Call("cudaLaunchKernel", 2, 10, 1), Call("cudaStreamSynchronize", *call, 2)],
        device=[Device("k", 15, kernel_end, 1)],
        syncs=[Sync(SyncKind.STREAM, *call, 2, stream=7)] if rows else (),
    )


def test_a_wait_is_in_no_duration_and_the_part_after_it_starts_when_the_device_was_done() -> None:
    """Rule (b): blocked over [20, 80), the call's last 10 us cost in the part."""
    graph = graph_of(sync_trace())
    assert nodes(graph, NodeKind.HOST_OP)[0] == (0, 10, 60)
    assert nodes(graph, NodeKind.HOST_PART) == [(10, 10, 0), (80, 30, 0)]  # the 10 us to the next op are folded in
    device = int(np.flatnonzero(graph.kind == NodeKind.DEVICE_OP)[0])
    part = int(np.flatnonzero(graph.start_ns == 80_000)[0])
    following = int(np.flatnonzero(graph.start_ns == 110_000)[0])
    assert {(device, part), (device, following)} <= edges(graph, EdgeKind.SYNC)


def waits(graph: Graph) -> list[tuple[float, int]]:
    """When the node behind each wait starts (us), and the row of the call."""
    told = graph.sync_calls
    return [(float(graph.start_ns[t]) / 1e3, int(c)) for t, c in zip(told.target, told.call, strict=True)]


def test_a_wait_is_told_by_its_call_at_the_part_after_it_or_else_at_the_next_operator() -> None:
    assert waits(graph_of(sync_trace())) == [(80, 1)]
    assert waits(graph_of(sync_trace(kernel_end=18))) == [(110, 1)]


def test_a_call_whose_device_work_was_done_before_blocks_nothing() -> None:
    graph = graph_of(sync_trace(kernel_end=18))
    assert not graph.wait_ns.any()
    assert [n for n in nodes(graph, NodeKind.HOST_PART) if n[0] >= 18] == []


def test_a_wait_that_is_not_explained_stays_in_its_op_and_is_told() -> None:
    trace = build_trace(
        host=[Host("op", 0, 200), Host("next", 210, 220)],
        calls=[
            Call("cudaLaunchKernel", 2, 10, 1),
            Call("cudaLaunchKernel", 11, 14, 3),
            Call("cudaStreamSynchronize", 20, 190, 2),
        ],
        device=[Device("k", 15, 30, 1), Device("k", 16, 31, 3, stream=9)],
    )
    made = built(link(trace, None, match_hosts(trace, None)), sync="cuda")
    assert not made.graph.wait_ns.any()
    assert any("170.0 us" in w for w in made.warnings)


def test_a_call_outside_any_op_is_a_node_and_what_follows_its_wait_is_a_gap_however_short() -> None:
    trace = build_trace(
        host=[Host("op", 0, 12), Host("next", 92, 120)],
        calls=[Call("cudaLaunchKernel", 2, 10, 1), Call("cudaStreamSynchronize", 20, 90, 2)],
        device=[Device("k", 15, 85, 1)],
        syncs=[Sync(SyncKind.STREAM, 20, 90, 2, stream=7)],
    )
    graph = graph_of(trace)
    assert nodes(graph, NodeKind.HOST_CALL) == [(20, 0, 65)]
    assert nodes(graph, NodeKind.HOST_GAP) == [(85, 7, 0)]


def test_a_launch_outside_any_op_that_runs_on_beside_its_kernel_is_time_of_the_call() -> None:
    """And no gap: only what follows its end is, where that is long."""
    trace = build_trace(
        host=[Host("next", 1518, 1700)],
        calls=[Call("cudaLaunchKernel", 0, 1400, 1), Call("cudaLaunchKernel", 1500, 1508, 2)],
        device=[Device("k", 12, 16, 1), Device("k", 1520, 1530, 2)],
    )
    graph = graph_of(trace)
    assert nodes(graph, NodeKind.HOST_CALL) == [(0, 12, 0), (12, 1388, 0), (1500, 8, 0)]
    assert nodes(graph, NodeKind.HOST_GAP) == [(1400, 100, 0), (1508, 10, 0)]
    assert nodes(graph, NodeKind.DEVICE_OP) == [(12, 4, 0), (1520, 10, 0)]


def test_a_copy_that_blocks_has_launched_before_it_waits() -> None:
    trace = build_trace(
        host=[Host("op", 0, 40), Host("next", 40, 50)],
        calls=[Call("cudaMemcpy", 5, 30, 1)],
        device=[Device("Memcpy", 12, 25, 1)],
    )
    graph = graph_of(trace)
    assert nodes(graph, NodeKind.HOST_OP)[0] == (0, 12, 13), "7 us to launch, 13 us blocked"
    assert nodes(graph, NodeKind.DEVICE_OP) == [(12, 13, 0)]


def test_what_a_blocking_copy_takes_to_launch_is_hidden_behind_other_work_and_taken_from_the_others() -> None:
    copies = [Call("cudaMemcpy", 5, 30, 1), Call("cudaMemcpy", 50, 130, 3)]
    trace = build_trace(
        host=[Host("op", 0, 40), Host("next", 40, 140)],
        calls=[*copies, Call("cudaLaunchKernel", 42, 44, 2)],
        device=[Device("Memcpy", 12, 25, 1), Device("k", 46, 100, 2), Device("Memcpy", 101, 125, 3)],
    )
    assert graph_of(trace).wait_ns.sum() == (25 - 12 + 125 - 57) * 1000
    alone = build_trace(
        host=[Host("next", 40, 140)],
        calls=[copies[1], Call("cudaLaunchKernel", 42, 44, 2)],
        device=[Device("k", 46, 100, 2), Device("Memcpy", 101, 125, 3)],
    )
    assert graph_of(alone).wait_ns.sum() == (125 - 54) * 1000, "no copy shows it: as long as the launch took"
    hidden = build_trace(
        host=[Host("next", 40, 140)],
        calls=[Call("cudaMemcpy", 50, 130, 3)],
        device=[Device("k", 30, 100, 2), Device("Memcpy", 101, 125, 3)],
    )
    assert graph_of(hidden).wait_ns.sum() == (125 - 50) * 1000, "nothing shows it"


def test_a_call_that_runs_on_beside_its_copy_has_launched_when_the_copy_began() -> None:
    """A pageable copy staged by the host: counted from the end of the call it would begin when it was in truth done."""
    trace = build_trace(
        host=[Host("op", 0, 1000), Host("next", 1000, 1100)],
        calls=[Call("cudaMemcpyAsync", 10, 990, 1)],
        device=[Device("Memcpy HtoD (Pageable -> Device)", 50, 995, 1)],
    )
    graph = graph_of(trace)
    assert nodes(graph, NodeKind.HOST_PART) == [(50, 950, 0)]
    assert nodes(graph, NodeKind.DEVICE_OP) == [(50, 945, 0)]


def handover(latency: float = 50) -> Trace:
    """The main thread hands over to an autograd thread, sleeps, and goes on when that one is done, each ``latency`` us
    later.
    """
    began, done = 100 + latency, 500 + latency
    return build_trace(
        host=[
            Host("aten::forward", 0, 100, seq_id=4),
            Host("autograd::engine::evaluate_function: XBackward0", began, done, tid=2, seq_id=4, fw_tid=1),
            Host("XBackward0", began + 10, done - 20, tid=2, seq_id=4, fw_tid=1),
            Host("aten::after", done + latency, done + latency + 100),
        ]
    )


def test_a_sleeping_thread_is_released_by_the_other_and_its_sleep_is_in_no_node() -> None:
    graph = graph_of(handover())
    assert nodes(graph, NodeKind.HOST_GAP) == [(100, 50, 0), (550, 50, 0)]  # waking up, on either thread
    forward = 0
    waking = [int(i) for i in np.flatnonzero(graph.kind == NodeKind.HOST_GAP)]
    last_of_autograd = int(graph.source[graph.first[waking[1]] : graph.first[waking[1] + 1]].max())
    thread = edges(graph, EdgeKind.THREAD)
    assert (forward, waking[0]) in thread
    assert (last_of_autograd, waking[1]) in thread
    assert graph.tid[last_of_autograd] == 2


def test_what_wakes_long_after_the_other_thread_was_not_woken_by_it() -> None:
    rows = [Host("before", 0, 100), Host("op", 2_600, 3_000, tid=2), Host("after", 5_500, 5_600)]
    graph = graph_of(build_trace(host=rows))
    assert [n[:2] for n in nodes(graph, NodeKind.HOST_GAP)] == [(0, 2_600), (100, 5_400)]
    assert not any(graph.tid[b] == 1 and graph.kind[b] != NodeKind.END for _, b in edges(graph, EdgeKind.THREAD))


def test_backward_follows_forward_by_flow_or_by_sequence_number() -> None:
    rows = list(handover().host.start_ns)
    assert rows[0] == 0
    by_number = edges(graph_of(handover()), EdgeKind.THREAD)
    flows = [Flow(1, 0, 2, 160)]
    trace = build_trace(
        host=[
            Host("aten::forward", 0, 100),
            Host("e", 150, 500, tid=2),
            Host("XBackward0", 160, 480, tid=2),
            Host("aten::after", 550, 600),
        ],
        flows=flows,
    )
    assert edges(graph_of(trace), EdgeKind.THREAD) == by_number


def test_calls_that_outlast_all_nodes_end_with_the_rank() -> None:
    """Two threads that launch, no host rows, and polling behind the last node."""
    polls = [Call("cudaEventQuery", 2000 + 300 * i, 2010 + 300 * i, 10 + i, tid=1 + i % 2) for i in range(4)]
    launches = [Call("cudaLaunchKernel", 0, 5, 1), Call("cudaLaunchKernel", 500, 505, 2, tid=2)]
    trace = build_trace(calls=[*launches, *polls], device=[Device("k", 10, 100, 1), Device("k", 510, 600, 2)])
    assert nodes(graph_of(trace), NodeKind.HOST_CALL) == [(0, 5, 0), (500, 5, 0)]


def test_calls_behind_the_rows_are_left_out_and_told() -> None:
    trace = build_trace(
        host=[Host("op", 0, 12)], calls=[Call("cudaDeviceSynchronize", 20, 90, 2)], device=[Device("k", 5, 9, 0)]
    )
    made = built(link(trace, None, match_hosts(trace, None)), sync="cuda")
    assert not (made.graph.kind == NodeKind.HOST_CALL).any()
    assert any("profiler's own" in w for w in made.warnings)


STOPS = Call("cudaDeviceSynchronize", 120, 200, 9)


@pytest.mark.parametrize(
    ("more", "left_out"),
    [
        ({}, True),
        ({"device": [Device("k", 15, 195, 1)]}, True),  # device work goes on
        ({"host": [Host("on another thread", 5, 300, tid=2, annotation=True)]}, True),
        ({"calls": [Call("cudaEventQuery", 150, 151, 8, tid=3)]}, True),  # a watchdog
        ({"host": [Host("next", 210, 220)]}, False),
        ({"host": [Host("around", 110, 230, annotation=True)]}, False),
        ({"calls": [Call("cudaEventRecord", 205, 206, 8)], "host": [Host("on another thread", 5, 300, tid=2)]}, False),
        (
            {
                "calls": [Call("cudaLaunchKernel", 130, 140, 8, tid=2)],
                "host": [Host("on another thread", 5, 300, tid=2)],
            },
            False,
        ),
    ],
)
def test_the_last_synchronisation_is_the_profilers_whatever_goes_on_elsewhere(
    more: dict[str, Any], left_out: bool
) -> None:
    trace = build_trace(
        host=[Host("op", 0, 100), *more.get("host", [])],
        calls=[Call("cudaLaunchKernel", 2, 10, 1), STOPS, *more.get("calls", [])],
        device=more.get("device", [Device("k", 15, 85, 1)])
        + [Device("k", 215, 218, 8)] * (len(more.get("calls", [])) and not left_out),
    )
    linked = link(trace, None, match_hosts(trace, None))
    own = trace.strings.index("cudaDeviceSynchronize")
    assert behind_rows(linked)[linked.trace.calls.name == own].tolist() == [left_out]
    nsys = replace(linked, match=replace(linked.match, method="nsys"))  # it does not synchronise
    late = trace.device.end_ns.max() <= 120_000 and trace.host.end_ns.max() <= 120_000
    assert behind_rows(nsys)[linked.trace.calls.name == own].tolist() == [late]


@given(seed=st.integers(0, 10_000), gap_ns=st.sampled_from([0, 20_000, 500_000]), cuda_sync=st.booleans())
def test_every_ns_of_a_thread_is_in_one_place(
    tmp_path_factory: pytest.TempPathFactory, seed: int, gap_ns: int, cuda_sync: bool
) -> None:
    """Cost + waits are the stretches of the nodes, to the ns; these lie one behind the other, and between them threads
    are asleep.
    """
    path = tmp_path_factory.mktemp("identity") / "kineto.json"
    write_kineto(
        run(random_program(seed, shape(Random(seed)))), path, dialect=["2023", "2024"][seed % 2], cuda_sync=cuda_sync
    )
    linked = linked_of(path)
    found = find(linked, BuildOptions(sync="cuda"))
    host = host_side(linked, communication(linked), found.cuda, found.dependencies, gap_ns)
    el = host.elements
    nodes_ = host.nodes
    for tid in np.unique(el.tid).tolist():
        of = nodes_.tid == tid
        start, until = nodes_.start_ns[of], nodes_.until_ns[of]
        assert (until[:-1] <= start[1:]).all()
        assert (start[0] >= host.start_ns, until[-1]) == (True, el.end_ns[el.tid == tid].max())
        sleeping = start[1:] != until[:-1]
        assert (nodes_.sleep[of][1:][sleeping] != NOWHERE).all(), "time that is in no node is a sleep"
    assert int(nodes_.duration_ns.sum() + nodes_.wait_ns.sum()) == int((nodes_.until_ns - nodes_.start_ns).sum())
    assert (nodes_.duration_ns >= 0).all()
    assert (nodes_.self_ns >= 0).all()


def test_own_time_adds_up_over_an_op_and_its_parts(tmp_path: Path) -> None:
    """The sum of ``self_ns`` over an op and its parts is its time less its children's and its waits."""
    path = tmp_path / "kineto.json"
    write_kineto(run(training_program(3, Training(steps=2))), path, dialect="2024")
    linked = linked_of(path)
    graph = built(linked, sync="cuda").graph
    rows = linked.trace.host
    own = rows.end_ns - rows.start_ns
    nested = linked.parent >= 0
    np.subtract.at(own, linked.parent[nested], (rows.end_ns - rows.start_ns)[nested])
    part = np.isin(graph.kind, [NodeKind.HOST_OP, NodeKind.HOST_PART])
    got = np.zeros(len(own), np.int64)
    np.add.at(got, graph.row[part], graph.self_ns[part] + graph.wait_ns[part])
    slept = rows.annotation  # a thread sleeps inside annotations only
    assert (got[~slept] == own[~slept]).all()
    assert (got[slept] <= own[slept]).all()


@pytest.mark.parametrize(("begin", "end"), [(10, 20.4), (20, 20.4)])
@pytest.mark.parametrize("call", ["cudaLaunchKernel", "cudaStreamSynchronize"])
def test_a_call_that_ends_later_than_the_last_op_of_its_thread_adds_no_time(
    begin: float, end: float, call: str
) -> None:
    """Rounding lets a call overhang its op: behind its last mark a thread is over."""
    trace = build_trace(
        host=[Host("aten::a", 0, 5), Host("aten::mm", begin, end)],
        calls=[Call("cudaLaunchKernel", 1, 2, 1), Call(call, 20, 21, 2)],
        device=[Device("k", 3, 20.8, 1), *([Device("l", 26, 38, 2)] if call == "cudaLaunchKernel" else [])],
        syncs=[] if call == "cudaLaunchKernel" else [Sync(SyncKind.STREAM, 20, 21, 2, stream=7)],
    )
    graph = graph_of(trace)
    host = np.isin(graph.kind, (NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_GAP))
    assert int((graph.duration_ns + graph.wait_ns)[host].sum()) == round(end * 1000)


def test_an_op_of_no_length_may_launch() -> None:
    trace = build_trace(
        host=[Host("aten::a", 0, 5), Host("aten::mm", 20, 20)],
        calls=[Call("cudaLaunchKernel", 20, 26, 1)],
        device=[Device("k", 26, 38, 1)],
    )
    graph = graph_of(trace)
    assert graph.end_ns.max() == 38_000
    assert np.count_nonzero(graph.edge_kind == EdgeKind.LAUNCH) == 1
