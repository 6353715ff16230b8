"""Judges one rank's Chakra graph, whoever wrote it, against what ASTRA-sim takes (``graphlink.astra.check_rules``)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Final

import numpy as np
from chakra.schema.protobuf import et_def_pb2 as pb
from google.protobuf.message import DecodeError

from graphlink.astra.check_rules import Findings
from graphlink.astra.circle import Ordered
from graphlink.depend.edges import cycle, topological
from graphlink.errors import InputError
from graphlink.graph.et_columns import TWICE
from graphlink.graph.order import Reach
from graphlink.graph.read_et import frames, read_et
from graphlink.graph_model import BAD_GROUP, NO_GROUP, Fault, Graph, Groups, IncomingEdges
from graphlink.model import I32, I64, Bool
from graphlink.read.source import open_source
from graphlink.tables import codes, how_many, in_order, marked, numbered_values, successive

LONG_MICROS: Final = 1 << 46  # ran; twice that did not
LATEST_MICROS: Final = 1 << 45  # at which communication may not begin; half of it ran
EXACT_MICROS: Final = (1 << 53) // 1000  # beyond, doubles, which hold ASTRA-sim's times in ns, lack every second ns
COMMUNICATION: Final = (pb.COMM_COLL_NODE, pb.COMM_SEND_NODE, pb.COMM_RECV_NODE)
WIDE: Final = 4_000  # nodes ready at once, from where ASTRA-sim takes seconds
CYCLE_SHOWN: Final = 8  # nodes of a cycle that are printed
SUPPORTED: Final = (pb.ALL_REDUCE, pb.ALL_GATHER, pb.ALL_TO_ALL, pb.REDUCE_SCATTER, pb.BROADCAST)
INTEGERS: Final = frozenset(
    f"{kind}_val"
    for kind in (
        "int32",
        "int64",
        "uint32",
        "uint64",
        "sint32",
        "sint64",
        "fixed32",
        "fixed64",
        "sfixed32",
        "sfixed64",
        "bool",
    )
)
TINY_BYTES, SMALL_BYTES = 4, 64  # of an ALL_GATHER shard: stock system files split by 4, none by more than 64
HIGHEST_GROUP: Final = 2**31 - 1
_CPU_ATTRIBUTES: Final = {"is_cpu_op"}
_NOTHING: Final = repeat("")
_READ_BY: Final = {  # attribute -> node types for which ASTRA-sim reads it; what is not here is never read
    "comm_type": {pb.COMM_COLL_NODE},
    "pg_name": {pb.COMM_COLL_NODE},
    "comm_size": {pb.COMM_COLL_NODE, pb.COMM_SEND_NODE, pb.COMM_RECV_NODE},
    "comm_src": {pb.COMM_SEND_NODE, pb.COMM_RECV_NODE},
    "comm_dst": {pb.COMM_SEND_NODE, pb.COMM_RECV_NODE},
    "comm_tag": {pb.COMM_SEND_NODE, pb.COMM_RECV_NODE},
}

Masks = dict[str, Bool]  # by key of a rule: which nodes break it


@dataclass(frozen=True, slots=True)
class RankFile:
    """A ``.et`` with the run and the rank that its name says; ``rank`` None where the simulator would not find it."""

    path: Path
    prefix: str
    rank: int | None

    @staticmethod
    def of(path: Path) -> RankFile:
        """Read prefix and rank from the name of the file."""
        named = re.fullmatch(r"(.+)\.(0|[1-9][0-9]{0,8})\.et", path.name)
        return RankFile(path, named[1], int(named[2])) if named else RankFile(path, path.name.removesuffix(".et"), None)


class RankRules:
    """All rules that one file can break; ``world`` ranks take part in the run. ``rank``: as the simulator takes it,
    from the file's name; else what the file says, else 0."""

    def __init__(self, file: RankFile, graph: Graph, groups: Groups | None, world: int, findings: Findings):
        self.file, self.graph, self._groups, self._world, self._out = file, graph, groups, world, findings
        self.rank = next(r for r in (file.rank, graph.metadata.rank, 0) if r is not None)
        self.ordered: Ordered | None = None  # once judged, of a graph without cycles
        self._data, self._ctrl = graph.data, graph.file.ctrl
        source, target = (
            np.concatenate([getattr(self._data, end), getattr(self._ctrl, end)]) for end in ("source", "target")
        )
        self._both: IncomingEdges = IncomingEdges.of(len(graph.id), source, target)

    def add(self, key: str, nodes: I32 | I64, more: Iterable[str] = _NOTHING) -> None:
        """Add nodes that break a rule. ``more``: what is reported of each after its name."""
        self._out.add(
            key, len(nodes), (self.told(node) + text for node, text in zip(nodes.tolist(), more, strict=False))
        )

    def told(self, node: int) -> str:
        """Describe a node: rank, id, name."""
        name = self.graph.name_of(node)
        shown = name if len(name) <= 60 else f"{name[:57]}..."
        return f'rank {self.rank} node {self.graph.id[node]} "{shown}"'

    def judge(self) -> None:
        """Judge the graph by all rules; what they find goes into the findings."""
        self._file()
        if not len(self.graph.id):
            self._out.add("no-nodes", 1, [f"rank {self.rank}"])
            return
        self._dependencies()
        self._cycles()
        for key, broken in (*self._nodes().items(), *comm_rules(self.graph, self.rank, self._world, self._groups)):
            self.add(key, np.flatnonzero(broken))
        self._scheduling()
        self._attribute_kinds()

    def _file(self) -> None:
        name, meta = self.file.path.name, self.graph.metadata
        with open_source(self.file.path) as source:
            compressed = bool(source.packed)
        for key, broken, text in (
            ("no-version", not meta.version, f"rank {self.rank}"),
            ("file-name", self.file.rank is None, name),
            ("other-rank", meta.rank is not None and meta.rank != self.rank, f"{name} says rank {meta.rank}"),
            ("compressed", compressed, name),
        ):
            self._out.add(key, broken, [text])

    def _dependencies(self) -> None:
        graph = self.graph
        faults = graph.file.faults
        for key, fault, data in (
            ("dangling-data", Fault.DANGLING, True),
            ("dangling-ctrl", Fault.DANGLING, False),
            ("duplicate-data", Fault.DUPLICATE, True),
            ("self-data", Fault.SELF, True),
            ("self-ctrl", Fault.SELF, False),
        ):
            at = np.flatnonzero((faults.fault == fault) & (faults.data == data))
            self.add(key, faults.node[at], (f" -> {i}" for i in faults.id[at].tolist()))
        self.add("duplicate-id", graph.file.duplicate_ids)
        target = self._both.target
        self.add("parents-late", np.unique(target[self._both.source > target]))

    def _cycles(self) -> None:
        graph = self.graph
        n = len(graph.id)
        wish = np.argsort(graph.id, kind="stable")
        if not np.any(np.diff(self._both.first) == 0):
            self._out.add("no-start", 1, [f"rank {self.rank}"])
        order = topological(self._data.source, self._data.target, wish)
        if len(order) < n:
            self._out.add("cycle", n - len(order), [self._circle(self._data, order)])
            return
        mixed = topological(self._both.source, self._both.target, wish)
        if len(mixed) < n:
            self._out.add("cycle-mixed", n - len(mixed), [self._circle(self._both, mixed)])
        major, minor = np.where(graph.host, -1, graph.device), np.where(graph.host, graph.tid, graph.stream)
        reach = Reach(self._data, order, codes(major, minor))  # by thread and stream
        self.ordered = Ordered(self._both, mixed, reach) if len(mixed) == n else Ordered(self._data, order, reach)
        before, after = self._ctrl.source, self._ctrl.target
        yes, undecided = reach(before, after)
        for key, mask in (("ctrl-alone", ~yes & ~undecided), ("ctrl-undecided", undecided)):
            self.add(key, after[mask], (f" -> {i}" for i in graph.id[before[mask]].tolist()))
        nodes = np.flatnonzero(graph.type == pb.COMM_COLL_NODE)
        before, after = successive(in_order(nodes, graph.group, graph.id), graph.group)
        yes, undecided = reach(before, after)
        loose = ~yes & ~undecided
        self.add("unchained", after[loose], (f" after {i}" for i in graph.id[before[loose]].tolist()))
        if int(graph.file.duration_micros.astype(np.float64).sum()) >= EXACT_MICROS:
            self._late()

    def _late(self) -> None:
        """Find what begins or ends later than the simulator can count."""
        assert self.ordered is not None
        graph, first, source = self.graph, self._data.first.tolist(), self._data.source.tolist()
        took, begun = graph.file.duration_micros.tolist(), [0] * len(graph.id)
        for i in self.ordered.order.tolist():
            begun[i] = max((begun[s] + took[s] for s in source[first[i] : first[i + 1]]), default=0)
        late = np.array([at >= LATEST_MICROS for at in begun], np.bool_)
        communicates = np.isin(graph.type, COMMUNICATION)
        self.add("late-communication", np.flatnonzero(late & communicates))
        inexact = np.array([at + took_us > EXACT_MICROS for at, took_us in zip(begun, took, strict=True)], np.bool_)
        self.add("beyond-double", np.flatnonzero(inexact & communicates.any()))

    def _circle(self, edges: IncomingEdges, order: I64) -> str:
        graph = self.graph
        nodes = cycle(edges.source, edges.target, order, len(graph.id))

        def step(a: int, b: int) -> str:
            kind = "data" if b in graph.source[graph.first[a] : graph.first[a + 1]] else "ctrl"
            return f'{graph.id[a]} "{graph.name_of(a)[:40]}" -{kind}->'

        steps = [step(a, b) for a, b in zip(nodes, nodes[1:] + nodes[:1], strict=True)]
        more = [f"... ({len(steps) - CYCLE_SHOWN} more)"] if len(steps) > CYCLE_SHOWN else []
        return f"rank {self.rank}, {len(nodes)} nodes: " + " ".join(
            [*steps[:CYCLE_SHOWN], *more, str(graph.id[nodes[0]])]
        )

    def _nodes(self) -> dict[str, Bool]:
        """Return by rule the nodes that break it."""
        graph = self.graph
        kind = graph.type
        empty = (kind == pb.INVALID_NODE) & (graph.id == 0) & (graph.file.has == 0) & (graph.file.duration_micros == 0)
        empty &= np.array([not s for s in graph.strings] or [True], np.bool_)[graph.name]
        found = {
            "empty-message": empty,
            "metadata-node": kind == pb.METADATA_NODE,
            "memory-node": np.isin(kind, (pb.MEM_LOAD_NODE, pb.MEM_STORE_NODE)),
            "invalid-node": (kind == pb.INVALID_NODE) & ~empty,
            "unknown-type": (kind < pb.INVALID_NODE) | (kind > pb.COMM_COLL_NODE),
            "comm-on-cpu": graph.host & np.isin(kind, COMMUNICATION),
            "cpu-statistics": graph.host,
            "no-duration": graph.file.duration_micros == 0,
            "long-duration": graph.file.duration_micros > LONG_MICROS,
        }
        if graph.host.any():
            leaf = ~marked(len(kind), self._both.source)
            message = leaf & np.isin(kind, (pb.COMM_SEND_NODE, pb.COMM_RECV_NODE))
            found["last-node" if np.array_equal(message, leaf) else "maybe-last"] = message
        return found

    def _scheduling(self) -> None:
        """Judge nodes that are surely ready together: those without dependencies, and those that wait for one and the
        same node only.
        """
        graph = self.graph
        n = len(graph.id)
        count = np.diff(self._both.first)
        free = how_many(count == 0)
        self._out.add("wide-fan", free > WIDE, [f"rank {self.rank}: {free} nodes without dependencies"])
        alone = np.flatnonzero((np.diff(graph.first) == 1) & (count == 1))
        fan = np.bincount(graph.source[graph.first[alone]], minlength=n)
        wide = np.flatnonzero(fan > WIDE)
        self.add("wide-fan", wide, (f" releases {more} nodes" for more in fan[wide].tolist()))
        order = np.argsort(graph.id, kind="stable")
        start = graph.start_ns[order]
        self.add("start-order", np.sort(order[start < np.maximum.accumulate(start)]))

    def _attribute_kinds(self) -> None:
        found: dict[str, list[str]] = defaultdict(list)
        for odd in self.graph.file.odd:
            on_cpu = odd.name in _CPU_ATTRIBUTES
            if not on_cpu and int(self.graph.type[odd.node]) not in _READ_BY.get(odd.name, ()):
                continue
            text = f"{self.told(odd.node)}: {odd.name} is {odd.kind or 'without value'} {odd.value}".rstrip()
            if odd.kind == TWICE:
                found["attribute-twice"].append(f"{self.told(odd.node)}: {odd.name} is {odd.value}")
            elif odd.kind not in (("string_val",) if odd.name == "pg_name" else INTEGERS):
                found["cpu-kind" if on_cpu else "kind-throws"].append(text)
            elif odd.name != "pg_name" and odd.value not in ("0", "False"):
                found["kind-zero"].append(text)
        for key, texts in found.items():
            self._out.add(key, len(texts), texts)
        if self.graph.says("involved_dim").any():
            for key, nodes in _bad_dimensions(self.file.path).items():
                self.add(key, np.array(nodes, np.int64))


