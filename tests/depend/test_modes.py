"""When lags are a mode, and when they are no more than chance."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.depend.modes import Mode, mode_of


def mode(lags: list[int], chance_per_us: float = 0.0) -> Mode | None:
    return mode_of(np.array(lags, np.int64), np.full(len(lags), chance_per_us / 1000))


@pytest.mark.parametrize(("n", "found"), [(10, True), (9, False)])
def test_a_mode_needs_10_lags(n: int, found: bool) -> None:
    assert (mode([145_000] * n) is not None) == found


def test_its_core_reaches_over_a_quarter_of_its_least_lag_and_9_us_at_least() -> None:
    slow = [100_000 + 2_500 * i for i in range(9)]
    assert mode([*slow, 125_000]) == Mode(100_000, 125_000)
    assert mode([*slow, 126_000]) is None, "9 in a band"
    fast = [4_000 + 1_000 * i for i in range(10)]
    assert mode([*fast, 15_000]) == Mode(4_000, 13_000)


def test_lags_a_tenth_shorter_or_longer_are_of_it_too() -> None:
    core = [100_000 + 2_500 * i for i in range(11)]
    assert mode([90_000, *core, 137_500]) == Mode(90_000, 137_500)
    assert mode([89_999, *core, 137_501]) == Mode(100_000, 125_000)


@pytest.mark.parametrize(("others", "found"), [(20, True), (21, False)])
def test_a_third_of_all_lags_lies_in_it(others: int, found: bool) -> None:
    assert (mode([145_000] * 10 + [300_000 * (i + 1) for i in range(others)]) is not None) == found


@pytest.mark.parametrize(("per_us", "found"), [(0.01098, True), (0.01099, False)])
def test_so_many_lie_in_it_by_chance_in_less_than_1_of_1000_recordings(per_us: float, found: bool) -> None:
    """10 of 10 lags in a band of 36.25 us, where ends come so often that 2 in 5 of random returns would have
    one there.
    """
    assert (mode([145_000] * 10, per_us) is not None) == (10 * (36.25 * per_us) ** 10 <= 1e-3) == found


@pytest.mark.parametrize(("per_us", "found"), [(0.0055, True), (0.0056, False)])
def test_three_of_four_lie_in_it_for_a_reason(per_us: float, found: bool) -> None:
    """100 of 200 lags, of which 25 by chance: 1 in 5 of the 125 that are of no mode."""
    others = [300_000 * (i + 1) for i in range(100)]
    chance = 36.25 * per_us
    assert (100 - 200 * chance) / (1 - chance) >= 75 if found else (100 - 200 * chance) / (1 - chance) < 75
    assert (mode([145_000] * 100 + others, per_us) is not None) == found


@given(st.lists(st.integers(0, 10**6), max_size=60), st.randoms(use_true_random=False))
def test_the_order_of_lags_is_no_matter_and_a_mode_holds_what_it_says(lags: list[int], random: Random) -> None:
    found = mode(lags)
    shuffled = random.sample(lags, len(lags))
    assert mode(shuffled) == found
    if found:
        held = [lag for lag in lags if found.least_ns <= lag <= found.most_ns]
        assert len(held) >= max(10, len(lags) / 3)
        assert len(held) >= max(sum(a <= lag <= a + max(a * 0.25, 9_000) for lag in lags) for a in lags)


def test_lags_of_a_wrong_source_hardly_ever_make_a_mode() -> None:
    """What ended last before a random moment: uniform over the time between two ends, of 20 us to 1 ms. (0 of 20,000
    do.)
    """
    random = Random(1)
    found = 0
    for between_us in (20, 100, 1_000):
        for _ in range(1_000):
            lags = [random.randrange(between_us * 1000) for _ in range(random.randrange(10, 60))]
            found += mode(lags, 1 / between_us) is not None
    assert not found
