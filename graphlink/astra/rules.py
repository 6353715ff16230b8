"""Judges one rank's Chakra graph, whoever wrote it, against what ASTRA-sim takes (``graphlink.astra.findings``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from chakra.schema.protobuf import et_def_pb2 as pb
from google.protobuf.message import DecodeError

from graphlink.astra.circle import Ordered
from graphlink.astra.comm import INTEGERS, CommRules
from graphlink.astra.findings import Findings
from graphlink.astra.groups import Groups
from graphlink.depend.edges import cycle, topological
from graphlink.errors import InputError
from graphlink.graph.chakra import TWICE, ChakraFile, Deps, Fault, Has, frames, read_chakra
from graphlink.graph.order import Edges, Reach
from graphlink.model import I64, Bool
from graphlink.read.source import open_source

LONG_MICROS: Final = 1 << 46  # ran; twice that did not
WIDE: Final = 4_000  # nodes ready at once, from where ASTRA-sim takes seconds
CYCLE_SHOWN: Final = 8  # nodes of a cycle that are printed
_CPU_ATTRIBUTES: Final = {"is_cpu_op"}
_READ_BY: Final = {  # attribute -> node types for which ASTRA-sim reads it; what is not here is never read
    "comm_type": {pb.COMM_COLL_NODE},
    "pg_name": {pb.COMM_COLL_NODE},
    "comm_size": {pb.COMM_COLL_NODE, pb.COMM_SEND_NODE, pb.COMM_RECV_NODE},
    "comm_src": {pb.COMM_SEND_NODE, pb.COMM_RECV_NODE},
    "comm_dst": {pb.COMM_SEND_NODE, pb.COMM_RECV_NODE},
    "comm_tag": {pb.COMM_SEND_NODE, pb.COMM_RECV_NODE},
}


@dataclass(frozen=True, slots=True)
class RankFile:
    """A ``.et`` with the run and the rank that its name says; ``rank`` None where the simulator would not find it."""

    path: Path
    prefix: str
    rank: int | None

    @staticmethod
    def of(path: Path) -> RankFile:
        named = re.fullmatch(r"(.+)\.(0|[1-9][0-9]{0,8})\.et", path.name)
        return RankFile(path, named[1], int(named[2])) if named else RankFile(path, path.name.removesuffix(".et"), None)


def rank_of(file: RankFile, graph: ChakraFile) -> int:
    """As the simulator takes it: from the file's name; else what the file says, else 0."""
    return next(r for r in (file.rank, graph.metadata.rank, 0) if r is not None)


