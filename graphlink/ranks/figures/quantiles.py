"""Sums, medians and the like of many groups at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphlink.model import I32, I64


@dataclass(frozen=True, slots=True)
class Quantiles:
    """One entry a group, 0 for those without values. ``p95``: nearest rank. ``median``: the mean of the middle two, rounded down."""

    median: I64
    p95: I64
    most: I64


def added(group: I32 | I64, value: NDArray[Any], groups: int) -> NDArray[np.float64]:
    """The sum of the values of each group; exact for ints below 2^53."""
    return np.bincount(group, weights=value, minlength=groups).astype(np.float64, copy=False)


def sorted_by(group: I32 | I64, value: I64, groups: int) -> I64:
    """Values by group, then ascending; ``value`` not below 0. n log n: of one sort of numbers that hold both, where they fit."""
    bits = int(value.max(initial=0)).bit_length()
    if bits + max(groups, 1).bit_length() < 63:
        both = (group.astype(np.int64) << bits) | value
        both.sort()
        both &= (1 << bits) - 1
        return both
    out: I64 = value[np.lexsort((value, group))]
    return out


def quantiles(group: I32 | I64, value: I64, groups: int) -> Quantiles:
    """``value`` not below 0. n log n, of one group linear."""
    count = np.bincount(group, minlength=groups)
    some = count > 0
    n, at = count[some], (np.cumsum(count) - count)[some]
    places = np.stack([at + (n - 1) // 2, at + n // 2, at + (19 * n + 19) // 20 - 1, at + n - 1])
    ordered = np.partition(value, places[:, 0]) if groups == 1 and len(value) else sorted_by(group, value, groups)
    low, high, p95, most = ordered[places]
    columns = np.zeros((3, groups), np.int64)
    columns[:, some] = low + (high - low) // 2, p95, most
    return Quantiles(*columns)
