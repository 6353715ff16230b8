"""The communication of one rank: when it ran, with whom, which one of its group it was, and what NCCL's own records tell of it.

A call that receives waited until NCCL's proxies had the first data from any peer; one that only sends, until a peer first took some. What
comes after may hold more waiting (a ring goes on when its slowest member does): no transfer is taken for a wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I32, I64, NOWHERE, CommKind, CommNode, Communication, DeviceKind, Linked
from graphlink.nccl.read.records import Dump, State
from graphlink.nccl.records import SideFiles
from graphlink.pipeline.grouped import codes, counted
from graphlink.pipeline.records import NO_TIME, Exchanges, Witness

_LATEST: Final = np.iinfo(np.int64).max
_WORDS: Final = ("waiting for the GPU", "waiting for the peer", "on the wire", "waiting for data")


@dataclass(frozen=True, slots=True)
class RankExchanges:
    """The exchanges of a rank. ``of_device``, ``of_host``: that of each device row and host row, ``NOWHERE`` for what is none."""

    exchanges: Exchanges
    of_device: I32
    of_host: I32


def exchanges(linked: Linked, comm: Communication) -> RankExchanges:
    """Return all communication of a rank, sorted by start. O(n log n).

    The ordinal counts the collectives of a group, and the sends to, or receives from, a peer with the same tag, in that order.
    """
    device, host = linked.trace.device, linked.trace.host
    kernels = np.flatnonzero(device.kind[comm.device_row] == DeviceKind.KERNEL)
    rows = comm.device_row[kernels]
    start = np.concatenate([device.start_ns[rows], host.start_ns[comm.host_row]])
    end = np.concatenate([device.end_ns[rows], host.end_ns[comm.host_row]])
    nodes = [*(comm.device_node[k] for k in kernels.tolist()), *comm.host_node]
    order = np.lexsort((end, start))
    nodes = [nodes[k] for k in order.tolist()]
    names = {name: k for k, name in enumerate(sorted({node.recorded for node in nodes}))}
    place = np.argsort(order).astype(np.int32)
    of_device, of_host = np.full(len(device.start_ns), NOWHERE, np.int32), np.full(len(host.start_ns), NOWHERE, np.int32)
    of_device[rows], of_host[comm.host_row] = place[: len(rows)], place[len(rows) :]
    kind = np.array([node.kind for node in nodes], np.int64)
    peer, tag = np.array([_peer(node) for node in nodes], np.int64), np.array([node.tag or 0 for node in nodes], np.int64)
    group = np.array([NOWHERE if node.group is None else node.group for node in nodes], np.int64)
    collective = kind == CommKind.COLLECTIVE
    ordinal = counted(codes(kind, group, np.where(collective, 0, peer), np.where(collective, 0, tag)))
    ordinal[(kind == CommKind.UNKNOWN) | (collective & (group == NOWHERE))] = NOWHERE
    found = Exchanges(
        start_ns=start[order],
        end_ns=end[order],
        kind=kind.astype(np.uint8),
        peer=peer,
        tag=tag,
        bytes=np.array([node.size_bytes for node in nodes], np.int64),
        group=group.astype(np.int32),
        ordinal=ordinal,
        name=np.array([names[node.recorded] for node in nodes], np.int32),
        groups=tuple((g.name, tuple(g.ranks or ())) for g in comm.groups),
        names=tuple(names),
        on_host=order >= len(rows),
    )
    return RankExchanges(found, of_device, of_host)


def _peer(node: CommNode) -> int:
    peer = node.dst if node.kind == CommKind.SEND else node.src if node.kind == CommKind.RECV else None
    return NOWHERE if peer is None else peer


def witness(files: SideFiles, found: RankExchanges) -> Witness:
    """Return what NCCL says of the exchanges whose calls have proxy steps. O(n log n) in steps."""
    split = files.split
    came = np.full(len(files.ops.row), NO_TIME)
    for number, (dump, clock) in enumerate(zip(files.dumps, files.clocks, strict=True)):
        if clock.offset_ns is None:
            continue
        mine = np.flatnonzero(files.dump == number)
        op, at = files.op[mine], _came_ns(dump)[files.call[mine]]
        came[op[at != NO_TIME]] = at[at != NO_TIME] + clock.offset_ns
    row, on_host = files.ops.row[split.op], files.ops.on_host[split.op]
    exchange = np.full(len(row), NOWHERE, np.int64)
    exchange[on_host] = found.of_host[row[on_host]]
    exchange[~on_host] = found.of_device[row[~on_host]]
    kept = np.flatnonzero(exchange != NOWHERE)
    kept = kept[np.argsort(exchange[kept], kind="stable")]
    columns = (split.gpu_ns, split.peer_ns, split.wire_ns, split.receive_ns)
    words = tuple(_in_words(times) for times in zip(*(c[kept].tolist() for c in columns), strict=True))
    return Witness(exchange[kept], came[split.op[kept]], words)


def _came_ns(dump: Dump) -> I64:
    """Return by call, on the dump's clock, the first end of a step that waited for data, else of one that waited for its peer."""
    steps = dump.steps
    call = dump.proxies.call[steps.proxy]
    out = np.full(len(dump.calls.rank), NO_TIME)
    for state in (State.PEER, State.RECEIVE):
        mine = np.flatnonzero((steps.state == state) & (call != NOWHERE) & (steps.end_ns != 0))
        first = np.full(len(out), _LATEST)
        np.minimum.at(first, call[mine], steps.end_ns[mine])
        out[call[mine]] = first[call[mine]]
    return out


def _in_words(times_ns: tuple[int, ...]) -> str:
    """Name those that are not 0, the longest first."""
    some = sorted(((ns, what) for ns, what in zip(times_ns, _WORDS, strict=True) if ns), key=lambda part: -part[0])
    return "NCCL: " + ", ".join(f"{ns / 1e6:,.3f} ms {what}" for ns, what in some) if some else ""
