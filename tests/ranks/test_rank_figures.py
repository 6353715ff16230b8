from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import comb
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.linking.commtypes import SHARDS, CollectiveType
from graphlink.model import NOWHERE, CommKind
from graphlink.ranks.clocks import clocks
from graphlink.ranks.columns import quantiles
from graphlink.ranks.figures import Figures, _tail, figures, rank_totals, type_name
from graphlink.ranks.records import AlignedClock, AlignedClocks, Matches, RankComms
from graphlink.ranks.summary import NOBODY, Collectives
from graphlink.ranks.times import WORDS, Apart
from graphlink.tables import take
from tests.ranks.true_runs import MS, US, Meet, Simulated, offs, training

C = CollectiveType
PAIR = ((0, 1), "g")


def as_recorded(
    ranks: tuple[RankComms, ...], residual_ns: int = 1_000, unknown: frozenset[int] = frozenset()
) -> AlignedClocks:
    return AlignedClocks(
        tuple(AlignedClock(0, 0.0, 0, r.rank, 0, r.rank, r.rank not in unknown) for r in ranks), residual_ns, ()
    )


def of(meets: list[Meet], world: int = 2, **more: Any) -> Figures:
    ranks, meetings = Simulated(world, meets, **more).record()
    return figures(ranks, meetings, as_recorded(ranks), {})


def mixed(rng: np.random.Generator, count: int = 30) -> list[Meet]:
    """All kinds of meetings of four ranks: types, sizes, messages, host rows, kernels that end early."""
    meets = training(rng, [(0, 1, 2, 3), (0, 1), (2, 3)], [(0, 2), (1, 3)], count=count, wrong=0.2)
    types = [C.ALL_REDUCE, C.ALL_GATHER, C.REDUCE_SCATTER, C.ALL_TO_ALL, C.BROADCAST, C.BARRIER, C.GATHER]
    out = []
    for m in meets:
        type_ = C.ALL_REDUCE if m.sender is not None else int(rng.choice(types))
        size = 0 if type_ == C.BARRIER else int(rng.integers(1, 1 << 30))
        ends = [max(e, s + int(rng.integers(0, 3))) for s, e in zip(m.start_ns, m.end_ns, strict=True)]
        out.append(replace(m, type=type_, bytes=size, end_ns=tuple(ends), on_host=bool(rng.random() < 0.2)))
    return out


# the plain reference: a loop over meetings