def comm_rules(graph: Graph, rank: int, world: int, groups: Groups | None) -> Iterator[tuple[str, Bool]]:
    """Yield the nodes that break each rule of communication: of attributes, of groups, of messages."""
    coll, kind, size = graph.type == pb.COMM_COLL_NODE, graph.comm_type, graph.comm_size
    coupled = coll & (kind != pb.BROADCAST)
    send, recv = graph.type == pb.COMM_SEND_NODE, graph.type == pb.COMM_RECV_NODE
    typed, sized = coll & _has(graph, "comm_type"), coll & _has(graph, "comm_size")
    gather = sized & (kind == pb.ALL_GATHER)
    attributes = {
        "no-comm-type": coll & ~graph.says("comm_type"),
        "no-comm-size": (coll | send | recv) & ~graph.says("comm_size"),
        "no-peer": (send & ~graph.says("comm_dst")) | (recv & ~graph.says("comm_src")),
        "no-tag": (send | recv) & ~graph.says("comm_tag"),
        "unsupported": typed & ~np.isin(kind, SUPPORTED),
        "broadcast": typed & (kind == pb.BROADCAST),
        "empty-gather": gather & (size == 0),
        "tiny-gather": gather & (size > 0) & (size < TINY_BYTES),
        "small-gather": gather & (size >= TINY_BYTES) & (size < SMALL_BYTES),
        "size-zero": sized & (size == 0) & (kind != pb.ALL_GATHER) & (kind != pb.BROADCAST),
        "negative-size": (coupled | send | recv) & (size < 0),
        "group-of-one": coupled & (graph.group == NO_GROUP) & (graph.metadata.world_size == 1),
    }
    src, dst = _has(graph, "comm_src"), _has(graph, "comm_dst")
    peer = np.where(send, graph.comm_dst, graph.comm_src)
    known = (send & dst) | (recv & src)
    messages = {
        "foreign-end": (send & src & (graph.comm_src != rank)) | (recv & dst & (graph.comm_dst != rank)),
        "to-itself": known & (peer == rank),
        "no-such-rank": known & ((peer < 0) | (peer >= world)),
        "negative-tag": (send | recv) & (graph.comm_tag < 0),
        "empty-send": send & _has(graph, "comm_size") & (size == 0),
    }
    for masks in (attributes, _groups(graph, coll, coupled, rank, groups), messages):
        yield from masks.items()


