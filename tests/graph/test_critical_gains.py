"""Slack and gains against brute force: a replay for every answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlink.graph import gains, latency, order, relief
from graphlink.graph import slack as slack_module
from graphlink.graph.critical import SHARES, CriticalChain, Share, ShareNs, cost_ns, critical_path
from graphlink.graph.gains import Gains, top_gains
from graphlink.graph.latency import costs
from graphlink.graph.order import longest_path
from graphlink.graph.slack import NEVER, Slack, crossing, least_over, slack, without_queues
from graphlink.graph.syncpoints import SyncPoint, sync_gains, sync_points
from graphlink.graph_model import EdgeKind, Graph, NodeKind, NodeRows
from graphlink.model import NOWHERE, U8
from graphlink.replay.machines import replay
from tests.pipeline.hand import N, graph, records

K, E = NodeKind, EdgeKind


class Replayed(NamedTuple):
    graph: Graph
    slack: Slack
    path: CriticalChain
    share: U8


def replayed(g: Graph, name: list[int] | None = None) -> Replayed:
    cost = cost_ns(g)
    share = np.where(g.kind == K.DEVICE_OP, Share.COMPUTE, Share.HOST).astype(np.uint8)
    share[np.isin(g.kind, (K.HOST_GAP, K.DEVICE_DELAY))] = Share.IDLE
    end = replay(g, cost).end_ns
    late = slack(g, end, cost)
    code = np.array(range(len(g.kind)) if name is None else name, np.int32)
    g = replace(g, name=code, strings=tuple(map(str, range(int(code.max(initial=-1)) + 1))))
    return Replayed(g, late, critical_path(g, end, cost, share), share)


def gains_of(r: Replayed, top: int = 100) -> Gains:
    return top_gains(r.graph, records(), (r.slack, without_queues(r.graph, r.slack, cost_ns(r.graph))), *r[2:], top)[0]


@pytest.fixture(autouse=True, scope="module")
def _few_ops_show_what_is_usual() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latency, "FEW", 2)
        yield


def split(g: Graph) -> tuple[np.ndarray, np.ndarray]:
    return costs(g, replay(g, cost_ns(g)).end_ns, cost_ns(g))


def total(g: Graph, less: np.ndarray | int = 0, without: tuple[int, ...] = ()) -> int:
    """The replay with launches beside all else, less some costs and edges."""
    keep = np.ones(len(g.source), np.bool_)
    keep[list(without)] = False
    first = np.append(0, np.cumsum(keep))[g.first]
    return int(longest_path(first, g.source[keep], split(g)[0] - less, split(g)[1][keep]).max(initial=0))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Threads and streams with launches, waits, and edges from anywhere; parts of ops; some start delays."""
    lanes = draw(st.integers(1, 4))
    last: dict[int, int] = {}
    op: dict[int, int] = {}
    nodes: list[N] = []
    for i in range(draw(st.integers(1, 40))):
        lane = draw(st.integers(0, lanes - 1))
        host = lane < (lanes + 1) // 2
        deps: dict[int, EdgeKind] = {}
        for source in draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else ():
            mixed = nodes[source].kind in (K.DEVICE_OP, K.DEVICE_DELAY)
            deps[source] = (E.SYNC if mixed else E.THREAD) if host else (E.EVENT if mixed else E.LAUNCH)
        if lane in last and draw(st.integers(0, 9)):
            deps[last[lane]] = E.HOST if host else E.STREAM
        kind = draw(
            st.sampled_from(
                (K.HOST_OP, K.HOST_PART, K.HOST_GAP) if host else (K.DEVICE_OP, K.DEVICE_OP, K.DEVICE_DELAY)
            )
        )
        row = i
        if kind == K.HOST_PART:
            row = op.get(lane, i)
        elif kind == K.HOST_OP:
            op[lane] = i
        delay = draw(st.sampled_from((0, 0, 1, 3))) if kind == K.DEVICE_OP else 0
        latency = 0 if host else draw(st.sampled_from((0, 2, 5)))
        ns = draw(st.integers(0, 12))
        nodes.append(N(kind, row, i, i, ns, tuple(deps.items()), delay=delay, latency=latency, tid=lane if host else 0))
        last[lane] = i
    return graph(nodes)


@settings(deadline=None)
@given(graphs())
def test_slack_is_how_much_longer_a_node_could_take(g: Graph) -> None:
    ends, cost, lag = replay(g, cost_ns(g)).end_ns, split(g)[0], split(g)[1]
    found = slack(g, ends, cost_ns(g))
    assert longest_path(g.first, g.source, cost, lag).tolist() == ends.tolist(), "as recorded with all as recorded"
    for v in range(len(g.kind)):
        more = np.zeros(len(g.kind), np.int64)
        more[v] = found.node_ns[v]
        assert total(g, -more) == total(g)
        more[v] += 1
        assert total(g, -more) == total(g) + 1
    edge = 0
    for v in range(len(g.kind)):
        for source in g.source[g.first[v] : g.first[v + 1]].tolist():
            start = ends[v] - cost[v]
            end = ends[source] + lag[edge]
            assert found.gap_ns[edge] == start - end
            assert found.edge_ns[edge] == found.node_ns[v] + start - end
            edge += 1


