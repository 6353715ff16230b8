"""The rules over several ranks: collectives that meet, messages with two ends, one communication slot per rank; and the
whole judgement.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.astra.check_rules import Findings, Judgement
from graphlink.astra.circle import CommOrder, Ordered, judge_circles, starts_first, waits_of
from graphlink.astra.groups import Groups, read_groups
from graphlink.astra.rules import RankFile, RankRules, read_or_judge
from graphlink.depend.edges import cycle, topological
from graphlink.errors import InputError
from graphlink.graph_model import NO_GROUP, Graph
from graphlink.model import I32, I64
from graphlink.output_names import GROUPS
from graphlink.replay.slots import play_slots
from graphlink.replay.workload import workload

SHOWN_CYCLE: Final = 6


@dataclass(frozen=True, slots=True)
class Op:
    """A communication node of a rank. ``peer`` of messages, ``type`` of collectives."""

    id: int
    name: str
    type: int
    size: int
    group: int
    peer: int
    tag: int

    def told(self, rank: int) -> str:
        """Describe the op: rank, node id, name."""
        return f'rank {rank} node {self.id} "{self.name[:40]}"'


@dataclass(frozen=True, slots=True)
class RankOps:
    """The communication of one rank in id order, in which ASTRA-sim starts what is ready. BROADCASTs are not here: they
    couple no ranks.

    ``by_time``: positions of ``collectives`` in the order in which the recorded times start them. ``sure``: one entry
    per collective, whether it surely starts before the next one in id order, whatever takes how long.
    """

    collectives: tuple[Op, ...]
    sends: tuple[Op, ...]
    receives: tuple[Op, ...]
    by_time: tuple[int, ...]
    sure: tuple[bool, ...]


def judge(files: Sequence[RankFile], groups_path: Path | None, run: Sequence[RankFile] | None = None) -> Judgement:
    """Predict what ASTRA-sim would make of ``files``, rank files of one run. Linear in nodes; one graph is in memory at
    a time, and what each says about its communication.

    ``run``: all rank files of the run, where ``files`` are some of them that are judged alone. ``groups_path``: the
    communicator groups; None takes ``comm_group.json`` from the folder of the files if it is there.

    Raises:
        InputError: a file cannot be read or has nothing of a Chakra graph.
    """
    findings = Findings()
    beside = files[0].path.parent / GROUPS
    path = groups_path or (beside if beside.is_file() else None)
    groups = None if path is None else read_groups(path, findings)
    run = run or files
    ranks = sorted(f.rank for f in run if f.rank is not None)
    highest = max(ranks, default=0)
    world, nodes = max(len(run), highest + 1), 0
    ops: dict[int, RankOps] = {}
    waits: list[CommOrder] = []
    for file in files:
        graph = read_or_judge(file, findings)
        if graph is None:
            continue
        world = max(world, graph.metadata.world_size or 0)
        rules = RankRules(file, graph, groups, world, findings)
        rules.judge()
        ops[rules.rank] = rank_ops(graph, rules.rank, rules.ordered)
        if rules.ordered is not None and len(files) > 1:
            waits.append(waits_of(graph, rules.rank, rules.ordered, groups))
        nodes += len(graph.id)
    if len(run) > 1:
        there = set(ranks)
        missing = (rank for rank in range(highest + 1) if rank not in there)  # a name may say any number
        findings.add("missing-rank", highest + 1 - len(there), (f"{files[0].prefix}.{rank}.et" for rank in missing))
    else:
        findings.add("alone", 1, [files[0].path.name])
    findings.add("fewer-ranks", world > highest + 1, [f"{world} ranks, files up to {highest}"])
    judge_members(ops, groups, world, findings)
    judge_meeting(ops, groups, judge_circles(waits, findings), findings)
    judge_messages(ops, findings)
    return findings.judgement(sorted(ops), nodes)


def runs_of(folder: Path) -> list[list[RankFile]]:
    """Group the ``.et`` files of ``folder`` by run (prefix), each in rank order.

    Raises:
        InputError: there is none.
    """
    by_prefix: dict[str, list[RankFile]] = defaultdict(list)
    for file in map(RankFile.of, sorted(folder.glob("*.et"))):
        by_prefix[file.prefix].append(file)
    if not by_prefix:
        raise InputError("holds no .et file", path=folder, todo="name a graph, or a folder of PREFIX.RANK.et files")
    return [sorted(files, key=lambda f: (f.rank is None, f.rank or 0)) for _, files in sorted(by_prefix.items())]


def rank_ops(graph: Graph, rank: int, ordered: Ordered | None) -> RankOps:
    """Return the communication of one rank. ``ordered``: its graph without cycles; None where it has some."""

    def at(kind: int) -> I64:
        nodes = np.flatnonzero(graph.type == kind)
        return nodes[np.argsort(graph.id[nodes], kind="stable")]

    def of(nodes: I64, peer: I32 | I64) -> tuple[Op, ...]:
        columns = (graph.id, graph.comm_type, graph.comm_size, graph.group, peer, graph.comm_tag)
        rows = zip(*(c[nodes].tolist() for c in columns), strict=True)
        return tuple(Op(row[0], graph.name_of(node), *row[1:]) for node, row in zip(nodes.tolist(), rows, strict=True))

    collectives = at(pb.COMM_COLL_NODE)
    collectives = collectives[graph.comm_type[collectives] != pb.BROADCAST]
    by_time, sure = np.arange(len(collectives)), np.zeros(len(collectives), np.bool_)
    if ordered is not None and len(np.unique(graph.group[collectives])) > 1:
        sure[:-1] = starts_first(graph, ordered, collectives[:-1], collectives[1:])
        by_time = np.argsort(_start_ns(graph, rank)[collectives], kind="stable")
    return RankOps(
        of(collectives, graph.comm_src),
        of(at(pb.COMM_SEND_NODE), graph.comm_dst),
        of(at(pb.COMM_RECV_NODE), graph.comm_src),
        tuple(by_time.tolist()),
        tuple(sure.tolist()),
    )


def _start_ns(graph: Graph, rank: int) -> I64:
    """Return the starts on ASTRA-sim's machine if all takes what was recorded; as the ids go where that cannot be
    played.
    """
    if len(graph.file.duplicate_ids) or len(graph.file.faults.node):
        return graph.id.astype(np.int64)
    try:
        return play_slots(workload({rank: graph})).start_ns
    except InputError:  # times that no replay takes: a finding of their own
        return graph.id.astype(np.int64)


def judge_members(ops: Mapping[int, RankOps], groups: Groups | None, world: int, findings: Findings) -> None:
    """Check that the groups in use are made of the ``world`` ranks of the run, each once. Of a rank alone that is not
    known.
    """
    known = groups or {}
    for group in sorted(known.keys() & {op.group for of_rank in ops.values() for op in of_rank.collectives}):
        beyond = sorted(r for r in known[group] if r >= world > 1)
        findings.add(
            "group-beyond", bool(beyond), (f"group {group}: rank {r} of a run of {world} ranks" for r in beyond[:1])
        )
        twice = [r for r, count in Counter(known[group]).items() if count > 1]
        findings.add("group-twice", bool(twice), (f"group {group}: rank {r}" for r in twice[:1]))


def judge_meeting(
    ops: Mapping[int, RankOps], groups: Groups | None, never: Set[tuple[int, int]], findings: Findings
) -> None:
    """Check that the ranks of each group run the same collectives in one order. Ranks without a file are left out.

    ``never``: (rank, id) of what is known to hang; that their slots hang too is not reported.
    """
    of_group: dict[int, dict[int, list[Op]]] = defaultdict(dict)
    for rank, of_rank in ops.items():
        for op in of_rank.collectives:
            of_group[op.group].setdefault(rank, []).append(op)
    for group, by_rank in sorted(of_group.items()):
        known = (groups or {}).get(group)
        members = [r for r in (known if known is not None else sorted(ops)) if r in ops]
        if group < NO_GROUP or (group > NO_GROUP and known is None) or len(members) < 2:
            continue
        _compare(group, [(r, by_rank.get(r, [])) for r in members], findings)
    _slots(ops, never, findings)


def _compare(group: int, members: Sequence[tuple[int, list[Op]]], findings: Findings) -> None:
    where = f"group {group}" if group else "all ranks"
    first_rank, first = members[0]
    for rank, ops in members[1:]:
        differs = [k for k, (a, b) in enumerate(zip(first, ops, strict=False)) if (a.type, a.size) != (b.type, b.size)]
        if differs:
            a, b = first[differs[0]], ops[differs[0]]
            told = f"{where}, collective {differs[0]}: {_what(first_rank, a)}, {_what(rank, b)}"
            findings.add("order-differs", len(differs), [told])
    counts = [len(ops) for _, ops in members]
    if min(counts) != max(counts):
        few, many = members[counts.index(min(counts))], members[counts.index(max(counts))]
        told = (
            f"{where}: rank {few[0]} has {len(few[1])}, rank {many[0]} has {len(many[1])}, there "
            f"{many[1][len(few[1])].told(many[0])}"
        )
        findings.add("misses-one", max(counts) - min(counts), [told])


def _what(rank: int, op: Op) -> str:
    kind = pb.CollectiveCommType.Name(op.type) if op.type in pb.CollectiveCommType.values() else f"type {op.type}"
    return f"{op.told(rank)} {kind} of {op.size} bytes"


def _slots(ops: Mapping[int, RankOps], never: Set[tuple[int, int]], findings: Findings) -> None:
    """Check the slots: a rank starts its collectives one after the other; over all ranks these orders must not run in a
    circle.
    """
    by_id: dict[int, Sequence[int]] = {rank: range(len(of.collectives)) for rank, of in ops.items()}
    by_time: dict[int, Sequence[int]] = {rank: of.by_time for rank, of in ops.items()}
    for rule, orders in (("slot-deadlock", by_id), ("slot-order", by_id), ("slot-order", by_time)):
        if _slot_circle(rule, ops, orders, never, findings):
            break


def _slot_circle(
    rule: str,
    ops: Mapping[int, RankOps],
    orders: Mapping[int, Sequence[int]],
    never: Set[tuple[int, int]],
    findings: Findings,
) -> bool:
    """Check whether the ``orders`` of the ranks' collectives run in a circle, which is a finding; a deadlock: by no
    more than is sure of them."""
    number: dict[tuple[int, int], int] = {}  # (group, its k-th collective)
    source: list[int] = []
    target: list[int] = []
    for rank, order in orders.items():
        counts: Counter[int] = Counter()
        before: int | None = None
        for k in order:
            op = ops[rank].collectives[k]
            turn = counts[op.group]
            counts[op.group] += 1
            if (rank, op.id) not in never:
                now = number.setdefault((op.group, turn), len(number))
                if before is not None:
                    source.append(before)
                    target.append(now)
                before = now
            if rule == "slot-deadlock" and not ops[rank].sure[k]:
                before = None
    edges = np.array(source, np.int64), np.array(target, np.int64)
    order_found = topological(*edges, np.arange(len(number)))
    if len(order_found) == len(number):
        return False
    names = list(number)
    circle = [names[i] for i in cycle(*edges, order_found, len(number))][::-1]
    shown = [f"collective {k} of {f'group {group}' if group else 'all ranks'}" for group, k in circle[:SHOWN_CYCLE]]
    findings.add(
        rule,
        len(number) - len(order_found),
        [" before ".join([*shown, *(["..."] if len(circle) > SHOWN_CYCLE else shown[:1])])],
    )
    return True


def judge_messages(ops: Mapping[int, RankOps], findings: Findings) -> None:
    """Check that each RECV has its SEND and each SEND its RECV, the k-th of a tag, source, target and size. Ends
    without a file: left out."""
    sends, receives = _by_key(ops, sending=True), _by_key(ops, sending=False)
    for key in sorted(sends.keys() | receives.keys()):
        sent, received = sends.get(key, []), receives.get(key, [])
        for rule, more, fewer, others in (("no-recv", sent, received, receives), ("no-send", received, sent, sends)):
            lonely = more[len(fewer) :]
            told = (
                f"{op.told(rank)}: {key[0]} -> {key[1]}, tag {key[2]}, {key[3]} bytes{_near(key, others)}"
                for rank, op in lonely
            )
            findings.add(rule, len(lonely), told)


_Key = tuple[int, int, int, int]  # source, target, tag, size


def _by_key(ops: Mapping[int, RankOps], *, sending: bool) -> dict[_Key, list[tuple[int, Op]]]:
    out: dict[_Key, list[tuple[int, Op]]] = defaultdict(list)
    for rank, of_rank in ops.items():
        for op in of_rank.sends if sending else of_rank.receives:
            if op.peer in ops:
                source, target = (rank, op.peer) if sending else (op.peer, rank)
                out[source, target, op.tag, op.size].append((rank, op))
    return out


def _near(key: _Key, others: Mapping[_Key, object]) -> str:
    """Return what the other end has instead, if anything of the same two ranks."""
    ends = (
        f" (there is one with tag {tag}, {size} bytes)"
        for *ranks, tag, size in others
        if ranks == [*key[:2]] and key[2:] != (tag, size)
    )
    return next(ends, "")
