"""Waits for gloo's receives and collectives. Times are us."""

from __future__ import annotations

import numpy as np
import pytest

from graphlink.depend.build import Built
from graphlink.graph_model import EdgeKind, NodeKind
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import NOWHERE, FoundBy, SyncKind
from tests.build import Call, Device, Host, Node, Sync, build_et, build_trace
from tests.depend.programs import built
from tests.depend.test_sleep import woken


def made(*rows: Host) -> Built:
    trace = build_trace(rows)
    return built(link(trace, None, match_hosts(trace, None)))


def waits(build: Built) -> list[tuple[float, float]]:
    """(start of what goes on, wait before it) of each wait, by its ``sync`` edge and ``wait_ns``."""
    graph = build.graph
    out = []
    for node in range(len(graph.kind)):
        edges = slice(int(graph.first[node]), int(graph.first[node + 1]))
        if (graph.edge_kind[edges] == EdgeKind.SYNC).any() and graph.kind[node] != NodeKind.END:
            assert graph.found_by[edges][graph.edge_kind[edges] == EdgeKind.SYNC].tolist() == [FoundBy.INFERRED]
            out.append(float(graph.start_ns[node]) / 1e3)
    waited = [float(ns) / 1e3 for ns in graph.wait_ns.tolist() if ns]
    assert len(out) == len(waited)
    return list(zip(out, waited, strict=True))


def gloo(kind: str, start: float, end: float, tid: int = 1) -> Host:
    return Host(f"gloo:{kind}", start, end, annotation=True, tid=tid)


@pytest.mark.parametrize("follows", [0, 50, 3_000])
def test_the_row_of_a_receive_ends_as_the_call_returns_that_waited(follows: float) -> None:
    build = made(Host("c10d::recv_", 0, 10), gloo("recv", 5, 100), Host("after", 100 + follows, 9_000))
    assert waits(build) == [(100, 90)]
    assert [int(k) for k, t in zip(build.graph.kind, build.graph.start_ns, strict=True) if t == 100_000][:1] == [
        NodeKind.HOST_GAP
    ]
    assert not build.untold.comms


@pytest.mark.parametrize(("follows", "waited"), [(0, True), (50, True), (50.001, False)])
def test_the_next_row_begins_at_most_50_us_after_the_row_of_a_collective_ended(follows: float, waited: bool) -> None:
    """What is no wait is a gap that nothing explains, up to where the row ended."""
    build = made(Host("a", 0, 10), gloo("all_reduce", 5, 200), Host("after", 200 + follows, 9_000))
    graph = build.graph
    assert waits(build) == ([(200, 190)] if waited else [])
    silent = build.pending
    assert (silent.from_ns - graph.epoch_ns).tolist() == ([] if waited else [10_000])
    assert (silent.until_ns - graph.epoch_ns).tolist() == ([] if waited else [200_000])
    assert [w for w in build.warnings if "pending" in w] == (
        []
        if waited
        else [
            "1 times, 0.190 ms in all, a thread was silent between ops while a host-side receive or collective was "
            "pending, and nothing shows whether it waited: that time is unexplained (graphlink.capture records waits in "
            "Python, as ranges graphlink::wait)"
        ]
    )


def test_silence_that_may_be_a_wait_is_no_time_of_the_range_around() -> None:
    """Python of a step is in its node; what nothing explains is a gap of its own, and what follows is Python again."""
    build = made(
        Host("ProfilerStep#1", 0, 1000, annotation=True),
        Host("a", 10, 20),
        gloo("all_reduce", 15, 300),
        Host("after", 600, 900),
    )
    graph = build.graph
    host = np.isin(graph.kind, (NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_GAP))
    columns = (graph.kind[host], graph.start_ns[host] / 1e3, graph.duration_ns[host] / 1e3)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [
        (NodeKind.HOST_OP, 0, 10),
        (NodeKind.HOST_OP, 10, 10),
        (NodeKind.HOST_GAP, 20, 280),
        (NodeKind.HOST_PART, 300, 300),
        (NodeKind.HOST_OP, 600, 300),
        (NodeKind.HOST_PART, 900, 100),
    ]
    assert build.untold.comms_ns == 280_000


