"""The record of a dependency graph, and its parts: frozen, as those of ``model``, whose glossary and units hold here
too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

import msgspec
import numpy as np

from graphlink.model import EMPTY, I32, I64, NOWHERE, U8, U32, U64, Bool, Linked
from graphlink.records import Short
from graphlink.tables import among, marked

PART = " (cont.)"  # ends the name of a HOST_PART


class NodeKind(IntEnum):
    HOST_OP = 0  # a host row
    HOST_PART = 1  # "<op> (cont.)"
    HOST_CALL = 2  # a launch or synchronisation call outside any host row
    HOST_GAP = 3
    HOST_ASYNC = 4  # a crossing row, duration 0
    DEVICE_OP = 5
    DEVICE_DELAY = 6
    HOST_COMM = 7  # communication of a crossing row: is_cpu_op false, device -1, stream -1
    END = 8


# what follows each other on a thread
CHAINED = (NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_CALL, NodeKind.HOST_GAP)
OF_HOST_ROWS = (NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_ASYNC, NodeKind.HOST_COMM)
# by kind: what is a host node (is_cpu_op); HOST_COMM stands for a device-side op and is none
ON_HOST = ~np.isin(np.arange(len(NodeKind)), (NodeKind.DEVICE_OP, NodeKind.DEVICE_DELAY, NodeKind.HOST_COMM))


class EdgeKind(IntEnum):
    HOST = 0
    LAUNCH = 1
    STREAM = 2
    EVENT = 3
    SYNC = 4
    THREAD = 5
    COLLECTIVE = 6


@dataclass(frozen=True, slots=True, repr=False)
class SyncCalls(Short):
    """The synchronisation calls that the ``sync`` edges ``source`` -> ``target`` (nodes) stand for: rows of calls, by
    target and source.

    An edge may stand for several calls. Of a wait that ended in a part of its own, only the edge to that part is here.
    """

    source: I32
    target: I32
    call: I32

    def renumbered(self, new: I64) -> SyncCalls:
        """Return the calls by other numbers of the nodes: ``new`` has one entry per node."""
        source, target = new[self.source], new[self.target]
        order = np.lexsort((self.call, source, target))
        return SyncCalls(source[order].astype(np.int32), target[order].astype(np.int32), self.call[order])


@dataclass(frozen=True, slots=True, repr=False)
class Column(Short):
    """A named column of a graph, sparse: the ``value`` of each of ``node`` (ascending), a position in ``texts`` where
    there are any.
    """

    node: I64
    value: I64
    texts: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, node: I64 | I32, value: I64 | I32 | U8, known: Bool | None = None, texts: tuple[str, ...] = ()
    ) -> Column:
        """Return the column of nodes that are given in any order; with ``known`` only of those."""
        at = np.arange(len(node)) if known is None else np.flatnonzero(known)
        at = at[np.argsort(node[at], kind="stable")]
        return cls(node[at].astype(np.int64), value[at].astype(np.int64), texts)


NO_COLUMN = Column(EMPTY, EMPTY)


class NodeType(IntEnum):
    """``Node.type`` of Chakra, as far as a graph has them; a file of others may hold other numbers."""

    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


SCHEMA_VERSION = "0.0.4"  # of mlcommons/chakra; readers take any, but none must be empty
UNKNOWN_DEP = 255  # kind of a dependency that a file gives no kind for
Groups = Mapping[int, Sequence[int]]  # the ranks of communicators, by their ids
NO_GROUP = 0
BAD_GROUP = -1  # a ``pg_name`` that is no decimal number; the text is in ``FileFacts.odd``


@dataclass(frozen=True, slots=True)
class Metadata:
    """Fields of ``GlobalMetadata``; None where there is none.

    ``graphlink`` is the version that made the graph; ``host`` is "launches" where it folded host nodes. ``epoch_ns`` is
    the rank's own clock at ``start_ns`` 0; the run's clock = own + ``clock_offset_ns`` + ``clock_drift_ppb`` / 1e9 *
    (own - ``epoch_ns``), both 0 where the graph does not have them. ``made``: what made a graph that was not recorded,
    and from what; its times are computed.
    """

    version: str
    graphlink: str | None
    epoch_ns: int | None
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    clock_offset_ns: int = 0
    clock_drift_ppb: int = 0
    made: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class IncomingEdges(Short):
    """Dependencies as CSR by target: those of node n are ``source[first[n]:first[n + 1]]``, positions of nodes."""

    first: I64
    source: I32

    @staticmethod
    def of(count: int, source: I64 | I32, target: I64) -> IncomingEdges:
        """Sort edges between ``count`` nodes by target."""
        by_target = np.argsort(target, kind="stable")
        first = np.searchsorted(target[by_target], np.arange(count + 1)).astype(np.int64)
        return IncomingEdges(first, source[by_target].astype(np.int32))

    @property
    def target(self) -> I64:
        """Return the node that waits, of every edge."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))


