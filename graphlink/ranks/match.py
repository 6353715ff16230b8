"""Match the communication of several ranks, and name what has no counterpart.

Collectives of a group meet by sequence number where every op has one, else by function, size, order and time; messages
likewise between their two ends (``lineup``). A rank that was not recorded is not waited for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphlink.linking.commtypes import CollectiveType
from graphlink.model import I32, I64, NOWHERE, CommKind
from graphlink.ranks.aligned import Lines, Ops
from graphlink.ranks.group_ids import GroupIds, assign, common
from graphlink.ranks.lineup import leftovers, line_up, usable
from graphlink.ranks.records import GroupKey, Matches, RankComms
from graphlink.ranks.summary import Unmatched, group_name
from graphlink.tables import equal_runs, grouped, how_many, nowhere, numbered_texts, spread

TYPES = 16  # more than there are, so that size and type make one number
_Labels = Sequence[Mapping[GroupKey, GroupKey]]
_Rows = tuple[int, I32]  # position of a rank, and some of its ops in order
_Channel = tuple[int, int, int]  # source, target, tag


@dataclass(frozen=True, slots=True)
class _CallSeries:
    """All collectives of a group, or all messages of a channel: what one rank sends another in one group with one tag.

    ``members``: the recorded ranks of the group, or both ends of the channel, by rank. ``in_step``: sequence numbers
    mean the same on all.
    """

    group: GroupKey
    kind: CommKind  # SEND for messages
    members: Sequence[_Rows]
    complete: bool = True
    in_step: bool = True


@dataclass(frozen=True, slots=True)
class Matching:
    """Matches, and what is none: every op with ``NOWHERE`` is in one of ``unmatched`` or of ``conflicts`` or alone by
    right (``alone``).

    ``lacked``: of each rank (by number) its ops that others lack, as ``unmatched`` names. ``conflicts``, in words:
    collectives that differ over ranks or stand in another order, which NCCL would hang in, or a recording that cannot
    be right. ``alone``: ops by reason that need nobody else among the recorded ranks ("group of one", "no other member
    recorded"). ``ids``: of each rank its communicators, numbered; ``group_ids``: those of all ranks, by the key that
    they share.
    """

    matches: Matches
    unmatched: tuple[Unmatched, ...]
    lacked: dict[int, list[I32]]
    conflicts: tuple[str, ...]
    alone: dict[str, int]
    by_sequence: int  # matches found by sequence number; the others by function, size and order
    ids: dict[int, GroupIds]
    group_ids: dict[GroupKey, int]


_Met = tuple[_CallSeries, I32]  # the calls of a group or channel, and the ops that meet: (members, matches)


def match(ranks: Sequence[RankComms], named: Mapping[int, Sequence[GroupKey]]) -> Matching:
    """Match a run from what each of its ranks recorded, one entry a rank; ``named``: the communicators that graphs
    name, which get numbers.

    n log n in ops; where members of a group differ, the ops of those are aligned (``bytime``, ``byorder``). Nothing is
    raised.
    """
    labels, lines = _labels(ranks), Lines()
    shared = {comms.rank: label for comms, label in zip(ranks, labels, strict=True)}
    ids = assign(named, shared)
    group_ids = {shared[rank][key]: number for rank, of_rank in ids.items() for key, number in of_rank.items()}
    alone: Counter[str] = Counter()
    collectives = list(_collectives(ranks, labels, alone))
    collectives.sort(key=lambda calls: -max(len(rows) for _, rows in calls.members))  # many ops tell the clocks for few
    met: list[_Met] = []
    unmatched: list[Unmatched] = []
    lacked: dict[int, list[I32]] = defaultdict(list)
    conflicts: list[str] = []
    by_sequence = 0
    for calls in (*collectives, *_channels(ranks, labels, alone)):
        members = _ops(ranks, calls)
        lineup = line_up(members, lines, in_step=calls.in_step)
        here = lineup.met()
        met.append((calls, np.stack([member.rows[at[here]] for member, at in zip(members, lineup.at, strict=True)])))
        by_sequence += how_many(here) if lineup.reference is None else 0
        lacking, differing = leftovers(group_name(calls.group, group_ids), members, lineup, here, lacked)
        unmatched += lacking
        conflicts += differing
    return Matching(
        matches=_matches(ranks, [part for part in met if part[1].size]),
        unmatched=tuple(unmatched),
        lacked=lacked,
        conflicts=tuple(conflicts),
        alone={why: count for why, count in alone.items() if count},
        by_sequence=by_sequence,
        ids=ids,
        group_ids=group_ids,
    )


def _labels(ranks: Sequence[RankComms]) -> list[dict[GroupKey, GroupKey]]:
    """Return for each rank its groups, as all ranks know them."""
    at = {comms.rank: comms for comms in ranks}

    def calls(rank: int, group: GroupKey) -> I64:
        comms = at[rank]
        rows = np.flatnonzero(comms.group == comms.groups.index(group))
        return comms.bytes[rows] * TYPES + comms.type[rows]

    found = common({comms.rank: comms.groups for comms in ranks}, calls)
    users = Counter(shared for labels in found.values() for shared in labels.values())
    return [{own: shared if users[shared] > 1 else own for own, shared in found[comms.rank].items()} for comms in ranks]


def _collectives(ranks: Sequence[RankComms], labels: _Labels, alone: Counter[str]) -> Iterator[_CallSeries]:
    """Yield each group that has several recorded members; what needs nobody else is counted in ``alone``."""
    own: dict[GroupKey, dict[int, I32]] = defaultdict(dict)
    position = {comms.rank: k for k, comms in enumerate(ranks)}
    for comms, label in zip(ranks, labels, strict=True):
        rows = np.flatnonzero(comms.kind == CommKind.COLLECTIVE).astype(np.int32)
        for equal in _equal(comms.group[rows]):
            own[label[comms.groups[comms.group[rows[equal[0]]]]]][comms.rank] = rows[equal]
    nothing = np.zeros(0, np.int32)
    for group, of_rank in own.items():
        here = sorted(r for r in group[0] if r in position)
        alone["rank outside its group"] += sum(len(rows) for r, rows in of_rank.items() if r not in group[0])
        if len(here) < 2:
            why = "group of one" if len(group[0]) == 1 else "no other member recorded"
            alone[why] += sum(len(of_rank[r]) for r in here if r in of_rank)
        elif any(r in of_rank for r in here):
            members = [(position[r], of_rank.get(r, nothing)) for r in here]
            yield _CallSeries(group, CommKind.COLLECTIVE, members, complete=len(here) == len(group[0]))


def _channels(ranks: Sequence[RankComms], labels: _Labels, alone: Counter[str]) -> Iterator[_CallSeries]:
    """Yield every channel whose two ranks were recorded; messages to or from others are counted in ``alone``.

    Where the ends of a channel name different groups, source, target and tag decide. n log n in messages.
    """
    position = {comms.rank: k for k, comms in enumerate(ranks)}
    found: dict[GroupKey, dict[_Channel, list[I32]]] = defaultdict(dict)  # positions of sends, then of receives
    for comms, label in zip(ranks, labels, strict=True):
        rows = np.flatnonzero(comms.kind != CommKind.COLLECTIVE).astype(np.int32)
        for equal in _equal(comms.kind[rows], comms.group[rows], comms.peer[rows], comms.tag[rows]):
            ops = rows[equal]
            first, sends = ops[0], comms.kind[ops[0]] == CommKind.SEND
            peer = int(comms.peer[first])
            if peer not in position:
                alone["peer not recorded"] += len(ops)
                continue
            channel = (*((comms.rank, peer) if sends else (peer, comms.rank)), int(comms.tag[first]))
            nothing = np.zeros(0, np.int32)
            ends = found[label[comms.groups[comms.group[first]]]].setdefault(channel, [nothing, nothing])
            ends[0 if sends else 1] = ops
    _join_halves(found)
    for group, channels in found.items():
        of_channel = [[(position[way[side]], ends[side]) for side in (0, 1)] for way, ends in channels.items()]
        in_step = _in_step(ranks, of_channel)
        for members in of_channel:
            by_rank = sorted(members, key=lambda member: ranks[member[0]].rank)
            yield _CallSeries(group, CommKind.SEND, by_rank, in_step=in_step)


def _equal(*columns: NDArray[np.integer[Any]]) -> list[I64]:
    """Return the rows that are equal in all columns, in order."""
    order = np.lexsort(columns)
    return equal_runs(order, *(column[order] for column in columns))


def _join_halves(found: Mapping[GroupKey, dict[_Channel, list[I32]]]) -> None:
    """Make sends without receives in one group and receives without sends in another one channel, in the group of the
    sends.
    """
    halves = grouped(
        (channel, group)
        for group, channels in found.items()
        for channel, ends in channels.items()
        if not len(ends[0]) or not len(ends[1])
    )
    for channel, groups in halves.items():
        sending = [group for group in groups if len(found[group][channel][0])]
        receiving = [group for group in groups if len(found[group][channel][1])]
        if sending and receiving:
            ends = [
                np.sort(np.concatenate([found[g][channel][side] for g in of]))
                for side, of in enumerate((sending, receiving))
            ]
            for group in groups:
                del found[group][channel]
            found[sending[0]][channel] = ends


def _in_step(ranks: Sequence[RankComms], channels: Sequence[Sequence[_Rows]]) -> bool:
    """Tell whether both ends count alike: nearly all numbers in the range that both have are on both sides, with one
    size.

    Ends without a common range count against it: they were hardly ever recorded one after the other.

    PyTorch counts the messages of a rank in a group, not those of a pair (``seqP2P_`` of ProcessGroupNCCL), so often
    they do not.
    """
    shared = expected = 0
    for (sender, sends), (receiver, receives) in channels:
        if not len(sends) or not len(receives):
            continue
        sent, got = ranks[sender].seq[sends], ranks[receiver].seq[receives]
        if not usable(sent) or not usable(got):
            return False
        low, high = max(sent[0], got[0]), min(sent[-1], got[-1])
        both = max(how_many((seq >= low) & (seq <= high)) for seq in (sent, got))
        expected += both if low <= high else min(len(sent), len(got))
        _, i, j = np.intersect1d(sent, got, assume_unique=True, return_indices=True)
        shared += how_many(ranks[sender].bytes[sends[i]] == ranks[receiver].bytes[receives[j]])
    return shared > 0 and 10 * shared >= 9 * expected


def _ops(ranks: Sequence[RankComms], calls: _CallSeries) -> list[Ops]:
    """Return the ops of each member; sizes are not compared of types that may differ in size in this group."""
    free = {int(CollectiveType.ALL_TO_ALL)}
    for position, rows in calls.members:
        comms = ranks[position]
        free.update(np.unique(comms.type[rows[comms.uneven[rows]]]).tolist())
    out = []
    for position, rows in calls.members:
        comms = ranks[position]
        type_ = comms.type[rows].astype(np.int64)
        token = np.where(np.isin(type_, list(free)), 0, comms.bytes[rows] * TYPES) + type_
        timed, eager = not comms.on_host[rows].any(), bool((type_ == NOWHERE).any())
        out.append(Ops(comms.start_ns[rows], comms.end_ns[rows], comms, rows, token, timed=timed, eager=eager))
    return out


def _matches(ranks: Sequence[RankComms], met: Sequence[_Met]) -> Matches:
    counts, members = [ops.shape[1] for _, ops in met], [len(ops) for _, ops in met]
    start_ns = [
        np.min([ranks[k].start_ns[rows] for (k, _), rows in zip(calls.members, ops, strict=True)], axis=0)
        for calls, ops in met
    ]
    order = np.argsort(_joined(start_ns, np.int64), kind="stable")
    # of each op of ``met``, one after the other
    number = spread(len(order), order, np.arange(len(order), dtype=np.int32))
    of_series, groups = numbered_texts(calls.group for calls, _ in met)
    first = np.append(0, np.cumsum(np.repeat(members, counts)[order])).astype(np.int64)
    of_op = tuple(nowhere(len(comms.node), np.int32) for comms in ranks)
    rank, op = np.empty(int(first[-1]), np.int32), np.empty(int(first[-1]), np.int32)
    at = 0
    for (calls, ops), count in zip(met, counts, strict=True):
        mine = number[at : at + count]
        at += count
        for k, ((position, _), rows) in enumerate(zip(calls.members, ops, strict=True)):
            row = first[mine] + k
            rank[row], op[row] = position, rows
            of_op[position][rows] = mine

    def repeated(values: Sequence[int | bool], dtype: type[np.generic]) -> NDArray[Any]:
        """Repeat a value of each group or channel for each of its matches."""
        return np.repeat(np.array(values, dtype), counts)[order]

    return Matches(
        groups=groups,
        of_op=of_op,
        kind=repeated([calls.kind for calls, _ in met], np.uint8),
        type=_joined([ranks[calls.members[0][0]].type[ops[0]] for calls, ops in met], np.int32)[order],
        group=repeated(of_series.tolist(), np.int32),
        turn=_joined([np.arange(count) for count in counts], np.int64)[order],
        complete=repeated([calls.complete for calls, _ in met], np.bool_),
        first=first,
        rank=rank,
        op=op,
    )


def _joined(parts: Sequence[I64 | I32], dtype: type[np.int64] | type[np.int32]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype, copy=False)