@given(st.integers(1, 40), st.data())
def test_the_least_interval_over_each_place(count: int, data: st.DataObject) -> None:
    bound = st.integers(0, count)
    given_ = data.draw(st.lists(st.tuples(bound, bound, st.integers(0, 99)), max_size=30))
    low, high, value = (np.array([t[k] for t in given_], np.int64) for k in range(3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slack_module, "_RUN", data.draw(st.sampled_from((2, 3, 64))))
        found = least_over(count, low, high, value)
    assert found.tolist() == [min((v for a, b, v in given_ if a <= i < b), default=NEVER) for i in range(count)]


@given(graphs(), st.integers(1, 5), st.data())
def test_passes_by_blocks_are_those_of_the_whole(g: Graph, block: int, data: st.DataObject) -> None:
    whole = replayed(g)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "BLOCK", block)
        parts = replayed(g)
        nodes = np.array(sorted(data.draw(st.sets(st.sampled_from(range(len(g.kind)))))), np.int32)
        across_nodes = {past: crossing(g, parts.slack, nodes, past=past, below_ns=9) for past in (False, True)}
    for column in ("start_ns", "end_ns", "node_ns", "gap_ns", "edge_ns"):
        assert np.array_equal(getattr(parts.slack, column), getattr(whole.slack, column))
    assert parts.path.node.tolist() == whole.path.node.tolist()
    assert parts.path.dependency.tolist() == whole.path.dependency.tolist()
    assert gains_of(parts) == gains_of(whole)
    target = np.repeat(np.arange(len(g.kind)), np.diff(g.first))
    for past, found in across_nodes.items():
        across = {
            e: [i for i, v in enumerate(nodes.tolist()) if g.source[e] < v <= target[e] - past]
            for e in range(len(g.source))
        }
        lost = {e: int(whole.slack.edge_ns[e]) for e in across if across[e] and whole.slack.edge_ns[e] < 9}
        of_edge = found.edge != NOWHERE
        assert dict(zip(found.edge[of_edge].tolist(), found.loss_ns[of_edge].tolist(), strict=True)) == lost
        for e, low, high in zip(
            found.edge[of_edge].tolist(), found.low[of_edge].tolist(), found.high[of_edge].tolist(), strict=True
        ):
            assert across[e] == list(range(low, high))


@settings(deadline=None)
@given(graphs(), st.data())
def test_relief_of_any_sets_is_what_replays_say(g: Graph, data: st.DataObject) -> None:
    count, sets = len(g.kind), data.draw(st.integers(1, 5))
    less = np.zeros((sets, count), np.int64)
    for k in range(sets):
        for v in data.draw(st.sets(st.integers(0, count - 1))):
            less[k, v] = data.draw(st.integers(0, int(min(g.duration_ns[v], split(g)[0][v]))))
    r = replayed(g)
    column, node = np.nonzero(less)
    bound = less[:, r.path.node].sum(axis=1)
    found = relief.gains(g, r.slack, relief.Relief(column, node, less[column, node]), bound)
    assert found.tolist() == [total(g) - total(g, row) for row in less]


@settings(deadline=None)
@given(graphs(), st.data())
def test_gains_of_ops_families_and_shares(g: Graph, data: st.DataObject) -> None:
    count = len(g.kind)
    name = data.draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
    r = replayed(g, name)
    found = gains_of(r)
    whole, work = total(g), g.duration_ns

    def gain(nodes: np.ndarray | list[int]) -> int:
        less = np.zeros(count, np.int64)
        less[nodes] = np.minimum(work, split(g)[0])[nodes]
        return whole - total(g, less)

    assert {int(f.name): f.gain_ns for f in found.families} == {
        code: known for code in set(name) if (known := gain(np.array(name) == code)) > 0
    }
    ops: dict[tuple[int, int], list[int]] = {}
    rows = {int(g.row[v]) for v in range(count) if g.kind[v] == K.HOST_OP}
    for v in range(count):
        if g.kind[v] not in (K.HOST_GAP, K.DEVICE_DELAY, K.END):
            part = g.kind[v] in (K.HOST_OP, K.HOST_PART) and int(g.row[v]) in rows
            ops.setdefault((1, int(g.row[v])) if part else (0, v), []).append(v)
    true = sorted((known for nodes in ops.values() if (known := gain(nodes)) > 0), reverse=True)
    assert [f.gain_ns for f in found.ops] == true
    for f in found.ops:
        assert gain(f.nodes) == f.gain_ns
    assert (found.ops_others_at_most_ns, found.families_others_at_most_ns) == (0, 0)
    for s in Share:
        own = np.minimum(work, split(g)[0])
        if s == Share.IDLE:
            without_delays = longest_path(g.first, g.source, np.where(r.share == s, 0, own))
            assert found.shares.idle == whole - int(without_delays.max(initial=0)) <= r.path.share_ns["idle"]
        else:
            assert getattr(found.shares, s.name.lower()) == whole - total(g, np.where(r.share == s, own, 0))


