"""Simulated clusters: times that can be, orders that agree, and faults that do what they say and no more."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlink.linking.commtypes import CollectiveType
from graphlink.model import CommKind
from graphlink.ranks.records import RankComms
from tests.simulator import (
    EPOCH_NS,
    ClusterRun,
    ClusterTraining,
    Differs,
    Dropped,
    EarlyEnd,
    Fault,
    LateStart,
    MissingRank,
    OtherOrder,
    ProfilerOverhead,
    ProfilerStart,
    RankColumns,
    cluster_records,
    cluster_run,
    large_columns,
)

TRAININGS = st.builds(
    ClusterTraining,
    data=st.sampled_from((2, 4)),
    tensor=st.integers(1, 3),
    pipeline=st.integers(1, 4),
    expert=st.sampled_from((1, 2)),
    steps=st.integers(1, 2),
    layers=st.integers(1, 2),
    microbatches=st.integers(1, 5),
    seed=st.integers(0, 99),
    ranks_per_host=st.integers(1, 8),
    schedule=st.sampled_from(cluster_records.SCHEDULES),
    sequence_parallel=st.booleans(),
    twin=st.booleans(),
    host_clock_offset_ns=st.sampled_from((0, 50_000_000)),
    drift_ppm=st.sampled_from((0.0, 20.0)),
)
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))]
FULL = ClusterTraining(
    data=4, tensor=2, pipeline=2, expert=2, microbatches=2, layers=3, sequence_parallel=True, twin=True, seed=5
)


@cache
def whole_run(training: ClusterTraining = FULL) -> ClusterRun:
    """A run without faults, which nothing changes."""
    return cluster_run(training)


def rows(run: ClusterRun, rank: int) -> Counter[tuple[Any, ...]]:
    """Everything a rank recorded of its ops, whatever their order."""
    c = run.ranks[rank]
    columns = (c.kind, c.type, c.bytes, c.group, c.peer, c.seq, c.meeting, c.start_ns, c.end_ns)
    return Counter(zip(*(column.tolist() for column in columns), strict=True))


def of_group(run: ClusterRun, rank: int, sort: str) -> list[int]:
    """Positions of the rank's recorded ops in its group of a sort."""
    columns = run.ranks[rank]
    index = [run.groups[k].sort for k in run.own_groups[rank]].index(sort)
    return np.flatnonzero(columns.group == index).tolist()


def test_numbers_are_those_of_graphlink() -> None:
    assert (cluster_records.COLLECTIVE, cluster_records.SEND, cluster_records.RECV) == (
        CommKind.COLLECTIVE,
        CommKind.SEND,
        CommKind.RECV,
    )
    assert {number: CollectiveType(number).name for number in cluster_records.TYPE_NAMES} == cluster_records.TYPE_NAMES