def test_what_nobody_is_known_to_have_asked_for_may_be_awaited_by_any_thread() -> None:
    build = made(Host("a", 0, 20), gloo("all_reduce", 10, 700, tid=8), Host("after", 710, 3000))
    assert waits(build) == []
    assert (build.pending.from_ns - build.graph.epoch_ns).tolist() == [20_000]


def test_an_op_of_aten_in_which_a_row_ended_has_not_waited() -> None:
    build = made(Host("c10d::recv_", 0, 10), gloo("recv", 5, 100), Host("aten::mm", 12, 110), Host("after", 120, 300))
    assert waits(build) == []
    assert not build.untold.comms


def test_collectives_are_waited_for_and_sends_are_not() -> None:
    assert waits(made(Host("a", 0, 10), gloo("all_reduce", 5, 100), Host("after", 110, 300))) == [(100, 90)]
    sent = made(Host("a", 0, 10), gloo("send", 5, 100), Host("after", 110, 300))
    assert (waits(sent), sent.graph.wait_ns.sum()) == ([], 0)
    assert sent.graph.duration_ns[sent.graph.kind == NodeKind.HOST_COMM].tolist() == [0]
    late = made(Host("a", 0, 10), gloo("send", 5, 100), Host("after", 200, 300))
    assert not any("pending" in w for w in late.warnings)


def test_a_send_whose_thread_was_held_left_when_it_usually_does() -> None:
    """Three sends begin their rows 20 to 30 us after their ops, the fourth 5 ms: it counts from 25 us after its op."""
    row_us = (20, 30, 20, 5000)
    rows = [Host("c10d::send", 10_000 * k, 10_000 * k + us + 10) for k, us in enumerate(row_us)]
    rows += [gloo("send", 10_000 * k + us, 10_000 * k + 9_000) for k, us in enumerate(row_us)]
    graph = made(*sorted(rows, key=lambda row: row.start), Host("after", 40_000, 40_010)).graph
    starts = (graph.start_ns[graph.kind == NodeKind.HOST_COMM] / 1e3).tolist()
    assert starts == [20, 10_030, 20_020, 30_025]
    part = np.flatnonzero((graph.kind == NodeKind.HOST_PART) & (graph.start_ns == 30_025_000))
    assert graph.duration_ns[part].tolist() == [4_985_000]


def test_an_op_that_asks_for_a_collective_late_has_not_waited_before() -> None:
    """Its thread may have lost its core; a wait from its begin would let the second collective begin as early."""
    build = made(
        Host("c10d::allreduce_", 10, 40, rf_id=2),
        Host("c10d::allreduce_", 50, 710, rf_id=4),
        gloo("all_reduce", 30, 700, tid=8)._replace(rf_id=3),
        gloo("all_reduce", 600, 900, tid=9)._replace(rf_id=5),
        Host("after", 910, 1900, rf_id=6),
    )
    assert waits(build) == [(690, 100), (890, 190)]  # from the first row on


def test_of_several_that_end_in_one_stretch_the_last_counts() -> None:
    build = made(Host("a", 0, 10), gloo("recv", 5, 70), gloo("recv", 6, 100), Host("after", 110, 300))
    assert waits(build) == [(100, 90)]
    assert not any("pending" in w for w in build.warnings), "the first one ended in the wait for the second"


def test_a_wait_begins_with_the_receive_or_where_something_nested_ended() -> None:
    assert waits(made(Host("outer", 0, 400), gloo("recv", 30, 100), Host("after", 110, 300))) == [(100, 70)]
    assert waits(made(Host("outer", 0, 400), Host("a", 10, 60), gloo("recv", 30, 100), Host("after", 110, 300))) == [
        (100, 40)
    ]
    assert waits(made(Host("outer", 0, 400), Host("a", 40, 60), gloo("recv", 30, 100), Host("after", 110, 300))) == [
        (100, 40)
    ]