class RankRules:
    """All rules that one file can break; ``world`` ranks take part in the run."""

    def __init__(self, file: RankFile, graph: ChakraFile, groups: Groups | None, world: int, findings: Findings):
        self.file, self.graph, self._groups, self._world, self._out = file, graph, groups, world, findings
        self.rank = rank_of(file, graph)
        self.ordered: Ordered | None = None  # once judged, of a graph without cycles

    def add(self, key: str, broken: Bool) -> None:
        self._out.add(key, int(np.count_nonzero(broken)), map(self.told, np.flatnonzero(broken).tolist()))

    def told(self, node: int) -> str:
        name = self.graph.name_of(node)
        shown = name if len(name) <= 60 else f"{name[:57]}..."
        return f'rank {self.rank} node {self.graph.id[node]} "{shown}"'

    def judge(self) -> None:
        self._file()
        if not len(self.graph.id):
            self._out.add("no-nodes", 1, [f"rank {self.rank}"])
            return
        self._dependencies()
        self._cycles()
        self._nodes()
        self._scheduling()
        self._attribute_kinds()
        CommRules(self.graph, self.rank, self._world, self._groups, self.add).judge()

    def _file(self) -> None:
        graph = self.graph
        where = [f"rank {self.rank}"]
        self._out.add("no-version", not graph.metadata.version, where)
        self._out.add("file-name", self.file.rank is None, [self.file.path.name])
        declared = graph.metadata.rank
        self._out.add("other-rank", declared is not None and declared != self.rank, [f"{self.file.path.name} says rank {declared}"])
        self._out.add("compressed", _compressed(self.file.path), [self.file.path.name])

    def _dependencies(self) -> None:
        graph = self.graph
        faults = graph.faults
        for key, fault, data in (
            ("dangling-data", Fault.DANGLING, True),
            ("dangling-ctrl", Fault.DANGLING, False),
            ("duplicate-data", Fault.DUPLICATE, True),
            ("self-data", Fault.SELF, True),
            ("self-ctrl", Fault.SELF, False),
        ):
            at = np.flatnonzero((faults.fault == fault) & (faults.data == data))
            told = (f"{self.told(n)} -> {i}" for n, i in zip(faults.node[at].tolist(), faults.id[at].tolist(), strict=True))
            self._out.add(key, len(at), told)
        duplicates = graph.duplicate_ids
        self._out.add("duplicate-id", len(duplicates), map(self.told, duplicates.tolist()))
        late = np.zeros(len(graph.id), np.bool_)
        for deps in (graph.data, graph.ctrl):
            target = _target(deps)
            late[target[deps.source > target]] = True
        self.add("parents-late", late)

    def _cycles(self) -> None:
        graph = self.graph
        n = len(graph.id)
        wish = np.argsort(graph.id, kind="stable")
        both = Edges.of(
            n,
            np.concatenate([graph.data.source, graph.ctrl.source]).astype(np.int64),
            np.concatenate([_target(graph.data), _target(graph.ctrl)]),
        )
        if not np.any(np.diff(both.first) == 0):
            self._out.add("no-start", 1, [f"rank {self.rank}"])
        order = topological(graph.data.source, graph.data.target, wish)
        if len(order) < n:
            self._out.add("cycle", n - len(order), [self._circle(graph.data, order, "data")])
            return
        mixed = topological(both.source, both.target, wish)
        if len(mixed) < n:
            self._out.add("cycle-mixed", n - len(mixed), [self._circle(both, mixed, "mixed")])
        reach = Reach(graph.data, order, _lanes(graph))
        self.ordered = Ordered(both, mixed, reach) if len(mixed) == n else Ordered(graph.data, order, reach)
        self._implied(reach)
        self._chained(reach)

    def _circle(self, edges: Edges, order: I64, sort: str) -> str:
        graph = self.graph
        nodes = cycle(edges.source, edges.target, order, len(graph.id))

        def step(a: int, b: int) -> str:
            kind = "data" if sort == "data" or b in graph.data.source[graph.data.first[a] : graph.data.first[a + 1]] else "ctrl"
            return f'{graph.id[a]} "{graph.name_of(a)[:40]}" -{kind}->'

        steps = [step(a, b) for a, b in zip(nodes, nodes[1:] + nodes[:1], strict=True)]
        more = [f"... ({len(steps) - CYCLE_SHOWN} more)"] if len(steps) > CYCLE_SHOWN else []
        return f"rank {self.rank}, {len(nodes)} nodes: " + " ".join([*steps[:CYCLE_SHOWN], *more, str(graph.id[nodes[0]])])

    def _implied(self, reach: Reach) -> None:
        graph = self.graph
        before, after = graph.ctrl.source.astype(np.int64), _target(graph.ctrl)
        reached = reach(before, after)
        for key, mask in (("ctrl-alone", ~reached.yes & ~reached.undecided), ("ctrl-undecided", reached.undecided)):
            at = np.flatnonzero(mask)
            told = (f"{self.told(int(after[i]))} -> {graph.id[before[i]]}" for i in at.tolist())
            self._out.add(key, len(at), told)

    def _chained(self, reach: Reach) -> None:
        """Collectives of one group, each with the next in id order: do dependencies order them?"""
        graph = self.graph
        nodes = np.flatnonzero(graph.type == pb.COMM_COLL_NODE)
        nodes = nodes[np.lexsort((graph.id[nodes], graph.group[nodes]))]
        pair = np.flatnonzero(graph.group[nodes[1:]] == graph.group[nodes[:-1]])
        before, after = nodes[pair], nodes[pair + 1]
        reached = reach(before, after)
        loose = np.flatnonzero(~reached.yes & ~reached.undecided)
        told = (f"{self.told(int(after[i]))} after {graph.id[before[i]]}" for i in loose.tolist())
        self._out.add("unchained", len(loose), told)

    def _nodes(self) -> None:
        graph = self.graph
        kind = graph.type
        empty = (kind == pb.INVALID_NODE) & (graph.id == 0) & (graph.has == 0) & (graph.duration_micros == 0)
        empty &= np.array([not s for s in graph.strings] or [True], np.bool_)[graph.name]
        comm = np.isin(kind, (pb.COMM_COLL_NODE, pb.COMM_SEND_NODE, pb.COMM_RECV_NODE))
        self.add("empty-message", empty)
        self.add("metadata-node", kind == pb.METADATA_NODE)
        self.add("memory-node", np.isin(kind, (pb.MEM_LOAD_NODE, pb.MEM_STORE_NODE)))
        self.add("invalid-node", (kind == pb.INVALID_NODE) & ~empty)
        self.add("unknown-type", (kind < pb.INVALID_NODE) | (kind > pb.COMM_COLL_NODE))
        self.add("comm-on-cpu", comm & graph.host)
        self.add("cpu-statistics", graph.host)
        self.add("no-duration", graph.duration_micros == 0)
        self.add("long-duration", graph.duration_micros > LONG_MICROS)
        if graph.host.any():
            leaf = np.ones(len(kind), np.bool_)
            leaf[graph.data.source] = False
            leaf[graph.ctrl.source] = False
            message = leaf & np.isin(kind, (pb.COMM_SEND_NODE, pb.COMM_RECV_NODE))
            if leaf.any():
                self.add("last-node" if np.array_equal(message, leaf) else "maybe-last", message)

    def _scheduling(self) -> None:
        """Nodes surely ready together: those without dependencies, and those that wait for one and the same node only."""
        graph = self.graph
        n = len(graph.id)
        count = np.bincount(np.concatenate([_target(graph.data), _target(graph.ctrl)]), minlength=n)
        free = np.flatnonzero(count == 0)
        self._out.add("wide-fan", len(free) > WIDE, [f"rank {self.rank}: {len(free)} nodes without dependencies"])
        alone = np.flatnonzero((np.diff(graph.data.first) == 1) & (count == 1))
        fan = np.bincount(graph.data.source[graph.data.first[alone]], minlength=n)
        wide = np.flatnonzero(fan > WIDE)
        self._out.add("wide-fan", len(wide), (f"{self.told(i)} releases {fan[i]} nodes" for i in wide.tolist()))
        start = graph.start_ns[np.argsort(graph.id, kind="stable")]
        late = np.zeros(n, np.bool_)
        late[np.argsort(graph.id, kind="stable")] = start < np.maximum.accumulate(start)
        if start.any():
            self.add("start-order", late)

    def _attribute_kinds(self) -> None:
        throws, zero, twice = [], [], []
        cpu: list[str] = []
        for odd in self.graph.odd:
            kind_of_node = int(self.graph.type[odd.node])
            if odd.name not in _CPU_ATTRIBUTES and kind_of_node not in _READ_BY.get(odd.name, ()):
                continue
            text = f"{self.told(odd.node)}: {odd.name} is {odd.kind or 'without value'} {odd.value}".rstrip()
            if odd.kind == TWICE:
                twice.append(f"{self.told(odd.node)}: {odd.name} is {odd.value}")
            elif odd.name == "pg_name":
                if odd.kind != "string_val":
                    throws.append(text)
            elif odd.kind not in INTEGERS:
                (cpu if odd.name in _CPU_ATTRIBUTES else throws).append(text)
            elif odd.value not in ("0", "False"):
                zero.append(text)
        self._out.add("cpu-kind", len(cpu), cpu)
        self._out.add("kind-throws", len(throws), throws)
        self._out.add("kind-zero", len(zero), zero)
        self._out.add("attribute-twice", len(twice), twice)
        if np.any(self.graph.has & Has.INVOLVED_DIM):
            bad = _bad_dimensions(self.file.path)
            self._out.add("involved-dim", len(bad.no_list), map(self.told, bad.no_list))
            self._out.add("no-dimension", len(bad.none_true), map(self.told, bad.none_true))