def plain(ranks: tuple[RankComms, ...], meetings: Matches, clocks_: AlignedClocks) -> list[dict[str, Any]]:
    out = []
    for m in range(len(meetings.kind)):
        rows = []
        for e in range(meetings.first[m], meetings.first[m + 1]):
            position, op = int(meetings.rank[e]), int(meetings.op[e])
            r, clock = ranks[position], clocks_.clocks[position]
            start, end = (int(clock.of(np.array(x[op]))) for x in (r.start_ns, r.end_ns))
            rows.append((position, start, end, bool(r.on_host[op]), int(r.kind[op]), int(r.bytes[op]), clock.known))
        starts, ends = [r[1] for r in rows], [r[2] for r in rows]
        durations = [e - s for s, e in zip(starts, ends, strict=True)]
        last = max(starts)
        late = rows[starts.index(last)][0]
        timed = len({r[6] for r in rows}) == 1
        members, _ = meetings.groups[meetings.group[m]]
        message = meetings.kind[m] != CommKind.COLLECTIVE
        if not timed:
            transfer = min(durations)
        elif message:
            transfer = next(r[2] for r in rows if r[4] == CommKind.RECV) - last
        elif any(r[3] for r in rows):
            transfer = min((e - last for e in ends if e > last), default=1)
        else:
            transfer = min(sum(e - last for e in ends) // len(ends), min(durations))
        transfer = max(transfer, 1)
        if timed:
            waits = [min(max(last - s, 0), d) for s, d in zip(starts, durations, strict=True)]
        else:
            waits = [d - min(durations) for d in durations]
        n = len(members)
        shards = not message and meetings.type[m] in (C.ALL_GATHER, C.GATHER, C.SCATTER)
        size = sum(r[5] for r in rows) // len(rows) * (n if shards else 1)
        factor = 1.0
        if not message and meetings.type[m] == C.ALL_REDUCE:
            factor = 2 * (n - 1) / n
        elif not message and meetings.type[m] in (C.ALL_GATHER, C.GATHER, C.SCATTER, C.REDUCE_SCATTER, C.ALL_TO_ALL):
            factor = (n - 1) / n
        out.append(
            {
                "group": int(meetings.group[m]),
                "type": int(meetings.type[m]),
                "ranks": [r[0] for r in rows],
                "skew": last - min(starts) if timed else 0,
                "late": late if timed else NOWHERE,
                "lateness": last - sorted(starts)[-2] if timed else 0,
                "transfer": transfer,
                "waits": waits,
                "parts": [min(d - w, transfer) for d, w in zip(durations, waits, strict=True)],
                "bytes": size,
                "algbw": size / transfer * 1e9,
                "busbw": size / transfer * 1e9 * factor,
            }
        )
    return out


@given(st.integers(0, 1 << 30), st.sets(st.integers(0, 3), max_size=2), st.booleans())
def test_times_are_what_a_loop_over_meetings_finds(seed: int, unknown: set[int], missing: bool) -> None:
    rng = np.random.default_rng(seed)
    true = Simulated(4, mixed(rng, 8), offs(rng, 4), missing=frozenset({3} if missing else ()))
    ranks, meetings = true.record()
    found_clocks = clocks(ranks, meetings)
    told = tuple(replace(c, known=c.rank not in unknown) for c in found_clocks.clocks)
    found_clocks = replace(found_clocks, clocks=told)
    found = figures(ranks, meetings, found_clocks, {})
    expected = plain(ranks, meetings, found_clocks)
    t = found.times
    assert t.skew_ns.tolist() == [m["skew"] for m in expected]
    assert t.late.tolist() == [m["late"] for m in expected]
    assert t.lateness_ns.tolist() == [m["lateness"] for m in expected]
    assert t.transfer_ns.tolist() == [m["transfer"] for m in expected]
    assert t.wait_ns.tolist() == [w for m in expected for w in m["waits"]]
    assert t.waited_ns.tolist() == [sum(m["waits"]) for m in expected]
    assert t.transfer_part_ns.tolist() == [p for m in expected for p in m["parts"]]
    assert t.bytes.tolist() == [m["bytes"] for m in expected]
    assert (found.apart == Apart.UNTIMED).tolist() == [
        m["late"] == NOWHERE and not whole for m, whole in zip(expected, meetings.complete.tolist(), strict=True)
    ]
    assert_totals(found, expected, ranks, meetings, found_clocks.residual_ns)


def assert_totals(
    found: Figures, expected: list[dict[str, Any]], ranks: Sequence[RankComms], meetings: Matches, residual_ns: int
) -> None:
    counted = [m for m, why in zip(expected, found.apart.tolist(), strict=True) if why == Apart.NO]
    on_host: dict[int, bool] = {}  # by group, as the first op of each says
    for m, entry in zip(expected, meetings.first.tolist(), strict=False):
        on_host.setdefault(m["group"], bool(ranks[meetings.rank[entry]].on_host[meetings.op[entry]]))
    for g, group in enumerate(found.groups):
        types = sorted({m["type"] for m in expected if m["group"] == g})
        assert [one.type for one in group.collectives] == [type_name(code) for code in types]
        for code, one in zip(types, group.collectives, strict=True):
            mine = [
                (m, why == Apart.NO)
                for m, why in zip(expected, found.apart.tolist(), strict=True)
                if (m["group"], m["type"]) == (g, code)
            ]
            assert one.set_apart == sum(not counts for _, counts in mine)
            whole = {bool(meetings.complete[k]) for k, m in enumerate(expected) if (m["group"], m["type"]) == (g, code)}
            shards = len(group.ranks) if code in SHARDS else 1
            assert_collectives(
                one, [m for m, counts in mine if counts], shards, measured=whole == {True} and not on_host[g]
            )
    both, whole = rank_totals(ranks, meetings, found.times, found.apart == Apart.NO, residual_ns), len(meetings.groups)
    for whole_run in (False, True):
        totals = take(both, (both.group == whole) == whole_run)
        wait, transfer, count, late, met, caused = (Counter[tuple[int, int]]() for _ in range(6))
        lateness: dict[tuple[int, int], list[int]] = {}
        for m in counted:
            g = whole if whole_run else m["group"]
            evident = m["late"] != NOWHERE and m["lateness"] > residual_ns
            for r, w, p in zip(m["ranks"], m["waits"], m["parts"], strict=True):
                wait[g, r] += w
                transfer[g, r] += p
                count[g, r] += 1
                met[g, r] += evident
            if evident:
                late[g, m["late"]] += 1
                caused[g, m["late"]] += sum(m["waits"])
                lateness.setdefault((g, m["late"]), []).append(m["lateness"])
        keys = list(zip(totals.group.tolist(), totals.rank.tolist(), strict=True))
        assert keys == sorted(count)
        columns = (totals.wait_ns, wait), (totals.transfer_ns, transfer), (totals.late, late)
        for column, by_key in (*columns, (totals.met, met), (totals.caused_ns, caused)):
            assert column.tolist() == [by_key[k] for k in keys]
        assert totals.lateness_ns.tolist() == [int(median(lateness.get(k, [0]))) for k in keys]
        numbers = [r.rank for r in ranks]
        if whole_run:
            reported = [(one.rank, one.wait_ns, one.transfer_ns, one.last) for one in found.waits]
            assert reported == [(numbers[r], wait[whole, r], transfer[whole, r], late[whole, r]) for _, r in keys]
        else:
            for g, group in enumerate(found.groups):
                assert group.last == {str(numbers[r]): late[g, r] for of, r in keys if of == g and late[g, r]}


def assert_collectives(one: Collectives, mine: list[dict[str, Any]], shards: int, *, measured: bool) -> None:
    skew = sorted(m["skew"] for m in mine) or [0]
    seconds = max(sum(m["transfer"] for m in mine), 1) / 1e9
    assert one.count == len(mine)
    assert one.skew_median_ns == int(median(skew))
    assert one.skew_p95_ns == skew[-(-95 * len(skew) // 100) - 1]
    assert one.skew_max_ns == skew[-1]
    assert one.bytes == sum(m["bytes"] for m in mine) // shards
    assert one.wait_ns == sum(sum(m["waits"]) for m in mine)
    assert one.transfer_ns == sum(m["transfer"] for m in mine)
    assert (one.algorithm_bytes_per_s is not None) == (one.bus_bytes_per_s is not None) == (measured and bool(mine))
    if one.algorithm_bytes_per_s is not None:
        assert one.algorithm_bytes_per_s == pytest.approx(sum(m["bytes"] for m in mine) / seconds, rel=1e-6, abs=1)
        assert one.bus_bytes_per_s == pytest.approx(
            sum(m["busbw"] * m["transfer"] for m in mine) / 1e9 / seconds, rel=1e-6, abs=1
        )


# known truth


def test_a_collective_is_wait_then_transfer() -> None:
    # rank 1 comes 300 us after rank 0; from then on it takes 100 us, and rank 0's kernel ends 2 us later
    t = of([Meet(PAIR, (0, 1), (0, 300 * US), (402 * US, 400 * US))]).times
    assert (t.skew_ns[0], t.late[0], t.lateness_ns[0], t.transfer_ns[0]) == (300 * US, 1, 300 * US, 100 * US)
    assert t.wait_ns.tolist() == [300 * US, 0]
    assert t.transfer_part_ns.tolist() == [100 * US, 100 * US]  # a remainder of 2 us on rank 0


def test_a_message_is_transfer_from_when_both_are_there() -> None:
    sent = Meet(PAIR, (0, 1), (100 * US, 0), (130 * US, 150 * US), sender=0)
    t = of([sent]).times
    assert (t.transfer_ns[0], t.late[0], t.wait_ns.tolist()) == (50 * US, 0, [0, 100 * US])
    eager = replace(
        sent, start_ns=(0, 100 * US), end_ns=(10 * US, 150 * US)
    )  # the send has gone before the receive is there
    t = of([eager]).times
    assert (t.transfer_ns[0], t.late[0], t.wait_ns.tolist()) == (50 * US, 1, [10 * US, 0])


def test_a_host_row_that_lasts_until_somebody_waits_is_no_transfer() -> None:
    row = Meet(PAIR, (0, 1), (0, 10 * US), (40 * US, 90 * MS), on_host=True)
    t = of([row]).times
    assert t.transfer_ns[0] == 30 * US
    assert t.transfer_part_ns.tolist() == [30 * US, 30 * US]


@pytest.mark.parametrize(
    ("type_", "algorithm", "bus"),
    [
        (C.ALL_REDUCE, 8, 12.0),
        (C.ALL_GATHER, 32, 24.0),
        (C.REDUCE_SCATTER, 8, 6.0),
        (C.ALL_TO_ALL, 8, 6.0),
        (C.BROADCAST, 8, 8.0),
        (C.REDUCE, 8, 8.0),
    ],
)
def test_bandwidths_are_those_of_nccl_tests(type_: CollectiveType, algorithm: int, bus: float) -> None:
    four = (0, 1, 2, 3)
    found = of([Meet((four, "g"), four, (0,) * 4, (1_000_000,) * 4, bytes=8_000_000, type=type_)], 4)
    (one,) = found.groups[0].collectives
    assert one.algorithm_bytes_per_s == pytest.approx(
        algorithm * 1e9
    )  # 8 MB (a rank's part of 32 MB for ALL_GATHER) in 1 ms
    assert one.bus_bytes_per_s == pytest.approx(bus * 1e9)


def usual(count: int, from_ns: int = 100 * MS, skew_ns: int = 10 * US) -> list[Meet]:
    starts = [(k * MS + from_ns, k * MS + from_ns + skew_ns) for k in range(count)]
    return [Meet(PAIR, (0, 1), s, (s[1] + 50 * US,) * 2) for s in starts]


def test_the_first_meeting_after_the_recordings_began_apart_is_set_apart() -> None:
    first = Meet(PAIR, (0, 1), (0, 20 * MS), (20 * MS + 50 * US,) * 2)
    found = of([first, *usual(2)], began_ns={0: -MS, 1: 19 * MS})
    assert found.apart.tolist() == [Apart.BEGAN_APART, 0, 0]
    (one,) = found.groups[0].collectives
    assert (one.count, one.set_apart, one.skew_max_ns) == (2, 1, 10 * US)
    assert [(rank.rank, rank.wait_ns) for rank in found.waits] == [(0, 20 * US), (1, 0)]
    (first_one,) = found.set_apart
    assert (first_one.group, first_one.number, first_one.skew_ns, first_one.late_rank) == ("group g", 0, 20 * MS, 1)
    assert not of([first, *usual(2)], began_ns={0: -MS, 1: -MS}).apart.any()  # too few to say what is usual


def test_a_first_meeting_that_is_slow_for_its_group_is_set_apart() -> None:
    first = Meet(PAIR, (0, 1), (0, 31 * US), (90 * US,) * 2)
    together = {0: -MS, 1: -MS}
    assert of([first, *usual(3)], began_ns=together).apart.tolist() == [Apart.FIRST, 0, 0, 0]
    assert not of([replace(first, start_ns=(0, 30 * US)), *usual(3)], began_ns=together).apart.any()  # 3 x the median
    later = replace(first, start_ns=(500 * MS, 500 * MS + 31 * US), end_ns=(501 * MS,) * 2)
    assert not of([*usual(3), later], began_ns=together).apart.any()


@pytest.mark.parametrize(
    ("busy_us", "apart"), [((0, 4), False), ((0, 5), True), ((1, 3, 2, 6), True), ((0, 3, 0, 3), False)]
)
def test_waiting_for_a_rank_on_which_the_profiler_works_is_set_apart(busy_us: tuple[int, ...], apart: bool) -> None:
    meets = usual(6)
    begins = meets[3].start_ns[0]
    rows = [(begins + a * US, begins + b * US) for a, b in zip(busy_us[::2], busy_us[1::2], strict=True)]
    found = of(meets, overhead={1: rows, 0: [(begins, begins + MS)]})
    assert found.apart.tolist() == [0, 0, 0, Apart.OVERHEAD if apart else 0, 0, 0]


def test_every_reason_to_set_apart_has_words() -> None:
    assert all(WORDS[why] for why in Apart if why)


# stragglers


def run(seed: int, slow: dict[int, int]) -> tuple[Figures, AlignedClocks]:
    rng = np.random.default_rng(seed)
    world = int(rng.choice([2, 4, 8, 16]))
    groups = [tuple(range(world)), *((k, k + 1) for k in range(0, world, 2))]
    true = Simulated(
        world, training(rng, groups, count=int(rng.choice([20, 60])), late_ns=400 * US, slow=slow), offs(rng, world)
    )
    ranks, meetings = true.record()
    found_clocks = clocks(ranks, meetings)
    return figures(ranks, meetings, found_clocks, {}), found_clocks


def test_nobody_is_named_in_a_fair_run() -> None:
    fair = [run(seed, {})[0] for seed in range(100)]
    named = [[s is not None for s in (f.straggler, *(group.straggler for group in f.groups))] for f in fair]
    assert sum(of_run for of_run, *_ in named) <= 2
    groups = [one for _, *of_groups in named for one in of_groups]
    assert sum(groups) <= 0.01 * len(groups)
    assert NOBODY == "no rank is late again and again"


def test_a_straggler_is_named_with_evidence() -> None:
    others = 0
    for seed in range(30):
        found, found_clocks = run(seed, {1: 500 * US})
        named = found.straggler
        assert named is not None
        assert named.rank == 1
        by_chance = re.search(r"by chance: (\d+) %", named.evidence)
        assert by_chance is not None
        assert named.times_late == named.meetings or named.times_late > 1.9 * int(by_chance[1]) / 100 * named.meetings
        late = found.times.late == 1  # position 1
        late &= (found.apart == Apart.NO) & (found.times.lateness_ns > found_clocks.residual_ns)
        waited_ns = sum(of.wait_ns for group in found.groups for of in group.collectives)
        assert named.wait_share == round(found.times.waited_ns[late].sum() / waited_ns, 6)
        assert named.evidence.startswith(f"rank 1 arrived last in {named.times_late} of {named.meetings} ")
        stand_out = [group.straggler.rank for group in found.groups if group.straggler]
        assert 1 in stand_out
        others += sum(rank != 1 for rank in stand_out)
    assert others <= 1  # of 300 groups


def test_a_rank_that_few_wait_for_but_long_is_named() -> None:
    meets = training(np.random.default_rng(3), [(0, 1, 2, 3)], count=200, late_ns=10 * US)
    held = range(0, 200, 20)
    for k in held:
        start = meets[k].start_ns
        meets[k] = replace(
            meets[k], start_ns=(*start[:3], start[3] + 5 * MS), end_ns=tuple(e + 5 * MS for e in meets[k].end_ns)
        )
    named = of(meets, 4).straggler
    assert named is not None
    assert (named.rank, named.times_late >= len(held)) == (3, True)
    few = meets.copy()
    for k in list(held)[4:]:
        few[k] = meets[1]
    assert of([m for k, m in enumerate(few) if k not in list(held)[4:]], 4).straggler is None  # four are no habit


def test_lateness_below_the_tolerance_of_the_clocks_is_no_evidence() -> None:
    ranks, meetings = Simulated(2, usual(50, skew_ns=3 * US)).record()
    assert figures(ranks, meetings, as_recorded(ranks, residual_ns=3 * US), {}).straggler is None
    named = figures(ranks, meetings, as_recorded(ranks, residual_ns=2 * US), {}).straggler
    assert named is not None
    assert named.rank == 1


@given(st.integers(1, 60), st.data())
def test_the_chance_is_that_of_the_binomial(count: int, data: st.DataObject) -> None:
    k, p = data.draw(st.integers(0, count)), data.draw(st.floats(0.01, 0.99))
    exact = sum(comb(count, i) * p**i * (1 - p) ** (count - i) for i in range(k, count + 1)) if k > p * count else 1.0
    assert _tail(np.array([k]), np.array([p]), np.array([count]))[0] == pytest.approx(exact, rel=1e-9)


def test_the_chance_of_many_meetings_is_found_in_a_few_steps() -> None:
    count = 10**7
    late = np.array([count // 2 + k * 1_581 for k in (1, 2, 3)])  # 1, 2, 3 standard deviations
    assert _tail(late, np.full(3, 0.5), np.full(3, count)) == pytest.approx([0.1587, 0.02275, 0.00135], rel=2e-3)


def outcomes(late: Sequence[int], members: int) -> Figures:
    """Meetings of ``members`` ranks, in each of which that one is late."""
    ranks = tuple(range(members))
    meets = [
        Meet(
            (ranks, "g"),
            ranks,
            tuple((100 * k + (20 if r == who else 0)) * US for r in ranks),
            ((100 * k + 60) * US,) * members,
        )
        for k, who in enumerate(late, 1)
    ]
    ranks_, meetings = Simulated(members, meets).record()
    return figures(ranks_, meetings, as_recorded(ranks_), {})


@pytest.mark.parametrize(
    ("late", "members", "told"),
    [
        ([1] * 9, 2, "straggler"),
        ([1] * 14 + [0], 2, "straggler"),
        ([1] * 8, 2, "suspect"),
        ([1] * 2, 2, "suspect"),
        ([1], 2, None),
        ([1, 1, 0], 2, None),
        ([1] * 13 + [0] * 2, 2, "suspect"),
        ([1] * 12 + [0] * 8, 2, None),
        ([3] * 4 + [0] * 2, 4, "suspect"),
        ([7] * 4 + [5] * 2 + [4], 8, "suspect"),
        ([7] * 4 + [5] * 2 + [4] * 4, 8, None),
        ([3] * 5, 4, "straggler"),
        ([3] * 4, 4, "suspect"),
        ([3] * 3, 8, "suspect"),
        ([3] * 4, 8, "straggler"),
        ([0, 1, 2, 3] * 6, 4, None),
    ],
)
def test_who_stands_out_is_told_by_the_chance_of_any_member(late: list[int], members: int, told: str | None) -> None:
    found = outcomes(late, members)
    assert (found.straggler is not None, found.suspect is not None) == (told == "straggler", told == "suspect")
    assert (found.groups[0].straggler, found.groups[0].suspect) == (found.straggler, found.suspect)
    named = found.straggler or found.suspect
    if named is not None:
        assert (named.rank, named.times_late, named.meetings) == (late[0], late.count(late[0]), len(late))
        assert named.evidence.startswith("too few collectives to tell") == (told == "suspect")
        assert (named.chance < 1 / 200) != (told == "suspect")


# quantiles, and nothing at all


@given(
    st.lists(st.tuples(st.integers(0, 3), st.one_of(st.integers(0, 9), st.integers(0, (1 << 62) - 1))), max_size=30),
    st.sampled_from([1, 4]),
)
def test_quantiles_of_groups_are_those_of_each(rows: list[tuple[int, int]], groups: int) -> None:
    rows = [(g % groups, v) for g, v in rows]
    group, value = np.array([g for g, _ in rows], np.int64), np.array([v for _, v in rows], np.int64)
    median, p95, most = quantiles(group, value, groups)
    for g in range(groups):
        mine = sorted(v for h, v in rows if h == g) or [0]
        assert most[g] == mine[-1]
        assert p95[g] == mine[-(-95 * len(mine) // 100) - 1]
        assert median[g] == (mine[(len(mine) - 1) // 2] + mine[len(mine) // 2]) // 2


@pytest.mark.parametrize("ranks", [1, 3])
def test_without_meetings_there_are_no_figures(ranks: int) -> None:
    recorded, meetings = Simulated(ranks, []).record()
    found = figures(recorded, meetings, clocks(recorded, meetings), {})
    assert (found.groups, found.waits, found.straggler, found.suspect) == ([], [], None, None)
