"""The columns of a Chakra graph, which ``read_chakra`` returns, and how blocks of nodes become them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from graphlink.graph.order import IncomingEdges
from graphlink.model import I32, I64, NOWHERE, U8, Bool, EdgeKind
from graphlink.records import Short
from graphlink.tables import begins, concat

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

UNKNOWN_DEP: Final = 255  # kind of a dependency that the file gives no kind for
NO_GROUP: Final = 0
TWICE: Final = "twice"  # kind of an odd attribute that stands there again with another value
BAD_GROUP: Final = -1  # a ``pg_name`` that is no decimal number; the text is in ``odd``


class NodeType(IntEnum):
    """``Node.type``; a file may hold other numbers."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class Fault(IntEnum):
    """Why an entry of ``data_deps`` or ``ctrl_deps`` is no edge."""

    DANGLING = 0  # no node has that id
    DUPLICATE = 1  # the entry stands there twice
    SELF = 2  # the node itself


@dataclass(frozen=True, slots=True, repr=False)
class Deps(Short, IncomingEdges):
    """Dependencies of one sort: of positions in the file on positions in it, in the order of the file.

    ``kind`` is an ``EdgeKind`` or ``UNKNOWN_DEP``. Every entry resolves, none stands twice at a node, none leads to its own node; cycles
    are possible.
    """

    kind: U8


@dataclass(frozen=True, slots=True, repr=False)
class Faults(Short):
    """Entries that are no edges, in file order: of ``node`` (position), to ``id``, in ``data_deps`` (else ``ctrl_deps``)."""

    node: I32
    id: U64
    data: Bool
    fault: U8  # Fault


@dataclass(frozen=True, slots=True)
class OddAttribute:
    """An attribute of another kind than readers expect (or a ``pg_name`` that is no number): ``kind`` is the oneof field it is in.

    With kind ``TWICE``: it stands there again with another value; the last is in the columns, both are in ``value``.
    """

    node: int
    name: str
    kind: str  # "" = there is no value
    value: str


@dataclass(frozen=True, slots=True)
class Metadata:
    """Fields of ``GlobalMetadata``; None where it has none.

    ``graphlink`` is the version that wrote the file; ``host`` is "launches" where it folded host nodes. ``epoch_ns`` is the rank's own
    clock at ``start_ns`` 0; the run's clock = own + ``clock_offset_ns`` + ``clock_drift_ppb`` / 1e9 * (own - ``epoch_ns``), both 0 where
    the file does not have them.
    """

    version: str
    graphlink: str | None
    epoch_ns: int | None
    rank: int | None
    world_size: int | None
    host: str | None = None
    clock_offset_ns: int = 0
    clock_drift_ppb: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class ChakraFile(Short):
    """A graph as it stands in a file: one entry a node, in file order; positions (not ids) name nodes in other columns.

    Files of others have no ns: ``duration_ns`` and ``cost_ns`` are then ``duration_micros`` x 1000, ``start_ns`` is
    ``start_time_micros`` x 1000 (0 where absent), ``end_ns`` the sum; ``timed`` says that every node has its ns. Absent integers are
    0, see ``says``; ``comm_type`` and the ranks are ``NOWHERE`` where absent.
    """

    path: str
    metadata: Metadata
    strings: tuple[str, ...]
    timed: bool
    id: U64
    name: I32  # into strings
    type: I32  # NodeType, unknown numbers too
    host: Bool  # is_cpu_op
    has: U32  # bits of ``HAS``: the attributes that a node carries, in whatever kind
    start_ns: I64
    end_ns: I64
    duration_ns: I64
    start_delay_ns: I64
    launch_latency_ns: I64
    overlap_ns: I64
    self_ns: I64
    wait_ns: I64
    wake_ns: I64
    cost_ns: I64  # of a host node duration_ns, else duration_ns + start_delay_ns
    duration_micros: I64  # as written
    tid: I64
    device: I64
    stream: I64
    correlation: I64
    comm_type: I32
    comm_size: I64
    comm_src: I32
    comm_dst: I32
    comm_tag: I32
    group: I64  # pg_name: NO_GROUP, BAD_GROUP, else its number
    data: Deps
    ctrl: Deps
    faults: Faults
    duplicate_ids: I32  # positions of nodes whose id a node before them has; dependencies go to the last one, as in ASTRA-sim
    odd: tuple[OddAttribute, ...]
    sync_call: dict[int, tuple[str, ...]]  # position -> the calls whose waiting ended there, of the few nodes that say so

    def says(self, name: str) -> Bool:
        """Return which nodes carry an attribute, one of ``HAS``, in whatever kind."""
        return np.asarray((self.has & np.uint32(HAS[name])) != 0)

    def name_of(self, node: int) -> str:
        return self.strings[int(self.name[node])]

    def _shown(self) -> list[tuple[str, str]]:
        host = int(np.count_nonzero(self.host))
        edges = [(f"edges: {k.name.lower()}", int(np.count_nonzero(self.data.kind == k))) for k in EdgeKind]
        long_ns = int(self.end_ns.max(initial=0) - self.start_ns.min(initial=0))
        return [
            ("rank", f"{self.metadata.rank} of {self.metadata.world_size}"),
            ("nodes", f"{len(self.id):,}: {host:,} of the host, {len(self.id) - host:,} of devices"),
            *((name, f"{count:,}") for name, count in edges if count),
            ("from first start to last end", f"{long_ns / 1e6:,.3f} ms"),
        ]


