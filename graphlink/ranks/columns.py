"""The ops of all ranks in one column each, meetings as slices of them, and statistics by group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from graphlink.model import I32, I64
from graphlink.ranks.records import Meetings, RankComms

_Scalar = TypeVar("_Scalar", bound=np.generic)
_BLOCK: Final = 1 << 20  # members of meetings that are looked at together, to bound memory


@dataclass(frozen=True, slots=True)
class Members:
    """Some meetings in a row. ``first``: where each begins in the other columns, which have one entry per member;
    ``op`` as in ``column``."""

    meetings: slice
    entries: slice  # of all members of meetings
    first: I64
    count: I64
    rank: I32  # position of the rank
    op: I64

    def spread(self, value: NDArray[_Scalar]) -> NDArray[_Scalar]:
        """Repeat a value of each meeting for each of its members."""
        return np.repeat(value, self.count)


def offsets(ranks: Sequence[RankComms]) -> I64:
    """Return where the ops of each rank begin in ``column``."""
    return np.cumsum([0, *(len(r.node) for r in ranks)])[:-1]


def column(ranks: Sequence[RankComms], name: str) -> NDArray[Any]:
    """Return a column of all ranks, one after the other."""
    return np.concatenate([getattr(r, name) for r in ranks])


def members(ranks: Sequence[RankComms], meetings: Meetings, chosen: I64) -> Members:
    """Return the meetings ``chosen`` (ascending), whose slices mean nothing then."""
    count = np.diff(meetings.first)[chosen]
    first = np.cumsum(count) - count
    entry = np.arange(int(count.sum())) + np.repeat(meetings.first[chosen] - first, count)
    rank = meetings.rank[entry]
    return Members(slice(0), slice(0), first, count, rank, offsets(ranks)[rank] + meetings.op[entry])


def blocks(ranks: Sequence[RankComms], meetings: Meetings) -> Iterator[Members]:
    """Yield all meetings in order, about a million members at a time; without any, once none."""
    where, total = offsets(ranks), len(meetings.kind)
    low = 0
    while True:
        high = int(np.searchsorted(meetings.first, meetings.first[low] + _BLOCK, side="right")) - 1
        high = min(max(high, low + 1), total)
        first, entries = (
            meetings.first[low : high + 1] - meetings.first[low],
            slice(meetings.first[low], meetings.first[high]),
        )
        rank = meetings.rank[entries]
        yield Members(slice(low, high), entries, first[:-1], np.diff(first), rank, where[rank] + meetings.op[entries])
        if high == total:
            return
        low = high


def added(group: I32 | I64, value: NDArray[Any], groups: int) -> NDArray[np.float64]:
    """Return the sum of the values of each group; exact for ints below 2^53."""
    return np.bincount(group, weights=value, minlength=groups).astype(np.float64, copy=False)


def sorted_by(group: I32 | I64, value: I64, groups: int) -> I64:
    """Return values by group, then ascending; ``value`` not below 0. n log n: of one sort of numbers that hold both,
    where they fit.
    """
    bits = int(value.max(initial=0)).bit_length()
    if bits + max(groups, 1).bit_length() < 63:
        both = (group.astype(np.int64) << bits) | value
        both.sort()
        both &= (1 << bits) - 1
        return both
    return np.asarray(value[np.lexsort((value, group))])


def quantiles(group: I32 | I64, value: I64, groups: int) -> I64:
    """Return median, 95th percentile and maximum of each group, a row each; ``value`` not below 0. n log n, of one
    group linear.

    0 for groups without values. The median is the mean of the middle two, rounded down; the percentile the nearest
    rank.
    """
    count = np.bincount(group, minlength=groups)
    some = count > 0
    n, at = count[some], (np.cumsum(count) - count)[some]
    places = np.stack([at + (n - 1) // 2, at + n // 2, at + (19 * n + 19) // 20 - 1, at + n - 1])
    ordered = np.partition(value, places[:, 0]) if groups == 1 and len(value) else sorted_by(group, value, groups)
    low, high, p95, most = ordered[places]
    columns = np.zeros((3, groups), np.int64)
    columns[:, some] = low + (high - low) // 2, p95, most
    return columns
