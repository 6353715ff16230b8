"""The columns of a Chakra graph: what ``read_chakra`` returns, and how blocks of nodes become it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from graphlink.model import I32, I64, NOWHERE, U8, Bool, EdgeKind
from graphlink.records import Short

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


class CommType(IntEnum):
    """``comm_type``; a file may hold other numbers."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


class Has(IntFlag):
    """Bits of ``ChakraFile.has``: the attributes that a node carries, in whatever kind."""

    IS_CPU_OP = 1 << 0
    START_NS = 1 << 1
    END_NS = 1 << 2
    DURATION_NS = 1 << 3
    START_DELAY_NS = 1 << 4
    OVERLAP_NS = 1 << 5
    SELF_NS = 1 << 6
    WAIT_NS = 1 << 7
    TID = 1 << 8
    DEVICE = 1 << 9
    STREAM = 1 << 10
    CORRELATION = 1 << 11
    COMM_TYPE = 1 << 12
    COMM_SIZE = 1 << 13
    COMM_SRC = 1 << 14
    COMM_DST = 1 << 15
    COMM_TAG = 1 << 16
    PG_NAME = 1 << 17
    DEP_KINDS = 1 << 18
    INVOLVED_DIM = 1 << 19
    COMM_TYPE_RECORDED = 1 << 20
    WAKE_NS = 1 << 21
    LAUNCH_LATENCY_NS = 1 << 22


class Fault(IntEnum):
    """Why an entry of ``data_deps`` or ``ctrl_deps`` is no edge."""

    DANGLING = 0  # no node has that id
    DUPLICATE = 1  # the entry stands there twice
    SELF = 2  # the node itself


@dataclass(frozen=True, slots=True, repr=False)
class Deps(Short):
    """Dependencies of one sort as CSR by target: those of node n (position in the file) are ``source[first[n]:first[n + 1]]``.

    ``source`` holds positions in the file, in the order of the file; ``kind`` is an ``EdgeKind`` or ``UNKNOWN_DEP``. Every entry
    resolves, none stands twice at a node, none leads to its own node; cycles are possible.
    """

    first: I64
    source: I32
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
    """Of ``GlobalMetadata``; what is not there is None.

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
    0, see ``has``; ``comm_type`` and the ranks are ``NOWHERE`` where absent.
    """

    path: str
    metadata: Metadata
    strings: tuple[str, ...]
    timed: bool
    id: U64
    name: I32  # into strings
    type: I32  # NodeType, unknown numbers too
    host: Bool  # is_cpu_op
    has: U32  # Has bits
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

    @property
    def recorded_comm(self) -> Bool:
        """Nodes that say which communication they were recorded as (``comm_type_recorded``), computation stand-ins too."""
        mask: Bool = (self.has & Has.COMM_TYPE_RECORDED) != 0
        return mask

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


# (attribute, oneof field that readers expect, bit, a column of NodeBlock.rows)
SCALARS: Final = (
    ("is_cpu_op", "bool_val", Has.IS_CPU_OP),
    ("start_ns", "int64_val", Has.START_NS),
    ("end_ns", "int64_val", Has.END_NS),
    ("duration_ns", "int64_val", Has.DURATION_NS),
    ("start_delay_ns", "int64_val", Has.START_DELAY_NS),
    ("launch_latency_ns", "int64_val", Has.LAUNCH_LATENCY_NS),
    ("overlap_ns", "int64_val", Has.OVERLAP_NS),
    ("self_ns", "int64_val", Has.SELF_NS),
    ("wait_ns", "int64_val", Has.WAIT_NS),
    ("wake_ns", "int64_val", Has.WAKE_NS),
    ("tid", "int64_val", Has.TID),
    ("device", "int64_val", Has.DEVICE),
    ("stream", "int64_val", Has.STREAM),
    ("correlation", "int64_val", Has.CORRELATION),
    ("comm_type", "int64_val", Has.COMM_TYPE),
    ("comm_size", "int64_val", Has.COMM_SIZE),
    ("comm_src", "int32_val", Has.COMM_SRC),
    ("comm_dst", "int32_val", Has.COMM_DST),
    ("comm_tag", "int32_val", Has.COMM_TAG),
    ("pg_name", "string_val", Has.PG_NAME),
)
_HEAD: Final = ("name", "type", "start_micros", "duration_micros", "has", "data_deps", "ctrl_deps")  # the last two: how many
COLUMNS: Final = (*_HEAD, *(name for name, _, _ in SCALARS))
TEMPLATE: Final = [0] * len(COLUMNS)
for _name in ("comm_type", "comm_src", "comm_dst"):
    TEMPLATE[COLUMNS.index(_name)] = NOWHERE
