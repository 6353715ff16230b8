"""Communication of several ranks that waits for itself in a circle: it hangs whatever takes how long.

A collective ends when all its members have begun, a RECV when its SEND has ended; a SEND waits for nobody (ASTRA-sim's are eager). So
dependencies within the ranks, collectives as one node each and an edge from each SEND to its RECV must have an order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.astra.findings import Findings
from graphlink.astra.groups import Groups
from graphlink.depend.edges import cycle, topological
from graphlink.graph.chakra import NO_GROUP, ChakraFile
from graphlink.graph.order import Edges, Reach
from graphlink.model import I32, I64, NOWHERE, Bool

STEPS_SHOWN: Final = 8  # of a circle
_MOST_PARENTS: Final = 16  # of a point that are looked at to leave an implied one out
_AFTER, _SEND, _MEETS = "after", "send", "meets"

Key = tuple[int, ...]  # which meeting or message: (type, group, turn) or (type, source, target, tag, size, turn)


@dataclass(frozen=True, slots=True)
class Ordered:
    """A rank's graph without cycles: ``order`` is one in which ``edges`` (CSR by target) run forward; ``reach`` by data_deps alone."""

    edges: Edges
    order: I64
    reach: Reach


@dataclass(frozen=True, slots=True)
class Waits:
    """What must have ended before what, of one rank's communication: points and edges between them, the other nodes taken out.

    A point is a communication node that is surely the one of its ``key`` (else None), or a set of points that others wait for.
    """

    rank: int
    keys: tuple[Key | None, ...]
    told: tuple[str, ...]  # which node, "" for a set
    id: tuple[int, ...]  # NOWHERE for a set
    source: I64
    target: I64


def waits_of(graph: ChakraFile, rank: int, ordered: Ordered, groups: Groups | None) -> Waits:
    """The points of one rank. Linear in nodes and edges, beside what ``Reach`` takes; never more points and edges than the graph has.

    A BROADCAST does not couple ranks in ASTRA-sim. Of nodes that could start in another order (of one group; of one source, target, tag
    and size) none is taken: which of them meet is a matter of timing.
    """
    n = len(graph.id)
    keys = _keys(graph, rank, ordered, groups)
    marked = np.zeros(n, np.bool_)
    marked[list(keys)] = True
    node, parents = _contracted(ordered, marked.tolist())
    target = np.repeat(np.arange(len(parents)), [len(p) for p in parents])
    return Waits(
        rank=rank,
        keys=tuple(keys.get(i) for i in node),
        told=tuple("" if i == NOWHERE else f'rank {rank} node {graph.id[i]} "{graph.name_of(i)[:40]}"' for i in node),
        id=tuple(NOWHERE if i == NOWHERE else int(graph.id[i]) for i in node),
        source=np.array([s for p in parents for s in p], np.int64),
        target=target.astype(np.int64),
    )


def _keys(graph: ChakraFile, rank: int, ordered: Ordered, groups: Groups | None) -> dict[int, Key]:
    place = np.empty(len(graph.id), np.int64)
    place[ordered.order] = np.arange(len(graph.id))
    ends = {
        pb.COMM_COLL_NODE: (graph.group,),
        pb.COMM_SEND_NODE: (np.full(len(place), rank), graph.comm_dst, graph.comm_tag, graph.comm_size),
        pb.COMM_RECV_NODE: (graph.comm_src, np.full(len(place), rank), graph.comm_tag, graph.comm_size),
    }
    out: dict[int, Key] = {}
    for kind, columns in ends.items():
        nodes = np.flatnonzero((graph.type == kind) & ~graph.host)
        nodes = nodes[np.lexsort((place[nodes], *(c[nodes] for c in reversed(columns))))]
        if not len(nodes):
            continue
        same = np.ones(len(nodes) - 1, np.bool_)
        for c in columns:
            same &= c[nodes[1:]] == c[nodes[:-1]]
        row = np.concatenate([[0], np.cumsum(~same)])
        pair = np.flatnonzero(same)
        sure = np.ones(int(row[-1]) + 1, np.bool_)
        sure[row[pair[~starts_first(graph, ordered, nodes[pair], nodes[pair + 1])]]] = False
        turn = np.arange(len(nodes)) - np.searchsorted(row, row)
        for i, node in enumerate(nodes.tolist()):
            if sure[row[i]] and (kind != pb.COMM_COLL_NODE or _couples(graph, node, rank, groups)):
                out[node] = (kind, *(int(c[node]) for c in columns), int(turn[i]))
    return out


def starts_first(graph: ChakraFile, ordered: Ordered, before: I64, after: I64 | I32, *, deeper: bool = True) -> Bool:
    """Whether ``before`` surely starts first: ``after`` depends on it, or has the higher id and is not ready sooner.

    It is not if it depends on all that ``before`` depends on; or (``deeper``) on a host node that starts after that: hosts run one by one.
    """
    first, source, host = ordered.edges.first, ordered.edges.source, graph.host
    yes = ordered.reach(before, after).yes
    close = np.flatnonzero(~yes & (graph.id[before] < graph.id[after]))
    count = np.diff(first)[before[close]]
    pair = np.repeat(close, count)
    offset = np.arange(len(pair)) - np.repeat(np.cumsum(count) - count, count)
    needs = source[np.repeat(first[before[close]], count) + offset]
    met = ordered.reach(needs, after[pair]).yes
    if deeper:
        some = np.flatnonzero(~met & host[needs] & (first[after[pair] + 1] > first[after[pair]]))
        last = source[first[after[pair[some]] + 1] - 1]
        met[some] = host[last] & starts_first(graph, ordered, needs[some], last, deeper=False)
    later = np.ones(len(before), np.bool_)
    later[pair[~met]] = False
    yes[close] = later[close]
    return yes


