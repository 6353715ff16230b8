"""Finds the communication of several ranks that belongs together, and names what has no counterpart.

Collectives of a group meet by sequence number where every op has one, else by function, size, order and time; messages likewise
between their two ends (``lineup``). A rank that was not recorded is not waited for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphlink.link.commtypes import CollectiveType
from graphlink.model import I32, I64, NOWHERE, CommKind
from graphlink.ranks.aligned import Lines, Ops
from graphlink.ranks.group_ids import common
from graphlink.ranks.lineup import Lineup, Member, leftovers, line_up, usable
from graphlink.ranks.records import Conflict, GroupKey, Matching, Meetings, RankComms, Unmatched

TYPES = 16  # more than there are, so that size and type make one number


@dataclass(frozen=True, slots=True)
class _Block:
    """The meetings of one group or channel. ``ops``: (members, meetings), members by rank."""

    group: GroupKey
    kind: CommKind
    type: I32
    members: tuple[int, ...]
    ops: I32
    start_ns: I64
    complete: bool
    by_sequence: bool


def match(ranks: Sequence[RankComms]) -> Matching:
    """The meetings of a run from what each of its ranks recorded, one entry a rank.

    n log n in ops; where members of a group differ, the ops of those are aligned (``bytime``, ``byorder``). Nothing is raised.
    """
    labels = _labels(ranks)
    found = _Found()
    groups = list(_collectives(ranks, labels, found.alone))
    for group, members in sorted(groups, key=lambda one: -max(len(m.ops) for m in one[1])):  # many ops tell the clocks for few
        found.add(group, members, _sizes_may_differ(members), all(r in {m.comms.rank for m in members} for r in group[0]))
    ways, away = channels(ranks, labels)
    found.alone["peer not recorded"] += away
    for way in ways:
        ends = sorted((way.sender, way.receiver), key=lambda member: member.comms.rank)
        found.add(way.group, ends, frozenset(), True, in_step=way.in_step)
    return Matching(
        meetings=_meetings(ranks, found.blocks),
        unmatched=tuple(found.unmatched),
        conflicts=tuple(found.conflicts),
        alone={why: count for why, count in found.alone.items() if count},
        by_sequence=sum(block.ops.shape[1] for block in found.blocks if block.by_sequence),
        shared={one.rank: label for one, label in zip(ranks, labels, strict=True)},
    )


class _Found:
    """What the groups and channels looked at so far hold."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []
        self.unmatched: list[Unmatched] = []
        self.conflicts: list[Conflict] = []
        self.alone: Counter[str] = Counter()
        self._lines = Lines()

    def add(self, group: GroupKey, members: Sequence[Member], uneven: frozenset[int], complete: bool, *, in_step: bool = True) -> None:
        no_seq = np.full(1, NOWHERE, np.int64)
        seqs = [m.comms.seq[m.ops] if in_step else no_seq for m in members]
        lineup = line_up([_ops(m, uneven) for m in members], seqs, self._lines)
        met = lineup.met()
        unmatched, conflicts = leftovers(group, members, lineup, met)
        self.unmatched += unmatched
        self.conflicts += conflicts
        if met.any():
            self.blocks.append(_block(group, members, lineup, lineup.at[:, met], complete))


def _labels(ranks: Sequence[RankComms]) -> list[dict[GroupKey, GroupKey]]:
    """Of each rank its groups, as all ranks know them."""
    at = {one.rank: one for one in ranks}
    used: dict[int, list[GroupKey]] = {}
    for one in ranks:
        groups, first = np.unique(one.group, return_index=True)
        used[one.rank] = [one.groups[g] for g in groups[np.argsort(first)].tolist()]

    def calls(rank: int, group: GroupKey) -> I64:
        one = at[rank]
        rows = np.flatnonzero(one.group == one.groups.index(group))
        return one.bytes[rows] * TYPES + one.type[rows]

    found = common(used, calls)
    users = Counter(shared for labels in found.values() for shared in labels.values())
    return [{own: shared if users[shared] > 1 else own for own, shared in found[one.rank].items()} for one in ranks]