def test_what_a_full_queue_held_goes_with_the_kernels_that_filled_it() -> None:
    """The second launch costs 100 ns, 99 of which the queue held it, until the first kernel had ended."""
    nodes = [
        N(K.HOST_OP, 0, 0, 1, 1),
        N(K.HOST_OP, 1, 1, 101, 100, ((0, E.HOST),), wake=99),
        N(K.DEVICE_OP, 2, 1, 101, 100, ((0, E.LAUNCH),)),
        N(K.DEVICE_OP, 3, 101, 201, 100, ((1, E.LAUNCH), (2, E.STREAM))),
    ]
    found = gains_of(replayed(graph(nodes), [0, 0, 1, 1]))
    assert found.shares.compute == 199 == next(f.gain_ns for f in found.families if f.name == "1")
    assert found.shares.host == 1  # the kernels take as long without the launches


def test_staging_goes_with_the_copy_that_is_staged() -> None:
    """A copy from pageable memory and the rest of the op that launched it ran side by side: neither is quicker."""
    nodes = [
        N(K.HOST_OP, 0, 0, 10, 10),
        N(K.DEVICE_OP, 1, 10, 110, 100, ((0, E.LAUNCH),)),
        N(K.HOST_PART, 0, 10, 110, 100, ((0, E.HOST),)),
        N(K.HOST_OP, 2, 110, 130, 20, ((2, E.HOST),)),
    ]
    r = replayed(graph(nodes))
    pageable = replace(r.graph, strings=tuple(f"{k} (Pageable -> Device)" * (k == 1) for k in range(4)))
    assert [gains_of(r._replace(graph=each)).shares.compute for each in (r.graph, pageable)] == [0, 100]


@settings(deadline=None)
@given(graphs(), st.data())
def test_the_gain_of_an_operation_is_that_of_its_nodes(g: Graph, data: st.DataObject) -> None:
    count = len(g.kind)
    label = np.array(data.draw(st.lists(st.integers(NOWHERE, 5), min_size=count, max_size=count)), np.int32)
    r = replayed(g)
    found = top_gains(r.graph, records(), (r.slack, r.slack), *r[2:], operation=label)[1]
    assert len(found) == label.max(initial=NOWHERE) + 1
    for code, gain in enumerate(found.tolist()):
        assert gain == total(g) - total(g, np.where(label == code, np.minimum(g.duration_ns, split(g)[0]), 0))


@settings(deadline=None)
@given(graphs(), st.data())
def test_what_is_not_listed_gains_no_more_than_is_said(g: Graph, data: st.DataObject) -> None:
    count = len(g.kind)
    name = data.draw(st.lists(st.integers(0, 15), min_size=count, max_size=count))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gains, "WIDTH", 2)
        patch.setattr(gains, "ROUNDS", data.draw(st.integers(1, 3)))
        found = gains_of(replayed(g, name), top=2)
    assert len(found.families) <= 2
    listed = {int(f.name): f.gain_ns for f in found.families}
    for code in set(name):
        gain = total(g) - total(g, np.where(np.array(name) == code, np.minimum(g.duration_ns, split(g)[0]), 0))
        assert gain == listed[code] if code in listed else gain <= found.families_others_at_most_ns


def test_of_parallel_paths_the_longer_gains_only_what_it_is_longer() -> None:
    """Two streams at once: 100 us against 90. Share and gain of the kernel on the path differ by a factor of ten."""
    g = graph(
        [
            N(K.HOST_OP, 0, 0, 1, 1_000, tid=1),
            N(K.DEVICE_OP, 0, 1, 2, 100_000, ((0, E.LAUNCH),), stream=7),
            N(K.DEVICE_OP, 1, 1, 2, 90_000, ((0, E.LAUNCH),), stream=8),
            N(K.END, NOWHERE, 3, 3, 0, ((1, E.SYNC), (2, E.SYNC)), tid=1),
        ]
    )
    found = gains_of(replayed(g, [0, 1, 2, 3]))
    assert [(f.name, f.on_path_ns, f.gain_ns) for f in found.families] == [("1", 100_000, 10_000), ("0", 1_000, 1_000)]
    assert [(f.name, f.gain_ns) for f in gains_of(replayed(g, [0, 1, 1, 3])).families] == [("1", 100_000), ("0", 1_000)]
    assert found.shares.compute == 100_000


