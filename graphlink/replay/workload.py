"""What a machine replays: the nodes of one or several ranks in one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Final, Protocol

import numpy as np

from graphlink.errors import InputError
from graphlink.graph.chakra import ChakraFile, Deps, Has, NodeType
from graphlink.model import I32, I64, U8, Bool
from graphlink.records import Short


class Slot(IntEnum):
    """Which slot of its rank a node takes in ASTRA-sim."""

    CPU = 0
    GPU = 1
    COMM = 2
    NONE = 3  # a RECV takes none


class Work(IntEnum):
    """What a node's time is, as ``--scale`` names it (in lower case)."""

    HOST = 0
    GAP = 1
    KERNEL = 2
    COMM = 3
    COPY = 4  # copies and memsets
    DELAY = 5  # device delay nodes; ``--scale delay`` takes start delays too


MOST_NS: Final = 1 << 60
GAP_NAME: Final = "host gap"
DELAY_NAME: Final = "device delay"
COPY_NAMES: Final = ("memcpy", "memset", "[cuda memcpy", "[cuda memset", "copyhost", "copydevice", "fillbuffer")


class Finds(Protocol):
    """A regular expression."""

    def search(self, string: str, /) -> object:
        """What is found in a name; None where nothing is."""


@dataclass(frozen=True, slots=True, repr=False)
class RankFile(Short):
    """The graph of a rank."""

    rank: int
    file: ChakraFile


@dataclass(frozen=True, slots=True, repr=False)
class Workload(Short):
    """The nodes of ``ranks`` one after the other, in each rank by ascending id (of equal ids in file order).

    Dependencies are CSR by target over the whole table: ``data_deps``, and of graphs of others ``ctrl_deps`` (``dependencies``).
    ``cost_ns`` is what a node costs to the ns, ``micros_ns`` what ASTRA-sim reads: ``duration_micros`` x 1000. ``fixed_ns`` is the part of
    ``cost_ns`` that does not scale with the work: the start delay.

    ``lag_ns`` of each edge, None but in a what-if: how long after the end of its source its target may begin; ``cost_ns`` is what it costs
    from there.
    """

    ranks: tuple[RankFile, ...]
    offset: I64  # first node of each rank, and the number of nodes
    member: I32  # a node: index into ranks
    position: I32  # a node: position in its file
    first: I64
    source: I32
    kind: U8  # EdgeKind or UNKNOWN_DEP
    cost_ns: I64
    micros_ns: I64
    fixed_ns: I64
    slot: U8  # Slot
    work: U8  # Work
    lag_ns: I64 | None = None

    def __len__(self) -> int:
        return len(self.member)

    def file_of(self, node: int) -> ChakraFile:
        return self.ranks[int(self.member[node])].file

    def name(self, node: int) -> str:
        return self.file_of(node).name_of(int(self.position[node]))

    def id(self, node: int) -> int:
        return int(self.file_of(node).id[self.position[node]])

    def rank(self, node: int) -> int:
        return self.ranks[int(self.member[node])].rank

    def lags(self) -> I64:
        """The lag of every edge."""
        return np.zeros(len(self.source), np.int64) if self.lag_ns is None else self.lag_ns

    def recorded_start_ns(self) -> I64:
        """Since the earliest node of each rank."""
        return np.concatenate(
            [np.zeros(0, np.int64), *(r.file.start_ns[_order(r.file)] - r.file.start_ns.min(initial=0) for r in self.ranks)]
        )


def workload(ranks: Sequence[RankFile]) -> Workload:
    """The table of some ranks. n log n in nodes where ids do not ascend in the file, else linear.

    Raises:
        InputError: the times of a rank add up to more than int64 ns can be sure to hold.
    """
    given = tuple(ranks)
    for one in given:
        _refuse_long(one.file)
    parts = [_part(r.file) for r in given]
    sizes = [len(p.position) for p in parts]
    offset = np.cumsum([0, *sizes])
    edges = np.cumsum([0, *(len(p.source) for p in parts)])
    none = np.zeros(0, np.int64)
    return Workload(
        ranks=given,
        offset=offset.astype(np.int64),
        member=np.repeat(np.arange(len(parts), dtype=np.int32), sizes),
        position=np.concatenate([none, *(p.position for p in parts)]).astype(np.int32),
        first=np.concatenate([none, *(p.first[:-1] + e for p, e in zip(parts, edges, strict=False)), edges[-1:]]),
        source=np.concatenate([none, *(p.source + o for p, o in zip(parts, offset, strict=False))]).astype(np.int32),
        kind=np.concatenate([none, *(p.kind for p in parts)]).astype(np.uint8),
        cost_ns=np.concatenate([none, *(p.cost_ns for p in parts)]),
        micros_ns=np.concatenate([none, *(p.micros_ns for p in parts)]),
        fixed_ns=np.concatenate([none, *(p.fixed_ns for p in parts)]),
        slot=np.concatenate([none, *(p.slot for p in parts)]).astype(np.uint8),
        work=np.concatenate([none, *(p.work for p in parts)]).astype(np.uint8),
    )


