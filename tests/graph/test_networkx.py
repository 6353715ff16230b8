"""The networkx export says what the graph says."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from graphlink.graph.networkx import to_networkx
from graphlink.graph_model import EdgeKind
from graphlink.run import job

DEMO = Path(__file__).parents[2] / "fixtures" / "demo"


def test_nodes_and_edges_are_those_of_the_graph() -> None:
    prepared = job.prepare(job.Inputs(kineto=DEMO / "kineto_0.json", et=DEMO / "et_0.json"), job.Options(sync="cuda"))
    graph = prepared.built.graph
    whole = to_networkx(graph)
    assert [whole.nodes[i]["name"] for i in range(len(graph.kind))] == [graph.strings[k] for k in graph.name.tolist()]
    target = np.repeat(np.arange(len(graph.kind)), np.diff(graph.first))
    edges = {
        (s, t): EdgeKind(k).name.lower()
        for s, t, k in zip(graph.source.tolist(), target.tolist(), graph.edge_kind, strict=True)
    }
    assert {(a, b): data["kind"] for a, b, data in whole.edges(data=True)} == edges
    window = to_networkx(graph, range(50, 80))
    assert set(window) == set(range(50, 80))
    assert set(window.edges) == {(a, b) for a, b in edges if a in range(50, 80) and b in range(50, 80)}
