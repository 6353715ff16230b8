"""Graphs by hand, as files in memory, and schedulers that are as plain as can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from graphlink.graph.et_columns import ABSENT, COLUMNS, NodeBlock, assemble
from graphlink.graph_model import HAS, EdgeKind, Graph, Metadata, NodeType
from graphlink.linking.commtypes import CollectiveType
from graphlink.replay.workload import Workload, workload

CPU, GPU, COLL, SEND, RECV = "cpu", "gpu", "coll", "send", "recv"
NOTHING = dict(zip(COLUMNS[-len(ABSENT) :], ABSENT, strict=True))
_TYPES = {
    CPU: NodeType.COMP,
    GPU: NodeType.COMP,
    COLL: NodeType.COMM_COLL,
    SEND: NodeType.COMM_SEND,
    RECV: NodeType.COMM_RECV,
}


class N(NamedTuple):
    """A node: times in us, ``deps`` ids with the kind of edge."""

    id: int
    sort: str = CPU
    us: int = 1
    deps: tuple[tuple[int, EdgeKind], ...] = ()
    name: str = "op"
    start_us: int | None = None
    group: int = 0
    peer: int = -1
    tag: int = 0
    size: int = 64
    delay_us: int = 0
    lane: int = 0
    correlation: int = 0
    comm_type: int = CollectiveType.ALL_REDUCE
    calls: tuple[str, ...] = ()  # sync_call
    wake_us: int = 0
    latency_us: int = 0


def file(nodes: Sequence[N], *, rank: int = 0, epoch_ns: int | None = 0, world_size: int | None = None) -> Graph:
    """A graph of ours with these nodes."""
    names = list(dict.fromkeys(n.name for n in nodes))
    block = NodeBlock()
    for i, n in enumerate(nodes):
        row = dict(NOTHING)
        start = 1000 * (n.start_us or 0)
        row |= {
            "is_cpu_op": n.sort == CPU,
            "start_ns": start,
            "duration_ns": 1000 * n.us,
            "start_delay_ns": 1000 * n.delay_us,
        }
        row |= {
            "end_ns": start + 1000 * (n.us + n.delay_us),
            "comm_size": n.size,
            "comm_tag": n.tag,
            "correlation": n.correlation,
        }
        row |= {"wake_ns": 1000 * n.wake_us, "launch_latency_ns": 1000 * n.latency_us}
        row |= {"tid": n.lane} if n.sort == CPU else {"stream": n.lane}
        row |= {"comm_type": n.comm_type, "pg_name": n.group} if n.sort == COLL else {}
        row |= {"comm_src": rank, "comm_dst": n.peer} if n.sort == SEND else {}
        row |= {"comm_src": n.peer, "comm_dst": rank} if n.sort == RECV else {}
        has = sum(
            HAS[name]
            for name, value in row.items()
            if name in ("start_ns", "end_ns", "duration_ns") or value != NOTHING[name]
        )
        block.rows.extend(
            [names.index(n.name), _TYPES[n.sort], 0, n.us + n.delay_us, has, len(n.deps), 0, *row.values()]
        )
        block.id.append(n.id)
        block.data.extend(d for d, _ in n.deps)
        block.data_kind.extend(k for _, k in n.deps)
        block.sync_call |= {i: n.calls} if n.calls else {}
    return assemble(f"hand.{rank}.et", Metadata("0.0.4", "1", epoch_ns, rank, world_size), tuple(names), [block])


def load(*ranks: Sequence[N]) -> Workload:
    return workload({r: file(nodes, rank=r) for r, nodes in enumerate(ranks)})


Key = tuple[int, int]  # rank, id


def plain(ranks: Sequence[Sequence[N]], groups: Mapping[int, Sequence[int]] | None) -> dict[Key, tuple[int, int]]:
    """Start and end (ns) of each node on ASTRA-sim's slots, one end after the other; with ``groups`` ranks are
    coupled.
    """
    nodes = {(r, n.id): n for r, given in enumerate(ranks) for n in given}
    met = {
        k: partners(nodes, k, groups) for k, n in nodes.items() if groups is not None and n.sort in (COLL, RECV, SEND)
    }
    start: dict[Key, int] = {}  # in order of start
    end: dict[Key, int] = {}  # in the order in which ends became known
    over: set[Key] = set()
    now = 0

    def can_start(k: Key) -> bool:
        n, slot = nodes[k], _slot(nodes[k])
        if k in start or any((k[0], d) not in over for d, _ in n.deps):
            return False
        return slot is None or not any(j[0] == k[0] and _slot(nodes[j]) == slot and j not in over for j in start)

    def start_what_can(rank: int) -> None:
        for k in sorted(k for k in nodes if k[0] == rank):
            if can_start(k):
                start[k] = now
                tell_ends()

    def tell_ends() -> None:
        for k in start:
            told = None if k in end else _end(nodes, k, start, {j: end[j] for j in over}, met.get(k))
            if told is not None:
                end[k] = told

    for rank in range(len(ranks)):
        start_what_can(rank)
    while set(end) - over:
        k = min((k for k in end if k not in over), key=lambda k: end[k])  # of equal ones the first
        now = end[k]
        over.add(k)
        start_what_can(k[0])
        tell_ends()
    return {k: (start[k], end[k]) for k in end}


def _slot(n: N) -> str | None:
    return {CPU: "cpu", GPU: "gpu", COLL: "comm", SEND: "comm", RECV: None}[n.sort]


def _cost(n: N) -> int:
    return 1000 * (n.us + n.delay_us)


def partners(nodes: Mapping[Key, N], k: Key, groups: Mapping[int, Sequence[int]] | None) -> list[Key] | None:
    """The nodes that meet with this one; None if it stands alone; short of one if a partner is not there."""
    n = nodes[k]
    ranks = sorted({r for r, _ in nodes})
    if n.sort == COLL:
        members = [r for r in (groups or {}).get(n.group, ranks) if r in ranks]
        if k[0] not in members or len(members) < 2:
            return None
        mine = [j for j in sorted(nodes) if j[0] == k[0] and nodes[j].sort == COLL and nodes[j].group == n.group].index(
            k
        )
        each = (
            [j for j in sorted(nodes) if j[0] == r and nodes[j].sort == COLL and nodes[j].group == n.group]
            for r in members
        )
        found = [js[mine] if len(js) > mine else None for js in each]
        return [] if None in found else [j for j in found if j is not None]
    if n.peer not in ranks:
        return None
    other = SEND if n.sort == RECV else RECV
    mine = [j for j in sorted(nodes) if j[0] == k[0] and _same(nodes[j], n)].index(k)
    sent = n.tag, n.size
    theirs = [
        j
        for j in sorted(nodes)
        if j[0] == n.peer and nodes[j].sort == other and nodes[j].peer == k[0] and (nodes[j].tag, nodes[j].size) == sent
    ]
    return [theirs[mine]] if len(theirs) > mine else []


def _same(a: N, b: N) -> bool:
    return (a.sort, a.peer, a.tag, a.size) == (b.sort, b.peer, b.tag, b.size)


def _end(
    nodes: Mapping[Key, N], k: Key, start: Mapping[Key, int], end: Mapping[Key, int], partners: list[Key] | None
) -> int | None:
    n = nodes[k]
    if partners is None:
        return start[k] + max(1, _cost(n))
    if n.sort == COLL:
        if not partners or any(p not in start for p in partners):
            return None
        return max(start[p] for p in partners) + max(1, min(_cost(nodes[p]) for p in partners))
    if n.sort == SEND:
        both = [_cost(n), *(_cost(nodes[p]) for p in partners)]
        return start[k] + max(1, min(both))
    if not partners or partners[0] not in end:
        return None
    return max(start[k], end[partners[0]])
