"""Bounds of differences: ``bound[i, j]`` is the most that the clock of j may be shifted against that of i. Shortest
paths solve them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from graphlink.model import I64

OPEN: Final = 1 << 60  # ns: no bound


def solved(bound: I64) -> tuple[int, I64]:
    """Find the least slack that every bound must be given so that all can hold (0: none), and the tightest bounds that
    follow.
    """
    tight = closed(bound)
    if (np.diagonal(tight) >= 0).all():
        return 0, tight
    low, high = 0, int(-bound.min())
    while high - low > 1:
        middle = (low + high) // 2
        fits = (np.diagonal(closed(loosened(bound, middle))) >= 0).all()
        low, high = (low, middle) if fits else (middle, high)
    return high, closed(loosened(bound, high))


def loosened(bound: I64, slack: int) -> I64:
    """Return all bounds but those of a clock against itself, ``slack`` higher."""
    return np.where((bound < OPEN) & ~np.eye(len(bound), dtype=np.bool_), bound + slack, bound)


def closed(bound: I64) -> I64:
    """Return the bounds that follow by all chains of bounds. n^3."""
    out = bound.copy()
    for k in range(len(out)):
        out = np.clip(np.minimum(out, out[:, k, None] + out[None, k, :]), -OPEN, OPEN)
    return out
