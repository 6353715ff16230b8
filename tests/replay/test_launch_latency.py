"""What-ifs where launch latency runs beside the earlier work of the stream, not after it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from graphlink.graph import latency
from graphlink.graph.critical import cost_ns
from graphlink.graph.critical import critical_path as critical_path_of_graph
from graphlink.graph.latency import FEW
from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.replay.changes import Changes, changes_of, parse_scale
from graphlink.replay.coupled import play_coupled
from graphlink.replay.machines import play_ideal, replay
from graphlink.replay.matching import matched
from graphlink.replay.path import by_work, critical_path
from graphlink.replay.slots import play_slots
from graphlink.replay.whatif import apply
from graphlink.replay.workload import Workload
from tests.graph.test_critical_gains import graphs
from tests.replay.hand import CPU, GPU, N, load
from tests.replay.test_what_if import program_shape, recorded
from tests.simulator import random_program, run

H, L, S, Y = EdgeKind.HOST, EdgeKind.LAUNCH, EdgeKind.STREAM, EdgeKind.SYNC


def total_us(work: Workload, *scales: str, **changes: object) -> float:
    """Of the ideal machine, with the coupled one and the critical path saying the same."""
    changed = apply(work, changes_of(scales, **changes), {}).work
    played = play_ideal(changed)
    assert play_coupled(changed, matched(changed, {})).total_ns == played.total_ns
    path = critical_path(changed, played)
    assert path.length_ns == played.total_ns and (path.fixed_ns >= 0).all() and (path.own_ns >= path.fixed_ns).all()
    return played.total_ns / 1000


def queued(ids: tuple[int, ...] = (0, 1, 2, 3)) -> Workload:
    """Two launches, each 5 us before its op could begin; the second op stands behind the first."""
    a, b, c, d = ids
    return load(
        [
            N(a, CPU, 10, start_us=0),
            N(b, GPU, 40, ((a, L),), delay_us=5, latency_us=5, start_us=15),
            N(c, CPU, 10, ((a, H),), start_us=10),
            N(d, GPU, 30, ((b, S), (c, L)), latency_us=5, start_us=55),
        ]
    )


@pytest.mark.parametrize("ids", [(0, 1, 2, 3), (9, 8, 7, 6)], ids=["forward", "backward"])
def test_an_op_that_stood_behind_others_begins_a_latency_after_its_launch_once_they_are_fast(
    ids: tuple[int, ...],
) -> None:
    work = queued(ids)
    assert play_ideal(work).total_ns == 85_000 and total_us(work, "kernel=1") == 85
    assert total_us(work, "kernel=0.1") == 20 + 5 + 3
    assert total_us(work, "host=0.5") == 5 + 5 + 40 + 30
    assert total_us(work, "delay=0") == 10 + 40 + 30, "launch latency is a start delay"


def behind_its_launch(*, delay_us: int = 5, latency_us: int = 5) -> Workload:
    """The second op is launched at 70, when the first has ended at 55, and begins ``delay_us`` later, of which latency
    explains some.
    """
    return load(
        [
            N(0, CPU, 10, start_us=0),
            N(1, GPU, 40, ((0, L),), delay_us=5, latency_us=5, start_us=15),
            N(2, CPU, 60, ((0, H),), start_us=10),
            N(3, GPU, 30, ((1, S), (2, L)), delay_us=delay_us, latency_us=latency_us, start_us=70 + delay_us),
        ]
    )


def test_an_op_that_came_behind_its_launch_does_not_wait_for_the_latency_again_behind_a_slower_stream() -> None:
    assert total_us(behind_its_launch(), "kernel=2") == 15 + 80 + 60
    assert total_us(behind_its_launch(delay_us=7), "kernel=2") == 15 + 80 + 2 + 60, (
        "what latency does not explain stays"
    )
    assert total_us(behind_its_launch(), "host=0.5") == 10 + 40 + 30, "launched at 35, behind the first op now"


def test_a_device_delay_is_split_as_a_start_delay_is() -> None:
    work = load(
        [
            N(0, CPU, 10, start_us=0),
            N(1, GPU, 40, ((0, L),), delay_us=5, latency_us=5, start_us=15),
            N(2, CPU, 60, ((0, H),), start_us=10),
            N(3, GPU, 30, ((1, S), (2, L)), name="device delay", latency_us=25, start_us=70),
            N(4, GPU, 30, ((1, S), (2, L), (3, S)), latency_us=25, start_us=100),
        ]
    )
    assert play_ideal(work).total_ns == 130_000 and total_us(work, "kernel=1") == 130
    assert total_us(work, "kernel=2") == 15 + 80 + 5 + 60
    assert total_us(work, "host=0.5") == 35 + 25 + 5 + 30
    assert total_us(work, "delay=0") == 70 + 30


def test_a_stream_takes_its_time_from_op_to_op_beside_a_launch() -> None:
    """``FEW`` ops queued on one stream show 2 us; the one launched to it when it was idle begins 2 us after them if
    they are slower.
    """
    nodes = [N(0, CPU, 10, start_us=0), N(1, GPU, 10, ((0, L),), delay_us=5, latency_us=5, start_us=15)]
    ops = [
        N(i, GPU, 10, ((i - 1, S), (0, L)), delay_us=2, latency_us=5, start_us=15 + 12 * (i - 1))
        for i in range(2, FEW + 3)
    ]
    last = ops[-1].id
    free_us = 15 + 12 * (last - 1) + 10
    late = [N(last + 1, CPU, free_us + 20, ((0, H),), start_us=10)]
    late.append(N(last + 2, GPU, 10, ((last, S), (last + 1, L)), delay_us=5, latency_us=5, start_us=free_us + 35))
    work = load([*nodes, *ops, *late])
    assert total_us(work, "kernel=1") == free_us + 45
    assert total_us(work, "kernel=10") == 15 + 100 + (last - 1) * 102 + 102
    assert total_us(work, "kernel=0.1", "host=0") == 5 + 1 + (last - 1) * 3 + 3
    assert total_us(work, "kernel=0", "host:none|op=1") == free_us + 35, (
        "no time from op to op after a launch that came last"
    )


def test_a_wait_that_is_removed_leaves_the_latency() -> None:
    work = load(
        [
            N(0, CPU, 10, start_us=0),
            N(1, GPU, 40, ((0, L),), delay_us=5, latency_us=5, start_us=15),
            N(2, CPU, 10, ((0, H), (1, Y)), start_us=55),
            N(3, GPU, 30, ((1, S), (2, L)), delay_us=5, latency_us=5, start_us=70),
        ]
    )
    assert total_us(work, remove_sync=("all",)) == 55 + 30


def test_the_slots_of_astra_sim_know_no_latency() -> None:
    work = queued()
    changed = apply(work, Changes((parse_scale("kernel=0.1"),)), {}).work
    assert play_slots(changed).total_ns == 23_000


def test_what_changes_nothing_gains_nothing(tmp_path: Path) -> None:
    for seed in range(8):
        work = recorded(tmp_path, run(random_program(seed, program_shape(seed, 60))), cuda_sync=True)
        assert np.count_nonzero(work.files[0].launch_latency_ns)
        plain = play_ideal(work).total_ns / 1000
        assert total_us(work, "kernel=1") == pytest.approx(plain, rel=2e-4)


@settings(deadline=None)
@given(graphs())
def test_the_critical_path_of_the_file_is_that_of_the_graph(given_: Graph) -> None:
    columns = ("start_ns", "end_ns", "duration_ns", "start_delay_ns", "launch_latency_ns")
    graph = replace(given_, **{name: 1000 * getattr(given_, name) for name in columns})
    cost = cost_ns(graph)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "FEW", 2)
        expected = critical_path_of_graph(graph, replay(graph, cost).end_ns, cost, np.zeros(len(graph.kind), np.uint8))
        work = load([as_written(given_, i) for i in range(len(given_.kind))])
        path = critical_path(work, play_ideal(work))
    assert (path.node.tolist(), path.own_ns.tolist()) == (expected.node.tolist(), expected.cost_ns.tolist())
    spent = by_work(work, path)
    assert (spent["gap"], spent["delay"]) == (expected.gap_ns, expected.delay_ns)


def as_written(graph: Graph, i: int) -> N:
    """A node of a graph in us as a file has it."""
    edges = slice(int(graph.first[i]), int(graph.first[i + 1]))
    deps = zip(graph.source[edges].tolist(), map(EdgeKind, graph.edge_kind[edges].tolist()), strict=True)
    name = {NodeKind.HOST_GAP: "host gap", NodeKind.DEVICE_DELAY: "device delay"}.get(NodeKind(graph.kind[i]), "op")
    sort = GPU if graph.kind[i] in (NodeKind.DEVICE_OP, NodeKind.DEVICE_DELAY) else CPU
    delay_us, latency_us = int(graph.start_delay_ns[i]), int(graph.launch_latency_ns[i])
    return N(
        i,
        sort,
        int(graph.duration_ns[i]),
        tuple(deps),
        name,
        int(graph.start_ns[i]),
        delay_us=delay_us,
        latency_us=latency_us,
    )