def read_or_judge(file: RankFile, findings: Findings) -> ChakraFile | None:
    """The graph of ``file``, or None where its framing is such that nothing else can be judged: then that is a finding.

    Raises:
        InputError: it cannot be opened, or is no Chakra graph at all.
    """
    try:
        return read_chakra(file.path)
    except InputError as problem:
        key = _framing(file.path)
        if key is None:
            raise
        findings.add(key, 1, [f"{file.path.name}: {problem.what}" + (f" ({problem.where})" if problem.where else "")])
        return None


def _framing(path: Path) -> str | None:
    """The framing rule that ``path`` breaks; None where it has nothing of a Chakra graph, or none at all."""
    whole = 0
    with open_source(path) as source:
        try:
            for _, message in frames(source):
                if whole == 0 and not _is(pb.GlobalMetadata, message, b"\x0a\x12"):
                    return "no-metadata" if _is(pb.Node, message, b"\x08\x12\x18") else None
                if whole and not _is(pb.Node, message, None):
                    return "broken"
                whole += 1
        except InputError as problem:
            if whole == 0:
                return None
            return "cut-off" if "cut off" in problem.what else "broken"
    return "no-nodes" if whole == 0 else None


def _is(sort: type[pb.Node] | type[pb.GlobalMetadata], message: bytes, begins: bytes | None) -> bool:
    """Whether ``message`` can be a ``sort``; ``begins``: the keys of the fields it can begin with (writers keep to their order)."""
    if begins is not None and message and message[0] not in begins:
        return False
    try:
        sort.FromString(message)
    except DecodeError:
        return False
    return True


