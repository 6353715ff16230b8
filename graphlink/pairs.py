"""Values, pairs of values and texts as numbers, where ``np.unique`` would sort all rows, or records over an axis."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from graphlink.model import I32, I64

Integers = NDArray[np.integer]


def dense(column: Integers) -> tuple[I64, I64]:
    """Return the different values of a column, ascending, and for each row which of them it has. O(n) where they lie
    close together.
    """
    if not len(column):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    low, high = int(column.min()), int(column.max())
    if high - low > 4 * len(column) + (1 << 16):
        values, codes = np.unique(column, return_inverse=True)
        return values.astype(np.int64), codes.reshape(-1)
    place = column.astype(np.int64) - low
    present = np.zeros(high - low + 1, np.int64)
    present[place] = 1
    return np.flatnonzero(present) + low, (np.cumsum(present) - 1)[place]


def numbered_pairs(first: Integers, second: Integers) -> tuple[list[tuple[int, int]], I64]:
    """Return the pairs that there are, in order, and of each entry the number of its pair.

    Args:
        first, second: shape (n,), any values of few kinds: a device and a stream, a phase and a microbatch.

    Cost: O(n), for values that lie far apart O(n log n).
    """
    firsts, one = dense(first)
    seconds, other = dense(second)
    count = max(len(seconds), 1)
    keys, number = dense(one * count + other)
    return list(zip(firsts[keys // count].tolist(), seconds[keys % count].tolist(), strict=True)), number


def numbered_texts(texts: Iterable[str]) -> tuple[I32, tuple[str, ...]]:
    """Return of each text its position among the different ones, and those in the order in which they first come.
    Linear.
    """
    number: dict[str, int] = {}
    code = [number.setdefault(text, len(number)) for text in texts]
    return np.array(code, np.int32), tuple(number)
