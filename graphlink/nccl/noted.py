"""What side files of NCCL tell of the communication nodes of a graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.model import I32, I64, NOWHERE, Bool, Graph, NodeKind
from graphlink.nccl.details import details
from graphlink.nccl.read.records import Dump
from graphlink.nccl.records import NcclJoin, Ops
from graphlink.records import Short


@dataclass(frozen=True, slots=True, repr=False)
class SideFiles(Short):
    """The side files of a rank, and what joining them with its communication gave."""

    dumps: tuple[Dump, ...]
    join: NcclJoin


@dataclass(frozen=True, slots=True)
class NcclNotes:
    """One entry a communication node that a side file knows, ascending by node; columns as in ``Details`` and ``Split``.

    The four times hold where ``has_split``.
    """

    node: I32
    seq: I64
    algorithm: I32
    protocol: I32
    channels: I64
    wire_bytes: I64
    comm: I32
    has_split: Bool
    gpu_wait_ns: I64
    peer_wait_ns: I64
    wire_ns: I64
    receive_ns: I64
    strings: tuple[str, ...]


def notes(graph: Graph, files: SideFiles) -> NcclNotes:
    """O(n log n) in matched pairs, proxies and nodes."""
    join, told = files.join, details(files.join, files.dumps)
    node = _nodes_of(graph, join.ops)[told.op]
    known = np.flatnonzero(node != NOWHERE)
    known = known[np.argsort(node[known], kind="stable")]
    split = np.full(len(join.ops.row), NOWHERE, np.int64)
    split[join.split.op] = np.arange(len(join.split.op))
    at = split[told.op[known]]
    has = at != NOWHERE

    def times(column: I64) -> I64:
        out = np.zeros(len(at), np.int64)
        out[has] = column[at[has]]
        return out

    return NcclNotes(
        node=node[known],
        seq=told.seq[known],
        algorithm=told.algorithm[known],
        protocol=told.protocol[known],
        channels=told.channels[known].astype(np.int64),
        wire_bytes=told.wire_bytes[known],
        comm=told.communicator[known],
        has_split=has,
        gpu_wait_ns=times(join.split.gpu_ns),
        peer_wait_ns=times(join.split.peer_ns),
        wire_ns=times(join.split.wire_ns),
        receive_ns=times(join.split.receive_ns),
        strings=told.strings,
    )


def _nodes_of(graph: Graph, ops: Ops) -> I32:
    """The node of each op, ``NOWHERE`` where the graph has none."""
    out = np.full(len(ops.row), NOWHERE, np.int32)
    for kind, mine in ((NodeKind.DEVICE_OP, ~ops.on_host), (NodeKind.HOST_COMM, ops.on_host)):
        node = np.flatnonzero(graph.kind == kind)
        of_row = np.full(max(int(graph.row[node].max(initial=-1)), int(ops.row[mine].max(initial=-1))) + 1, NOWHERE, np.int32)
        of_row[graph.row[node]] = node
        out[mine] = of_row[ops.row[mine]]
    return out
