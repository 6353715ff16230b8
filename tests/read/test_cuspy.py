"""Rows as PyTorch's own recorder of CUDA writes them (Cuspy, PyTorch 2.15), and lanes of either recorder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphlink.model import DeviceKind
from graphlink.read.cuspy import gpu_name
from tests.read.test_read_kineto import names, read, row

__all__ = ["read"]


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        (("DtoH", "device", "pageable"), "Memcpy DtoH (Device -> Pageable)"),
        (("HtoD", "pinned", "device_static"), "Memcpy HtoD (Pinned -> Device Static)"),
        ((2, 3, 1), "Memcpy DtoH (Device -> Pageable)"),
        (("2", "3", 1), "Memcpy DtoH (Device -> Pageable)"),
        ((10, 3, 3), "Memcpy PtoP (Device -> Device)"),
        ((77, 3, "rdma"), "Memcpy 77 (Device -> Rdma)"),
        ((None, None, None), "Memcpy"),
    ],
)
def test_copies_are_called_as_kineto_calls_them(kinds: tuple[Any, Any, Any], name: str) -> None:
    assert gpu_name("Memcpy", *kinds, None) == name


def test_memsets_are_called_as_kineto_calls_them() -> None:
    assert gpu_name("Memset", None, None, None, 3) == "Memset (Device)"
    assert gpu_name("Memset (Pinned)", None, None, None, None) == "Memset (Pinned)"


def on_gpu(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return row(cat, name, ts, dur, pid=0, tid=args.get("stream"), **{"device": 0, "context": 1, **args})


def test_copies_and_nodes_of_graphs_that_are_no_work(read):
    trace = read(
        on_gpu("gpu_memcpy", "Memcpy", 1.5, 2, stream=7, correlation=1, **_kinds("HtoD", "pageable", "device")),
        on_gpu("gpu_memset", "Memset", 4, 1, stream=7, correlation=2, **{"memory kind": 3}),
        on_gpu("graph_event_node", "EventRecord", 6, 0, stream=7, correlation=3, **_node(2, 1)),
        on_gpu("graph_host_node", "HostNode: usleep", 7, 9, stream=7, correlation=3, **_node(2, 2)),
        {"ph": "C", "name": "SM Active (%)", "pid": "GPU 0 Counters", "ts": 7.5, "args": {"": 0.4}},
        row("overhead", "Activity Buffer Request", 8, 1, pid=-1, tid=0),
    )
    expected = ["Memcpy HtoD (Pageable -> Device)", "Memset (Device)", "HostNode: usleep"]
    assert names(trace, trace.device.name) == expected
    assert trace.device.kind.tolist() == [DeviceKind.MEMCPY, DeviceKind.MEMSET, DeviceKind.HOST]
    assert trace.left_out == {"graph_event_node": 1, "counter": 1, "overhead": 1}
    assert not trace.warnings


def _kinds(kind: str, source: str, target: str) -> dict[str, Any]:
    return {"copy kind": kind, "src kind": source, "dst kind": target}


def _node(graph: int, node: int) -> dict[str, Any]:
    return {"graph id": graph, "graph node id": node}


def test_a_lane_is_no_stream(read):
    """Without lanes, the one of an annotation stands in the place of the stream, but the row is on the stream."""
    trace = read(
        on_gpu("kernel", "k", 1.5, 2, stream=100001, correlation=1, original_stream=7, **_node(2, 1)),
        on_gpu("kernel", "k", 4, 2, stream=8, correlation=2),
        on_gpu("kernel", "k", 7, 2, stream=3, correlation=1, **_node(2, 2)) | {"tid": 7},
        on_gpu("kernel", "k", 10, 2, stream=9, correlation=1, **_node(2, 3)) | {"tid": "lane"},
        on_gpu("kernel", "k", 13, 2, stream="9", correlation=1, **_node(2, 4)) | {"tid": 9},
    )
    assert trace.device.stream.tolist() == [7, 8, 7, 9, 9]
    assert names(trace, trace.device.lane) == ["lane 100001", "", "lane 3", "", ""]


def test_a_lane_is_called_by_its_annotation_or_as_its_line_is(read):
    def named(lane: str, ts: float, **args: Any) -> dict[str, Any]:
        return on_gpu("kernel", "k", ts, 2, **args) | {"args": {**args, "device": 0, "name": lane}}

    thread = {"ph": "M", "name": "thread_name", "pid": 0, "tid": 100001, "args": {"name": "layer 0"}}
    trace = read(
        on_gpu("kernel", "k", 1.5, 2, stream=100001, correlation=1, original_stream=7, **_node(2, 1)),
        named("tp", 4, stream=100002, correlation=1, original_stream=7, **_node(2, 2)),
        named("dp", 7, stream=7, correlation=1, annotated_stream=3, **_node(2, 3)),
        named("no lane", 9, stream=7, correlation=1, **_node(2, 4)),
        {**thread, "pid": 77, "tid": 100002},
        thread,
    )
    assert names(trace, trace.device.lane) == ["layer 0", "tp", "dp", ""]
    assert not read(on_gpu("kernel", "k", 1.5, 2, stream=7, correlation=1, **_node(2, 1))).device.lane.any()


def test_counters_of_gpus(read):
    def sample(ts: Any, value: Any, pid: Any = "GPU 1 Counters") -> dict[str, Any]:
        return {"ph": "C", "name": "SM Active (%)", "pid": pid, "ts": ts, "args": {"": value}}

    rows = [sample(9.5, 80), sample(3.25, 12.5), sample(5, "many"), sample(6, 1e400), sample("x", 1), sample(7, 1, 3)]
    counters = read(on_gpu("kernel", "k", 1.5, 2, stream=7, correlation=1), *rows).counters
    assert [counters.value.tolist(), counters.device.tolist()] == [[12.5, 80], [1, 1]]
    assert np.diff(counters.ns).tolist() == [6250]
    assert read(on_gpu("kernel", "k", 1.5, 2, stream=7, correlation=1)).counters is None


def test_a_host_call_of_a_replay_that_was_queued_belongs_to_that_replay(read):
    """CUPTI gives no correlation for it: the k-th run of the node is that of the k-th replay."""
    replays = [
        on_gpu(cat, name, ts + 100 * k, 2, stream=7, correlation=correlation, **_node(2, node))
        for k in range(3)
        for cat, name, ts, correlation, node in (
            ("kernel", "k", 1, 5 + k, 0),
            ("graph_host_node", "HostNode", 4, 5 if k == 0 else 0, 1),
        )
    ]
    calls = [row("cuda_runtime", "cudaGraphLaunch", k / 10, 0.05, correlation=5 + k) for k in range(3)]
    assert read(*calls, *replays).device.correlation.tolist() == [5, 5, 6, 6, 7, 7]
    assert read(*calls, *replays[:3], *replays[4:]).device.correlation.tolist() == [5, 5, 6, 7, 7]


def _calls(tid: int, offsets: list[float]) -> list[dict[str, Any]]:
    return [row("cuda_runtime", "cudaLaunchKernel", at, 2, tid=tid, correlation=1 + k) for k, at in enumerate(offsets)]


@pytest.mark.parametrize(("shift", "tid"), [(0, 2), (9, 216058176)])
def test_calls_with_the_handle_of_their_thread_are_those_of_the_ops_around_them(read, shift: int, tid: int) -> None:
    """A thread of autograd, which the profiler did not see begin. Where a call crosses the end of an op, it is none of
    that thread."""
    ops = [row("cpu_op", "aten::mm", 100 * k + 10, 10, tid=2) for k in range(10)]
    main = [row("cpu_op", "aten::mm", 0, 1000, tid=1), row("cuda_runtime", "cudaFree", 1, 1, tid=1, correlation=99)]
    trace = read(*ops, *main, *_calls(216058176, [100 * k + 12 + shift for k in range(10)]))
    assert set(trace.calls.tid[trace.calls.correlation < 99].tolist()) == {tid}


def test_calls_that_lie_in_ops_by_chance_stay(read):
    ops = [row("cpu_op", "aten::mm", 0, 1000, tid=2)]
    trace = read(*ops, *_calls(216058176, [100 * k + 12 for k in range(10)]))
    assert np.unique(trace.calls.tid).tolist() == [216058176]


def _flow(number: int, source: dict[str, Any], target: dict[str, Any]) -> list[dict[str, Any]]:
    """A dependency as Cuspy writes it: from the end of a row to the start of another."""
    at = [(source, "s", source["ts"] + source["dur"]), (target, "f", target["ts"])]
    return [{"ph": ph, "id": number, "cat": "ac2g", "pid": r["pid"], "tid": r["tid"], "ts": ts} for r, ph, ts in at]


def _launch(node: dict[str, Any]) -> list[dict[str, Any]]:
    return _flow(node["args"]["correlation"], row("cuda_runtime", "cudaGraphLaunch", 0, 1), node)


def _replay(at: float, correlation: int, *nodes: tuple[str, int, float, float]) -> list[dict[str, Any]]:
    """Nodes (category, stream, start, length) of graph 2, by number."""
    return [
        on_gpu(cat, "k", at + start, dur, stream=stream, correlation=correlation, **_node(2, number))
        for number, (cat, stream, start, dur) in enumerate(nodes)
    ]


def _deps(trace: Any) -> set[tuple[int, int]]:
    assert set(trace.graph_deps.graph.tolist()) <= {2}
    return set(zip(trace.graph_deps.before.tolist(), trace.graph_deps.node.tolist(), strict=True))


FIRST = 1 << 40


@pytest.mark.parametrize("kind", [int, str])
def test_dependencies_inside_a_graph(read, kind):
    a, b, c = _replay(100.5, 9, ("kernel", 7, 0, 10), ("kernel", 142, 10, 3), ("graph_host_node", 7, 20, 5))
    flows = [*_launch(a), *_flow(FIRST, a, b), *_flow(FIRST + 1, b, c), *_flow(FIRST + 2, a, c)]
    trace = read(a, b, c, *(flow | {"id": kind(flow["id"])} for flow in flows))
    assert _deps(trace) == {(-1, 0), (0, 1), (1, 2), (0, 2)}
    assert read(a, b, c, *_launch(a), *_launch(b), *_launch(c)).graph_deps is None


def test_what_records_an_event_gives_what_it_waits_for_to_what_waits_for_it(read):
    cats = ("graph_event_node", "kernel", "graph_event_node", "graph_event_node", "kernel")
    rows = _replay(100.5, 9, *((cat, 7, 10 * k, 0 if "event" in cat else 5) for k, cat in enumerate(cats)))
    flows = [_flow(FIRST + k, rows[k], rows[k + 1]) for k in range(4)]
    trace = read(*rows, *_launch(rows[0]), *(flow for pair in flows for flow in pair))
    assert _deps(trace) == {(-1, 1), (1, 4)}
    assert trace.left_out["graph_event_node"] == 3


def test_of_two_rows_that_touch_on_a_lane_the_one_counts_that_most_replays_show(read):
    """Nodes 0 and 1 on one lane end together in one of three replays; node 2 waits for node 0."""
    rows, flows = [], []
    for k in range(3):
        first, other, last = _replay(
            100.5 + 100 * k, 5 + k, ("kernel", 7, 0, 10), ("kernel", 7, 2, 8 + 4 * (k > 0)), ("kernel", 8, 20, 5)
        )
        rows += [other, first, last]
        flows += [*_launch(first), *_launch(other), *_flow(FIRST + k, first, last)]
    assert _deps(read(*rows, *flows)) == {(-1, 0), (-1, 1), (0, 2)}


def test_a_node_whose_predecessors_have_no_rows_is_not_told(read):
    """The launch has no flow to it: it waits for an allocation, or a graph in the graph."""
    a, b, c = _replay(100.5, 9, ("kernel", 7, 0, 10), ("kernel", 7, 10, 3), ("kernel", 7, 20, 5))
    assert _deps(read(a, b, c, *_launch(a), *_flow(FIRST, a, b))) == {(-1, 0), (0, 1)}


def test_a_node_of_a_graph_in_the_graph_is_not_told(read):
    """Its number lies beyond those of the graph, and no dependency names it."""
    a, b, c = _replay(100.5, 9, ("kernel", 7, 0, 10), ("kernel", 7, 10, 3), ("kernel", 7, 20, 5))
    trace = read(a, b, c, *_launch(a), *_launch(c), *_flow(FIRST, a, b))
    assert _deps(trace) == {(-1, 0), (0, 1)}


def test_arguments_that_are_not_known_are_named(read):
    def told(*rows: dict[str, Any]) -> list[str]:
        return [text for text in read(*rows).warnings if "not known" in text]

    plain = {"queued": 5, "channel": 1, **_node(2, 1)}
    host = [row("cpu_op", "aten::mm", 2 * k, 1) for k in range(200)]
    kernels = [on_gpu("kernel", "k<{}>", 2 * k + 500, 1, stream=7, correlation=k + 1, **plain) for k in range(50)]
    assert not told(*host, *kernels)
    new = [one | {"args": {**one["args"], "sm mask": 3}} for one in kernels]
    assert told(*host, *new) == ["note: rows of a GPU have arguments that are not known, and not read: sm mask"]
    assert not told(*host, *(one | {"args": {**one["args"], "External id": 3}} for one in new))  # Kineto's


def test_a_category_that_is_not_known_and_counts_as_work_is_named(read):
    kernel = on_gpu("kernel", "k", 1.5, 2, stream=7, correlation=1, **_node(2, 1))
    launch = row("cuda_runtime", "cudaGraphLaunch", 0, 1, correlation=1)
    trace = read(launch, kernel, on_gpu("graph_child_node", "child", 4, 2, stream=7, correlation=1, **_node(2, 2)))
    assert [text for text in trace.warnings if "not known" in text] == [
        "rows of category graph_child_node (1), which is not known, count as work of the device"
    ]
    assert len(trace.device.name) == 2
