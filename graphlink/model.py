"""The records that cross stages: frozen, made by one stage, edited by none.

Glossary of ids
  row          position in a table of a record; tables point at each other by row. An index column that points nowhere holds ``NOWHERE``.
  rf_id        PyTorch's record-function id of a host op ("Record function id" in Kineto); 0 = none.
  correlation  CUPTI's id of a runtime or driver call, shared by the device ops it launched; 0 = none, CUPTI counts from 1.
  external id  is never used to join anything: up to 34 rows share one (docs/model.md).
  tid          OS thread id as Kineto has it. ``et_tid`` is PyTorch's own thread number as the ET has it.
  node         position in ``Graph``; also its id in the ``.et``, where ids ascend in start order.

Times are int64 nanoseconds since the Unix epoch as far as the recording says (``_ns``); only readers and emitters
convert. Text is dictionary-encoded: a ``name`` column holds int32 positions in a ``strings`` tuple whose entry 0 is
always "".
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from graphlink.figures import figure
from graphlink.records import Short

# written out, as what a column of a record is must be known when it runs: numpy 2.5 hides it behind the alias NDArray
I64 = np.ndarray[tuple[Any, ...], np.dtype[np.int64]]
I32 = np.ndarray[tuple[Any, ...], np.dtype[np.int32]]
U8 = np.ndarray[tuple[Any, ...], np.dtype[np.uint8]]
U32 = np.ndarray[tuple[Any, ...], np.dtype[np.uint32]]
U64 = np.ndarray[tuple[Any, ...], np.dtype[np.uint64]]
F64 = np.ndarray[tuple[Any, ...], np.dtype[np.float64]]
Bool = np.ndarray[tuple[Any, ...], np.dtype[np.bool_]]

GroupKey = tuple[tuple[int, ...], str]  # of a communicator: members in ring order (global ranks), recorded name

NOWHERE: Final = -1  # of index columns only
EMPTY: Final[I64] = np.zeros(0, np.int64)


class Comm(msgspec.Struct, frozen=True):
    """One communication call, as recorded (element counts, not bytes).

    ``ranks`` are global ranks; None where the recording does not list them. ``rank``, ``src_rank`` and ``dst_rank`` are
    ranks of the group. ``seq`` is PyTorch's sequence number of the group.
    """

    name: str  # allreduce, all_to_allv, send, wait, ...: lower case as recorded
    dtype: str = ""
    in_nelems: int | None = None
    out_nelems: int | None = None
    in_split: tuple[int, ...] = ()
    out_split: tuple[int, ...] = ()
    pg_name: str | None = None
    pg_desc: str | None = None
    ranks: tuple[int, ...] | None = None
    group_size: int | None = None
    rank: int | None = None
    src_rank: int | None = None
    dst_rank: int | None = None
    seq: int | None = None
    tag: int | None = None
    elem_bytes: int | None = None  # of the recorded tensor, where the recording gives it


class ProcessGroup(msgspec.Struct, frozen=True):
    """A communicator as a recording describes it. ``ranks`` global, None where unknown (or cut with "...")."""

    name: str
    desc: str = ""
    backend: str = ""
    size: int | None = None
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, repr=False)
class CommTable(Short):
    """Sparse: ``comms[i]`` belongs to row ``row[i]`` of the table it hangs on; ``row`` ascends. Each of ``distinct``
    is kept once, however often it comes: ``number`` points into it.
    """

    row: I32
    number: I32
    distinct: tuple[Comm, ...]

    @property
    def comms(self) -> tuple[Comm, ...]:
        """Return the communication of each of the rows."""
        return tuple(map(self.distinct.__getitem__, self.number.tolist()))


@dataclass(frozen=True, slots=True, repr=False)
class HostTrace(Short):
    """A PyTorch execution trace (ET): host ops without times, one row per node, sorted by ``rf_id`` then ``id``.

    All columns have one entry per row. ``shapes`` and ``types`` columns hold the recorded JSON text. Roots (process,
    thread) are rows with ``rf_id`` 0. ``seq_id`` is -1 and ``fw_tid`` 0 where PyTorch recorded none.
    """

    path: str
    schema: str
    pid: int | None
    recorded_at: str | None  # "2024-08-19 11:25:30", local time without zone
    strings: tuple[str, ...]
    id: I64
    name: I32
    parent: I64  # an ET id, not a row
    rf_id: I64
    fw_parent: I64
    seq_id: I64
    scope: I64
    tid: I64
    fw_tid: I64
    op_schema: I32
    input_shapes: I32
    input_types: I32
    output_shapes: I32
    output_types: I32
    # ET id of the op of another thread that made a tensor which this one reads, the last of several; 0 = none
    made_by: I64
    comm: CommTable
    process_groups: tuple[ProcessGroup, ...]
    device_nodes_left_aside: int  # device rows of a merged file (ET+)
    left_out: dict[str, int]  # rows that were not read, by reason
    nodes_json: tuple[bytes, ...] | None  # each node as recorded, only when asked for (--linked)


@dataclass(frozen=True, slots=True, repr=False)
class TimedRows(Short):
    """Rows from one time to another each."""

    start_ns: I64
    end_ns: I64


@dataclass(frozen=True, slots=True, repr=False)
class ThreadRows(TimedRows):
    """Rows on threads of the host. ``name``: a position in the strings of the recording."""

    tid: I64
    name: I32


@dataclass(frozen=True, slots=True, repr=False)
class HostRows(ThreadRows):
    """Kineto's ``cpu_op`` and ``user_annotation`` rows, sorted by start, longest first, then ``order``."""

    annotation: Bool  # user_annotation, else cpu_op
    order: I64  # "Ev Idx" / "Profiler Event Index"; position in the file where a row has none
    rf_id: I64
    seq_id: I64  # -1 = none
    fw_tid: I64  # PyTorch's number of the forward thread; 0 = none
    input_shapes: I32
    input_types: I32
    comm: CommTable
    apart: Bool | None = None  # ranges that are known to stand outside the nesting of their thread; None = none are


