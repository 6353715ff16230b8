"""The columns of a Chakra graph: what ``read_chakra`` returns, and how blocks of nodes become it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

import numpy as np
import numpy.typing as npt

from graphlink.model import I32, I64, NOWHERE, U8, Bool

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

UNKNOWN_DEP: Final = 255  # kind of a dependency that the file gives no kind for
NO_GROUP: Final = 0
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


class Fault(IntEnum):
    """Why an entry of ``data_deps`` or ``ctrl_deps`` is no edge."""

    DANGLING = 0  # no node has that id
    DUPLICATE = 1  # the entry stands there twice
    SELF = 2  # the node itself


@dataclass(frozen=True, slots=True)
class Deps:
    """Dependencies of one sort as CSR by target: those of node n (position in the file) are ``source[first[n]:first[n + 1]]``.

    ``source`` holds positions in the file, in the order of the file; ``kind`` is an ``EdgeKind`` or ``UNKNOWN_DEP``. Every entry
    resolves, none stands twice at a node, none leads to its own node; cycles are possible.
    """

    first: I64
    source: I32
    kind: U8


@dataclass(frozen=True, slots=True)
class Faults:
    """Entries that are no edges, in file order: of ``node`` (position), to ``id``, in ``data_deps`` (else ``ctrl_deps``)."""

    node: I32
    id: U64
    data: Bool
    fault: U8  # Fault


@dataclass(frozen=True, slots=True)
class OddAttribute:
    """An attribute of another kind than readers expect (or a ``pg_name`` that is no number): ``kind`` is the oneof field it is in."""

    node: int
    name: str
    kind: str  # "" = there is no value
    value: str


@dataclass(frozen=True, slots=True)
class Metadata:
    """Of ``GlobalMetadata``; what is not there is None. ``graphlink`` is the version that wrote the file."""

    version: str
    graphlink: str | None
    epoch_ns: int | None
    rank: int | None
    world_size: int | None


@dataclass(frozen=True, slots=True)
class ChakraFile:
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


# (attribute, oneof field that readers expect, bit, a column of NodeBlock.rows)
SCALARS: Final = (
    ("is_cpu_op", "bool_val", Has.IS_CPU_OP),
    ("start_ns", "int64_val", Has.START_NS),
    ("end_ns", "int64_val", Has.END_NS),
    ("duration_ns", "int64_val", Has.DURATION_NS),
    ("start_delay_ns", "int64_val", Has.START_DELAY_NS),
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


def assemble(path: str, metadata: Metadata, strings: tuple[str, ...], blocks: Sequence[NodeBlock]) -> ChakraFile:
    """The blocks of a file, in its order, as one. n log n in ids that do not ascend, else linear."""
    nothing = np.zeros(0, np.int64)
    column = {name: np.concatenate([nothing, *(b.rows[:, i] for b in blocks)]) for i, name in enumerate(COLUMNS)}
    has = column["has"].astype(np.uint32)
    host = column["is_cpu_op"] != 0
    micros = column["duration_micros"] * 1000
    start = np.where(has & Has.START_NS, column["start_ns"], column["start_micros"] * 1000)
    duration = np.where(has & Has.DURATION_NS, column["duration_ns"], micros)
    end = np.where(has & Has.END_NS, column["end_ns"], start + duration)
    none = np.zeros(0, np.uint64)
    ids = np.concatenate([none, *(b.id for b in blocks)])
    resolve = _Resolver(ids)
    kinds = np.concatenate([np.zeros(0, np.uint8), *(b.data_kind for b in blocks)])
    data = resolve.deps(np.concatenate([none, *(b.data for b in blocks)]), column["data_deps"], kinds, data=True)
    unknown = np.full(int(column["ctrl_deps"].sum()), UNKNOWN_DEP, np.uint8)
    ctrl = resolve.deps(np.concatenate([none, *(b.ctrl for b in blocks)]), column["ctrl_deps"], unknown, data=False)
    needed = np.uint32(Has.START_NS | Has.DURATION_NS)
    return ChakraFile(
        path=path,
        metadata=metadata,
        strings=strings,
        timed=bool(np.all(has & needed == needed)),
        id=ids,
        host=host,
        has=has,
        start_ns=start,
        end_ns=end,
        duration_ns=duration,
        cost_ns=duration + np.where(host, 0, column["start_delay_ns"]),
        duration_micros=column["duration_micros"],
        group=column["pg_name"],
        data=data,
        ctrl=ctrl,
        faults=resolve.faults(),
        duplicate_ids=resolve.duplicate_ids,
        odd=tuple(o for b in blocks for o in b.odd),
        sync_call={i: names for b in blocks for i, names in b.sync_call.items()},
        start_delay_ns=column["start_delay_ns"],
        overlap_ns=column["overlap_ns"],
        self_ns=column["self_ns"],
        wait_ns=column["wait_ns"],
        wake_ns=column["wake_ns"],
        tid=column["tid"],
        device=column["device"],
        stream=column["stream"],
        correlation=column["correlation"],
        comm_size=column["comm_size"],
        name=column["name"].astype(np.int32),
        type=column["type"].astype(np.int32),
        comm_type=column["comm_type"].astype(np.int32),
        comm_src=column["comm_src"].astype(np.int32),
        comm_dst=column["comm_dst"].astype(np.int32),
        comm_tag=column["comm_tag"].astype(np.int32),
    )


class _Resolver:
    """Ids into positions."""

    def __init__(self, ids: U64) -> None:
        n = len(ids)
        self._order = np.argsort(ids, kind="stable")
        self._sorted = ids[self._order]
        again = np.zeros(n, np.bool_)
        again[1:] = self._sorted[1:] == self._sorted[:-1]
        self.duplicate_ids: I32 = np.sort(self._order[again]).astype(np.int32)
        self._is_position = bool(np.array_equal(ids, np.arange(n, dtype=np.uint64)))
        self._faults: list[Faults] = []

    def deps(self, wanted: U64, counts: I64, kinds: U8, *, data: bool) -> Deps:
        count = len(counts)
        first = np.zeros(count + 1, np.int64)
        np.cumsum(counts, out=first[1:])
        target = np.repeat(np.arange(count, dtype=np.int64), counts)
        source = self._positions(wanted)
        found = source != NOWHERE
        fault = np.full(len(wanted), 255, np.uint8)
        if np.any((source[1:] <= source[:-1]) & (target[1:] == target[:-1])):  # else no entry can stand twice
            order = np.lexsort((np.arange(len(wanted)), source, target))
            twice = np.zeros(len(wanted), np.bool_)
            twice[order[1:]] = (source[order[1:]] == source[order[:-1]]) & (target[order[1:]] == target[order[:-1]])
            fault[twice] = Fault.DUPLICATE
        fault[source == target] = Fault.SELF
        fault[~found] = Fault.DANGLING
        bad = fault != 255
        if bad.any():
            aside = np.flatnonzero(bad)
            self._faults.append(Faults(target[aside].astype(np.int32), wanted[aside], np.full(len(aside), data), fault[aside]))
            first[1:] = np.cumsum(np.bincount(target[~bad], minlength=count))
            source, kinds = source[~bad], kinds[~bad]
        return Deps(first, source.astype(np.int32), kinds)

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
