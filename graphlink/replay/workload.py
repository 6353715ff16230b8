"""The graphs of one or several ranks as a machine replays them: one table of nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from graphlink.errors import InputError
from graphlink.graph.families import families_of, family_of, most_late
from graphlink.graph.latency import Delayed, delayed
from graphlink.graph.order import Chains
from graphlink.graph.write_et import micros
from graphlink.graph_model import PART, Deps, EdgeKind, Graph, NodeType
from graphlink.model import EMPTY, I32, I64, NOWHERE, U8, Bool
from graphlink.patterns import UserPattern
from graphlink.records import Short
from graphlink.tables import ValueT, begins, counted_from, places, spread


class Slot(IntEnum):
    """The slot of its rank that a node takes in ASTRA-sim."""

    CPU = 0
    GPU = 1
    COMM = 2
    NONE = 3  # a RECV takes none


class Work(IntEnum):
    """The kind of work that a node's time is, as ``--scale`` names it (in lower case)."""

    HOST = 0
    GAP = 1
    KERNEL = 2
    COMM = 3
    COPY = 4  # copies and memsets
    DELAY = 5  # device delay nodes; ``--scale delay`` takes start delays too


OF_HOST: Final = (Work.HOST, Work.GAP)
MOST_NS: Final = 1 << 60
GAP_NAME: Final = "host gap"
DELAY_NAME: Final = "device delay"
HOST_NODE: Final = "HostNode"  # begins the names of calls of the host in CUDA graphs, as they are recorded
COPY_NAMES: Final = ("memcpy", "memset", "[cuda memcpy", "[cuda memset", "copyhost", "copydevice", "fillbuffer")


