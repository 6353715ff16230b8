"""The communication of one rank, from its graph, for whoever analyses several."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from graphlink.graph.target import comm_nodes
from graphlink.graph_model import Graph
from graphlink.model import NOWHERE, CommKind, CommOps, Communication, Linked
from graphlink.ranks.records import RankComms
from graphlink.tables import take


def rank_comms(graph: Graph, linked: Linked, comm: Communication, rank: int, world_size: int) -> RankComms:
    """Return every communication node of ``graph`` whose kind and group are known, with its recorded times. O(n log n)
    in nodes.
    """
    every = comm_nodes(graph, comm.ops)
    kept = np.flatnonzero((every != NOWHERE) & (comm.ops.kind != CommKind.UNKNOWN) & (comm.ops.group != NOWHERE))
    kept = kept[np.lexsort((every[kept], graph.end_ns[every[kept]], graph.start_ns[every[kept]]))]
    ops, node = take(comm.ops, kept), every[kept]
    number: dict[int, int] = {}
    group = np.array([number.setdefault(g, len(number)) for g in ops.group.tolist()], np.int32)
    columns = {field.name: getattr(ops, field.name) for field in fields(CommOps)} | {
        "group": group,
        "groups": tuple(ops.groups[g] for g in number),
        "start_ns": graph.epoch_ns + graph.start_ns[node],
        "end_ns": graph.epoch_ns + graph.end_ns[node],
    }
    overhead = linked.trace.overhead
    return RankComms(
        **columns,
        rank=rank,
        world_size=world_size,
        host=linked.trace.host_name,
        resolution_ns=linked.trace.resolution_ns,
        began_ns=graph.epoch_ns,
        ended_ns=graph.epoch_ns + int(graph.end_ns.max(initial=0)),
        node=node,
        overhead_start_ns=overhead.start_ns,
        overhead_end_ns=overhead.end_ns,
    )
