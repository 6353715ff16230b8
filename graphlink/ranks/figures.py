"""Communication cost over all ranks: transfer against wait, bandwidth, and the rank that the others wait for, more than
chance has it.

A rank is late in a match when it comes last, later than the one before it by more than the clocks' tolerance. Were
all alike, each member of a match would be the late one as often as the others, however long that one is waited for. A
rank is a straggler when it is late so often, or with so much of the waiting, that chance does that to any member of the
group in less than 1 of 200 runs. Where the matches are so few that not even a rank that is always late would be one,
the likeliest is a suspect. Matches of one step are taken as independent, which they are not: a step in which a rank
computes for long makes it late in all that follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.linking.commtypes import SHARDS, CollectiveType, bus_factors
from graphlink.model import F64, I64, NOWHERE, U8, Bool, CommKind
from graphlink.ranks import summary
from graphlink.ranks.columns import added, blocks, column, offsets, quantiles
from graphlink.ranks.records import AlignedClocks, GroupKey, Matches, RankComms
from graphlink.ranks.summary import Collectives, Group, RankWait, SetApart, Straggler, group_name
from graphlink.ranks.times import WORDS, Apart, MatchTimes, apart, times
from graphlink.student import incomplete_beta
from graphlink.tables import numbered_values, parted, sums, tuples

_MESSAGE: Final = "SEND"
_CHANCE: Final = 1 / 200
_DOUBT: Final = 1 / 5  # of a rank that was late half of the time, or caused half of all waiting, and yet is a suspect


@dataclass(frozen=True, slots=True)
class Figures:
    """Times of all matches, an ``Apart`` for each, and what ``summary.json`` reports of them.

    ``groups`` as in ``Matches``. ``set_apart``: the first ``summary.LISTED`` of them.
    """

    times: MatchTimes
    apart: U8
    groups: list[Group]
    waits: list[RankWait]
    set_apart: list[SetApart]
    straggler: Straggler | None
    suspect: Straggler | None


@dataclass(frozen=True, slots=True)
class RankTotals:
    """One entry for each (group, rank) with a match that counts, by both; the last ``group`` stands for all groups
    together.

    ``rank``: its position. ``met``: its matches in which somebody was late; ``late``: those in which it was;
    ``caused_ns``: what all members waited then; ``lateness_ns``: the median one. Were all alike: ``fair`` is how often
    it would be late (the sum of 1 / members over ``met``), ``fair_ns`` the waiting of those matches, each divided by
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


def figures(
    ranks: Sequence[RankComms], matches: Matches, clocks: AlignedClocks, ids: Mapping[GroupKey, int]
) -> Figures:
    """Measure all matches; ``clocks`` and ``matches`` are of ``ranks``, ``ids`` those of ``comm_group.json``.

    n log n in matches, linear in their members.
    """
    found = times(ranks, matches, clocks)
    why = apart(ranks, matches, clocks, found)
    counted = why == Apart.NO
    totals = rank_totals(ranks, matches, found, counted, clocks.residual_ns)
    numbers, whole = [r.rank for r in ranks], len(matches.groups)
    waited_ns = found.waited_ns[counted]
    of_group = added(matches.group[counted], waited_ns, whole).astype(np.int64)
    word = "collectives" if (matches.kind[counted] == CommKind.COLLECTIVE).all() else "exchanges"
    named, suspects = stragglers(totals, np.append(of_group, waited_ns.sum()), numbers, word)
    rows = parted(totals.group, whole + 1)
    collectives = collectives_of(ranks, matches, found, counted)
    return Figures(
        found,
        why,
        [
            Group(
                id=ids.get(key),
                name=key[1],
                ranks=list(key[0]),
                recorded=len(set(numbers).intersection(key[0])),
                collectives=collectives[k],
                last={
                    str(numbers[totals.rank[row]]): int(totals.late[row])
                    for row in rows[k].tolist()
                    if totals.late[row]
                },
                straggler=named.get(k),
                suspect=suspects.get(k),
            )
            for k, key in enumerate(matches.groups)
        ],
        [
            RankWait(
                rank=numbers[totals.rank[row]],
                wait_ns=int(totals.wait_ns[row]),
                transfer_ns=int(totals.transfer_ns[row]),
                last=int(totals.late[row]),
            )
            for row in rows[whole].tolist()
        ],
        _set_apart(matches, found, why, numbers, ids),
        named.get(whole),
        suspects.get(whole),
    )


