"""Copies of ranks along the data axis: which rank each one repeats, and with whom it communicates; and their graphs,
written: each with its own times, ranks and communicators, its nodes in the order in which they then start.

The rank at place k of a longer line repeats the recorded one at place k modulo the recorded length. A communicator is
copied by what it has of the axis: all places become all places of the longer line; one place becomes one communicator
for each; an aligned part, such as the ranks that share experts, becomes as many such parts as there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from graphlink import output_names
from graphlink.errors import InputError, UsageError
from graphlink.graph.order import Chains, longest_path
from graphlink.graph.write_et import read_rests, write_changed
from graphlink.graph_model import (
    NO_GROUP,
    UNKNOWN_DEP,
    Column,
    EdgeKind,
    Graph,
    Groups,
    IncomingEdges,
    Metadata,
    NodeType,
)
from graphlink.model import I64, NOWHERE
from graphlink.publish import writing
from graphlink.scale.layout import Axis, sends
from graphlink.scale.spread import Spread
from graphlink.tables import marked, spread, values_at

MOST_RANKS: Final = 100_000
PREFIX: Final = "trace"
_OF_EDGES: Final = ("first", "source", "edge_kind")
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
    rank's communicators in the larger run, one for each of ``ranks``. ``size``: of the axis that was made longer.
    """

    world: int
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


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy of a rank. ``groups``: its communicators by recorded number; ``peers``: ranks by recorded ones, its own
    too.
    """

    rank: int
    groups: Mapping[int, int]
    peers: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Some copies of one recorded rank, and where to write them. ``took_ns``: of communication, ``NOWHERE`` elsewhere;
    ``size_bytes``: of all nodes; ``waits``: nodes whose ``end_ns`` on each copy is known."""

    graph: Graph
    path: Path
    out: Path
    copies: tuple[Copied, ...]
    spread: Spread
    took_ns: I64
    size_bytes: I64
    waits: I64
    end_ns: I64
    begin_ns: int
    metadata: Metadata
    first_id: int


def copies(graphs: Mapping[int, Graph], groups: Groups, axis: Axis, size: int) -> Copies:
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
    for rank, other in sends(graphs):
        if axis.of(other) != axis.of(rank):
            raise InputError(
                f"rank {rank} sends to rank {other}, at another place of the data axis: who gets that in a larger run "
                "is not known",
                todo="state the axes with --layout",
            )
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
    return Copies(world, size, ranks, made, numbers)


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


def unfit(graph: Graph, rank: int, ranks: Collection[int], groups: Groups) -> str | None:
    """Return why the graph of ``rank`` of a run of ``ranks`` cannot be copied; None where it can. Linear."""
    file = graph.file
    reasons = (
        (graph.metadata.made is not None, "was made, not recorded"),
        (
            graph.metadata.graphlink is None or not graph.timed or not len(graph.id),
            "is no recorded graph of graphlink, with times in ns",
        ),
        (graph.metadata.host is not None, "does not have all host nodes (--host)"),
        (
            len(file.faults.node) or len(file.duplicate_ids) or (np.diff(graph.id) != 1).any(),
            "is damaged: its ids or dependencies are not those of one graph",
        ),
        (
            (graph.edge_kind == UNKNOWN_DEP).any() or (graph.source >= graph.target).any(),
            "is damaged: dependencies have no kind, or lead back",
        ),
        (
            any((graph.integers(name) < 0).any() for name in _TIMES),
            "is damaged: a time or size is below 0",
        ),
        (
            not np.isin(graph.type, (NodeType.COMP, NodeType.COMM_COLL, *_MESSAGES)).all()
            or (graph.host & (graph.type != NodeType.COMP)).any(),
            "is damaged: a node is of a type that graphlink does not write",
        ),
    )
    why = next((why for holds, why in reasons if holds), None)
    return why or _unfit_communication(graph, rank, ranks, groups)


def _unfit_communication(graph: Graph, rank: int, ranks: Collection[int], groups: Groups) -> str | None:
    for group in set(np.unique(graph.group).tolist()) - {NO_GROUP}:
        members = groups.get(group)
        if members is None or rank not in members or not set(members) <= set(ranks):
            return f"names communicator {group}, which comm_group.json does not have, or with other ranks"
    message = np.isin(graph.type, _MESSAGES)
    ends = np.unique(np.stack([graph.comm_src[message], graph.comm_dst[message]]))
    if not set(ends.tolist()) <= set(ranks):
        return "names ranks in messages that the run does not have"
    return None