def test_the_op_in_which_nothing_nested_ran_has_waited() -> None:
    """The receive ends in an op, in the one around it, and between ops."""
    inside = made(Host("wait", 0, 120), gloo("recv", 5, 100))
    around = made(Host("outer", 0, 400), Host("c10d::recv_", 10, 20), gloo("recv", 15, 100), Host("after", 110, 120))
    between = made(Host("c10d::recv_", 0, 20), gloo("recv", 15, 100), Host("after", 110, 120))
    for build, name, kind in (
        (inside, "wait", NodeKind.HOST_PART),
        (around, "outer", NodeKind.HOST_PART),
        (between, "", NodeKind.HOST_GAP),
    ):
        graph = build.graph
        (behind,) = [i for i, start in enumerate(graph.start_ns.tolist()) if start == 100_000]
        assert graph.kind[behind] == kind
        assert (graph.caller[behind] == NOWHERE) == (name == "")


def test_a_wait_between_ops_is_at_the_node_that_carries_the_time() -> None:
    """The row begins 40 us after the last op, and that is a gap."""
    graph = made(Host("a", 0, 20), gloo("recv", 60, 100), Host("after", 110, 300)).graph
    host = np.isin(graph.kind, (NodeKind.HOST_OP, NodeKind.HOST_GAP))
    table = zip(
        graph.start_ns[host].tolist(), graph.duration_ns[host].tolist(), graph.wait_ns[host].tolist(), strict=True
    )
    assert [tuple(v / 1e3 for v in row) for row in table] == [
        (0, 20, 0),
        (20, 40, 0),
        (60, 0, 40),
        (100, 10, 0),
        (110, 190, 0),
    ]


def test_a_wait_inside_a_wait_counts_once() -> None:
    """A call waits for a kernel while a receive is pending that is waited for in all: blocked over [5, 100), with a cut
    at 45.
    """
    trace = build_trace(
        host=[Host("wait", 0, 130), gloo("recv", 5, 100), Host("after", 140, 150)],
        calls=[Call("cudaLaunchKernel", 1, 2, 1), Call("cudaStreamSynchronize", 20, 50, 2)],
        device=[Device("k", 3, 45, 1)],
        syncs=[Sync(SyncKind.STREAM, 20, 50, 2, stream=7)],
    )
    graph = built(link(trace, None, match_hosts(trace, None)), sync="cuda").graph
    host = np.isin(graph.kind, (NodeKind.HOST_OP, NodeKind.HOST_PART))
    spans = zip(graph.start_ns[host].tolist(), graph.duration_ns[host].tolist(), strict=True)
    assert [(start / 1e3, ns / 1e3) for start, ns in spans] == [(0, 5), (5, 0), (45, 0), (100, 40), (140, 10)]
    assert graph.wait_ns.sum() == 95_000


def test_what_ends_behind_the_last_row_of_its_thread_or_before_the_first_was_not_waited_for() -> None:
    alone = made(Host("c10d::recv_", 0, 10), gloo("recv", 5, 100))
    last = made(Host("c10d::recv_", 0, 10), gloo("recv", 5, 100), Host("elsewhere", 105, 300, tid=2))
    first = made(gloo("recv", 0, 20), Host("a", 30, 40))
    for build in (alone, last, first):
        assert waits(build) == []
        assert not any("pending" in w for w in build.warnings)


def collectives(follows: float, rf_ids: tuple[int, int] = (3, 5)) -> Built:
    """Thread 1 asks for a large and a small all-reduce; gloo's threads take the small one up first. The main thread
    then waits.
    """
    return made(
        Host("step", 0, 2000, annotation=True, rf_id=1),
        Host("c10d::allreduce_", 10, 40, rf_id=2),
        Host("c10d::allreduce_", 50, 80, rf_id=4),
        gloo("all_reduce", 100, 700, tid=8)._replace(rf_id=rf_ids[0]),
        gloo("all_reduce", 60, 500, tid=9)._replace(rf_id=rf_ids[1]),
        Host("after", 700 + follows, 1900, rf_id=6),
    )