@dataclass(frozen=True, slots=True, repr=False)
class Workload(Short):
    """The nodes of the graphs ``files`` of ``ranks``, one after the other, in each by ascending id (of equal ids in
    file order).

    Dependencies are CSR by target over the table: ``data_deps``, and of graphs of others ``ctrl_deps``
    (``dependencies``). ``cost_ns`` is what a node costs to the ns, ``micros_ns`` what ASTRA-sim reads:
    ``duration_micros`` x 1000. ``fixed_ns`` is the part of ``cost_ns`` that does not scale with the work: the start
    delay.

    ``lag_ns`` of each edge, None but in a what-if: how long after the end of its source its target may begin;
    ``cost_ns`` is what it costs from there. ``gone``, none but in a what-if: nodes that were removed, which wait for
    nobody any more.
    """

    ranks: tuple[int, ...]
    files: tuple[Graph, ...]
    offset: I64  # first node of each rank, and the number of nodes
    member: I32  # a node: index into ranks and files
    position: I32  # a node: position in its file
    first: I64
    source: I32
    kind: U8  # EdgeKind or UNKNOWN_DEP
    cost_ns: I64
    micros_ns: I64
    fixed_ns: I64
    slot: U8  # Slot
    work: U8  # Work
    gone: Bool
    lag_ns: I64 | None = None
    kept: dict[str, Any] = field(
        default_factory=dict
    )  # by ``column``, and by ``of_edges`` for the edges of the first that asks

    def __len__(self) -> int:
        return len(self.member)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """Return the first node of each rank, and the first that is not its own."""
        return list(pairwise(self.offset.tolist()))

    @property
    def node_rank(self) -> I64:
        """Return the rank of every node."""
        return np.array(self.ranks, np.int64)[self.member]

    @property
    def target(self) -> I64:
        """Return the node that waits, of every edge."""
        return self.of_edges("target", lambda: np.repeat(np.arange(len(self)), np.diff(self.first)))

    def per_file(self, column_of: Callable[[Graph], NDArray[Any]]) -> NDArray[Any]:
        """Return a column of all nodes, which nobody may change: ``column_of`` gives that of a file, in its order."""
        if "in order" not in self.kept:  # ids of most files ascend
            positions = [self.position[low:high] for low, high in self.bounds]
            self.kept["in order"] = [bool((place[1:] > place[:-1]).all()) for place in positions]
        files = zip(self.files, self.bounds, self.kept["in order"], strict=True)
        parts = [
            column_of(file) if in_order else column_of(file)[self.position[low:high]]
            for file, (low, high), in_order in files
        ]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else EMPTY

    def column(self, name: str) -> I64:
        """Return the integer column ``name`` of ``Graph``, one entry per node, which nobody may change."""
        column = self.kept.get(name)
        if column is None:
            column = self.per_file(lambda file: file.integers(name)).astype(np.int64, copy=False).view()
            column.flags.writeable = False
            if len(self.files) > 1:  # else it is made as quickly as it is read
                self.kept[name] = column
        return column

    @property
    def is_part(self) -> Bool:
        """Return which nodes are parts of an op behind its first node."""
        return self.per_file(lambda file: _named(file, lambda name: name.endswith(PART)))

    def names(self) -> tuple[I64, list[str]]:
        """Return the family of every node, which nobody may change, as a position in a list of different names."""
        code: dict[str, int] = {}
        return self.of_edges("names", lambda: (self.per_file(lambda file: families_of(file, code)), [*code]))

    def before_what(self, nodes: I64 | I32, ns: I64) -> list[str]:
        """Return before what most of the time of the delay nodes among ``nodes`` lies, as ``families.before_what`` does
        for a rank.
        """
        spent: Counter[tuple[str, ...]] = Counter()
        for member in np.unique(self.member[nodes]).tolist():
            delays = (self.member[nodes] == member) & (self.work[nodes] == Work.DELAY)
            for took, *names in most_late(self.files[member], self.position[nodes[delays]], ns[delays]):
                spent[tuple(filter(None, names))] += took
        return [*max(spent, key=lambda names: (spent[names], names), default=())]

    def file_of(self, node: int) -> Graph:
        return self.files[int(self.member[node])]

    def name(self, node: int) -> str:
        return self.file_of(node).name_of(int(self.position[node]))

    def id(self, node: int) -> int:
        file, position = self.file_of(node), int(self.position[node])
        return file.first_id + position if file.read is None else int(file.read.id[position])

    def rank(self, node: int) -> int:
        return self.ranks[int(self.member[node])]

    def last_source(self, node: int, *kinds: EdgeKind, sort: Work | None = None) -> int:
        """Return the last source of edges of these kinds into a node, of a sort of work; ``NOWHERE`` without one."""
        edges = slice(int(self.first[node]), int(self.first[node + 1]))
        source = self.source[edges][np.isin(self.kind[edges], kinds)]
        return int(source[(self.work[source] == sort) | (sort is None)].max(initial=NOWHERE))

    def source_of(self, kind: EdgeKind) -> I64:
        """Return for each node the source of its last edge of this kind; ``NOWHERE`` without one."""
        edge = np.flatnonzero(self.kind == kind)
        return spread(len(self), self.target[edge], self.source[edge].astype(np.int64))

    def micros_with(self, cost_ns: I64) -> I64:
        """Return what ``micros_ns`` becomes with these costs."""
        return np.asarray(np.maximum(self.micros_ns + cost_ns - self.cost_ns, 0))

    def with_costs(self, cost_ns: I64) -> Workload:
        """Return the workload with other costs."""
        return replace(self, cost_ns=cost_ns, micros_ns=self.micros_with(cost_ns))

    def of_edges(self, what: str, make: Callable[[], ValueT]) -> ValueT:
        """Return what ``make`` makes of the edges, once for all workloads that have them, with whatever times."""
        kept = self.kept
        first, source = kept.setdefault("", (self.first, self.source))
        if first is not self.first or source is not self.source:
            return make()
        if what not in kept:
            kept[what] = make()
        made: ValueT = kept[what]
        return made

    @property
    def chains(self) -> Chains:
        """Return the chains of the nodes, communication apart."""
        return self.of_edges("chains", lambda: Chains(self.first, self.source, self.work == Work.COMM))

    def lags(self) -> I64:
        """Return the lag of every edge."""
        return np.zeros(len(self.source), np.int64) if self.lag_ns is None else self.lag_ns


