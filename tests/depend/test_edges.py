from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.depend import host
from graphlink.depend.edges import Edges, Unordered, number
from graphlink.errors import InputError
from graphlink.graph_model import EdgeKind
from tests.build import Host, build_trace
from tests.depend.test_host import graph_of


def edges(*pairs: tuple[int, int]) -> Edges:
    return Edges.of(EdgeKind.HOST, np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64))


graphs = st.integers(2, 30).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 4), min_size=n, max_size=n),
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda p: p[0] < p[1]), max_size=3 * n),
        st.permutations(range(n)),
    )
)


@given(graphs, st.sampled_from([0, 64]))
def test_every_edge_runs_forward_and_starts_ascend(
    graph: tuple[list[int], list[tuple[int, int]], list[int]], quick_rounds: int
) -> None:
    """Whatever the starts: where one lies before that of a source it is moved up, by no more than it must."""
    starts, pairs, names = graph
    pairs = [(names[a], names[b]) for a, b in pairs]
    given_starts = np.array(starts, np.int64)
    order, moved_ns = number(given_starts, np.arange(len(starts)), edges(*pairs), quick_rounds=quick_rounds)
    place = np.argsort(order)
    assert all(place[a] < place[b] for a, b in pairs)
    assert (np.diff(moved_ns[order]) >= 0).all()
    assert (moved_ns >= given_starts).all()
    for node in range(len(starts)):
        sources = [moved_ns[a] for a, b in pairs if b == node]
        assert moved_ns[node] == max([given_starts[node], *sources])


def test_a_cycle_is_named_in_order() -> None:
    pairs = [(0, 1), (1, 2), (2, 3), (3, 1), (3, 4)]
    with pytest.raises(Unordered) as error:
        number(np.zeros(5, np.int64), np.arange(5), edges(*pairs))
    cycle = error.value.nodes
    assert sorted(cycle) == [1, 2, 3]
    assert all((a, b) in pairs for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True))


def test_a_cycle_in_a_graph_is_told_node_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """No recording is known to make one, so an edge that runs back is put in."""
    back = (np.array([1], np.int32), np.array([0], np.int32))
    monkeypatch.setattr(host, "forward_backward", lambda linked: back)
    with pytest.raises(InputError) as error:
        graph_of(build_trace(host=[Host("first", 0, 10), Host("second", 10, 20)]))
    told = str(error.value)
    assert "host_op first at 0.000 us -host->" in told
    assert "host_op second at 10.000 us -thread->" in told
    assert len(told.splitlines()) <= 5


def test_one_edge_a_pair_with_the_evidence_of_all() -> None:
    a, b = np.array([0]), np.array([1])
    joined = Edges.join([Edges.of(EdgeKind.SYNC, a, b, 4), Edges.of(EdgeKind.EVENT, a, b, 1)])
    assert (joined.kind.tolist(), joined.found_by.tolist()) == ([EdgeKind.EVENT], [5])
