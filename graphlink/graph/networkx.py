"""A graph, or a window of it, as a ``networkx.DiGraph``: for looking at it, not for work on whole graphs (25 times the
time).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.tables import tuples

if TYPE_CHECKING:
    import networkx as nx


def to_networkx(graph: Graph, nodes: range | None = None) -> nx.DiGraph[int]:
    """Return nodes by id with ``name``, ``kind``, ``start_ns``, ``end_ns``, ``cost_ns``; edges with ``kind`` (as in the
    ``.et``).

    Nodes of a graph that was read from a file (``run.graph(0)``) have the kind ``host`` or ``device``.
    With ``nodes`` (positions, step 1), only those nodes and the edges among them. Linear in what is taken.
    """
    import networkx as nx

    window = range(len(graph.name)) if nodes is None else nodes
    at = np.arange(window.start, window.stop, dtype=np.int32)
    ids, of_node = (
        graph.id[at].tolist(),
        np.where(graph.host, "host", "device") if graph.rows is None else _KINDS[graph.kind],
    )
    out: Any = nx.DiGraph()
    times = (graph.start_ns[at].tolist(), graph.end_ns[at].tolist(), graph.cost_ns[at].tolist())
    for i, n, kind, start, end, cost in zip(ids, at.tolist(), of_node[at].tolist(), *times, strict=True):
        out.add_node(i, name=graph.name_of(n), kind=kind, start_ns=start, end_ns=end, cost_ns=cost)
    edges = slice(int(graph.first[window.start]), int(graph.first[window.stop]))
    target = np.repeat(at, np.diff(graph.first[window.start : window.stop + 1]))
    words = dict(enumerate(k.name.lower() for k in EdgeKind))
    for s, t, kind in tuples(graph.source[edges], target, graph.edge_kind[edges]):
        if s in window:
            out.add_edge(ids[s - window.start], ids[t - window.start], kind=words.get(kind, ""))
    return out


_KINDS: Final = np.array([k.name.lower() for k in NodeKind])
