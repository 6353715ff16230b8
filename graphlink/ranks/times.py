"""Time every match: who came last, who waited how long, and how long the transfer itself took, on the run's clock.

A member waits from its own start to the last start, or to its own end where that comes first. What is left of its time
is transfer, as much as the match's transfer took, and a remainder: ends that lie apart by what clocks and kernels
leave, or a host row that lasted until somebody waited for it. Wait + transfer + remainder = duration, exactly.

============================  =====================================================================================
match                         transfer
============================  =====================================================================================
kernels of a collective       from the last start to the mean of the ends, at most as long as the shortest kernel ran
rows of a collective on host  from the last start to the first end after it (other ends only say when somebody waited)
message                       from when both ends are there to the end of the receive
clocks of its ranks unknown   as long as the shortest member, if all members were recorded
============================  =====================================================================================

It takes at least 1 ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from graphlink.linking.commtypes import SHARDS
from graphlink.model import I32, I64, NOWHERE, U8, Bool, CommKind
from graphlink.ranks.clocks import on_run
from graphlink.ranks.columns import Members, blocks, column, quantiles
from graphlink.ranks.records import AlignedClocks, Matches, RankComms
from graphlink.spans import overlap_ns, union
from graphlink.tables import MOST, in_order

_TIMES_USUAL: Final = 3
_FEWEST_LATER: Final = 3


@dataclass(frozen=True, slots=True)
class MatchTimes:
    """One entry per match, but ``wait_ns`` and ``transfer_part_ns``, which have one a member, as ``Matches.rank``.

    ``late``: position of the rank that came last, ``NOWHERE`` where clocks are unknown; ``lateness_ns``: by how much
    after the one before it. ``bytes``: the whole buffer, as nccl-tests count it. ``waited_ns``: of all members.
    ``timed``: its ranks' clocks are known.
    """

    first_start_ns: I64
    last_start_ns: I64
    skew_ns: I64
    late: I32
    lateness_ns: I64
    waited_ns: I64
    transfer_ns: I64
    bytes: I64
    timed: Bool
    wait_ns: I64
    transfer_part_ns: I64


def times(ranks: Sequence[RankComms], matches: Matches, clocks: AlignedClocks) -> MatchTimes:
    """Time all matches on the run's clock. Linear in members, about a million at a time."""
    own = {name: column(ranks, name) for name in ("on_host", "kind", "bytes")}
    own |= {name: on_run(ranks, clocks.clocks, name) for name in ("start_ns", "end_ns")}
    known = np.array([c.known for c in clocks.clocks], np.bool_)
    parts = [_block(own, matches, known, at) for at in blocks(ranks, matches)]
    return MatchTimes(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _block(own: dict[str, NDArray[Any]], matches: Matches, known: Bool, at: Members) -> tuple[NDArray[Any], ...]:
    """Return the columns of ``MatchTimes`` of the matches ``at``; ``own``: columns of all ops."""
    start, end = own["start_ns"][at.op], own["end_ns"][at.op]
    duration = end - start
    first, last = np.minimum.reduceat(start, at.first), np.maximum.reduceat(start, at.first)
    is_last = np.flatnonzero(start == at.spread(last))
    late = is_last[np.searchsorted(is_last, at.first)]
    others = start.copy()
    others[late] = np.iinfo(np.int64).min
    before = np.maximum.reduceat(others, at.first)
    shortest = np.minimum.reduceat(duration, at.first)
    # the clocks of ranks that meet are tied to each other: either to the run's, or apart from it
    timed = np.logical_and.reduceat(known[at.rank], at.first) | ~np.logical_or.reduceat(known[at.rank], at.first)
    transfer = np.maximum(np.where(timed, _transfer(own, matches, at, last, end, shortest), shortest), 1)
    wait = np.clip(at.spread(np.where(timed, last, 0)) - start, 0, duration)
    wait = np.where(at.spread(timed), wait, duration - at.spread(shortest))
    mean = np.add.reduceat(own["bytes"][at.op], at.first) // at.count
    shards = (matches.kind[at.matches] == CommKind.COLLECTIVE) & np.isin(matches.type[at.matches], SHARDS)
    size = np.array([len(members) for members, _ in matches.groups], np.int64)
    return (
        first,
        last,
        np.where(timed, last - first, 0),
        np.where(timed, at.rank[late], NOWHERE).astype(np.int32),
        np.where(timed & (at.count > 1), last - before, 0),
        np.add.reduceat(wait, at.first),
        transfer,
        mean * np.where(shards, size[matches.group[at.matches]], 1),
        timed,
        wait,
        np.minimum(duration - wait, at.spread(transfer)),
    )


def _transfer(own: dict[str, NDArray[Any]], matches: Matches, at: Members, last: I64, end: I64, shortest: I64) -> I64:
    """Return the transfer time of matches whose clocks are known; may be below 1."""
    since = end - at.spread(last)
    out = np.minimum(np.add.reduceat(since, at.first) // at.count, shortest)
    host = np.logical_or.reduceat(own["on_host"][at.op], at.first)
    if host.any():
        ended = np.minimum.reduceat(np.where(since > 0, since, MOST), at.first)
        out = np.where(host, np.where(ended < MOST, ended, 1), out)
    message = matches.kind[at.matches] != CommKind.COLLECTIVE
    if message.any():
        received = np.minimum.reduceat(np.where(own["kind"][at.op] == CommKind.RECV, since, MOST), at.first)
        out = np.where(message & (received < MOST), received, out)
    return out


class Apart(IntEnum):
    """Why a match is in no total, the first that holds; ``WORDS`` says it."""

    NO = 0
    BEGAN_APART = 1
    FIRST = 2
    OVERHEAD = 3
    UNTIMED = 4


WORDS: Final = {
    Apart.BEGAN_APART: "first after the profiler started: others waited before the recording of the late rank began",
    Apart.FIRST: "first after the profiler started: more than 3 x the median skew of the later ones of its group",
    Apart.OVERHEAD: "profiler overhead on the late rank for at least half of the wait",
    Apart.UNTIMED: "clocks unknown and not all members recorded",
}


def apart(ranks: Sequence[RankComms], matches: Matches, clocks: AlignedClocks, found: MatchTimes) -> U8:
    """Judge which matches to exclude from sums: an ``Apart`` a match.

    A match is first where it is the first of a member's recording. Its skew comes from recordings that began apart
    where at least half of it lies before the recording of the late rank began; else it counts as first where it exceeds
    3 x the median of the group's later ones (3 of them at least). What is below the clocks' tolerance is not excluded.
    n log n in matches.
    """
    wide = found.timed & (found.skew_ns > clocks.residual_ns)
    first, first_of_late = _first(matches, found)
    later = ~first & found.timed
    count = np.bincount(matches.group[later], minlength=len(matches.groups))
    usual = quantiles(matches.group[later], found.skew_ns[later], len(matches.groups))[0]
    slow = (count[matches.group] >= _FEWEST_LATER) & (found.skew_ns > _TIMES_USUAL * usual[matches.group])
    began = np.array([int(c.of(np.array(r.began_ns))) for r, c in zip(ranks, clocks.clocks, strict=True)], np.int64)
    unseen = np.minimum(began[found.late], found.last_start_ns) - found.first_start_ns
    apart = {  # the first that holds
        Apart.BEGAN_APART: wide & first_of_late & (2 * unseen >= found.skew_ns),
        Apart.FIRST: wide & first & slow,
        Apart.OVERHEAD: wide & _overhead(ranks, clocks, found, wide),
        Apart.UNTIMED: ~found.timed & ~matches.complete,
    }
    return np.select([*apart.values()], [*apart], Apart.NO).astype(np.uint8)


def _first(matches: Matches, found: MatchTimes) -> tuple[Bool, Bool]:
    """Tell whether it is the first of any member's recording, and of the late rank's."""
    first, of_late = np.zeros(len(matches.kind), np.bool_), np.zeros(len(matches.kind), np.bool_)
    for rank, of_op in enumerate(matches.of_op):
        met = of_op != NOWHERE
        if met.any():
            match = int(of_op[int(met.argmax())])
            first[match] = True
            of_late[match] |= found.late[match] == rank
    return first, of_late


def _overhead(ranks: Sequence[RankComms], clocks: AlignedClocks, found: MatchTimes, wide: Bool) -> Bool:
    """Tell whether the profiler worked on the late rank for at least half of the time between the first and the last
    start.
    """
    out = np.zeros(len(wide), np.bool_)
    order = in_order(np.flatnonzero(wide), found.late)
    cuts = np.searchsorted(found.late[order], np.arange(len(ranks) + 1))
    for rank, clock, low, high in zip(ranks, clocks.clocks, cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        if low == high or not len(rank.overhead_start_ns):
            continue
        mine = order[low:high]
        overhead = union(clock.of(rank.overhead_start_ns), clock.of(rank.overhead_end_ns))
        worked = overlap_ns(overhead, found.first_start_ns[mine], found.last_start_ns[mine])
        out[mine] = 2 * worked >= found.skew_ns[mine]
    return out
