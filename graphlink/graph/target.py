"""How a communication op is written: as recorded (``chakra``), or within what ASTRA-sim can run (``astra-sim``)."""

from __future__ import annotations

from typing import Final

import msgspec
from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.model import CommKind, CommNode, Communication

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


def written(node: CommNode, comm: Communication, rank: int, target: str) -> WrittenComm:
    """The node type and attributes of ``node`` on ``rank`` for ``target``."""
    if node.kind == CommKind.UNKNOWN:
        return WrittenComm(pb.COMP_NODE, recorded=node.recorded, replaced="parameters or group unknown")
    if node.kind == CommKind.COLLECTIVE:
        return _collective(node, comm, rank, target)
    return _point_to_point(node, rank, target)


def written_all(nodes: tuple[CommNode, ...], comm: Communication, rank: int, target: str) -> list[WrittenComm]:
    """One ``WrittenComm`` a node; nodes that are equal but for what is not written (``seq``, ``uneven``) share one."""
    seen: dict[tuple[object, ...], WrittenComm] = {}
    out = []
    for node in nodes:
        which = node.kind, node.recorded, node.comm_type, node.size_bytes, node.group, node.src, node.dst, node.tag
        known = seen.get(which)
        if known is None:
            known = seen[which] = written(node, comm, rank, target)
        out.append(known)
    return out


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
