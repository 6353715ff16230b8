"""Launch latency: how long after its call returned an op begins where nothing else holds it up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.depend.device import DEFAULT_NS, FEW, launch_latency_ns
from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import I64, DeviceKind
from tests.build import Call, Device, Host, build_trace
from tests.depend.programs import built, linked_of
from tests.simulator import Shape, random_program, run, write_kineto

LONG = 1_000_000


def estimated(
    after_us: list[float], *, busy_us: list[float] | None = None, kinds: list[DeviceKind] | None = None
) -> list[float]:
    """Of ops on streams of their own, ``after_us`` behind their calls, that were busy until ``busy_us`` before the op
    began.
    """
    ops = [
        Device("op", 1000 * i + a, 1000 * i + a + 5, i, stream=i, kind=kinds[i] if kinds else DeviceKind.KERNEL)
        for i, a in enumerate(after_us)
    ]
    device = build_trace(device=ops).device
    order = np.argsort(device.correlation)
    returned: I64 = np.zeros(len(ops), np.int64)
    returned[order] = [int(device.start_ns[o]) - round(1000 * a) for o, a in zip(order.tolist(), after_us, strict=True)]
    busy = device.start_ns - LONG
    if busy_us is not None:
        busy[order] = [int(device.start_ns[o]) - round(1000 * b) for o, b in zip(order.tolist(), busy_us, strict=True)]
    found: list[float] = (launch_latency_ns(device, returned, busy)[order] / 1000).tolist()
    return found


def test_the_usual_latency_is_that_of_every_op_whatever_held_others_up() -> None:
    usual = [2.9, 3.0, 3.1] * 4
    assert estimated([*usual, *(1000.0 * k for k in range(1, 9))]) == [3.0] * 20


def test_an_op_whose_stream_was_busy_shows_no_latency() -> None:
    after, busy = [3.0] * FEW + [500.0] * 40, [100.0] * FEW + [1.0] * 40
    assert estimated(after, busy_us=busy) == [3.0] * 50


@pytest.mark.parametrize("after", [[3.5] * (FEW - 1), [2300.0] * 30], ids=["few", "no latencies"])
def test_few_launches_on_idle_streams_give_the_default(after: list[float]) -> None:
    assert set(estimated(after)) == {DEFAULT_NS / 1000}


def test_copies_have_their_own_where_they_are_enough_else_that_of_the_device() -> None:
    kinds = [DeviceKind.KERNEL] * 20 + [DeviceKind.MEMCPY] * 12 + [DeviceKind.MEMSET] * 3
    found = estimated([2.0] * 20 + [6.0] * 12 + [9.0] * 3, kinds=kinds)
    assert found[:20] == [2.0] * 20 and found[20:32] == [6.0] * 12
    assert len(set(found[32:])) == 1 and 2.0 <= found[32] <= 9.0


@given(st.lists(st.integers(20, 80), min_size=FEW, max_size=60), st.integers(-20, 19))
def test_moved_rows_move_it_by_as_much(after: list[int], d: int) -> None:
    assert estimated([float(a + d) for a in after])[0] == estimated([float(a) for a in after])[0] + d


def graph_of(folder: Path, seed: int) -> Graph:
    write_kineto(run(random_program(seed, Shape(ops=80))), folder / "kineto.json", dialect="2024", cuda_sync=True)
    return built(linked_of(folder / "kineto.json"), sync="cuda").graph


@pytest.mark.parametrize("seed", range(6))
def test_no_latency_begins_an_op_later_than_recorded(tmp_path: Path, seed: int) -> None:
    g = graph_of(tmp_path, seed)
    on_device = np.isin(g.kind, (NodeKind.DEVICE_OP, NodeKind.DEVICE_DELAY))
    assert not g.launch_latency_ns[~on_device].any()
    for v in np.flatnonzero(g.launch_latency_ns).tolist():
        edges = slice(g.first[v], g.first[v + 1])
        (by,) = g.source[edges][g.edge_kind[edges] == EdgeKind.LAUNCH].tolist()
        until = g.end_ns[v] if g.kind[v] == NodeKind.DEVICE_DELAY else g.start_ns[v]
        assert g.start_ns[by] + g.duration_ns[by] + g.launch_latency_ns[v] <= until


def test_ops_without_a_call_and_those_that_their_call_waits_for_have_none() -> None:
    trace = build_trace(
        host=[Host("op", 0, 900)],
        calls=[Call("cudaMemcpy", 10, 100, 1), Call("cudaLaunchKernel", 200, 205, 2)],
        device=[Device("copy", 20, 95, 1), Device("kernel", 210, 220, 2), Device("orphan", 400, 410, 99, stream=9)],
    )
    g = built(link(trace, None, match_hosts(trace, None)), sync="cuda").graph
    of = {
        int(trace.device.correlation[g.row[v]]): int(g.launch_latency_ns[v])
        for v in np.flatnonzero(g.kind == NodeKind.DEVICE_OP)
    }
    assert of == {1: 0, 2: DEFAULT_NS, 99: 0}
