"""Copies of ranks along the data axis: which rank each one repeats, and with whom it communicates.

The rank at place k of a longer line repeats the recorded one at place k modulo the recorded length. A communicator is
copied by what it has of the axis: all places become all places of the longer line; one place becomes one communicator
for each; an aligned part, such as the ranks that share experts, becomes as many such parts as there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.errors import InputError, UsageError
from graphlink.graph_model import NO_GROUP, UNKNOWN_DEP, Graph, NodeType
from graphlink.model import I64
from graphlink.scale.layout import Axis

MOST_RANKS: Final = 100_000
_TIMES = (
    "start_ns",
    "end_ns",
    "duration_ns",
    "self_ns",
    "wait_ns",
    "wake_ns",
    "start_delay_ns",
    "overlap_ns",
    "comm_size",
)
_MESSAGES = (NodeType.COMM_SEND, NodeType.COMM_RECV)
_Instance = tuple[int, tuple[int, ...]]  # a recorded communicator, and the members of a copy of it


@dataclass(frozen=True, slots=True)
class Copies:
    """The larger run. ``ranks``: of each recorded rank those that repeat it, ascending; the first is the recorded one
    itself.

    ``groups``: members of each communicator, by its number. ``numbers``: of each recorded communicator and member that
    rank's communicators in the larger run, one for each of ``ranks``. ``axis`` and ``size``: what was made longer.
    """

    world: int
    axis: Axis
    size: int
    ranks: dict[int, I64]
    groups: dict[int, tuple[int, ...]]
    numbers: dict[tuple[int, int], I64]

    def members(self, group: int, recorded: int) -> int:
        """Return how many members a communicator that has ``recorded`` ones has in the larger run."""
        if group == NO_GROUP:
            return self.world
        copies = (self.groups[int(numbers[0])] for (of, _), numbers in self.numbers.items() if of == group)
        return len(next(copies, range(recorded)))


def copies(graphs: Mapping[int, Graph], groups: Mapping[int, Sequence[int]], axis: Axis, size: int) -> Copies:
    """Plan the copies that make lines of ``axis`` have ``size`` ranks.

    Raises:
        InputError: a communicator or message does not fit the axis, so that it is not known what becomes of it.
        UsageError: there would be too many ranks, or fewer than were recorded.
    """
    world = len(graphs) // axis.size * size
    if axis.size < 2:
        raise InputError(
            "one data parallel rank was recorded, which sums gradients with nobody", todo="record two or more"
        )
    if size < axis.size:
        raise UsageError(f"--data-parallel {size:,}: {axis.size:,} were recorded", todo=f"name {axis.size:,} or more")
    if world > MOST_RANKS:
        raise UsageError(f"--data-parallel {size:,}: are {world:,} ranks, at most {MOST_RANKS:,}", todo="name fewer")
    _refuse_messages(graphs, axis)
    places = {rank: range(axis.of(rank), size, axis.size) for rank in graphs}
    ranks = {rank: np.array([axis.moved(rank, place, size) for place in own], np.int64) for rank, own in places.items()}
    instances: dict[tuple[int, int], list[_Instance]] = {}
    for group in sorted({g for graph in graphs.values() for g in np.unique(graph.group).tolist()} - {NO_GROUP}):
        recorded = tuple(groups.get(group, range(len(graphs))))
        part = _part(group, recorded, axis, size)
        for rank in graphs.keys() & set(recorded):
            instances[group, rank] = [(group, _members(recorded, axis, size, part, place)) for place in places[rank]]
    every = {instance for own in instances.values() for instance in own}
    ordered = sorted(every, key=lambda instance: (-len(instance[1]), instance[1], instance[0]))
    number = {instance: k for k, instance in enumerate(ordered, start=1)}
    made = {k: members for (_, members), k in number.items()}
    numbers = {key: np.array([number[instance] for instance in own], np.int64) for key, own in instances.items()}
    return Copies(world, axis, size, ranks, made, numbers)


def _part(group: int, recorded: Sequence[int], axis: Axis, size: int) -> int:
    """Return how many places of the axis a communicator has; all of them, one, or an aligned part.

    Raises:
        InputError: it has others.
    """
    of_place = Counter(axis.of(rank) for rank in recorded)
    places, count = sorted(of_place), len(of_place)
    if count == axis.size and {axis.moved(rank, 0, count) for rank in recorded} != {
        rank for rank in recorded if axis.of(rank) == 0
    }:
        raise InputError(
            f"communicator {group} joins other ranks at each place of the data axis",
            todo="state the axes with --layout",
        )
    aligned = places == [*range(places[0], places[0] + count)] and places[0] % count == 0 and axis.size % count == 0
    if count == axis.size or (aligned and size % count == 0):
        return count
    what = f"places {', '.join(map(str, places[:8]))} of {axis.size} of the data axis"
    if aligned:
        what += f", and {size:,} ranks are no whole number of {count:,}"
    raise InputError(
        f"communicator {group} has {what}: it is not known which ranks it joins in a larger run",
        todo="name another number of ranks, or state the axes with --layout",
    )


def _members(recorded: Sequence[int], axis: Axis, size: int, part: int, place: int) -> tuple[int, ...]:
    """Return the members that the copy of a communicator has for the rank at ``place`` of the longer line, ascending if
    recorded so.
    """
    if part == axis.size:
        members = [axis.moved(rank, to, size) for to in range(size) for rank in recorded if axis.of(rank) == 0]
    else:
        first = place - place % part
        members = [axis.moved(rank, first + axis.of(rank) % part, size) for rank in recorded]
    return tuple(sorted(members) if [*recorded] == sorted(recorded) else members)


def _refuse_messages(graphs: Mapping[int, Graph], axis: Axis) -> None:
    for rank, graph in graphs.items():
        for other in np.unique(graph.comm_dst[graph.type == NodeType.COMM_SEND]).tolist():
            if axis.of(other) != axis.of(rank):
                raise InputError(
                    f"rank {rank} sends to rank {other}, at another place of the data axis: who gets that in a larger "
                    "run is not known",
                    todo="state the axes with --layout",
                )


def unfit(graph: Graph, rank: int, ranks: Collection[int], groups: Mapping[int, Sequence[int]]) -> str | None:
    """Return why the graph of ``rank`` of a run of ``ranks`` cannot be copied; None where it can. Linear."""
    if graph.metadata.made is not None:
        return "was made, not recorded"
    if graph.metadata.graphlink is None or not graph.timed or not len(graph.id):
        return "is no recorded graph of graphlink, with times in ns"
    if graph.metadata.host is not None:
        return "does not have all host nodes (--host)"
    file = graph.file
    if len(file.faults.node) or len(file.duplicate_ids) or not np.array_equal(graph.id, np.arange(len(graph.id))):
        return "is damaged: its ids or dependencies are not those of one graph"
    if (graph.edge_kind == UNKNOWN_DEP).any() or (graph.source >= graph.target).any():
        return "is damaged: dependencies have no kind, or lead back"
    if any((graph.integers(name) < 0).any() for name in _TIMES):
        return "is damaged: a time or size is below 0"
    if (
        not np.isin(graph.type, (NodeType.COMP, NodeType.COMM_COLL, *_MESSAGES)).all()
        or (graph.host & (graph.type != NodeType.COMP)).any()
    ):
        return "is damaged: a node is of a type that graphlink does not write"
    return _unfit_communication(graph, rank, ranks, groups)


def _unfit_communication(
    graph: Graph, rank: int, ranks: Collection[int], groups: Mapping[int, Sequence[int]]
) -> str | None:
    for group in set(np.unique(graph.group).tolist()) - {NO_GROUP}:
        members = groups.get(group)
        if members is None or rank not in members or not set(members) <= set(ranks):
            return f"names communicator {group}, which comm_group.json does not have, or with other ranks"
    message = np.isin(graph.type, _MESSAGES)
    ends = np.unique(np.stack([graph.comm_src[message], graph.comm_dst[message]]))
    if not set(ends.tolist()) <= set(ranks):
        return "names ranks in messages that the run does not have"
    return None
