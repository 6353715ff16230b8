"""Communication of several ranks that waits for itself in a circle: it hangs whatever takes how long.

A collective ends when all its members have begun, a RECV when its SEND has ended; a SEND waits for nobody (ASTRA-sim's
are eager) but a collective that holds its rank's communication slot. So dependencies within the ranks, collectives as
one node each, an edge from each SEND to its RECV and one from such a collective to the SEND must have an order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.astra.check_rules import Findings
from graphlink.depend.edges import cycle, topological
from graphlink.graph.order import Reach
from graphlink.graph_model import NO_GROUP, Graph, Groups, IncomingEdges
from graphlink.model import I32, I64, NOWHERE, U64, Bool
from graphlink.tables import counted_from, in_order, marked, spread, successive

STEPS_SHOWN: Final = 8  # of a circle
_MOST_PARENTS: Final = 16  # of a point that are looked at to leave an implied one out
_AFTER, _SEND, _MEETS = "after", "send", "meets"

Key = tuple[int, ...]  # which meeting or message: (type, group, turn) or (type, source, target, tag, size, turn)


@dataclass(frozen=True, slots=True)
class Ordered:
    """A rank's graph without cycles: ``order`` is one in which ``edges`` (CSR by target) run forward; ``reach`` by
    data_deps alone.
    """

    edges: IncomingEdges
    order: I64
    reach: Reach


@dataclass(frozen=True, slots=True)
class CommOrder:
    """The order that one rank's communication must keep: points and edges between them, the other nodes taken out.

    A point is a communication node that is surely the one of its ``key`` (else None), or a set of points that others
    wait for. ``held``: (collective, SEND) of points whose SEND waits for the slot where communication is quick.
    """

    rank: int
    keys: tuple[Key | None, ...]
    told: tuple[str, ...]  # which node, "" for a set
    id: tuple[int, ...]  # NOWHERE for a set
    source: I64
    target: I64
    held: tuple[I64, I64]


def waits_of(
    graph: Graph, rank: int, ordered: Ordered, groups: Groups | None, started_ns: I64 | None = None
) -> CommOrder:
    """Reduce one rank to its points. Linear in nodes and edges, beside what ``Reach`` takes; never more points and
    edges than the graph has. ``started_ns``: when nodes start with quick communication; None: in the order of ids.

    A BROADCAST does not couple ranks in ASTRA-sim. Of nodes that could start in another order (of one group; of one
    source, target, tag and size) none is taken: which of them meet is a matter of timing.
    """
    keys = _keys(graph, rank, ordered, groups)
    known = np.array(list(keys), np.int64)
    held, send = _held_sends(graph, ordered, known)
    before, after = _last_collectives(graph, known, graph.id if started_ns is None else started_ns)
    node, parents = _contracted(ordered, marked(len(graph.id), known).tolist())
    target = np.repeat(np.arange(len(parents)), [len(p) for p in parents])
    point = spread(len(graph.id) + 1, np.array(node, np.int64), np.arange(len(node)))
    source = np.array([s for p in parents for s in p], np.int64)
    return CommOrder(
        rank=rank,
        keys=tuple(keys.get(i) for i in node),
        told=tuple("" if i == NOWHERE else f'rank {rank} node {graph.id[i]} "{graph.name_of(i)[:40]}"' for i in node),
        id=tuple(NOWHERE if i == NOWHERE else int(graph.id[i]) for i in node),
        source=np.append(source, point[held]),
        target=np.append(target, point[send]).astype(np.int64),
        held=(point[before], point[after]),
    )


def _held_sends(graph: Graph, ordered: Ordered, nodes: I64) -> tuple[I64, I64]:
    """Return (collective, SEND) of those of ``nodes`` whose SEND surely waits for the slot that the last collective
    before it holds until all its members have begun: a rank has one."""
    before, after = _last_collectives(graph, nodes, graph.id)
    sure = starts_first(graph, ordered, before, after)
    nodes = nodes[np.isin(graph.type[nodes], (pb.COMM_COLL_NODE, pb.COMM_SEND_NODE))]
    nodes = in_order(nodes, graph.id)
    collective, root = graph.type[nodes] == pb.COMM_COLL_NODE, np.diff(ordered.edges.first)[nodes] == 0
    first = np.flatnonzero(root)[:1]  # has the slot from the beginning, what has to wait for anything comes later
    late = np.flatnonzero(~collective & ~root & collective[first].any())
    return np.append(before[sure], np.repeat(nodes[first], len(late))), np.append(after[sure], nodes[late])


def _last_collectives(graph: Graph, nodes: I64, place: I64 | U64) -> tuple[I64, I64]:
    """Return (collective, SEND): the last collective of ``nodes`` before each SEND, in the order of ``place``, then
    ids.
    """
    nodes = nodes[np.isin(graph.type[nodes], (pb.COMM_COLL_NODE, pb.COMM_SEND_NODE))]
    nodes = in_order(nodes, place, graph.id)
    collective = graph.type[nodes] == pb.COMM_COLL_NODE
    last = np.maximum.accumulate(np.where(collective, np.arange(len(nodes)), NOWHERE))
    behind = np.flatnonzero(~collective & (last != NOWHERE))
    return nodes[last[behind]], nodes[behind]


def _keys(graph: Graph, rank: int, ordered: Ordered, groups: Groups | None) -> dict[int, Key]:
    place = spread(len(graph.id), ordered.order, np.arange(len(graph.id)))
    ends = {
        pb.COMM_COLL_NODE: (graph.group,),
        pb.COMM_SEND_NODE: (np.full(len(place), rank), graph.comm_dst, graph.comm_tag, graph.comm_size),
        pb.COMM_RECV_NODE: (graph.comm_src, np.full(len(place), rank), graph.comm_tag, graph.comm_size),
    }
    own = [group for group, members in (groups or {}).items() if rank in members]
    coupled = (graph.comm_type != pb.BROADCAST) & ((graph.group == NO_GROUP) | np.isin(graph.group, own))
    out: dict[int, Key] = {}
    for kind, columns in ends.items():
        nodes = np.flatnonzero((graph.type == kind) & ~graph.host)
        nodes = nodes[np.lexsort((place[nodes], *(c[nodes] for c in reversed(columns))))]
        before, after = successive(nodes, *columns)
        row = np.cumsum(~np.isin(nodes, after))  # which of those that are alike in all columns
        turn = np.arange(len(nodes)) - np.searchsorted(row, row)
        sure = ~np.isin(row, row[np.isin(nodes, before[~starts_first(graph, ordered, before, after)])])
        for i, node in enumerate(nodes.tolist()):
            if sure[i] and (kind != pb.COMM_COLL_NODE or coupled[node]):
                out[node] = (kind, *(int(c[node]) for c in columns), int(turn[i]))
    return out


def starts_first(graph: Graph, ordered: Ordered, before: I64 | I32, after: I64 | I32, *, deeper: bool = True) -> Bool:
    """Tell whether ``before`` surely starts first: ``after`` depends on it, or has the higher id and is not ready
    sooner.

    It is not if it depends on all that ``before`` depends on; or (``deeper``) on a host node that starts after that:
    hosts run one by one.
    """
    first, source, host = ordered.edges.first, ordered.edges.source, graph.host
    yes, _ = ordered.reach(before, after)
    close = np.flatnonzero(~yes & (graph.id[before] < graph.id[after]))
    count = np.diff(first)[before[close]]
    pair = np.repeat(close, count)
    needs = source[counted_from(first[before[close]], count)]
    met, _ = ordered.reach(needs, after[pair])
    if deeper:
        some = np.flatnonzero(~met & host[needs] & (first[after[pair] + 1] > first[after[pair]]))
        last = source[first[after[pair[some]] + 1] - 1]
        met[some] = host[last] & starts_first(graph, ordered, needs[some], last, deeper=False)
    yes[close] = ~marked(len(before), pair[~met])[close]
    return yes


def _contracted(ordered: Ordered, kept: list[bool]) -> tuple[list[int], list[tuple[int, ...]]]:
    """Return the points: the marked node of each (NOWHERE: a set), and the points that it waits for.

    Every node has the point that stands for all marked nodes before it; equal sets are one point. A point that another
    one of a set waits for itself is left out of the set.
    """
    first, source = ordered.edges.first.tolist(), ordered.edges.source.tolist()
    node, parents = [NOWHERE], [()]  # type: tuple[list[int], list[tuple[int, ...]]]
    point = [0] * len(kept)  # 0: nothing marked before
    sets: dict[tuple[int, ...], int] = {}
    for i in ordered.order.tolist():
        before = {point[s] for s in source[first[i] : first[i + 1]]}
        before.discard(0)
        if len(before) > 1:
            for p in tuple(before):
                if len(parents[p]) <= _MOST_PARENTS:
                    before.difference_update(parents[p])
        if len(before) > 1:
            members = tuple(sorted(before))
            if members not in sets:
                sets[members] = len(node)
                node.append(NOWHERE)
                parents.append(members)
            before = {sets[members]}
        if kept[i]:
            point[i] = len(node)
            node.append(i)
            parents.append(tuple(before))
        elif before:
            (point[i],) = before
    return node, parents


def judge_circles(ranks: Sequence[CommOrder], findings: Findings) -> set[tuple[int, int]]:
    """Find what can never end: return its (rank, node id); where there is nothing, look for what may not where
    communication is quick. Linear in points and edges; those of all ranks are in memory.
    """
    edges = [(of.source, of.target) for of in ranks]
    never = _judge_circles("rank-circle", ranks, edges, findings)
    if not never:
        edges = [(np.append(a, of.held[0]), np.append(b, of.held[1])) for (a, b), of in zip(edges, ranks, strict=True)]
        _judge_circles("slot-order", ranks, edges, findings)
    return never


def _judge_circles(
    rule: str, ranks: Sequence[CommOrder], edges: Sequence[tuple[I64, I64]], findings: Findings
) -> set[tuple[int, int]]:
    merged, messages = _met([key for of in ranks for key in of.keys])
    low = np.cumsum([0, *(len(of.keys) for of in ranks)]).tolist()
    source = np.concatenate([*(a + at for (a, _), at in zip(edges, low, strict=False)), messages[:, 0]])
    target = np.concatenate([*(b + at for (_, b), at in zip(edges, low, strict=False)), messages[:, 1]])
    before, after = merged[source], merged[target]
    order = topological(before, after, np.arange(len(merged)))
    if len(order) == len(merged):
        return set()
    never = ~marked(len(merged), order)
    whose = [(of.rank, i) for of in ranks for i in of.id]
    out = {whose[p] for p in np.flatnonzero(never[merged]).tolist() if whose[p][1] != NOWHERE}
    told = [text for of in ranks for text in of.told]
    nodes = cycle(before, after, order, len(merged))
    findings.add(rule, len(out), [_circle(told, merged, source, target, len(source) - len(messages), nodes)])
    return out


def _met(keys: Sequence[Key | None]) -> tuple[I64, I64]:
    """Return the one point that stands for each point's collective, and (SEND, RECV) of each message; shape (messages,
    2).
    """
    merged = np.arange(len(keys))
    first: dict[Key, int] = {}
    ends: dict[int, dict[Key, int]] = {pb.COMM_SEND_NODE: {}, pb.COMM_RECV_NODE: {}}
    for p, key in enumerate(keys):
        if key is not None and key[0] == pb.COMM_COLL_NODE:
            merged[p] = first.setdefault(key, p)
        elif key is not None:
            ends[key[0]][key[1:]] = p
    both = sorted(ends[pb.COMM_SEND_NODE].keys() & ends[pb.COMM_RECV_NODE].keys())
    return merged, np.array([[of_kind[key] for of_kind in ends.values()] for key in both], np.int64).reshape(-1, 2)


def _circle(told: Sequence[str], merged: I64, source: I64, target: I64, messages: int, nodes: list[int]) -> str:
    """Describe a circle as ``A -word-> B``: A waits for B. ``messages``: edges from there on run from a SEND to its
    RECV.
    """
    inside = set(nodes)
    taken = [e for e in np.flatnonzero(np.isin(merged[target], nodes)).tolist() if merged[source[e]] in inside]
    edge = {(int(merged[target[e]]), int(merged[source[e]])): e for e in taken}
    way = [edge[a, b] for a, b in zip(nodes, nodes[1:] + nodes[:1], strict=True)]
    steps: list[tuple[str, str]] = []  # who waits, how for the next
    for came, goes in zip(way[-1:] + way[:-1], way, strict=True):
        here, on = int(source[came]), int(target[goes])
        if here != on:
            steps.append((told[here], _MEETS))
        if told[on]:
            steps.append((told[on], _SEND if goes >= messages else _AFTER))
    begin = min(range(len(steps)), key=lambda i: (steps[i][0], steps[i][1] == _AFTER))
    steps = steps[begin:] + steps[:begin]
    shown = " ".join(f"{text} -{word}->" for text, word in steps[:STEPS_SHOWN])
    more = f" ... ({len(steps) - STEPS_SHOWN} more)" if len(steps) > STEPS_SHOWN else ""
    return f"{shown}{more} " + steps[0][0].partition(' "')[0]