def _compressed(path: Path) -> bool:
    with open_source(path) as source:
        return bool(source.packed)


@dataclass(frozen=True, slots=True)
class _Dimensions:
    """Positions of collectives whose ``involved_dim`` is no ``bool_list``, and of those without a group in which nothing is true."""

    no_list: list[int]
    none_true: list[int]


def _bad_dimensions(path: Path) -> _Dimensions:
    out = _Dimensions([], [])
    with open_source(path) as source:
        messages = frames(source)
        next(messages)
        for position, (_, message) in enumerate(messages):
            node = pb.Node.FromString(message)
            named = {attribute.name: attribute for attribute in node.attr}
            given, kind = named.get("involved_dim"), named.get("comm_type")
            if node.type != pb.COMM_COLL_NODE or given is None or (kind is not None and kind.int64_val == pb.BROADCAST):
                continue
            if given.WhichOneof("value") != "bool_list":
                out.no_list.append(position)
            elif not any(given.bool_list.values) and "pg_name" not in named:
                out.none_true.append(position)
    return out


def _target(deps: Deps) -> I64:
    return np.repeat(np.arange(len(deps.first) - 1), np.diff(deps.first))


def _lanes(graph: ChakraFile) -> I64:
    """A number for each thread and stream."""
    major = np.where(graph.host, -1, graph.device)
    minor = np.where(graph.host, graph.tid, graph.stream)
    _, lane = np.unique(np.stack([major, minor]), axis=1, return_inverse=True)
    return np.asarray(lane, np.int64).reshape(-1)
