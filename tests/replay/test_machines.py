"""The three machines against plain schedulers, and what they say of what held nodes back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlink.graph.read_et import read_et
from graphlink.graph_model import EdgeKind
from graphlink.model import NOWHERE
from graphlink.replay.lateness import drifts, recorded_start_ns, slot_waits, stuck
from graphlink.replay.machines import play_ideal
from graphlink.replay.matching import matched
from graphlink.replay.path import by_work, critical_path, families
from graphlink.replay.played import FREE, MEETING, MESSAGE, NOT_RUN, SLOT
from graphlink.replay.slots import play_slots
from graphlink.replay.workload import Work, workload
from tests.astra.et_files import encoded, node
from tests.replay.hand import COLL, CPU, GPU, RECV, SEND, N, file, load, plain

H, L, S, Y = EdgeKind.HOST, EdgeKind.LAUNCH, EdgeKind.STREAM, EdgeKind.SYNC


@st.composite
def graphs(draw: Any, ranks: int = 1) -> list[list[N]]:
    out = []
    for rank in range(ranks):
        nodes = []
        for i in range(draw(st.integers(1, 9))):
            sort = draw(
                st.sampled_from([CPU, CPU, GPU, GPU, COLL, SEND, RECV] if ranks > 1 else [CPU, GPU, COLL, SEND, RECV])
            )
            deps = draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
            peer = draw(st.integers(0, ranks)) if sort in (SEND, RECV) else -1
            us = draw(st.integers(1 if sort in (SEND, RECV) else 0, 4))
            group = draw(st.integers(0, 2)) if sort == COLL else 0
            nodes.append(
                N(
                    2 * i,
                    sort,
                    us,
                    tuple((2 * d, H) for d in sorted(deps)),
                    group=group,
                    peer=peer if peer != rank else ranks,
                )
            )
        out.append(nodes)
    return out


@given(graphs())
def test_ideal_is_the_longest_path(ranks: list[list[N]]) -> None:
    played = play_ideal(load(*ranks))
    end: dict[int, int] = {}
    for n in ranks[0]:
        end[n.id] = max((end[d] for d, _ in n.deps), default=0) + 1000 * n.us
    assert played.end_ns.tolist() == list(end.values())


@given(st.data())
def test_ideal_in_any_order_of_ids(data: st.DataObject) -> None:
    (nodes,) = data.draw(graphs())
    new = data.draw(st.permutations(range(len(nodes))))
    moved = [n._replace(id=new[i], deps=tuple((new[d // 2], k) for d, k in n.deps)) for i, n in enumerate(nodes)]
    work = load(data.draw(st.permutations(moved)))
    played, expected = play_ideal(work), play_ideal(load(nodes))
    assert {work.id(i): e for i, e in enumerate(played.end_ns.tolist())} == dict(
        zip(new, expected.end_ns.tolist(), strict=True)
    )


@settings(deadline=None)
@given(graphs())
def test_slots_are_those_of_a_plain_scheduler(ranks: list[list[N]]) -> None:
    work = load(*ranks)
    played = play_slots(work)
    expected = plain(ranks, None)
    assert {
        (0, work.id(i)): (s, e)
        for i, (s, e) in enumerate(zip(played.start_ns.tolist(), played.end_ns.tolist(), strict=True))
    } == expected
    assert critical_path(work, played).length_ns == played.total_ns


@settings(max_examples=settings().max_examples * 4, deadline=None)
@given(graphs(ranks=3), st.sampled_from([{}, {1: (0, 1)}, {1: (0, 2), 2: (1, 2)}, {1: (0, 9)}]))
def test_ranks_are_those_of_a_plain_scheduler(ranks: list[list[N]], groups: dict[int, tuple[int, ...]]) -> None:
    work = load(*ranks)
    joined = matched(work, groups)
    played = play_slots(work, joined)
    got = {
        (work.rank(i), work.id(i)): (int(played.start_ns[i]), int(e))
        for i, e in enumerate(played.end_ns.tolist())
        if e != NOT_RUN
    }
    assert got == plain(ranks, groups)
    assert {s.rank for s in stuck(work, played)} == {work.rank(int(i)) for i in np.flatnonzero(~played.ran)}
    assert critical_path(work, played).length_ns == played.total_ns


def test_a_slot_is_given_to_the_lowest_id_and_held_by_the_one_before() -> None:
    nodes = [
        N(0, CPU, 1),
        N(5, GPU, 4, ((0, L),), lane=7),
        N(9, GPU, 2, ((0, L),), lane=20),
        N(10, GPU, 3, ((9, S),), lane=20),
    ]
    work = load(nodes)
    assert play_ideal(work).total_ns == 6000
    played = play_slots(work)
    assert played.start_ns.tolist() == [0, 1000, 5000, 7000]
    assert played.held_kind.tolist() == [FREE, L, SLOT, S]
    assert played.held_by.tolist() == [NOWHERE, 0, 1, 2]
    (wait,) = slot_waits(work, played)
    assert (wait.lane, wait.slot, wait.waited_ns, wait.behind) == (
        "stream 20 of device 0",
        "gpu",
        4000,
        "stream 7 of device 0",
    )


def test_what_ends_at_one_instant_ends_in_the_order_of_its_start() -> None:
    """The kernel behind the first of two ends has the slot before one of a lower id is ready: 61 us, as two versions of
    ASTRA-sim said.
    """
    nodes = [N(0, CPU, 10), N(1, COLL, 10), N(2, GPU, 1, ((1, S),)), N(3, GPU, 10, ((0, L),)), N(4, CPU, 40, ((2, Y),))]
    played = play_slots(load(nodes))
    assert played.start_ns.tolist() == [0, 0, 20_000, 10_000, 21_000]
    assert played.total_ns == 61_000


def test_a_collective_waits_for_the_last_and_takes_the_shortest_time() -> None:
    first = [N(0, CPU, 10), N(1, COLL, 5, ((0, L),), group=1), N(2, CPU, 1, ((1, Y),))]
    second = [N(0, CPU, 2), N(1, COLL, 13, ((0, L),), group=1), N(2, CPU, 7, ((1, Y),))]
    work = load(first, second)
    played = play_slots(work, matched(work, {1: (0, 1)}))
    assert played.start_ns.tolist() == [0, 10_000, 15_000, 0, 2_000, 15_000]
    assert played.begin_ns[4] == 10_000 and played.joined[4] == 1
    path = critical_path(work, played)
    assert path.node.tolist() == [0, 1, 4, 5] and path.kind.tolist() == [FREE, L, MEETING, Y]
    assert path.own_ns.tolist() == [10_000, 0, 5_000, 7_000]


def test_a_receive_ends_with_its_send() -> None:
    first = [N(0, CPU, 10), N(1, SEND, 9, ((0, L),), peer=1)]
    second = [N(0, CPU, 2), N(1, RECV, 4, ((0, L),), peer=0), N(2, CPU, 1, ((1, Y),))]
    work = load(first, second)
    played = play_slots(work, matched(work, {}))
    assert played.end_ns.tolist() == [
        10_000,
        14_000,
        2_000,
        14_000,
        15_000,
    ]  # 4 us: the shorter of the two did not wait
    assert critical_path(work, played).kind.tolist() == [FREE, L, MESSAGE, Y]


def test_a_send_that_costs_nothing_leaves_the_transfer_to_its_receive() -> None:
    first = [N(0, CPU, 10), N(1, SEND, 0, ((0, L),), peer=1, start_us=10)]
    second = [N(0, CPU, 2), N(1, RECV, 11, ((0, L),), peer=0, start_us=2)]
    work = load(first, second)
    assert (
        play_slots(work, matched(work, {})).end_ns[3] == 13_001
    )  # recorded until 13, the send began at 10; 1 ns as in ASTRA-sim


def test_ranks_begin_as_recorded_or_together() -> None:
    node = [N(0, CPU, 10, start_us=0)]
    work = workload({0: file(node, epoch_ns=5_000), 1: file(node, rank=1, epoch_ns=0)})
    assert play_slots(work, matched(work, {})).end_ns.tolist() == [15_000, 10_000]
    assert play_slots(work, matched(work, {}, together=True)).end_ns.tolist() == [10_000, 10_000]
    apart = workload({0: file(node, epoch_ns=50_000), 1: file(node, rank=1, epoch_ns=0)})
    joined = matched(apart, {})
    assert play_slots(apart, joined).end_ns.tolist() == [10_000, 10_000] and "clocks differ" in joined.notes[0]


def test_who_cannot_finish_says_what_it_waits_for() -> None:
    first = [N(0, COLL, 1, group=1), N(1, COLL, 1, ((0, S),), group=1), N(2, CPU, 1, ((1, Y),))]
    second = [N(0, COLL, 1, group=1), N(1, RECV, 1, ((0, S),), peer=0, tag=4, size=8), N(2, CPU, 1, ((1, Y),))]
    work = load(first, second)
    joined = matched(work, {1: (0, 1)})
    found = stuck(work, play_slots(work, joined))
    assert [(s.rank, s.left, s.node.id) for s in found] == [(0, 2, 1), (1, 2, 1)]
    assert found[0].waits_for == "collective 2 of group 1: only 1 of 2 ranks have it"
    assert found[1].waits_for == "a send from rank 0 that is not there (tag 4, 8 bytes)"


def test_slots_that_wait_for_each_other() -> None:
    first = [N(0, COLL, 1, group=1), N(1, COLL, 1, group=2)]
    second = [N(0, CPU, 5), N(1, COLL, 1, ((0, L),), group=1), N(2, COLL, 1, group=2)]
    work = load(first, second)
    joined = matched(work, {1: (0, 1), 2: (0, 1)})
    found = stuck(work, play_slots(work, joined))
    assert [s.waits_for for s in found] == [
        "rank 1 in collective 1 of group 1, which it never starts there",
        "rank 0 in collective 1 of group 2, which it never starts there",
    ]


def test_a_cycle_is_named() -> None:
    work = load([N(0), N(1, deps=((0, H), (2, H))), N(2, deps=((1, H),)), N(3, deps=((2, H),))])
    for played in (play_ideal(work), play_slots(work)):
        (found,) = stuck(work, played)
        assert found.left == 3 and "a cycle" in found.waits_for
    assert critical_path(work, play_ideal(work)).node.tolist() == [0]


def test_drift_is_named_where_it_begins() -> None:
    nodes = [
        N(0, CPU, 10, start_us=0),
        N(1, GPU, 20, ((0, L),), start_us=15),
        N(2, CPU, 5, ((0, H),), start_us=10),
        N(3, CPU, 1, ((1, Y), (2, H)), start_us=35),
    ]
    work = load(nodes)
    found = drifts(work, play_ideal(work))
    assert [(p.node.id, p.held_by and p.held_by.id, p.edge, p.drift_ns, p.change_ns) for p in found] == [
        (1, 0, "launch", -5000, -5000)
    ]


def test_shares_and_families_of_a_path() -> None:
    nodes = [
        N(0, CPU, 10, name="aten::mm"),
        N(1, CPU, 4, ((0, H),), name="host gap"),
        N(2, GPU, 3, ((1, L),), name="device delay"),
        N(3, GPU, 5, ((2, S),), name="gemm", delay_us=2),
        N(4, GPU, 1, ((3, S),), name="Memcpy DtoH (Device -> Pinned)"),
        N(5, GPU, 6, ((4, S),), name="gemm"),
        N(6, COLL, 7, ((5, S),), name="nccl"),
    ]
    work = load(nodes)
    assert [Work(w).name for w in work.work] == ["HOST", "GAP", "DELAY", "KERNEL", "COPY", "KERNEL", "COMM"]
    path = critical_path(work, play_ideal(work))
    assert by_work(work, path) == {
        "host": 10_000,
        "gap": 4_000,
        "kernel": 11_000,
        "comm": 7_000,
        "copy": 1_000,
        "delay": 5_000,
    }
    assert path.length_ns == 38_000
    assert [(f.name, f.nodes, f.ns) for f in families(work, path, 1)] == [("gemm", 2, 11_000)]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 7), max_size=3), st.sets(st.integers(0, 7), max_size=3)),
        min_size=1,
        max_size=8,
    )
)
def test_both_sorts_of_dependencies_delay_in_graphs_of_others(
    tmp_path_factory: Any, given_deps: list[tuple[set[int], set[int]]]
) -> None:
    """As ASTRA-sim's present reader takes them; in graphs of graphlink ctrl_deps are callers."""
    deps = [({d for d in data if d < i}, {c for c in ctrl if c < i}) for i, (data, ctrl) in enumerate(given_deps)]
    nodes = [node(i, data=sorted(data), ctrl=sorted(ctrl), micros=1 + i) for i, (data, ctrl) in enumerate(deps)]
    path = tmp_path_factory.mktemp("et") / "x.0.et"
    path.write_bytes(encoded(nodes))
    file = read_et(path)
    work = workload({0: file})
    end: list[int] = []
    for i, (data, ctrl) in enumerate(deps):
        end.append(max((end[d] for d in data | ctrl), default=0) + 1000 * (1 + i))
        assert sorted(work.source[work.first[i] : work.first[i + 1]].tolist()) == sorted(data | ctrl)
    assert play_ideal(work).end_ns.tolist() == end
    started = play_slots(work).start_ns
    assert all(started[i] >= max((started[d] for d in data | ctrl), default=0) for i, (data, ctrl) in enumerate(deps))
    ours = workload({0: replace(file, metadata=replace(file.metadata, graphlink="1"))})
    assert np.diff(ours.first).tolist() == [len(data) for data, _ in deps]


