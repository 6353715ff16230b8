"""Names what has no counterpart: ops that others lack, and ops that are something else there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphlink.link.commtypes import CollectiveType
from graphlink.model import I32, I64, NOWHERE, Bool, CommKind
from graphlink.ranks.matching.lineup import Lineup
from graphlink.ranks.records import Conflict, GroupKey, RankComms, Unmatched

WHERE = ("before", "between", "after", "everywhere")


@dataclass(frozen=True, slots=True)
class Member:
    """A rank in a group, or at one end of messages. ``ops``: which of its ops these are, in order."""

    position: int  # of the rank in the run
    comms: RankComms
    ops: I32

    def told(self, k: int) -> str:
        return told(self.comms, int(self.ops[k]))


def told(comms: RankComms, op: int) -> str:
    """``ALL_REDUCE of 1,024 bytes``, ``SEND of 64 bytes to rank 3, tag 0``."""
    size = f"of {comms.bytes[op]:,} bytes"
    kind = CommKind(comms.kind[op])
    if kind is CommKind.COLLECTIVE:
        return f"{CollectiveType(comms.type[op]).name} {size}"
    return f"{kind.name} {size} {'to' if kind is CommKind.SEND else 'from'} rank {comms.peer[op]}, tag {comms.tag[op]}"


def leftovers(group: GroupKey, members: Sequence[Member], lineup: Lineup, met: Bool) -> tuple[list[Unmatched], list[Conflict]]:
    """Everything that does not stand at a place of ``met``. Linear in ops, and in members for each run of ops that somebody lacks."""
    if met.all() and all(len(member.ops) == len(met) for member in members):
        return [], []
    taken = [np.zeros(len(member.ops), np.bool_) for member in members]
    conflicts = _conflicts(group, members, lineup, taken)
    lacking = _Lacking(members, lineup)
    unmatched: list[Unmatched] = []
    for k, member in enumerate(members):
        mine = lineup.at[k]
        matched = mine[met & (mine >= 0)]
        left = np.ones(len(member.ops), np.bool_)
        left[matched] = False
        left[taken[k]] = False
        place = np.full(len(member.ops), NOWHERE, np.int64)
        place[mine[mine >= 0]] = np.flatnonzero(mine >= 0)
        where = _where(len(member.ops), matched)
        for run in _runs(np.flatnonzero(left), where):
            first, last = int(run[0]), int(run[-1])
            unmatched.append(
                Unmatched(
                    rank=member.comms.rank,
                    group=group,
                    where=WHERE[where[first]],
                    count=len(run),
                    first=first,
                    last=last,
                    first_told=member.told(first),
                    last_told=member.told(last),
                    lacking=lacking.of(place[run]),
                    ops=member.ops[run],
                )
            )
    return unmatched, conflicts


def _where(count: int, matched: I32) -> I64:
    """Of each op its place against what met, as an index of ``WHERE``."""
    if not len(matched):
        return np.full(count, 3)
    k = np.arange(count)
    return np.where(k < matched.min(), 0, np.where(k > matched.max(), 2, 1))


def _runs(ops: I64, where: I64) -> list[I64]:
    if not len(ops):
        return []
    return np.split(ops, np.flatnonzero((np.diff(ops) > 1) | (np.diff(where[ops]) != 0)) + 1)


class _Lacking:
    """Who lacks the ops at some places; the same run of places is asked for by every member that has it."""

    def __init__(self, members: Sequence[Member], lineup: Lineup) -> None:
        self._ranks = np.array([member.comms.rank for member in members])
        self._lineup = lineup
        self._known: dict[bytes, tuple[int, ...]] = {}

    def of(self, places: I64) -> tuple[int, ...]:
        key = places.tobytes()
        found = self._known.get(key)
        if found is None:
            here = places[places != NOWHERE]
            lacks = np.any(self._lineup.at[:, here] < 0, axis=1)
            if len(here) < len(places) and self._lineup.reference is not None:
                lacks[self._lineup.reference] = True
            found = self._known[key] = tuple(self._ranks[lacks].tolist())
        return found


def _conflicts(group: GroupKey, members: Sequence[Member], lineup: Lineup, taken: list[Bool]) -> list[Conflict]:
    """Marks in ``taken`` what a conflict leaves without a meeting, each op once."""
    out = []
    for k, clash in enumerate(lineup.clashes):
        count = 0
        places = np.flatnonzero(lineup.clash == k)
        marked = [(clash.one, clash.ones), (clash.other, clash.others)]
        marked += [(m, lineup.at[m, places]) for m in range(len(members))]
        for m, ops in marked:
            fresh = ops[ops >= 0]
            fresh = fresh[~taken[m][fresh]]
            taken[m][fresh] = True
            count += len(fresh)
        one, other = members[clash.one], members[clash.other]
        index, other_index = int(clash.ones[0]), int(clash.others[0])
        out.append(
            Conflict(
                group=group,
                index=index,
                rank=one.comms.rank,
                told=one.told(index),
                other_index=other_index,
                other_rank=other.comms.rank,
                other_told=other.told(other_index),
                why=clash.why,
                count=count,
            )
        )
    return out