def comms(build: Built) -> list[tuple[float, float, float, float]]:
    """(start, end, duration, start delay) of each COMM node, by id."""
    graph = build.graph
    nodes = np.flatnonzero(graph.kind == NodeKind.HOST_COMM)
    table = np.stack(
        [graph.start_ns[nodes], graph.end_ns[nodes], graph.duration_ns[nodes], graph.start_delay_ns[nodes]], axis=1
    )
    return [tuple(row) for row in (table / 1e3).tolist()]


def test_an_op_releases_what_a_thread_of_gloos_runs_for_it() -> None:
    """Rows stand where they were recorded, in the order of asking: the first one counts from just before the second."""
    build = collectives(10)
    graph = build.graph
    assert comms(build) == [(59.999, 700, 640.001, 19.999), (60, 500, 440, 0)]
    for row, opens in zip(np.flatnonzero(graph.kind == NodeKind.HOST_ASYNC).tolist(), (10, 50), strict=True):
        edges = slice(int(graph.first[row]), int(graph.first[row + 1]))
        assert graph.edge_kind[edges].tolist() == [EdgeKind.THREAD]
        assert graph.start_ns[graph.source[edges]].tolist() == [opens * 1000]


def test_what_one_thread_of_gloos_runs_comes_one_after_the_other() -> None:
    """The second waits for the first until 700, and 8 us for the thread; the third was asked for when the thread was
    free, which it would not be if it was asked for earlier.
    """
    build = made(
        Host("before", 0, 5, rf_id=1),
        Host("c10d::allreduce_", 10, 40, rf_id=2),
        Host("c10d::allreduce_", 50, 80, rf_id=4),
        gloo("all_reduce", 45, 700, tid=8)._replace(rf_id=3),
        gloo("all_reduce", 708, 900, tid=8)._replace(rf_id=5),
        Host("c10d::allreduce_", 1000, 1010, rf_id=6),
        gloo("all_reduce", 1030, 1100, tid=8)._replace(rf_id=7),
        Host("after", 1110, 1900, rf_id=8),
    )
    assert comms(build) == [(45, 700, 655, 5), (708, 900, 192, 8), (1030, 1100, 70, 20)]
    graph = build.graph
    queued = np.flatnonzero(graph.edge_kind == EdgeKind.COLLECTIVE)
    target = np.repeat(np.arange(len(graph.kind)), np.diff(graph.first))[queued]
    assert (graph.start_ns[graph.source[queued]].tolist(), graph.start_ns[target].tolist()) == (
        [45_000, 708_000],
        [708_000, 1_030_000],
    )


def test_a_thread_of_gloos_that_copies_tensors_communicates_in_its_row_and_sleeps_between_rows() -> None:
    """It copies in rows of all-gathers, not in that of the barrier, for which the main thread waits itself."""

    def gathered(at: float, rf_id: int) -> list[Host]:
        return [
            Host("c10d::allgather_", at, at + 600, rf_id=rf_id),
            gloo("all_gather", at + 20, at + 960, tid=8)._replace(rf_id=rf_id + 1),
            Host("aten::view", at + 30, at + 50, tid=8, rf_id=rf_id + 2),
            Host("aten::copy_", at + 900, at + 950, tid=8, rf_id=rf_id + 3),
            Host("after", at + 960, at + 1000, rf_id=rf_id + 4),
        ]

    barrier = [
        Host("c10d::barrier", 1010, 1020, rf_id=10),
        gloo("barrier", 1015, 1500, tid=8)._replace(rf_id=11),
        Host("after", 1510, 1600, rf_id=12),
    ]
    build = made(*gathered(0, 1), *barrier, *gathered(5_000, 20), Host("end", 7_000, 7_010, rf_id=30))
    graph = build.graph
    assert waits(build) == [(900, 850), (1500, 480), (5900, 850)]
    assert [end for _, end, *_ in comms(build)] == [900, 1500, 5900]
    gap = (graph.kind == NodeKind.HOST_GAP) & (graph.tid == 8)
    assert graph.duration_ns[gap].max() == 10_000, "the thread sleeps until the next collective is asked for"
    asked = np.flatnonzero(graph.kind == NodeKind.HOST_ASYNC)[2]
    edges = slice(int(graph.first[asked]), int(graph.first[asked + 1]))
    assert graph.start_ns[graph.source[edges][graph.edge_kind[edges] == EdgeKind.THREAD]].tolist() == [5_000_000]


