"""Columns of communication nodes from the side files of NCCL."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.model import I32, I64, NOWHERE, Column, Graph, NodeKind
from graphlink.nccl.details import details
from graphlink.nccl.read.records import Dump
from graphlink.nccl.records import NcclJoin, Ops
from graphlink.records import Short


@dataclass(frozen=True, slots=True, repr=False)
class SideFiles(Short):
    """The side files of a rank, and what joining them with its communication gave."""

    dumps: tuple[Dump, ...]
    join: NcclJoin


def columns(graph: Graph, files: SideFiles | None) -> dict[str, Column]:
    """Return what side files know of the communication nodes of ``graph``: texts, then integers; nothing where a rank has none.

    The four times are of the ops that the join could split. O(n log n) in matched pairs, proxies and nodes.
    """
    if files is None:
        return {}
    join, told = files.join, details(files.join, files.dumps)
    node = _nodes_of(graph, join.ops)[told.op]
    split = np.full(len(join.ops.row), NOWHERE, np.int64)
    split[join.split.op] = np.arange(len(join.split.op))
    at = split[told.op]

    def known(value: I64 | I32, unknown: int, texts: tuple[str, ...] = ()) -> Column:
        return Column.of(node, value, (node != NOWHERE) & (value != unknown), texts)

    def times(value: I64) -> Column:
        has = at != NOWHERE
        return Column.of(node[has], value[at[has]], node[has] != NOWHERE)

    return {
        "nccl_algorithm": known(told.algorithm, 0, told.strings),
        "nccl_protocol": known(told.protocol, 0, told.strings),
        "nccl_comm": known(told.communicator, 0, told.strings),
        "nccl_seq": known(told.seq, NOWHERE),
        "nccl_channels": known(told.channels, NOWHERE),
        "nccl_wire_bytes": known(told.wire_bytes, NOWHERE),
        "nccl_gpu_wait_ns": times(join.split.gpu_ns),
        "nccl_peer_wait_ns": times(join.split.peer_ns),
        "nccl_wire_ns": times(join.split.wire_ns),
        "nccl_receive_ns": times(join.split.receive_ns),
    }


def _nodes_of(graph: Graph, ops: Ops) -> I32:
    """Return the node of each op, ``NOWHERE`` where the graph has none."""
    out = np.full(len(ops.row), NOWHERE, np.int32)
    for kind, mine in ((NodeKind.DEVICE_OP, ~ops.on_host), (NodeKind.HOST_COMM, ops.on_host)):
        node = np.flatnonzero(graph.kind == kind)
        of_row = np.full(max(int(graph.row[node].max(initial=-1)), int(ops.row[mine].max(initial=-1))) + 1, NOWHERE, np.int32)
        of_row[graph.row[node]] = node
        out[mine] = of_row[ops.row[mine]]
    return out