@dataclass(frozen=True, slots=True, repr=False)
class Deps(IncomingEdges):
    """Dependencies with the ``kind`` of each, ``EdgeKind`` or ``UNKNOWN_DEP``."""

    kind: U8


class Fault(IntEnum):
    """Why an entry of ``data_deps`` or ``ctrl_deps`` is no edge."""

    DANGLING = 0  # no node has that id
    DUPLICATE = 1  # the entry stands there twice
    SELF = 2  # the node itself


@dataclass(frozen=True, slots=True, repr=False)
class Faults(Short):
    """Entries that are no edges, in file order: of ``node`` (position), to ``id``, in ``data_deps`` (else
    ``ctrl_deps``).
    """

    node: I32
    id: U64
    data: Bool
    fault: U8  # Fault


class OddAttribute(msgspec.Struct, frozen=True):
    """An attribute of another kind than readers expect (or a ``pg_name`` that is no number): ``kind`` is the oneof
    field it is in.

    With kind ``TWICE``: it stands there again with another value; the last is in the columns, both are in ``value``.
    """

    node: int
    name: str
    kind: str  # "" = there is no value
    value: str


@dataclass(frozen=True, slots=True, repr=False)
class FileFacts(Short):
    """What a graph has that was read from a file and no other: ids that need not ascend, and all that is not as it
    should be.

    Integers that a node lacks are 0 in the columns of the graph, its communication columns and ranks ``NOWHERE``: see
    ``has``.
    """

    path: str
    id: U64
    has: U32  # bits of ``HAS``: the attributes that a node carries, in whatever kind
    duration_micros: I64  # as written
    ctrl: Deps
    faults: Faults
    duplicate_ids: (
        I32  # positions of nodes whose id a node before them has; dependencies go to the last one, as in ASTRA-sim
    )
    odd: tuple[OddAttribute, ...]
    group_names: dict[int, str]  # ``pg_name``, the id of a group -> ``pg_desc``, its recorded name
    sync_call: dict[
        int, tuple[str, ...]
    ]  # position -> the calls whose waiting ended there, of the few nodes that say so


_NONE_IS_NOWHERE = ("comm_type", "comm_src", "comm_dst")
# the attributes of nodes that ``FileFacts.has`` has a bit for
_TIMES = (
    "start_ns",
    "end_ns",
    "duration_ns",
    "start_delay_ns",
    "launch_latency_ns",
    "overlap_ns",
    "self_ns",
    "wait_ns",
    "wake_ns",
)
_OTHER = (
    "tid",
    "device",
    "stream",
    "correlation",
    "comm_type",
    "comm_size",
    "comm_src",
    "comm_dst",
    "comm_tag",
    "pg_name",
)
HAS = {
    name: 1 << i
    for i, name in enumerate(("is_cpu_op", *_TIMES, *_OTHER, "dep_kinds", "involved_dim", "comm_type_recorded"))
}


@dataclass(frozen=True, slots=True, repr=False)
class NodeRows(Short):
    """What a graph has that was built from a recording and no other: the row of each node, and who found each edge.

    ``row`` points into the table of ``linked`` that ``kind`` names: host rows for HOST_OP, HOST_PART, HOST_ASYNC and
    HOST_COMM, calls for HOST_CALL, device rows for DEVICE_OP and DEVICE_DELAY (the op it delays), NOWHERE else.
    """

    kind: U8  # NodeKind
    row: I32
    found_by: U8  # by edge: FoundBy bits of sync and event edges; 0 else
    sync_calls: SyncCalls
    linked: Linked