def test_what_gloos_thread_divides_after_a_reduction_was_awaited_since_its_row_began() -> None:
    build = made(
        *(
            row
            for at in (0, 2_000)
            for row in (
                Host("c10d::_reduce_scatter_base_", at + 10, at + 800, rf_id=at + 1),
                gloo("all_reduce", at + 100, at + 960, tid=8)._replace(rf_id=at + 2),
                Host("aten::div_", at + 900, at + 950, tid=8, rf_id=at + 3),
                Host("after", at + 970, at + 1_000, rf_id=at + 4),
            )
        )
    )
    assert waits(build) == [(2_890, 800)], "times of the graph"
    assert comms(build)[1] == (2_090, 2_890, 800, 0)


@pytest.mark.parametrize("follows", [10, 1000])
def test_the_thread_that_asked_waits_and_may_take_long_to_wake(follows: float) -> None:
    assert waits(collectives(follows)) == [(700, 620)]


@pytest.mark.parametrize("follows", [10, 1000])
def test_who_asked_for_a_collective_that_has_ended_was_not_woken_by_who_happened_to_run(follows: float) -> None:
    """A third thread runs until shortly before, and sleeps then, as one that hands over does."""
    build = made(
        Host("c10d::allreduce_", 0, 20, rf_id=2),
        gloo("all_reduce", 10, 700, tid=8)._replace(rf_id=3),
        Host("save", 300, 690, tid=2, rf_id=4),
        Host("after", 700 + follows, 3000, rf_id=5),
        Host("save", 2500, 3000, tid=2, rf_id=6),
    )
    assert waits(build) == [(700, 680)]
    assert not woken(build.graph)


def test_who_was_handed_a_tensor_after_a_collective_had_ended_had_slept_until_then() -> None:
    """The time of a thread that sleeps is in no wait as well."""
    trace = build_trace([
        Host("c10d::allreduce_", 0, 20, rf_id=2),
        gloo("all_reduce", 10, 600, tid=8)._replace(rf_id=3),
        Host("div", 640, 680, tid=2, rf_id=4),
        Host("sum", 690, 3000, rf_id=5),
    ])  # fmt: skip
    et = build_et([Node("c10d::allreduce_", 2), Node("div", 4, tid=2), Node("sum", 5, made_by=1004)])
    build = built(link(trace, et, match_hosts(trace, et)))
    assert waits(build) == []
    assert woken(build.graph) == [(680, 640, 2)]


def test_who_was_woken_more_than_2_ms_later_did_something_else() -> None:
    late = made(
        Host("c10d::allreduce_", 0, 20, rf_id=2),
        gloo("all_reduce", 10, 700, tid=8)._replace(rf_id=3),
        Host("after", 2701, 3000, rf_id=4),
    )
    assert waits(late) == []
    assert any("pending" in w for w in late.warnings)


def test_without_record_function_ids_the_next_op_of_the_kind_with_the_inputs_asked() -> None:
    """Gloo's threads take up the small one first, and what was asked for before the recording has no op."""
    small, large = "[[8]]", "[[64]]"
    build = made(
        gloo("all_reduce", 1, 5, tid=8)._replace(shapes=small),
        Host("c10d::allreduce_", 10, 40, shapes="[[[64]], [], []]"),
        Host("c10d::allreduce_", 50, 80, shapes="[[[8]], [], []]"),
        Host("c10d::broadcast_", 82, 90, shapes="[[[8]], [], []]"),
        gloo("all_reduce", 100, 700, tid=8)._replace(shapes=large),
        gloo("all_reduce", 60, 500, tid=9)._replace(shapes=small),
        Host("after", 710, 1900),
    )
    assert waits(build) == [(699, 610)]
    assert comms(build)[1:] == [(58.999, 699, 640.001, 19.999), (59, 499, 440, 0)]