@given(graphs(ranks=2), st.data())
def test_drifts_and_families_against_plain_ones(ranks: list[list[N]], data: st.DataObject) -> None:
    def renamed(n: N) -> N:
        return n._replace(start_us=data.draw(st.integers(0, 9)), name=data.draw(st.sampled_from(["a", "b", "memcpy"])))

    work = load(*([renamed(n) for n in nodes] for nodes in ranks))
    played = play_slots(work)
    most = data.draw(st.integers(1, 4))
    drift = played.start_ns - recorded_start_ns(work)
    change = {i: int(drift[i] - (0 if h == NOWHERE else drift[h])) for i, h in enumerate(played.held_by.tolist())}
    seen: set[int] = set()
    expected = []
    for i in sorted(change, key=lambda i: (-abs(change[i]), i)):
        holder = int(played.held_by[i])
        if change[i] and (holder == NOWHERE or holder not in seen):
            expected.append(i)
            seen.add(holder)
    assert [(p.node.rank, p.node.id) for p in drifts(work, played, most)] == [
        (work.rank(i), work.id(i)) for i in expected[:most]
    ]
    path = critical_path(work, played)
    told: dict[tuple[str, int], list[int]] = {}
    for at, ns in zip(path.node.tolist(), path.own_ns.tolist(), strict=True):
        told.setdefault((work.name(at), int(work.work[at])), []).append(ns)
    largest = sorted(told.items(), key=lambda item: (-sum(item[1]), item[0]))
    found = families(work, path, most)
    assert [(f.name, Work[f.work.upper()], f.nodes, f.ns) for f in found] == [
        (*k, len(v), sum(v)) for k, v in largest[:most]
    ]


def test_nothing() -> None:
    work = load([])
    for played in (play_ideal(work), play_slots(work), play_slots(work, matched(work, {}))):
        assert played.total_ns == 0 and not len(critical_path(work, played).node) and not drifts(work, played)
