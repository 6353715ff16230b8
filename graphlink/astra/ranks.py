"""The rules over several ranks: collectives of all members, messages with two ends, one communication slot per rank;
and the whole judgement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.astra.check_rules import Findings, Judgement
from graphlink.astra.circle import CommOrder, Ordered, judge_circles, starts_first, waits_of
from graphlink.astra.rules import COMMUNICATION, RankFile, RankRules, read_or_judge
from graphlink.depend.edges import cycle, topological
from graphlink.errors import InputError
from graphlink.graph_model import NO_GROUP, Graph, Groups
from graphlink.model import I64
from graphlink.output_names import GROUPS
from graphlink.ranks.group_ids import MOST as MOST_GROUPS
from graphlink.replay.slots import play_slots
from graphlink.replay.workload import workload
from graphlink.tables import grouped, in_order, spread, tuples

SHOWN_CYCLE: Final = 6


@dataclass(frozen=True, slots=True)
class Op:
    """A communication node of a rank. ``peer`` of messages, ``type`` of collectives."""

    rank: int
    id: int
    name: str
    type: int
    size: int
    group: int
    peer: int
    tag: int

    @property
    def told(self) -> str:
        """Describe the op: rank, node id, name."""
        return f'rank {self.rank} node {self.id} "{self.name[:40]}"'

    @property
    def collective(self) -> str:
        """Describe a collective, with type and size."""
        known = self.type in pb.CollectiveCommType.values()
        kind = pb.CollectiveCommType.Name(self.type) if known else f"type {self.type}"
        return f"{self.told} {kind} of {self.size} bytes"


@dataclass(frozen=True, slots=True)
class RankOps:
    """The communication of one rank in id order, in which ASTRA-sim starts what is ready, where dependencies do not
    order it otherwise. BROADCASTs are only in ``numbered``, of all collectives: they couple no ranks.

    ``by_time``: positions of ``collectives`` in the order in which the recorded times start them. ``sure``: one entry
    per collective, whether it surely starts before the next one in id order, whatever takes how long.
    """

    collectives: tuple[Op, ...]
    sends: tuple[Op, ...]
    receives: tuple[Op, ...]
    by_time: tuple[int, ...]
    sure: tuple[bool, ...]
    numbered: tuple[Op, ...]


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
            both = {*np.unique(graph.type).tolist()} >= {pb.COMM_COLL_NODE, pb.COMM_SEND_NODE}
            start_ns = _start_ns(graph, rules.rank, quick=True) if both else None
            waits.append(waits_of(graph, rules.rank, rules.ordered, groups, start_ns))
        nodes += len(graph.id)
    if len(run) > 1:
        there = set(ranks)
        missing = (rank for rank in range(highest + 1) if rank not in there)  # a name may say any number
        findings.add("missing-rank", highest + 1 - len(there), (f"{files[0].prefix}.{rank}.et" for rank in missing))
    else:
        findings.add("alone", 1, [files[0].path.name])
    findings.add("fewer-ranks", world > highest + 1, [f"{world} ranks, files up to {highest}"])
    judge_members(ops, groups or {}, world, findings)
    never = judge_circles(waits, findings)
    judge_collectives(ops, groups or {}, never, findings)
    if not never:
        judge_ids(ops, findings)
    judge_messages(ops, findings)
    return findings.judgement(sorted(ops), nodes)


def read_groups(path: Path, findings: Findings) -> Groups:
    """Return the groups of the groups file of ASTRA-sim at ``path``, ``{"1": [0, 1], "2": [2, 3]}``: keys are positive
    decimals, values global ranks. Keys and lists that ASTRA-sim cannot use are findings and left out.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise InputError(f"cannot be read: {problem.strerror}", path=path) from None
    if "empty" in str(path):
        findings.add("groups-path", 1, [str(path)])
    try:
        document: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        findings.add("groups-file", 1, [f"{path.name}: no JSON: {problem}"])
        return {}
    if not isinstance(document, dict):
        findings.add("groups-file", 1, [f"{path.name}: no object of groups"])
        return {}
    groups = {}
    for key, ranks in document.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 19 and int(key) > 0):
            findings.add("groups-key", 1, [f'"{key[:40]}"'])
        elif not (isinstance(ranks, list) and ranks and all(type(r) is int and r >= 0 for r in ranks)):
            findings.add("groups-file", 1, [f'group "{key}": no list of ranks'])
        else:
            findings.add("groups-high", int(key) > MOST_GROUPS, [f'"{key}"'])
            groups[int(key)] = tuple(ranks)
    return groups


def runs_of(folder: Path) -> list[list[RankFile]]:
    """Group the ``.et`` files of ``folder`` by run (prefix), each in rank order.

    Raises:
        InputError: there is none.
    """
    by_prefix = grouped((file.prefix, file) for file in map(RankFile.of, sorted(folder.glob("*.et"))))
    if not by_prefix:
        raise InputError("holds no .et file", path=folder, todo="name a graph, or a folder of PREFIX.RANK.et files")
    return [sorted(files, key=lambda f: (f.rank is None, f.rank or 0)) for _, files in sorted(by_prefix.items())]