def _collectives(
    ranks: Sequence[RankComms], labels: Sequence[Mapping[GroupKey, GroupKey]], alone: Counter[str]
) -> Iterator[tuple[GroupKey, list[Member]]]:
    """Of each group that has several recorded members those, by rank; what needs nobody else is counted in ``alone``."""
    own: dict[GroupKey, dict[int, Member]] = defaultdict(dict)
    recorded = {one.rank: (k, one) for k, one in enumerate(ranks)}
    for k, (one, label) in enumerate(zip(ranks, labels, strict=True)):
        rows = np.flatnonzero(one.kind == CommKind.COLLECTIVE).astype(np.int32)
        rows = rows[np.argsort(one.group[rows], kind="stable")]
        groups, first = np.unique(one.group[rows], return_index=True)
        for g, low, high in zip(groups.tolist(), first.tolist(), [*first[1:].tolist(), len(rows)], strict=False):
            own[label[one.groups[g]]][one.rank] = Member(k, one, rows[low:high])
    nothing = np.zeros(0, np.int32)
    for group, of_rank in own.items():
        here = sorted(r for r in group[0] if r in recorded)
        alone["rank outside its group"] += sum(len(m.ops) for r, m in of_rank.items() if r not in group[0])
        if len(here) > 1:
            if any(r in of_rank for r in here):
                yield group, [of_rank[r] if r in of_rank else Member(*recorded[r], nothing) for r in here]
        else:
            why = "group of one" if len(group[0]) == 1 else "no other member recorded"
            alone[why] += sum(len(of_rank[r].ops) for r in here if r in of_rank)


def _sizes_may_differ(members: Sequence[Member]) -> frozenset[int]:
    """Types whose sizes are not compared in this group."""
    found = {int(CollectiveType.ALL_TO_ALL)}
    for member in members:
        if member.comms.uneven.any():
            found.update(np.unique(member.comms.type[member.ops[member.comms.uneven[member.ops]]]).tolist())
    return frozenset(found)


def _ops(member: Member, uneven: frozenset[int]) -> Ops:
    one, ops = member.comms, member.ops
    type_, size = one.type[ops].astype(np.int64), one.bytes[ops]
    free = np.isin(type_, list(uneven)) if uneven else False
    token = np.where(free, 0, size * TYPES) + type_
    timed, eager = not one.on_host[ops].any(), bool((type_ == NOWHERE).any())
    return Ops(one.rank, token, one.start_ns[ops], one.end_ns[ops], timed=timed, eager=eager)


def _block(group: GroupKey, members: Sequence[Member], lineup: Lineup, at: I32, complete: bool) -> _Block:
    ops = np.empty(at.shape, np.int32)
    start_ns = np.full(at.shape[1], np.iinfo(np.int64).max)
    for k, member in enumerate(members):
        ops[k] = member.ops[at[k]]
        np.minimum(start_ns, member.comms.start_ns[ops[k]], out=start_ns)
    one = members[0].comms
    kind = CommKind.COLLECTIVE if one.kind[ops[0, 0]] == CommKind.COLLECTIVE else CommKind.SEND
    return _Block(
        group, kind, one.type[ops[0]], tuple(m.position for m in members), ops, start_ns, complete, by_sequence=lineup.reference is None
    )


def _meetings(ranks: Sequence[RankComms], blocks: Sequence[_Block]) -> Meetings:
    counts = [block.ops.shape[1] for block in blocks]
    start_ns = _joined([block.start_ns for block in blocks], np.int64)
    order = np.argsort(start_ns, kind="stable")
    meeting = np.empty(len(order), np.int32)  # of each op of the blocks, one after the other
    meeting[order] = np.arange(len(order))
    group_of: dict[GroupKey, int] = {}
    codes = [group_of.setdefault(block.group, len(group_of)) for block in blocks]
    first = np.append(0, np.cumsum(np.repeat([len(block.members) for block in blocks], counts)[order])).astype(np.int64)
    of_op = tuple(np.full(len(one.node), NOWHERE, np.int32) for one in ranks)
    rank, op = np.empty(int(first[-1]), np.int32), np.empty(int(first[-1]), np.int32)
    at = 0
    for block, count in zip(blocks, counts, strict=True):
        mine = meeting[at : at + count]
        at += count
        for k, position in enumerate(block.members):
            row = first[mine] + k
            rank[row], op[row] = position, block.ops[k]
            of_op[position][block.ops[k]] = mine
    return Meetings(
        groups=tuple(group_of),
        of_op=of_op,
        kind=np.repeat(np.array([block.kind for block in blocks], np.uint8), counts)[order],
        type=_joined([block.type for block in blocks], np.int32)[order],
        group=np.repeat(np.array(codes, np.int32), counts)[order],
        turn=_joined([np.arange(count) for count in counts], np.int64)[order],
        complete=np.repeat(np.array([block.complete for block in blocks], np.bool_), counts)[order],
        first=first,
        rank=rank,
        op=op,
    )


def _joined(parts: Sequence[I64 | I32], dtype: type[np.int64] | type[np.int32]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype, copy=False)


@dataclass(frozen=True, slots=True)
class Channel:
    """Both ends of it. ``in_step``: sequence numbers mean the same at both."""

    group: GroupKey
    sender: Member
    receiver: Member
    in_step: bool


