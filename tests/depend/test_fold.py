"""Folding keeps what a replay says, whatever costs more or less, and leaves only host nodes that do something for others."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlink.check.check import check
from graphlink.depend.fold import fold
from graphlink.emit.durations import cost_ns
from graphlink.model import I64, NOWHERE, EdgeKind, Graph, NodeKind
from graphlink.replay.ideal import replay
from graphlink.testing import Variation, random_program, run, write_kineto
from tests.build import Call, Device, Host, Sync, SyncKind, build_trace
from tests.depend.programs import built, linked_of, shape
from tests.depend.test_host import graph_of

GPU = (NodeKind.DEVICE_OP, NodeKind.DEVICE_DELAY, NodeKind.HOST_COMM)


def program(seed: int) -> Graph:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kineto.json"
        random = Random(seed)
        write_kineto(run(random_program(seed, shape(random))), path, dialect="2026", cuda_sync=random.random() < 0.7, vary=Variation())
        return built(linked_of(path), sync="cuda").graph


def scaled(graph: Graph, kernels: float, host: int) -> I64:
    op = graph.kind == NodeKind.DEVICE_OP
    on_host = np.isin(graph.kind, (NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_CALL))
    cost = cost_ns(graph)
    return np.where(op, (graph.duration_ns * kernels).astype(np.int64) + graph.start_delay_ns, np.where(on_host, cost * host, cost))


def device_times(graph: Graph, kernels: float, host: int) -> list[list[int]]:
    """Row, start and end in a replay of each device node, and the whole length."""
    played = replay(graph, scaled(graph, kernels, host))
    gpu = np.isin(graph.kind, GPU)
    columns = np.stack([graph.kind[gpu], graph.row[gpu], played.start_ns[gpu], played.end_ns[gpu]])
    return [*sorted(columns.T.tolist()), [played.total_ns]]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 100_000), kernels=st.sampled_from([0.1, 0.5, 1, 2, 10]), host=st.sampled_from([1, 3]))
def test_every_device_op_runs_when_it_did_whatever_costs_more_or_less(seed: int, kernels: float, host: int) -> None:
    graph = program(seed)
    assert device_times(fold(graph), kernels, host) == device_times(graph, kernels, host)


@settings(max_examples=60, deadline=None)
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
        for column in ("row", "start_ns", "duration_ns", "start_delay_ns", "overlap_ns", "stream"):
            assert np.array_equal(getattr(folded, column)[same], getattr(graph, column)[was])
    assert folded.end_ns.max() == graph.end_ns.max()
    assert _ends(folded) == _ends(graph)
    assert _waits(folded) == _waits(graph)
    assert _reasons_to_stay(folded) >= np.count_nonzero(np.isin(folded.kind, (NodeKind.HOST_OP, NodeKind.HOST_PART))) * 0.5
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


def test_a_graph_with_one_op_a_thread_stays_as_it_is() -> None:
    graph = graph_of(build_trace(host=[Host("op", 0, 10), Host("other", 2, 8, tid=2)]))
    folded = fold(graph)
    assert folded.kind.tolist() == graph.kind.tolist()
    assert folded.source.tolist() == graph.source.tolist()
