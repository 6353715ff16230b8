"""What all ranks of a run number alike: decimal ids of communicators, with ``comm_group.json``, and where ids of nodes
begin."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from graphlink.model import I64, CommKind, CommOps
from graphlink.ranks.records import GroupKey
from graphlink.tables import how_many

GroupIds = dict[GroupKey, int]

MOST: Final = 499  # ASTRA-sim keeps ids above for itself
_ALIKE: Final = 0.5
_DIGITS: Final = 6  # at most, of names by which PyTorch counts process groups, since mid 2024; addresses are far longer
Calls = Callable[[int, GroupKey], I64]  # what a rank called on a communicator: equal numbers for equal calls


def first_id(ranks: Sequence[CommOps], world_size: int) -> int:
    """Return the id at which the nodes of each rank of a run begin: above the number of collectives of all ranks.

    ASTRA-sim of 2024 numbers these as they begin, over all ranks, and may take the id of one for the number of another.
    """

    def shared(ops: CommOps) -> int:
        members = np.array([*(len(ranks) for ranks, _ in ops.groups), 0])  # the last of ops without a group
        return how_many((ops.kind == CommKind.COLLECTIVE) & (members[ops.group] > 1))

    return world_size * max(map(shared, ranks), default=0)


def assign(
    by_rank: Mapping[int, Sequence[GroupKey]], shared: Mapping[int, Mapping[GroupKey, GroupKey]] | None = None
) -> dict[int, GroupIds]:
    """Give the communicators of each rank ids from 1, from those that its graph names (``CommPlan.groups``).

    ``shared``: of each rank, which of them are the same on all ranks, by the key that they share; None where only names
    and members tell (``ranks.matching.groups.common``). Ids go by size, largest first, then by members, then by name
    (numbers by value).
    """
    label = (
        common(by_rank)
        if shared is None
        else {rank: {k: shared[rank][k] for k in keys} for rank, keys in by_rank.items()}
    )
    every = {key for labels in label.values() for key in labels.values()}
    order = sorted(every, key=lambda k: (-len(k[0]), k[0], not k[1].isdecimal(), len(k[1]), k[1]))
    number = {k: i for i, k in enumerate(order, start=1)}
    return {rank: {own: number[key] for own, key in labels.items()} for rank, labels in label.items()}


def comm_group_json(ids: Mapping[int, GroupIds]) -> bytes:
    """Encode ``comm_group.json``: ``{"1": [0, 1], ...}``, global ranks in the communicator's own order."""
    return groups_json({number: ranks for of_rank in ids.values() for (ranks, _), number in of_rank.items()})


def groups_json(members: Mapping[int, Sequence[int]]) -> bytes:
    """Encode ``comm_group.json`` from the members of each number."""
    table = {str(number): members[number] for number in sorted(members)}
    return msgspec.json.format(msgspec.json.encode(table), indent=0) + b"\n"


def too_many(ids: Mapping[int, GroupIds]) -> tuple[str, ...]:
    """Warn where ASTRA-sim would not take the ids."""
    last = max((i for of_rank in ids.values() for i in of_rank.values()), default=0)
    return (f"{last} communicators: ASTRA-sim takes ids up to {MOST} only",) if last > MOST else ()


def common(
    by_rank: Mapping[int, Sequence[GroupKey]], calls: Calls | None = None
) -> dict[int, dict[GroupKey, GroupKey]]:
    """Return for each communicator of each rank the key that it has on all ranks. ``by_rank``: in the order of first
    use.

    Two ranks mean the same communicator if members and name are the same. Old recordings name communicators by address,
    differently on each rank: of names with the same members that one rank of several has alone, the k-th of every rank
    are taken as one, as ``#k``. PyTorch's own numbers are no addresses: they are the same on all ranks. With ``calls``,
    names whose calls are most alike are one where ranks have different numbers of such names, in order, or where the
    order pairs names that have little in common: a recording that began late may see another one first.
    """
    shared = Counter(k for keys in by_rank.values() for k in set(keys))
    found: dict[int, dict[GroupKey, GroupKey]] = {rank: {} for rank in by_rank}
    alone: dict[tuple[int, ...], dict[int, list[GroupKey]]] = defaultdict(lambda: defaultdict(list))
    for rank, keys in by_rank.items():
        for k in dict.fromkeys(keys):
            if shared[k] > 1 or len(by_rank) == 1 or (k[1].isdecimal() and len(k[1]) <= _DIGITS):
                found[rank][k] = k
            else:
                alone[k[0]][rank].append(k)
    for members, of_rank in alone.items():
        model = max(of_rank, key=lambda rank: len(of_rank[rank]))
        for rank, keys in of_rank.items():
            places: Sequence[int] = range(len(keys))
            if calls is not None and len(of_rank[model]) > 1 and rank != model:
                places = _most_alike([calls(model, k) for k in of_rank[model]], [calls(rank, k) for k in keys])
            found[rank].update({k: (members, f"#{place}") for k, place in zip(keys, places, strict=True)})
    return found


def _most_alike(longer: Sequence[I64], shorter: Sequence[I64]) -> list[int]:
    """Choose for each of ``shorter`` a place in ``longer``: in order where all pairs are alike, else the pair that is
    most alike, then the most alike of what is left, and so on; of those that are about as alike the first.
    """
    if len(longer) == len(shorter) and all(_likeness(*pair) >= _ALIKE for pair in zip(shorter, longer, strict=True)):
        return list(range(len(longer)))
    likeness = {
        (k, place): _likeness(one, longer[place]) for k, one in enumerate(shorter) for place in range(len(longer))
    }
    chosen: dict[int, int] = {}
    for k, place in sorted(likeness, key=lambda pair: (-round(likeness[pair], 1), pair)):
        if k not in chosen and place not in chosen.values():
            chosen[k] = place
    return [chosen[k] for k in range(len(shorter))]


def _likeness(one: I64, other: I64) -> float:
    """Return the share of calls that both have, 0 to 1, whatever their order: late starts and lost calls cost
    little.
    """
    both = Counter(one.tolist()) & Counter(other.tolist())
    return both.total() / max(len(one), len(other), 1)
