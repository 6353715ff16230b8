"""The communication of one rank, from its graph, for whoever looks at several."""

from __future__ import annotations

import numpy as np

from graphlink.graph.target import comm_nodes
from graphlink.model import NOWHERE, CommKind, CommNode, Communication, Graph, Linked, NodeKind
from graphlink.ranks.records import GroupKey, RankComms


def rank_comms(graph: Graph, linked: Linked, comm: Communication, rank: int, world_size: int) -> RankComms:
    """Every communication node of ``graph`` whose kind and group are known, with its recorded times. O(n log n) in nodes."""
    found = comm_nodes(graph, comm)
    kept = [i for i, n in found.items() if n.kind != CommKind.UNKNOWN and n.group is not None]
    kept.sort(key=lambda i: (graph.start_ns[i], graph.end_ns[i], i))
    node, nodes = np.array(kept, np.int32), [found[i] for i in kept]
    groups: dict[GroupKey, int] = {}
    group = np.array([groups.setdefault(_key(comm, n), len(groups)) for n in nodes], np.int32)
    sends = CommKind.SEND
    overhead = linked.trace.overhead
    return RankComms(
        rank=rank,
        world_size=world_size,
        host=linked.trace.host_name,
        resolution_ns=linked.trace.resolution_ns,
        began_ns=graph.epoch_ns,
        ended_ns=graph.epoch_ns + int(graph.end_ns.max(initial=0)),
        groups=tuple(groups),
        node=node,
        kind=np.array([n.kind for n in nodes], np.uint8),
        type=np.array([NOWHERE if n.comm_type is None else n.comm_type for n in nodes], np.int32),
        bytes=np.array([n.size_bytes for n in nodes], np.int64),
        group=group,
        peer=np.array([_known(n.dst if n.kind == sends else n.src) if n.comm_type is None else NOWHERE for n in nodes], np.int32),
        tag=np.array([n.tag or 0 for n in nodes], np.int64),
        seq=np.array([_known(n.seq) for n in nodes], np.int64),
        start_ns=graph.epoch_ns + graph.start_ns[node],
        end_ns=graph.epoch_ns + graph.end_ns[node],
        on_host=graph.kind[node] == NodeKind.HOST_COMM,
        uneven=np.array([n.uneven for n in nodes], np.bool_),
        overhead_start_ns=overhead.start_ns,
        overhead_end_ns=overhead.end_ns,
    )


def _key(comm: Communication, node: CommNode) -> GroupKey:
    assert node.group is not None
    group = comm.groups[node.group]
    assert group.ranks is not None
    return group.ranks, group.name


def _known(value: int | None) -> int:
    return NOWHERE if value is None else value