@settings(deadline=None, max_examples=settings().max_examples // 5)
@given(TRAININGS)
def test_members_end_together_once_the_last_has_started(training: ClusterTraining) -> None:
    m = cluster_run(training).meetings
    assert (np.diff(m.first) >= 2).all() or training.world == 1
    last_start_ns, first_end_ns, last_end_ns = (
        f.reduceat(x, m.first[:-1])
        for f, x in ((np.maximum, m.start_ns), (np.minimum, m.end_ns), (np.maximum, m.end_ns))
    )
    assert (last_end_ns - first_end_ns <= training.end_jitter_ns).all()
    over_ns = first_end_ns - last_start_ns - np.array([training.transfer_ns(size) for size in m.bytes.tolist()])
    even = m.type != cluster_records.ALL_TO_ALL  # of those the member that sends most decides
    assert (over_ns[even] >= 0).all()
    assert (over_ns[even] <= training.end_jitter_ns).all()
    assert (over_ns >= 0).all()


@settings(deadline=None, max_examples=settings().max_examples // 5)
@given(TRAININGS)
def test_recordings_without_faults_agree(training: ClusterTraining) -> None:
    run = cluster_run(training)
    found = run.expected
    assert (found.unmatched, found.conflicts, found.alone) == ((), (), {})
    assert found.meetings.tolist() == list(range(len(run.meetings.kind)))
    assert sum(len(c.kind) for c in run.ranks.values()) == len(run.meetings.rank)
    seen: dict[tuple[int, ...], list[list[int]]] = {}
    for rank, c in run.ranks.items():
        mine = [(group.members, group.name) for group in run.groups if rank in group.members]
        assert c.groups == tuple(mine)
        assert (np.diff(c.start_ns) >= 0).all()
        assert (c.began_ns <= c.start_ns).all()
        assert (c.end_ns <= c.ended_ns).all()
        for group, key in enumerate(mine):
            collectives = np.flatnonzero((c.group == group) & (c.kind == 0))
            assert c.seq[collectives].tolist() == list(range(1, len(collectives) + 1))
            assert (np.diff(c.end_ns[collectives]) > 0).all()
            sizes = np.where(c.uneven, 0, c.bytes)
            told = np.stack([c.type, sizes, c.meeting])[:, collectives].T.tolist()
            assert seen.setdefault((*key[0], int(key[1])), told) == told
        messages = np.flatnonzero(c.kind != 0)
        for kind, peer in set(zip(c.kind[messages].tolist(), c.peer[messages].tolist(), strict=True)):
            ours = c.meeting[(c.kind == kind) & (c.peer == peer)].tolist()
            other = run.ranks[peer]
            assert ours == other.meeting[(other.kind == 3 - kind) & (other.peer == rank)].tolist()
        for stream in set(c.stream.tolist()):
            mine_ns = c.true_start_ns[c.stream == stream][1:] - c.true_end_ns[c.stream == stream][:-1]
            assert (mine_ns > 0).all()


def test_a_pipeline_has_messages_in_flight_both_ways() -> None:
    c = cluster_run(replace(FULL, tensor=1, pipeline=3, microbatches=6)).ranks[FULL.data]  # of the second stage
    own = np.flatnonzero(c.kind != 0)
    open_at = [int(((c.start_ns[own] <= t) & (c.end_ns[own] > t)).sum()) for t in c.start_ns[own].tolist()]
    assert max(open_at) >= 2


def test_uneven_exchanges_send_what_the_others_get() -> None:
    run = whole_run()
    for m in np.flatnonzero(run.meetings.type == cluster_records.ALL_TO_ALL).tolist():
        members = run.meetings.rank[run.meetings.first[m] : run.meetings.first[m + 1]].tolist()
        at = [run.times[rank].meeting.tolist().index(m) for rank in members]
        splits = [run.ops[rank][i].splits for rank, i in zip(members, at, strict=True)]
        assert [sent for sent, _ in splits] == [tuple(got[i] for _, got in splits) for i in range(len(members))]
    assert len({size for c in run.ranks.values() for size in c.bytes[c.uneven].tolist()}) > 2


@pytest.mark.parametrize("seed", SEEDS)
def test_clocks_are_as_told(seed: int) -> None:
    training = replace(FULL, seed=seed, ranks_per_host=4, host_clock_offset_ns=50_000_000, drift_ppm=20.0)
    run = cluster_run(training)
    plain = cluster_run(replace(training, host_clock_offset_ns=0, drift_ppm=0.0))
    assert len({c.clock for c in run.ranks.values()}) == training.hosts == len({c.host for c in run.ranks.values()})
    for rank, c in run.ranks.items():
        assert c.clock == run.ranks[rank // 4 * 4].clock
        assert 0 < abs(c.clock.offset_ns) <= 50_000_000
        assert 0 < abs(c.clock.drift) <= 20e-6
        late_ns = c.start_ns - c.true_start_ns - c.clock.offset_ns
        assert np.abs(late_ns - c.clock.drift * (c.true_start_ns - EPOCH_NS)).max() <= 0.5
        assert np.array_equal(plain.ranks[rank].start_ns, plain.ranks[rank].true_start_ns)
        assert np.array_equal(plain.ranks[rank].true_end_ns, c.true_end_ns)
    given_each = cluster_run(replace(training, ranks_per_host=8, host_clock_offset_ns=(7, -9), drift_ppm=(1.0, 0.0)))
    assert [given_each.ranks[rank].clock[:2] for rank in (7, 8)] == [(7, 1e-6), (-9, 0.0)]


def test_groups_are_laid_out_as_megatron_does() -> None:
    run = cluster_run(ClusterTraining(data=4, tensor=2, pipeline=2, expert=2, twin=True))
    found: dict[str, list[tuple[int, ...]]] = {}
    for group in run.groups:
        found.setdefault(group.sort, []).append(group.members)
    assert found["tensor"] == [(first, first + 1) for first in range(0, 16, 2)]
    assert found["data"] == found["twin"] == [(0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14), (9, 11, 13, 15)]
    assert found["expert"] == [(0, 2), (4, 6), (1, 3), (5, 7), (8, 10), (12, 14), (9, 11), (13, 15)]
    assert found["pipeline"] == [(first, first + 8) for first in range(8)]
    assert found["world"] == [tuple(range(16))]
    assert [group.name for group in run.groups] == [str(number) for number in range(len(run.groups))]


def test_a_straggler_is_waited_for() -> None:
    run, slow = whole_run(), cluster_run(replace(FULL, straggler=(3, 1.5)))
    data_group = {rank: slow.ranks[rank] for rank in slow.groups[2].members}
    waited_ns = [int((c.end_ns - c.start_ns)[of_group(slow, rank, "data")].sum()) for rank, c in data_group.items()]
    assert slow.groups[2].members == (1, 3, 5, 7)
    assert min(waited_ns) == waited_ns[1]
    assert slow.meetings.end_ns.max() > run.meetings.end_ns.max() + 1_000_000


def test_the_same_seed_gives_the_same_run() -> None:
    first, second, other = whole_run(), cluster_run(FULL), cluster_run(replace(FULL, seed=6))
    assert rows(first, 3) == rows(second, 3) != rows(other, 3)


# faults


@pytest.mark.parametrize("seed", SEEDS)
def test_a_late_start_takes_the_first_ops(seed: int) -> None:
    training = replace(FULL, seed=seed)
    whole, late = whole_run(training), cluster_run(training, [LateStart(3, meetings=20)])
    lost = rows(whole, 3) - rows(late, 3)
    assert (lost.total(), (rows(late, 3) - rows(whole, 3)).total()) == (20, 0)
    assert all(rows(whole, rank) == rows(late, rank) for rank in whole.ranks if rank != 3)
    assert whole.ranks[3].began_ns < late.ranks[3].began_ns <= late.ranks[3].start_ns.min()
    assert {(u.where, u.lacking) for u in late.expected.unmatched} == {("before", (3,))}
    assert {u.first for u in late.expected.unmatched} == {0}
    members = sum(len(of) - 1 for of in members_of(late, {row[6] for row in lost}))
    assert sum(u.count for u in late.expected.unmatched) == members
    assert set(late.expected.meetings.tolist()) == set(range(len(whole.meetings.kind))) - {row[6] for row in lost}


def members_of(run: ClusterRun, meetings: set[int]) -> list[list[int]]:
    return [run.meetings.rank[run.meetings.first[m] : run.meetings.first[m + 1]].tolist() for m in meetings]


@pytest.mark.parametrize("seed", SEEDS)
def test_an_early_end_takes_the_last_ops(seed: int) -> None:
    training = replace(FULL, seed=seed)
    whole, early = whole_run(training), cluster_run(training, [EarlyEnd(0, meetings=15)])
    lost = rows(whole, 0) - rows(early, 0)
    assert lost.total() == 15
    assert min(row[8] for row in lost) > early.ranks[0].ended_ns >= early.ranks[0].end_ns.max()
    assert {(u.where, u.lacking) for u in early.expected.unmatched} == {("after", (0,))}


def test_a_share_of_the_run_is_of_its_time() -> None:
    training = replace(FULL, drift_ppm=20.0, host_clock_offset_ns=10_000_000)
    whole, cut = cluster_run(training), cluster_run(training, [LateStart(2, share=0.25), EarlyEnd(2, share=0.75)])
    began_ns, ended_ns = (np.array([x]) for x in (whole.ranks[2].began_ns, whole.ranks[2].ended_ns))
    length_ns = int((ended_ns - began_ns)[0])
    assert abs(cut.ranks[2].began_ns - began_ns - length_ns / 4)[0] <= 1
    assert abs(cut.ranks[2].ended_ns - began_ns - length_ns * 3 / 4)[0] <= 1
    assert {u.where for u in cut.expected.unmatched} >= {"before", "after"}
    assert {u.lacking for u in cut.expected.unmatched} == {(2,)}


@pytest.mark.parametrize("sort", ["tensor", "data", "twin", "expert", "pipeline", "world"])
def test_one_op_is_dropped(sort: str) -> None:
    whole, run = whole_run(), cluster_run(FULL, [Dropped(9, sort, 1)])
    issued = [i for i, op in enumerate(whole.ops[9]) if op.group >= 0 and whole.groups[op.group].sort == sort]
    meeting = int(whole.times[9].meeting[issued[1]])
    assert rows(whole, 9) - rows(run, 9) == Counter({row: 1 for row in rows(whole, 9) if row[6] == meeting})
    assert rows(run, 9) < rows(whole, 9)
    others = set(members_of(run, {meeting})[0]) - {9}
    assert {(u.rank, u.count, u.lacking) for u in run.expected.unmatched} == {(rank, 1, (9,)) for rank in others}
    assert [run.ranks[u.rank].meeting[u.ops[0]] for u in run.expected.unmatched] == [meeting] * len(others)
    if sort == "data":
        assert {(u.where, u.first, u.last) for u in run.expected.unmatched} == {("between", 1, 1)}


def test_two_collectives_exchanged() -> None:
    whole, run = whole_run(), cluster_run(FULL, [OtherOrder(6, "tensor", 4)])
    first, second = of_group(run, 6, "tensor")[4:6]
    a, b = whole.ranks[6], run.ranks[6]
    assert b.type[[first, second]].tolist() == a.type[[second, first]].tolist() != b.type[[second, first]].tolist()
    assert b.bytes[[first, second]].tolist() == a.bytes[[second, first]].tolist()
    same = np.setdiff1d(np.arange(len(a.kind)), [first, second])
    assert all(np.array_equal(getattr(a, name)[same], getattr(b, name)[same]) for name in ("type", "bytes"))
    assert all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ("seq", "start_ns", "end_ns", "meeting", "group")
    )
    assert [(c.rank, c.index, c.op, c.why) for c in run.expected.conflicts] == [
        (6, 4, first, "other order"),
        (6, 5, second, "other order"),
    ]
    assert run.expected.unmatched == ()


@pytest.mark.parametrize(
    ("given", "told"),
    [({}, (0, 8)), ({"bytes": 96}, (0, 96)), ({"type": 5}, (5, 4)), ({"type": 2, "bytes": 12}, (2, 12))],
)
def test_one_collective_is_recorded_otherwise(given: dict[str, int], told: tuple[int, int]) -> None:
    run = cluster_run(FULL, [Differs(1, "world", 2, **given)])
    at = of_group(run, 1, "world")[2]
    assert (run.ranks[1].type[at], run.ranks[1].bytes[at]) == told
    (conflict,) = run.expected.conflicts
    assert (conflict.rank, conflict.group, conflict.index, conflict.op, conflict.why) == (1, 0, 2, at, "differs")
    assert conflict.meeting == run.ranks[1].meeting[at]
    assert set(run.expected.meetings.tolist()) == set(range(len(run.meetings.kind))) - {conflict.meeting}


def test_a_rank_is_missing() -> None:
    training = ClusterTraining(data=2, tensor=2, pipeline=2)
    run = cluster_run(training, [MissingRank(5)])
    assert list(run.ranks) == [0, 1, 2, 3, 4, 6, 7]
    alone = sum(len(c.kind) - len(np.intersect1d(c.meeting, run.expected.meetings)) for c in run.ranks.values())
    assert run.expected.alone == {"no other member recorded": alone}
    assert alone > 0 == len(run.expected.unmatched)


def test_profilers_that_start_apart_skew_the_first_collective_only() -> None:
    training = replace(FULL, pipeline=1, end_jitter_ns=0, jitter=0.0)
    even, run = cluster_run(training), cluster_run(training, [ProfilerStart(5_000_000)])
    assert sorted(np.diff(sorted(run.profiler_start_ns)).tolist()) == pytest.approx([5_000_000 / 7] * 7, abs=1)
    assert all(c.began_ns == run.profiler_start_ns[rank] for rank, c in run.ranks.items())

    def skews(of: ClusterRun) -> np.ndarray[Any, np.dtype[np.int64]]:
        m = of.meetings
        return np.maximum.reduceat(m.start_ns, m.first[:-1]) - np.minimum.reduceat(m.start_ns, m.first[:-1])

    world = np.flatnonzero(run.meetings.group == 0)
    assert skews(even)[world].max() < 1_000_000
    assert skews(run).max() > 500_000
    assert skews(run)[world][2:].max() < 1_000_000


def test_overhead_holds_up_the_others() -> None:
    whole, run = whole_run(), cluster_run(FULL, [ProfilerOverhead(2, 1, 3_000_000, "Resource")])
    (start_ns,), (end_ns,) = run.ranks[2].overhead_start_ns.tolist(), run.ranks[2].overhead_end_ns.tolist()
    assert end_ns - start_ns == 3_000_000
    assert all(len(c.overhead_start_ns) == 0 for rank, c in run.ranks.items() if rank != 2)
    assert run.meetings.end_ns.max() - whole.meetings.end_ns.max() > 2_900_000
    before = run.meetings.end_ns < start_ns
    assert np.array_equal(run.meetings.end_ns[before], whole.meetings.end_ns[before])
    assert np.array_equal(before, whole.meetings.end_ns < start_ns)


def test_overhead_of_one_step_is_given_once() -> None:
    with pytest.raises(ValueError, match="holds up that step already"):
        cluster_run(FULL, [ProfilerOverhead(2, 1, 5), ProfilerOverhead(2, 1, 9)])


@settings(deadline=None, max_examples=settings().max_examples // 5)
@given(TRAININGS, st.data())
def test_every_op_is_accounted_for(training: ClusterTraining, data: st.DataObject) -> None:
    ranks = st.integers(0, training.world - 1)
    drawn: list[Fault] = data.draw(
        st.lists(
            st.builds(LateStart, ranks, share=st.floats(0, 0.6)) | st.builds(EarlyEnd, ranks, share=st.floats(0.4, 1))
            | st.builds(Dropped, ranks, st.sampled_from(("data", "world")), st.just(1)) | st.builds(MissingRank, ranks)
            | st.builds(Differs, ranks, st.just("world"), st.integers(0, 1)),
            max_size=4, unique_by=repr,
        )
    )  # fmt: skip
    if training.layers * training.steps < 3:
        drawn = [fault for fault in drawn if not isinstance(fault, Dropped)]
    run = cluster_run(training, drawn)
    matched, contested = set(run.expected.meetings.tolist()), {c.meeting for c in run.expected.conflicts}
    loose = {(u.rank, op) for u in run.expected.unmatched for op in u.ops}
    assert len(loose) == sum(u.count for u in run.expected.unmatched)
    assert not matched & contested
    alone = 0
    for rank, c in run.ranks.items():
        for op, m in enumerate(c.meeting.tolist()):
            others = [other for other in members_of(run, {m})[0] if other in run.ranks and other != rank]
            lacking = [other for other in others if m not in run.ranks[other].meeting]
            if m in matched:
                assert others
                assert not lacking
            elif m not in contested:
                assert ((rank, op) in loose) == bool(others)
                assert not others or lacking
                alone += not others
            assert (rank, op) not in loose or m not in matched | contested
    assert sum(run.expected.alone.values()) == alone


@pytest.mark.parametrize(
    "fault",
    [
        LateStart(1), EarlyEnd(1, share=0.5, meetings=3), LateStart(16, share=0.1), LateStart(0, meetings=9_999),
        Dropped(0, "world", 4), Dropped(0, "nobody", 0), OtherOrder(0, "expert", 0), OtherOrder(0, "twin", 99),
        Differs(0, "pipeline", 0), Differs(0, "world", 0, bytes=4), Differs(0, "world", 0, bytes=3), Differs(0, "world", 0, type=9),
        ProfilerOverhead(0, 2, 5), ProfilerOverhead(0, 0, 0), ProfilerStart(-1),
    ],
)  # fmt: skip
def test_a_fault_that_does_not_fit_is_refused(fault: Fault) -> None:
    with pytest.raises(ValueError, match=type(fault).__name__):
        cluster_run(FULL, [fault])


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": 3, "expert": 2}, {"data": 1, "tensor": 1}, {"steps": 0}, {"schedule": "zigzag"}, {"jitter": -0.1}, {"straggler": (4, 2.0)},
        {"host_clock_offset_ns": (1, 2)}, {"drift_ppm": ()}, {"activation_bytes": 8},
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        ClusterTraining(**wrong)


# as graphlink has it


def test_columns_are_those_of_rank_comms() -> None:
    columns = whole_run().ranks[0]
    known, unknown = RankComms(**columns.comms()), RankComms(**columns.comms(seq=False))
    assert known.seq.tolist() == columns.seq.tolist()
    assert set(unknown.seq.tolist()) == {-1}


def test_names_by_address_differ_over_ranks() -> None:
    plain, run = whole_run(), cluster_run(replace(FULL, address_names=True))
    names = [name for c in run.ranks.values() for _, name in c.groups]
    assert len(set(names)) == len(names)
    for rank, c in run.ranks.items():
        assert [members for members, _ in c.groups] == [members for members, _ in plain.ranks[rank].groups]
        assert rows(run, rank) == rows(plain, rank)


def test_large_columns_meet() -> None:
    ranks = large_columns(64, 200, seed=3)
    check_large(ranks, 64, 200)
    assert np.array_equal(large_columns(64, 200, seed=3)[9].start_ns, ranks[9].start_ns)


def check_large(ranks: tuple[RankColumns, ...], count: int, rows_each: int) -> None:
    assert [c.rank for c in ranks] == list(range(count))
    by_meeting: dict[int, list[tuple[int, int]]] = {}
    for c in ranks:
        assert (np.diff(c.start_ns) > 0).all()
        assert (c.start_ns < c.end_ns).all()
        assert np.array_equal(c.clock.recorded(c.true_start_ns), c.start_ns)
        assert len(c.meeting) == rows_each
        for op, m in enumerate(c.meeting.tolist()):
            by_meeting.setdefault(m, []).append((c.rank, op))
    for members in by_meeting.values():
        keys = {(ranks[rank].groups[ranks[rank].group[op]], int(ranks[rank].seq[op])) for rank, op in members}
        assert len(keys) == 1
        assert tuple(rank for rank, _ in members) == next(iter(keys))[0][0]
        starts, ends = (
            [int(getattr(ranks[rank], name)[op]) for rank, op in members] for name in ("true_start_ns", "true_end_ns")
        )
        assert max(ends) - min(ends) <= 1_500
        assert min(ends) > max(starts)
