"""Kineto's JSON as typed structs, and which table each category belongs to. All dialects from 2021 on."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from graphlink.model import I64, Bool, Comm, DeviceKind, SyncKind
from graphlink.read.columns import MISSING, ints, loose, to_int_or_none
from graphlink.read.comms import (
    count_or_none,
    int_list,
    peer_comm,
    rank_list,
    shape_elements,
    spread_ranks,
    text_or_none,
)

_NO_ID = (MISSING, -1, (1 << 32) - 1)  # absent, and how recorders write "none"

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

HOST, CALL, DEVICE, SYNC, EVENT, FLOW, OVERHEAD, OTHER = (
    "host",
    "call",
    "device",
    "sync",
    "event",
    "flow",
    "overhead",
    "other",
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

DEVICE_KIND = {
    "kernel": DeviceKind.KERNEL,
    "Kernel": DeviceKind.KERNEL,
    "gpu_memcpy": DeviceKind.MEMCPY,
    "Memcpy": DeviceKind.MEMCPY,
    "gpu_memset": DeviceKind.MEMSET,
    "Memset": DeviceKind.MEMSET,
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


def known(values: list[object]) -> tuple[I64, Bool]:
    """Return ids, and whether each is one: absent, -1 and its unsigned forms are none (and 0 in the first column)."""
    numbers = ints(values)
    there = np.logical_and.reduce([numbers != none for none in _NO_ID])
    return np.where(there, numbers, 0), there


def sync_kind(row: Event) -> SyncKind | None:
    recorded = row.args.sync_kind if row.args else None
    kind = SYNC_KIND.get(recorded) if isinstance(recorded, str) else None
    return SYNC_KIND.get(row.name or "") if kind is None else kind


def comm_of(a: Args) -> Comm:
    """Return the collective that ``args`` describe. Ranks cut with "..." are taken from start and stride where those
    are recorded.
    """
    size = count_or_none(a.group_size)
    return Comm(
        name=str(a.collective).lower(),
        dtype=str(a.dtype or ""),
        in_nelems=to_int_or_none(a.in_nelems),
        out_nelems=to_int_or_none(a.out_nelems),
        in_split=int_list(a.in_split),
        out_split=int_list(a.out_split),
        pg_name=text_or_none(a.group),
        pg_desc=text_or_none(a.group_desc),
        ranks=rank_list(a.group_ranks) or spread_ranks(a.rank_start, a.rank_stride, size),
        group_size=size,
        rank=to_int_or_none(a.rank),
        src_rank=to_int_or_none(a.src_rank),
        dst_rank=to_int_or_none(a.dst_rank),
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
