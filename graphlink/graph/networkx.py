"""A graph, or a window of it, as a ``networkx.DiGraph``: for looking at it, not for work on whole graphs (25 times the time)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphlink.graph.chakra import ChakraFile, Deps
from graphlink.graph.durations import cost_ns
from graphlink.model import I32, I64, EdgeKind, Graph, NodeKind

if TYPE_CHECKING:
    import networkx as nx


def to_networkx(graph: Graph | ChakraFile, nodes: range | None = None) -> nx.DiGraph[int]:
    """Return nodes by id with ``name``, ``kind``, ``start_ns``, ``end_ns``, ``cost_ns``; edges with ``kind`` (as in the ``.et``).

    ``graph``: one of a file (``run.graph(0)``), whose nodes have the kind ``host`` or ``device``; or one just built.
    With ``nodes`` (positions, step 1), only those nodes and the edges among them. Linear in what is taken.
    """
    import networkx as nx

    size, deps = (len(graph.id), graph.data) if isinstance(graph, ChakraFile) else (len(graph.kind), graph)
    window = range(size) if nodes is None else nodes
    at = np.arange(window.start, window.stop, dtype=np.int32)
    ids, named, kinds, cost = _columns(graph, at)
    out: Any = nx.DiGraph()
    times = (graph.start_ns[at].tolist(), graph.end_ns[at].tolist(), cost.tolist())
    for i, name, kind, start, end, cost_ in zip(ids, named, kinds, *times, strict=True):
        out.add_node(i, name=name, kind=kind, start_ns=start, end_ns=end, cost_ns=cost_)
    low, high = int(deps.first[window.start]), int(deps.first[window.stop])
    target = np.repeat(at, np.diff(deps.first[window.start : window.stop + 1]))
    words = dict(enumerate(k.name.lower() for k in EdgeKind))
    edge_kind = deps.kind if isinstance(deps, Deps) else deps.edge_kind
    for s, t, kind in zip(deps.source[low:high].tolist(), target.tolist(), edge_kind[low:high].tolist(), strict=True):
        if s in window:
            out.add_edge(ids[s - window.start], ids[t - window.start], kind=words.get(kind, ""))
    return out


def _columns(graph: Graph | ChakraFile, at: I32) -> tuple[list[int], list[str], list[str], I64]:
    """Return id, name, kind and cost of the nodes ``at``."""
    names = [graph.name_of(i) for i in at.tolist()]
    if isinstance(graph, ChakraFile):
        kinds = ["host" if host else "device" for host in graph.host[at].tolist()]
        return graph.id[at].tolist(), names, kinds, graph.cost_ns[at]
    return at.tolist(), names, [NodeKind(k).name.lower() for k in graph.kind[at].tolist()], cost_ns(graph)[at]
