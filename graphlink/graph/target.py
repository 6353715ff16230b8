"""The form in which a communication op is written: as recorded (``chakra``), or within what ASTRA-sim can run
(``astra-sim``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np
from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.choices import CHAKRA
from graphlink.graph_model import Column, Graph, NodeKind, NodeType
from graphlink.linking.commtypes import CollectiveType
from graphlink.model import I32, I64, NOWHERE, CommKind, CommOps, Communication, GroupKey
from graphlink.records import Short
from graphlink.tables import codes, nowhere, spread, tuples

# What the analytical network of ASTRA-sim throws on or never finishes, and what stands in for it (CONTRACT.md).
STAND_IN: Final = {
    pb.REDUCE: pb.ALL_REDUCE,
    pb.GATHER: pb.ALL_GATHER,
    pb.SCATTER: pb.BROADCAST,
    pb.REDUCE_SCATTER_BLOCK: pb.REDUCE_SCATTER,
}
TAG_MASK: Final = 0x7FFFFFFF  # comm_tag is an int32 >= 0; both ends of a message are masked alike


class WrittenComm(msgspec.Struct, frozen=True):
    """One communication op as its node carries it. ``replaced`` says why it is not what was recorded."""

    node_type: int
    comm_type: int | None = None
    size_bytes: int | None = None
    group: int | None = None  # index into CommOps.groups
    src: int | None = None
    dst: int | None = None
    tag: int | None = None
    size_recorded: int | None = None  # where size_bytes is another
    recorded: str | None = None
    replaced: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class CommPlan(Short):
    """The plan by which the communication nodes of one rank are written; the communicators that they name, first named
    first.
    """

    by_node: dict[int, WrittenComm]
    groups: tuple[GroupKey, ...]

    @property
    def replaced(self) -> dict[str, int]:
        """Count the nodes that are not as recorded, by reason."""
        return dict(sorted(Counter(c.replaced for c in self.by_node.values() if c.replaced).items()))


def plan(graph: Graph, comm: Communication, rank: int, target: str) -> CommPlan:
    """Decide node type, size in bytes and group of every communication node. Linear in nodes and communication ops.

    Ops that are equal but for what is not written (``seq``, ``uneven``) share a ``WrittenComm``.
    """
    ops = comm.ops
    columns = (ops.kind, ops.name, ops.type, ops.bytes, ops.group, ops.peer, ops.tag)
    which = codes(*columns)
    first = np.unique(which, return_index=True)[1]
    made = [_written(ops, op, rank, target) for op in first.tolist()]
    by_node = {node: made[k] for node, k in tuples(comm_nodes(graph, ops), which) if node != NOWHERE}
    named = sorted({c.group for c in by_node.values() if c.group is not None})
    return CommPlan(by_node, tuple(ops.groups[i] for i in named))


def comm_nodes(graph: Graph, ops: CommOps) -> I32:
    """Return the node of each op, ``NOWHERE`` where the graph has none."""
    out = nowhere(len(ops.row), np.int32)
    for kind, mine in ((NodeKind.DEVICE_OP, ~ops.on_host), (NodeKind.HOST_COMM, ops.on_host)):
        node = np.flatnonzero(graph.kind == kind)
        rows = max(int(graph.row[node].max(initial=-1)), int(ops.row[mine].max(initial=-1))) + 1
        out[mine] = spread(rows, graph.row[node], node)[ops.row[mine]]
    return out


def joined(plan: CommPlan, unmatched: Iterable[int], size_bytes: Mapping[int, int]) -> CommPlan:
    """Return ``plan`` as the other ranks make it: nodes without counterpart are computation, uneven collectives have
    one size on all.
    """
    by_node = dict(plan.by_node)
    for node in unmatched:
        written = by_node.get(node)
        if written is not None and written.node_type != pb.COMP_NODE:
            by_node[node] = WrittenComm(
                pb.COMP_NODE,
                recorded=written.recorded or comm_word(written.node_type, written.comm_type),
                replaced="unmatched on other ranks",
            )
    for node, size in size_bytes.items():
        written = by_node.get(node)
        if written is not None and written.node_type != pb.COMP_NODE and written.size_bytes != size:
            by_node[node] = msgspec.structs.replace(
                written,
                size_bytes=size,
                size_recorded=written.size_bytes,
                replaced="uneven sizes as the largest rank's",
            )
    return CommPlan(by_node, plan.groups)


def written(graph: Graph, comm: Communication, plan: CommPlan, ids: Mapping[GroupKey, int]) -> Graph:
    """Return ``graph`` with node types and the columns of communication by ``plan``. ``ids`` holds every communicator
    of its groups.
    """
    by_node = sorted(plan.by_node.items())
    node, of = np.array([i for i, _ in by_node], np.int64), [one for _, one in by_node]
    groups = [None if one.group is None else comm.ops.groups[one.group] for one in of]
    values: dict[str, list[int | str | None]] = {
        "comm_type": [one.comm_type for one in of],
        "comm_size": [one.size_bytes for one in of],
        "comm_size_recorded": [one.size_recorded for one in of],
        "pg_name": [None if group is None else ids[group] for group in groups],
        "pg_desc": [None if group is None else group[1] for group in groups],
        "comm_src": [one.src for one in of],
        "comm_dst": [one.dst for one in of],
        "comm_tag": [one.tag for one in of],
        "comm_type_recorded": [one.recorded for one in of],
    }
    type_ = graph.type.copy()
    type_[node] = [one.node_type for one in of]
    columns = {name: _column(node, given) for name, given in values.items()}
    return replace(graph, type=type_).with_columns(
        {name: column for name, column in columns.items() if len(column.node)}
    )


def _column(node: I64, given: Sequence[int | str | None]) -> Column:
    texts = {text: k for k, text in enumerate(dict.fromkeys(one for one in given if isinstance(one, str)))}
    known = np.array([one is not None for one in given], np.bool_)
    value = np.array([texts[one] if isinstance(one, str) else one for one in given if one is not None], np.int64)
    return Column(node[known], value, tuple(texts))


def comm_word(node_type: int, comm_type: int | None) -> str:
    """Return what a communication node is: ``SEND``, ``RECV``, else its type of collective."""
    if node_type != NodeType.COMM_COLL:
        return "SEND" if node_type == NodeType.COMM_SEND else "RECV"
    return CollectiveType(comm_type).name if comm_type in set(CollectiveType) else f"type {comm_type}"


def _written(ops: CommOps, op: int, rank: int, target: str) -> WrittenComm:
    kind, recorded = ops.kind[op], ops.names[ops.name[op]]
    if kind == CommKind.UNKNOWN:
        return WrittenComm(pb.COMP_NODE, recorded=recorded, replaced="parameters or group unknown")
    why = None if target == CHAKRA else _cannot_run(ops, op, rank)
    if why is not None:
        return WrittenComm(pb.COMP_NODE, recorded=recorded, replaced=why)
    size_bytes, group = max(int(ops.bytes[op]), 0), int(ops.group[op])
    if kind == CommKind.COLLECTIVE:
        type_ = int(ops.type[op])
        stand_in = None if target == CHAKRA else STAND_IN.get(type_)
        if stand_in is None:
            return WrittenComm(pb.COMM_COLL_NODE, comm_type=type_, size_bytes=size_bytes, group=group)
        why = f"{recorded} as {pb.CollectiveCommType.Name(stand_in)}"
        return WrittenComm(
            pb.COMM_COLL_NODE, comm_type=stand_in, size_bytes=size_bytes, group=group, recorded=recorded, replaced=why
        )
    sends, peer = kind == CommKind.SEND, int(ops.peer[op])
    return WrittenComm(
        pb.COMM_SEND_NODE if sends else pb.COMM_RECV_NODE,
        size_bytes=size_bytes,
        group=group,
        src=rank if sends else peer,  # ASTRA-sim throws on another src of a SEND than the own rank
        dst=peer if sends else rank,
        tag=int(ops.tag[op]) & TAG_MASK,
    )


def _cannot_run(ops: CommOps, op: int, rank: int) -> str | None:
    """Return why ASTRA-sim cannot run an op of which kind, group and size are known."""
    if ops.type[op] == pb.BARRIER:
        return "BARRIER as computation"
    if ops.kind[op] != CommKind.COLLECTIVE and ops.peer[op] == rank:
        return "message to itself as computation"
    if ops.bytes[op] <= 0:
        return "size 0 as computation"
    if ops.kind[op] == CommKind.COLLECTIVE:
        ranks, _ = ops.groups[ops.group[op]]
        if len(ranks) == 1:
            return "group of one as computation"
        if rank not in ranks:
            return "group without this rank as computation"
    return None
