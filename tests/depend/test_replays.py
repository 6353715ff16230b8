"""Recorded dependencies inside CUDA graphs. Times are us."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from graphlink.depend.replays import replays
from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.model import NOWHERE, GraphDeps, SyncKind, Trace
from tests.build import Call, Device, Host, Sync, build_trace
from tests.depend.test_host import graph_of

MAIN, SIDES = 7, (142, 143, 144)


def deps_of(after: list[list[int]], graph: int = 2) -> GraphDeps:
    """Dependencies of nodes by number; a node that waits for none hangs on the launch."""
    pairs = [(node, before) for node, all_before in enumerate(after) for before in all_before or [NOWHERE]]
    node, before = np.array(pairs, np.int64).T
    return GraphDeps(np.full(len(node), graph), node, before)


class Program:
    """Replays of one graph and kernels, launched on ``MAIN`` one after the other."""

    def __init__(self, after: list[list[int]], streams: list[int], took: list[float]) -> None:
        self.after, self.streams, self.took = after, streams, took
        self.calls: list[Call] = []
        self.device: list[Device] = []
        self.done = 10.0

    def _call(self, name: str) -> int:
        number = len(self.calls) + 1
        self.calls.append(Call(name, 2.0 * number, 2.0 * number + 1, number))
        return number

    def replay(self) -> None:
        launch, begun, free, ends = self._call("cudaGraphLaunch"), self.done, dict[int, float](), list[float]()
        for node, (before, stream, took) in enumerate(zip(self.after, self.streams, self.took, strict=True)):
            start = max([begun, free.get(stream, 0.0), *(ends[other] for other in before)]) + 1
            ends.append(start + took)
            free[stream] = ends[-1]
            self.device.append(Device(f"n{node}", start, ends[-1], launch, stream, graph=2, graph_node=node))
        self.done = max(ends)

    def kernel(self) -> None:
        self.device.append(Device("k", self.done + 1, self.done + 5, self._call("cudaLaunchKernel"), MAIN))
        self.done += 5

    def trace(self) -> Trace:
        sync = self._call("cudaDeviceSynchronize")
        self.calls[-1] = Call("cudaDeviceSynchronize", 900, self.done + 1000, sync)
        trace = build_trace(
            host=[Host("op", 0, self.done + 1100), Host("next", self.done + 1200, self.done + 1300)],
            calls=self.calls,
            device=self.device,
            syncs=[Sync(SyncKind.DEVICE, 900, self.done + 1000, sync)],
        )
        return replace(trace, graph_deps=deps_of(self.after))


def reached(graph: Graph, *, within: np.ndarray | None = None) -> np.ndarray:
    """Which nodes come before which others, as a matrix; by edges ``within`` some nodes alone."""
    out = np.zeros((len(graph.name), len(graph.name)), np.bool_)
    for source, target in zip(graph.source.tolist(), graph.target.tolist(), strict=True):
        if within is None or (within[source] and within[target]):
            out[:, target] |= out[:, source]
            out[source, target] = True
    return out


def ops_of(graph: Graph, launch: int) -> dict[int, int]:
    """The node of each node of the CUDA graph in one replay."""
    device = graph.linked.trace.device
    ops = np.flatnonzero(graph.kind == NodeKind.DEVICE_OP)
    ops = ops[device.correlation[graph.row[ops]] == launch]
    return {int(device.graph_node[graph.row[op]]): int(op) for op in ops}


@pytest.mark.parametrize(
    "seed", [seed if seed < 30 else pytest.param(seed, marks=pytest.mark.long) for seed in range(100)]
)
def test_random_graphs_have_their_own_edges_and_no_others(seed: int) -> None:
    """Inside a replay; and what is launched before and after it on its stream comes before and after all of it."""
    choose = random.Random(seed)
    count = choose.randint(1, 14)
    after = [sorted(choose.sample(range(node), min(node, choose.choice((0, 1, 1, 2, 3))))) for node in range(count)]
    streams = [MAIN, *(choose.choice((MAIN, *SIDES)) for _ in range(count - 1))]
    program = Program(after, streams, [choose.uniform(1, 60) for _ in range(count)])
    program.kernel()
    program.replay()
    if choose.random() < 0.5:
        program.kernel()
    program.replay()
    program.kernel()
    graph = graph_of(program.trace())
    reach = reached(graph)
    kernels = [int(op) for op in np.flatnonzero(graph.kind == NodeKind.DEVICE_OP) if graph.name_of(op) == "k"]
    [following] = [node for node in range(len(graph.name)) if graph.name_of(node) == "next"]
    true = np.zeros((count, count), np.bool_)
    for node, before in enumerate(after):
        for other in before:
            true[:, node] |= true[:, other]
            true[other, node] = True
    launches = [call.correlation for call in program.calls if call.name == "cudaGraphLaunch"]
    replayed = [ops_of(graph, launch) for launch in launches]
    for ops in replayed:
        inside = np.zeros(len(graph.name), np.bool_)
        inside[list(ops.values())] = True
        own = reached(graph, within=inside)
        found = own[np.ix_([ops[node] for node in range(count)], [ops[node] for node in range(count)])]
        assert (found == true).all()
        assert all(reach[op, kernels[-1]] and reach[kernels[0], op] and reach[op, following] for op in ops.values())
    assert all(reach[a, b] for a in replayed[0].values() for b in replayed[1].values())


def test_an_edge_on_one_stream_is_a_stream_edge_and_counts_as_recorded() -> None:
    program = Program([[], [0], [0]], [MAIN, MAIN, 142], [10, 10, 10])
    program.replay()
    graph = graph_of(program.trace())
    ops = ops_of(graph, 1)
    kinds = {
        (int(source), int(target)): EdgeKind(int(kind))
        for source, target, kind in zip(graph.source, graph.target, graph.edge_kind, strict=True)
    }
    assert kinds[ops[0], ops[1]] == EdgeKind.STREAM
    assert kinds[ops[0], ops[2]] == EdgeKind.EVENT
    assert (ops[1], ops[2]) not in kinds


def test_without_recorded_dependencies_streams_order_the_nodes() -> None:
    program = Program([[], []], [142, 142], [10, 10])
    program.replay()
    program.kernel()
    graph = graph_of(replace(program.trace(), graph_deps=None))
    ops = ops_of(graph, 1)
    assert reached(graph)[ops[0], ops[1]]


def test_a_node_of_which_nothing_is_told_stays_in_the_order_of_its_stream() -> None:
    """What is in a graph inside the graph has no dependencies."""
    program = Program([[], [], []], [142, 142, 142], [10, 10, 10])
    program.replay()
    trace = program.trace()
    graph = graph_of(replace(trace, graph_deps=deps_of([[], []])))
    ops = ops_of(graph, 1)
    reach = reached(graph)
    assert not reach[ops[0], ops[1]]
    assert reach[ops[1], ops[2]]
    assert reach[ops[0], ops[2]]


def test_a_body_that_ran_again_stays_in_the_order_of_its_stream() -> None:
    program = Program([[], []], [142, 142], [10, 10])
    program.replay()
    again = [device._replace(graph_node=0) for device in program.device]
    trace = build_trace(host=[Host("op", 0, 2000)], calls=program.calls, device=again)
    assert (replays(replace(trace, graph_deps=deps_of([[], []]))).number == NOWHERE).all()


def test_a_launch_stream_that_recorded_times_contradict_is_none() -> None:
    """A kernel on the only stream of the graph that has others runs beside the graph: it was launched elsewhere."""
    program = Program([[], []], [MAIN, 142], [10, 400])
    program.replay()
    deps, calls = deps_of([[], []]), [*program.calls, Call("cudaLaunchKernel", 6, 7, 9)]
    homes = []
    for start in (30, 500):
        device = [*program.device, Device("k", start, start + 10, 9, MAIN)]
        trace = build_trace(host=[Host("op", 0, 2000)], calls=calls, device=device)
        homes.append(replays(replace(trace, graph_deps=deps)).home.tolist())
    assert homes == [[0, 1, 0], [0, 0, 0]]