def write_copies(task: CopyTask) -> int:
    """Write the copies of one task, each replayed from the ends that are known; return their nodes. Linear."""
    graph, rests = task.graph, read_rests(task.path)
    waiting = marked(len(graph.name), task.waits)[graph.target]
    edges = IncomingEdges.of(len(graph.name), graph.source[~waiting], graph.target[~waiting])
    chains = Chains(edges.first, edges.source)
    for k, who in enumerate(task.copies):
        drawn_ns = task.spread.ns(graph.duration_ns, who.rank)
        took_ns = np.where(task.took_ns == NOWHERE, drawn_ns, task.took_ns)
        cost_ns = took_ns + np.where(graph.host, 0, graph.start_delay_ns)
        cost_ns[task.waits] = task.end_ns[:, k] - task.begin_ns
        ended_ns = task.begin_ns + longest_path(edges.first, edges.source, cost_ns, chains=chains)
        made, origin = _copied(graph, who, took_ns, ended_ns, task)
        with writing(task.out / output_names.graph(PREFIX, who.rank)) as out:
            write_changed(out, made, origin, rests)
    return len(graph.name) * len(task.copies)


def _copied(graph: Graph, who: Copied, took_ns: I64, ended_ns: I64, task: CopyTask) -> tuple[Graph, I64]:
    """Make the graph of a copy, and tell of each of its nodes its place in ``graph``. ``took_ns``, ``ended_ns``: of its
    nodes in a replay, from the epoch of the task on.
    """
    started_ns, metadata, host = ended_ns - took_ns, task.metadata, graph.host  # as recorded: after the start delay
    begin = int(started_ns.min(initial=0))
    start, end = started_ns - begin, ended_ns - begin
    self_ns = np.rint(graph.self_ns * (took_ns / np.maximum(graph.duration_ns, 1)))
    changed = replace(
        graph,
        metadata=replace(metadata, epoch_ns=(metadata.epoch_ns or 0) + begin, rank=who.rank),
        start_ns=start,
        end_ns=np.where(host, _host_ends(graph, start, end), end + graph.overlap_ns),
        duration_ns=took_ns,
        self_ns=np.where(host, self_ns, graph.self_ns).astype(np.int64),
        wake_ns=np.minimum(graph.wake_ns, took_ns),
        wait_ns=_waits(graph, start, end),
        columns={**graph.columns, **_communication(graph, who, task.size_bytes)},
        read=None,
        first_id=task.first_id,
    )
    order = np.argsort(start, kind="stable")
    return _reordered(changed, order), order


def _reordered(graph: Graph, order: I64) -> Graph:
    """Return the graph with its nodes in another order, in which every edge still leads on. The edges of a node keep
    theirs.
    """
    count = len(order)
    place = spread(count, order, np.arange(count))
    target = place[graph.target]
    edges = np.argsort(target, kind="stable")
    columns: dict[str, Any] = {
        field.name: value[order]
        for field in fields(graph)
        if isinstance(value := getattr(graph, field.name), np.ndarray) and field.name not in _OF_EDGES
    }
    columns["caller"] = values_at(place, columns["caller"]).astype(np.int32)
    return replace(
        graph,
        **columns,
        first=np.append(0, np.cumsum(np.bincount(target, minlength=count))),
        source=place[graph.source[edges]].astype(np.int32),
        edge_kind=graph.edge_kind[edges],
        columns={name: Column.of(place[c.node], c.value, texts=c.texts) for name, c in graph.columns.items()},
    )


def _communication(graph: Graph, who: Copied, size_bytes: I64) -> dict[str, Column]:
    """Return the columns of communication that differ on a copy."""
    message = np.isin(graph.type, (NodeType.COMM_SEND, NodeType.COMM_RECV))
    out = {}
    for name, number_of in (("pg_name", who.groups), ("comm_src", who.peers), ("comm_dst", who.peers)):
        if name in graph.columns:
            node, value = graph.columns[name].node, graph.columns[name].value
            has = value != NO_GROUP if name == "pg_name" else message[node]
            out[name] = Column(node[has], np.array([number_of[number] for number in value[has].tolist()], np.int64))
    if "comm_size" in graph.columns:
        node = graph.columns["comm_size"].node
        out["comm_size"] = Column(node, size_bytes[node])
    return out


def _waits(graph: Graph, start_ns: I64, end_ns: I64) -> I64:
    """Return how long each host node waits: where it waited as recorded, from its end to the start of the next one of
    its thread.
    """
    edges = np.flatnonzero(graph.edge_kind == EdgeKind.HOST)
    follows = spread(len(graph.name), graph.source[edges], graph.target[edges].astype(np.int64))
    waits = (graph.wait_ns > 0) & (follows != NOWHERE)
    return np.where(waits, np.maximum(start_ns[follows] - end_ns, 0), graph.wait_ns)


def _host_ends(graph: Graph, start_ns: I64, end_ns: I64) -> I64:
    """Return the ends of host nodes, with what is nested in them: recorded ones, moved as the starts on their thread
    around them are.
    """
    out = end_ns.copy()
    for tid in np.unique(graph.tid[graph.host]).tolist():
        node = np.flatnonzero(graph.host & (graph.tid == tid))
        then, now = graph.start_ns[node], start_ns[node]
        moved = np.interp(graph.end_ns[node], then, now) + np.maximum(graph.end_ns[node] - then[-1], 0)
        out[node] = np.maximum(out[node], np.rint(moved).astype(np.int64))
    return out
