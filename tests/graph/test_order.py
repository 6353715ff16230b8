"""The longest path by chains against the plain one."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphlink.graph.order import longest_path
from graphlink.graph_model import IncomingEdges


@st.composite
def graphs(draw: Any) -> tuple[list[list[int]], list[int], list[list[int]]]:
    """Dependencies of each node, mostly the one before it, its cost, and the lag of each dependency."""
    deps, lags = [], []
    for node in range(draw(st.integers(0, 30))):
        other = draw(st.sets(st.integers(0, node - 1), max_size=3)) if node else set()
        deps.append(sorted(draw(st.sampled_from([{node - 1}, {node - 1} | other, other])) if node else ()))
        lags.append([draw(st.sampled_from([0, 0, 3, 50])) for _ in deps[-1]])
    return deps, [draw(st.integers(0, 20)) for _ in deps], lags


@given(graphs(), st.booleans())
def test_longest_path_is_the_plain_one(
    graph: tuple[list[list[int]], list[int], list[list[int]]], lagging: bool
) -> None:
    deps, costs, lags = graph
    ends: list[int] = []
    for before, cost, late in zip(deps, costs, lags, strict=True):
        ends.append(max([ends[b] + lag * lagging for b, lag in zip(before, late, strict=True)], default=0) + cost)
    source = np.array([b for before in deps for b in before], np.int32)
    target = np.repeat(np.arange(len(deps)), [len(before) for before in deps])
    edges = IncomingEdges.of(len(deps), source, target)
    lag = np.array([lag for late in lags for lag in late], np.int64) if lagging else None
    assert longest_path(edges.first, edges.source, np.array(costs, np.int64), lag).tolist() == ends
