"""The names of nodes, as numbers that are equal where the names are."""

from __future__ import annotations

from typing import Final

import numpy as np

from graphlink.graph_model import PART, NodeKind
from graphlink.model import I32, I64, U8, Trace
from graphlink.tables import marked

_FIXED: Final = {NodeKind.HOST_GAP: "host gap", NodeKind.DEVICE_DELAY: "device delay", NodeKind.END: "end"}
_HOST: Final = (NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_ASYNC, NodeKind.HOST_COMM)


def names(trace: Trace, kind: U8, row: I32) -> tuple[I32, tuple[str, ...]]:
    """Return the name of each node, by ``NodeKind`` and row as in ``Graph``, as a position among texts that differ. Linear."""
    raw: I64 = np.zeros(len(kind), np.int64)
    for kinds, column in ((_HOST, trace.host.name), ((NodeKind.HOST_CALL,), trace.calls.name), ((NodeKind.DEVICE_OP,), trace.device.name)):
        mine = np.isin(kind, kinds)
        raw[mine] = column[row[mine]]
    for k, fixed in enumerate(_FIXED):
        raw[kind == fixed] = len(trace.strings) + k
    raw = 2 * raw + (kind == NodeKind.HOST_PART)
    strings = (*trace.strings, *_FIXED.values())
    used = marked(2 * len(strings), raw)
    texts: dict[str, int] = {}
    code = np.zeros(len(used), np.int32)
    for k in np.flatnonzero(used).tolist():
        text = strings[k >> 1] + PART if k & 1 else strings[k >> 1]
        code[k] = texts.setdefault(text, len(texts))
    return code[raw], tuple(texts)
