"""Each kind of edge carries its weight: without it, a what-if on programs with known truth is wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from graphlink.graph.critical import cost_ns
from graphlink.graph.order import longest_path
from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.model import I64, Comm
from graphlink.replay.machines import measured_ns
from tests.build import Call, Device, Host, build_trace
from tests.depend.programs import built, linked_of
from tests.depend.test_host import graph_of
from tests.simulator import Execution, Program, Shape, Training, random_program, run, training_program, write_kineto

SCALES = (0.1, 2.0, 10.0)


def racing(seed: int) -> Program:
    return random_program(seed, Shape(threads=2, streams=3, own_streams=True, ops=60))


def taking_turns(seed: int) -> Program:
    return training_program(seed, Training(steps=2))


def scaled(graph: Graph, scale: float) -> I64:
    cost = cost_ns(graph)
    device = graph.kind == NodeKind.DEVICE_OP
    cost[device] = np.rint(graph.duration_ns[device] * scale).astype(np.int64) + graph.start_delay_ns[device]
    return cost


def without(graph: Graph, kind: EdgeKind | None) -> tuple[I64, np.ndarray]:  # type: ignore[type-arg]
    keep = np.ones(len(graph.source), np.bool_) if kind is None else graph.edge_kind != kind
    target = np.repeat(np.arange(len(graph.kind)), np.diff(graph.first))[keep]
    return np.searchsorted(target, np.arange(len(graph.kind) + 1)), graph.source[keep]


@cache
def as_it_is_and_scaled(program: Callable[[int], Program], seed: int) -> tuple[Execution, dict[float, int]]:
    """A program as it ran, and how long with its kernels scaled."""
    return run(program(seed)), {scale: run(program(seed), kernel_scale=scale).makespan_ns for scale in SCALES}


def worst_pct(folder: Path, program: Callable[[int], Program], kind: EdgeKind | None, seeds: range) -> float:
    """The largest error of the predicted makespan over programs and scales, in percent."""
    worst = 0.0
    for seed in seeds:
        recorded, scaled_ns = as_it_is_and_scaled(program, seed)
        path = folder / f"kineto_{seed}.json"
        write_kineto(recorded, path, dialect="2024")
        graph = built(linked_of(path), sync="cuda").graph
        first, source = without(graph, kind)
        # What was before the first row is in no graph, and takes its time at any scale.
        lead = recorded.makespan_ns - measured_ns(graph)
        for scale in SCALES:
            predicted = int(longest_path(first, source, scaled(graph, scale)).max())
            worst = max(worst, 100 * abs(predicted / (scaled_ns[scale] - lead) - 1))
    return worst


@pytest.mark.parametrize("program", [racing, taking_turns])
def test_with_all_edges_the_prediction_holds(tmp_path: Path, program: Callable[[int], Program]) -> None:
    assert worst_pct(tmp_path, program, None, range(6)) < 3


@pytest.mark.parametrize(
    ("kind", "program"),
    [
        (EdgeKind.HOST, racing),
        (EdgeKind.LAUNCH, racing),
        (EdgeKind.STREAM, racing),
        (EdgeKind.EVENT, taking_turns),
        (EdgeKind.SYNC, racing),
        (EdgeKind.THREAD, taking_turns),
    ],
)
def test_without_a_kind_of_edges_it_does_not(tmp_path: Path, kind: EdgeKind, program: Callable[[int], Program]) -> None:
    assert worst_pct(tmp_path, program, kind, range(6)) > 5


def test_without_collective_edges_a_communicator_runs_two_collectives_at_once() -> None:
    """NCCL runs one collective of a communicator at a time, on whatever streams; the recording shows it in their order
    only.
    """
    comm = Comm("allreduce", dtype="Float", in_nelems=1000, pg_name="0", ranks=(0, 1), group_size=2)
    trace = build_trace(
        host=[Host("first", 0, 2.5), Host("second", 2.5, 10)],
        calls=[Call("cudaLaunchKernel", 1, 2, 1), Call("cudaLaunchKernel", 3, 4, 2)],
        device=[
            Device("ncclDevKernel_AllReduce", 8, 100, 1, comm=comm),
            Device("ncclDevKernel_AllReduce", 140, 240, 2, stream=9, comm=comm),
        ],
        rank=0,
        world_size=2,
    )
    graph = graph_of(trace)
    assert (graph.edge_kind == EdgeKind.COLLECTIVE).sum() == 1
    after_all = [
        int(longest_path(*without(graph, kind), scaled(graph, 10)).max()) for kind in (None, EdgeKind.COLLECTIVE)
    ]
    assert after_all[0] > 1.9e6 > 1.3e6 > after_all[1]
