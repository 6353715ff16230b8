"""CUDA graphs with branches on 8 streams, read from what PyTorch's own recorder writes of them: their edges are the
truth, lanes are labels, counters those of the work, and what a change would save is what it saves.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import numpy as np
import pytest

from graphlink.graph.critical import cost_ns
from graphlink.graph_model import Graph, NodeKind
from graphlink.operations.on_device import lanes_of, sampled
from graphlink.read.kineto import read_kineto
from graphlink.replay.machines import replay
from graphlink.steps import steps_of
from tests.depend.test_host import graph_of
from tests.depend.test_replays import ops_of, reached
from tests.simulator.cuspy import COUNTER, Program, document, run, write

SEEDS = [pytest.param(seed, marks=() if seed < 12 else pytest.mark.long) for seed in range(300)]


def graph_from(path: Path, **how: object) -> Graph:
    seed = int(path.stem.rpartition("_")[2])
    return graph_of(read_kineto(write(path, document(run(Program.random(seed)), **how))))


@pytest.mark.parametrize("seed", SEEDS)
def test_edges_inside_a_replay_are_the_truth(seed: int, tmp_path: Path) -> None:
    graph, program = graph_from(tmp_path / f"kineto_{seed}.json"), Program.random(seed)
    count = len(program.after)
    true = np.zeros((count, count), np.bool_)
    for node, before in enumerate(program.after):
        for other in before:
            true[:, node] |= true[:, other]
            true[other, node] = True
    for launch in (k for k, what in enumerate(program.what, start=1) if what == "r"):
        ops = ops_of(graph, launch)
        inside = np.zeros(len(graph.name), np.bool_)
        inside[list(ops.values())] = True
        at = [ops[node] for node in range(count)]
        assert (reached(graph, within=inside)[np.ix_(at, at)] == true).all()


@pytest.mark.parametrize("seed", range(6))
def test_a_binary_trace_and_lanes_change_nothing_but_labels(seed: int, tmp_path: Path) -> None:
    plain = graph_from(tmp_path / f"kineto_{seed}.json")
    for name, lanes in (
        (f"kineto_{seed}.pftrace", False),
        (f"lanes_{seed}.json", True),
        (f"lanes_{seed}.pftrace", True),
    ):
        other = graph_from(tmp_path / name, lanes=lanes)
        for column in ("kind", "start_ns", "end_ns", "stream", "first", "source", "edge_kind", "start_delay_ns"):
            assert np.array_equal(getattr(plain, column), getattr(other, column)), (name, column)
        layers = Program.random(seed).layer if lanes else []
        found = {lane.name: lane.device_ops for lane in lanes_of(other.linked)}
        assert found == {f"layer {layer}": 3 * layers.count(layer) for layer in layers}


def _predicted(graph: Graph, factor: float) -> int:
    """The end of a replay with all device work ``factor`` times as long."""
    cost = cost_ns(graph)
    work = (graph.kind == NodeKind.DEVICE_OP) & (graph.device >= 0)
    cost[work] += np.rint(graph.duration_ns[work] * (factor - 1)).astype(np.int64)
    return int(replay(graph, cost).total_ns)


def test_what_ifs_are_within_three_quarters_of_a_percent(tmp_path: Path) -> None:
    off = []
    for seed in range(12):
        graph, program = graph_from(tmp_path / f"kineto_{seed}.json"), Program.random(seed)
        recorded = run(program).end_ns
        for factor in (0.5, 2.0):
            saved = _predicted(graph, 1.0) - _predicted(graph, factor)
            off.append(100 * abs((recorded - saved) / run(program, factor).end_ns - 1))
    assert median(off) <= 0.75


@pytest.mark.parametrize("name", ["kineto_3.json", "kineto_3.pftrace"])
def test_counters_show_what_ran(name: str, tmp_path: Path) -> None:
    """One kernel at a time: what the counter shows of its own time is what was planted, idle time shows 0."""
    program = Program([[]], [400_000], [0], what="kkrkr")
    recorded = run(program)
    path = write(tmp_path / name, document(recorded, busy_pct=80.0))
    linked = graph_of(read_kineto(path)).linked
    found = {(one.of, one.name): one.means.get(COUNTER) for one in sampled(linked, steps_of(linked))}
    first, last = recorded.device[0]["start"], recorded.device[-1]["end"]
    busy = sum(row["end"] - row["start"] for row in recorded.device)
    assert found["device", ""] == pytest.approx(80 * busy / (last - first), rel=0.02)
    assert found["kernel", "n0"] == pytest.approx(80, rel=0.03)
    assert found["kernel", "kernel"] is None  # 4 us in samples of 20
