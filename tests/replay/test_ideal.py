from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.graph.critical import Share, cost_ns, critical_path, shares
from graphlink.graph_model import EdgeKind, NodeKind
from graphlink.model import NOWHERE
from graphlink.replay.machines import measured_ns, replay
from tests.pipeline.hand import ALL_REDUCE, N, communication, every_kind, graph, records


def test_a_node_starts_when_the_last_of_its_dependencies_ends() -> None:
    g = every_kind()
    played = replay(g, cost_ns(g))
    assert played.start_ns.tolist() == [0, 10_400, 10_400, 12_400, 0, 0, 30_000, 60_000, 90_000, 90_000, 130_000]
    assert played.total_ns == 130_000
    assert measured_ns(g) == 150_000


def test_the_critical_path_and_what_it_is_made_of() -> None:
    g = every_kind()
    cost = cost_ns(g)
    path = critical_path(g, replay(g, cost).end_ns, cost, shares(g, records(), communication(ALL_REDUCE)))
    assert path.node.tolist() == [0, 2, 6, 7, 9, 10]
    assert path.edge.tolist() == [NOWHERE, EdgeKind.HOST, EdgeKind.HOST, EdgeKind.HOST, EdgeKind.LAUNCH, EdgeKind.SYNC]
    assert path.share_ns == {"host": 60_000, "compute": 0, "communication": 40_000, "copy": 0, "idle": 30_000}
    assert (path.length_ns, path.gap_ns, path.delay_ns) == (130_000, 30_000, 0)


def test_start_delays_are_idle() -> None:
    g = graph(
        [N(NodeKind.DEVICE_OP, 0, 0, 9, 7, delay=2), N(NodeKind.DEVICE_DELAY, 0, 9, 12, 3, ((0, EdgeKind.STREAM),))]
    )
    cost = cost_ns(g)
    path = critical_path(g, replay(g, cost).end_ns, cost, shares(g, records(), communication()))
    assert (path.share_ns["compute"], path.share_ns["idle"], path.delay_ns, path.length_ns) == (7, 5, 5, 12)


@given(st.data())
def test_replay_and_path_agree_with_the_definition(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 25))
    nodes = []
    for i in range(count):
        deps = data.draw(st.sets(st.integers(0, i - 1), max_size=4)) if i else set()
        nodes.append(
            N(NodeKind.HOST_GAP, NOWHERE, i, i, data.draw(st.integers(0, 9)), tuple((d, EdgeKind.HOST) for d in deps))
        )
    g = graph(nodes)
    cost = cost_ns(g)
    played = replay(g, cost)
    for i, node in enumerate(nodes):
        assert played.start_ns[i] == max((played.end_ns[d] for d, _ in node.deps), default=0)
    path = critical_path(g, played.end_ns, cost, np.full(count, Share.HOST, np.uint8))
    assert path.length_ns == played.total_ns == sum(path.share_ns.values())
    assert played.start_ns[path.node[0]] == 0
    for a, b in zip(path.node[:-1].tolist(), path.node[1:].tolist(), strict=True):
        assert played.end_ns[a] == played.start_ns[b]


@pytest.mark.parametrize("count", [0])
def test_an_empty_graph(count: int) -> None:
    g = graph([])
    played = replay(g, cost_ns(g))
    assert (played.total_ns, measured_ns(g)) == (count, 0)
    assert critical_path(g, played.end_ns, cost_ns(g), np.zeros(0, np.uint8)).length_ns == 0
