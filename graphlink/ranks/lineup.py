"""The ops of all members of a group beside each other: by sequence number, else by function, size, order and time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphlink.link.commtypes import CollectiveType
from graphlink.model import I32, I64, NOWHERE, Bool, CommKind
from graphlink.ranks.aligned import DIFFERS, OTHER_ORDER, Lines, Ops, Pairs, pairs, same_elsewhere
from graphlink.ranks.byorder import by_order
from graphlink.ranks.bytime import FEW, FEWEST, NEAR_NS, as_they_stand, by_clock, by_time, clock
from graphlink.ranks.records import Conflict, GroupKey, RankComms, Unmatched


@dataclass(frozen=True, slots=True)
class Between:
    """A clash of two members: positions among the ops of each, in order."""

    one: int
    ones: I64
    other: int
    others: I64
    why: str


@dataclass(frozen=True, slots=True)
class Lineup:
    """Places in order, each a collective or message. ``at``: (members, places), which of its ops each member has there, or ``NOWHERE``.

    ``reference``: the member whose ops the places are, so that an op without a place is lacking there; None where places are sequence
    numbers, of which every op has one. ``clash``: of each place its last clash, or ``NOWHERE``.
    """

    at: I32
    reference: int | None
    clash: I64
    clashes: tuple[Between, ...]

    def met(self) -> Bool:
        """Places at which all members have the same op."""
        met: Bool = (self.at >= 0).all(axis=0) & (self.clash == NOWHERE)
        return met


def usable(seq: I64) -> bool:
    """Sequence numbers that tell ops apart: recorded of all, ascending."""
    return bool((seq >= 0).all() and (np.diff(seq) > 0).all())


def line_up(ops: Sequence[Ops], seqs: Sequence[I64], lines: Lines) -> Lineup:
    """One entry a member in both. n log n in ops, more only where members differ. What is found of clocks goes into ``lines``."""
    if all(usable(seq) for seq in seqs):
        found = _by_sequence(ops, seqs)
        if found is not None:
            _tell_clocks(ops, found, lines)
            return found
    return _by_calls(ops, lines)


def _by_sequence(ops: Sequence[Ops], seqs: Sequence[I64]) -> Lineup | None:
    """None where the numbers cannot mean the same on all members: old PyTorch counts collectives and messages of a rank together."""
    every = seqs[0] if all(np.array_equal(seqs[0], seq) for seq in seqs[1:]) else np.unique(np.concatenate(seqs))
    at = np.full((len(ops), len(every)), NOWHERE, np.int32)
    token = np.zeros(len(every), np.int64)  # of the first member that has the op
    differs = np.zeros(len(every), np.bool_)
    for k in reversed(range(len(ops))):
        here = np.searchsorted(every, seqs[k])
        at[k, here] = np.arange(len(here))
        token[here] = ops[k].token
    for k, one in enumerate(ops):
        here = np.searchsorted(every, seqs[k])
        differs[here] |= one.token != token[here]
    full = (at >= 0).all(axis=0)
    held = [seq for seq in seqs if len(seq)]
    if held:
        low, high = max(seq[0] for seq in held), min(seq[-1] for seq in held)
        shared = (every >= low) & (every <= high)
        if len(held) == len(seqs) and 2 * np.count_nonzero(full & ~differs) < np.count_nonzero(shared):
            return None
    clash, clashes = _differing(ops, at, np.flatnonzero(full & differs))
    return Lineup(at, None, clash, clashes)


def _tell_clocks(ops: Sequence[Ops], found: Lineup, lines: Lines) -> None:
    """What matched by sequence number tells of clocks: channels, whose numbers mean nothing, may have too few messages to tell any."""
    hub = max(range(len(ops)), key=lambda k: len(ops[k]))
    for k, one in enumerate(ops):
        if k == hub or not (one.timed and ops[hub].timed) or lines.between(ops[hub].rank, one.rank) is not None:
            continue
        both = (found.at[hub] >= 0) & (found.at[k] >= 0) & (found.clash == NOWHERE)
        left, right = (found.at[m, both].astype(np.int64) for m in (hub, k))
        told = clock(ops[hub], one, pairs(left, right, len(ops[hub])), FEWEST)
        if told is not None:
            lines.join(ops[hub].rank, one.rank, told)


def _differing(ops: Sequence[Ops], at: I32, places: I64) -> tuple[I64, tuple[Between, ...]]:
    """A clash for each run of places at which the same member differs from the same other one: the first of those that most agree with."""
    clash = np.full(at.shape[1], NOWHERE, np.int64)
    runs: dict[tuple[int, int], list[list[int]]] = {}
    for place in places.tolist():
        tokens = [int(one.token[at[k, place]]) for k, one in enumerate(ops)]
        usual = Counter(tokens).most_common(1)[0][0]
        one = tokens.index(usual)
        for other in (k for k, token in enumerate(tokens) if token != usual):
            of_pair = runs.setdefault((one, other), [])
            if of_pair and of_pair[-1][-1] == place - 1:
                of_pair[-1].append(place)
            else:
                of_pair.append([place])
    found = sorted((run[0], one, other, run) for (one, other), of_pair in runs.items() for run in of_pair)
    for k, (_, _, _, run) in enumerate(found):
        clash[run] = k
    return clash, tuple(_between(ops, a, at[a, run].astype(np.int64), b, at[b, run].astype(np.int64)) for _, a, b, run in found)


def _between(ops: Sequence[Ops], one: int, ones: I64, other: int, others: I64) -> Between:
    why = OTHER_ORDER if same_elsewhere(ops[one].token[ones], ops[other].token[others]) else DIFFERS
    return Between(one, ones, other, others, why)


def _by_calls(ops: Sequence[Ops], lines: Lines) -> Lineup:
    """Each member beside the one with most ops; of several the one whose ops most members have."""
    reference = _reference(ops)
    left = ops[reference]
    at = np.empty((len(ops), len(left)), np.int32)
    clash = np.full(len(left), NOWHERE, np.int64)
    clashes: list[Between] = []
    known: dict[bytes, Pairs] = {}
    for k, right in enumerate(ops):
        found = _whole(left) if k == reference else _align(left, right, lines, known)
        at[k] = found.right
        for one in found.clashes:
            clash[one.left] = len(clashes)
            clashes.append(Between(reference, one.left, k, one.right, one.why))
    return Lineup(at, reference, clash, tuple(clashes))


def _reference(ops: Sequence[Ops]) -> int:
    most = max(len(one) for one in ops)
    longest = [k for k, one in enumerate(ops) if len(one) == most]
    if len(longest) < 3:
        return longest[0]
    texts = [ops[k].token.tobytes() for k in longest]
    return longest[texts.index(Counter(texts).most_common(1)[0][0])]


def _align(left: Ops, right: Ops, lines: Lines, known: dict[bytes, Pairs]) -> Pairs:
    if left.timed and right.timed:
        found = _align_timed(left, right, lines)
        if found is not None:
            return found
    if np.array_equal(left.token, right.token):
        return _whole(left)
    text = right.token.tobytes()
    if text not in known:
        known[text] = by_order(left, right)
    return known[text]


def _align_timed(left: Ops, right: Ops, lines: Lines) -> Pairs | None:
    """What times tell; a few ops tell little, so there the clocks known from other groups come first."""
    line = lines.between(left.rank, right.rank)
    same = np.array_equal(left.token, right.token)
    stands = same and as_they_stand(left, right)
    if line is not None and min(len(left), len(right)) < FEW and not (stands and left.eager):
        found = by_clock(left, right, line)
        if found is not None:
            return found
    if stands:
        found = _whole(left)
    else:
        found = by_time(left, right, NEAR_NS[:1] if same else NEAR_NS)
        if found is None and line is not None and not same:
            found = by_clock(left, right, line)
    if line is None and found is not None:
        told = clock(left, right, found)
        if told is not None:
            lines.join(left.rank, right.rank, told)
    return found


def _whole(ops: Ops) -> Pairs:
    every = np.arange(len(ops))
    return pairs(every, every, len(ops))


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