@dataclass(frozen=True, slots=True, repr=False)
class CallRows(ThreadRows):
    """Runtime and driver API calls, CUDA and HIP, sorted by start (then longest first)."""

    correlation: I64


class DeviceKind(IntEnum):
    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    HOST = 3  # a call of the host in a CUDA graph: it holds up its stream, and is no work of the device


@dataclass(frozen=True, slots=True, repr=False)
class DeviceRows(TimedRows):
    """Kernels, copies and memsets, sorted by start (then end, then file order)."""

    device: I64
    stream: I64
    graph: I64  # CUDA's number of the graph that it is a node of; 0 = none, or not recorded
    graph_node: I64  # and of the node
    name: I32
    kind: U8  # DeviceKind
    correlation: I64
    bytes: I64  # of copies and memsets; 0 = not recorded
    sm_share: F64  # the part of the device's SMs that the blocks of a kernel can fill, 1 at most; 0 = not recorded
    lane: I32  # a layer or group on whose line it is shown; "" = none
    comm: CommTable
    cut_ns: I64 | None = None  # of what was recorded of it, behind its end: linking.tidy; None = nothing


class SyncKind(IntEnum):
    STREAM = 0
    DEVICE = 1  # Kineto's "Context Sync"
    EVENT = 2  # cudaEventSynchronize and cudaEventQuery
    STREAM_WAIT = 3


@dataclass(frozen=True, slots=True, repr=False)
class SyncRows(TimedRows):
    """``cuda_sync`` rows, sorted by start. ``stream`` holds the awaited (STREAM) or the waiting (STREAM_WAIT) stream,
    else is masked.
    """

    kind: U8  # SyncKind
    correlation: I64  # of the call
    device: I64
    stream: I64
    stream_known: Bool
    record: I64  # correlation of the cudaEventRecord that is waited for; valid where ``record_known``
    record_known: Bool
    record_stream: I64  # the stream it was recorded on; valid where ``record_stream_known``
    record_stream_known: Bool
    event: I64  # CUPTI's id of the CUDA event; valid where ``event_known``. An event belongs to one device.
    event_known: Bool


@dataclass(frozen=True, slots=True, repr=False)
class EventRows(Short):
    """``cuda_event`` rows (kineto since 2026): the stream that a cudaEventRecord was made on."""

    correlation: I64
    device: I64
    stream: I64


@dataclass(frozen=True, slots=True, repr=False)
class GraphDeps(Short):
    """Dependencies inside CUDA graphs as they were recorded, the same in each replay: ``node`` of ``graph`` waits for
    the node ``before``, or for nothing but the launch where that is ``NOWHERE``. Of nodes without a row nothing is
    known."""

    graph: I64
    node: I64
    before: I64


@dataclass(frozen=True, slots=True, repr=False)
class CounterRows(Short):
    """What a device's counters were sampled as, in the order in which the recording has them: each ``value`` holds from
    ``ns`` on, up to the next one of its counter."""

    ns: I64
    device: I64
    name: I32
    value: F64


