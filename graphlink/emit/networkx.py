"""A graph, or a window of it, as a ``networkx.DiGraph``: for looking at it, not for work on whole graphs (25 times the time)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphlink.annotate.names import names
from graphlink.emit.durations import cost_ns
from graphlink.model import EdgeKind, Graph, Linked, NodeKind

if TYPE_CHECKING:
    import networkx as nx


def to_networkx(graph: Graph, linked: Linked, nodes: range | None = None) -> nx.DiGraph[int]:
    """Nodes by id with ``name``, ``kind``, ``start_ns``, ``end_ns``, ``cost_ns``; edges with ``kind`` (lower case, as in the ``.et``).

    With ``nodes`` (step 1), only those nodes and the edges among them.
    """
    import networkx as nx

    window = range(len(graph.kind)) if nodes is None else nodes
    ids = np.arange(window.start, window.stop, dtype=np.int32)
    out: Any = nx.DiGraph()
    kinds = [NodeKind(k).name.lower() for k in graph.kind[ids].tolist()]
    named = names(graph, linked)
    columns = (graph.start_ns[ids].tolist(), graph.end_ns[ids].tolist(), cost_ns(graph)[ids].tolist())
    for i, code, kind, start, end, cost in zip(ids.tolist(), named.code[ids].tolist(), kinds, *columns, strict=True):
        out.add_node(i, name=named.texts[code], kind=kind, start_ns=start, end_ns=end, cost_ns=cost)
    words = [k.name.lower() for k in EdgeKind]
    for i in window:
        for e in range(int(graph.first[i]), int(graph.first[i + 1])):
            source = int(graph.source[e])
            if source in window:
                out.add_edge(source, i, kind=words[graph.edge_kind[e]])
    return out
