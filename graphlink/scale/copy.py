"""The graph of one copy of a rank: its own times, ranks and communicators, its nodes in the order in which they then
start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from graphlink.graph_model import NO_GROUP, Column, EdgeKind, Graph, Metadata, NodeType
from graphlink.model import I64, NOWHERE
from graphlink.scale.play import Alone
from graphlink.tables import spread

_SIDES: Final = ("comm_src", "comm_dst")


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy of a rank. ``groups``: its communicators by recorded number; ``peers``: ranks by recorded ones, its own
    too.
    """

    rank: int
    world: int
    groups: Mapping[int, int]
    peers: Mapping[int, int]


def copied(
    graph: Graph, who: Copied, took_ns: I64, size_bytes: I64, times: Alone, metadata: Metadata
) -> tuple[Graph, I64]:
    """Make the graph of a copy, and tell of each of its nodes its place in ``graph``.

    ``took_ns``, ``size_bytes``: of its nodes; ``times``: of its replay, from ``metadata.epoch_ns`` on.
    """
    old_ns = np.maximum(graph.duration_ns, 1)
    begin = int(times.start_ns.min(initial=0))
    start, end = times.start_ns - begin, times.end_ns - begin
    host = graph.host
    changed = replace(
        graph,
        metadata=replace(metadata, epoch_ns=(metadata.epoch_ns or 0) + begin, rank=who.rank, world_size=who.world),
        start_ns=start,
        end_ns=np.where(host, _host_ends(graph, start, end), end + graph.overlap_ns),
        duration_ns=took_ns,
        self_ns=np.where(host, np.rint(graph.self_ns * (took_ns / old_ns)), graph.self_ns).astype(np.int64),
        wake_ns=np.minimum(graph.wake_ns, took_ns),
        wait_ns=_waits(graph, start, end),
        columns={**graph.columns, **_communication(graph, who, size_bytes)},
        read=None,
    )
    order = np.argsort(start, kind="stable")
    return _reordered(changed, order), order


def _reordered(graph: Graph, order: I64) -> Graph:
    """Return the graph with its nodes in another order, in which every edge still leads on. The edges of a node keep
    theirs.
    """
    count = len(order)
    at = spread(count, order, np.arange(count))
    target = at[graph.target]
    edges = np.argsort(target, kind="stable")
    own: dict[str, Any] = {f.name: getattr(graph, f.name) for f in fields(graph)}
    columns: dict[str, Any] = {
        name: value[order] for name, value in own.items() if isinstance(value, np.ndarray) and name not in _OF_EDGES
    }
    caller = columns["caller"]
    columns["caller"] = np.where(caller == NOWHERE, NOWHERE, at[np.maximum(caller, 0)]).astype(np.int32)
    return replace(
        graph,
        **columns,
        first=np.append(0, np.cumsum(np.bincount(target, minlength=count))),
        source=at[graph.source[edges]].astype(np.int32),
        edge_kind=graph.edge_kind[edges],
        columns={name: Column.of(at[c.node], c.value, texts=c.texts) for name, c in graph.columns.items()},
    )


_OF_EDGES: Final = ("first", "source", "edge_kind")


def _communication(graph: Graph, who: Copied, size_bytes: I64) -> dict[str, Column]:
    """Return the columns of communication that differ on a copy."""
    out = {}
    if "pg_name" in graph.columns:
        group = graph.columns["pg_name"]
        named = group.value != NO_GROUP
        out["pg_name"] = Column(
            group.node[named], np.array([who.groups[g] for g in group.value[named].tolist()], np.int64)
        )
    for side in _SIDES:
        if side in graph.columns:
            column = graph.columns[side]
            of_message = np.isin(graph.type[column.node], (NodeType.COMM_SEND, NodeType.COMM_RECV))
            node, ranks = column.node[of_message], column.value[of_message].tolist()
            out[side] = Column(node, np.array([who.peers[rank] for rank in ranks], np.int64))
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
