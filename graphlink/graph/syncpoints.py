"""Sync points: the ``sync`` edges that one synchronisation call makes, and how much earlier a rank would end without
them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
import numpy as np

from graphlink.figures import figure
from graphlink.graph.critical import CriticalChain
from graphlink.graph.slack import NEVER, Slack, crossing, least_over
from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.linking.call_roles import WAITS, Role, roles
from graphlink.model import I64, NOWHERE, Linked
from graphlink.spans import Neighbours
from graphlink.tables import among, in_order, nowhere, tuples

_PARTS: Final = (NodeKind.HOST_PART, NodeKind.HOST_GAP)  # what opens where a wait ended
_ROUNDING_NS: Final = 1000  # of recordings in whole us


class SyncPoint(msgspec.Struct, frozen=True):
    """A synchronisation call as a graph has it. ``edge`` are positions in ``Graph.source``, ``target`` their first
    target.
    """

    target: int
    edge: tuple[int, ...]


class SyncPointGain(msgspec.Struct, frozen=True, kw_only=True):
    """A synchronisation call: without ``edges`` ([source, target] each) the rank would end ``gain_ns`` earlier.

    ``id`` is the first node behind the wait, ``waited_for`` the device op that the critical path came from. ``call`` is
    "" where the recording does not show which call it was.
    """

    gain_ns: int
    id: Annotated[int, figure("node")]
    name: str
    call: str
    waited_for: int
    waited_for_name: str
    edges: list[list[int]]


def sync_points(graph: Graph) -> list[SyncPoint]:
    """Group the ``sync`` edges by call, in the order of the calls.

    An edge to an operator belongs with the edges of the same source to the part that opened, on the same thread, since
    the operator before that: a call has edges to both. Edges to ``end`` are left out: they hold nothing back that ends
    later.
    """
    edges = np.flatnonzero(graph.edge_kind == EdgeKind.SYNC)
    targets = np.searchsorted(graph.first, edges, side="right") - 1
    keep = graph.kind[targets] != NodeKind.END
    edges, targets = edges[keep], targets[keep]
    points: list[tuple[int, list[int]]] = []
    opened: dict[int, dict[int, list[int]]] = {}  # by thread and source: edges of the part that opened last
    starts = np.flatnonzero(np.diff(targets, prepend=NOWHERE))
    bounds = [*starts.tolist(), len(edges)]
    is_part = among(graph.kind[targets[starts]], _PARTS).tolist()
    heads = zip(
        targets[starts].tolist(), graph.tid[targets[starts]].tolist(), is_part, bounds, bounds[1:], strict=False
    )
    edge_list, source_list = edges.tolist(), graph.source[edges].tolist()
    for target, thread, part, low, high in heads:
        since = opened.setdefault(thread, {})
        own: list[int] = []
        for edge, source in zip(edge_list[low:high], source_list[low:high], strict=True):
            (own if part else since.get(source, own)).append(edge)
        if own:
            points.append((target, own))
        if part:
            since.update(dict.fromkeys(source_list[low:high], own))
        else:
            since.clear()
    return [SyncPoint(target, tuple(members)) for target, members in points]


SyncGain = tuple[
    SyncPoint, int, int
]  # a point, what the critical path waited for there, and what its edges cost the replay, in ns


def sync_gains(graph: Graph, points: Sequence[SyncPoint], slack: Slack, path: CriticalChain) -> list[SyncGain]:
    """Find the points without which the replay is shorter, largest gain first. Exact, O(n log n).

    Every path crosses the place right before a point's first target on one edge, and all edges of the point cross it
    (their sources also precede that target). So the best path without them crosses it on the best of the others, or
    ends or begins at one of theirs. Only a point that holds back the critical path can gain anything.
    """
    of_edge = nowhere(len(graph.source), np.int32)
    for k, point in enumerate(points):
        of_edge[list(point.edge)] = k
    held = path.dependency[1:]
    held = held[of_edge[held] != NOWHERE]
    on_path = dict(tuples(of_edge[held], graph.source[held]))
    asked = np.array(sorted(on_path, key=lambda k: points[k].target), np.int64)
    place = np.array([points[k].target for k in asked.tolist()], np.int32)
    ways = crossing(graph, slack, place, past=False)
    mine = np.append(of_edge, NOWHERE)[ways.edge]
    free = mine == NOWHERE
    least = least_over(len(asked), ways.low[free], ways.high[free], ways.loss_ns[free])
    other = in_order(np.flatnonzero(~free), ways.low)
    across = tuples(ways.low[other], ways.high[other], ways.loss_ns[other], mine[other])
    best = _least_of_others(asked.tolist(), list(across))
    own = [_ending_or_beginning(graph, points[k], slack) for k in asked.tolist()]
    gains = np.minimum(np.minimum(least, best), np.array(own, np.int64))
    found = [(points[k], on_path[k], gain) for k, gain in tuples(asked, gains) if gain > 0]
    return sorted(found, key=lambda gain: (-gain[2], gain[0].target))


def _ending_or_beginning(graph: Graph, point: SyncPoint, slack: Slack) -> int:
    """Return the least loss of a path that ends at a source of the point's edges, or begins at a target."""
    edges = np.array(point.edge)
    target = np.searchsorted(graph.first, edges, side="right") - 1
    begin = slack.node_ns[target] + slack.start_ns[target]
    return int(min(slack.total_ns - slack.end_ns[graph.source[edges]].max(), begin.min()))