def _refuse_long(file: ChakraFile) -> None:
    """Times that a machine adds up, together and since the start of the recording, stay below ``MOST_NS``."""
    costs = (np.abs(column, dtype=np.float64).sum() for column in (file.cost_ns, file.duration_micros * 1e3))
    times = (np.abs(column, dtype=np.float64).max(initial=0) for column in (file.start_ns, file.end_ns, file.wait_ns, file.wake_ns))
    if max(*costs, *times) < MOST_NS:
        return
    raise InputError(
        "its times are too long: they add up to more than 2**60 ns, 36 years",
        path=file.path,
        todo="look for damaged durations in the graph",
    )


def work_bounds(work: Workload) -> list[tuple[int, int]]:
    """First node of each rank, and the first that is not its own."""
    return list(pairwise(work.offset.tolist()))


def names_found(work: Workload, pattern: Finds) -> Bool:
    """Nodes in whose name ``pattern`` is found; every name is looked at once."""
    out = np.zeros(len(work), np.bool_)
    for (low, high), ranked in zip(work_bounds(work), work.ranks, strict=True):
        if high > low:
            out[low:high] = _named(ranked.file, lambda name: pattern.search(name) is not None)[work.position[low:high]]
    return out


def has_times(file: ChakraFile) -> bool:
    """Whether any node says when it was recorded to start."""
    return bool(file.start_ns.any() or np.any(file.has & np.uint32(Has.START_NS)))


def measured_ns(file: ChakraFile) -> int:
    """Recorded time from the start of the first node to the end of the last one; 0 for a file without times."""
    return int(file.end_ns.max() - file.start_ns.min()) if has_times(file) else 0


def dependencies(file: ChakraFile) -> Deps:
    """What nodes wait for. In graphs of graphlink that is ``data_deps``, which imply ``ctrl_deps`` (callers). In graphs of others both
    delay, as in ASTRA-sim's present reader (the legacy one honours ``data_deps`` alone); by target, each once.
    """
    data, ctrl = file.data, file.ctrl
    if file.metadata.graphlink is not None or not len(ctrl.source):
        return data
    n = len(file.id)
    target = np.concatenate([np.repeat(np.arange(n), np.diff(deps.first)) for deps in (data, ctrl)])
    source = np.concatenate([data.source, ctrl.source])
    kind = np.concatenate([data.kind, ctrl.kind])
    order = np.lexsort((source, target))  # stable: an entry of data_deps, which may say its kind, comes first
    source, target, kind = source[order], target[order], kind[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
    first = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(target[new], minlength=n), out=first[1:])
    return Deps(first, source[new], kind[new])


def successors(first: I64, source: I32) -> tuple[I64, I32]:
    """The same edges as CSR by source: (first, target), targets ascending."""
    n = len(first) - 1
    target = np.repeat(np.arange(n, dtype=np.int32), np.diff(first))
    order = np.argsort(source, kind="stable")
    starts = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(source, minlength=n), out=starts[1:])
    return starts, target[order]


@dataclass(frozen=True, slots=True)
class _Part:
    position: I64
    first: I64
    source: I64
    kind: U8
    cost_ns: I64
    micros_ns: I64
    fixed_ns: I64
    slot: U8
    work: U8


def _order(file: ChakraFile) -> I64:
    if np.all(file.id[1:] >= file.id[:-1]):
        return np.arange(len(file.id), dtype=np.int64)
    return np.argsort(file.id, kind="stable").astype(np.int64)


def _part(file: ChakraFile) -> _Part:
    order = _order(file)
    at = np.empty(len(order), np.int64)
    at[order] = np.arange(len(order))
    deps = dependencies(file)
    counts = np.diff(deps.first)[order]
    first = np.zeros(len(order) + 1, np.int64)
    np.cumsum(counts, out=first[1:])
    edge = np.repeat(deps.first[:-1][order] - first[:-1], counts) + np.arange(first[-1])
    slot, work = slots_of(file), works_of(file)
    return _Part(
        position=order,
        first=first,
        source=at[deps.source[edge]],
        kind=deps.kind[edge],
        cost_ns=file.cost_ns[order],
        micros_ns=file.duration_micros[order] * 1000,
        fixed_ns=np.where(file.host, 0, file.start_delay_ns)[order],
        slot=slot[order],
        work=work[order],
    )


def slots_of(file: ChakraFile) -> U8:
    """The slot of each node, in file order."""
    slot = np.full(len(file.id), Slot.COMM, np.uint8)
    slot[file.type == NodeType.COMP] = Slot.GPU
    slot[file.type == NodeType.COMM_RECV] = Slot.NONE
    slot[file.host] = Slot.CPU
    return slot


def works_of(file: ChakraFile) -> U8:
    """What each node's time is, in file order. Copies are told by name: the format has no field for them."""
    work = np.full(len(file.id), Work.KERNEL, np.uint8)
    work[_named(file, lambda name: name.lower().startswith(COPY_NAMES))] = Work.COPY
    work[_named(file, lambda name: name == DELAY_NAME)] = Work.DELAY
    work[np.isin(file.type, (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV)) | file.recorded_comm] = Work.COMM
    work[file.host] = np.where(_named(file, lambda name: name == GAP_NAME), Work.GAP, Work.HOST)[file.host]
    return work


def _named(file: ChakraFile, wanted: Callable[[str], bool]) -> Bool:
    return np.array([wanted(name) for name in file.strings], np.bool_)[file.name] if len(file.id) else np.zeros(0, np.bool_)
