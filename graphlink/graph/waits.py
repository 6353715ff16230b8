"""The place of each wait of a graph on its thread. The graph says how long its ops waited in all; the cuts and the
calls say when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.graph_model import CHAINED, EdgeKind, Graph, NodeKind
from graphlink.model import I32, I64, NOWHERE, Linked, TimedRows
from graphlink.spans import Axis
from graphlink.tables import among, marked, nowhere, spread, successive, values_at

ON_DEVICE: Final = (EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.COLLECTIVE)  # edges between device ops
_NESTED_CALLS: Final = 4  # a runtime call inside a call, and one more; then it is not a call that waited


@dataclass(frozen=True, slots=True)
class WaitSlices(TimedRows):
    """One entry per wait. ``part``: the node that opens where it ends. ``call``: the call that waited, ``NOWHERE``
    where none did (gloo)."""

    part: I32
    call: I32


def wait_slices(graph: Graph, linked: Linked, before: I32) -> WaitSlices:
    """Return the waits, with times since the epoch of the graph. ``before``: the node before each one on its thread, or
    ``NOWHERE``. Cost: O(n log n).

    A node carries one stretch of its thread, its own time first and then what it waited: every wait ends in a cut. So a
    wait lasts from where the node before has spent its duration to where the next one opens, and waits add up to
    ``wait_ns``, whoever was waited for. Only before a node that another thread woke the time was sleep.
    """
    woken = marked(len(graph.kind), graph.target[graph.edge_kind == EdgeKind.THREAD])
    part = np.flatnonzero((before != NOWHERE) & ~woken)
    part = part[np.lexsort((part, graph.tid[part]))]
    previous = before[part]
    start_ns, end_ns = graph.start_ns[previous] + graph.duration_ns[previous], graph.start_ns[part]
    waited = start_ns < end_ns
    part, start_ns, end_ns = part[waited], start_ns[waited], end_ns[waited]
    return WaitSlices(start_ns, end_ns, part.astype(np.int32), _calls(graph, linked, part))


def before_on_thread(graph: Graph) -> I32:
    """Return the node before each one on its thread, ``NOWHERE`` for the first and for nodes outside the chain of a
    thread.
    """
    node = np.flatnonzero(among(graph.kind, CHAINED))
    order = node[np.lexsort((node, graph.tid[node]))]
    before, after = successive(order, graph.tid)
    return spread(len(graph.kind), after, before.astype(np.int32))


def last_source(graph: Graph, node: I32 | I64, kinds: Sequence[EdgeKind], place: I64 | None = None) -> I64:
    """Return, for each node, the source of its edges of ``kinds`` that ended last, ``NOWHERE`` without any. O(n log n)
    in edges. ``place``: of each node in what is returned, where an op and the delay before it are one; no delay is then
    a source.
    """
    delays = np.zeros(len(graph.kind), np.bool_) if place is None else graph.kind == NodeKind.DEVICE_DELAY
    place = np.arange(len(node)) if place is None else place
    target = spread(len(graph.kind), node, place)[graph.target]
    edge = np.flatnonzero((target != NOWHERE) & among(graph.edge_kind, kinds) & ~delays[graph.source])
    order = edge[np.lexsort((graph.end_ns[graph.source[edge]], target[edge]))]
    source = graph.source[order].astype(np.int64)
    return spread(int(place.max(initial=-1)) + 1, target[order], source)  # of several the last holds


def waited_for(graph: Graph, waits: WaitSlices) -> tuple[I64, I64, I64]:
    """Return for each wait the node that was waited for last, and its row: of the host where it is communication there,
    else of a device; ``NOWHERE`` for what is none.
    """
    source = last_source(graph, waits.part, (EdgeKind.SYNC,))
    row, on_host = values_at(graph.row, source), values_at(graph.kind, source) == NodeKind.HOST_COMM
    return source, np.where(on_host, row, NOWHERE), np.where(on_host, NOWHERE, row)


def _calls(graph: Graph, linked: Linked, part: I64) -> I32:
    """Return the call in which each part opens or ends, the innermost."""
    calls = linked.trace.calls
    out = nowhere(len(part), np.int32)
    if not len(calls.start_ns):
        return out
    order = np.lexsort((calls.start_ns, calls.tid))
    at = graph.start_ns[part] + graph.epoch_ns
    tid = graph.tid[part]
    axis = Axis.over(calls.tid, calls.start_ns, at)
    place = np.searchsorted(axis.of(calls.tid[order], calls.start_ns[order]), axis.of(tid, at), side="left") - 1
    for back in range(_NESTED_CALLS):
        candidate = order[np.maximum(place - back, 0)]
        fits = (
            (place >= back)
            & (calls.tid[candidate] == tid)
            & (calls.end_ns[candidate] >= at)
            & (calls.start_ns[candidate] < at)
        )
        out = np.where((out == NOWHERE) & fits, candidate, out).astype(np.int32)
    return out
