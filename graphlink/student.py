"""Compare samples by Student's t: the tail of its distribution, and the tests that use it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, lgamma, log, log1p, sqrt
from typing import Final

import numpy as np

from graphlink.model import F64

TO_SIGMA: Final = 1.4826  # standard deviation in median absolute deviations, for normal errors
_TERMS: Final = 3_000  # of the continued fraction; some tens are needed, for 1 M trials a thousand
_SMALL: Final = 1e-300


@dataclass(frozen=True, slots=True)
class Compared:
    """The difference of two means, its standard error and degrees of freedom. ``p``: the chance of so much or more if
    there is none.
    """

    difference: float
    error: float
    freedom: float
    p: float

    def margin(self, level: float) -> float:
        """Return by how much the difference may be off at this level of confidence."""
        return self.error * quantile((1 + level) / 2, self.freedom) if self.error else 0.0


def welch(before: F64, after: F64) -> Compared:
    """Compare two samples of two or more whose variances may differ: Welch's test."""
    spread = [float(sample.var(ddof=1)) / len(sample) for sample in (before, after)]
    error = sqrt(sum(spread))
    parts = sum(one**2 / (len(sample) - 1) for one, sample in zip(spread, (before, after), strict=True))
    freedom = sum(spread) ** 2 / parts if parts else inf
    return _compared(float(after.mean() - before.mean()), error, freedom)


def paired(before: F64, after: F64) -> Compared:
    """Compare two samples of one length, two or more, value by value."""
    change = after - before
    return _compared(float(change.mean()), float(change.std(ddof=1)) / sqrt(len(change)), len(change) - 1.0)


def goes_together(before: F64, after: F64, chance: float) -> bool:
    """Tell whether values of one place are alike more than ``chance`` has it: their correlation is positive."""
    if len(before) != len(after) or len(before) < 4 or not (before.std() and after.std()):
        return False
    r = float(np.corrcoef(before, after)[0, 1])
    if r <= 0:
        return False
    return r >= 1 or tail(r * sqrt((len(before) - 2) / (1 - r * r)), len(before) - 2.0) / 2 < chance


def tail(t: float, freedom: float) -> float:
    """Return the chance of ``t`` or more, either way, of Student's distribution: I_x(freedom / 2, 1/2) at x = freedom /
    (freedom + t^2).
    """
    if t == 0:
        return 1.0
    if freedom == inf or t * t == inf:
        return 0.0
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


@lru_cache(maxsize=1024)
def quantile(p: float, freedom: float) -> float:
    """Return the t that a share ``p`` (above 1/2) of the distribution lies below, by bisection."""
    high = 1.0
    while tail(high, freedom) / 2 > 1 - p and high < 1e12:
        high *= 2
    low = 0.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if tail(middle, freedom) / 2 > 1 - p else (low, middle)
    return high


def _compared(difference: float, error: float, freedom: float) -> Compared:
    if not error:
        return Compared(difference, 0.0, freedom, 0.0 if difference else 1.0)
    return Compared(difference, error, freedom, tail(difference / error, freedom))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), by its continued fraction (Abramowitz and Stegun
    26.5.8).
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x))
    if x > (a + 1) / (a + b + 2):
        return 1 - front * _fraction(b, a, 1 - x) / b
    return front * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    """Compute the continued fraction by Lentz's method."""
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _nonzero(1 + term * d)
            c = _nonzero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > _SMALL else _SMALL
