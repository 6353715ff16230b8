"""What side files of NCCL tell of the communication nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.annotate.nccl.records import NcclJoin, Ops
from graphlink.model import I32, I64, NOWHERE, Bool, Graph, NodeKind
from graphlink.read.nccl.records import Calls, Dump, DumpKind

# Of several side files that know a call, the first in this order tells: NCCL's own numbers before those of PyTorch.
_TELLS: Final = (DumpKind.PLUGIN, DumpKind.INSPECTOR, DumpKind.PROXY, DumpKind.FLIGHT_RECORDER)


@dataclass(frozen=True, slots=True)
class SideFiles:
    """The side files of a rank, and what joining them with its communication gave."""

    dumps: tuple[Dump, ...]
    join: NcclJoin


@dataclass(frozen=True, slots=True)
class NcclNotes:
    """One entry a communication node that a side file knows, ascending by node. ``NOWHERE``: not recorded.

    Text columns hold positions in ``strings``, entry 0 is "" (not recorded). ``wire_bytes``: what its proxies sent; of a call that only
    receives, what they received. ``has_split``: the four times, of which each ns of the node is in at most one, are known.
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
    join = files.join
    node_of = _nodes_of(graph, join.ops)
    pairs = _Pairs(files)
    known = pairs.ops[node_of[pairs.ops] != NOWHERE]
    node = node_of[known]
    order = np.argsort(node, kind="stable")
    known = known[order]
    strings: dict[str, int] = {"": 0}

    def text(words: Callable[[Dump], tuple[I32, Sequence[str]]]) -> I32:
        def codes(dump: Dump) -> I64:
            column, texts = words(dump)
            used, which = np.unique(column, return_inverse=True)
            of = [strings.setdefault(texts[k], len(strings)) if k >= 0 else 0 for k in used.tolist()]
            return np.array(of, np.int64)[which.reshape(-1)]

        return pairs.first(codes, 0)[known].astype(np.int32)

    def number(column: Callable[[Calls], I32 | I64]) -> I64:
        return pairs.first(lambda dump: column(dump.calls).astype(np.int64), NOWHERE)[known]

    split = np.full(len(node_of), NOWHERE, np.int64)
    split[join.split.op] = np.arange(len(join.split.op))
    has = split[known] != NOWHERE
    gpu, peer, wire, receive = (
        _taken(column, split[known]) for column in (join.split.gpu_ns, join.split.peer_ns, join.split.wire_ns, join.split.receive_ns)
    )
    return NcclNotes(
        node=node[order],
        seq=number(lambda calls: calls.seq),
        algorithm=text(lambda dump: (dump.calls.algorithm, dump.strings)),
        protocol=text(lambda dump: (dump.calls.protocol, dump.strings)),
        channels=number(lambda calls: calls.channels),
        wire_bytes=pairs.first(_wire_bytes, NOWHERE)[known],
        comm=text(lambda dump: (dump.calls.communicator, [c.key for c in dump.communicators])),
        has_split=has,
        gpu_wait_ns=gpu,
        peer_wait_ns=peer,
        wire_ns=wire,
        receive_ns=receive,
        strings=tuple(strings),
    )


class _Pairs:
    """The matched calls, ordered by op, then by how well their file tells."""

    def __init__(self, files: SideFiles) -> None:
        join, self._dumps = files.join, files.dumps
        tells = np.array([_TELLS.index(dump.kind) for dump in files.dumps], np.int64)
        order = np.lexsort((join.dump, tells[join.dump], join.op)) if len(join.op) else np.zeros(0, np.int64)
        self._op, self._dump, self._call = join.op[order], join.dump[order], join.call[order]
        self._count = len(join.ops.row)
        self.ops = np.unique(self._op)

    def first(self, column: Callable[[Dump], I64], absent: int) -> I64:
        """By op, of what its calls say in a column the first that is not ``absent``."""
        value = np.full(len(self._op), absent, np.int64)
        for number, dump in enumerate(self._dumps):
            mine = np.flatnonzero(self._dump == number)
            value[mine] = column(dump)[self._call[mine]]
        said = np.flatnonzero(value != absent)
        op, first = np.unique(self._op[said], return_index=True)
        out = np.full(self._count, absent, np.int64)
        out[op] = value[said[first]]
        return out


def _nodes_of(graph: Graph, ops: Ops) -> I32:
    """The node of each op, ``NOWHERE`` where the graph has none."""
    out = np.full(len(ops.row), NOWHERE, np.int32)
    for kind, mine in ((NodeKind.DEVICE_OP, ~ops.on_host), (NodeKind.HOST_COMM, ops.on_host)):
        node = np.flatnonzero(graph.kind == kind)
        of_row = np.full(max(int(graph.row[node].max(initial=-1)), int(ops.row[mine].max(initial=-1))) + 1, NOWHERE, np.int32)
        of_row[graph.row[node]] = node
        out[mine] = of_row[ops.row[mine]]
    return out


def _wire_bytes(dump: Dump) -> I64:
    """By call."""
    proxies = dump.proxies
    out = np.full(len(dump.calls.rank), NOWHERE, np.int64)
    for sends in (False, True):  # what was sent holds
        mine = (proxies.sends == sends) & (proxies.call != NOWHERE) & (proxies.bytes != NOWHERE)
        total = np.zeros(len(out), np.int64)
        np.add.at(total, proxies.call[mine], proxies.bytes[mine])
        called = np.unique(proxies.call[mine])
        out[called] = total[called]
    return out


def _taken(column: I64, at: I64) -> I64:
    """``column[at]``, 0 where ``at`` is ``NOWHERE``."""
    out = np.zeros(len(at), np.int64)
    out[at != NOWHERE] = column[at[at != NOWHERE]]
    return out
