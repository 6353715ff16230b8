"""The names of the nodes of a graph, as numbers that are equal where the names are, and which rows of the ET they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I32, I64, Graph, Linked, NodeKind
from graphlink.tables import marked, spread

_FIXED: Final = {NodeKind.HOST_GAP: "host gap", NodeKind.DEVICE_DELAY: "device delay", NodeKind.END: "end"}
_PART: Final = " (cont.)"
_HOST: Final = (NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_ASYNC, NodeKind.HOST_COMM)


def et_rows(graph: Graph, linked: Linked) -> I64:
    """Return the ET row of each node: of a host op itself, of a part its op's; ``NOWHERE`` else."""
    of_row = np.isin(graph.kind, (NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_ASYNC))
    return spread(len(graph.kind), of_row, linked.match.et[graph.row[of_row]])


@dataclass(frozen=True, slots=True)
class Names:
    """``code`` (one entry per node) is a position in ``texts``, whose entries differ: nodes with equal codes have equal names."""

    code: I32
    texts: tuple[str, ...]

    def of(self, node: int) -> str:
        return self.texts[int(self.code[node])]


def names(graph: Graph, linked: Linked) -> Names:
    """Return the names that the nodes have in the ``.et``. Linear."""
    trace, kind, row = linked.trace, graph.kind, graph.row
    raw = np.zeros(len(kind), np.int64)
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
        text = strings[k >> 1] + _PART if k & 1 else strings[k >> 1]
        code[k] = texts.setdefault(text, len(texts))
    return Names(code[raw], tuple(texts))
