"""Is there a rank that the others wait for, more than chance has it?

A rank is late in a meeting when it comes last, later than the one before it by more than the clocks' tolerance. Were all alike, each
member of a meeting would be the late one as often as the others, however long that one is waited for. A rank is a straggler when it is
late so often, or with so much of the waiting, that chance does that to any member of the group in less than 1 of 200 runs. Where the
meetings are so few that not even a rank that is always late would be one, the likeliest is a suspect. Meetings of one step are taken as
independent, which they are not: a step in which a rank computes for long makes it late in all that follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma
from typing import Final

import numpy as np

from graphlink.model import I64
from graphlink.ranks.clock_ties import F64
from graphlink.ranks.columns import quantiles

NOBODY: Final = "no rank stands out"
_CHANCE: Final = 1 / 200


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
    """A rank (number) that stands out, and why. ``share``: of all waiting, what was for it; ``fair_share``: of meetings, were all alike.

    ``chance``: of any member to be late so often. ``suspected``: there are too few meetings to tell.
    """

    rank: int
    share: float
    times_late: int
    meetings: int
    fair_share: float
    lateness_ns: int
    chance: float
    suspected: bool

    @property
    def words(self) -> str:
        doubt = f"too few meetings to tell (chance does this to some rank in {100 * self.chance:.2g} % of runs), but "
        return (doubt if self.suspected else "") + (
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
    """Of each group (``waited_ns``: all its waiting) the rank that stands out, or is suspected. ``numbers``: of the ranks by position.

    "So often": by the tail of the binomial. "So much": half of all waiting, by Hoeffding's bound for a sum of terms of different size.
    Both times all members of the group.
    """
    usual = shares.fair / np.maximum(shares.met, 1)
    members = np.bincount(shares.group, minlength=len(waited_ns))[shares.group]
    chance = np.minimum(_tail(found.late, usual, shares.met) * members, 1)
    more = np.maximum(found.caused_ns - shares.fair_ns, 0)
    by_wait = np.exp(-2 * more**2 / np.maximum(shares.square, 1)) * members < _CHANCE
    stands_out = (chance < _CHANCE) | (by_wait & (2 * found.caused_ns >= waited_ns[shares.group]))
    suspected = ~stands_out & (chance < 1) & (usual**shares.met * members >= _CHANCE)
    out: list[Straggler | None] = [None] * len(waited_ns)
    named = np.flatnonzero(stands_out | suspected)
    # what is put last holds: stragglers after suspects, of several the one that caused most, the likeliest suspect
    order = np.lexsort((found.caused_ns[named], np.where(suspected[named], -chance[named], 0), stands_out[named]))
    for k in named[order].tolist():
        group = int(shares.group[k])
        out[group] = Straggler(
            rank=int(numbers[shares.rank[k]]),
            share=float(found.caused_ns[k] / max(int(waited_ns[group]), 1)),
            times_late=int(found.late[k]),
            meetings=int(shares.met[k]),
            fair_share=float(usual[k]),
            lateness_ns=int(found.lateness_ns[k]),
            chance=float(chance[k]),
            suspected=bool(suspected[k]),
        )
    return tuple(out)


def _tail(late: I64, usual: F64, count: I64) -> F64:
    """The chance of ``late`` or more of ``count``, each with the chance ``usual``; 1 for what is no more than usual.

    Of meetings with different numbers of members ``usual`` is the mean, with which chance is never less (Hoeffding 1956). Above the mean
    each term is smaller than the one before, and terms are added until they no longer count: O(sqrt(count)) steps.
    """
    out = np.ones(len(late))
    above = np.flatnonzero(late > usual * count)
    k, n, p = late[above].astype(np.float64), count[above], np.clip(usual[above], 1e-12, 1 - 1e-12)
    ways = [lgamma(m + 1) - lgamma(i + 1) - lgamma(m - i + 1) for i, m in zip(k.tolist(), n.tolist(), strict=True)]
    term = np.exp(np.array(ways) + k * np.log(p) + (n - k) * np.log1p(-p))
    total = term.copy()
    while (term > 1e-17 * total).any():
        term *= (n - k) / (k + 1) * (p / (1 - p))
        k += 1
        total += term
    out[above] = np.minimum(total, 1)
    return out