def test_where_no_op_has_sizes_the_next_of_the_kind_asked() -> None:
    """As in PyTorch 2.1, which records none of a list of tensors."""
    unsized, small, large = "[[], [], []]", "[[8]]", "[[64]]"
    build = made(
        Host("c10d::allreduce_", 10, 40, shapes=unsized),
        Host("c10d::allreduce_", 50, 80, shapes=unsized),
        gloo("all_reduce", 60, 500, tid=9)._replace(shapes=large),
        gloo("all_reduce", 100, 700, tid=8)._replace(shapes=small),
        Host("after", 710, 1900),
    )
    assert waits(build) == [(690, 620)]


LATE = (
    Host("ProfilerStep#1", 0, 9_000, annotation=True, rf_id=1),
    Host("c10d::allreduce_", 10, 40, rf_id=2),
    Host("c10d::allreduce_", 50, 80, rf_id=4),
    gloo("all_reduce", 30, 2_500, tid=8)._replace(rf_id=3),
    gloo("all_reduce", 60, 3_500, tid=9)._replace(rf_id=5),
)
USES = (Host("use", 2_000, 2_100, rf_id=6), Host("use", 3_100, 3_200, rf_id=7))


def test_a_wait_is_over_when_who_waited_goes_on_whatever_the_row_says() -> None:
    """Both rows end later than the thread went on: the waits are those in the order in which they were asked for."""
    build = made(LATE[0]._replace(end=4_110), *LATE[1:], *USES, Host("end", 4_000, 4_100))
    assert [end for _, end, *_ in comms(build)] == [2000, 3100]
    assert build.graph.wait_ns.sum() == (1920 + 1000) * 1000
    assert not build.untold.comms


def test_silence_is_a_wait_if_it_is_longer_than_usual() -> None:
    """Python takes 300 us between ops with nothing pending: 1,100 us with a row that ends later may be Python."""
    usual = [Host("op", 10_000 + 310 * k, 10_010 + 310 * k, rf_id=20 + k) for k in range(9)]
    build = made(*LATE, Host("use", 1_180, 1_200, rf_id=6), *usual)
    assert waits(build) == []
    assert build.untold.comms_ns == 1_100_000 + (3_500 - 1_200) * 1000


@pytest.mark.parametrize("divided", [3, 2])
def test_ops_of_which_one_follows_each_collective_go_on_with_it_if_it_is_so_for_all(divided: int) -> None:
    """Silence is as long as between other ops, in the last of them the row had ended before: all the same."""
    rows = []
    for k in range(3):
        begun = 4_000 * k
        rows += [
            Host("c10d::allreduce_", begun, begun + 20, rf_id=10 * k + 2),
            gloo("all_reduce", begun + 10, begun + (700, 700, 200)[k], tid=8)._replace(rf_id=10 * k + 3),
            Host("aten::div_" if k < divided else "aten::mul_", begun + 400, begun + 420, rf_id=10 * k + 4),
            Host("aten::mm", begun + 421, begun + 800, rf_id=10 * k + 5),
            *(Host("aten::mm", begun + 1000 * n, begun + 1000 * n + 600, rf_id=10 * k + 5 + n) for n in range(1, 4)),
        ]
    assert waits(made(*rows)) == [(400, 380), (4400, 380)] * (divided == 3) + [(8200, 180)]


def test_ddp_has_waited_before_it_goes_on_with_a_bucket() -> None:
    """Its rows end at any time later; where a recording tells such waits, other silence is none."""

    def bucket(at: float) -> list[Host]:
        copy = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
        return [
            Host("aten::as_strided", at, at + 5, rf_id=6),
            Host("aten::as_strided", at + 6, at + 9, rf_id=7),
            Host(copy, at + 10, at + 20, rf_id=8),
        ]

    rows = [row._replace(end=row.end + 8_000) if row.name == "gloo:all_reduce" else row for row in LATE]
    build = made(*rows, Host("python", 900, 910), *bucket(2_000), *bucket(3_100), Host("later", 8_000, 15_000))
    assert [end for _, end, *_ in comms(build)] == [2000, 3100]
    assert build.graph.wait_ns.sum() == (1090 + 1080) * 1000
    assert build.untold.comms_ns == 820_000, "before python"