EXPECTED: Final = {name: (COLUMNS.index(name), kind, int(bit)) for name, kind, bit in SCALARS}


SEEN: Final = {"involved_dim": int(Has.INVOLVED_DIM), "comm_type_recorded": int(Has.COMM_TYPE_RECORDED)}  # that they are there
MOST_MICROS: Final = ((1 << 63) - 1) // 1000  # longer times are taken as this


def group_of(text: bytes) -> int:
    """A ``pg_name`` as a number: NO_GROUP for none, BAD_GROUP for what is none."""
    if text == b"":
        return NO_GROUP
    return int(text) if text.isdigit() and len(text) < 19 else BAD_GROUP


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node: ``row`` has ``COLUMNS``; ``kinds`` one byte a data dependency, None = not known."""

    row: list[int]
    id: int
    data_deps: list[int]
    kinds: bytes | None
    ctrl_deps: list[int]
    odd: list[OddAttribute]
    sync_call: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeBlock:
    """Some nodes in file order. ``rows`` has ``COLUMNS``; dependencies of all nodes stand one after the other, as many as rows say."""

    rows: I64
    id: U64
    data: U64
    data_kind: U8
    ctrl: U64
    odd: tuple[OddAttribute, ...]
    sync_call: dict[int, tuple[str, ...]]


def assemble(path: str, metadata: Metadata, strings: Iterable[str], blocks: Iterable[NodeBlock]) -> ChakraFile:
    """The blocks of a file, in its order, as one. n log n in ids that do not ascend, else linear.

    Of a block only its columns are kept while the next one is made; ``strings`` is read when there are no more.
    """
    parts, data, ctrl = [_columns(_NO_NODES)], [], []
    odd: list[OddAttribute] = []
    sync_call: dict[int, tuple[str, ...]] = {}
    for block in blocks:
        parts.append(_columns(block))
        ctrl_counts = _counts(block, "ctrl_deps")
        data.append(_Entries(block.data, _counts(block, "data_deps"), block.data_kind))
        ctrl.append(_Entries(block.ctrl, ctrl_counts, np.full(int(ctrl_counts.sum()), UNKNOWN_DEP, np.uint8)))
        odd += block.odd
        sync_call |= block.sync_call
    column: dict[str, Any] = {name: np.concatenate([part.pop(name) for part in parts]) for name in [*parts[0]]}
    resolve = _Resolver(column["id"])
    needed = np.uint32(Has.START_NS | Has.DURATION_NS)
    return ChakraFile(
        path=path,
        metadata=metadata,
        strings=tuple(strings),
        timed=bool(np.all(column["has"] & needed == needed)),
        data=resolve.deps(data, data=True),
        ctrl=resolve.deps(ctrl, data=False),
        faults=resolve.faults(),
        duplicate_ids=resolve.duplicate_ids,
        odd=tuple(odd),
        sync_call=sync_call,
        **column,
    )


def _counts(block: NodeBlock, column: str) -> I64:
    return block.rows[:, COLUMNS.index(column)].copy()


def _columns(block: NodeBlock) -> dict[str, npt.NDArray[Any]]:
    """The columns of ``ChakraFile`` of some nodes."""
    row = dict(zip(COLUMNS, block.rows.T, strict=True))
    has, host, micros = row["has"].astype(np.uint32), row["is_cpu_op"] != 0, row["duration_micros"] * 1000
    start = np.where(has & Has.START_NS, row["start_ns"], row["start_micros"] * 1000)
    duration = np.where(has & Has.DURATION_NS, row["duration_ns"], micros)
    return {
        "id": block.id,
        "host": host,
        "has": has,
        "start_ns": start,
        "end_ns": np.where(has & Has.END_NS, row["end_ns"], start + duration),
        "duration_ns": duration,
        "cost_ns": duration + np.where(host, 0, row["start_delay_ns"]),
        "group": row["pg_name"].copy(),
        **{name: row[name].copy() for name in _AS_THEY_ARE},
        **{name: row[name].astype(np.int32) for name in ("name", "type", "comm_type", "comm_src", "comm_dst", "comm_tag")},
    }


_AS_THEY_ARE: Final = (
    *("start_delay_ns", "launch_latency_ns", "overlap_ns", "self_ns", "wait_ns", "wake_ns", "duration_micros"),
    *("tid", "device", "stream", "correlation", "comm_size"),
)
_NO_IDS: Final = np.zeros(0, np.uint64)
_NO_NODES: Final = NodeBlock(np.zeros((0, len(COLUMNS)), np.int64), _NO_IDS, _NO_IDS, np.zeros(0, np.uint8), _NO_IDS, (), {})


@dataclass(frozen=True, slots=True)
class _Entries:
    """Dependencies of some nodes of a file, one after the other: ids, how many each node has, kinds."""

    id: U64
    counts: I64
    kind: U8


@dataclass(frozen=True, slots=True)
class _Dependencies:
    """As ``_Entries``, by position instead of id."""

    counts: I64
    source: I32
    kind: U8


_NO_DEPENDENCIES: Final = _Dependencies(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.uint8))


class _Resolver:
    """Ids into positions."""

    def __init__(self, ids: U64) -> None:
        ascend = bool(np.all(ids[1:] > ids[:-1]))
        self._is_position = ascend and (not len(ids) or int(ids[-1]) == len(ids) - 1)
        self._order = np.arange(len(ids)) if ascend else np.argsort(ids, kind="stable")
        self._sorted = ids if ascend else ids[self._order]
        again = np.flatnonzero(self._sorted[1:] == self._sorted[:-1]) + 1
        self.duplicate_ids: I32 = np.sort(self._order[again]).astype(np.int32)
        self._faults: list[Faults] = []

    def deps(self, parts: Sequence[_Entries], *, data: bool) -> Deps:
        """Of all nodes; what is made of a part stays in the processor's cache."""
        begins = np.cumsum([0, *(len(part.counts) for part in parts)])
        good = [_NO_DEPENDENCIES, *(self._good(part, int(begin), data=data) for part, begin in zip(parts, begins, strict=False))]
        first = np.zeros(int(begins[-1]) + 1, np.int64)
        np.cumsum(np.concatenate([g.counts for g in good]), out=first[1:])
        return Deps(first, np.concatenate([g.source for g in good]), np.concatenate([g.kind for g in good]))

    def _good(self, given: _Entries, begin: int, *, data: bool) -> _Dependencies:
        """The entries that are dependencies; the others are noted as faults."""
        target = begin + np.repeat(np.arange(len(given.counts)), given.counts)
        source = self._positions(given.id)
        fault = np.full(len(source), 255, np.uint8)
        if np.any((source[1:] <= source[:-1]) & (target[1:] == target[:-1])):  # else no entry can stand twice
            order = np.lexsort((np.arange(len(source)), source, target))
            twice = np.zeros(len(source), np.bool_)
            twice[order[1:]] = (source[order[1:]] == source[order[:-1]]) & (target[order[1:]] == target[order[:-1]])
            fault[twice] = Fault.DUPLICATE
        fault[source == target] = Fault.SELF
        fault[source == NOWHERE] = Fault.DANGLING
        aside = np.flatnonzero(fault != 255)
        if not len(aside):
            return _Dependencies(given.counts, source.astype(np.int32), given.kind)
        self._faults.append(Faults(target[aside].astype(np.int32), given.id[aside], np.full(len(aside), data), fault[aside]))
        kept = fault == 255
        counts = np.bincount(target[kept] - begin, minlength=len(given.counts))
        return _Dependencies(counts, source[kept].astype(np.int32), given.kind[kept])

    def _positions(self, wanted: U64) -> I64:
        """Position of each id, of equal ids the last in the file; ``NOWHERE`` where there is none."""
        n = len(self._order)
        if self._is_position:
            return np.where(wanted < np.uint64(n), wanted, np.uint64(0)).astype(np.int64) - (wanted >= np.uint64(n))
        at = np.searchsorted(self._sorted, wanted, side="right") - 1
        found = at >= 0
        found[found] = self._sorted[at[found]] == wanted[found]
        return np.where(found, self._order[np.maximum(at, 0)] if n else at, NOWHERE)

    def faults(self) -> Faults:
        given = self._faults
        return Faults(
            np.concatenate([np.zeros(0, np.int32), *(f.node for f in given)]),
            np.concatenate([np.zeros(0, np.uint64), *(f.id for f in given)]),
            np.concatenate([np.zeros(0, np.bool_), *(f.data for f in given)]),
            np.concatenate([np.zeros(0, np.uint8), *(f.fault for f in given)]),
        )
