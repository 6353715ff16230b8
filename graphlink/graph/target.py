"""How a communication op is written: as recorded (``chakra``), or within what ASTRA-sim can run (``astra-sim``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.model import CommKind, CommNode, Communication, Graph, GroupKey, NodeKind
from graphlink.records import Short

ASTRA_SIM: Final = "astra-sim"
CHAKRA: Final = "chakra"
TARGETS: Final = (ASTRA_SIM, CHAKRA)

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
    group: int | None = None  # index into Communication.groups
    src: int | None = None
    dst: int | None = None
    tag: int | None = None
    size_recorded: int | None = None  # where size_bytes is another
    recorded: str | None = None
    replaced: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class CommPlan(Short):
    """How the communication nodes of one rank are written; the communicators that they name, first named first."""

    by_node: dict[int, WrittenComm]
    groups: tuple[GroupKey, ...]

    @property
    def replaced(self) -> dict[str, int]:
        """Return how many nodes are not as recorded, by reason."""
        return dict(sorted(Counter(c.replaced for c in self.by_node.values() if c.replaced).items()))


def plan(graph: Graph, comm: Communication, rank: int, target: str) -> CommPlan:
    """Decide node type, size in bytes and group of every communication node. Linear in nodes and communication ops."""
    found = comm_nodes(graph, comm)
    by_node = dict(zip(found, written_all(found.values(), comm, rank, target), strict=True))
    named = sorted({c.group for c in by_node.values() if c.group is not None})
    return CommPlan(by_node, tuple(comm.groups[i].key for i in named))


def comm_nodes(graph: Graph, comm: Communication) -> dict[int, CommNode]:
    """Return what each communication node of ``graph`` is, by its id: device ops, then host-side rows."""
    out: dict[int, CommNode] = {}
    for kind, rows, nodes in (
        (NodeKind.DEVICE_OP, comm.device_row, comm.device_node),
        (NodeKind.HOST_COMM, comm.host_row, comm.host_node),
    ):
        by_row = dict(zip(rows.tolist(), nodes, strict=True))
        found = np.flatnonzero((graph.kind == kind) & np.isin(graph.row, rows))
        out |= {node: by_row[row] for node, row in zip(found.tolist(), graph.row[found].tolist(), strict=True)}
    return out


def joined(plan: CommPlan, unmatched: Iterable[int], size_bytes: Mapping[int, int]) -> CommPlan:
    """Return ``plan`` as the other ranks make it: nodes without counterpart are computation, uneven collectives have one size on all."""
    by_node = dict(plan.by_node)
    for node in unmatched:
        written = by_node.get(node)
        if written is not None and written.node_type != pb.COMP_NODE:
            by_node[node] = WrittenComm(pb.COMP_NODE, recorded=written.recorded or _word(written), replaced="unmatched on other ranks")
    for node, size in size_bytes.items():
        written = by_node.get(node)
        if written is not None and written.node_type != pb.COMP_NODE and written.size_bytes != size:
            by_node[node] = msgspec.structs.replace(
                written, size_bytes=size, size_recorded=written.size_bytes, replaced="uneven sizes as the largest rank's"
            )
    return CommPlan(by_node, plan.groups)


def _word(written: WrittenComm) -> str:
    """Return what a node was recorded as, where it was not replaced by something else already."""
    if written.node_type != pb.COMM_COLL_NODE:
        return "SEND" if written.node_type == pb.COMM_SEND_NODE else "RECV"
    return str(pb.CollectiveCommType.Name(written.comm_type))


def written_all(nodes: Iterable[CommNode], comm: Communication, rank: int, target: str) -> list[WrittenComm]:
    """Return a ``WrittenComm`` a node; nodes that are equal but for what is not written (``seq``, ``uneven``) share one."""
    seen: dict[tuple[object, ...], WrittenComm] = {}
    out = []
    for node in nodes:
        which = node.kind, node.recorded, node.comm_type, node.size_bytes, node.group, node.src, node.dst, node.tag
        if which not in seen:
            seen[which] = _written(node, comm, rank, target)
        out.append(seen[which])
    return out


def _written(node: CommNode, comm: Communication, rank: int, target: str) -> WrittenComm:
    if node.kind == CommKind.UNKNOWN:
        return WrittenComm(pb.COMP_NODE, recorded=node.recorded, replaced="parameters or group unknown")
    if node.kind == CommKind.COLLECTIVE:
        return _collective(node, comm, rank, target)
    return _point_to_point(node, rank, target)


def _collective(node: CommNode, comm: Communication, rank: int, target: str) -> WrittenComm:
    assert node.comm_type is not None
    as_recorded = WrittenComm(pb.COMM_COLL_NODE, comm_type=node.comm_type, size_bytes=max(node.size_bytes, 0), group=node.group)
    if target == CHAKRA:
        return as_recorded
    why = _cannot_run(node, comm, rank)
    if why is not None:
        return WrittenComm(pb.COMP_NODE, recorded=node.recorded, replaced=why)
    stand_in = STAND_IN.get(node.comm_type)
    if stand_in is None:
        return as_recorded
    return msgspec.structs.replace(
        as_recorded,
        comm_type=stand_in,
        recorded=node.recorded,
        replaced=f"{node.recorded} as {pb.CollectiveCommType.Name(stand_in)}",
    )


def _cannot_run(node: CommNode, comm: Communication, rank: int) -> str | None:
    if node.comm_type == pb.BARRIER:
        return "BARRIER as computation"
    if node.size_bytes <= 0:
        return "size 0 as computation"
    if node.group is not None:
        ranks = comm.groups[node.group].ranks or ()
        if len(ranks) == 1:
            return "group of one as computation"
        if rank not in ranks:
            return "group without this rank as computation"
    return None


def _point_to_point(node: CommNode, rank: int, target: str) -> WrittenComm:
    sends = node.kind == CommKind.SEND
    peer = node.dst if sends else node.src
    why = None
    if peer is None:
        why = "peer unknown"
    elif target == ASTRA_SIM and peer == rank:
        why = "message to itself as computation"
    elif target == ASTRA_SIM and node.size_bytes <= 0:
        why = "size 0 as computation"
    if why is not None:
        return WrittenComm(pb.COMP_NODE, recorded=node.recorded, replaced=why)
    return WrittenComm(
        pb.COMM_SEND_NODE if sends else pb.COMM_RECV_NODE,
        size_bytes=max(node.size_bytes, 0),
        group=node.group,
        src=rank if sends else peer,  # ASTRA-sim throws on another src of a SEND than the own rank
        dst=peer if sends else rank,
        tag=(node.tag or 0) & TAG_MASK,
    )