@dataclass(frozen=True, slots=True)
class _Way:
    source: int
    target: int
    tag: int


_Ends = dict[_Way, list[I32]]  # positions of sends (0) and receives (1)


def channels(ranks: Sequence[RankComms], labels: Sequence[Mapping[GroupKey, GroupKey]]) -> tuple[list[Channel], int]:
    """Every channel whose two ranks were recorded, and how many messages go to or come from others.

    Where the ends of a channel name different groups, source, target and tag decide. n log n in messages.
    """
    at = {one.rank: k for k, one in enumerate(ranks)}
    found: dict[GroupKey, _Ends] = defaultdict(dict)
    away = 0
    for one, label in zip(ranks, labels, strict=True):
        rows = np.flatnonzero(one.kind != CommKind.COLLECTIVE)
        for row in _alike([one.kind[rows], one.group[rows], one.peer[rows], one.tag[rows]]):
            ops = rows[row].astype(np.int32)
            first, sends = ops[0], one.kind[ops[0]] == CommKind.SEND
            peer = int(one.peer[first])
            if peer not in at:
                away += len(ops)
                continue
            way = _Way(*((one.rank, peer) if sends else (peer, one.rank)), int(one.tag[first]))
            nothing = np.zeros(0, np.int32)
            ends = found[label[one.groups[one.group[first]]]].setdefault(way, [nothing, nothing])
            ends[0 if sends else 1] = ops
    _join_halves(found)
    out = []
    for group, ways in found.items():
        in_step = _in_step([(*_seqs(ranks, at, way, ends), *_sizes(ranks, at, way, ends)) for way, ends in ways.items()])
        for way, (sent, got) in ways.items():
            sender, receiver = (Member(at[r], ranks[at[r]], ops) for r, ops in ((way.source, sent), (way.target, got)))
            out.append(Channel(group, sender, receiver, in_step))
    return out, away


def _alike(columns: Sequence[NDArray[np.integer[Any]]]) -> list[I64]:
    """Rows that are equal in all columns, in order."""
    if not len(columns[0]):
        return []
    order = np.lexsort(columns)
    new = np.zeros(len(order) - 1, np.bool_)
    for column in columns:
        new |= column[order][1:] != column[order][:-1]
    return np.split(order, np.flatnonzero(new) + 1)


def _join_halves(found: Mapping[GroupKey, _Ends]) -> None:
    """Sends without receives in one group and receives without sends in another are one channel, in the group of the sends."""
    halves: dict[_Way, list[GroupKey]] = defaultdict(list)
    for group, ways in found.items():
        for way, ends in ways.items():
            if not len(ends[0]) or not len(ends[1]):
                halves[way].append(group)
    for way, groups in halves.items():
        sending = [group for group in groups if len(found[group][way][0])]
        receiving = [group for group in groups if len(found[group][way][1])]
        if sending and receiving:
            ends = [np.sort(np.concatenate([found[g][way][side] for g in of])) for side, of in enumerate((sending, receiving))]
            for group in groups:
                del found[group][way]
            found[sending[0]][way] = ends


def _seqs(ranks: Sequence[RankComms], at: Mapping[int, int], way: _Way, ends: Sequence[I32]) -> tuple[I64, I64]:
    return ranks[at[way.source]].seq[ends[0]], ranks[at[way.target]].seq[ends[1]]


def _sizes(ranks: Sequence[RankComms], at: Mapping[int, int], way: _Way, ends: Sequence[I32]) -> tuple[I64, I64]:
    return ranks[at[way.source]].bytes[ends[0]], ranks[at[way.target]].bytes[ends[1]]


def _in_step(of_channels: Sequence[tuple[I64, I64, I64, I64]]) -> bool:
    """Whether both ends count alike: nearly all numbers in the range that both have are on both sides, with one size.

    Ends without a common range count against it: they were hardly ever recorded one after the other.

    PyTorch counts the messages of a rank in a group, not those of a pair (``seqP2P_`` of ProcessGroupNCCL), so often they do not.
    """
    shared = expected = 0
    for sent, got, sent_bytes, got_bytes in of_channels:
        if not len(sent) or not len(got):
            continue
        if not usable(sent) or not usable(got):
            return False
        low, high = max(sent[0], got[0]), min(sent[-1], got[-1])
        both = max(int(np.count_nonzero((seq >= low) & (seq <= high))) for seq in (sent, got))
        expected += both if low <= high else min(len(sent), len(got))
        _, i, j = np.intersect1d(sent, got, assume_unique=True, return_indices=True)
        shared += int(np.count_nonzero(sent_bytes[i] == got_bytes[j]))
    return shared > 0 and 10 * shared >= 9 * expected
