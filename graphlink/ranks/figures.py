"""What the communication of all ranks cost: transfer against wait, bandwidth, and who is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphlink.model import I64, NOWHERE, U8, Bool
from graphlink.ranks.clock_ties import F64
from graphlink.ranks.columns import Quantiles, added, blocks, quantiles
from graphlink.ranks.records import Clocks, Meetings, RankComms
from graphlink.ranks.stragglers import Blame, Seen, Shares, Straggler, blame, stragglers
from graphlink.ranks.times import Apart, Times, apart, bus_factors, times


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over meetings that share ``group`` and ``type`` (``NOWHERE``: not told apart; messages have no type), those set apart left out.

    ``set_apart`` counts these. Bandwidths in bytes per s: ``algbw`` is all bytes over all transfer time, ``busbw`` the same with each
    meeting's factor; the medians are over meetings.
    """

    group: I64
    type: I64
    count: I64
    set_apart: I64
    bytes: I64
    skew_ns: Quantiles
    wait_ns: I64
    transfer_ns: I64
    algbw: F64
    algbw_median: I64
    busbw: F64
    busbw_median: I64


@dataclass(frozen=True, slots=True)
class RankTotals:
    """One entry for each (group, rank) with a meeting that counts; ``group`` is 0 throughout where groups are not told apart.

    ``rank``: its number. ``late``: times it came last by more than the clocks' tolerance, ``met``: meetings of its where somebody did;
    ``caused_ns``: what others waited for it then; ``lateness_ns``: the median one.
    """

    group: I64
    rank: I64
    count: I64
    wait_ns: I64
    transfer_ns: I64
    late: I64
    met: I64
    caused_ns: I64
    lateness_ns: I64


@dataclass(frozen=True, slots=True)
class Figures:
    """``apart``: an ``Apart`` a meeting. ``algbw`` and ``busbw``: of each meeting, bytes per s.

    ``straggler`` of the whole run, ``stragglers`` of each group of ``Meetings``, or who is suspected; None: no rank stands out.
    """

    times: Times
    apart: U8
    algbw: F64
    busbw: F64
    by_type: Totals
    by_group: Totals
    total: Totals
    rank_in_group: RankTotals
    rank_total: RankTotals
    straggler: Straggler | None
    stragglers: tuple[Straggler | None, ...]