def workload(files: Mapping[int, Graph], *, legacy: bool = False) -> Workload:
    """Join the graphs of some ranks. n log n in nodes where ids do not ascend in the file, else linear. ``legacy``: as
    ASTRA-sim of 2024 reads them, which waits for no ``ctrl_deps``.

    Raises:
        InputError: the times of a rank add up to more than int64 ns can be sure to hold.
    """
    for file in files.values():
        _refuse_long(file)
    parts = [_columns(file, file.data if legacy else dependencies(file)) for file in files.values()]
    offset = np.append(0, np.cumsum([len(part["position"]) for part in parts])).astype(np.int64)
    edges = np.append(0, np.cumsum([len(part["source"]) for part in parts])).astype(np.int64)
    for part, nodes_before, edges_before in zip(parts, offset.tolist(), edges.tolist(), strict=False):
        part["source"] += nodes_before
        part["first"] += edges_before
    joined: dict[str, Any] = {
        name: np.concatenate([np.zeros(0, np.uint8), *(part[name] for part in parts)]) for name in _COLUMNS
    }
    joined["first"] = np.append(joined["first"], edges[-1])
    member = np.repeat(np.arange(len(parts), dtype=np.int32), np.diff(offset))
    gone = np.zeros(len(member), np.bool_)
    return Workload(tuple(files), tuple(files.values()), offset, member, gone=gone, **joined)


def _refuse_long(file: Graph) -> None:
    """Refuse times that, added up as a machine does, could pass ``MOST_NS``."""
    costs = [np.abs(column, dtype=np.float64).sum() for column in (file.cost_ns, micros(file) * 1e3)]
    columns = (file.start_ns, file.end_ns, file.wait_ns, file.wake_ns)
    times = [np.abs(column, dtype=np.float64).max(initial=0) for column in columns]
    if max(costs + times) >= MOST_NS:
        raise InputError(
            "its times are too long: they add up to more than 2**60 ns, 36 years",
            path=None if file.read is None else file.read.path,
            todo="look for damaged durations in the graph",
        )


def names_found(work: Workload, pattern: UserPattern | re.Pattern[str], *, families: bool = True) -> Bool:
    """Return the nodes in whose name, or with ``families`` in that of its family, ``pattern`` is found; every name is
    looked at once.
    """

    @cache  # ranks have the same names
    def by_name(name: str) -> bool:
        return pattern.search(name) is not None

    @cache
    def by_family(name: str) -> bool:
        family = family_of(name)
        return family != name and pattern.search(family) is not None

    def found(file: Graph) -> Bool:
        named = _named(file, by_name)
        return named | (file.host & _named(file, by_family)) if families else named

    return work.per_file(found).astype(np.bool_)


def has_times(file: Graph) -> bool:
    """Return whether any node says when it was recorded to start; none of a graph that was made does."""
    return file.metadata.made is None and (
        file.read is None or bool(file.start_ns.any() or file.says("start_ns").any())
    )


def measured_ns(file: Graph) -> int | None:
    """Return the recorded time from the start of the first node to the end of the last one; None for a file without
    times.
    """
    return int(file.end_ns.max() - file.start_ns.min()) if len(file.name) and has_times(file) else None


