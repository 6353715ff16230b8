"""Searched orders: rates as published, memory and dependencies by a plain replay, never worse than what they begin
with.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from graphlink.pipeline import search as searching
from graphlink.pipeline.records import Pass
from graphlink.pipeline.schedules import ActionTimes, Order, Timed, orders, peak_activations, simulate
from graphlink.pipeline.search import fits, search
from graphlink.pipeline.theory import KEPT
from tests.pipeline.made import actions, even_times, plain, short

PUBLISHED = [  # arXiv 2401.10241 on 8 stages: T_F, T_B, T_W, T_comm in us, m; rates of 1F1B, ZB-H1, ZB-H2, ZB-1p, ZB-2p
    ((18522, 18086, 9337, 601), 24, (0.2431, 0.1585, 0.1083, 0.1585, 0.0433)),
    ((18513, 18086, 9331, 626), 32, (0.1985, 0.1242, 0.0837, 0.1242, 0.0039)),
    ((18546, 18097, 9321, 762), 64, (0.1240, 0.0674, 0.0444, 0.0674, 0.0026)),
    ((29718, 29444, 19927, 527), 24, (0.2347, 0.1323, 0.0698, 0.1323, 0.0029)),
    ((29802, 29428, 19530, 577), 32, (0.1898, 0.1045, 0.0559, 0.1045, 0.0022)),
    ((29935, 29621, 19388, 535), 64, (0.1091, 0.0554, 0.0294, 0.0554, 0.0010)),
]


def rate(timed: Timed) -> float:
    return 1 - sum(timed.work_ns) / len(timed.work_ns) / max(timed.own_ns)


@pytest.mark.parametrize(("times", "m", "rates"), PUBLISHED)
def test_definitions_are_those_of_the_paper(times: tuple[int, int, int, int], m: int, rates: tuple[float, ...]) -> None:
    given = even_times(8, *(1000 * t for t in times))
    for schedule, published in zip(("1F1B", "ZB-H1", "ZB-H2"), rates, strict=False):
        assert abs(rate(simulate(orders(schedule, 8, m), given)) - published) < 0.0002, schedule


@pytest.mark.parametrize(
    ("times", "m", "rates", "multiple"),
    [
        pytest.param(*row, multiple, marks=() if k % 3 == multiple - 1 else pytest.mark.long)
        for multiple in (1, 2)
        for k, row in enumerate(PUBLISHED)
    ],
)
def test_rates_as_low_as_published_with_a_sixth_of_the_effort(
    monkeypatch: pytest.MonkeyPatch, times: tuple[int, int, int, int], m: int, rates: tuple[float, ...], multiple: int
) -> None:
    monkeypatch.setattr(searching, "_MOST_PLAYED", 500_000)
    given = even_times(8, *(1000 * t for t in times))
    made = search(given, m, (8.0 * multiple,) * 8, KEPT)
    assert rate(simulate(made, given)) <= rates[2 + multiple] + 0.0005
    check(made, m, [8.0 * multiple] * 8, KEPT)


def check(made: Sequence[Order], m: int, limit: Sequence[float], kept: float) -> list[float]:
    """Replay each rank: what it stores after each action, each microbatch once and in turn, F before I before W. Return
    the peaks.
    """
    peaks = []
    for rank, order in enumerate(made):
        stored: dict[int, float] = {}
        seen: dict[str, list[int]] = {"F": [], "I": [], "W": []}
        peak = 0.0
        for phase, stage, microbatch in actions(order):
            assert stage == rank
            seen[phase].append(microbatch)
            if phase == "F":
                stored[microbatch] = 1.0
            elif phase == "I":
                assert stored[microbatch] == 1.0
                stored[microbatch] = kept
            else:
                assert microbatch in seen["I"]
                del stored[microbatch]
            peak = max(peak, sum(stored.values()))
            assert peak <= limit[rank] + 1e-6, (rank, phase, microbatch)
        assert all(k == list(range(m)) for k in seen.values())
        assert not stored
        peaks.append(peak)
    return peaks


def some_times(rng: random.Random, p: int) -> ActionTimes:
    spread = rng.choice([0, 0.1, 0.5, 1])
    means = [rng.choice([0, 1]) if rng.random() < 0.1 else rng.randint(50, 200) for _ in range(3)]
    forward, inputs, weights = ([round(mean * (1 + rng.uniform(-spread, spread))) for _ in range(p)] for mean in means)
    most = rng.choice([0, 1, 20, 300])
    transfers = [np.array([rng.randint(0, most) for _ in range(p - 1)], np.int64) for _ in range(2)]
    return ActionTimes(np.array([forward, np.add(inputs, weights), inputs, weights], np.int64), *transfers)


def sweep(seed: int, count: int, least: int, most: int) -> None:
    """Search for random times, on ``least`` to ``most`` stages."""
    rng = random.Random(seed)
    for _ in range(count):
        p = rng.randint(least, most)
        m, kept = rng.randint(p, 8 * p), rng.choice([0, 0.43, KEPT, 0.94, 1])
        times = some_times(rng, p)
        for multiple in (1, 2, rng.uniform(1 / p, 3)):
            limit = (max(multiple * p, 1.0),) * p
            made = search(times, m, limit, kept)
            peaks = check(made, m, limit, kept)
            assert np.allclose(peaks, peak_activations(made, kept))
            timed = simulate(made, times)
            played = plain(made, times)
            assert [list(zip(*ends, strict=True)) for ends in played] == [
                [tuple(a.tolist()), tuple(b.tolist())] for a, b in zip(timed.start_ns, timed.end_ns, strict=True)
            ]
            for schedule, needs in (("1F1B", 1), ("ZB-H1", 1), ("ZB-H2", 2)):
                if multiple >= needs:
                    assert max(timed.own_ns) <= max(simulate(orders(schedule, p, m), times).own_ns), schedule


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "_MOST_PLAYED", 50_000)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("count", [5, pytest.param(12, marks=pytest.mark.long)])
def test_random_times_on_few_stages(count: int) -> None:
    sweep(1, count, 1, 5)


@pytest.mark.long
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("seed", range(20))
def test_random_times_on_up_to_16_stages(seed: int) -> None:
    sweep(100 + seed, 10, 2, 16)


@pytest.mark.usefixtures("quick")
def test_each_rank_has_a_limit_of_its_own() -> None:
    rng = random.Random(3)
    for _ in range(8):
        p, m = rng.randint(2, 6), rng.randint(1, 20)
        limit = tuple(float(rng.randint(1, 2 * p)) for _ in range(p))
        check(search(some_times(rng, p), m, limit, KEPT), m, limit, KEPT)


@pytest.mark.usefixtures("quick")
def test_more_memory_loses_no_more_here() -> None:
    given = even_times(4, 100, 100, 80, 5)
    rates = [rate(simulate(search(given, 16, (4 * x,) * 4, KEPT), given)) for x in (0.5, 1, 1.5, 2)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > rates[-1]


@pytest.mark.usefixtures("quick")
def test_the_same_times_give_the_same_order() -> None:
    times, limits = some_times(random.Random(8), 6), (9.0,) * 6
    first, second = ([short(order) for order in search(times, 17, limits, KEPT)] for _ in range(2))
    assert first == second


@pytest.mark.usefixtures("quick")
def test_a_rank_alone_has_nothing_to_wait_for() -> None:
    (order,) = search(even_times(1, 3, 4, 5), 4, (1.0,), 1.0)
    assert short(order) == "0F0 0I0 0W0 0F1 0I1 0W1 0F2 0I2 0W2 0F3 0I3 0W3"


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at least the activations of one microbatch, not of 0\.8"):
        search(even_times(2, 1, 1, 1), 2, (2.0, 0.8), KEPT)
    with pytest.raises(ValueError, match="200,000 microbatches on 2 stages are 1,200,000 actions, at most 1,000,000"):
        search(even_times(2, 1, 1, 1), 200_000, (2.0, 2.0), KEPT)


def test_patterns_are_the_handcrafted_schedules() -> None:
    job = searching._Job(even_times(5, 1, 1, 1), 12, (99.0,) * 5, 1.0)
    for schedule, hops in (("ZB-H1", 1.0), ("ZB-H2", 2.0)):
        for rank, order in enumerate(orders(schedule, 5, 12)):
            assert searching._pattern(job, rank, hops, delays=True) == bytearray(order.phase)
    usual = [phase for phase, _, _ in actions(orders("1F1B", 5, 12)[1])]
    split = [Pass(phase).name for phase in searching._pattern(job, 1, 1.0, delays=False)]
    assert "".join(split).replace("IW", "B") == "".join(usual)


def test_own_play_is_that_of_the_simulator() -> None:
    rng = random.Random(4)
    for _ in range(20):
        p, m = rng.randint(1, 6), rng.randint(1, 12)
        times = some_times(rng, p)
        limits = (float(rng.randint(1, 8)),) * p
        job = searching._Job(times, m, limits, KEPT)
        for played in searching._by_policies(job):
            made = tuple(searching._order(rank, row) for rank, row in enumerate(played.rows))
            assert tuple(played.own_ns) == simulate(made, times).own_ns


def test_a_circle_of_waits_is_no_order() -> None:
    job = searching._Job(even_times(2, 1, 1, 1), 2, (9.0, 9.0), KEPT)
    F, I, W = Pass.F, Pass.I, Pass.W  # noqa: E741
    assert searching._play(job, [bytearray([F, I, F, I, W, W]), bytearray([F, F, I, I, W, W])]) is None


@pytest.mark.parametrize(
    ("row", "limit", "kept", "yes"),
    [
        ("FIW", 1, 1, True),
        ("FFIIWW", 2, 1, True),
        ("FFIIWW", 1.9, 1, False),
        ("FIFIWW", 1.5, 0.5, True),
        ("FIFIWW", 1.4, 0.5, False),
        ("IFW", 9, 0, False),
        ("FWI", 9, 0, False),
    ],
)
def test_what_fits(row: str, limit: float, kept: float, yes: bool) -> None:
    assert fits(bytearray(Pass[phase] for phase in row), limit, kept) is yes
