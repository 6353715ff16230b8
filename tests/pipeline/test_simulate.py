"""The simulator against published tables, against a plain one, and on orders that cannot be played."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlink.pipeline.records import Pass
from graphlink.pipeline.schedules import ActionTimes, Order, Timed, orders, peak_activations, simulate
from tests.pipeline.made import even_times, plain, possible

UNIT = 4000  # ns; the tables have quarters and halves of it


def run(
    schedule: str, p: int, m: int, v: int = 1, c: float = 0, times: tuple[float, float, float] = (1, 1, 1)
) -> Timed:
    F, I, W = (round(UNIT * t / v) for t in times)  # noqa: E741
    return simulate(orders(schedule, p, m, v), even_times(p * v, F, I, W, round(UNIT * c)))


def makespan_rate(timed: Timed) -> float:
    return timed.bubble_ns / (len(timed.work_ns) * timed.makespan_ns)


def zb_rate(timed: Timed) -> float:
    return 1 - timed.work_ns[0] / max(timed.own_ns)


CASES = [("GPipe", 1), ("1F1B", 1), ("interleaved", 2), ("interleaved", 4), ("ZB-H1", 1), ("ZB-H2", 1)]


@pytest.mark.parametrize(
    ("p", "m", "makespans", "rates", "zb_h2"),
    [
        (4, 4, (21, 21, 16.5, 14.25, 15, 16), (0.4286, 0.4286, 0.2727, 0.1579, 0.2000, 0.2500), 0.2),
        (4, 8, (33, 33, 28.5, 26.25, 27, 27), (0.2727, 0.2727, 0.1579, 0.0857, 0.1111, 0.1111), 0),
        (8, 16, (69, 69, 58.5, 53.25, 55, 55), (0.3043, 0.3043, 0.1795, 0.0986, 0.1273, 0.1273), 0),
        (8, 32, (117, 117, 106.5, 101.25, 103, 103), (0.1795, 0.1795, 0.0986, 0.0519, 0.0680, 0.0680), 0),
    ],
)
def test_equal_times(p: int, m: int, makespans: tuple[float, ...], rates: tuple[float, ...], zb_h2: float) -> None:
    for (schedule, v), makespan, rate in zip(CASES, makespans, rates, strict=True):
        timed = run(schedule, p, m, v)
        assert timed.makespan_ns == makespan * UNIT, schedule
        assert round(makespan_rate(timed), 4) == rate
        assert round(zb_rate(timed), 4) == (zb_h2 if schedule == "ZB-H2" else rate)


@pytest.mark.parametrize(
    ("schedule", "warmup", "cooldown", "own"),
    [
        ("GPipe", (0, 1, 2, 3), (0, 2, 4, 6), (33, 30, 27, 24)),
        ("1F1B", (0, 1, 2, 3), (0, 2, 4, 6), (33, 30, 27, 24)),
        ("ZB-H1", (0, 1, 2, 3), (0, 0, 0, 0), (27, 26, 25, 24)),
        ("ZB-H2", (0, 1, 2, 3), (3, 2, 1, 0), (24, 24, 24, 24)),
    ],
)
def test_warmup_cooldown_and_own_windows(
    schedule: str, warmup: tuple[int, ...], cooldown: tuple[int, ...], own: tuple[int, ...]
) -> None:
    timed = run(schedule, 4, 8)
    assert [int(start[0]) for start in timed.start_ns] == [UNIT * k for k in warmup]
    assert [timed.makespan_ns - int(end[-1]) for end in timed.end_ns] == [UNIT * k for k in cooldown]
    assert timed.own_ns == tuple(UNIT * k for k in own)


@pytest.mark.parametrize(
    ("p", "m", "c", "cells"),
    [
        (4, 8, 0.5, ((36, 0.3333), (41, 0.4146), (33, 0.2727), (28.5, 0.1579, 0.1111))),
        (4, 8, 1, ((39, 0.3846), (49, 0.5102), (41, 0.4146), (30, 0.2, 0.2))),
        (4, 16, 1, ((63, 0.2381), (85, 0.4353), (71, 0.3239), (54, 0.1111, 0.1111))),
        (8, 16, 1, ((83, 0.4217), (109, 0.5596), (89, 0.4607), (62, 0.2258, 0.2258))),
    ],
)
def test_with_transfers(p: int, m: int, c: float, cells: tuple[tuple[float, ...], ...]) -> None:
    for schedule, (makespan, rate, *zb) in zip(("GPipe", "1F1B", "ZB-H1", "ZB-H2"), cells, strict=True):
        timed = run(schedule, p, m, c=c)
        assert timed.makespan_ns == makespan * UNIT, schedule
        assert round(makespan_rate(timed), 4) == rate
        assert round(zb_rate(timed), 4) == (zb[0] if zb else rate)


@pytest.mark.parametrize(
    ("times", "zb_h1", "zb_h2_own", "zb_h2"),
    [((1, 1, 0.5), 1.5, 1, 1), ((2, 1, 1), 2, 1, 2), ((1, 1.5, 1.2), 1.5, 0.5, 1), ((1, 1, 2), 1, 0, 1)],
)
def test_unequal_times(times: tuple[float, float, float], zb_h1: float, zb_h2_own: float, zb_h2: float) -> None:
    work = round(12 * sum(round(UNIT * t) for t in times))
    assert run("ZB-H1", 4, 12, times=times).makespan_ns - work == 3 * zb_h1 * UNIT
    timed = run("ZB-H2", 4, 12, times=times)
    assert max(timed.own_ns) - work == 3 * zb_h2_own * UNIT
    assert timed.makespan_ns - work == 3 * zb_h2 * UNIT


ALL = list(possible((p, m) for p in (1, 2, 3, 4, 6) for m in (1, 2, 4, 6, 8, 12)))


@settings(max_examples=settings().max_examples * 4, deadline=None)
@given(st.sampled_from(ALL), st.data())
def test_as_the_plain_simulator(case: tuple[str, int, int, int], data: st.DataObject) -> None:
    schedule, p, m, v = case
    made = orders(schedule, p, m, v)
    some = st.integers(0, 50)
    times = ActionTimes(
        np.array(data.draw(st.lists(st.lists(some, min_size=p * v, max_size=p * v), min_size=4, max_size=4)), np.int64),
        np.array(data.draw(st.lists(some, min_size=p * v - 1, max_size=p * v - 1)), np.int64),
        np.array(data.draw(st.lists(some, min_size=p * v - 1, max_size=p * v - 1)), np.int64),
    )
    timed = simulate(made, times)
    for rank, expected in enumerate(plain(made, times)):
        assert list(zip(timed.start_ns[rank].tolist(), timed.end_ns[rank].tolist(), strict=True)) == expected


def test_times_of_each_action() -> None:
    made = orders("1F1B", 2, 2)
    timed = simulate(made, even_times(2, 1, 1, 1), [np.array([1, 2, 30, 4]), np.array([10, 20, 30, 40])])
    assert timed.end_ns[1].tolist() == [11, 31, 61, 101]
    assert timed.start_ns[0].tolist() == [0, 1, 31, 101]
    assert timed.work_ns == (37, 100)
    assert timed.own_ns == (105, 100)
    assert timed.bubble_ns == 2 * 105 - 137


def test_most_activations_are_held_as_the_papers_say() -> None:
    assert peak_activations(orders("GPipe", 4, 8)) == (8, 8, 8, 8)
    assert peak_activations(orders("1F1B", 4, 8)) == (4, 3, 2, 1)
    assert peak_activations(orders("ZB-H1", 4, 8)) == (4, 4, 4, 4)
    assert peak_activations(orders("ZB-H2", 4, 8)) == (7, 7, 7, 7)
    assert peak_activations(orders("interleaved", 4, 8, 2)) == (11, 9, 7, 5)
    assert peak_activations(orders("ZB-V", 4, 8, 2)) == (8, 8, 8, 8)  # of half the size: as 1F1B
    assert peak_activations(orders("DualPipe", 8, 20, 2)) == (9,) * 8  # PP + 1


def hand(*ranks: str) -> list[Order]:
    """``hand("0F0 0B0", "1F0 1B0")``"""
    out = []
    for rank in ranks:
        words = rank.split()
        phase = np.array([Pass[word[1]] for word in words], np.uint8)
        stage, microbatch = (np.array([int(word[at]) for word in words], np.int64) for at in (0, 2))
        out.append(Order(phase, stage, microbatch, np.zeros(len(words), np.bool_)))
    return out


@pytest.mark.parametrize(
    ("ranks", "why"),
    [
        (
            ("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"),
            r"deadlock: rank 0, action 1: B of stage 0, microbatch 0 waits for rank 1, action 2: B of stage 1, microbatch 0",
        ),
        (("0B0 0F0", "1F0 1B0"), r"rank 0, action 0: B of stage 0, microbatch 0 is before what it needs"),
        (("0F0 0B0", "1F0 1W0 1I0"), r"rank 1, action 1: W of stage 1, microbatch 0 is before"),
        (("0F0 0F0 0B0", "1F0 1B0"), r"rank 0, action 0: F of stage 0, microbatch 0 is twice"),
        (("0B0", "1F0 1B0"), r"rank 0, action 0: B of stage 0, microbatch 0 is before"),
    ],
)
def test_orders_that_cannot_be_played_are_refused_by_name(ranks: tuple[str, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        simulate(hand(*ranks), even_times(2, 1, 1, 1))


def test_a_pair_that_waits_for_itself_is_a_deadlock() -> None:
    made = hand("0F0 1F0 1B0 0B0")
    assert simulate(made, even_times(2, 1, 1, 1)).makespan_ns == 6
    stuck = [replace(hand("0F0 0B0", "1F0 1B0")[0], paired=np.array([True, False])), hand("0F0 0B0", "1F0 1B0")[1]]
    with pytest.raises(ValueError, match="deadlock: rank 0, action 1: B of stage 0"):
        simulate(stuck, even_times(2, 1, 1, 1))


def test_64_stages_by_512_microbatches_take_no_time() -> None:
    for schedule, v in (("1F1B", 1), ("ZB-H2", 1), ("interleaved", 4), ("ZB-V", 2), ("DualPipe", 2)):
        began = time.process_time()
        timed = simulate(orders(schedule, 64, 512, v), even_times(64 * v, 3, 3, 3, 1))
        assert time.process_time() - began < 2
        assert timed.makespan_ns > 512 * 9
