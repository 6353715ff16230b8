"""The coupled machine: all ranks by dependencies alone, against the definition, the ideal machine and runs whose times
are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlink.graph_model import EdgeKind, Graph
from graphlink.model import NOWHERE
from graphlink.replay.coupled import play_coupled
from graphlink.replay.lateness import stuck
from graphlink.replay.machines import play_ideal
from graphlink.replay.matching import COLLECTIVE, matched
from graphlink.replay.path import by_work, critical_path
from graphlink.replay.played import FREE, MEETING, MESSAGE, NOT_RUN, Played
from graphlink.replay.records import StuckEntry
from graphlink.replay.workload import Workload, workload
from tests.replay.hand import COLL, CPU, GPU, RECV, SEND, Key, N, file, load, partners

H, L, S, Y = EdgeKind.HOST, EdgeKind.LAUNCH, EdgeKind.STREAM, EdgeKind.SYNC
Groups = Mapping[int, Sequence[int]]


def plain(ranks: Sequence[Sequence[N]], groups: Groups) -> dict[Key, tuple[int, int, int]]:
    """Start, begin and end (ns) of each node by the definition: all nodes over and over, until nothing more can be
    said.
    """
    nodes = {(r, n.id): n for r, given in enumerate(ranks) for n in given}
    met = {k: partners(nodes, k, groups) for k, n in nodes.items() if n.sort in (COLL, RECV, SEND)}
    out: dict[Key, tuple[int, int, int]] = {}

    def start(k: Key) -> int | None:
        before = [(k[0], d) for d, _ in nodes[k].deps]
        return max((out[b][2] for b in before), default=0) if all(b in out for b in before) else None

    def arrival(k: Key) -> int | None:
        at = start(k)
        return None if at is None else at + 1000 * nodes[k].delay_us

    def told(k: Key) -> tuple[int, int, int] | None:
        n, at, ready, with_whom = nodes[k], start(k), arrival(k), met.get(k)
        if at is None or ready is None:
            return None
        own = 1000 * n.us
        if with_whom is None or (n.sort == SEND and not with_whom):
            return at, at, ready + own
        if n.sort == SEND:
            return at, at, ready + min(own, 1000 * nodes[with_whom[0]].us)
        there = [arrival(p) for p in with_whom]
        if not there or None in there or (n.sort == RECV and with_whom[0] not in out):
            return None
        begin = max([ready, *(a for a in there if a is not None)])
        return at, begin, begin + min(own, *(1000 * nodes[p].us for p in with_whom))

    while new := {k: t for k in nodes if k not in out and (t := told(k)) is not None}:
        out |= new
    return out


@st.composite
def runs(draw: Any, ranks: int) -> list[list[N]]:
    out = []
    for rank in range(ranks):
        nodes = []
        for i in range(draw(st.integers(1, 9))):
            sort = draw(st.sampled_from([CPU, CPU, GPU, GPU, COLL, SEND, RECV]))
            deps = draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
            peer = draw(st.integers(0, ranks)) if sort in (SEND, RECV) else NOWHERE
            us = draw(st.integers(1 if sort in (SEND, RECV) else 0, 5))
            delay = draw(st.integers(0, 2)) if sort != CPU else 0
            group = draw(st.integers(0, 2)) if sort == COLL else 0
            peer = peer if peer != rank else ranks
            nodes.append(
                N(2 * i, sort, us, tuple((2 * d, H) for d in sorted(deps)), group=group, peer=peer, delay_us=delay)
            )
        out.append(nodes)
    return out


def played(ranks: Sequence[Sequence[N]], groups: Groups) -> tuple[Workload, Played, list[StuckEntry]]:
    work = load(*ranks)
    met = matched(work, groups)
    done = play_coupled(work, met)
    return work, done, stuck(work, done)


@settings(max_examples=settings().max_examples * 4, deadline=None)
@given(runs(ranks=3), st.sampled_from([{}, {1: (0, 1)}, {1: (0, 2), 2: (1, 2)}, {1: (0, 9)}]))
def test_it_is_the_definition(ranks: list[list[N]], groups: Groups) -> None:
    work, done, left = played(ranks, groups)
    got = {
        (work.rank(i), work.id(i)): (s, b, e)
        for i, (s, b, e) in enumerate(
            zip(done.start_ns.tolist(), done.begin_ns.tolist(), done.end_ns.tolist(), strict=True)
        )
        if e != NOT_RUN
    }
    assert got == plain(ranks, groups)
    assert {s.rank for s in left} == {work.rank(int(i)) for i in np.flatnonzero(~done.ran)}
    path = critical_path(work, done)
    assert path.length_ns == done.total_ns and (path.own_ns >= path.fixed_ns).all() and (path.fixed_ns >= 0).all()


@settings(deadline=None)
@given(runs(ranks=1), st.data())
def test_one_rank_replays_as_on_the_ideal_machine(ranks: list[list[N]], data: st.DataObject) -> None:
    """What-ifs too, where some dependencies let a node begin later than they end."""
    (nodes,) = ranks
    waits = data.draw(st.sets(st.sampled_from(range(len(nodes)))))
    nodes = [n._replace(deps=tuple((d, Y) for d, _ in n.deps)) if i in waits else n for i, n in enumerate(nodes)]
    work = load(nodes)
    lag = st.lists(st.integers(0, 20_000), min_size=len(work.source), max_size=len(work.source))
    work = replace(work, lag_ns=np.array(data.draw(lag), np.int64))
    ideal, coupled = play_ideal(work), play_coupled(work, matched(work, {}))
    for column in ("start_ns", "begin_ns", "end_ns", "held_by", "held_kind", "joined"):
        assert np.array_equal(getattr(ideal, column), getattr(coupled, column)), column


def test_a_collective_begins_with_its_last_member_and_its_start_delay() -> None:
    first = [N(0, CPU, 10), N(1, COLL, 5, ((0, L),), group=1, delay_us=3), N(2, CPU, 1, ((1, Y),))]
    second = [N(0, CPU, 2), N(1, COLL, 16, ((0, L),), group=1, delay_us=1), N(2, CPU, 7, ((1, Y),))]
    work, done, _ = played([first, second], {1: (0, 1)})
    assert done.start_ns.tolist() == [0, 10_000, 18_000, 0, 2_000, 18_000]
    assert done.begin_ns[[1, 4]].tolist() == [13_000, 13_000] and done.joined[[1, 4]].tolist() == [NOWHERE, 1]
    path = critical_path(work, done)
    assert path.node.tolist() == [0, 1, 4, 5] and path.kind.tolist() == [FREE, L, MEETING, Y]
    assert path.own_ns.tolist() == [10_000, 3_000, 5_000, 7_000] and path.fixed_ns.tolist() == [0, 3_000, 0, 0]
    assert by_work(work, path)["delay"] == 3_000


@pytest.mark.parametrize(("sort", "end_us"), [(Y, 35), (L, 30)])
def test_on_the_host_what_nobody_waited_for_is_done_when_the_first_goes_on(sort: EdgeKind, end_us: int) -> None:
    """Rank 1 comes last and its row ends at 35; rank 0 has waited until 30, and so rank 1: until 35, if it waited."""
    first = [
        N(0, CPU, 10),
        N(1, COLL, 20, ((0, L),), start_us=10),
        N(2, CPU, 1, ((1, Y),), start_us=30),
        N(3, CPU, 0, ((2, H),), start_us=31),
    ]
    last = [
        N(0, CPU, 15),
        N(1, COLL, 20, ((0, L),), start_us=15),
        N(2, CPU, 1, ((1, sort),), start_us=35),
        N(3, CPU, 0, ((2, H),), start_us=36),
    ]
    ranks = {k: replace(file(nodes, rank=k), device=np.array([0, -1, 0, 0])) for k, nodes in enumerate((first, last))}
    work = workload(ranks)
    match = matched(work, {})
    assert play_coupled(work, match).end_ns[[1, 5]].tolist() == [30_000, end_us * 1000]
    twice = play_coupled(work.with_costs(np.where(match.code == COLLECTIVE, work.cost_ns // 2, work.cost_ns)), match)
    took_us = 7.5, (end_us - 15) / 2  # from when rank 1 came
    assert twice.end_ns[[1, 5]].tolist() == [15_000 + round(us * 1000) for us in took_us]
    assert (twice.begin_ns[[1, 5]] == 15_000).all()


def test_slots_hold_nobody_up() -> None:
    """Each rank starts another collective first: slots wait for each other there, streams do not."""
    first = [N(0, COLL, 1, group=1, lane=1), N(1, COLL, 2, group=2, lane=2)]
    second = [N(0, COLL, 2, group=2, lane=2), N(1, COLL, 1, group=1, lane=1)]
    _, done, left = played([first, second], {1: (0, 1), 2: (0, 1)})
    assert done.end_ns.tolist() == [1_000, 2_000, 2_000, 1_000] and not left


def test_a_circle_of_ranks_says_who_waits_for_whom() -> None:
    first = [N(0, COLL, 1, group=1), N(1, COLL, 1, ((0, S),), group=2), N(2, CPU, 1, ((1, Y),))]
    second = [N(0, COLL, 1, group=2), N(1, COLL, 1, ((0, S),), group=1), N(2, CPU, 1)]
    _, done, left = played([first, second], {1: (0, 1), 2: (0, 1)})
    assert [(s.rank, s.left, s.node.id, s.waits_for) for s in left] == [
        (0, 3, 0, "rank 1 in collective 1 of group 1, which it never starts there"),
        (1, 2, 0, "rank 0 in collective 1 of group 2, which it never starts there"),
    ]
    assert done.ran.tolist() == [False, False, False, False, False, True]


def test_what_is_never_sent_and_a_cycle_are_named() -> None:
    first = [N(0, RECV, 1, peer=1, tag=4, size=8), N(1, CPU, 1, ((0, Y),))]
    second = [N(0, CPU, 1, ((1, H),)), N(1, CPU, 1, ((0, H),))]
    _, _, left = played([first, second], {})
    assert left[0].waits_for == "a send from rank 1 that is not there (tag 4, 8 bytes)"
    assert "a cycle" in left[1].waits_for


@pytest.mark.parametrize(("late_us", "ends_ns"), [(2, 14_000), (30, 34_000)])
def test_a_message_is_on_its_way_from_when_both_ends_have_begun(late_us: int, ends_ns: int) -> None:
    first = [N(0, CPU, 10), N(1, SEND, 9, ((0, L),), peer=1)]
    second = [N(0, CPU, late_us), N(1, RECV, 4, ((0, L),), peer=0)]
    _, done, _ = played([first, second], {})
    assert (int(done.end_ns[1]), int(done.end_ns[3])) == (14_000, ends_ns)  # 4 us: the shorter of the two did not wait


@pytest.mark.parametrize("ends_us", [15, 12], ids=["row begins as it left", "row begins when it had come"])
def test_a_message_of_a_send_that_costs_nothing_takes_what_was_recorded_after_both_had_begun(ends_us: int) -> None:
    first = [
        N(0, CPU, 10, name="before"),
        N(1, CPU, 3, ((0, H),), name="c10d::send", start_us=10),
        N(2, CPU, 0, ((1, H),), name="gloo:send", start_us=13),
        N(3, SEND, 0, ((2, L),), name="gloo:send", peer=1, start_us=13),
    ]
    received = N(1, RECV, ends_us - 3, ((0, L),), peer=0, start_us=3)
    second = [N(0, CPU, 3), received, N(2, CPU, 4, ((1, Y),), start_us=ends_us)]
    work, done, _ = played([first, second], {})
    assert done.end_ns[5] == ends_us * 1_000 and done.joined[5] == 3
    path = critical_path(work, done)
    assert path.length_ns == (ends_us + 4) * 1_000 and MESSAGE in path.kind.tolist()
    slower = replace(work, cost_ns=work.cost_ns + np.where(np.arange(len(work)) == 0, 7_000, 0))
    assert play_coupled(slower, matched(slower, {})).end_ns[5] == (ends_us + 7) * 1_000
    at_once = replace(work, cost_ns=work.cost_ns * (np.arange(len(work)) != 1))
    assert play_coupled(at_once, matched(at_once, {})).end_ns[5] == max(ends_us - 3, 10) * 1_000, "not before its op"


def test_ranks_begin_on_the_clock_of_the_run() -> None:
    def rank(number: int, epoch_ns: int, offset_ns: int) -> Graph:
        given = file([N(0, CPU, 10), N(1, COLL, 1, ((0, L),), start_us=10)], rank=number, epoch_ns=epoch_ns)
        return replace(given, metadata=replace(given.metadata, clock_offset_ns=offset_ns))

    apart = workload({0: rank(0, 0, 0), 1: rank(1, 10**9, 0)})
    met = matched(apart, {})
    assert met.clock.begin_ns.tolist() == [0, 0] and met.clock.measured_ns is None and "clocks differ" in met.notes[0]
    work = workload({0: rank(0, 0, 0), 1: rank(1, 10**9, 4_000 - 10**9)})
    met = matched(work, {})
    assert met.clock.begin_ns.tolist() == [0, 4_000] and met.clock.measured_ns == 15_000 and not met.notes
    assert play_coupled(work, met).end_ns.tolist() == [10_000, 15_000, 14_000, 15_000]
    together = matched(work, {}, together=True)
    assert together.clock.begin_ns.tolist() == [0, 0] and together.clock.measured_ns is None


def test_drift_moves_times_between_ranks_and_no_duration() -> None:
    first = file([N(0, CPU, 10), N(1, CPU, 10, ((0, H),), start_us=2_000_000)], epoch_ns=5)
    second = file([N(0, CPU, 10), N(1, CPU, 10, ((0, H),), start_us=2_000_000)], rank=1, epoch_ns=5)
    drifting = replace(second, metadata=replace(second.metadata, clock_drift_ppb=50_000))
    work = workload({0: first, 1: drifting})
    met = matched(work, {})
    assert met.clock.measured_ns == 2_000_010_000 + 100_000  # 50 parts in a million, to the ns
    assert play_coupled(work, met).end_ns.tolist() == [10_000, 20_000, 10_000, 20_000]


def test_nothing() -> None:
    work = load([])
    done = play_coupled(work, matched(work, {}))
    assert done.total_ns == 0 and not len(critical_path(work, done).node)