@dataclass(frozen=True, slots=True, repr=False)
class OverheadRows(TimedRows):
    """The cost of the profiler itself, as it records it: buffer flushes and requests, resource work, sorted by start.
    No nodes.
    """

    name: I32


@dataclass(frozen=True, slots=True, repr=False)
class FrameRows(ThreadRows):
    """Frames of Python's stack (``python_function`` rows), in no order. No nodes: they show when a thread ran."""


@dataclass(frozen=True, slots=True, repr=False)
class FlowRows(Short):
    """``fwdbwd`` flows: a forward op on one thread -> its backward op, both named by thread and start time."""

    fwd_tid: I64
    fwd_ns: I64
    bwd_tid: I64
    bwd_ns: I64


class DeviceClock(msgspec.Struct, frozen=True):
    """The lead of the clock of ``device`` over the host's. Not ``anchored``: nothing in the recording tells, and it is
    left as it is.

    ``windows`` with an offset of their own, ``offset_ns`` the least and the largest, ``steps`` changes of 2 us or more
    between them.
    """

    device: int
    windows: int
    offset_ns: tuple[int, int]
    steps: int
    anchored: bool


@dataclass(frozen=True, slots=True, repr=False)
class DeviceClocks(Short):
    """``offset_ns``: by how much each device row was recorded late, as its clock was ahead; ``devices`` by number."""

    offset_ns: I64
    devices: tuple[DeviceClock, ...]


class Gpu(msgspec.Struct, frozen=True):
    """A device as its recording names it. ``capability``: (major, minor) of CUDA or its equivalent; ``sms``: how many
    SMs or compute units it has; None where it is not recorded."""

    device: int
    name: str
    capability: tuple[int, int] | None = None
    sms: int | None = None


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a device as PyTorch's allocator recorded it in ``rows``: the most that was allocated, and reserved,
    at a time.

    ``total_bytes``: what the device has; None where it is not recorded.
    """

    device: int
    rows: int
    allocated_bytes: Annotated[int, figure("allocated", means="memory")]
    reserved_bytes: Annotated[int, figure("reserved", means="memory")]
    total_bytes: Annotated[int | None, figure("of", means="memory")] = None

    @property
    def reserved(self) -> Annotated[tuple[int, int] | None, figure("reserved share", means="memory")]:
        return None if self.total_bytes is None else (self.reserved_bytes, self.total_bytes)


class System(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a recording tells of the machine, "" where it does not. Nothing else of its metadata is taken: it may hold
    secrets.

    ``cuda``, ``hip``: versions of the runtimes; ``cuda_driver``, ``hip_driver``: the newest that the driver takes;
    ``driver``: its own.
    """

    cpu: str = ""
    driver: str = ""
    cuda: str = ""
    cuda_driver: str = ""
    hip: str = ""
    hip_driver: str = ""
    nccl: str = ""


NO_SYSTEM = System()


@dataclass(frozen=True, slots=True, repr=False)
class Trace(Short):
    """A device recording of one rank (Kineto or nsys): what ran on its threads and streams, in ns."""

    path: str
    strings: tuple[str, ...]
    host: HostRows
    calls: CallRows
    device: DeviceRows
    syncs: SyncRows
    events: EventRows
    flows: FlowRows
    overhead: OverheadRows
    pid: int | None  # of the process with most host rows and calls
    rank: int | None
    world_size: int | None
    process_groups: tuple[ProcessGroup, ...]
    resolution_ns: int  # 1 = times are exact to the ns; 1000 = integer or absolute-epoch us, which have lost their ns
    # rows that are no nodes or could not be read, by reason ("python_function", "dur < 0 taken as 0", ...)
    left_out: dict[str, int]
    warnings: tuple[str, ...]
    host_name: str = ""  # of the machine; "" where the recording does not tell
    job: str = ""  # what tells it, the same on all ranks of a run (read.comms.job_of); "" where nothing does
    frames: FrameRows | None = None  # None = the recording has no stacks
    gpus: tuple[Gpu, ...] = ()  # as far as the recording describes them
    system: System = NO_SYSTEM
    clocks: DeviceClocks | None = None  # of device rows brought onto the host's clock; None = they are as recorded
    memory: tuple[DeviceMemory, ...] = ()  # () = the recording has no rows of the allocator
    graph_deps: GraphDeps | None = None  # None = none are recorded
    counters: CounterRows | None = None  # None = none are recorded
    mended: dict[str, int] = field(default_factory=dict)  # rows that could not be and were put right, by kind