# attributes that are integers in columns: name -> oneof field that readers expect
_FIELDS: Final = {
    "is_cpu_op": "bool_val",
    **dict.fromkeys(("start_ns", "end_ns", "duration_ns", "start_delay_ns", "launch_latency_ns", "overlap_ns"), "int64_val"),
    **dict.fromkeys(("self_ns", "wait_ns", "wake_ns", "tid", "device", "stream", "correlation"), "int64_val"),
    **dict.fromkeys(("comm_type", "comm_size"), "int64_val"),
    **dict.fromkeys(("comm_src", "comm_dst", "comm_tag"), "int32_val"),
    "pg_name": "string_val",
}
_HEAD: Final = ("name", "type", "start_micros", "duration_micros", "has", "data_deps", "ctrl_deps")  # the last two: how many
COLUMNS: Final = (*_HEAD, *_FIELDS)
ABSENT: Final = [NOWHERE if name in ("comm_type", "comm_src", "comm_dst") else 0 for name in _FIELDS]
HAS: Final = {name: 1 << i for i, name in enumerate((*_FIELDS, "dep_kinds", "involved_dim", "comm_type_recorded"))}
EXPECTED: Final = {name: (i, kind, HAS[name]) for i, (name, kind) in enumerate(_FIELDS.items())}
MOST_MICROS: Final = ((1 << 63) - 1) // 1000  # longer times are taken as this


@dataclass(slots=True)
class NodeBlock:
    """Some nodes in file order, while they are read: ``rows`` has ``COLUMNS`` of one node after the other, ``data`` and ``ctrl`` the ids
    of the dependencies of all of them, as many as the rows say, ``data_kind`` a byte per data dependency.
    """

    rows: array[int] = field(default_factory=lambda: array("q"))
    id: array[int] = field(default_factory=lambda: array("Q"))
    data: array[int] = field(default_factory=lambda: array("Q"))
    data_kind: bytearray = field(default_factory=bytearray)
    ctrl: array[int] = field(default_factory=lambda: array("Q"))
    odd: list[OddAttribute] = field(default_factory=list)
    sync_call: dict[int, tuple[str, ...]] = field(default_factory=dict)


def assemble(path: str, metadata: Metadata, strings: Iterable[str], blocks: Iterable[NodeBlock]) -> ChakraFile:
    """Join the blocks of a file, in its order. n log n in ids that do not ascend, else linear.

    Of a block only its columns are kept while the next one is made; ``strings`` is read when there are no more.
    """
    parts: list[dict[str, npt.NDArray[Any]]] = []
    odd: list[OddAttribute] = []
    sync_call: dict[int, tuple[str, ...]] = {}
    for block in chain([NodeBlock()], blocks):
        parts.append(_columns(block))
        odd += block.odd
        sync_call |= block.sync_call
    column: dict[str, Any] = {name: np.concatenate([part.pop(name) for part in parts]) for name in [*parts[0]]}
    ids, kind, ctrl_ids = column["id"], column.pop("data_kind"), column.pop("ctrl")
    data, broken = _dependencies(ids, column.pop("data"), column.pop("data_deps"), kind, data=True)
    none = np.full(len(ctrl_ids), UNKNOWN_DEP, np.uint8)
    ctrl, more = _dependencies(ids, ctrl_ids, column.pop("ctrl_deps"), none, data=False)
    by_id = np.argsort(ids, kind="stable")
    needed = np.uint32(HAS["start_ns"] | HAS["duration_ns"])
    return ChakraFile(
        path=path,
        metadata=metadata,
        strings=tuple(strings),
        timed=bool(np.all(column["has"] & needed == needed)),
        data=data,
        ctrl=ctrl,
        faults=concat(broken, more),
        duplicate_ids=np.sort(by_id[~begins(ids[by_id])]).astype(np.int32),
        odd=tuple(odd),
        sync_call=sync_call,
        **column,
    )


