"""Pairs of values as numbers, where ``np.unique`` over an axis would sort records."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from graphlink.model import I64

Integers = NDArray[np.integer]


def numbered_pairs(first: Integers, second: Integers) -> tuple[list[tuple[int, int]], I64]:
    """Return the pairs that there are, in order, and of each entry the number of its pair.

    Args:
        first, second: shape (n,), any values of few kinds: a device and a stream, a phase and a microbatch.

    Cost: O(n log kinds).
    """
    firsts, seconds = np.unique(first), np.unique(second)
    count = max(len(seconds), 1)
    key = np.searchsorted(firsts, first) * count + np.searchsorted(seconds, second)
    keys = np.unique(key)
    pairs = zip(firsts[keys // count].tolist(), seconds[keys % count].tolist(), strict=True)
    return list(pairs), np.searchsorted(keys, key)