def test_ddp_may_take_long_to_go_on_with_a_bucket_whose_row_had_ended() -> None:
    """It took 172 us to wake up: that wait is for the first collective, not for the one whose row goes on."""
    copy = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
    buckets = [
        row
        for at, rf_id in ((2_000, 6), (3_100, 8))
        for row in (Host("aten::as_strided", at, at + 5, rf_id=rf_id), Host(copy, at + 10, at + 20, rf_id=rf_id + 1))
    ]
    ends = iter((1_828, 3_500))
    rows = [row._replace(end=next(ends)) if row.name == "gloo:all_reduce" else row for row in LATE]
    build = made(*rows, *buckets)
    assert [end for _, end, *_ in comms(build)] == [1_828, 3_100]
    assert not build.untold.comms


@pytest.mark.parametrize(("python", "waited"), [(880, 0), (700, 195)])
def test_where_ddp_tells_waits_a_row_that_ends_in_short_silence_does_so_by_chance(python: float, waited: float) -> None:
    """The first bucket's row ends 5 us before an op, in silence that begins at ``python``: that is no wait of 15 us."""
    copy = Host("torch.distributed.ddp.reducer::copy_bucket_to_grad", 3_110, 3_120, rf_id=8)
    view = Host("aten::as_strided", 3_100, 3_105, rf_id=7)
    first, second = (
        gloo("all_reduce", 30 * k, end, tid=7 + k)._replace(rf_id=1 + 2 * k) for k, end in ((1, 895), (2, 3_900))
    )
    before = Host("aten::mul", 85, python, rf_id=5)
    build = made(*LATE[:3], first, second, before, Host("aten::mul", 900, 905, rf_id=6), view, copy)
    assert build.graph.wait_ns.sum() == (waited + 3_100 - 905) * 1000


def test_who_is_late_to_end_a_row_is_late_to_begin_the_next() -> None:
    """The wait ends at 2,000; the thread ends that row at 2,500 and takes up the next one 8 us later."""
    after = gloo("all_reduce", 2_508, 3_500, tid=8)._replace(rf_id=5)
    build = made(*LATE[:4], after, *USES)
    assert [(start, end, delay) for start, end, _, delay in comms(build)] == [(30, 2_000, 0), (2_508, 3_100, 508)]


@pytest.mark.parametrize(("places", "known"), [((2_000, 2_030), 2), ((2_000,), 0)])
def test_a_wait_that_ddp_tells_depends_on_its_collective_though_it_did_not_block(
    places: tuple[int, ...], known: int
) -> None:
    """Two were asked for and ended long before; where as many buckets are copied, they are those, in turn."""
    copy = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
    rows = [row._replace(end=500) if row.name == "gloo:all_reduce" else row for row in LATE]
    copies = [Host(n, at + d, at + d + 9, rf_id=8) for at in places for n, d in (("aten::as_strided", 0), (copy, 10))]
    graph = made(*rows, Host("aten::mm", 81, 1_999, rf_id=7), *copies).graph
    target = np.repeat(np.arange(len(graph.kind)), np.diff(graph.first))
    waits = (graph.edge_kind == EdgeKind.SYNC) & (graph.kind[target] != NodeKind.END)
    assert graph.start_ns[target[waits]].tolist() == [1000 * at for at in places][:known]
    assert graph.end_ns[graph.source[waits]].tolist() == [500_000] * known and not graph.wait_ns.any()


def test_the_rank_ends_where_its_last_collective_counts_as_ended() -> None:
    rows = [row._replace(end=9_500) if row.rf_id == 5 else row for row in LATE]
    build = made(*rows, USES[0], Host("use", 7_600, 7_700, rf_id=7))
    assert [end for _, end, *_ in comms(build)] == [2000, 7600]
    assert build.graph.end_ns.max() == 9_000_000