def _least_of_others(asked: list[int], crossing: list[tuple[int, int, int, int]]) -> I64:
    """Return for each place the least loss of the edges (low, high, loss, point; by low) across it that are not of its
    own point.
    """
    out = np.full(len(asked), NEVER, np.int64)
    heap: list[tuple[int, int, int]] = []
    coming = iter(crossing)
    ahead = next(coming, None)
    for at, point in enumerate(asked):
        while ahead is not None and ahead[0] <= at:
            heapq.heappush(heap, (ahead[2], ahead[1], ahead[3]))
            ahead = next(coming, None)
        aside = []
        while heap and (heap[0][1] <= at or heap[0][2] == point):
            entry = heapq.heappop(heap)
            if entry[1] > at:
                aside.append(entry)
        if heap:
            out[at] = heap[0][0]
        for entry in aside:
            heapq.heappush(heap, entry)
    return out


def named_gains(graph: Graph, linked: Linked, syncs: Sequence[SyncGain]) -> list[SyncPointGain]:
    """Return the gains as the file has them."""
    begin = graph.first_id

    def ends(edge: int) -> list[int]:
        return [begin + int(graph.source[edge]), begin + int(np.searchsorted(graph.first, edge, side="right")) - 1]

    return [
        SyncPointGain(
            gain_ns=gain_ns,
            id=begin + point.target,
            name=graph.name_of(point.target),
            call=call,
            waited_for=begin + source,
            waited_for_name=graph.name_of(source),
            edges=[ends(e) for e in point.edge],
        )
        for (point, source, gain_ns), call in zip(syncs, calls_of(graph, linked, syncs), strict=True)
    ]


def calls_of(graph: Graph, linked: Linked, syncs: Sequence[SyncGain]) -> list[str]:
    """Return the name of the call that makes each point: the last on its thread that may wait and began before the
    target.

    "" where there is none, where it had long returned, and where what was waited for is no CUDA work (gloo).
    """
    calls, strings = linked.trace.calls, linked.trace.strings
    waits = among(roles(calls, strings), (*WAITS, Role.EVENT_QUERY, Role.COPY_ASYNC))
    target = np.array([point.target for point, *_ in syncs], np.int64)
    began = graph.start_ns[target] + graph.epoch_ns
    inside = among(graph.kind[target], _PARTS)
    on_device = graph.kind[[source for _, source, _ in syncs]] != NodeKind.HOST_COMM if syncs else inside
    rows = np.flatnonzero(waits)
    before = Neighbours.of(calls.tid[rows], calls.start_ns[rows]).before(graph.tid[target], began + 1)
    last = np.append(rows, NOWHERE)[before]
    known = on_device & (last != NOWHERE) & (~inside | (np.append(calls.end_ns, 0)[last] >= began - _ROUNDING_NS))
    return [strings[calls.name[call]] if ok else "" for call, ok in tuples(last, known)]