def _has(graph: Graph, name: str) -> Bool:
    """Mark the nodes that carry the attribute with a value in it that a reader can make a number of."""
    out = graph.says(name)
    out[[odd.node for odd in graph.file.odd if odd.name == name and odd.kind not in (*INTEGERS, TWICE)]] = False
    return out


def _groups(graph: Graph, coll: Bool, coupled: Bool, rank: int, groups: Groups | None) -> Masks:
    given = coll & graph.says("pg_name")
    text, prefix, huge, negative = (np.zeros(len(coll), np.bool_) for _ in range(4))
    for odd in graph.file.odd:
        if odd.name != "pg_name" or odd.kind != "string_val":
            continue
        number = re.match(r"\s*[+-]?[0-9]+", odd.value)
        if number is None:
            text[odd.node] = True
        elif abs(int(number[0])) > HIGHEST_GROUP:
            huge[odd.node] = True
        elif number[0] == odd.value:  # a sign or a space before it
            negative[odd.node] = int(number[0]) < 0
        else:
            prefix[odd.node] = True
    named = coll & (graph.group > NO_GROUP) & (graph.group <= HIGHEST_GROUP)
    names = {
        "group-text": given & text,
        "group-prefix": given & prefix,
        "group-huge": given & (huge | (graph.group > HIGHEST_GROUP)),
        "group-zero": given & (graph.group == NO_GROUP),
    }
    if groups is None:
        return names | {"no-groups": named}
    ids, which = numbered_values(np.where(named, graph.group, BAD_GROUP))
    members = [groups.get(int(i)) for i in ids]

    def where(broken: list[bool]) -> Bool:
        return named & np.array(broken, np.bool_)[which]

    return names | {
        "group-unknown": where([m is None for m in members]) | (coll & negative),
        "group-of-one": coupled & where([m is not None and len(m) == 1 for m in members]),
        "outside-group": coupled & where([m is not None and rank not in m for m in members]),
        "legacy-group": named & (len(np.unique(graph.group[named])) > 1),
    }


