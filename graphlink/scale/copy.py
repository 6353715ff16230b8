"""The graphs of copies of a rank, written: each with its own times, ranks and communicators, its nodes in the order in
which they then start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from graphlink import output_names
from graphlink.graph.read_et import read_et
from graphlink.graph.write_et import read_rests, write_changed
from graphlink.graph_model import NO_GROUP, Column, EdgeKind, Graph, Metadata, NodeType
from graphlink.model import I64, NOWHERE
from graphlink.publish import writing
from graphlink.scale.spread import Spread
from graphlink.tables import spread

PREFIX: Final = "trace"
_OF_EDGES: Final = ("first", "source", "edge_kind")


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy of a rank. ``groups``: its communicators by recorded number; ``peers``: ranks by recorded ones, its own
    too.
    """

    rank: int
    world: int
    groups: Mapping[int, int]
    peers: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Some copies of one recorded rank, and where to write them. ``took_ns``: of communication, ``NOWHERE`` elsewhere;
    ``size_bytes``: of all nodes; ``waits``: nodes whose ``end_ns`` on each copy is known."""

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


def write_copies(task: CopyTask) -> int:
    """Write the copies of one task, one after the other; return their nodes."""
    graph, rests = read_et(task.path), read_rests(task.path)
    for k, who in enumerate(task.copies):
        drawn_ns = task.spread.ns(graph.duration_ns, who.rank)
        took_ns = np.where(task.took_ns == NOWHERE, drawn_ns, task.took_ns)
        known_ns = spread(len(took_ns), task.waits, task.end_ns[:, k])
        made, origin = _copied(graph, who, took_ns, _ends(graph, took_ns, known_ns, task.begin_ns), task)
        with writing(task.out / output_names.graph(PREFIX, who.rank)) as out:
            write_changed(out, made, origin, rests)
    return len(graph.name) * len(task.copies)


def _ends(graph: Graph, took_ns: I64, known_ns: I64, begin_ns: int) -> I64:
    """Replay one copy, whose nodes take ``took_ns`` and their start delays; return their ends. ``known_ns``: ends that
    are known, else ``NOWHERE``. Linear.
    """
    costs = (took_ns + np.where(graph.host, 0, graph.start_delay_ns)).tolist()
    first, source = graph.first.tolist(), graph.source.tolist()
    ends: list[int] = []
    for node, (cost, known) in enumerate(zip(costs, known_ns.tolist(), strict=True)):
        if known == NOWHERE:
            before = source[first[node] : first[node + 1]]
            known = max([begin_ns, *(ends[k] for k in before)]) + cost
        ends.append(known)
    return np.array(ends, np.int64)


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
        metadata=replace(metadata, epoch_ns=(metadata.epoch_ns or 0) + begin, rank=who.rank, world_size=who.world),
        start_ns=start,
        end_ns=np.where(host, _host_ends(graph, start, end), end + graph.overlap_ns),
        duration_ns=took_ns,
        self_ns=np.where(host, self_ns, graph.self_ns).astype(np.int64),
        wake_ns=np.minimum(graph.wake_ns, took_ns),
        wait_ns=_waits(graph, start, end),
        columns={**graph.columns, **_communication(graph, who, task.size_bytes)},
        read=None,
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
    caller = columns["caller"]
    columns["caller"] = np.where(caller == NOWHERE, NOWHERE, place[np.maximum(caller, 0)]).astype(np.int32)
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