def rank_ops(graph: Graph, rank: int, ordered: Ordered | None) -> RankOps:
    """Return the communication of one rank. ``ordered``: its graph without cycles; None where it has some."""

    place = graph.id.astype(np.int64)
    if ordered is not None and (graph.id[graph.source] >= graph.id[graph.target]).any():  # they hold against the ids
        place = spread(len(place), ordered.order, np.arange(len(place)))

    def of_type(kind: int) -> I64:
        nodes = np.flatnonzero(graph.type == kind)
        return in_order(nodes, place)

    def ops(nodes: I64, peer: I64) -> tuple[Op, ...]:
        columns = (graph.comm_type, graph.comm_size, graph.group, peer, graph.comm_tag)
        rows = tuples(nodes, graph.id[nodes], *(column[nodes] for column in columns))
        return tuple(Op(rank, id_, graph.name_of(node), *row) for node, id_, *row in rows)

    numbered = of_type(pb.COMM_COLL_NODE)
    collectives = numbered[graph.comm_type[numbered] != pb.BROADCAST]
    by_time, sure = np.arange(len(collectives)), np.zeros(len(collectives), np.bool_)
    if ordered is not None and len(np.unique(graph.group[collectives])) > 1:
        sure[:-1] = starts_first(graph, ordered, collectives[:-1], collectives[1:])
        by_time = np.argsort(_start_ns(graph, rank)[collectives], kind="stable")
    return RankOps(
        ops(collectives, graph.comm_src),
        ops(of_type(pb.COMM_SEND_NODE), graph.comm_dst),
        ops(of_type(pb.COMM_RECV_NODE), graph.comm_src),
        tuple(by_time.tolist()),
        tuple(sure.tolist()),
        ops(numbered, graph.comm_src),
    )


def _start_ns(graph: Graph, rank: int, *, quick: bool = False) -> I64:
    """Return the starts on ASTRA-sim's machine if all takes what was recorded, or where it is ``quick``, communication
    takes nothing; as the ids go where that cannot be played.
    """
    if quick:
        took = np.where(np.isin(graph.type, COMMUNICATION), 0, graph.file.duration_micros)
        graph = replace(graph, read=replace(graph.file, duration_micros=took))
    if not len(graph.file.duplicate_ids) and not len(graph.file.faults.node):
        with suppress(InputError):  # times that no replay takes: a finding of their own
            return play_slots(workload({rank: graph})).start_ns
    return graph.id.astype(np.int64)


def judge_members(ops: Mapping[int, RankOps], groups: Groups, world: int, findings: Findings) -> None:
    """Check that the groups in use are made of the ``world`` ranks of the run, each once. Of a rank alone that is not
    known.
    """
    for group in sorted(groups.keys() & {op.group for of_rank in ops.values() for op in of_rank.collectives}):
        beyond = sorted(rank for rank in groups[group] if rank >= world > 1)
        if beyond:
            findings.add("group-beyond", 1, [f"group {group}: rank {beyond[0]} of a run of {world} ranks"])
        twice = [rank for rank, count in Counter(groups[group]).items() if count > 1]
        if twice:
            findings.add("group-twice", 1, [f"group {group}: rank {twice[0]}"])


def judge_collectives(
    ops: Mapping[int, RankOps], groups: Groups, never: Set[tuple[int, int]], findings: Findings
) -> None:
    """Check that the ranks of each group run the same collectives in one order. Ranks without a file are left out.

    ``never``: (rank, id) of what is known to hang; that their slots hang too is not reported.
    """
    by_group = grouped((op.group, op) for of_rank in ops.values() for op in of_rank.collectives)
    for group, of_group in sorted(by_group.items()):
        by_rank = grouped((op.rank, op) for op in of_group)
        members = [rank for rank in groups.get(group, sorted(ops)) if rank in ops]
        if len(members) > 1 and (group == NO_GROUP or (group > NO_GROUP and group in groups)):
            _compare(group, {rank: by_rank.get(rank, []) for rank in members}, findings)
    # the orders of all ranks' collectives must not run in a circle: there is one slot a rank
    by_id: dict[int, Sequence[int]] = {rank: range(len(of_rank.collectives)) for rank, of_rank in ops.items()}
    by_time: dict[int, Sequence[int]] = {rank: of_rank.by_time for rank, of_rank in ops.items()}
    for rule, orders in (("slot-deadlock", by_id), ("slot-order", by_id), ("slot-order", by_time)):
        if _slot_circle(rule, ops, orders, never, findings):
            break