def figures(ranks: Sequence[RankComms], meetings: Meetings, clocks: Clocks) -> Figures:
    """``clocks`` of the same ranks and meetings. n log n in meetings, linear in their members."""
    found = times(ranks, meetings, clocks)
    why = apart(ranks, meetings, clocks, found)
    counted = why == Apart.NO
    algbw = found.bytes / (found.transfer_ns / 1e9)
    busbw = algbw * bus_factors(meetings)
    group, everything = meetings.group.astype(np.int64), np.zeros(len(why), np.int64)
    types = group * 16 + meetings.type + 1  # types of Chakra are 0 to 9, of messages -1
    there = np.bincount(types, minlength=1) > 0
    keys, of_type = np.flatnonzero(there), (np.cumsum(there) - 1)[types]
    bandwidth = _Bandwidth(algbw, busbw)
    groups = len(meetings.groups)
    sums = _members(ranks, meetings, found, counted, clocks.residual_ns)
    numbers = np.array([r.rank for r in ranks], np.int64)
    by_group = _totals(np.arange(groups), np.full(groups, NOWHERE), group, found, counted, bandwidth)
    total = _totals(np.array([NOWHERE]), np.array([NOWHERE]), everything, found, counted, bandwidth)
    in_group, whole = _ranks(sums, numbers), _ranks(_merged(sums), numbers)
    return Figures(
        found,
        why,
        algbw,
        busbw,
        _totals(keys // 16, keys % 16 - 1, of_type, found, counted, bandwidth),
        by_group,
        total,
        in_group.totals,
        whole.totals,
        stragglers(whole.shares, whole.blame, total.wait_ns, numbers)[0],
        stragglers(in_group.shares, in_group.blame, by_group.wait_ns, numbers),
    )


@dataclass(frozen=True, slots=True)
class _Bandwidth:
    algbw: F64
    busbw: F64


def _totals(group: I64, type_: I64, key: I64, found: Times, counted: Bool, bandwidth: _Bandwidth) -> Totals:
    """``key`` of each meeting: its entry."""
    size, mine = len(group), key[counted]

    def total(value: I64 | F64) -> F64:
        return added(mine, value[counted], size)

    count = np.bincount(mine, minlength=size)
    bytes_, transfer = total(found.bytes), total(found.transfer_ns)
    sent = total(bandwidth.busbw * found.transfer_ns) / 1e9
    seconds = np.maximum(transfer, 1) / 1e9
    alg, bus = (
        quantiles(mine, np.minimum(np.rint(b[counted]), 1 << 62).astype(np.int64), size).median for b in (bandwidth.algbw, bandwidth.busbw)
    )
    return Totals(
        group,
        type_,
        count,
        np.bincount(key, minlength=size) - count,
        bytes_.astype(np.int64),
        quantiles(mine, found.skew_ns[counted], size),
        total(found.waited_ns).astype(np.int64),
        transfer.astype(np.int64),
        bytes_ / seconds,
        alg,
        sent / seconds,
        bus,
    )


@dataclass(frozen=True, slots=True)
class _Sums:
    """One entry for each (group, rank) with a meeting that counts, by both; and the meetings in which somebody was late."""

    count: I64
    wait_ns: I64
    transfer_ns: I64
    shares: Shares
    seen: Seen


def _members(ranks: Sequence[RankComms], meetings: Meetings, found: Times, counted: Bool, tolerance_ns: int) -> _Sums:
    """Sums over the members of meetings, in blocks: of each its distinct (group, rank)."""
    evident = counted & (found.late != NOWHERE) & (found.lateness_ns > tolerance_ns)
    codes, sums = [np.zeros(0, np.int64)], [np.zeros((7, 0))]
    for at in blocks(ranks, meetings):
        mine = slice(at.low, at.high)
        entries = slice(int(meetings.first[at.low]), int(meetings.first[at.high]))
        use = at.spread(counted[mine])
        code = (at.spread(meetings.group[mine].astype(np.int64)) * len(ranks) + at.rank)[use]
        key, of = np.unique(code, return_inverse=True)
        met = evident[mine].astype(np.float64)
        waited = met * found.waited_ns[mine]
        columns = (
            np.ones(len(code)),
            found.wait_ns[entries][use],
            found.transfer_part_ns[entries][use],
            at.spread(met)[use],
            at.spread(met / at.count)[use],
            at.spread(waited / at.count)[use],
            at.spread(waited**2)[use],
        )
        codes.append(key)
        sums.append(np.stack([added(of.reshape(-1), c, len(key)) for c in columns]))
    late = found.late[evident].astype(np.int64)
    seen = Seen(meetings.group[evident].astype(np.int64), late, found.lateness_ns[evident], found.waited_ns[evident])
    return _summed(np.concatenate(codes), np.concatenate(sums, axis=1), len(ranks), seen)


def _summed(code: I64, columns: F64, ranks: int, seen: Seen) -> _Sums:
    key, of = np.unique(code, return_inverse=True)
    total = [added(of.reshape(-1), c, len(key)) for c in columns]
    count, wait, transfer, met = (c.astype(np.int64) for c in total[:4])
    return _Sums(count, wait, transfer, Shares(key // max(ranks, 1), key % max(ranks, 1), met, *total[4:]), seen)


def _merged(sums: _Sums) -> _Sums:
    """Groups not told apart."""
    own, seen = sums.shares, sums.seen
    columns = (sums.count, sums.wait_ns, sums.transfer_ns, own.met, own.fair, own.fair_ns, own.square)
    ranks = int(own.rank.max(initial=0)) + 1
    return _summed(
        own.rank,
        np.stack([c.astype(np.float64) for c in columns]),
        ranks,
        Seen(np.zeros_like(seen.group), seen.late, seen.lateness_ns, seen.caused_ns),
    )


@dataclass(frozen=True, slots=True)
class _Ranks:
    totals: RankTotals
    shares: Shares
    blame: Blame


def _ranks(sums: _Sums, numbers: I64) -> _Ranks:
    own = sums.shares
    of = blame(sums.seen, own, len(numbers))
    totals = RankTotals(
        own.group,
        numbers[own.rank],
        sums.count,
        sums.wait_ns,
        sums.transfer_ns,
        of.late,
        own.met,
        of.caused_ns,
        of.lateness_ns,
    )
    return _Ranks(totals, own, of)
