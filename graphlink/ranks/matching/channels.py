"""Messages of several ranks, sorted into channels: what one rank sends another in one group with one tag."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphlink.model import I32, I64, CommKind
from graphlink.ranks.matching.leftovers import Member
from graphlink.ranks.matching.lineup import usable
from graphlink.ranks.records import GroupKey, RankComms


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