def judge_ids(ops: Mapping[int, RankOps], findings: Findings) -> None:
    """Check whether legacy may take a collective that ends for another: it numbers all that begin, over all ranks, and
    drops the one of the rank whose number is the id of the one that ends. The rank's next one has begun by then.

    The number of the next lies between those of what surely began before it and after it: a rank begins nothing behind
    a collective that a member of its group has not begun. The last of a place to begin was seen to run without. Of
    ranks with several groups nothing is said here.
    """
    total = sum(len(of.numbered) for of in ops.values())
    groups = {rank: {op.group for op in of.collectives} for rank, of in ops.items()}
    alone = ((min(groups[rank], default=-1 - rank), of) for rank, of in ops.items() if len(groups[rank]) < 2)
    told: list[str] = []
    for members in grouped(alone).values() if len(ops) > 1 else ():
        couples = [np.array([op.type != pb.BROADCAST for op in of.numbered], np.bool_) for of in members]
        # how many a rank has begun at most before the others have all begun the first, second, ... that couples them
        begun = [np.append(np.flatnonzero(which) + 1, len(which)) for which in couples]
        most = max(map(len, begun))
        of_all = np.sum([np.pad(counts, (0, most - len(counts)), mode="edge") for counts in begun], axis=0)
        others = total - sum(len(of.numbered) for of in members)
        for of, which, counts in zip(members, couples, begun, strict=True):
            turn, own = np.cumsum(which)[:-1], np.arange(1, len(which))
            low = own + np.append(0, of_all)[turn] - np.append(0, counts)[turn]
            high = own + of_all[turn] - counts[turn] + others
            ids = np.array([min(op.id, total) for op in of.numbered[:-1]], np.int64)
            told += [of.numbered[k].told for k in np.flatnonzero((low <= ids) & (ids < high)).tolist()]
    findings.add("legacy-ids", len(told), told)


def _compare(group: int, members: Mapping[int, Sequence[Op]], findings: Findings) -> None:
    """Compare the collectives of the ranks of a group."""
    where = _group_name(group)
    first, *others = members.values()
    for ops in others:
        differs = [k for k, (a, b) in enumerate(zip(first, ops, strict=False)) if (a.type, a.size) != (b.type, b.size)]
        if differs:
            k = differs[0]
            told = f"{where}, collective {k}: {first[k].collective}, {ops[k].collective}"
            findings.add("order-differs", len(differs), [told])
    few, many = (choose(members, key=lambda rank: len(members[rank])) for choose in (min, max))
    count, most = len(members[few]), len(members[many])
    told = f"{where}: rank {few} has {count}, rank {many} has {most}, there "
    findings.add("misses-one", most - count, (told + op.told for op in members[many][count : count + 1]))


def _group_name(group: int) -> str:
    return f"group {group}" if group else "all ranks"


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
    edges: list[tuple[int, int]] = []
    for rank, order in orders.items():
        counts: Counter[int] = Counter()
        before: int | None = None
        for k in order:
            op = ops[rank].collectives[k]
            key = op.group, counts[op.group]
            counts[op.group] += 1
            if (rank, op.id) not in never:
                now = number.setdefault(key, len(number))
                if before is not None:
                    edges.append((before, now))
                before = now
            if rule == "slot-deadlock" and not ops[rank].sure[k]:
                before = None
    source, target = np.array(edges, np.int64).reshape(-1, 2).T
    order_found = topological(source, target, np.arange(len(number)))
    if len(order_found) == len(number):
        return False
    names = list(number)
    circle = [names[i] for i in cycle(source, target, order_found, len(number))][::-1]
    shown = [f"collective {k} of {_group_name(group)}" for group, k in circle[:SHOWN_CYCLE]]
    shown += ["..."] if len(circle) > SHOWN_CYCLE else shown[:1]
    findings.add(rule, len(number) - len(order_found), [" before ".join(shown)])
    return True


def judge_messages(ops: Mapping[int, RankOps], findings: Findings) -> None:
    """Check that each RECV has its SEND and each SEND its RECV, the k-th of a tag, source, target and size. Ends
    without a file: left out."""
    sends = grouped(((op.rank, op.peer, op.tag, op.size), op) for of_rank in ops.values() for op in of_rank.sends)
    receives = grouped(((op.peer, op.rank, op.tag, op.size), op) for of_rank in ops.values() for op in of_rank.receives)
    sent, received = ({key: own for key, own in ends.items() if ops.keys() >= {*key[:2]}} for ends in (sends, receives))
    for key in sorted(sent.keys() | received.keys()):
        for rule, these, others in (("no-recv", sent, received), ("no-send", received, sent)):
            lonely = these.get(key, [])[len(others.get(key, [])) :]
            what = f"{key[0]} -> {key[1]}, tag {key[2]}, {key[3]} bytes"
            findings.add(rule, len(lonely), (f"{op.told}: {what}{_near(key, others)}" for op in lonely))


_Key = tuple[int, int, int, int]  # source, target, tag, size


def _near(key: _Key, others: Mapping[_Key, object]) -> str:
    """Return what the other end has instead, if anything of the same two ranks."""
    ends = (
        f" (there is one with tag {tag}, {size} bytes)"
        for *ranks, tag, size in others
        if ranks == [*key[:2]] and key[2:] != (tag, size)
    )
    return next(ends, "")