def _couples(graph: ChakraFile, node: int, rank: int, groups: Groups | None) -> bool:
    group = int(graph.group[node])
    members = None if groups is None else groups.members.get(group)
    return bool(graph.comm_type[node] != pb.BROADCAST) and (group == NO_GROUP or (members is not None and rank in members))


def _contracted(ordered: Ordered, marked: list[bool]) -> tuple[list[int], list[tuple[int, ...]]]:
    """Points: the marked node of each (NOWHERE: a set), and the points that it waits for.

    Every node has the point that stands for all marked nodes before it; equal sets are one point. A point that another one of a set
    waits for itself is left out of the set.
    """
    first, source = ordered.edges.first.tolist(), ordered.edges.source.tolist()
    node, parents = [NOWHERE], [()]  # type: tuple[list[int], list[tuple[int, ...]]]
    point = [0] * len(marked)  # 0: nothing marked before
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
        if marked[i]:
            point[i] = len(node)
            node.append(i)
            parents.append(tuple(before))
        elif before:
            (point[i],) = before
    return node, parents


@dataclass(frozen=True, slots=True)
class _Joined:
    """The points of all ranks. ``merged``: the one point that stands for a collective; ``send``: edges from a SEND to its RECV."""

    told: list[str]
    merged: I64
    source: I64
    target: I64
    send: int  # edges from here on are messages


def judge_circles(ranks: Sequence[Waits], findings: Findings) -> set[tuple[int, int]]:
    """Finds what can never end; returns (rank, node id) of it. Linear in points and edges; those of all ranks are in memory."""
    joined = _join(ranks)
    merged = joined.merged
    source, target = merged[joined.source], merged[joined.target]
    order = topological(source, target, np.arange(len(merged)))
    if len(order) == len(merged):
        return set()
    never = np.ones(len(merged), np.bool_)
    never[order] = False
    whose = [(of.rank, i) for of in ranks for i in of.id]
    out = {whose[p] for p in np.flatnonzero(never[merged]).tolist() if whose[p][1] != NOWHERE}
    findings.add("rank-circle", len(out), [_circle(joined, cycle(source, target, order, len(merged)))])
    return out


def _join(ranks: Sequence[Waits]) -> _Joined:
    offset = np.cumsum([0, *(len(w.keys) for w in ranks)])
    merged = np.arange(offset[-1])
    meeting: dict[Key, int] = {}
    ends: dict[int, dict[Key, int]] = {pb.COMM_SEND_NODE: {}, pb.COMM_RECV_NODE: {}}
    for low, of in zip(offset.tolist(), ranks, strict=False):
        for p, key in enumerate(of.keys):
            if key is None:
                continue
            if key[0] == pb.COMM_COLL_NODE:
                merged[low + p] = meeting.setdefault(key, low + p)
            else:
                ends[key[0]][key[1:]] = low + p
    sent, received = ends[pb.COMM_SEND_NODE], ends[pb.COMM_RECV_NODE]
    both = sorted(sent.keys() & received.keys())
    source = [w.source + o for w, o in zip(ranks, offset, strict=False)]
    target = [w.target + o for w, o in zip(ranks, offset, strict=False)]
    within = sum(map(len, source))
    source.append(np.array([sent[k] for k in both], np.int64))
    target.append(np.array([received[k] for k in both], np.int64))
    return _Joined([t for w in ranks for t in w.told], merged, np.concatenate(source), np.concatenate(target), within)


def _circle(joined: _Joined, nodes: list[int]) -> str:
    """``A -word-> B``: A waits for B."""
    merged, inside = joined.merged, set(nodes)
    taken = [e for e in np.flatnonzero(np.isin(merged[joined.target], nodes)).tolist() if merged[joined.source[e]] in inside]
    edge = {(int(merged[joined.target[e]]), int(merged[joined.source[e]])): e for e in taken}
    way = [edge[a, b] for a, b in zip(nodes, nodes[1:] + nodes[:1], strict=True)]
    steps: list[tuple[str, str]] = []  # who waits, how for the next
    for came, goes in zip(way[-1:] + way[:-1], way, strict=True):
        here, on = int(joined.source[came]), int(joined.target[goes])
        if here != on:
            steps.append((joined.told[here], _MEETS))
        if joined.told[on]:
            steps.append((joined.told[on], _SEND if goes >= joined.send else _AFTER))
    begin = min(range(len(steps)), key=lambda i: (steps[i][0], steps[i][1] == _AFTER))
    steps = steps[begin:] + steps[:begin]
    shown = " ".join(f"{told} -{word}->" for told, word in steps[:STEPS_SHOWN])
    more = f" ... ({len(steps) - STEPS_SHOWN} more)" if len(steps) > STEPS_SHOWN else ""
    return f"{shown}{more} " + steps[0][0].partition(' "')[0]
