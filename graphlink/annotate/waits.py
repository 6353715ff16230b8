"""Where on its thread each wait of a graph lies. The graph says how long its ops waited in all; the cuts and the calls say when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I32, I64, NOWHERE, Bool, EdgeKind, Graph, Linked, NodeKind

_CHAINED: Final = (NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_CALL, NodeKind.HOST_GAP)
_NESTED_CALLS = 4  # a runtime call inside a call, and one more; then it is not a call that waited


@dataclass(frozen=True, slots=True)
class WaitSlices:
    """One entry a wait. ``part``: the node that opens where it ends. ``call``: the call that waited, ``NOWHERE`` where none did (gloo)."""

    part: I32
    call: I32
    start_ns: I64
    end_ns: I64


def wait_slices(graph: Graph, linked: Linked, before: I32) -> WaitSlices:
    """Times since the epoch of the graph. ``before``: the node before each one on its thread, or ``NOWHERE``. Cost: O(n log n).

    A part or a gap that a device op, or a host communication, releases by a ``sync`` edge opens where such a wait ended. A wait in a
    call began with the call; one outside any call with the communication, or where the last op before it began or ended.
    """
    part = np.flatnonzero(_released(graph) & np.isin(graph.kind, (NodeKind.HOST_PART, NodeKind.HOST_GAP)))
    part = part[np.lexsort((part, graph.tid[part]))]
    end_ns = graph.start_ns[part]
    call = _calls(graph, linked, part)
    made = call != NOWHERE
    start_ns = np.where(made, linked.trace.calls.start_ns[call] - graph.epoch_ns if len(linked.trace.calls.start_ns) else 0, 0)
    start_ns[~made] = np.maximum(_communication(graph, part[~made]), _mark(graph, linked, part[~made]))
    previous = before[part]
    known = previous != NOWHERE
    start_ns[known] = np.maximum(start_ns[known], graph.start_ns[previous[known]])
    again = np.flatnonzero(graph.tid[part][1:] == graph.tid[part][:-1]) + 1  # waits do not overlap
    start_ns[again] = np.maximum(start_ns[again], end_ns[again - 1])
    real = start_ns < end_ns
    return WaitSlices(part[real].astype(np.int32), call[real], start_ns[real], end_ns[real])


def before_on_thread(graph: Graph) -> I32:
    """The node before each one on its thread, ``NOWHERE`` for the first and for nodes beside the chain of a thread."""
    node = np.flatnonzero(np.isin(graph.kind, _CHAINED))
    order = node[np.lexsort((node, graph.tid[node]))]
    out = np.full(len(graph.kind), NOWHERE, np.int32)
    same = graph.tid[order][1:] == graph.tid[order][:-1]
    out[order[1:][same]] = order[:-1][same]
    return out


def _released(graph: Graph) -> Bool:
    count = np.concatenate([[0], np.cumsum(graph.edge_kind == EdgeKind.SYNC)])
    out: Bool = count[graph.first[1:]] > count[graph.first[:-1]]
    return out


def _calls(graph: Graph, linked: Linked, part: I64) -> I32:
    """The call in which each part opens or ends, the innermost."""
    calls = linked.trace.calls
    out = np.full(len(part), NOWHERE, np.int32)
    if not len(calls.start_ns):
        return out
    order = np.lexsort((calls.start_ns, calls.tid))
    at = graph.start_ns[part] + graph.epoch_ns
    tid = graph.tid[part]
    # Threads one after the other on one axis, so that one search serves all of them.
    tids = np.unique(calls.tid)
    low = min(int(calls.start_ns.min()), int(at.min(initial=calls.start_ns[0])))
    span = max(int(calls.start_ns.max()), int(at.max(initial=0))) - low + 1
    axis = np.searchsorted(tids, calls.tid[order]) * span + calls.start_ns[order] - low
    place = np.searchsorted(axis, np.searchsorted(tids, tid) * span + at - low, side="left") - 1
    for back in range(_NESTED_CALLS):
        candidate = order[np.maximum(place - back, 0)]
        fits = (place >= back) & (calls.tid[candidate] == tid) & (calls.end_ns[candidate] >= at) & (calls.start_ns[candidate] < at)
        out = np.where((out == NOWHERE) & fits, candidate, out).astype(np.int32)
    return out


def _communication(graph: Graph, part: I64) -> I64:
    """When the host communication began that each part follows: the last that it has a ``sync`` edge from."""
    index = np.full(len(graph.kind), NOWHERE, np.int64)
    index[part] = np.arange(len(part))
    target = np.repeat(index, np.diff(graph.first))
    edge = np.flatnonzero((target != NOWHERE) & (graph.edge_kind == EdgeKind.SYNC))
    out = np.zeros(len(part), np.int64)
    np.maximum.at(out, target[edge], graph.start_ns[graph.source[edge]])
    return out


def _mark(graph: Graph, linked: Linked, part: I64) -> I64:
    """When the last op or call before each part began or ended on its thread; ops as recorded, as a graph may be folded."""
    rows = linked.trace.host
    row, call = np.flatnonzero(~linked.crossing), np.flatnonzero(graph.kind == NodeKind.HOST_CALL)
    tid = np.concatenate([rows.tid[row], graph.tid[call]])
    if not len(tid) or not len(part):
        return np.zeros(len(part), np.int64)
    tids = np.unique(tid)
    start_ns = np.concatenate([rows.start_ns[row] - graph.epoch_ns, graph.start_ns[call]])
    end_ns = np.concatenate([rows.end_ns[row] - graph.epoch_ns, graph.end_ns[call]])
    span = int(max(end_ns.max(), graph.end_ns.max())) + 1
    lane = np.searchsorted(tids, tid) * span
    marks = np.sort(np.concatenate([lane + start_ns, lane + end_ns]))
    first = np.searchsorted(tids, graph.tid[part]) * span
    found = np.searchsorted(marks, first + graph.start_ns[part], side="left") - 1
    out: I64 = np.where(found >= 0, np.maximum(marks[found] - first, 0), 0)
    return out