def waiting() -> Graph:
    """An op that waits inside for a kernel of 50 (node 2: its part), is followed by one that must wait too, and by one
    that may not.
    """
    return graph(
        [
            N(K.HOST_OP, 0, 0, 1, 5, tid=1),
            N(K.DEVICE_OP, 0, 5, 55, 50, ((0, E.LAUNCH),), stream=7),
            N(K.HOST_PART, 0, 55, 58, 3, ((0, E.HOST), (1, E.SYNC)), tid=1),
            N(K.HOST_OP, 1, 58, 68, 10, ((1, E.SYNC), (2, E.HOST)), tid=1),
            N(K.HOST_OP, 2, 68, 69, 1, ((1, E.SYNC), (3, E.HOST)), tid=1),
            N(K.END, NOWHERE, 69, 69, 0, ((1, E.SYNC), (4, E.HOST)), tid=1),
        ]
    )


def test_a_sync_point_is_all_edges_of_its_call() -> None:
    g = waiting()
    points = [first, _] = sync_points(g)
    assert points == [SyncPoint(2, (2, 3)), SyncPoint(4, (5,))]
    found = sync_gains(g, points, (r := replayed(g)).slack, r.path)
    assert found == [(first, 1, 13)]
    assert (
        total(g) - total(g, without=first.edge) == 13
    )  # the second call waits for the kernel then, and 3 + 10 are done by it


@settings(deadline=None)
@given(graphs())
def test_gains_of_sync_points(g: Graph) -> None:
    points = sync_points(g)
    r = replayed(g)
    found = {point: gain_ns for point, _, gain_ns in sync_gains(g, points, r.slack, r.path)}
    assert sorted(e for p in points for e in p.edge) == np.flatnonzero(g.edge_kind == E.SYNC).tolist()
    for point in points:
        assert found.get(point, 0) == total(g) - total(g, without=point.edge)


def test_an_empty_graph() -> None:
    r = replayed(graph([]))
    found = gains_of(r)
    assert (found.ops, found.families, found.shares) == ([], [], ShareNs(**dict.fromkeys(SHARES, 0)))
    assert sync_gains(r.graph, sync_points(r.graph), r.slack, r.path) == []


_ZERO = (
    "start_ns",
    "end_ns",
    "self_ns",
    "wait_ns",
    "start_delay_ns",
    "launch_latency_ns",
    "overlap_ns",
    "tid",
    "device",
    "stream",
)


def ladder(count: int) -> Graph:
    """A host that launches ``count`` kernels on two streams and waits at every hundredth, as columns."""
    n, first = 2 * count, np.arange(2 * count + 1) * 0
    host, device = np.arange(0, n, 2), np.arange(1, n, 2)
    edges = [(host[:-1], host[1:], E.HOST), (host, device, E.LAUNCH), (device[:-2], device[2:], E.STREAM)]
    edges.append((device[50:-50:100], host[101::100][: len(device[50:-50:100])], E.SYNC))
    source, target = (np.concatenate([e[k] for e in edges]) for k in (0, 1))
    kind = np.concatenate([np.full(len(e[0]), e[2], np.uint8) for e in edges])
    order = np.lexsort((source, target))
    first = np.append(0, np.cumsum(np.bincount(target, minlength=n)))
    zero, at = np.zeros(n, np.int64), np.arange(n)
    cost = np.where(at % 2, 5 + at * 7919 % 13, 4 + at * 104729 % 9)
    one = graph([N(K.HOST_OP, 0, 0, 1, 1)])
    kinds = np.where(at % 2, K.DEVICE_OP, K.HOST_OP).astype(np.uint8)
    return replace(
        one,
        rows=NodeRows(kinds, at.astype(np.int32), np.zeros(len(source), np.uint8), one.sync_calls, one.linked),
        host=at % 2 == 0,
        name=np.zeros(n, np.int32),
        duration_ns=cost,
        **dict.fromkeys(_ZERO, zero),
        caller=np.full(n, NOWHERE, np.int32),
        first=first,
        source=source[order].astype(np.int32),
        edge_kind=kind[order],
    )


def test_time_grows_with_the_graph_and_no_faster() -> None:
    def seconds(g: Graph) -> float:
        def once() -> float:
            began = time.process_time()
            gains_of(replayed(g, (np.arange(len(g.kind)) % 97).tolist()))
            return time.process_time() - began

        return min(once() for _ in range(3))

    small, large = seconds(ladder(5_000)), seconds(ladder(40_000))
    assert large < 8 * small * 4, "eight times as much of a quadratic pass would take 64 times as long"
