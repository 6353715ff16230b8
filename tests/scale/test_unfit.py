"""Graphs that are not as graphlink writes them are refused before anything is copied."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graphlink.graph_model import UNKNOWN_DEP, Graph
from graphlink.scale.copies import unfit
from tests.scale.clusters import MIXED, Linked, graphs_of


@pytest.fixture
def sound(linked: Linked) -> tuple[Graph, dict[int, tuple[int, ...]]]:
    graphs, groups = graphs_of(linked(MIXED))
    return graphs[3], groups


def changed(column: np.ndarray, at: int, value: int) -> np.ndarray:  # type: ignore[type-arg]
    out = column.copy()
    out[at] = value
    return out


def test_a_recorded_graph_is_fit(sound: tuple[Graph, dict[int, tuple[int, ...]]]) -> None:
    graph, groups = sound
    assert unfit(graph, 3, range(8), groups) is None


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("made", lambda g: replace(g, metadata=replace(g.metadata, made="graphlink scale"))),
        ("no recorded graph", lambda g: replace(g, metadata=replace(g.metadata, graphlink=None))),
        ("all host nodes", lambda g: replace(g, metadata=replace(g.metadata, host="launches"))),
        ("ids", lambda g: replace(g, read=replace(g.file, id=changed(g.id, 3, 99_999)))),
        ("have no kind", lambda g: replace(g, edge_kind=changed(g.edge_kind, 3, UNKNOWN_DEP))),
        ("lead back", lambda g: replace(g, source=changed(g.source, 3, len(g.name) - 1))),
        ("below 0", lambda g: replace(g, duration_ns=changed(g.duration_ns, 3, -1))),
        ("of a type", lambda g: replace(g, type=changed(g.type, 3, 2))),
    ],
)
def test_what_is_not_as_graphlink_writes_it_is_told(
    sound: tuple[Graph, dict[int, tuple[int, ...]]], name: str, change
) -> None:  # type: ignore[no-untyped-def]
    graph, groups = sound
    assert name in (unfit(change(graph), 3, range(8), groups) or "")


def test_communicators_and_messages_are_of_ranks_that_are_there(
    sound: tuple[Graph, dict[int, tuple[int, ...]]],
) -> None:
    graph, groups = sound
    used = int(graph.group.max())
    assert f"communicator {used}" in (unfit(graph, 3, range(8), {g: m for g, m in groups.items() if g != used}) or "")
    assert "communicator" in (unfit(graph, 3, range(8), {**groups, used: (0, 1)}) or "")
    assert unfit(graph, 3, range(7), {g: tuple(r for r in m if r < 7) for g, m in groups.items()}) is not None