def _columns(block: NodeBlock) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of ``ChakraFile`` of some nodes, and what dependencies are made of."""
    row = dict(zip(COLUMNS, np.array(block.rows, np.int64).reshape(-1, len(COLUMNS)).T, strict=True))
    has, host, micros = row["has"].astype(np.uint32), row["is_cpu_op"] != 0, row["duration_micros"] * 1000
    start = np.where(has & HAS["start_ns"], row["start_ns"], row["start_micros"] * 1000)
    duration = np.where(has & HAS["duration_ns"], row["duration_ns"], micros)
    return {
        "id": np.array(block.id, np.uint64),
        "data": np.array(block.data, np.uint64),
        "data_kind": np.array(block.data_kind, np.uint8),
        "ctrl": np.array(block.ctrl, np.uint64),
        "host": host,
        "has": has,
        "start_ns": start,
        "end_ns": np.where(has & HAS["end_ns"], row["end_ns"], start + duration),
        "duration_ns": duration,
        "cost_ns": duration + np.where(host, 0, row["start_delay_ns"]),
        "group": row["pg_name"].copy(),
        **{name: row[name].copy() for name in _AS_THEY_ARE},
        **{name: row[name].astype(np.int32) for name in ("name", "type", "comm_type", "comm_src", "comm_dst", "comm_tag")},
    }


_AS_THEY_ARE: Final = (
    *("start_delay_ns", "launch_latency_ns", "overlap_ns", "self_ns", "wait_ns", "wake_ns", "duration_micros"),
    *("tid", "device", "stream", "correlation", "comm_size", "data_deps", "ctrl_deps"),
)


def _positions(ids: U64, wanted: U64) -> I64:
    """Return the position of each of the ids ``wanted``, of equal ids the last in the file; ``NOWHERE`` where there is none."""
    n = len(ids)
    if np.array_equal(ids, np.arange(n, dtype=np.uint64)):
        return np.where(wanted < np.uint64(n), wanted, np.uint64(0)).astype(np.int64) - (wanted >= np.uint64(n))
    order = np.argsort(ids, kind="stable")
    at = np.searchsorted(ids, wanted, side="right", sorter=order) - 1
    at[ids[order[at]] != wanted] = NOWHERE
    return np.append(order, NOWHERE)[at]


def _dependencies(ids: U64, wanted: U64, counts: I64, kind: U8, *, data: bool) -> tuple[Deps, Faults]:
    """Resolve the entries of all nodes, ``counts`` of each; what is no edge is a fault."""
    target, source = np.repeat(np.arange(len(counts)), counts), _positions(ids, wanted)
    fault = np.full(len(source), _NO_FAULT, np.uint8)
    if np.any((source[1:] <= source[:-1]) & (target[1:] == target[:-1])):  # else no entry can stand twice
        order = np.lexsort((source, target))
        fault[order[~begins(source[order], target[order])]] = Fault.DUPLICATE
    fault[source == target] = Fault.SELF
    fault[source == NOWHERE] = Fault.DANGLING
    good, bad = fault == _NO_FAULT, np.flatnonzero(fault != _NO_FAULT)
    first = np.append(0, np.cumsum(np.bincount(target[good], minlength=len(counts))))
    faults = Faults(target[bad].astype(np.int32), wanted[bad], np.full(len(bad), data), fault[bad])
    return Deps(first, source[good].astype(np.int32), kind[good]), faults


_NO_FAULT: Final = 255
