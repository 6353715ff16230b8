"""Kineto's JSON as typed structs, which table each category belongs to, and the sorted tables of ``model.Trace``.

All dialects from 2021 on. Tables take O(n log n); each column is copied once.

Ranges are distinguished from ops where a recording has both in one category. PyTorch says so by category since 2021
(``RecordScope::USER_SCOPE`` is written as ``user_annotation``). Before, ``ProfilerStep#N``, ``Optimizer.*``,
``enumerate(DataLoader)#*`` and what users named by ``record_function`` stood among the ops, as ``Operator``. A thread
that is idle inside a range may sleep, inside an op it may not, so that which of the two it is decides what threads wait
for. A recording mixes the two where no category says annotation, and its categories are old ones (``Operator``) or
PyTorch's own ranges are among its ops.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from graphlink.errors import InputError
from graphlink.model import (
    I32,
    I64,
    U8,
    Bool,
    CallRows,
    Comm,
    DeviceKind,
    DeviceRows,
    FlowRows,
    HostRows,
    SyncKind,
    SyncRows,
)
from graphlink.patterns import OPERATOR, fits
from graphlink.read.columns import (
    MAX_NS,
    MISSING,
    NO_ID,
    Parts,
    Strings,
    ints,
    loose,
    to_int_or_none,
)
from graphlink.read.comms import (
    count_or_none,
    int_list,
    peer_comm,
    rank_list,
    shape_elements,
    spread_ranks,
    text_or_none,
)
from graphlink.read.cuspy import EVENT_NODE, gpu_name
from graphlink.spans import around_others, extent

# gc=False: millions live for the time of a block only and hold no cycles. ``Any`` where recorders disagree about number
# or text.


class Args(msgspec.Struct, gc=False):
    # frequent ones first, in Kineto's order: msgspec looks for a key from where it found the one before
    rf_id: Any = msgspec.field(default=0, name="Record function id")
    seq_id: Any = msgspec.field(default=-1, name="Sequence number")
    fw_tid: Any = msgspec.field(default=0, name="Fwd thread id")
    inputs: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Concrete Inputs")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input type")
    shapes: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")
    external: Any = msgspec.field(default=0, name="External id")
    order: Any = msgspec.field(default=None, name="Ev Idx")
    device: Any = None
    stream: Any = None
    correlation: Any = 0
    bytes: Any = 0
    blocks_per_sm: Any = msgspec.field(default=None, name="blocks per SM")
    grid: msgspec.Raw = msgspec.Raw()
    block: msgspec.Raw = msgspec.Raw()
    graph: Any = msgspec.field(default=0, name="graph id")
    graph_node: Any = msgspec.field(default=0, name="graph node id")
    order_2022: Any = msgspec.field(default=None, name="Profiler Event Index")
    shapes_2020: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input dims")
    collective: Any = msgspec.field(default=None, name="Collective name")
    dtype: Any = None
    in_nelems: Any = msgspec.field(default=None, name="In msg nelems")
    out_nelems: Any = msgspec.field(default=None, name="Out msg nelems")
    in_split: Any = msgspec.field(default=None, name="In split size")
    out_split: Any = msgspec.field(default=None, name="Out split size")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    group_desc: Any = msgspec.field(default=None, name="Process Group Description")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    group_size: Any = msgspec.field(default=None, name="Group size")
    rank_start: Any = msgspec.field(default=None, name="Global rank start")
    rank_stride: Any = msgspec.field(default=None, name="Global rank stride")
    rank: Any = msgspec.field(default=None, name="Rank")
    src_rank: Any = msgspec.field(default=None, name="Src Rank")
    dst_rank: Any = msgspec.field(default=None, name="Dst Rank")
    seq: Any = msgspec.field(default=None, name="Seq")
    sync_kind: Any = msgspec.field(default=None, name="cuda_sync_kind")
    wait_stream: Any = msgspec.field(default=None, name="wait_on_stream")
    wait_event: Any = msgspec.field(default=None, name="wait_on_cuda_event_id")
    wait_number: Any = msgspec.field(default=None, name="seq_num")  # MTIA: of the event that is recorded or waited for
    stream_id: Any = None  # MTIA's calls
    size: Any = None
    device_id: Any = msgspec.field(default=None, name="Device Id")  # of the allocator's rows, as the next three
    device_type: Any = msgspec.field(default=None, name="Device Type")
    allocated: Any = msgspec.field(default=None, name="Total Allocated")
    reserved: Any = msgspec.field(default=None, name="Total Reserved")
    mem_size: Any = msgspec.field(default=None, name="mem size")
    original_stream: Any = None  # where ``stream`` is a lane
    annotated_stream: Any = None  # a lane, where ``stream`` is none
    copy_kind: Any = msgspec.field(default=None, name="copy kind")  # of Cuspy, as the next three
    src_kind: Any = msgspec.field(default=None, name="src kind")
    dst_kind: Any = msgspec.field(default=None, name="dst kind")
    memory_kind: Any = msgspec.field(default=None, name="memory kind")
    value: Any = msgspec.field(default=None, name="")  # of a counter
    labels: Any = None  # of the metadata process_labels
    label: Any = msgspec.field(default=None, name="name")  # of process_name
    wait_record: Any = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")


class Event(msgspec.Struct, gc=False):
    ph: str | None = None
    cat: str | None = None
    name: str | None = ""
    pid: Any = None
    tid: Any = None
    ts: float | None = None
    dur: float | None = 0.0
    id: Any = None
    args: Args | None = None


NO_ARGS = Args()

HOST, CALL, DEVICE, SYNC, EVENT, FLOW, OVERHEAD, OTHER, LAUNCHED, COUNTER = (
    "host",
    "call",
    "device",
    "sync",
    "event",
    "flow",
    "overhead",
    "other",
    "ac2g",
    "counter",
)
FRAME = "python_function"

OLD_OP = "Operator"  # of 2021, when ranges were among the ops

TABLE_OF = {
    "cpu_op": HOST,
    OLD_OP: HOST,
    "user_annotation": HOST,
    "UserAnnotation": HOST,
    "cuda_runtime": CALL,
    "cuda_driver": CALL,
    "Runtime": CALL,  # 2021
    "kernel": DEVICE,
    "gpu_memcpy": DEVICE,
    "gpu_memset": DEVICE,
    "graph_host_node": DEVICE,
    "graph_event_node": DEVICE,
    "Kernel": DEVICE,  # 2021, as the next two
    "Memcpy": DEVICE,
    "Memset": DEVICE,
    "cuda_sync": SYNC,
    "cuda_event": EVENT,
    "fwdbwd": FLOW,
    "overhead": OVERHEAD,
}

# Neither work nor calls on any device: frames, ranges seen on a stream, flows, counters.
NO_NODES = frozenset({
    FRAME, "gpu_user_annotation", "Trace", "cpu_instant_event", "external_correlation", "cuda_profiler_range",
    "gpu_pm_counter", "hardware_counters", "mtia_counters", "mtia_insight",
})  # fmt: skip

ANNOTATIONS = frozenset({"user_annotation", "UserAnnotation"})
OPS = frozenset({"cpu_op", OLD_OP})

DEVICE_KIND = {
    "kernel": DeviceKind.KERNEL,
    "Kernel": DeviceKind.KERNEL,
    "gpu_memcpy": DeviceKind.MEMCPY,
    "Memcpy": DeviceKind.MEMCPY,
    "gpu_memset": DeviceKind.MEMSET,
    "Memset": DeviceKind.MEMSET,
    "graph_host_node": DeviceKind.HOST,
    "graph_event_node": EVENT_NODE,
}

SYNC_KIND = {
    "Stream Sync": SyncKind.STREAM,
    "Context Sync": SyncKind.DEVICE,
    "Device Sync": SyncKind.DEVICE,
    "Event Sync": SyncKind.EVENT,
    "Stream Wait Event": SyncKind.STREAM_WAIT,
}


def on_gpu(rows: list[Event], key: str, otherwise: str) -> I64:
    """Read ``args[key]`` of GPU rows, or the row's own ``otherwise`` where args lack it (2021: ``"stream 7"``); MISSING
    if neither.
    """
    values = [getattr(row.args, key, None) for row in rows]
    if None in values:
        values = [getattr(row, otherwise) if value is None else value for row, value in zip(rows, values, strict=True)]
    return ints(values)


def streams_of(rows: list[Event]) -> I64:
    """Return the streams that GPU rows ran on; MISSING where they have none.

    The stream of a node of a CUDA graph may be a lane, on which its row is shown. Then it is kept as
    ``original_stream``; or the lane of its annotation alone took its place among the args, and the row has it still.
    """
    stream = on_gpu(rows, "stream", "tid")
    node = [k for k, row in enumerate(rows) if row.args is not None and row.args.graph]
    if node:
        ran = ints([args.original_stream if (args := rows[k].args) else None for k in node])
        shown = ints([rows[k].tid for k in node])
        ran = np.where(ran == MISSING, shown, ran)
        stream[node] = np.where(ran == MISSING, stream[node], ran)
    return stream


def lanes_of(rows: list[Event], stream: I64, strings: Strings) -> I32:
    """Number the names of the lanes that nodes of CUDA graphs are shown on, in place of the ``stream`` they ran on; ""
    for all other rows."""
    out = np.zeros(len(rows), np.int32)
    for k, (row, ran) in enumerate(zip(rows, stream.tolist(), strict=True)):
        args = row.args or NO_ARGS
        shown = [lane for lane in (args.stream, args.annotated_stream) if lane not in (None, ran, str(ran))]
        if args.graph and shown:
            out[k] = strings[str(args.label or f"lane {shown[0]}")]
    return out


def name_lanes(device: Parts, names: dict[tuple[Any, Any], str], strings: Strings) -> None:
    """Name lanes that have no name of their own as the metadata call their line, in place."""
    lane, devices = device.seen("lane"), {*np.unique(device.seen("pid")).tolist()}
    for (pid, tid), name in names.items():
        if name and pid in devices and f"lane {tid}" in strings:
            lane[lane == strings[f"lane {tid}"]] = strings[name]


def name_on_gpu(row: Event) -> str:
    """Return the name of a copy, memset or other row of a device that is no kernel, as Kineto has it."""
    a = row.args or NO_ARGS
    return gpu_name(row.name or "", a.copy_kind, a.src_kind, a.dst_kind, a.memory_kind)


def known(values: list[object]) -> tuple[I64, Bool]:
    """Return ids, and whether each is one: absent, -1 and its unsigned forms are none (and 0 in the first column)."""
    numbers = ints(values)
    there = np.logical_and.reduce([numbers != none for none in NO_ID])
    return np.where(there, numbers, 0), there


def sync_kind(row: Event) -> SyncKind | None:
    recorded = row.args.sync_kind if row.args else None
    kind = SYNC_KIND.get(recorded) if isinstance(recorded, str) else None
    return SYNC_KIND.get(row.name or "") if kind is None else kind


def sync_columns(rows: list[Event], kind: U8) -> dict[str, NDArray[Any]]:
    """Return the columns of ``cuda_sync`` rows of these kinds, but for their times."""
    args = [row.args or NO_ARGS for row in rows]
    stream, stream_known = known([a.stream for a in args])
    record, record_known = known([a.wait_record for a in args])
    record_stream, record_stream_known = known([a.wait_stream for a in args])
    event, event_known = known([a.wait_event for a in args])
    of_stream = (kind == SyncKind.STREAM) | (kind == SyncKind.STREAM_WAIT)
    of_event = (kind == SyncKind.EVENT) | (kind == SyncKind.STREAM_WAIT)
    device = on_gpu(rows, "device", "pid")
    return {
        "correlation": ints([a.correlation for a in args], 0),
        "device": np.where(device == MISSING, 0, device),
        "stream": stream,
        "stream_known": stream_known & of_stream,
        "record": record,
        "record_known": record_known & of_event & (record > 0),
        "record_stream": record_stream,
        "record_stream_known": record_stream_known & of_event,
        "event": event,
        "event_known": event_known & of_event,
    }


COMM_FIELDS: Final = attrgetter(  # of ``Args``, what ``comm_of`` is made of
    "collective", "dtype", "in_nelems", "out_nelems", "in_split", "out_split", "group", "group_desc", "group_ranks",
    "group_size", "rank_start", "rank_stride", "rank", "src_rank", "dst_rank", "seq",
)  # fmt: skip


def comm_of(a: Args) -> Comm:
    """Return the collective that ``args`` describe. Ranks cut with "..." are taken from start and stride where those
    are recorded.

    PyTorch names the other side of a send or receive twice: as ``Rank`` in the group, and in the run.
    """
    size = count_or_none(a.group_size)
    ranks = rank_list(a.group_ranks) or spread_ranks(a.rank_start, a.rank_stride, size)
    rank, ends = to_int_or_none(a.rank), [to_int_or_none(end) for end in (a.src_rank, a.dst_rank)]
    if ranks:
        ends = [ranks.index(end) if end in ranks else end for end in ends]
    elif None in ends and rank is not None:
        ends = [end if end is None else rank for end in ends]
    return Comm(
        name=str(a.collective).lower(),
        dtype=str(a.dtype or ""),
        in_nelems=to_int_or_none(a.in_nelems),
        out_nelems=to_int_or_none(a.out_nelems),
        in_split=int_list(a.in_split),
        out_split=int_list(a.out_split),
        pg_name=text_or_none(a.group),
        pg_desc=text_or_none(a.group_desc),
        ranks=ranks,
        group_size=size,
        rank=rank,
        src_rank=ends[0],
        dst_rank=ends[1],
        seq=to_int_or_none(a.seq),
    )


def peer_of(op: str, a: Args) -> Comm:
    """Return the call of a ``c10d`` send or receive, from its inputs (tensors, group, peer, tag) and the shapes of its
    tensors.
    """
    inputs, shapes = loose(a.inputs), loose(a.shapes)
    scalars = inputs[2:] if isinstance(inputs, list) else []
    peer = scalars[0] if len(scalars) > 1 else None
    tensors = shapes[0] if isinstance(shapes, list) and shapes else None
    return peer_comm(op, peer, scalars[-1] if scalars else None, shape_elements(tensors), None, "")


# Ranges in any recording:
# names that PyTorch's profiler, optimizers, data loaders and process groups give (profiler.py, optimizer.py,
# dataloader.py, Work.cpp).
RANGE: Final = re.compile(
    r"ProfilerStep\s?#\d+|Optimizer\.\w+#.*|enumerate\(DataLoader\)#.*|(?:nccl|gloo|mpi|ucc|xccl):\w+"
)
_IDENTIFIER: Final = re.compile(r"[\w.]+")  # as ops, autograd.Function classes and generated kernels are named
_NO_INPUTS: Final = ("", "[]")


def unnamed_ranges(name: I32, strings: Sequence[str], shapes: I32, numbered: Bool, around: Bool) -> Bool:
    """Return which rows are ranges by what they lack, in a recording that mixes ranges and ops.

    Such a row's name is no operator's or autograd node's, it has neither inputs nor a number of autograd
    (``numbered``), which ``record_function`` never has, and its name is no identifier or another row of its thread runs
    inside it (``around``).
    """
    nothing = np.fromiter((text in _NO_INPUTS for text in strings), np.bool_, len(strings))
    bare = nothing[shapes] & ~numbered & ~fits(OPERATOR, strings)[name]
    return bare & (~fits(_IDENTIFIER, strings)[name] | around)


MAX_SPAN_NS = 1 << 53  # 104 days: sums of times in float64 are exact below
TIMES: Final = ("start_ns", "end_ns", "ns")


def add_base(tables: Iterable[Parts], base_ns: int, path: str) -> None:
    """Add the base of a recording to all times of its ``tables``, in place.

    Raises:
        InputError: a time is then beyond 2**62 ns.
    """
    for column in (parts.seen(name) for parts in tables for name in TIMES):
        if len(column) and max(abs(int(column.min()) + base_ns), abs(int(column.max()) + base_ns)) >= MAX_NS:
            raise InputError(
                "an event's time plus baseTimeNanoseconds is beyond 2**62 ns", path=path, todo="record again"
            )
        column += base_ns


def refuse_span(path: str, tables: Sequence[HostRows | CallRows | DeviceRows | SyncRows], lanes: int) -> None:
    """Refuse events that lie too far apart, as one with a damaged time does from all others.

    Later stages put all ``lanes`` (threads, streams) one behind the other on one int64 time axis. Raises InputError.
    """
    first_ns, last_ns = extent(*tables)
    span_ns = last_ns - first_ns
    if span_ns < MAX_SPAN_NS and (span_ns + 1) * (lanes + 1) < MAX_NS:
        return
    raise InputError(
        f"its events lie {span_ns / 86_400e9:,.1f} days apart, more than one recording can last",
        path=path,
        where=f"the first starts at {first_ns} ns, the last ends at {last_ns} ns, baseTimeNanoseconds included",
        todo="remove the event with the wrong ts or dur, or record again",
    )


def host_rows(parts: Parts, strings: Sequence[str], *, old: bool) -> HostRows:
    """Return host rows in order, with ranges distinguished from ops. ``old``: rows of category ``Operator`` are among
    them.
    """
    rows = parts.table(
        HostRows, np.lexsort((parts.seen("order"), -parts.seen("end_ns"), parts.seen("start_ns"))), apart=None
    )
    own = fits(RANGE, strings)[rows.name]
    mixed = not rows.annotation.any() and (old or own.any())
    annotation = rows.annotation | own
    if mixed:
        numbered = (rows.seq_id >= 0) | (rows.fw_tid > 0)
        around = around_others(rows.start_ns, rows.end_ns, rows.tid)
        annotation |= unnamed_ranges(rows.name, strings, rows.input_shapes, numbered, around)
    return replace(rows, annotation=annotation)


def by_start(parts: Parts, *, longest_first: bool = False) -> NDArray[np.intp]:
    """Return the order of rows by start; of those that start together, the shortest or longest first."""
    end_ns = parts.seen("end_ns")
    return np.lexsort((-end_ns if longest_first else end_ns, parts.seen("start_ns")))


def flow_rows(parts: Parts, left_out: Counter[str]) -> FlowRows:
    """Join flow starts to flow ends by id, in the order of the starts' ids. What has no partner or a second one is
    counted.
    """
    ns, ident, tid = parts.column("ns"), parts.column("ident"), parts.column("tid")
    end = parts.column("end", np.uint8)
    starts, ends = np.flatnonzero(end == 0), np.flatnonzero(end == 1)
    _, start_of, end_of = np.intersect1d(ident[starts], ident[ends], return_indices=True)
    left_out["fwdbwd without partner"] += len(ident) - 2 * len(start_of)
    forward, backward = starts[start_of], ends[end_of]
    return FlowRows(fwd_tid=tid[forward], fwd_ns=ns[forward], bwd_tid=tid[backward], bwd_ns=ns[backward])
