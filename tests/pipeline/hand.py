"""A small rank by hand: every kind of node once, with the records around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from graphlink.depend.assemble import names
from graphlink.graph_model import ON_HOST, EdgeKind, Graph, Metadata, NodeKind, NodeRows, NodeType, SyncCalls
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import NOWHERE, CommKind, Communication, Linked
from tests.build import Call, Device, Host, Node, build_et, build_trace
from tests.comm_ops import Op, comm_ops

EPOCH_NS = 1_700_000_000_000_000_000


class N(NamedTuple):
    """A node: times in ns since the epoch of the graph; ``deps`` as (node, kind)."""

    kind: NodeKind
    row: int
    start: int
    end: int
    duration: int
    deps: tuple[tuple[int, EdgeKind], ...] = ()
    caller: int = NOWHERE
    self_ns: int = 0
    wait: int = 0
    wake: int = 0
    delay: int = 0
    latency: int = 0
    overlap: int = 0
    tid: int = 0
    device: int = 0
    stream: int = 0


def graph(nodes: Iterable[N], epoch_ns: int = EPOCH_NS, waits: Sequence[tuple[int, int, int]] = ()) -> Graph:
    """``waits``: source, target and call of ``sync`` edges."""
    given = list(nodes)
    edges = [sorted(n.deps) for n in given]

    def i64(name: str) -> np.ndarray:
        return np.array([getattr(n, name) for n in given], np.int64)

    kind, row = np.array([n.kind for n in given], np.uint8), np.array([n.row for n in given], np.int32)
    linked = records()
    trace = linked.trace
    there = np.where(
        kind == NodeKind.HOST_CALL,
        len(trace.calls.name),
        np.where(kind < NodeKind.DEVICE_OP, len(trace.host.name), len(trace.device.name)),
    )
    name, strings = names(
        trace, kind, np.minimum(row, there - 1)
    )  # random graphs have more rows than there are records
    return Graph(
        metadata=Metadata("0.0.4", "test", epoch_ns),
        strings=strings,
        name=name,
        type=np.full(len(kind), NodeType.COMP, np.int32),
        host=ON_HOST[kind],
        start_ns=i64("start"),
        end_ns=i64("end"),
        duration_ns=i64("duration"),
        self_ns=i64("self_ns"),
        wait_ns=i64("wait"),
        wake_ns=i64("wake"),
        start_delay_ns=i64("delay"),
        launch_latency_ns=i64("latency"),
        overlap_ns=i64("overlap"),
        tid=i64("tid"),
        device=i64("device"),
        stream=i64("stream"),
        caller=np.array([n.caller for n in given], np.int32),
        first=np.cumsum([0, *map(len, edges)], dtype=np.int64),
        source=np.array([s for e in edges for s, _ in e], np.int32),
        edge_kind=np.array([k for e in edges for _, k in e], np.uint8),
        rows=NodeRows(
            kind,
            row,
            np.zeros(sum(map(len, edges)), np.uint8),
            SyncCalls(*(np.array([w[i] for w in waits], np.int32) for i in range(3))),
            linked,
        ),
    )


def records() -> Linked:
    """Two ops of the main thread, the second without ET node; two kernels and a copy; a gloo range."""
    trace = build_trace(
        host=[
            Host("aten::mm", 0, 30, rf_id=1),
            Host("aten::\u00e9 \u2603", 60, 90),
            Host("gloo:all_reduce", 20, 80, tid=2, rf_id=3),
        ],
        calls=[
            Call("cudaLaunchKernel", 5, 10, 7),
            Call("cudaLaunchKernel", 62, 66, 8),
            Call("cudaDeviceSynchronize", 95, 150, 9),
        ],
        device=[Device("gemm", 12, 50, 7), Device("ncclDevKernel_AllReduce", 100, 140, 8, stream=22)],
        path="kineto.json",
    )
    et = build_et(
        [
            Node("aten::mm", 1, seq_id=-1, op_schema="aten::mm(Tensor a) -> Tensor", fw_parent=5),
            Node("gloo:all_reduce", 3, tid=2),
        ]
    )
    linked = link(trace, et, match_hosts(trace, et))
    return replace(linked, crossing=np.array([False, True, False]))


def recorded_as(graph: Graph, linked: Linked) -> Graph:
    """The graph with other tables behind its rows."""
    assert graph.rows is not None
    return replace(graph, rows=replace(graph.rows, linked=linked))


def every_kind() -> Graph:
    """Rows of ``records``: host 0 = mm, 1 = gloo, 2 = the other op (sorted by start)."""
    k, e = NodeKind, EdgeKind
    return graph(
        [
            N(k.HOST_OP, 0, 0, 30_000, 10_400, self_ns=10_400, tid=1),
            N(k.DEVICE_DELAY, 0, 10_000, 12_000, 2_000, ((0, e.LAUNCH),), caller=0, stream=7),
            N(k.HOST_PART, 0, 10_400, 30_000, 19_600, ((0, e.HOST),), caller=0, self_ns=19_600, tid=1),
            N(
                k.DEVICE_OP,
                0,
                12_000,
                50_000,
                37_500,
                ((0, e.LAUNCH), (1, e.STREAM)),
                caller=0,
                delay=700,
                overlap=500,
                stream=7,
            ),
            N(k.HOST_ASYNC, 1, 20_000, 20_000, 0, tid=2),
            N(k.HOST_COMM, 1, 20_000, 80_000, 60_000, ((4, e.LAUNCH),), caller=4, device=-1, stream=-1),
            N(k.HOST_GAP, NOWHERE, 30_000, 60_000, 30_000, ((2, e.HOST),), tid=1),
            N(k.HOST_OP, 2, 60_000, 90_000, 30_000, ((6, e.HOST),), self_ns=30_000, tid=1),
            N(k.HOST_CALL, 2, 95_000, 150_000, 6_300, ((7, e.HOST),), self_ns=6_300, wait=40_000, tid=1),
            N(k.DEVICE_OP, 1, 100_000, 140_000, 40_000, ((3, e.EVENT), (7, e.LAUNCH)), caller=7, stream=22),
            N(k.END, NOWHERE, 150_000, 150_000, 0, ((5, e.SYNC), (8, e.HOST), (9, e.SYNC)), tid=1),
        ]
    )


def communication(*device: Op, host: tuple[Op, ...] = ()) -> Communication:
    """``device`` are the ops of the last device rows, ``host`` of host row 1."""
    of_device = [op._replace(row=2 - len(device) + k, start_ns=k) for k, op in enumerate(device)]
    of_host = [op._replace(row=1, on_host=True, start_ns=9) for op in host]
    return Communication(comm_ops([*of_device, *of_host], (((0, 1), "dp"), ((0,), "self"))), ())


ALL_REDUCE = Op(CommKind.COLLECTIVE, "ALL_REDUCE", type=0, bytes=4096, group=0)
