"""What a timeline tells of a slice beside its name and its times: the arguments that Perfetto shows for a selected slice."""

from __future__ import annotations

import numpy as np

from graphlink.graph.critical import CriticalPath, Share
from graphlink.graph.waits import WaitSlices
from graphlink.model import I64, NOWHERE, CommNode, Communication, EdgeKind, Graph, Linked, NodeKind
from graphlink.perfetto.packets import Arg, Texts
from graphlink.ranks.group_ids import GroupIds


def node_args(graph: Graph, linked: Linked, comm: Communication, ids: GroupIds, texts: Texts) -> list[Arg]:
    """Of the nodes, whose slices have their ids: those of device ops and communication. Cost: O(nodes)."""
    device = linked.trace.device
    op = np.flatnonzero(graph.kind == NodeKind.DEVICE_OP)
    row = graph.row[op]
    every = np.arange(len(graph.kind))
    args = [
        _where("correlation", op, device.correlation[row]),
        _where("bytes", op, device.bytes[row]),
        _where("start_delay_ns", every, graph.start_delay_ns),
        _where("overlap_ns", every, graph.overlap_ns),
    ]
    nodes: list[int] = []
    comms: list[CommNode] = []
    for kind, rows, of in ((NodeKind.DEVICE_OP, comm.device_row, comm.device_node), (NodeKind.HOST_COMM, comm.host_row, comm.host_node)):
        by_row = dict(zip(rows.tolist(), of, strict=True))
        found = np.flatnonzero((graph.kind == kind) & np.isin(graph.row, rows))
        nodes += found.tolist()
        comms += [by_row[r] for r in graph.row[found].tolist()]
    return [*args, *_comm_args(np.array(nodes, np.int64), comms, comm, ids, texts)]


def _where(name: str, slices: I64, value: I64) -> Arg:
    """An argument where it is not 0."""
    there = value != 0
    return Arg(name, slices[there], value[there].astype(np.int64))


def _comm_args(slices: I64, comms: list[CommNode], comm: Communication, ids: GroupIds, texts: Texts) -> list[Arg]:
    def group(one: CommNode) -> int | None:
        named = None if one.group is None else comm.groups[one.group]
        return None if named is None or named.ranks is None else ids.get(named.key)

    def known(name: str, values: list[int | None]) -> Arg:
        there = [i for i, value in enumerate(values) if value is not None]
        return Arg(name, slices[there], np.array([v for v in values if v is not None], np.int64))

    return [
        texts.arg("comm", slices, [c.recorded for c in comms], np.arange(len(comms))),
        known("comm_size", [c.size_bytes for c in comms]),
        known("group", [group(c) for c in comms]),
        known("comm_src", [c.src for c in comms]),
        known("comm_dst", [c.dst for c in comms]),
        known("comm_tag", [c.tag for c in comms]),
    ]


def wait_args(waits: WaitSlices, linked: Linked, first: int, texts: Texts) -> list[Arg]:
    """Of waits, whose slices begin at ``first``: the call that waited."""
    made = np.flatnonzero(waits.call != NOWHERE)
    codes, which = np.unique(linked.trace.calls.name[waits.call[made]], return_inverse=True)
    return [texts.arg("call", first + made, [linked.trace.strings[code] for code in codes.tolist()], which.reshape(-1))]


def path_args(critical: CriticalPath, first: int, texts: Texts) -> list[Arg]:
    """Of the critical path, whose slices begin at ``first``: what held each node back, and what its time counts as."""
    slices = first + np.arange(len(critical.node))
    held = np.flatnonzero(critical.edge != NOWHERE)
    kinds = [k.name.lower() for k in EdgeKind]
    return [
        texts.arg("held_by", slices[held], kinds, critical.edge[held]),
        Arg("held_from", slices[held], critical.node[held - 1].astype(np.int64)),
        texts.arg("share", slices, [s.name.lower() for s in Share], critical.share),
    ]