def read_or_judge(file: RankFile, findings: Findings) -> Graph | None:
    """Return the graph of ``file``, or None where its framing is such that nothing else can be judged: then that is a
    finding.

    Raises:
        InputError: it cannot be opened, or is no Chakra graph at all.
    """
    try:
        return read_et(file.path)
    except InputError as problem:
        key = _framing(file.path)
        if key is None:
            raise
        findings.add(key, 1, [f"{file.path.name}: {problem.what}" + (f" ({problem.where})" if problem.where else "")])
        return None


def _framing(path: Path) -> str | None:
    """Return the framing rule that ``path`` breaks; None where it has nothing of a Chakra graph, or none at all."""
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
    """Tell whether ``message`` can be a ``sort``; ``begins``: the keys of the fields it can begin with (writers keep to
    their order).
    """
    with suppress(DecodeError):
        sort.FromString(message)
        return begins is None or not message or message[0] in begins
    return False


def _bad_dimensions(path: Path) -> dict[str, list[int]]:
    """Return the positions of collectives whose ``involved_dim`` is no ``bool_list``, and of those without a group in
    which nothing is true."""
    out: dict[str, list[int]] = {"involved-dim": [], "no-dimension": []}
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
                out["involved-dim"].append(position)
            elif not any(given.bool_list.values) and "pg_name" not in named:
                out["no-dimension"].append(position)
    return out