@dataclass(frozen=True, slots=True, repr=False)
class HostMatch(Short):
    """The ET node of each Kineto host row.

    ``et`` has one entry a ``HostRows`` row: a ``HostTrace`` row or ``NOWHERE``. ``only_kineto`` and ``only_et`` count
    by name what one side has alone (ET roots are in neither).
    """

    method: str  # rf_id | order | kineto (there is no ET) | nsys
    et: I32
    only_kineto: dict[str, int]
    only_et: dict[str, int]
    warnings: tuple[str, ...]
    misfits: tuple[str, ...] = ()  # of the warnings those of names and threads of the ET that fit no row
    raised: int = 0  # host rows of ops of which the ET has no node, as an exception ended them


@dataclass(frozen=True, slots=True, repr=False)
class Linked(Short):
    """One rank with its rows joined: host row <-> ET node, host row in host row, call in op, device op from call."""

    trace: Trace
    et: HostTrace | None
    match: HostMatch
    parent: I32  # a host row: the host row of its thread that encloses it
    # a host row: crosses others of its thread, stands outside the nesting (gloo and other asynchronous ranges)
    crossing: Bool
    # a call: the innermost cpu_op around it, else the innermost annotation (ProfilerStep too), else NOWHERE
    call_op: I32
    device_call: I32  # a device row: the call that launched it, NOWHERE for an orphan
    orphans: dict[str, int]  # device rows without a call, by reason
    warnings: tuple[str, ...]


class FoundBy(IntEnum):
    """Bits of the ``found_by`` columns: who found a dependency."""

    HTA = 1
    CUDA_SYNC = 2
    EVENT_ID = 4
    INFERRED = 8
    RECORDED = 16  # inside a CUDA graph


@dataclass(frozen=True, slots=True, repr=False)
class Waits(Short):
    """Synchronisation findings: ``call`` or ``device_op`` (``NOWHERE``: the other) waited for device row ``source``."""

    source: I32
    call: I32
    device_op: I32
    found_by: U8  # FoundBy bits


class CommKind(IntEnum):
    COLLECTIVE = 0
    SEND = 1
    RECV = 2
    UNKNOWN = 3  # parameters or group unknown: a COMP_NODE, whose time counts as communication


@dataclass(frozen=True, slots=True, repr=False)
class CommOps(TimedRows):
    """Communication ops of a rank, typed and sized, before any simulator's limits are applied. In each column an entry
    per op, sorted by start, then end. ``NOWHERE`` stands for a type, group, peer or number that an op has not, or that
    is not known.
    """

    on_host: Bool  # a host-side (gloo) row, which lasts until somebody waits for it; else a device row
    row: I32
    kind: U8  # CommKind
    # in names: as recorded, upper case enum style (ALL_REDUCE, REDUCE_SCATTER, SEND, ...), or the recorded text
    name: I32
    type: I32  # value of CollectiveCommType
    bytes: I64  # as ASTRA-sim counts them
    group: I32  # index into groups
    peer: I64  # the other global rank of a message
    tag: I64
    seq: I64  # PyTorch's sequence number in the group
    uneven: Bool  # ranks may rightly differ in size: splits, all_to_allv and the like
    names: tuple[str, ...]
    groups: tuple[GroupKey, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Communication(Short):
    """The communication of a rank, and what could not be typed.

    A device row is communication if and only if it is in ``device_row``, whatever of it is known.
    """

    ops: CommOps
    warnings: tuple[str, ...]
    # ops whose parameters or group were not recorded, by recorded name
    unknown: dict[str, int] = field(default_factory=dict)
    # of these the ones whose group's members are not known, by group
    unlisted: dict[str, int] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()  # groups that are taken as all ranks, since their members are not recorded
    # groups on which ET and Kineto differ, in words, with the number of calls
    differing: dict[str, int] = field(default_factory=dict)
    # kernels that may be some: how many, and their ns, by name
    doubtful: dict[str, tuple[int, int]] = field(default_factory=dict)
    # host row of a wait() -> sequence number of what it waits for
    awaited: dict[int, int] = field(default_factory=dict)

    @property
    def device_row(self) -> I32:
        """Return the device rows that are communication, ascending."""
        return np.sort(self.ops.row[~self.ops.on_host])

    @property
    def host_row(self) -> I32:
        """Return the host rows that are communication, ascending."""
        return np.sort(self.ops.row[self.ops.on_host])

    def host_are(self, kind: CommKind) -> Bool:
        """Return which of ``host_row`` are sends or receives (``kind``), those of unknown peer too."""
        at = np.flatnonzero(self.ops.on_host)
        named = np.array([name == kind.name for name in self.ops.names], np.bool_)
        return named[self.ops.name[at[np.argsort(self.ops.row[at])]]]