def collectives_of(
    ranks: Sequence[RankComms], matches: Matches, found: MatchTimes, counted: Bool
) -> list[list[Collectives]]:
    """Sum the matches of each group by function; ``counted``: those that are not excluded."""
    types = matches.group.astype(np.int64) * 16 + matches.type + 1  # types of Chakra are 0 to 9, of messages -1
    keys, key = numbered_values(types)
    size, own = len(keys), key[counted]

    def total(value: I64 | F64) -> F64:
        return added(own, value[counted], size)

    count = np.bincount(own, minlength=size)
    set_apart = np.bincount(key, minlength=size) - count
    median, p95, most = quantiles(own, found.skew_ns[counted], size)
    bytes_, wait_ns, transfer_ns = (
        total(c).astype(np.int64) for c in (found.bytes, found.waited_ns, found.transfer_ns)
    )
    seconds = np.maximum(transfer_ns, 1) / 1e9
    members = np.array([len(ranks) for ranks, _ in matches.groups], np.float64)[matches.group]
    on_bus = found.bytes / (found.transfer_ns / 1e9) * bus_factors(matches.type, members)
    algorithm, bus = bytes_ / seconds, total(on_bus * found.transfer_ns) / 1e9 / seconds
    measured = transfer_ns > 0
    measured[key[~matches.complete]] = False
    measured &= ~_on_host(ranks, matches)[keys // 16]
    out: list[list[Collectives]] = [[] for _ in matches.groups]
    for k, (group, code) in enumerate(tuples(keys // 16, keys % 16 - 1)):
        out[group].append(
            Collectives(
                type=type_name(code),
                count=int(count[k]),
                set_apart=int(set_apart[k]),
                bytes=int(bytes_[k]) // (len(matches.groups[group][0]) if code in SHARDS else 1),
                skew_median_ns=int(median[k]),
                skew_p95_ns=int(p95[k]),
                skew_max_ns=int(most[k]),
                wait_ns=int(wait_ns[k]),
                transfer_ns=int(transfer_ns[k]),
                algorithm_bytes_per_s=round(float(algorithm[k])) if measured[k] else None,
                bus_bytes_per_s=round(float(bus[k])) if measured[k] else None,
            )
        )
    return out


def type_name(code: int) -> str:
    """Name the type of a match, a ``CollectiveType`` or ``NOWHERE`` for a message."""
    return _MESSAGE if code == NOWHERE else CollectiveType(code).name


def _on_host(ranks: Sequence[RankComms], matches: Matches) -> Bool:
    """Return which groups communicate on the host, as the first op of each says."""
    _, first = np.unique(matches.group, return_index=True)
    entry = matches.first[first]
    return np.asarray(column(ranks, "on_host")[offsets(ranks)[matches.rank[entry]] + matches.op[entry]])


def rank_totals(
    ranks: Sequence[RankComms], matches: Matches, found: MatchTimes, counted: Bool, tolerance_ns: int
) -> RankTotals:
    """Sum the ``counted`` matches by group and rank, and by rank alone as if of one more group. Members are taken in
    blocks.

    A rank is late where it came last by more than ``tolerance_ns``.
    """
    evident = counted & (found.late != NOWHERE) & (found.lateness_ns > tolerance_ns)
    parts = []
    for at in blocks(ranks, matches):
        use = at.spread(counted[at.matches])
        met = evident[at.matches].astype(np.float64)
        waited = met * found.waited_ns[at.matches]
        columns = [found.wait_ns[at.entries][use], found.transfer_part_ns[at.entries][use]]
        columns += [at.spread(of_match)[use] for of_match in (met, met / at.count, waited / at.count, waited**2)]
        parts.append(
            _summed((at.spread(matches.group[at.matches].astype(np.int64)) * len(ranks) + at.rank)[use], columns)
        )
    code, of_code = _summed(*(np.concatenate(part, axis=-1) for part in zip(*parts, strict=True)))
    count, whole = max(len(ranks), 1), len(matches.groups)
    overall, of_rank = _summed(whole * count + code % count, of_code)
    code, total = np.append(code, overall), np.append(of_code, of_rank, axis=1)
    late = np.flatnonzero(evident)
    late_group, late = np.append(matches.group[late], np.full(len(late), whole)), np.append(late, late)
    of_late: I64 = np.searchsorted(code, late_group * count + found.late[late])
    wait_ns, transfer_ns, met_in = (column.astype(np.int64) for column in total[:3])
    return RankTotals(
        group=code // count,
        rank=code % count,
        wait_ns=wait_ns,
        transfer_ns=transfer_ns,
        met=met_in,
        fair=total[3],
        fair_ns=total[4],
        square=total[5],
        late=np.bincount(of_late, minlength=len(code)),
        caused_ns=sums(len(code), of_late, found.waited_ns[late]),
        lateness_ns=quantiles(of_late, found.lateness_ns[late], len(code))[0],
    )


def _summed(code: I64, columns: Sequence[I64 | F64] | F64) -> tuple[I64, F64]:
    """Return the distinct codes, and the sum of each column over the entries of each: (columns, codes)."""
    key, of = numbered_values(code)
    return key, np.stack([added(of, column, len(key)) for column in columns])


def _set_apart(
    matches: Matches, found: MatchTimes, why: U8, numbers: Sequence[int], ids: Mapping[GroupKey, int]
) -> list[SetApart]:
    out = []
    for m in np.flatnonzero(why != Apart.NO)[: summary.LISTED].tolist():
        late, code = int(found.late[m]), int(matches.type[m])
        members = [
            str(numbers[position]) for position in matches.rank[matches.first[m] : matches.first[m + 1]].tolist()
        ]
        out.append(
            SetApart(
                group=f"ranks {' and '.join(members)}"
                if code == NOWHERE
                else group_name(matches.groups[int(matches.group[m])], ids),
                type=type_name(code),
                number=int(matches.turn[m]),
                skew_ns=int(found.skew_ns[m]),
                late_rank=None if late == NOWHERE else numbers[late],
                why=WORDS[Apart(int(why[m]))],
            )
        )
    return out


def stragglers(
    totals: RankTotals, waited_ns: I64, numbers: Sequence[int], word: str
) -> tuple[dict[int, Straggler], dict[int, Straggler]]:
    """Return by group the rank that stands out, and by group the rank that is only suspected. ``waited_ns``: all
    waiting of each group; ``word``: for what the ranks met in.

    ``numbers``: of the ranks by position. "So often": by the tail of the binomial. "So much": half of all waiting, by
    Hoeffding's bound for a sum of terms of different size. Both times all members of the group.
    """
    usual = totals.fair / np.maximum(totals.met, 1)
    members = np.bincount(totals.group, minlength=len(waited_ns))[totals.group]
    chance = np.minimum(_tail(totals.late, usual, totals.met) * members, 1)
    more = np.maximum(totals.caused_ns - totals.fair_ns, 0)
    by_wait = np.exp(-2 * more**2 / np.maximum(totals.square, 1)) * members < _CHANCE
    most = 2 * totals.caused_ns >= waited_ns[totals.group]
    stands_out = (chance < _CHANCE) | (by_wait & most)
    few, often = usual**totals.met * members >= _CHANCE, 2 * totals.late >= totals.met
    suspected = ~stands_out & (chance < np.where(few, 1, np.where(most | often, _DOUBT, 0)))
    found: dict[int, Straggler] = {}
    suspects: dict[int, Straggler] = {}
    named = np.flatnonzero(stands_out | suspected)
    # what is put last holds: of several stragglers the one that caused most, of suspects the likeliest
    order = np.lexsort((totals.caused_ns[named], np.where(suspected[named], -chance[named], 0)))
    for k in named[order].tolist():
        group = int(totals.group[k])
        share = float(totals.caused_ns[k] / max(int(waited_ns[group]), 1))
        rank, late_ns = numbers[totals.rank[k]], int(totals.lateness_ns[k])
        times_late, met = int(totals.late[k]), int(totals.met[k])
        doubt = f"too few {word} to tell (chance does this to some rank in {100 * chance[k]:.2g} % of runs), but "
        (suspects if suspected[k] else found)[group] = Straggler(
            rank=rank,
            times_late=times_late,
            meetings=met,
            wait_share=round(share, 6),
            lateness_median_ns=late_ns,
            chance=float(f"{chance[k]:.3g}"),
            evidence=(doubt if suspected[k] else "")
            + f"rank {rank} arrived last in {times_late} of {met} {word} (by chance: {100 * usual[k]:.0f} %), "
            f"usually by {late_ns / 1e6:.3f} ms; {100 * share:.0f} % of all waiting was for it",
        )
    return found, {group: suspect for group, suspect in suspects.items() if group not in found}


def _tail(late: I64, usual: F64, count: I64) -> F64:
    """Return the chance of ``late`` or more of ``count``, each with the chance ``usual``: I_usual(late, count - late +
    1); 1 for what is no more than usual.

    Of matches with different numbers of members ``usual`` is the mean, with which chance is never less (Hoeffding
    1956).
    """
    above = late > usual * count
    rows = tuples(late, count, usual, above)
    return np.array([incomplete_beta(k, n - k + 1, p) if more else 1.0 for k, n, p, more in rows])
