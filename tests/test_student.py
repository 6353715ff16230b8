"""The t distribution against tabulated values, and the tests against textbook examples."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from graphlink.student import goes_together, paired, quantile, tail, welch


@pytest.mark.parametrize(
    ("p", "freedom", "t"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.30265),
        (0.995, 3, 5.84091),
        (0.95, 5, 2.01505),
        (0.995, 10, 3.16927),
        (0.975, 30, 2.04227),
        (0.995, 36, 2.71948),
        (0.9995, 120, 3.37345),
        (0.995, 1e7, 2.57583),
    ],
)
def test_quantiles_are_those_of_the_tables(p: float, freedom: float, t: float) -> None:
    assert quantile(p, freedom) == pytest.approx(t, rel=2e-6)
    assert tail(t, freedom) == pytest.approx(2 * (1 - p), rel=2e-4)


def test_the_tail_at_its_ends() -> None:
    assert tail(0.0, 5) == 1.0
    assert tail(inf, 5) == 0.0
    assert tail(1.0, 1) == pytest.approx(0.5)  # Cauchy
    assert 0 < tail(40.0, 3) < 1e-4


def test_welch_on_two_samples_of_a_textbook() -> None:
    one = np.array([27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4])
    other = np.array([27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5, 24.4])
    found = welch(one, other)
    assert (found.p, found.freedom) == (pytest.approx(0.021378, abs=2e-6), pytest.approx(24.98853, abs=1e-4))
    assert found.difference == pytest.approx(other.mean() - one.mean())


def test_equal_values_differ_in_nothing_and_other_constants_surely() -> None:
    one = np.array([5.0, 5.0, 5.0])
    assert (welch(one, one).p, welch(one, one + 1).p, paired(one, one + 1).p) == (1.0, 0.0, 0.0)
    assert welch(one, one + 1).margin(0.99) == 0.0


def test_steps_of_one_place_go_together_only_if_they_do() -> None:
    random = np.random.default_rng(1)
    base = random.normal(100, 10, 20)
    assert goes_together(base, base * 1.05 + random.normal(0, 1, 20), 0.01)
    assert not goes_together(base, base[::-1].copy(), 0.01)
    assert not goes_together(base, base[:-1], 0.01)
    assert not goes_together(np.full(9, 3.0), np.full(9, 4.0), 0.01)
