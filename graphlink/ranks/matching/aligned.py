"""What the two ways of laying one rank's ops beside another's work on, and what they find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I64, NOWHERE

DIFFERS: Final = "differs"
OTHER_ORDER: Final = "other order"


@dataclass(frozen=True, slots=True)
class Ops:
    """Ops of one rank in one group (or at one end of messages), in order; equal ``token``: same function and size.

    ``timed``: they end within microseconds of their counterparts; rows of the host do not. ``eager``: some may end before their
    counterparts begin, as small messages do.
    """

    rank: int
    token: I64
    start_ns: I64
    end_ns: I64
    timed: bool
    eager: bool = False

    def __len__(self) -> int:
        return len(self.token)


@dataclass(frozen=True, slots=True)
class Clash:
    """Ops of two sides that stand where the other has something else: positions in each."""

    left: I64
    right: I64
    why: str


@dataclass(frozen=True, slots=True)
class Pairs:
    """``right``: of each op of the left side its counterpart, ascending, or ``NOWHERE``.

    What is neither there nor in a clash one side has alone.
    """

    right: I64
    clashes: tuple[Clash, ...]


@dataclass(frozen=True, slots=True)
class Hole:
    """Consecutive ops of both sides between two matches (or before the first, after the last): ``low <= position < high``."""

    left_low: int
    left_high: int
    right_low: int
    right_high: int


def pairs(left: I64, right: I64, count: int, clashes: tuple[Clash, ...] = ()) -> Pairs:
    """From matched positions; ``count`` ops on the left."""
    of_left = np.full(count, NOWHERE, np.int64)
    of_left[left] = right
    return Pairs(of_left, clashes)


def holes(left: I64, right: I64, left_count: int, right_count: int) -> list[Hole]:
    """Where either side has ops that the other lacks, in order, from matched positions (ascending on both sides)."""
    low = np.stack([np.append(-1, left), np.append(-1, right)]) + 1
    high = np.stack([np.append(left, left_count), np.append(right, right_count)])
    rows = np.flatnonzero((high > low).any(axis=0))
    return [Hole(*row) for row in np.stack([low[0], high[0], low[1], high[1]], axis=1)[rows].tolist()]


def same_elsewhere(one: I64, other: I64) -> bool:
    """Whether two runs of tokens hold the same ones, in another order."""
    return len(one) > 1 and len(one) == len(other) and bool((np.sort(one) == np.sort(other)).all())
