"""What makes a graph unfit to be copied: it is not as graphlink writes them, so what it says cannot be carried over."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from graphlink.graph_model import NO_GROUP, UNKNOWN_DEP, Graph, NodeType

_TIMES = ("start_ns", "end_ns", "duration_ns", "self_ns", "wait_ns", "wake_ns", "start_delay_ns", "overlap_ns", "comm_size")
_MESSAGES = (NodeType.COMM_SEND, NodeType.COMM_RECV)


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
    if not np.isin(graph.type, (NodeType.COMP, NodeType.COMM_COLL, *_MESSAGES)).all() or (graph.host & (graph.type != NodeType.COMP)).any():
        return "is damaged: a node is of a type that graphlink does not write"
    return _unfit_communication(graph, rank, ranks, groups)


def _unfit_communication(graph: Graph, rank: int, ranks: Collection[int], groups: Mapping[int, Sequence[int]]) -> str | None:
    for group in set(np.unique(graph.group).tolist()) - {NO_GROUP}:
        members = groups.get(group)
        if members is None or rank not in members or not set(members) <= set(ranks):
            return f"names communicator {group}, which comm_group.json does not have, or with other ranks"
    message = np.isin(graph.type, _MESSAGES)
    ends = np.unique(np.stack([graph.comm_src[message], graph.comm_dst[message]]))
    if not set(ends.tolist()) <= set(ranks):
        return "names ranks in messages that the run does not have"
    return None
