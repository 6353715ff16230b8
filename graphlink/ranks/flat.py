"""The ops of all ranks in one column each, and meetings as slices of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from graphlink.model import I32, I64, Bool
from graphlink.ranks.records import Meetings, RankComms

_Scalar = TypeVar("_Scalar", bound=np.generic)
_BLOCK: Final = 1 << 20  # members of meetings that are looked at together, to bound memory


@dataclass(frozen=True, slots=True)
class Members:
    """Some meetings in a row. ``first``: where each begins in the other columns, which have one entry a member; ``op`` as in ``column``."""

    low: int  # first meeting
    high: int  # one after the last
    first: I64
    count: I64
    rank: I32  # position of the rank
    op: I64

    def spread(self, value: NDArray[_Scalar]) -> NDArray[_Scalar]:
        """A value a meeting -> a value a member."""
        return np.repeat(value, self.count)


def offsets(ranks: Sequence[RankComms]) -> I64:
    """Where the ops of each rank begin in ``column``."""
    return np.cumsum([0, *(len(r.node) for r in ranks)])[:-1]


def column(ranks: Sequence[RankComms], name: str) -> NDArray[Any]:
    """A column of all ranks, one after the other."""
    return np.concatenate([getattr(r, name) for r in ranks])


def members(ranks: Sequence[RankComms], meetings: Meetings, chosen: I64 | None = None) -> Members:
    """Of the meetings ``chosen`` (ascending; all without), whose ``low`` and ``high`` mean nothing then."""
    if chosen is None:
        return _slice(offsets(ranks), meetings, 0, len(meetings.kind))
    count = np.diff(meetings.first)[chosen]
    first = np.cumsum(count) - count
    entry = np.arange(int(count.sum())) + np.repeat(meetings.first[chosen] - first, count)
    rank = meetings.rank[entry]
    return Members(0, len(chosen), first, count, rank, offsets(ranks)[rank] + meetings.op[entry])


def blocks(ranks: Sequence[RankComms], meetings: Meetings) -> Iterator[Members]:
    """All meetings in order, about a million members at a time."""
    where, total = offsets(ranks), len(meetings.kind)
    low = 0
    while low < total:
        high = int(np.searchsorted(meetings.first, meetings.first[low] + _BLOCK, side="right")) - 1
        high = min(max(high, low + 1), total)
        yield _slice(where, meetings, low, high)
        low = high


def _slice(where: I64, meetings: Meetings, low: int, high: int) -> Members:
    a, b = int(meetings.first[low]), int(meetings.first[high])
    rank = meetings.rank[a:b]
    return Members(low, high, meetings.first[low:high] - a, np.diff(meetings.first[low : high + 1]), rank, where[rank] + meetings.op[a:b])


def any_of(value: Bool, at: Members) -> Bool:
    """Of values a member: is there one in each meeting?"""
    out: Bool = np.logical_or.reduceat(value, at.first) if len(at.first) else np.zeros(0, np.bool_)
    return out