@dataclass(frozen=True, slots=True, repr=False)
class Graph(Short):
    """The dependency graph of a rank: built from a recording, read from a ``.et``, or computed, which has neither
    ``rows`` nor ``read``. The file holds all of it but which ``rows`` its nodes are.

    Node columns have one entry per node. Nodes that were built stand in id order (start order, ids run from
    ``first_id``) and every edge runs from a lower to a higher node; those of a file stand in its order, where cycles
    are possible. Edges
    are CSR by target: the dependencies of node n are ``source[first[n]:first[n + 1]]``, unique, of built graphs
    ascending. ``name`` is a position in ``strings``: of built graphs its entries differ, and nodes with equal numbers
    have equal names. ``columns``: what features know of the nodes, and their communication, by the name of the
    attribute in the ``.et``.

    Files of others have no ns: ``duration_ns`` is then ``duration_micros`` x 1000, ``start_ns`` is
    ``start_time_micros`` x 1000 (0 where absent), ``end_ns`` the sum.
    """

    metadata: Metadata
    strings: tuple[str, ...]
    name: I32
    type: I32  # NodeType
    host: Bool  # is_cpu_op
    start_ns: I64  # since metadata.epoch_ns, as recorded
    end_ns: I64
    duration_ns: I64  # what the node costs (device ops: how long it ran less overlap; start_delay_ns costs on top)
    self_ns: I64
    wait_ns: I64
    wake_ns: I64  # what of duration_ns is only spent because the call whose wait ended here had to wait
    start_delay_ns: I64
    # device nodes with a launch edge: how long after it they begin at the earliest; runs in parallel with all else
    launch_latency_ns: I64
    overlap_ns: I64
    tid: I64  # host nodes; 0 else
    device: I64  # device nodes; 0 on host nodes
    stream: I64
    caller: I32  # the first of ctrl_deps: host parent, or the op that launched; NOWHERE
    first: I64  # one entry more than nodes
    source: I32
    edge_kind: U8  # EdgeKind; of files UNKNOWN_DEP too
    columns: dict[str, Column] = field(default_factory=dict)
    rows: NodeRows | None = None  # of a graph that was built
    read: FileFacts | None = None  # of a graph that was read
    first_id: int = 0  # of a graph that was not

    @property
    def _rows(self) -> NodeRows:
        if self.rows is None:
            raise ValueError("a graph that was read from a file or computed has no rows of a recording")
        return self.rows

    @property
    def file(self) -> FileFacts:
        """Return what a graph has that was read from a file."""
        if self.read is None:
            raise ValueError("a graph that was built from a recording is no file yet")
        return self.read

    @property
    def kind(self) -> U8:
        """Return the ``NodeKind`` of the nodes of a built graph."""
        return self._rows.kind

    @property
    def row(self) -> I32:
        """Return the recorded rows of the nodes of a built graph."""
        return self._rows.row

    @property
    def found_by(self) -> U8:
        """Return who found the edges of a built graph."""
        return self._rows.found_by

    @property
    def sync_calls(self) -> SyncCalls:
        """Return the calls behind the ``sync`` edges of a built graph."""
        return self._rows.sync_calls

    @property
    def linked(self) -> Linked:
        """Return the recording that a graph was built from."""
        return self._rows.linked

    @property
    def epoch_ns(self) -> int:
        """Return the rank's own clock at ``start_ns`` 0; 0 where a file does not tell."""
        return self.metadata.epoch_ns or 0

    @property
    def id(self) -> U64:
        """Return the ids of the nodes."""
        if self.read is not None:
            return self.read.id
        return np.arange(self.first_id, self.first_id + len(self.name), dtype=np.uint64)

    @property
    def target(self) -> I64:
        """Return the node that waits, of every edge."""
        return self.data.target

    @property
    def data(self) -> Deps:
        """Return the edges, ``data_deps`` of the file."""
        return Deps(self.first, self.source, self.edge_kind)

    @property
    def cost_ns(self) -> I64:
        """Return the cost of each node in a replay: ``duration_ns``, of device nodes with their start delay."""
        return self.duration_ns + np.where(self.host, 0, self.start_delay_ns)

    @property
    def timed(self) -> bool:
        """Return whether every node has its ns; those of others may have whole microseconds alone."""
        return self.read is None or bool((self.says("start_ns") & self.says("duration_ns")).all())

    def says(self, name: str) -> Bool:
        """Return which nodes carry an attribute: in a file one of ``HAS``, in whatever kind; of a graph that was built
        one of ``columns``."""
        if self.read is not None:
            return np.asarray((self.read.has & np.uint32(HAS[name])) != 0)
        return marked(len(self.name), self.columns.get(name, NO_COLUMN).node)

    def integers(self, name: str) -> I64:
        """Return a column by its name, its own or one of ``columns``, with an entry per node."""
        return getattr(self, name) if hasattr(self, name) else self._sparse(name)

    def _sparse(self, name: str) -> I64:
        """Return one of ``columns`` with an entry per node: where a node has none, ``NOWHERE`` for types and ranks,
        else 0.
        """
        out = np.full(len(self.name), NOWHERE if name in _NONE_IS_NOWHERE else 0, np.int64)
        if name in self.columns:
            out[self.columns[name].node] = self.columns[name].value
        return out

    @property
    def comm_type(self) -> I64:
        """Return the types of collectives, CollectiveCommType; ``NOWHERE`` else."""
        return self._sparse("comm_type")

    @property
    def comm_size(self) -> I64:
        """Return the sizes of communication in bytes; 0 else."""
        return self._sparse("comm_size")

    @property
    def comm_src(self) -> I64:
        """Return the ranks that messages come from; ``NOWHERE`` else."""
        return self._sparse("comm_src")

    @property
    def comm_dst(self) -> I64:
        """Return the ranks that messages go to; ``NOWHERE`` else."""
        return self._sparse("comm_dst")

    @property
    def comm_tag(self) -> I64:
        """Return the tags of messages; 0 else."""
        return self._sparse("comm_tag")

    @property
    def group(self) -> I64:
        """Return the communicators by number: ``NO_GROUP``, ``BAD_GROUP``, else ``pg_name``."""
        return self._sparse("pg_name")

    def nodes_of(self, *kinds: NodeKind) -> I64:
        """Return the nodes of some kinds."""
        return np.flatnonzero(among(self.kind, kinds))

    def name_of(self, node: int) -> str:
        """Return the name of a node."""
        return self.strings[int(self.name[node])]

    def of_rank(self, rank: int, world_size: int, first_id: int = 0, clock: tuple[int, int] = (0, 0)) -> Graph:
        """Return the graph with its place in the run; ``clock``: its offset in ns, and drift in ppb."""
        told = replace(self.metadata, rank=rank, world_size=world_size)
        told = replace(told, clock_offset_ns=clock[0], clock_drift_ppb=clock[1])
        return replace(self, metadata=told, first_id=first_id)

    def with_columns(self, columns: Mapping[str, Column]) -> Graph:
        """Return the graph with these columns added behind its own; one of the same name takes the place of the old."""
        return replace(self, columns={**self.columns, **columns})

    def _shown(self) -> list[tuple[str, str]]:
        host = int(np.count_nonzero(self.host))
        nodes = [("nodes", f"{len(self.name):,}: {host:,} of the host, {len(self.name) - host:,} of devices")]
        if self.rows is not None:
            nodes += [
                (f"nodes: {k.name.lower()}", f"{n:,}") for k in NodeKind if (n := np.count_nonzero(self.kind == k))
            ]
        edges = [
            (f"edges: {k.name.lower()}", f"{n:,}") for k in EdgeKind if (n := np.count_nonzero(self.edge_kind == k))
        ]
        long_ns = int(self.end_ns.max(initial=0) - self.start_ns.min(initial=0))
        return [
            ("rank", f"{self.metadata.rank} of {self.metadata.world_size}"),
            *nodes,
            *edges,
            ("from first start to last end", f"{long_ns / 1e6:,.3f} ms"),
        ]


class Sync(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of synchronisation; found = kept + sum(rejected)."""

    found: int  # GPU -> CPU and GPU -> GPU together
    kept: int
    rejected: dict[str, int]
    by_source: dict[str, int]  # a pair that two sources found counts in both
