"""Columns of communication nodes from the side files of NCCL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from graphlink.graph.target import comm_nodes
from graphlink.graph_model import Column, Graph
from graphlink.model import I32, I64, NOWHERE
from graphlink.nccl.read.records import Dump
from graphlink.nccl.records import SideFiles
from graphlink.read.kinds import DumpKind

# Of several files with one op the first of these that tells something holds: NCCL's own before PyTorch's.
_ORDER: Final = (DumpKind.PLUGIN, DumpKind.INSPECTOR, DumpKind.PROXY, DumpKind.FLIGHT_RECORDER)
_TEXTS: Final = ("nccl_algorithm", "nccl_protocol", "nccl_comm")
_NUMBERS: Final = ("nccl_seq", "nccl_channels", "nccl_wire_bytes")
_TIMES: Final = {
    "nccl_gpu_wait_ns": "gpu_ns",
    "nccl_peer_wait_ns": "peer_ns",
    "nccl_wire_ns": "wire_ns",
    "nccl_receive_ns": "receive_ns",
}


def columns(graph: Graph, files: SideFiles | None) -> dict[str, Column]:
    """Return the columns of side files for the communication nodes of ``graph``: texts, then integers; nothing where a
    rank has none.

    The four times are of the ops that the join could split. O(n log n) in matched pairs, proxies and nodes.
    """
    if files is None:
        return {}
    of_op = details(files) | {name: Column.of(files.split.op, getattr(files.split, of)) for name, of in _TIMES.items()}
    node_of = comm_nodes(graph, files.ops)
    found = {}
    for name, column in of_op.items():
        node = node_of[column.node]
        found[name] = Column.of(node, column.value, node != NOWHERE, column.texts)
    return found


def details(files: SideFiles) -> dict[str, Column]:
    """Return the details that files record of matched ops, by name of the attribute, with ops in place of nodes.

    O(n log n) in pairs, linear in proxy ops.
    """
    ops = np.unique(files.op)
    strings: dict[str, int] = {"": 0}
    found = {name: np.full(len(ops), 0 if name in _TEXTS else NOWHERE, np.int64) for name in (*_TEXTS, *_NUMBERS)}

    def codes(texts: Sequence[str]) -> I32:
        return np.array([strings.setdefault(text, len(strings)) for text in texts], np.int32)

    for k, dump in sorted(enumerate(files.dumps), key=lambda one: _ORDER.index(one[1].kind), reverse=True):
        mine = files.dump == k
        call, at = files.call[mine], np.searchsorted(ops, files.op[mine])
        calls, texts = dump.calls, codes(dump.strings)
        keys = codes([*(one.key for one in dump.communicators), ""])
        recorded = {
            "nccl_algorithm": texts[calls.algorithm[call]],
            "nccl_protocol": texts[calls.protocol[call]],
            "nccl_comm": keys[calls.communicator[call]],
            "nccl_seq": calls.seq[call],
            "nccl_channels": calls.channels[call],
            "nccl_wire_bytes": _sent(dump)[call],
        }
        for name, value in recorded.items():
            known = value != (0 if name in _TEXTS else NOWHERE)
            found[name][at[known]] = value[known]
    return {
        **{name: Column.of(ops, found[name], found[name] != 0, tuple(strings)) for name in _TEXTS},
        **{name: Column.of(ops, found[name], found[name] != NOWHERE) for name in _NUMBERS},
    }


def _sent(dump: Dump) -> I64:
    """Return the bytes that the proxies of each call sent; NOWHERE where none is recorded."""
    proxies = dump.proxies
    told = proxies.sends & (proxies.call != NOWHERE) & (proxies.bytes != NOWHERE)
    total = np.full(len(dump.calls.rank), NOWHERE, np.int64)
    total[proxies.call[told]] = 0
    np.add.at(total, proxies.call[told], proxies.bytes[told])
    return total
