"""Is there a rank that the others wait for, more than chance has it?

A rank is late in a meeting when it comes last, later than the one before it by more than the clocks' tolerance. Were all alike, each
member of a meeting would be the late one as often as the others. A rank stands out when it is late so often that chance has it in less
than 1 of 1,000 runs, or when most of all waiting was for it, in at least five meetings. No sign of either: nobody is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.annotate.ranks.quantiles import quantiles, sorted_by
from graphlink.annotate.ranks.ties import F64
from graphlink.model import I64

NOBODY: Final = "no rank stands out"
_CHANCE: Final = 1e-3
_FEWEST: Final = 5  # meetings that make half of the waiting a habit


@dataclass(frozen=True, slots=True)
class Seen:
    """Meetings in which somebody was late, one entry each. ``group``: what to look at apart; ``caused_ns``: what the others waited."""

    group: I64
    late: I64  # position of the rank
    lateness_ns: I64
    caused_ns: I64


@dataclass(frozen=True, slots=True)
class Parts:
    """One entry for each (group, rank) with a meeting, by group, then rank. ``met``: meetings of ``Seen`` that it was in.

    ``fair``: sum of 1 / members over those: how often each would be late, were all alike. ``habit_ns``: ``caused_ns`` without the four
    meetings that caused most. ``lateness_ns``: the median one.
    """

    group: I64
    rank: I64
    met: I64
    fair: F64
    late: I64
    caused_ns: I64
    habit_ns: I64
    lateness_ns: I64


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank (number) that stands out, and why. ``share``: of all waiting, what was for it; ``fair_share``: of meetings, were all alike."""

    rank: int
    share: float
    times_late: int
    meetings: int
    fair_share: float
    lateness_ns: int

    @property
    def words(self) -> str:
        return (
            f"rank {self.rank} is last in {self.times_late} of {self.meetings} meetings ({100 * self.fair_share:.0f} % were fair), "
            f"usually by {self.lateness_ns / 1e3:.1f} us, and {100 * self.share:.0f} % of all waiting is for it"
        )


def parts(seen: Seen, group: I64, rank: I64, met: I64, fair: F64, ranks: int) -> Parts:
    """``group``, ``rank``, ``met``, ``fair``: as in ``Parts``. n log n in meetings."""
    code = group * ranks + rank
    at = np.searchsorted(code, seen.group * ranks + seen.late)
    caused = np.zeros(len(code), np.int64)
    np.add.at(caused, at, seen.caused_ns)
    late = np.bincount(at, minlength=len(code))
    ordered = sorted_by(at, seen.caused_ns, len(code))
    place = np.cumsum(late)[np.repeat(np.arange(len(code)), late)] - np.arange(len(ordered))  # 1 for the most
    most = np.zeros(len(code), np.int64)
    few = place < _FEWEST
    np.add.at(most, np.repeat(np.arange(len(code)), late)[few], ordered[few])
    return Parts(group, rank, met, fair, late, caused, caused - most, quantiles(at, seen.lateness_ns, len(code)).median)


def stragglers(found: Parts, waited_ns: I64, numbers: I64) -> tuple[Straggler | None, ...]:
    """Of each group (``waited_ns``: all its waiting) the rank that stands out. ``numbers``: of the ranks by position.

    "Late so often": more than twice its fair share, and no less than half-way from that to always (of two ranks each is last in half of
    the meetings); the chance is Chernoff's bound of the binomial tail, times all that are
    looked at. "Most of all waiting": half of it, and
    half-way to all, without the four longest.
    """
    groups = len(waited_ns)
    usual = found.fair / np.maximum(found.met, 1)
    often = found.late / np.maximum(found.met, 1)
    habit = found.habit_ns / np.maximum(waited_ns[found.group], 1)
    by_count = (often > np.minimum(2 * usual, (1 + usual) / 2)) & (_tail(often, usual, found.met) * len(found.rank) < _CHANCE)
    by_wait = (found.late >= _FEWEST) & (habit >= np.maximum(0.5, (1 + usual) / 2))
    out: list[Straggler | None] = [None] * groups
    named = np.flatnonzero(by_count | by_wait)
    for k in named[np.argsort(found.caused_ns[named], kind="stable")].tolist():  # of several the one that caused most is put last
        group = int(found.group[k])
        out[group] = Straggler(
            int(numbers[found.rank[k]]),
            float(found.caused_ns[k] / max(int(waited_ns[group]), 1)),
            int(found.late[k]),
            int(found.met[k]),
            float(usual[k]),
            int(found.lateness_ns[k]),
        )
    return tuple(out)


def _tail(often: F64, usual: F64, count: I64) -> F64:
    """No less than the chance of a share ``often`` or more of ``count``, each with the chance ``usual`` (on average: Hoeffding 1963)."""
    p, q = np.clip(usual, 1e-12, 1 - 1e-12), np.clip(often, 1e-12, 1 - 1e-12)
    apart = q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p))
    return np.where(often > usual, np.exp(-count * apart), 1.0)
