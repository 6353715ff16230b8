"""Small traces for tests, written as tuples: times in us (int or float), everything else as the records of
``graphlink.model`` have it.

    trace = build_trace(
        host=[Host("aten::mm", 0, 10), Host("ProfilerStep#1", 0, 100, annotation=True)],
        calls=[Call("cudaLaunchKernel", 2, 4, correlation=7)],
        device=[Device("gemm", 12, 20, correlation=7, stream=7)],
    )

Rows may come in any order; the tables are sorted as the readers sort them, and ``order`` of a host row is its position
in the list unless given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphlink.model import (
    CallRows,
    Comm,
    CommTable,
    DeviceKind,
    DeviceRows,
    EventRows,
    FlowRows,
    HostRows,
    HostTrace,
    OverheadRows,
    ProcessGroup,
    SyncKind,
    SyncRows,
    Trace,
)
from graphlink.tables import comm_table as table_of


class Host(NamedTuple):
    name: str
    start: float
    end: float
    tid: int = 1
    annotation: bool = False
    rf_id: int = 0
    order: int | None = None
    seq_id: int = -1
    fw_tid: int = 0
    comm: Comm | None = None
    shapes: str = ""


class Call(NamedTuple):
    name: str
    start: float
    end: float
    correlation: int
    tid: int = 1


class Device(NamedTuple):
    name: str
    start: float
    end: float
    correlation: int
    stream: int = 7
    device: int = 0
    kind: DeviceKind = DeviceKind.KERNEL
    bytes: int = 0
    comm: Comm | None = None
    graph: int = 0
    graph_node: int = 0
    sm_share: float = 0.0


class Sync(NamedTuple):
    kind: SyncKind
    start: float
    end: float
    correlation: int
    stream: int | None = None
    record: int | None = None
    record_stream: int | None = None
    device: int = 0
    event: int | None = None


class Event(NamedTuple):
    correlation: int
    stream: int
    device: int = 0


class Flow(NamedTuple):
    fwd_tid: int
    fwd: float
    bwd_tid: int
    bwd: float


class Node(NamedTuple):
    """A row of an ET."""

    name: str
    rf_id: int
    tid: int = 1
    parent: int = 1
    id: int | None = None  # default: rf_id + 1000
    seq_id: int = -1
    scope: int = 0
    fw_parent: int = 0
    fw_tid: int = 0
    op_schema: str = ""
    comm: Comm | None = None
    made_by: int = 0
    shapes: str = ""


class Strings:
    """A string table while it is being filled; entry 0 is ""."""

    def __init__(self) -> None:
        self.at: dict[str, int] = {"": 0}

    def codes(self, texts: Iterable[str]) -> NDArray[np.int32]:
        return np.array([self.at.setdefault(t, len(self.at)) for t in texts], np.int32)

    def all(self) -> tuple[str, ...]:
        return tuple(self.at)


def ns(us: Iterable[float]) -> NDArray[np.int64]:
    return np.array([round(t * 1000) for t in us], np.int64)


def ints(values: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(values), np.int64)


def known(values: Sequence[int | None]) -> NDArray[np.bool_]:
    return np.array([v is not None for v in values], np.bool_)


def comm_table(comms: Iterable[Comm | None]) -> CommTable:
    return table_of({i: c for i, c in enumerate(comms) if c is not None})


def _host_rows(rows: Iterable[Host], strings: Strings) -> HostRows:
    given = [r._replace(order=i) if r.order is None else r for i, r in enumerate(rows)]
    given.sort(key=lambda r: (r.start, -r.end, r.order or 0))
    nothing = np.zeros(len(given), np.int32)
    return HostRows(
        start_ns=ns(r.start for r in given),
        end_ns=ns(r.end for r in given),
        tid=ints(r.tid for r in given),
        name=strings.codes(r.name for r in given),
        annotation=np.array([r.annotation for r in given], np.bool_),
        order=ints(r.order or 0 for r in given),
        rf_id=ints(r.rf_id for r in given),
        seq_id=ints(r.seq_id for r in given),
        fw_tid=ints(r.fw_tid for r in given),
        input_shapes=strings.codes(r.shapes for r in given),
        input_types=nothing,
        comm=comm_table(r.comm for r in given),
    )


def _sync_rows(rows: Iterable[Sync]) -> SyncRows:
    given = sorted(rows, key=lambda r: r.start)
    streams, records, record_streams, events = (
        [getattr(r, c) for r in given] for c in ("stream", "record", "record_stream", "event")
    )
    return SyncRows(
        kind=np.array([r.kind for r in given], np.uint8),
        start_ns=ns(r.start for r in given),
        end_ns=ns(r.end for r in given),
        correlation=ints(r.correlation for r in given),
        device=ints(r.device for r in given),
        stream=ints(v or 0 for v in streams),
        stream_known=known(streams),
        record=ints(v or 0 for v in records),
        record_known=known(records),
        record_stream=ints(v or 0 for v in record_streams),
        record_stream_known=known(record_streams),
        event=ints(v or 0 for v in events),
        event_known=known(events),
    )


def build_trace(
    host: Iterable[Host] = (),
    calls: Iterable[Call] = (),
    device: Iterable[Device] = (),
    syncs: Iterable[Sync] = (),
    events: Iterable[Event] = (),
    flows: Iterable[Flow] = (),
    *,
    rank: int | None = 0,
    world_size: int | None = None,
    process_groups: tuple[ProcessGroup, ...] = (),
    resolution_ns: int = 1,
    pid: int | None = 100,
    path: str = "kineto.json",
) -> Trace:
    strings = Strings()
    host_rows = _host_rows(host, strings)
    call_list = sorted(calls, key=lambda r: (r.start, -r.end))
    device_list = sorted(device, key=lambda r: (r.start, r.end))
    event_list, flow_list = list(events), list(flows)
    call_rows = CallRows(
        start_ns=ns(r.start for r in call_list),
        end_ns=ns(r.end for r in call_list),
        tid=ints(r.tid for r in call_list),
        name=strings.codes(r.name for r in call_list),
        correlation=ints(r.correlation for r in call_list),
    )
    device_rows = DeviceRows(
        start_ns=ns(r.start for r in device_list),
        end_ns=ns(r.end for r in device_list),
        device=ints(r.device for r in device_list),
        stream=ints(r.stream for r in device_list),
        graph=ints(r.graph for r in device_list),
        graph_node=ints(r.graph_node for r in device_list),
        name=strings.codes(r.name for r in device_list),
        kind=np.array([r.kind for r in device_list], np.uint8),
        correlation=ints(r.correlation for r in device_list),
        bytes=ints(r.bytes for r in device_list),
        comm=comm_table(r.comm for r in device_list),
        sm_share=np.array([r.sm_share for r in device_list], np.float64),
        lane=np.zeros(len(device_list), np.int32),
    )
    return Trace(
        path=path,
        strings=strings.all(),
        host=host_rows,
        calls=call_rows,
        device=device_rows,
        syncs=_sync_rows(syncs),
        events=EventRows(*(ints(getattr(r, c) for r in event_list) for c in ("correlation", "device", "stream"))),
        overhead=OverheadRows(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32)),
        flows=FlowRows(
            ints(r.fwd_tid for r in flow_list),
            ns(r.fwd for r in flow_list),
            ints(r.bwd_tid for r in flow_list),
            ns(r.bwd for r in flow_list),
        ),
        pid=pid,
        rank=rank,
        world_size=world_size,
        process_groups=process_groups,
        resolution_ns=resolution_ns,
        left_out={},
        warnings=(),
    )


def build_et(
    nodes: Iterable[Node],
    *,
    pid: int | None = 100,
    recorded_at: str | None = None,
    process_groups: tuple[ProcessGroup, ...] = (),
    path: str = "et.json",
) -> HostTrace:
    """An ET with a process root (id 1) and the given nodes below it."""
    strings = Strings()
    root = Node("[pytorch|profiler|execution_trace|process]", 0, id=1)
    given = [n if n.id is not None else n._replace(id=n.rf_id + 1000) for n in (root, *nodes)]
    given.sort(key=lambda n: (n.rf_id, n.id))
    nothing, shapes = np.zeros(len(given), np.int32), strings.codes(n.shapes for n in given)
    return HostTrace(
        path=path,
        schema="1.1.0-chakra.0.0.4",
        pid=pid,
        recorded_at=recorded_at,
        id=ints(n.id or 0 for n in given),
        name=strings.codes(n.name for n in given),
        parent=ints(n.parent for n in given),
        rf_id=ints(n.rf_id for n in given),
        fw_parent=ints(n.fw_parent for n in given),
        seq_id=ints(n.seq_id for n in given),
        scope=ints(n.scope for n in given),
        tid=ints(n.tid for n in given),
        fw_tid=ints(n.fw_tid for n in given),
        op_schema=strings.codes(n.op_schema for n in given),
        strings=strings.all(),
        input_shapes=shapes,
        input_types=nothing,
        output_shapes=nothing,
        output_types=nothing,
        made_by=ints(n.made_by for n in given),
        comm=comm_table(n.comm for n in given),
        process_groups=process_groups,
        device_nodes_left_aside=0,
        left_out={},
        nodes_json=None,
    )
