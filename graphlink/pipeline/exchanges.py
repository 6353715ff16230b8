"""The communication of one rank as pipeline analysis wants it: when it ran, with whom, and which one of its group it was."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from graphlink.model import I32, I64, NOWHERE, CommKind, CommNode, Communication, DeviceKind, Linked
from graphlink.pipeline.records import Exchanges


@dataclass(frozen=True, slots=True)
class Found:
    """``of_device`` and ``of_host``: the exchange of each device row and host row, ``NOWHERE`` for what is none."""

    exchanges: Exchanges
    of_device: I32
    of_host: I32


def exchanges(linked: Linked, comm: Communication) -> Found:
    """All communication of a rank, sorted by start. The ordinal counts the operations of a group, or of a pair of ranks, in that order."""
    device, host = linked.trace.device, linked.trace.host
    kernels = np.flatnonzero(device.kind[comm.device_row] == DeviceKind.KERNEL)
    rows = comm.device_row[kernels]
    start = np.concatenate([device.start_ns[rows], host.start_ns[comm.host_row]])
    end = np.concatenate([device.end_ns[rows], host.end_ns[comm.host_row]])
    nodes = [*(comm.device_node[k] for k in kernels.tolist()), *comm.host_node]
    order = np.lexsort((end, start))
    nodes = [nodes[k] for k in order.tolist()]
    names, name = np.unique([n.recorded for n in nodes], return_inverse=True) if nodes else (np.zeros(0, "U1"), np.zeros(0, np.int64))
    groups = tuple((g.name, tuple(g.ranks or ())) for g in comm.groups)
    columns = np.array([_columns(n) for n in nodes], np.int64).reshape(len(nodes), 5)
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order))
    of_device, of_host = np.full(len(device.start_ns), NOWHERE, np.int32), np.full(len(host.start_ns), NOWHERE, np.int32)
    of_device[rows] = place[: len(rows)]
    of_host[comm.host_row] = place[len(rows) :]
    found = Exchanges(
        start_ns=start[order],
        end_ns=end[order],
        kind=columns[:, 0].astype(np.uint8),
        peer=columns[:, 1],
        tag=columns[:, 2],
        bytes=columns[:, 3],
        group=columns[:, 4].astype(np.int32),
        ordinal=_ordinals(columns),
        name=name.astype(np.int32),
        groups=groups,
        names=tuple(names.tolist()),
        on_host=order >= len(rows),
    )
    return Found(found, of_device, of_host)


def _columns(node: CommNode) -> tuple[int, int, int, int, int]:
    """Kind, peer, tag, bytes, group."""
    peer = node.dst if node.kind == CommKind.SEND else node.src if node.kind == CommKind.RECV else None
    return (
        int(node.kind),
        NOWHERE if peer is None else peer,
        node.tag or 0,
        node.size_bytes,
        NOWHERE if node.group is None else node.group,
    )


def _ordinals(columns: I64) -> I64:
    """Position among the collectives of the same group; among the sends to, or receives from, the same peer with the same tag."""
    seen: Counter[tuple[int, ...]] = Counter()
    out = np.full(len(columns), NOWHERE)
    for i, (kind, peer, tag, _, group) in enumerate(columns.tolist()):
        if kind == CommKind.UNKNOWN or (kind == CommKind.COLLECTIVE and group == NOWHERE):
            continue
        key = (kind, group) if kind == CommKind.COLLECTIVE else (kind, group, peer, tag)
        out[i] = seen[key]
        seen[key] += 1
    return out
