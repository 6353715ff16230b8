"""Decimal ids of communicators, the same on every rank of a run, and ``comm_group.json``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from graphlink.ranks.matching.groups import common
from graphlink.ranks.records import GroupKey

GroupIds = dict[GroupKey, int]

NAME: Final = "comm_group.json"
MOST: Final = 499  # ASTRA-sim keeps ids above for itself


def assign(
    by_rank: Mapping[int, Sequence[GroupKey]], shared: Mapping[int, Mapping[GroupKey, GroupKey]] | None = None
) -> dict[int, GroupIds]:
    """Give the communicators of each rank ids from 1, from those that its graph names (``CommPlan.groups``).

    ``shared``: of each rank, which of them are the same on all ranks, by the key that they share; None where only names and members
    tell (``ranks.matching.groups.common``). Ids go by size, largest first, then by members, then by name (numbers by value).
    """
    label = common(by_rank) if shared is None else {rank: {k: shared[rank][k] for k in keys} for rank, keys in by_rank.items()}
    every = {one for labels in label.values() for one in labels.values()}
    order = sorted(every, key=lambda k: (-len(k[0]), k[0], not k[1].isdecimal(), len(k[1]), k[1]))
    number = {k: i for i, k in enumerate(order, start=1)}
    return {rank: {k: number[one] for k, one in labels.items()} for rank, labels in label.items()}


def comm_group_json(ids: Mapping[int, GroupIds]) -> bytes:
    """Encode ``comm_group.json``: ``{"1": [0, 1], ...}``, global ranks in the communicator's own order."""
    members: dict[int, tuple[int, ...]] = defaultdict(tuple)
    for of_rank in ids.values():
        for (ranks, _), number in of_rank.items():
            members[number] = ranks
    table = {str(i): members[i] for i in sorted(members)}
    return msgspec.json.format(msgspec.json.encode(table), indent=0) + b"\n"


def too_many(ids: Mapping[int, GroupIds]) -> tuple[str, ...]:
    """A warning where ASTRA-sim would not take the ids."""
    last = max((i for of_rank in ids.values() for i in of_rank.values()), default=0)
    return (f"{last} communicators: ASTRA-sim takes ids up to {MOST} only",) if last > MOST else ()
