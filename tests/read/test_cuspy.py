"""Rows as PyTorch's own recorder of CUDA writes them (Cuspy, PyTorch 2.15), and lanes of either recorder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphlink.model import DeviceKind
from graphlink.read.cuspy import copy_name, memset_name
from tests.read.test_read_kineto import names, read, row

__all__ = ["read"]


@pytest.mark.parametrize(
    ("kinds", "name"),
    [
        (("DtoH", "device", "pageable"), "Memcpy DtoH (Device -> Pageable)"),
        (("HtoD", "pinned", "device_static"), "Memcpy HtoD (Pinned -> Device Static)"),
        ((2, 3, 1), "Memcpy DtoH (Device -> Pageable)"),
        ((10, 3, 3), "Memcpy PtoP (Device -> Device)"),
        ((77, 3, "rdma"), "Memcpy 77 (Device -> Rdma)"),
        ((None, 3, 3), "Memcpy"),
    ],
)
def test_copies_are_called_as_kineto_calls_them(kinds: tuple[Any, Any, Any], name: str) -> None:
    assert copy_name("Memcpy", *kinds) == name


def test_memsets_are_called_as_kineto_calls_them() -> None:
    assert memset_name("Memset", 3) == "Memset (Device)"
    assert memset_name("Memset (Pinned)", None) == "Memset (Pinned)"


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
    )
    assert trace.device.stream.tolist() == [7, 8, 7, 9]


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
    assert read(*replays).device.correlation.tolist() == [5, 5, 6, 6, 7, 7]
    assert read(*replays[:3], *replays[4:]).device.correlation.tolist() == [5, 5, 6, 7, 0]


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
