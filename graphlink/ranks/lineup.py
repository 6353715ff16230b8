"""Align the ops of all members of a group: by sequence number, else by function, size, order and time; and name what is
left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from graphlink.linking.commtypes import CollectiveType
from graphlink.model import I32, I64, NOWHERE, Bool, CommKind
from graphlink.ranks.aligned import Clash, Lines, Ops, Pairs, by_order, clash
from graphlink.ranks.bytime import FEW, FEWEST, NEAR_NS, as_they_stand, by_clock, by_time, clock
from graphlink.ranks.summary import Unmatched
from graphlink.tables import equal_runs, grouped, nowhere, spread

WHERE: Final = ("before", "between", "after", "everywhere")


@dataclass(frozen=True, slots=True)
class Lineup:
    """Places in order, each a collective or message. ``at``: (members, places), which of its ops each member has there,
    or ``NOWHERE``.

    ``reference``: the member whose ops the places are, so that an op without a place is lacking there; None where
    places are sequence numbers, of which every op has one. ``clash``: of each place its last clash, or ``NOWHERE``.
    """

    at: I32
    reference: int | None
    clash: I64
    clashes: tuple[Clash, ...]

    def met(self) -> Bool:
        """Mark the places at which all members have the same op."""
        return np.asarray((self.at >= 0).all(axis=0) & (self.clash == NOWHERE))


def usable(seq: I64) -> bool:
    """Tell whether sequence numbers tell ops apart: recorded of all, ascending."""
    return bool((seq >= 0).all() and (np.diff(seq) > 0).all())


def line_up(ops: Sequence[Ops], lines: Lines, *, in_step: bool) -> Lineup:
    """Align the ops of all members. n log n in ops, more only where members differ. What is found of clocks goes into
    ``lines``.

    ``in_step``: sequence numbers mean the same on all.
    """
    seqs = [member.comms.seq[member.rows] for member in ops] if in_step else []
    if in_step and all(usable(seq) for seq in seqs):
        found = _by_sequence(ops, seqs)
        if found is not None:
            _note_clocks(ops, found, lines)
            return found
    # align each member with the one that has most ops; of several the one whose ops most members have
    reference = _reference(ops)
    left = ops[reference]
    at = np.empty((len(ops), len(left)), np.int32)
    of_place = nowhere(len(left))
    clashes: list[Clash] = []
    known: dict[bytes, Pairs] = {}
    for k, right in enumerate(ops):
        at[k], conflicts = _whole(left) if k == reference else _align(left, right, lines, known)
        for conflict in conflicts:
            of_place[conflict.left] = len(clashes)
            clashes.append(replace(conflict, members=(reference, k)))
    return Lineup(at, reference, of_place, tuple(clashes))


def _by_sequence(ops: Sequence[Ops], seqs: Sequence[I64]) -> Lineup | None:
    """Match by sequence numbers; None where the numbers cannot mean the same on all members: old PyTorch counts
    collectives and messages of a rank together."""
    every = seqs[0] if all(np.array_equal(seqs[0], seq) for seq in seqs[1:]) else np.unique(np.concatenate(seqs))
    at = np.full((len(ops), len(every)), NOWHERE, np.int32)
    token = np.zeros(len(every), np.int64)  # of the first member that has the op
    differs = np.zeros(len(every), np.bool_)
    for k in reversed(range(len(ops))):
        here = np.searchsorted(every, seqs[k])
        at[k, here] = np.arange(len(here))
        token[here] = ops[k].token
    for k, member in enumerate(ops):
        here = np.searchsorted(every, seqs[k])
        differs[here] |= member.token != token[here]
    full = (at >= 0).all(axis=0)
    held = [seq for seq in seqs if len(seq)]
    if held:
        low, high = max(seq[0] for seq in held), min(seq[-1] for seq in held)
        shared = (every >= low) & (every <= high)
        if len(held) == len(seqs) and 2 * np.count_nonzero(full & ~differs) < np.count_nonzero(shared):
            return None
    return Lineup(at, None, *_differing(ops, at, np.flatnonzero(full & differs)))


def _note_clocks(ops: Sequence[Ops], found: Lineup, lines: Lines) -> None:
    """Note clocks by what matched by sequence number: channels, whose numbers mean nothing, may have too few messages
    for that.
    """
    hub = max(range(len(ops)), key=lambda k: len(ops[k]))
    for k, member in enumerate(ops):
        if (
            k == hub
            or not (member.timed and ops[hub].timed)
            or lines.between(ops[hub].comms.rank, member.comms.rank) is not None
        ):
            continue
        both = (found.at[hub] >= 0) & (found.at[k] >= 0) & (found.clash == NOWHERE)
        left, right = (found.at[m, both].astype(np.int64) for m in (hub, k))
        line = clock(ops[hub], member, left, right, FEWEST)
        if line is not None:
            lines.join(ops[hub].comms.rank, member.comms.rank, line)


def _differing(ops: Sequence[Ops], at: I32, places: I64) -> tuple[I64, tuple[Clash, ...]]:
    """Find a clash for each run of places at which a member differs from the same other one: the first of those that
    most agree with.
    """
    of_place = np.full(at.shape[1], NOWHERE, np.int64)
    differing: list[tuple[tuple[int, int], int]] = []
    for place in places.tolist():
        tokens = [int(member.token[at[k, place]]) for k, member in enumerate(ops)]
        usual = Counter(tokens).most_common(1)[0][0]
        most_have = tokens.index(usual)
        differing += [((most_have, other), place) for other, token in enumerate(tokens) if token != usual]
    found = sorted(
        (int(run[0]), most_have, other, run)
        for (most_have, other), of_pair in grouped(differing).items()
        for run in np.split(np.array(of_pair), np.flatnonzero(np.diff(of_pair) > 1) + 1)
    )
    for k, (_, _, _, run) in enumerate(found):
        of_place[run] = k
    clashes = (
        clash(ops[a], ops[b], at[a, run].astype(np.int64), at[b, run].astype(np.int64), (a, b))
        for _, a, b, run in found
    )
    return of_place, tuple(clashes)


def _reference(ops: Sequence[Ops]) -> int:
    most = max(len(member) for member in ops)
    longest = [k for k, member in enumerate(ops) if len(member) == most]
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
    """Match by time; a few ops tell little, so there the clocks known from other groups come first."""
    line = lines.between(left.comms.rank, right.comms.rank)
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
        a = np.flatnonzero(found[0] != NOWHERE)
        line = clock(left, right, a, found[0][a])
        if line is not None:
            lines.join(left.comms.rank, right.comms.rank, line)
    return found


def _whole(ops: Ops) -> Pairs:
    return np.arange(len(ops)), ()


def leftovers(
    group: str, members: Sequence[Ops], lineup: Lineup, met: Bool, lacked: dict[int, list[I32]]
) -> tuple[list[Unmatched], list[str]]:
    """Name everything that does not stand at a place of ``met``: ops that others lack (into ``lacked`` by rank), and
    what differs there.

    Linear in ops, and in members for each run of ops that somebody lacks.
    """
    if met.all() and all(len(member) == len(met) for member in members):
        return [], []
    taken = [np.zeros(len(member), np.bool_) for member in members]
    conflicts = _conflicts(group, members, lineup, taken)
    known: dict[bytes, list[int]] = {}  # the same run of places is asked for by every member that has it
    unmatched: list[Unmatched] = []
    for k, member in enumerate(members):
        mine = lineup.at[k]
        matched = mine[met & (mine >= 0)]
        left = ~taken[k]
        left[matched] = False
        place = spread(len(member), mine[mine >= 0], np.flatnonzero(mine >= 0))
        where = _where(len(member), matched)
        rows = np.flatnonzero(left)
        for run in equal_runs(rows, rows - np.arange(len(rows)), where[rows]):
            first, last = int(run[0]), int(run[-1])
            places = place[run].tobytes()
            if places not in known:
                known[places] = _lacking(members, lineup, place[run])
            unmatched.append(
                Unmatched(
                    rank=member.comms.rank,
                    group=group,
                    where=WHERE[where[first]],
                    count=len(run),
                    first=first,
                    last=last,
                    first_told=_named(member, first),
                    last_told=_named(member, last),
                    lacking=known[places],
                )
            )
            lacked[member.comms.rank].append(member.rows[run])
    return unmatched, conflicts


def _named(member: Ops, k: int) -> str:
    """Return ``ALL_REDUCE of 1,024 bytes``, ``SEND of 64 bytes to rank 3, tag 0``."""
    comms, op = member.comms, int(member.rows[k])
    size = f"of {comms.bytes[op]:,} bytes"
    kind = CommKind(comms.kind[op])
    if kind is CommKind.COLLECTIVE:
        return f"{CollectiveType(comms.type[op]).name} {size}"
    return f"{kind.name} {size} {'to' if kind is CommKind.SEND else 'from'} rank {comms.peer[op]}, tag {comms.tag[op]}"


def _where(count: int, matched: I32) -> I64:
    """Return for each op its place against what met, as an index of ``WHERE``."""
    if not len(matched):
        return np.full(count, 3)
    k = np.arange(count)
    return np.where(k < matched.min(), 0, np.where(k > matched.max(), 2, 1))


def _lacking(members: Sequence[Ops], lineup: Lineup, places: I64) -> list[int]:
    """Return the ranks that lack the ops at some places."""
    here = places[places != NOWHERE]
    lacks = np.any(lineup.at[:, here] < 0, axis=1)
    if len(here) < len(places) and lineup.reference is not None:
        lacks[lineup.reference] = True
    return [members[k].comms.rank for k in np.flatnonzero(lacks).tolist()]


def _conflicts(group: str, members: Sequence[Ops], lineup: Lineup, taken: list[Bool]) -> list[str]:
    """Name the conflicts, and mark in ``taken`` what they leave without a match."""
    out = []
    for k, found in enumerate(lineup.clashes):
        places = np.flatnonzero(lineup.clash == k)
        marked = [*zip(found.members, (found.left, found.right), strict=True), *enumerate(lineup.at[:, places])]
        for m, ops in marked:
            taken[m][ops[ops >= 0]] = True
        member, other = (members[m] for m in found.members)
        index, other_index = int(found.left[0]), int(found.right[0])
        out.append(
            f"number {index} of {group} {found.why}: rank {member.comms.rank} has {_named(member, index)}, "
            f"rank {other.comms.rank} has {_named(other, other_index)} (its number {other_index})"
        )
    return out