def test_a_recorded_wait_is_one_however_late_the_next_row_begins() -> None:
    """The range ends when Python has gone on, here 5 ms after the receive."""
    wait = Host("graphlink::wait", 20, 5100, annotation=True)
    assert waits(made(Host("c10d::recv_", 0, 10), gloo("recv", 5, 100), wait, Host("after", 5200, 5300))) == [(100, 80)]
    done = made(Host("c10d::recv_", 0, 10), gloo("recv", 5, 15), wait._replace(start=200), Host("after", 5200, 5300))
    assert waits(done) == [], "the receive had ended before the wait began"


@pytest.mark.parametrize(
    ("came", "expected"),
    [
        (3_060, [(3_010, 2_980)]),
        (5_000, [(5_000, 1_970)]),  # it came later: then the wait for the send was none for it
    ],
)
def test_a_recorded_wait_for_a_send_beside_a_receive_is_one_for_the_receive_that_had_come_then(
    came: float, expected: list[tuple[float, float]]
) -> None:
    """A pipeline that sends and receives waits for the send first: the other side takes it when it sends itself."""
    build = made(
        Host("c10d::send", 0, 10),
        gloo("send", 5, 3_000),
        Host("c10d::recv_", 12, 20),
        gloo("recv", 15, came),
        Host("graphlink::wait", 30, 3_010, annotation=True),
        Host("graphlink::wait", 3_030, came + 5, annotation=True),
        Host("after", came + 20, 9_000),
    )
    assert waits(build) == expected
    assert any("pending" in text for text in build.warnings) == (came == 5_000)


@pytest.mark.parametrize(("lag", "waited"), [(20, False), (500, True)])
def test_how_long_threads_take_to_go_on_shows_in_the_waits_that_are_recorded(lag: float, waited: bool) -> None:
    """Where many threads share few cores, it is more than 100 us: so it is where PyTorch waits in C++, too."""
    rows = [Host("step", 0, 1, rf_id=1)]
    for k in range(4):
        at, rf = 10_000 * k, 3 * k + 2
        rows.append(Host("c10d::allreduce_", at, at + 20, rf_id=rf))
        rows.append(gloo("all_reduce", at + 10, at + 2_000, tid=8)._replace(rf_id=rf + 1))
        if k < 3:
            rows.append(Host("graphlink::wait", at + 30, at + 2_000 + lag, annotation=True, rf_id=rf + 2))
    made_ = made(*rows, Host("after", 32_450, 33_000, rf_id=90))
    assert [at for at, _ in waits(made_)] == [2_000, 12_000, 22_000, *([32_000] * waited)]


@pytest.mark.parametrize(
    ("late", "times", "pending", "waited"),
    [(150, 10, 0, 10), (900, 10, 0, 0), (150, 10, 1, 0), (3_000, 10, 0, 0), (150, 1, 0, 0)],
)
def test_beside_what_ddp_tells_who_goes_on_soon_after_all_that_was_pending_has_waited(
    late: int, times: int, pending: int, waited: int
) -> None:
    """``late`` us after 3 ms of silence, ten times: 150 us are soon, 900 are not; once it may be chance, and what is
    pending may be awaited.
    """
    rows: list[Host] = []
    for k in range(10):
        at, rf_id = 10_000 * k, 10 * k
        ends = (at + 3_000, at + 9_000 if pending else at + 2_000)
        rows += [
            row
            for n, end in enumerate(ends)
            for row in (
                Host("c10d::allreduce_", at + 20 * n, at + 20 * n + 10, rf_id=rf_id + 2 * n),
                gloo("all_reduce", at + 20 * n + 5, end, tid=7 + n)._replace(rf_id=rf_id + 2 * n + 1),
            )
        ]
        rows.append(Host("aten::mm", at + 3_000 + (late if k < times else 900), at + 9_500, rf_id=rf_id + 5))
    copy = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
    ddp = [
        Host("c10d::allreduce_", 100_000, 100_010, rf_id=200),
        gloo("all_reduce", 100_005, 100_500, tid=7)._replace(rf_id=201),
        Host("aten::as_strided", 100_520, 100_525, rf_id=202),
        Host(copy, 100_530, 100_540, rf_id=203),
    ]
    assert np.count_nonzero(made(*rows, *ddp).graph.wait_ns >= 2_000_000) == waited
