"""Meetings whose waiting is no property of the run: it was the profiler's."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import numpy as np

from graphlink.model import I64, NOWHERE, U8, Bool
from graphlink.ranks.clocks.align import onto_run
from graphlink.ranks.figures.quantiles import quantiles
from graphlink.ranks.figures.times import Times
from graphlink.ranks.records import Clocks, Meetings, RankComms

_TIMES_USUAL: Final = 3
_FEWEST_LATER: Final = 3


class Apart(IntEnum):
    """Why a meeting is in no total, the first that holds; ``words`` says it."""

    NO = 0
    BEGAN_APART = 1
    FIRST = 2
    OVERHEAD = 3
    UNTIMED = 4

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS: Final = {
    Apart.NO: "",
    Apart.BEGAN_APART: "first after the profiler started: others waited before the recording of the late rank began",
    Apart.FIRST: "first after the profiler started: more than 3 x the median skew of the later ones of its group",
    Apart.OVERHEAD: "profiler overhead on the late rank for at least half of the wait",
    Apart.UNTIMED: "clocks unknown and not all members recorded",
}


def apart(ranks: Sequence[RankComms], meetings: Meetings, clocks: Clocks, found: Times) -> U8:
    """An ``Apart`` a meeting.

    A meeting is first where it is the first of a member's recording. Its skew comes from recordings that began apart where at least half
    of it lies before the recording of the late rank began; else it counts as first where it exceeds 3 x the median of the group's later
    ones (3 of them at least). What is below the clocks' tolerance is not set apart. n log n in meetings.
    """
    out = np.zeros(len(meetings.kind), np.uint8)
    out[~found.timed & ~meetings.complete] = Apart.UNTIMED
    wide = found.timed & (found.skew_ns > clocks.residual_ns)
    out[wide & _overhead(ranks, clocks, found, wide)] = Apart.OVERHEAD
    first, first_of_late = _first(meetings, found)
    later = ~first & found.timed
    count = np.bincount(meetings.group[later], minlength=len(meetings.groups))
    usual = quantiles(meetings.group[later], found.skew_ns[later], len(meetings.groups)).median
    slow = (count[meetings.group] >= _FEWEST_LATER) & (found.skew_ns > _TIMES_USUAL * usual[meetings.group])
    out[wide & first & slow] = Apart.FIRST
    began = np.array([int(onto_run(c, np.array(r.began_ns))) for r, c in zip(ranks, clocks.clocks, strict=True)], np.int64)
    unseen = np.minimum(began[found.late], found.last_start_ns) - found.first_start_ns
    out[wide & first_of_late & (2 * unseen >= found.skew_ns)] = Apart.BEGAN_APART
    return out


def _first(meetings: Meetings, found: Times) -> tuple[Bool, Bool]:
    """Is it the first of any member's recording, and of the late rank's?"""
    first, of_late = np.zeros(len(meetings.kind), np.bool_), np.zeros(len(meetings.kind), np.bool_)
    for rank, of_op in enumerate(meetings.of_op):
        met = of_op != NOWHERE
        if met.any():
            meeting = int(of_op[int(met.argmax())])
            first[meeting] = True
            of_late[meeting] |= found.late[meeting] == rank
    return first, of_late


def _overhead(ranks: Sequence[RankComms], clocks: Clocks, found: Times, wide: Bool) -> Bool:
    """Did the profiler work on the late rank for at least half of the time between the first and the last start?"""
    out = np.zeros(len(wide), np.bool_)
    order = np.flatnonzero(wide)
    order = order[np.argsort(found.late[order], kind="stable")]
    cuts = np.searchsorted(found.late[order], np.arange(len(ranks) + 1))
    for rank, clock, low, high in zip(ranks, clocks.clocks, cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        if low == high or not len(rank.overhead_start_ns):
            continue
        mine = order[low:high]
        start, end = onto_run(clock, rank.overhead_start_ns), onto_run(clock, rank.overhead_end_ns)
        worked = _covered(start, end, found.last_start_ns[mine]) - _covered(start, end, found.first_start_ns[mine])
        out[mine] = 2 * worked >= found.skew_ns[mine]
    return out


def _covered(start: I64, end: I64, until: I64) -> I64:
    """How much of the time before ``until`` rows, sorted by start, cover; where they overlap it counts once."""
    end = np.maximum.accumulate(end)
    fresh = np.maximum(start, np.append(start[0], end[:-1]))
    before = np.cumsum(np.maximum(end - fresh, 0))
    row = np.searchsorted(start, until, side="right") - 1
    return np.where(row >= 0, before[row] - np.maximum(end[row] - until, 0), 0)
