"""What side files of NCCL add to communication nodes of a ``.et``; nothing where a rank has none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from graphlink.graph import attributes as attr
from graphlink.model import I64, NOWHERE, Bool
from graphlink.nccl.noted import NcclNotes

_NUMBERS: Final = {"nccl_seq": "seq", "nccl_channels": "channels", "nccl_wire_bytes": "wire_bytes"}
_TIMES: Final = {
    "nccl_gpu_wait_ns": "gpu_wait_ns",
    "nccl_peer_wait_ns": "peer_wait_ns",
    "nccl_wire_ns": "wire_ns",
    "nccl_receive_ns": "receive_ns",
}
_TEXTS: Final = {"nccl_algorithm": "algorithm", "nccl_protocol": "protocol", "nccl_comm": "comm"}


def int_columns(notes: NcclNotes | None, nodes: int) -> Iterable[attr.IntColumn]:
    """For a graph of so many ``nodes``."""
    if notes is None:
        return

    def column(name: str, value: I64, where: Bool) -> attr.IntColumn:
        whole, there = np.zeros(nodes, np.int64), np.zeros(nodes, np.bool_)
        whole[notes.node], there[notes.node] = value, where
        return attr.IntColumn(name, whole, there)

    for name, field in _NUMBERS.items():
        value = getattr(notes, field)
        yield column(name, value, value != NOWHERE)
    for name, field in _TIMES.items():
        yield column(name, getattr(notes, field), notes.has_split)


def text_attributes(notes: NcclNotes | None) -> dict[int, bytes]:
    """By node."""
    if notes is None:
        return {}
    columns = [getattr(notes, field) for field in _TEXTS.values()]
    used, which = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    encoded = [
        b"".join(attr.text(name, notes.strings[code]) for name, code in zip(_TEXTS, codes, strict=True) if code) for codes in used.tolist()
    ]
    return {node: encoded[k] for node, k in zip(notes.node.tolist(), which.reshape(-1).tolist(), strict=True)}
