"""Meetings are those of the run, whatever each rank recorded of it, and what has no counterpart is named."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlink.linking.commtypes import CollectiveType
from graphlink.model import NOWHERE, CommKind
from graphlink.ranks.aligned import Ops, by_order, longest_common
from graphlink.ranks.bytime import _ascending
from graphlink.ranks.match import Matching, match
from graphlink.ranks.summary import Unmatched
from tests.ranks.made_runs import Run, Step, recorded, resized, swapped, without

WORLD = (0, 1, 2, 3), "world"
PAIR = (0, 1), "pair"
GATHER, SCATTER = CollectiveType.ALL_GATHER, CollectiveType.REDUCE_SCATTER
LAYER = [Step(PAIR, GATHER, 4096), Step(PAIR, SCATTER, 4096)]  # as in a training loop: all layers look alike


def met(run: Run, found: Matching) -> set[int]:
    """True meetings that were found. Each holds nothing but ops of one meeting, one of each recorded member, and stands
    in order.
    """
    m, ranks = found.matches, sorted(run.ops)
    assert len(m.of_op) == len(ranks)
    seen, starts = [], []
    for k, (low, high) in enumerate(zip(m.first[:-1].tolist(), m.first[1:].tolist(), strict=True)):
        ops = [run.ops[ranks[r]][o] for r, o in zip(m.rank[low:high].tolist(), m.op[low:high].tolist(), strict=True)]
        assert [
            int(m.of_op[r][o]) for r, o in zip(m.rank[low:high].tolist(), m.op[low:high].tolist(), strict=True)
        ] == [k] * len(ops)
        (meeting,) = {op.meeting for op in ops}
        step = ops[0].step
        members = step.members()
        assert [ranks[r] for r in m.rank[low:high].tolist()] == sorted(set(members) & set(ranks))
        assert m.complete[k] == (set(members) <= set(ranks))
        assert (m.kind[k], m.type[k]) == (
            (CommKind.COLLECTIVE, step.type) if step.ends is None else (CommKind.SEND, NOWHERE)
        )
        assert m.groups[m.group[k]][0] == step.group[0]
        seen.append(meeting)
        starts.append(min(op.start_ns for op in ops))
    assert len(set(seen)) == len(seen)
    assert starts == sorted(starts)
    return set(seen)


def of_rank(found: Matching, rank: int) -> list[Unmatched]:
    return [u for u in found.unmatched if u.rank == rank]


def contested(found: Matching) -> int:
    """Count the ops that conflicts leave without a meeting."""
    with_none = sum(int(np.count_nonzero(of_op == NOWHERE)) for of_op in found.matches.of_op)
    return with_none - sum(u.count for u in found.unmatched) - sum(found.alone.values())


def accounted(run: Run, found: Matching) -> None:
    """Every op is in a meeting, or counted where it is not."""
    ops = sum(len(mine) for mine in run.ops.values())
    with_none = sum(int(np.count_nonzero(of_op == NOWHERE)) for of_op in found.matches.of_op)
    assert len(found.matches.op) == ops - with_none
    lacked = [
        (u, ops) for rank in run.ops for u, ops in zip(of_rank(found, rank), found.lacked.get(rank, ()), strict=True)
    ]
    assert bool(contested(found)) == bool(found.conflicts)
    ranks = sorted(run.ops)
    for u, ops_lacked in lacked:
        assert u.count == len(ops_lacked)
        assert (found.matches.of_op[ranks.index(u.rank)][ops_lacked] == NOWHERE).all()
        for op in (run.ops[u.rank][k] for k in ops_lacked.tolist()):
            have = {rank for rank, mine in run.ops.items() if any(o.meeting == op.meeting for o in mine)}
            assert (set(op.step.members()) & set(ranks)) - have  # somebody lacks it indeed
        lacks = {
            rank
            for k in ops_lacked.tolist()
            for rank in run.ops
            if rank in run.ops[u.rank][k].step.members() and run.ops[u.rank][k].meeting not in run.meetings(rank)
        }
        assert set(u.lacking) <= lacks
        assert u.lacking


def matched(run: Run, *, seq: bool = False) -> Matching:
    found = match(run.comms(seq=seq), {})
    accounted(run, found)
    return found


def all_meet(run: Run, found: Matching, count: int) -> None:
    assert met(run, found) == set(range(count))
    assert (found.unmatched, found.conflicts, found.alone) == ((), (), {})


@pytest.mark.parametrize("seq", [False, True])
def test_everything_meets_where_nothing_is_wrong(seq: bool) -> None:
    program = [Step(WORLD, 0, 8), *LAYER, Step(WORLD, 0, 8, ends=(2, 3)), *LAYER, Step(WORLD, 0, 8, ends=(3, 2))]
    run = recorded(program, 4)
    found = matched(run, seq=seq)
    all_meet(run, found, len(program))
    assert found.by_sequence == (len(program) if seq else 0)
    turns = Counter(
        (int(g), int(k), int(t))
        for g, k, t in zip(found.matches.group, found.matches.kind, found.matches.turn, strict=True)
    )
    assert turns[found.matches.groups.index(PAIR), CommKind.COLLECTIVE, 3] == 1


@pytest.mark.parametrize("seq", [False, True])
@pytest.mark.parametrize(
    ("lost", "where", "first", "last"),
    [([0, 1], "before", 0, 1), ([18, 19], "after", 18, 19), ([7], "between", 7, 7), (range(20), "everywhere", 0, 19)],
)
def test_what_a_rank_did_not_record_the_others_have_alone(
    seq: bool, lost: list[int], where: str, first: int, last: int
) -> None:
    run = recorded(LAYER * 10, 2)
    without(run, 1, lost)
    found = matched(run, seq=seq)
    assert met(run, found) == set(range(20)) - set(lost)
    (one,) = found.unmatched
    assert (one.rank, one.group, one.where, one.count, one.first, one.last) == (
        0,
        "group pair",
        where,
        len(lost),
        first,
        last,
    )
    assert one.lacking == [1]
    name = "REDUCE_SCATTER" if first % 2 else "ALL_GATHER"
    assert one.first_told == f"{name} of 4,096 bytes"
    assert found.conflicts == ()


@pytest.mark.parametrize("late", range(1, 9))
@pytest.mark.parametrize("seed", range(3))
def test_loops_of_equal_layers_are_laid_right_by_their_times(late: int, seed: int) -> None:
    program = LAYER * 40
    run = recorded(program, 2, seed)
    without(run, 1, range(2 * late))
    assert met(run, matched(run)) == set(range(2 * late, 80))


def test_sequences_that_are_equal_as_they_stand_are_shifted_where_times_say_so() -> None:
    run = recorded(LAYER * 40, 2)
    without(run, 1, range(2))
    without(run, 0, [78, 79])
    found = matched(run)
    assert met(run, found) == set(range(2, 78))
    assert [(u.rank, u.where, u.count) for u in found.unmatched] == [(0, "before", 2), (1, "after", 2)]


def test_a_group_with_many_ops_tells_the_clocks_for_one_with_few() -> None:
    program = [*LAYER * 10, Step(WORLD), *LAYER * 10, Step(WORLD)]
    run = recorded(program, 4)
    run.ops = {rank: ops for rank, ops in run.ops.items() if rank < 2}
    without(run, 1, [len(program) - 1])
    found = matched(run)
    assert met(run, found) == set(range(len(program) - 1))
    assert [(u.rank, u.where) for u in found.unmatched] == [(0, "after")]


@pytest.mark.parametrize("seq", [False, True])
def test_a_missing_rank_is_no_fault(seq: bool) -> None:
    run = recorded([Step(WORLD)] * 3, 4)
    del run.ops[2]
    found = matched(run, seq=seq)
    assert met(run, found) == {0, 1, 2}
    assert not found.matches.complete.any()
    assert (found.unmatched, found.conflicts) == ((), ())


def test_what_needs_nobody_else_is_counted_by_reason() -> None:
    program = [Step(((0,), "one")), Step(((0, 3), "far")), Step(WORLD, ends=(0, 3)), Step(PAIR)]
    run = recorded(program, 4)
    run.ops = {0: run.ops[0], 1: run.ops[1]}
    found = matched(run)
    assert met(run, found) == {3}
    assert found.alone == {"group of one": 1, "no other member recorded": 1, "peer not recorded": 1}


@pytest.mark.parametrize("seq", [False, True])
@pytest.mark.parametrize("on_host", [False, True])
def test_a_collective_that_differs_is_a_conflict(seq: bool, on_host: bool) -> None:
    run = recorded([Step(WORLD, 0, 1000 * k) for k in range(1, 6)], 4, on_host=on_host)
    resized(run, 2, 3, 77)
    found = matched(run, seq=seq)
    assert met(run, found) == {0, 1, 2, 4}
    (one,) = found.conflicts
    sides = ("rank 0 has ALL_REDUCE of 4,000 bytes", "rank 2 has ALL_REDUCE of 77 bytes")
    assert one.startswith(f"number 3 of group {WORLD[1]} differs: ") and one.endswith("(its number 3)")
    assert all(side in one for side in sides)
    assert contested(found) == 4


@pytest.mark.parametrize("seq", [False, True])
@pytest.mark.parametrize("on_host", [False, True])
def test_another_order_is_a_conflict(seq: bool, on_host: bool) -> None:
    run = recorded([Step(PAIR, 0, 1000 * k) for k in range(1, 6)], 2, on_host=on_host)
    swapped(run, 1, 1, 2)
    found = match(run.comms(seq=seq), {})
    (one,) = found.conflicts
    assert "comes in another order: rank 0 has ALL_REDUCE of " in one
    assert re.search("rank 0 has ALL_REDUCE of [23],000 bytes", one)
    assert found.unmatched == ()
    assert contested(found) + len(found.matches.op) == 10


def test_sizes_may_differ_where_they_are_uneven() -> None:
    run = recorded([Step(PAIR, CollectiveType.ALL_TO_ALL, 100), Step(PAIR, GATHER, 200), Step(PAIR, 0, 300)], 2)
    resized(run, 1, 0, 1)
    resized(run, 1, 1, 2)
    run.ops[1][1] = replace(run.ops[1][1], uneven=True)
    all_meet(run, matched(run), 3)
    all_meet(run, matched(run, seq=True), 3)


def test_groups_of_the_same_members_stay_apart_by_name() -> None:
    run = recorded([Step(PAIR), Step(((0, 1), "other")), Step(PAIR)], 2)
    found = matched(run)
    all_meet(run, found, 3)
    assert set(found.matches.groups) == {PAIR, ((0, 1), "other")}


def test_groups_named_by_address_are_the_same_by_first_use() -> None:
    run = recorded([Step(PAIR, GATHER), Step(((0, 1), "other"), SCATTER)] * 3, 2)
    run.names = {
        (rank, group): f"{rank}{name}" for rank in (0, 1) for group in (PAIR, ((0, 1), "other")) for name in [group[1]]
    }
    all_meet(run, matched(run), 6)


def test_groups_named_by_address_of_which_a_rank_lacks_one_are_the_same_by_what_they_did() -> None:
    groups = [((0, 1), name) for name in "abc"]
    run = recorded([Step(group, 0, 100 * k) for _ in range(3) for k, group in enumerate(groups, 1)], 2)
    run.names = {(rank, group): f"{rank}{group[1]}" for rank in (0, 1) for group in groups}
    without(run, 1, [0, 3, 6])
    found = matched(run)
    assert met(run, found) == {1, 2, 4, 5, 7, 8}
    assert [(u.rank, u.where, u.count) for u in found.unmatched] == [(0, "everywhere", 3)]


@pytest.mark.parametrize("on_host", [False, True])
def test_messages_match_by_pair_tag_size_and_order(on_host: bool) -> None:
    program = [
        Step(WORLD, 0, 64 * k, ends=ends, tag=tag)
        for k in range(1, 4)
        for ends in ((0, 1), (1, 0), (0, 2))
        for tag in (0, 5)
    ]
    run = recorded(program, 4, on_host=on_host)
    all_meet(run, matched(run), len(program))
    without(run, 1, [0])
    found = matched(run)
    assert met(run, found) == set(range(1, len(program)))
    (one,) = found.unmatched
    assert (one.rank, one.where, one.first_told, one.lacking) == (0, "before", "SEND of 64 bytes to rank 1, tag 0", [1])


def test_ends_that_name_different_groups_match_all_the_same() -> None:
    run = recorded([Step(WORLD, 0, 64 * k, ends=(0, 1)) for k in range(1, 4)], 4)
    run.names = {(1, WORLD): "unknown"}
    assert met(run, matched(run)) == {0, 1, 2}


def test_numbers_that_count_the_messages_of_a_rank_are_not_trusted() -> None:
    """As PyTorch does: rank 0 sends twice before it receives, rank 1 receives and sends in turn."""
    program = [
        Step(WORLD, 0, 64, ends=ends) for ends in [(0, 1), (0, 1), (1, 2), (1, 0), (0, 1), (1, 2), (1, 0), (0, 1)]
    ]
    run = recorded(program, 4)
    run.ops = {rank: [replace(op, seq=k) for k, op in enumerate(ops)] for rank, ops in run.ops.items()}
    found = matched(run, seq=True)
    assert met(run, found) == set(range(8))


def test_numbers_of_messages_are_used_where_both_ends_count_alike() -> None:
    run = recorded([Step(PAIR, 0, 64, ends=(0, 1))] * 30, 2, on_host=True)
    without(run, 1, [11])
    found = matched(run, seq=True)
    assert met(run, found) == set(range(30)) - {11}
    assert found.by_sequence == 29


@pytest.mark.parametrize("gone", [[5], [5, 11, 12]])
def test_rows_of_the_host_are_laid_by_what_they_are(gone: list[int]) -> None:
    run = recorded([Step(PAIR, 0, 10 * (k % 7 + k)) for k in range(20)], 2, on_host=True)
    without(run, 1, gone)
    assert met(run, matched(run)) == set(range(20)) - set(gone)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_long_loops_with_ops_lost_on_both_sides_are_laid_right(seed: int) -> None:
    run = recorded(LAYER * 2500, 2, seed)
    rng = random.Random(seed)
    for rank, cut in ((0, range(4800, 5000)), (1, range(400))):
        without(run, rank, [*cut, *rng.sample(range(5000), 12)])
    found = matched(run)
    assert met(run, found) == set(run.meetings(0)) & set(run.meetings(1))


def test_messages_that_end_before_their_receive_begins_match_by_order() -> None:
    """Small ones are buffered: the sender goes on at once."""
    program = [step for k in range(12) for step in (Step(PAIR, 0, 1 << 20), Step(PAIR, 0, 64, ends=(0, 1), tag=k % 4))]
    run = recorded(program, 2)
    run.ops[1] = [
        replace(op, start_ns=op.start_ns + 90_000, end_ns=op.end_ns + 60_000 + 1_000 * k) if op.step.ends else op
        for k, op in enumerate(run.ops[1])
    ]
    all_meet(run, matched(run), len(program))


@pytest.mark.parametrize("seq", [False, True])
def test_a_rank_that_sends_to_itself(seq: bool) -> None:
    run = recorded([Step(PAIR, 0, 64, ends=(0, 0))] * 2, 2)
    (comms, nothing) = run.comms(seq=seq)
    kind = np.array([CommKind.RECV, CommKind.SEND] * 2, np.uint8)
    found = match([replace(comms, kind=kind), nothing], {})
    assert (found.matches.rank.tolist(), found.matches.op.tolist()) == ([0] * 4, [1, 0, 3, 2])


def test_nothing_recorded_is_nothing_matched() -> None:
    for comms in ([], recorded([], 2).comms()):
        found = match(comms, {})
        assert len(found.matches.kind) == 0
        assert found.matches.first.tolist() == [0]
        assert (found.unmatched, found.conflicts, found.alone) == ((), (), {})


def plain_longest(a: list[int], b: list[int]) -> int:
    row = [0] * (len(b) + 1)
    for x in a:
        before = row[:]
        for j, y in enumerate(b):
            row[j + 1] = before[j] + 1 if x == y else max(before[j + 1], row[j])
    return row[-1]


def tokens_only(tokens: list[int]) -> Ops:
    (comms, *_) = recorded([], 2).comms()
    nothing = np.zeros(len(tokens), np.int64)
    return Ops(nothing, nothing, comms, nothing.astype(np.int32), np.array(tokens, np.int64), timed=False)


TOKENS = st.lists(st.integers(0, 3), max_size=24)


@given(TOKENS, TOKENS)
def test_the_longest_common_subsequence_is_as_long_as_the_plain_one(a: list[int], b: list[int]) -> None:
    i, j = longest_common(np.array(a, np.int64), np.array(b, np.int64))
    assert len(i) == len(j) == plain_longest(a, b)
    for found in (i, j):
        assert (np.diff(found) > 0).all()
    assert [a[k] for k in i.tolist()] == [b[k] for k in j.tolist()]


@given(TOKENS, TOKENS)
def test_by_order_matches_as_many_as_can_be(a: list[int], b: list[int]) -> None:
    ops = [tokens_only(x) for x in (a, b)]
    right = by_order(*ops)[0]
    i = np.flatnonzero(right != NOWHERE)
    assert len(i) == plain_longest(a, b)
    assert (np.diff(right[i]) > 0).all()
    assert [a[k] for k in i.tolist()] == [b[k] for k in right[i].tolist()]


def test_sequences_too_long_for_one_table_are_cut_at_common_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphlink.ranks.aligned.LARGEST", 200)
    rng = random.Random(1)
    a = [rng.randrange(6) for _ in range(500)]
    b = [x for k, x in enumerate(a) if k % 97 != 3 and k > 30]
    ops = [tokens_only(x) for x in (a, b)]
    assert np.count_nonzero(by_order(*ops)[0] != NOWHERE) == len(b)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Step], int]:
    """A loop over a body of random collectives and messages; all layers look alike."""
    world = draw(st.integers(2, 5))
    everyone = tuple(range(world))
    halves = [tuple(r for r in everyone if r % 2 == half) for half in (0, 1)]
    groups = [(everyone, "w"), (everyone, "v"), *((half, "h") for half in halves if len(half) > 1)]
    collective = st.builds(
        Step, st.sampled_from(groups), st.sampled_from([0, GATHER, SCATTER]), st.sampled_from([1024, 4096])
    )
    ends = st.permutations(everyone).map(lambda p: (p[0], p[1]))
    message = st.builds(Step, st.just(groups[0]), st.just(0), st.sampled_from([64, 256]), ends, st.integers(0, 1))
    body = draw(st.lists(st.one_of(collective, collective, message), min_size=1, max_size=5))
    body.append(Step(groups[0], 0, 512))
    return body * draw(st.integers(12, 16)), world


FAULTS = st.lists(
    st.tuples(
        st.sampled_from(["late", "early", "dropped", "differs", "other order", "missing"]), st.integers(0, 10**6)
    ),
    max_size=3,
)


@settings(max_examples=settings().max_examples * 4, deadline=None)
@given(programs(), FAULTS, st.integers(0, 10**6), st.booleans())
def test_whatever_is_lost_nothing_is_matched_with_another_meeting(
    made: tuple[list[Step], int], faults: list[tuple[str, int]], seed: int, seq: bool
) -> None:
    program, world = made
    run = recorded(program, world, seed)
    for fault, number in faults:
        inflict(run, fault, random.Random(number))
    found = match(run.comms(seq=seq), {})
    accounted(run, found)
    recorded_as: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for op in (op for ops in run.ops.values() for op in ops):
        recorded_as[op.meeting].append((op.step.type, op.step.bytes))
    here = set(run.ops)
    whole = {k for k, step in enumerate(program) if len(here & set(step.members())) == len(recorded_as[k]) >= 2}
    differ = {k for k, what in recorded_as.items() if len(set(what)) > 1}
    assert met(run, found) == whole - differ
    assert bool(whole & differ) <= bool(found.conflicts) <= bool(differ)


def inflict(run: Run, fault: str, rng: random.Random) -> None:
    rank = rng.choice(sorted(run.ops))
    ops = run.ops[rank]
    if fault == "missing" and len(run.ops) > 1:
        del run.ops[rank]
    elif fault in ("late", "early"):
        cut = rng.randint(1, len(ops) // 6)
        without(run, rank, range(cut) if fault == "late" else range(len(ops) - cut, len(ops)))
    elif fault == "dropped":
        without(run, rank, rng.sample(range(len(ops)), k=2))
    elif fault == "differs":
        resized(run, rank, rng.randrange(len(ops)), rng.randint(999_000, 999_999))
    elif fault == "other order":
        reorder(run, rank, rng)


def reorder(run: Run, rank: int, rng: random.Random) -> None:
    """Swaps two collectives of a group that follow each other, if there are such that are not the same."""
    ops = run.ops[rank]
    after: dict[object, int] = {}
    can = []
    for k in reversed(range(len(ops))):
        if ops[k].step.ends is None:
            other = after.get(ops[k].step.group)
            if other is not None and ops[k].step != ops[other].step:
                can.append((k, other))
            after[ops[k].step.group] = k
    if can:
        swapped(run, rank, *rng.choice(can))


@given(st.permutations(range(9)), st.integers(0, 9))
def test_of_pairs_that_cross_as_few_as_can_be_are_dropped(right: list[int], count: int) -> None:
    i, j = _ascending(np.arange(count), np.array(right[:count], np.int64))
    assert (
        (np.diff(i) > 0).all()
        and (np.diff(j) > 0).all()
        and all(right[a] == b for a, b in zip(i.tolist(), j.tolist(), strict=True))
    )
    longest = [1] * count
    for k in range(count):
        longest[k] += max((longest[m] for m in range(k) if right[m] < right[k]), default=0)
    assert len(i) == max(longest, default=0)


def test_messages_whose_ends_name_other_groups_meet_by_rank_and_tag() -> None:
    run = recorded([Step(PAIR, 0, 64 * (1 + k % 3), ends=(0, 1), tag=k % 2) for k in range(8)], 2)
    sender, receiver = run.comms()
    other = replace(receiver, groups=tuple((members, f"other {name}") for members, name in receiver.groups))
    found = match([sender, other], {})
    assert met(run, found) == set(range(8)) and not found.unmatched
