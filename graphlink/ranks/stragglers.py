"""Find the rank that the others wait for, more than chance has it.

A rank is late in a meeting when it comes last, later than the one before it by more than the clocks' tolerance. Were
all alike, each member of a meeting would be the late one as often as the others, however long that one is waited for. A
rank is a straggler when it is late so often, or with so much of the waiting, that chance does that to any member of the
group in less than 1 of 200 runs. Where the meetings are so few that not even a rank that is always late would be one,
the likeliest is a suspect. Meetings of one step are taken as independent, which they are not: a step in which a rank
computes for long makes it late in all that follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lgamma
from typing import Final

import numpy as np

from graphlink.model import F64, I64
from graphlink.ranks.summary import Straggler

_CHANCE: Final = 1 / 200


@dataclass(frozen=True, slots=True)
class RankTotals:
    """One entry for each (group, rank) with a meeting that counts, by both; the last ``group`` stands for all groups
    together.

    ``rank``: its position. ``met``: its meetings in which somebody was late; ``late``: those in which it was;
    ``caused_ns``: what all members waited then; ``lateness_ns``: the median one. Were all alike: ``fair`` is how often
    it would be late (the sum of 1 / members over ``met``), ``fair_ns`` the waiting of those meetings, each divided by
    its members, ``square`` the sum of its squares.
    """

    group: I64
    rank: I64
    wait_ns: I64
    transfer_ns: I64
    met: I64
    fair: F64
    fair_ns: F64
    square: F64
    late: I64
    caused_ns: I64
    lateness_ns: I64


def stragglers(
    totals: RankTotals, waited_ns: I64, numbers: Sequence[int]
) -> tuple[dict[int, Straggler], dict[int, Straggler]]:
    """Return by group the rank that stands out, and by group the rank that is only suspected. ``waited_ns``: all
    waiting of each group.

    ``numbers``: of the ranks by position. "So often": by the tail of the binomial. "So much": half of all waiting, by
    Hoeffding's bound for a sum of terms of different size. Both times all members of the group.
    """
    usual = totals.fair / np.maximum(totals.met, 1)
    members = np.bincount(totals.group, minlength=len(waited_ns))[totals.group]
    chance = np.minimum(_tail(totals.late, usual, totals.met) * members, 1)
    more = np.maximum(totals.caused_ns - totals.fair_ns, 0)
    by_wait = np.exp(-2 * more**2 / np.maximum(totals.square, 1)) * members < _CHANCE
    stands_out = (chance < _CHANCE) | (by_wait & (2 * totals.caused_ns >= waited_ns[totals.group]))
    suspected = ~stands_out & (chance < 1) & (usual**totals.met * members >= _CHANCE)
    found: dict[int, Straggler] = {}
    suspects: dict[int, Straggler] = {}
    named = np.flatnonzero(stands_out | suspected)
    # what is put last holds: of several stragglers the one that caused most, of suspects the likeliest
    order = np.lexsort((totals.caused_ns[named], np.where(suspected[named], -chance[named], 0)))
    for k in named[order].tolist():
        group = int(totals.group[k])
        share = float(totals.caused_ns[k] / max(int(waited_ns[group]), 1))
        rank, times_late, met, late_ns = (
            numbers[totals.rank[k]],
            int(totals.late[k]),
            int(totals.met[k]),
            int(totals.lateness_ns[k]),
        )
        doubt = f"too few meetings to tell (chance does this to some rank in {100 * chance[k]:.2g} % of runs), but "
        (suspects if suspected[k] else found)[group] = Straggler(
            rank=rank,
            times_late=times_late,
            meetings=met,
            wait_share=round(share, 6),
            lateness_median_ns=late_ns,
            chance=float(f"{chance[k]:.3g}"),
            evidence=(doubt if suspected[k] else "")
            + f"rank {rank} is last in {times_late} of the {met} meetings of its own that somebody was late for "
            f"(by chance: {100 * usual[k]:.0f} %), usually by {late_ns / 1e6:.3f} ms, and {100 * share:.0f} % of all "
            "waiting is for it",
        )
    return found, {group: one for group, one in suspects.items() if group not in found}


def _tail(late: I64, usual: F64, count: I64) -> F64:
    """Return the chance of ``late`` or more of ``count``, each with the chance ``usual``; 1 for what is no more than
    usual.

    Of meetings with different numbers of members ``usual`` is the mean, with which chance is never less (Hoeffding
    1956). Above the mean each term is smaller than the one before, and terms are added until they no longer count:
    O(sqrt(count)) steps.
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
