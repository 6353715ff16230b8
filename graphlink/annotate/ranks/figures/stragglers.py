"""Is there a rank that the others wait for, more than chance has it?

A rank is late in a meeting when it comes last, later than the one before it by more than the clocks' tolerance. Were all alike, each
member of a meeting would be the late one as often as the others, however long that one is waited for. A rank stands out when it is late
so often, or with so much of the waiting, that chance has it in less than 1 of 1,000 runs. No sign of either: nobody is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.annotate.ranks.clocks.ties import F64
from graphlink.annotate.ranks.figures.quantiles import quantiles
from graphlink.model import I64

NOBODY: Final = "no rank stands out"
_CHANCE: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Seen:
    """Meetings in which somebody was late, one entry each. ``group``: what to look at apart; ``caused_ns``: what the others waited."""

    group: I64
    late: I64  # position of the rank
    lateness_ns: I64
    caused_ns: I64


@dataclass(frozen=True, slots=True)
class Shares:
    """One entry for each (group, rank) with a meeting, by group, then rank. ``met``: meetings of ``Seen`` that it was in.

    ``fair``: sum of 1 / members over those: how often each would be late, were all alike. ``fair_ns``: their waiting, each
    divided by its members; ``square``: sum of its squares.
    """

    group: I64
    rank: I64
    met: I64
    fair: F64
    fair_ns: F64
    square: F64


@dataclass(frozen=True, slots=True)
class Blame:
    """Of each entry of ``Shares``: how often it was late, what that caused, and the median lateness."""

    late: I64
    caused_ns: I64
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
            f"rank {self.rank} is last in {self.times_late} of the {self.meetings} meetings of its own that somebody was late for "
            f"(by chance: {100 * self.fair_share:.0f} %), usually by {self.lateness_ns / 1e6:.3f} ms, "
            f"and {100 * self.share:.0f} % of all waiting is for it"
        )


def blame(seen: Seen, shares: Shares, ranks: int) -> Blame:
    """n log n in meetings."""
    code = shares.group * ranks + shares.rank
    at = np.searchsorted(code, seen.group * ranks + seen.late)
    caused = np.zeros(len(code), np.int64)
    np.add.at(caused, at, seen.caused_ns)
    late = np.bincount(at, minlength=len(code))
    return Blame(late, caused, quantiles(at, seen.lateness_ns, len(code)).median)


def stragglers(shares: Shares, found: Blame, waited_ns: I64, numbers: I64) -> tuple[Straggler | None, ...]:
    """Of each group (``waited_ns``: all its waiting) the rank that stands out. ``numbers``: of the ranks by position.

    "So often": more than twice its fair share, or more than half-way from that to always (of two ranks each is last in half of the
    meetings), by Chernoff's bound of the binomial tail. "So much": half of all waiting, by Hoeffding's bound for a sum of terms of
    different size. Both times all ranks and groups that are looked at.
    """
    usual = shares.fair / np.maximum(shares.met, 1)
    often = found.late / np.maximum(shares.met, 1)
    by_count = (often > np.minimum(2 * usual, (1 + usual) / 2)) & (_tail(often, usual, shares.met) * len(often) < _CHANCE)
    more = np.maximum(found.caused_ns - shares.fair_ns, 0)
    chance = np.exp(-2 * more**2 / np.maximum(shares.square, 1))
    by_wait = (2 * found.caused_ns >= waited_ns[shares.group]) & (chance * len(often) < _CHANCE)
    out: list[Straggler | None] = [None] * len(waited_ns)
    named = np.flatnonzero(by_count | by_wait)
    for k in named[np.argsort(found.caused_ns[named], kind="stable")].tolist():  # of several the one that caused most is put last
        group = int(shares.group[k])
        out[group] = Straggler(
            int(numbers[shares.rank[k]]),
            float(found.caused_ns[k] / max(int(waited_ns[group]), 1)),
            int(found.late[k]),
            int(shares.met[k]),
            float(usual[k]),
            int(found.lateness_ns[k]),
        )
    return tuple(out)


def _tail(often: F64, usual: F64, count: I64) -> F64:
    """No less than the chance of a share ``often`` or more of ``count``, each with the chance ``usual`` (on average: Hoeffding 1963)."""
    p, q = np.clip(usual, 1e-12, 1 - 1e-12), np.clip(often, 1e-12, 1 - 1e-12)
    apart = q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p))
    return np.where(often > usual, np.exp(-count * apart), 1.0)
