"""Folding keeps what a replay says, whatever costs more or less, and leaves only host nodes that do something for
others.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.graph.critical import cost_ns
from graphlink.graph.fold import fold
from graphlink.graph.invariants import check
from graphlink.graph.read_et import read_et
from graphlink.graph.target import plan, written
from graphlink.graph.write_et import write_et
from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import I64, NOWHERE, Linked
from graphlink.replay.changes import Changes, parse_scale
from graphlink.replay.machines import replay
from graphlink.replay.slots import play_slots
from graphlink.replay.whatif import apply
from graphlink.replay.workload import workload
from tests.build import Call, Device, Host, Sync, SyncKind, build_trace
from tests.depend.programs import built, linked_of, shape
from tests.depend.test_host import graph_of
from tests.simulator import Variation, random_program, run, write_kineto

GPU = (NodeKind.DEVICE_OP, NodeKind.DEVICE_DELAY, NodeKind.HOST_COMM)


def program(seed: int) -> Graph:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kineto.json"
        random = Random(seed)
        write_kineto(
            run(random_program(seed, shape(random))),
            path,
            dialect="2026",
            cuda_sync=random.random() < 0.7,
            vary=Variation(),
        )
        return built(linked_of(path), sync="cuda").graph


def scaled(graph: Graph, kernels: float, host: int) -> I64:
    op = graph.kind == NodeKind.DEVICE_OP
    on_host = np.isin(graph.kind, (NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_CALL))
    cost = cost_ns(graph)
    return np.where(
        op, (graph.duration_ns * kernels).astype(np.int64) + graph.start_delay_ns, np.where(on_host, cost * host, cost)
    )


def device_times(graph: Graph, kernels: float, host: int) -> list[list[int]]:
    """Row, start and end in a replay of each device node, and the whole length."""
    played = replay(graph, scaled(graph, kernels, host))
    gpu = np.isin(graph.kind, GPU)
    columns = np.stack([graph.kind[gpu], graph.row[gpu], played.start_ns[gpu], played.end_ns[gpu]])
    return [*sorted(columns.T.tolist()), [played.total_ns]]


@given(seed=st.integers(0, 100_000), kernels=st.sampled_from([0.1, 0.5, 1, 2, 10]), host=st.sampled_from([1, 3]))
def test_every_device_op_runs_when_it_did_whatever_costs_more_or_less(seed: int, kernels: float, host: int) -> None:
    graph = program(seed)
    assert device_times(fold(graph), kernels, host) == device_times(graph, kernels, host)


@given(seed=st.integers(0, 100_000))
def test_what_is_folded_still_keeps_the_promises_of_a_graph(seed: int) -> None:
    graph = program(seed)
    folded = fold(graph)
    assert check(folded) == ()
    assert len(folded.kind) <= len(graph.kind)
    for tid in np.unique(graph.tid):
        for column in ("duration_ns", "self_ns", "wait_ns", "wake_ns"):
            assert getattr(folded, column)[folded.tid == tid].sum() == getattr(graph, column)[graph.tid == tid].sum()
    for kind in (NodeKind.HOST_GAP, NodeKind.HOST_ASYNC, NodeKind.END, *GPU):
        same, was = folded.kind == kind, graph.kind == kind
        for column in ("row", "start_ns", "duration_ns", "start_delay_ns", "launch_latency_ns", "overlap_ns", "stream"):
            assert np.array_equal(getattr(folded, column)[same], getattr(graph, column)[was])
    assert folded.end_ns.max() == graph.end_ns.max()
    assert _ends(folded) == _ends(graph)
    assert _waits(folded) == _waits(graph)
    assert (
        _reasons_to_stay(folded) >= np.count_nonzero(np.isin(folded.kind, (NodeKind.HOST_OP, NodeKind.HOST_PART))) * 0.5
    )
    again = fold(folded)
    assert len(again.kind) == len(folded.kind)


def _ends(graph: Graph) -> list[tuple[int, int, int, int, int]]:
    """Kind and target of every edge that is no order inside a thread; sources of device ops too."""
    target = np.repeat(np.arange(len(graph.kind)), np.diff(graph.first))
    chosen = np.isin(graph.edge_kind, (EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.SYNC, EdgeKind.LAUNCH)) & (
        graph.kind[target] != NodeKind.END
    )
    rows = np.where(graph.edge_kind == EdgeKind.LAUNCH, NOWHERE, graph.row[graph.source])
    table = np.stack([graph.edge_kind, rows, graph.kind[target], graph.row[target], graph.found_by], axis=1)[chosen]
    return sorted(map(tuple, table.tolist()))


def _waits(graph: Graph) -> list[tuple[int, ...]]:
    """Source, target and call of every wait, by rows; all have their ``sync`` edge."""
    told = graph.sync_calls
    target = np.repeat(np.arange(len(graph.kind)), np.diff(graph.first))
    of = graph.edge_kind == EdgeKind.SYNC
    assert set(zip(told.source.tolist(), told.target.tolist(), strict=True)) <= set(
        zip(graph.source[of].tolist(), target[of].tolist(), strict=True)
    )
    table = np.stack([graph.row[told.source], graph.kind[told.target], graph.row[told.target], told.call], axis=1)
    return sorted(map(tuple, table.tolist()))


def _reasons_to_stay(graph: Graph) -> int:
    target = np.repeat(np.arange(len(graph.kind)), np.diff(graph.first))
    stays = graph.wait_ns > 0
    stays[graph.source[graph.edge_kind != EdgeKind.HOST]] = True
    stays[target[graph.edge_kind != EdgeKind.HOST]] = True
    stays[graph.caller[graph.caller != NOWHERE]] = True
    stays[np.diff(graph.first) == 0] = True
    return int(np.count_nonzero(stays & np.isin(graph.kind, (NodeKind.HOST_OP, NodeKind.HOST_PART))))


@pytest.fixture(scope="module")
def small() -> tuple[Graph, Graph]:
    """outer(view, mm(empty, launch), view), a wait with a rest, and what follows it."""
    trace = build_trace(
        host=[
            Host("outer", 0, 100),
            Host("view", 5, 10),
            Host("mm", 12, 40),
            Host("empty", 14, 18),
            Host("view", 42, 50),
            Host("copy", 110, 300),
            Host("add", 310, 320),
            Host("view", 325, 330),
        ],
        calls=[Call("cudaLaunchKernel", 20, 38, 1), Call("cudaStreamSynchronize", 120, 290, 2)],
        device=[Device("k", 45, 280, 1)],
        syncs=[Sync(SyncKind.STREAM, 120, 290, 2, stream=7)],
    )
    graph = graph_of(trace)
    return graph, fold(graph)


def test_the_op_that_launched_stays_and_carries_what_came_before_it(small: tuple[Graph, Graph]) -> None:
    graph, folded = small
    kernel = int(np.flatnonzero(folded.kind == NodeKind.DEVICE_OP)[0])
    mm = int(folded.caller[kernel])
    assert folded.row[mm] == graph.row[graph.caller[np.flatnonzero(graph.kind == NodeKind.DEVICE_OP)[0]]]
    assert folded.source[folded.first[kernel]] == mm
    assert folded.start_ns[mm] == 5_000, "where view began, which mm carries"
    assert folded.duration_ns[mm] == 37_000, "up to the next view"
    outer = int(folded.caller[mm])
    assert (outer, folded.duration_ns[outer]) == (0, 5_000), "outer begins the thread"


def test_who_waits_and_what_a_wait_releases_stay(small: tuple[Graph, Graph]) -> None:
    graph, folded = small
    kernel = int(np.flatnonzero(folded.kind == NodeKind.DEVICE_OP)[0])
    sync = (folded.edge_kind == EdgeKind.SYNC) & (folded.source == kernel)
    released = np.repeat(np.arange(len(folded.kind)), np.diff(folded.first))[sync]
    kinds = {(int(folded.kind[i]), int(folded.row[i])) for i in released if folded.kind[i] != NodeKind.END}
    copy, add = 5, 6
    assert kinds == {(NodeKind.HOST_PART, copy), (NodeKind.HOST_OP, add)}
    waiting = np.flatnonzero(folded.wait_ns > 0)
    assert [(int(folded.kind[i]), int(folded.row[i])) for i in waiting] == [(NodeKind.HOST_OP, copy)]
    part = int(np.flatnonzero((folded.kind == NodeKind.HOST_PART) & (folded.row == copy))[0])
    assert folded.caller[part] == waiting[0]
    assert len(folded.kind) < len(graph.kind)


def table(graph: Graph) -> list[tuple[str, int, float, float, float]]:
    """(kind, row, start, end, cost) in us of the host nodes but ``end``, thread by thread."""
    chained = np.isin(graph.kind, (NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_CALL, NodeKind.HOST_GAP))
    return [
        (
            NodeKind(int(graph.kind[i])).name.removeprefix("HOST_").lower(),
            int(graph.row[i]),
            float(graph.start_ns[i]) / 1e3,
            float(graph.end_ns[i]) / 1e3,
            float(graph.duration_ns[i]) / 1e3,
        )
        for i in sorted(np.flatnonzero(chained).tolist(), key=lambda i: (int(graph.tid[i]), i))
    ]


def test_who_begins_a_thread_carries_what_follows_and_ends_with_it() -> None:
    folded = fold(
        graph_of(build_trace(host=[Host("a", 0, 10), Host("b", 12, 30), Host("c", 30, 60), Host("d", 100, 110)]))
    )
    assert table(folded) == [("op", 0, 0, 60, 60), ("gap", -1, 60, 100, 40), ("op", 3, 100, 110, 10)]
    outer = fold(graph_of(build_trace(host=[Host("outer", 0, 100), Host("b", 12, 30)])))
    assert table(outer) == [("op", 0, 0, 100, 100)]


def test_who_hands_over_stays_and_so_does_who_is_released() -> None:
    """b wakes the other thread; there XBackward0 follows the forward op a."""
    trace = build_trace(
        host=[
            Host("a", 0, 30, seq_id=4),
            Host("view", 30, 60),
            Host("b", 60, 100),
            Host("zeros", 150, 180, tid=2),
            Host("view", 180, 190, tid=2),
            Host("XBackward0", 190, 300, tid=2, seq_id=4, fw_tid=1),
            Host("view", 300, 310, tid=2),
        ]
    )
    folded = fold(graph_of(trace))
    ops = [row for kind, row, *_ in table(folded) if kind == "op"]
    assert ops == [0, 2, 3, 5]
    thread = folded.edge_kind == EdgeKind.THREAD
    target = np.repeat(np.arange(len(folded.kind)), np.diff(folded.first))
    pairs = {
        (int(folded.row[s]), int(folded.row[t])) for s, t in zip(folded.source[thread], target[thread], strict=True)
    }
    assert {(0, 5), (2, NOWHERE)} <= pairs, "to the backward op, and to the gap in which the thread wakes"


@pytest.mark.parametrize("again", [True, False])
def test_what_launches_behind_a_wait_and_what_the_wait_releases_stay_parts(again: bool) -> None:
    """copy waits until 80, view runs, and copy launches again: its caller is before the wait, so the part that launches
    stays.
    """
    trace = build_trace(
        host=[Host("copy", 0, 200), Host("view", 92, 96), Host("view", 97, 99), Host("next", 200, 220)],
        calls=[
            Call("cudaLaunchKernel", 2, 10, 1),
            Call("cudaStreamSynchronize", 20, 90, 2),
            Call("cudaLaunchKernel", 140, 150, 3),
        ],
        device=[Device("k", 15, 80, 1), *([Device("l", 155, 180, 3)] if again else [])],
        syncs=[Sync(SyncKind.STREAM, 20, 90, 2, stream=7)],
    )
    folded = fold(graph_of(trace))
    launchers = folded.source[folded.edge_kind == EdgeKind.LAUNCH]
    told = [(int(folded.kind[i]), int(folded.row[i])) for i in launchers]
    assert told == [(NodeKind.HOST_OP, 0), (NodeKind.HOST_PART, 0)][: 1 + again]
    assert (folded.start_ns[launchers[1:]] > 80_000).all()
    released = [(kind, row, start) for kind, row, start, *_ in table(folded) if start == 80]
    assert released == [("part", 0, 80)], "not the view behind it"


def test_what_a_receive_releases_stays_too() -> None:
    rows = [Host("outer", 0, 400), Host("c10d::recv_", 10, 20), Host("gloo:recv", 15, 100, annotation=True)]
    folded = fold(graph_of(build_trace([*rows, Host("view", 130, 140), Host("view", 150, 160)])))
    assert [(kind, row) for kind, row, start, *_ in table(folded) if start == 100] == [("part", 0)]
    assert [kind for kind, _, start, *_ in table(folded) if start > 100] == []


def test_of_a_chain_without_any_reason_the_first_whole_op_stays() -> None:
    """Behind the launch of mm: a part of outer, two views."""
    trace = build_trace(
        host=[Host("outer", 0, 100), Host("mm", 10, 40), Host("view", 70, 75), Host("view", 76, 80)],
        calls=[Call("cudaLaunchKernel", 20, 38, 1)],
        device=[Device("k", 45, 60, 1)],
    )
    assert table(fold(graph_of(trace))) == [("op", 0, 0, 100, 10), ("op", 1, 10, 40, 30), ("op", 2, 40, 100, 60)]
    alone = build_trace(
        host=[Host("outer", 0, 100), Host("mm", 10, 40)],
        calls=[Call("cudaLaunchKernel", 20, 38, 1)],
        device=[Device("k", 45, 60, 1)],
    )
    assert table(fold(graph_of(alone))) == [("op", 0, 0, 100, 10), ("op", 1, 10, 40, 30), ("part", 0, 40, 100, 60)]


def test_a_graph_with_one_op_a_thread_stays_as_it_is() -> None:
    graph = graph_of(build_trace(host=[Host("op", 0, 10), Host("other", 2, 8, tid=2)]))
    folded = fold(graph)
    assert folded.kind.tolist() == graph.kind.tolist()
    assert folded.source.tolist() == graph.source.tolist()


def gloo(random: Random) -> Linked:
    """Ops of 40 us to 10 ms, one after the other; rows of gloo begin in some of them, and nobody waits for them."""
    rows: list[Host] = []
    at = 0.0
    for _ in range(12):
        long = random.choice([40, 200, 10_000])
        rows.append(Host("op", at, at + long))
        rows += [
            Host("view", at + long * k / 4, at + long * k / 4 + random.choice([2, long / 5]))
            for k in range(1, random.randint(1, 4))
        ]
        if random.random() < 0.5:
            begins = at + long * random.random()
            rows.append(
                Host(
                    random.choice(["gloo:send", "gloo:recv"]),
                    begins,
                    begins + random.choice([50, 30_000]),
                    annotation=True,
                )
            )
        at += long + random.choice([0, 15, 50])
    trace = build_trace(rows)
    return link(trace, None, match_hosts(trace, None))


def communication_starts(graph: Graph, linked: Linked, host: float, folder: Path) -> list[int]:
    """When each communication starts on ASTRA-sim's machine, and the whole time, with all host work at ``host`` of its
    time.
    """
    comm = communication(linked)
    with (folder / "trace.et").open("wb") as out:
        write_et(out, written(graph.of_rank(0, 1), comm, plan(graph, comm, 0, "astra-sim"), {}))
    work = workload({0: read_et(folder / "trace.et")})
    played = play_slots(apply(work, Changes((parse_scale(f"host={host}"),)), {}).work)
    beside = graph.kind == NodeKind.HOST_COMM
    return [*played.start_ns[beside][np.argsort(graph.row[beside])].tolist(), played.total_ns]


@given(seed=st.integers(0, 100_000), host=st.sampled_from([0.5, 1.0, 3.0]))
def test_communication_of_the_host_starts_as_soon_where_ops_share_one_slot(seed: int, host: float) -> None:
    linked = gloo(Random(seed))
    graph = built(linked, sync="cuda").graph
    folded = fold(graph)
    assert len(folded.kind) <= len(graph.kind)
    with TemporaryDirectory() as folder:
        full, fewer = (np.array(communication_starts(g, linked, host, Path(folder))) for g in (graph, folded))
    assert np.abs(full - fewer).max() < 3_000, "whole us are written, of sums"
