"""Folds host nodes that neither launch, wait, hand over nor begin a thread into the ones that do: ``--host launches``.

Only pure chains are folded: nodes of one thread of which each follows the one before alone, and is alone in following
it. However the time of such a chain is spread over its nodes, what comes before begins and what comes after ends at the
same time, whatever else costs more or less. So a replay and every what-if are those of the full graph, to the ns.

A machine with one CPU slot starts a node later where another one has the slot: an asynchronous row (host-side
communication) stands ready together with the node of its thread that follows the place where it began. That node
therefore stays as short as it was.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from graphlink.choices import FOLDED
from graphlink.depend.edges import Edges
from graphlink.graph_model import CHAINED, EdgeKind, Graph, NodeKind, NodeRows
from graphlink.model import I64, NOWHERE, Bool
from graphlink.tables import (
    among,
    begins,
    in_order,
    least,
    marked,
    numbered_values,
    places,
    skipped,
    spread,
    sums,
    take,
    values_at,
)

NAMES: Final = (
    "host nodes are folded (--host launches): the name of a host op stands for all that was folded into "
    "it; "
    "--host full shows each op"
)


def fold(graph: Graph) -> Graph:
    """Return the same graph with fewer host nodes. Cost: O(n log n).

    Kept are ops that called what runs on a device, that waited, that hand over to another thread, that begin one or
    that a ``sync`` or ``thread`` edge ends at; of a chain without any of them the first op. Gaps stay gaps: their time
    is never an op's. A kept node carries the time of what was folded into it (``duration_ns``, ``self_ns``,
    ``wait_ns``; ``wake_ns`` stands at kept nodes only) and starts where that time does. Its caller, and that of a
    device op, is the nearest ancestor that is kept.
    """
    edges = Edges(graph.source.astype(np.int64), graph.target, graph.edge_kind, graph.found_by)
    node, run_of = _chain(graph, edges)
    into = _into(graph, node, run_of[node], _must_stay(graph, edges, run_of), _beside_async(graph, edges))
    return _folded(graph, edges, into)


def _chain(graph: Graph, edges: Edges) -> tuple[I64, I64]:
    """Return (host nodes thread by thread in their order, of each node of the graph its run): nodes with one number are
    a pure chain.
    """
    n = len(graph.kind)
    chained = among(graph.kind, CHAINED)
    alone = (np.bincount(edges.source, minlength=n)[edges.source] == 1) & (
        np.bincount(edges.target, minlength=n)[edges.target] == 1
    )
    pure = alone & (edges.kind == EdgeKind.HOST) & chained[edges.source] & chained[edges.target]
    before = spread(n, edges.target[pure], edges.source[pure])
    node = in_order(np.flatnonzero(chained), graph.tid)
    run = np.cumsum(before[node] != np.append(NOWHERE, node[:-1]), dtype=np.int64)
    return node, spread(n, node, run)


def _must_stay(graph: Graph, edges: Edges, run_of: I64) -> Bool:
    n = len(graph.kind)
    host_edge, to_end = edges.kind == EdgeKind.HOST, graph.kind[edges.target] == NodeKind.END
    stay: Bool = graph.wait_ns > 0
    stay |= graph.kind == NodeKind.HOST_GAP
    stay |= np.bincount(edges.target, minlength=n) == 0
    stay[edges.target[~host_edge]] = True
    stay[edges.source[(edges.kind == EdgeKind.THREAD) & ~to_end]] = True
    launch = edges.kind == EdgeKind.LAUNCH
    source, caller = edges.source[launch], graph.caller[edges.target[launch]]
    stay[caller[caller != NOWHERE]] = True
    elsewhere = (caller == NOWHERE) | (run_of[caller] != run_of[source])
    stay[source[elsewhere]] = True
    return stay


def _beside_async(graph: Graph, edges: Edges) -> Bool:
    """Mark the nodes that follow the node before at the place where an asynchronous row attaches."""
    n = len(graph.kind)
    host = edges.kind == EdgeKind.HOST
    first = marked(n, edges.source[host & (graph.kind[edges.target] == NodeKind.HOST_ASYNC)])
    return marked(n, edges.target[host & first[edges.source]])


def _into(graph: Graph, node: I64, run: I64, stay: Bool, alone: Bool) -> I64:
    """Find for each node the one that carries its time: itself (``alone``: only its own), or a kept one of its run with
    no gap in between."""
    into = np.arange(len(graph.kind))
    n = len(node)
    if not n:
        return into
    apart = (graph.kind[node] == NodeKind.HOST_GAP) | alone[node]
    stretch = np.cumsum(begins(run) | apart | np.append(False, apart[:-1])) - 1
    kept = stay[node]
    at = np.arange(n)
    empty = np.bincount(stretch, kept) == 0
    # whole ops rather than parts; a part alone stays where nothing else is
    is_op = graph.kind[node] == NodeKind.HOST_OP
    best = least(len(empty), stretch, np.where(is_op, at, at + n), 2 * n)
    kept[best[empty] % n] = True
    following = np.minimum.accumulate(np.where(kept, at, n - 1)[::-1])[::-1]
    before = np.maximum.accumulate(np.where(kept, at, 0))
    into[node] = node[np.where(kept[following] & (stretch[following] == stretch), following, before)]
    return into


def _folded(graph: Graph, edges: Edges, into: I64) -> Graph:
    n = len(graph.kind)
    lowest = least(n, into, np.arange(n), n)
    kept = np.flatnonzero(into == np.arange(n))
    order = kept[np.argsort(lowest[kept])]
    new = places(order, n)
    source, target = new[into[edges.source]], new[into[edges.target]]
    outside = source != target
    joined = Edges.join([take(Edges(source, target, edges.kind, edges.found_by), outside)])

    def summed(column: I64) -> I64:
        return sums(n, into, column)[order]

    kept = skipped(graph.caller, new == NOWHERE)
    end_ns = graph.end_ns.copy()
    np.maximum.at(end_ns, into, graph.start_ns + np.where(into == np.arange(n), 0, graph.duration_ns))
    used, name = numbered_values(graph.name[order])
    return Graph(
        metadata=replace(graph.metadata, host=FOLDED if len(order) < n else None),
        strings=tuple(graph.strings[k] for k in used.tolist()),
        name=name.astype(np.int32),
        type=graph.type[order],
        host=graph.host[order],
        start_ns=graph.start_ns[lowest[order]],
        end_ns=end_ns[order],
        duration_ns=summed(graph.duration_ns),
        self_ns=summed(graph.self_ns),
        wait_ns=summed(graph.wait_ns),
        wake_ns=graph.wake_ns[order],
        start_delay_ns=graph.start_delay_ns[order],
        launch_latency_ns=graph.launch_latency_ns[order],
        overlap_ns=graph.overlap_ns[order],
        tid=graph.tid[order],
        device=graph.device[order],
        stream=graph.stream[order],
        caller=values_at(new, values_at(kept, graph.caller)).astype(np.int32)[order],
        first=np.searchsorted(joined.target, np.arange(len(order) + 1)).astype(np.int64),
        source=joined.source.astype(np.int32),
        edge_kind=joined.kind,
        rows=NodeRows(
            kind=graph.kind[order],
            row=graph.row[order],
            found_by=joined.found_by,
            sync_calls=graph.sync_calls.renumbered(new),
            linked=graph.linked,
        ),
    )