def dependencies(file: Graph) -> Deps:
    """Return the dependencies that nodes wait for. In graphs of graphlink that is ``data_deps``, which imply
    ``ctrl_deps`` (callers). In graphs of others both delay, as in ASTRA-sim's present reader (the legacy one honours
    ``data_deps`` alone); by target, each once.
    """
    data, ctrl = file.data, None if file.read is None else file.read.ctrl
    if file.metadata.graphlink is not None or ctrl is None or not len(ctrl.source):
        return data
    n = len(file.name)
    target = np.concatenate([data.target, ctrl.target])
    source = np.concatenate([data.source, ctrl.source])
    kind = np.concatenate([data.kind, ctrl.kind])
    order = np.lexsort((source, target))  # stable: an entry of data_deps, which may say its kind, comes first
    order = order[begins(source[order], target[order])]
    return Deps(np.append(0, np.cumsum(np.bincount(target[order], minlength=n))), source[order], kind[order])


def delays(work: Workload, end_ns: I64, begin_ns: I64) -> Delayed:
    """Split the delays of each rank, by what is usual there.

    ``end_ns``: when each node ended, recorded or replayed; ``begin_ns``: when its delay began. Linear.
    """
    latency_ns, duration_ns = work.column("launch_latency_ns"), work.column("duration_ns")
    delay_ns = np.where(work.work == Work.DELAY, duration_ns, work.fixed_ns)
    out = np.zeros((3, len(work)), np.int64)
    for low, high in work.bounds:
        edges = slice(int(work.first[low]), int(work.first[high]))
        split = delayed(
            work.first[low : high + 1] - edges.start,
            work.source[edges] - low,
            work.kind[edges],
            latency_ns[low:high],
            end_ns[low:high],
            begin_ns[low:high],
            delay_ns[low:high],
        )
        out[:, low:high] = split.launch_ns, split.stream_ns, split.explained_ns
    return Delayed(*out)


_COLUMNS: Final = ("position", "first", "source", "kind", "cost_ns", "micros_ns", "fixed_ns", "slot", "work")


def _columns(file: Graph, deps: Deps) -> dict[str, NDArray[Any]]:
    """Return the columns of ``Workload`` of one file, whose nodes wait for ``deps``, edges without the end of the last
    node."""
    order = np.argsort(file.id, kind="stable")
    at = places(order, len(order))
    counts = np.diff(deps.first)[order]
    edge = counted_from(deps.first[:-1][order], counts)
    return {
        "position": order.astype(np.int32),
        "first": np.cumsum(counts) - counts,
        "source": at[deps.source[edge]].astype(np.int32),
        "kind": deps.kind[edge],
        "cost_ns": file.cost_ns[order],
        "micros_ns": micros(file)[order] * 1000,
        "fixed_ns": np.where(file.host, 0, file.start_delay_ns)[order],
        "slot": slots_of(file)[order],
        "work": works_of(file)[order],
    }


def slots_of(file: Graph) -> U8:
    """Return the slot of each node, in file order."""
    slots = {Slot.CPU: file.host, Slot.NONE: file.type == NodeType.COMM_RECV, Slot.GPU: file.type == NodeType.COMP}
    return np.select([*slots.values()], [*slots], Slot.COMM).astype(np.uint8)


def works_of(file: Graph) -> U8:
    """Classify each node's time, in file order. Copies are known by name: the format has no field for them."""
    communicates = np.isin(file.type, (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV))
    works = (  # the first that holds
        (file.host & _named(file, lambda name: name == GAP_NAME), Work.GAP),
        (file.host, Work.HOST),
        (communicates | file.says("comm_type_recorded"), Work.COMM),
        (_named(file, lambda name: name == DELAY_NAME), Work.DELAY),
        (_named(file, lambda name: name.startswith(HOST_NODE)), Work.HOST),
        (_named(file, lambda name: name.lower().startswith(COPY_NAMES)), Work.COPY),
    )
    return np.select([nodes for nodes, _ in works], [work for _, work in works], Work.KERNEL).astype(np.uint8)


def _named(file: Graph, wanted: Callable[[str], bool]) -> Bool:
    return (
        np.array([wanted(name) for name in file.strings], np.bool_)[file.name]
        if len(file.name)
        else np.zeros(0, np.bool_)
    )
