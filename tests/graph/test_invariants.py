"""Each rule of the check on a graph that breaks it alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graphlink.graph.invariants import check
from graphlink.graph_model import Graph
from tests.build import Call, Device, Host, Sync, SyncKind, build_trace
from tests.depend.test_host import graph_of


@pytest.fixture(scope="module")
def graph() -> Graph:
    trace = build_trace(
        host=[Host("op", 0, 100), Host("next", 110, 120), Host("other", 5, 20, tid=2)],
        calls=[
            Call("cudaLaunchKernel", 2, 10, 1),
            Call("cudaLaunchKernel", 11, 13, 3),
            Call("cudaStreamSynchronize", 20, 90, 2),
        ],
        device=[Device("k", 15, 80, 1), Device("m", 15, 40, 3, stream=9)],
        syncs=[Sync(SyncKind.STREAM, 20, 90, 2, stream=7)],
    )
    return graph_of(trace)


def changed(column: np.ndarray, at: int, value: int) -> np.ndarray:  # type: ignore[type-arg]
    out = column.copy()
    out[at] = value
    return out


def rules(graph: Graph) -> set[str]:
    return {f.rule for f in check(graph)}


def test_a_graph_as_built_has_no_findings(graph: Graph) -> None:
    assert check(graph) == ()


def test_what_is_broken_is_found(graph: Graph) -> None:
    last = len(graph.kind) - 1
    kernel = int(np.flatnonzero(graph.stream == 7)[0])
    assert "dependency on a node that is not there" in rules(replace(graph, source=changed(graph.source, 0, last + 1)))
    assert "edge that does not run forward" in rules(replace(graph, source=changed(graph.source, 0, last)))
    assert "negative duration_ns" in rules(replace(graph, duration_ns=changed(graph.duration_ns, 1, -1)))
    assert "node that starts before a lower id" in rules(replace(graph, start_ns=changed(graph.start_ns, last, 0)))
    assert "edge from something later than its target" in rules(
        replace(graph, duration_ns=changed(graph.duration_ns, kernel, 10**9))
    )
    assert "host edge between two threads" in rules(replace(graph, tid=changed(graph.tid, 1, 77)))
    assert "caller with a higher id" in rules(replace(graph, caller=changed(graph.caller, kernel, last)))
    assert any("wrong ends" in rule for rule in rules(replace(graph, edge_kind=changed(graph.edge_kind, 0, 2))))


def test_rounding_of_the_recording_is_allowed_for(graph: Graph) -> None:
    kernel = int(np.flatnonzero(graph.stream == 7)[0])
    late = replace(graph, duration_ns=changed(graph.duration_ns, kernel, int(graph.duration_ns[kernel]) + 900))
    assert rules(late)
    assert check(late, slack_ns=1_000) == ()
