"""Write executions as an nsys sqlite export: one process each, all in one file, in the schema of any year."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.simulator import nsys_tables as tables
from tests.simulator.dialects import EPOCH_NS, DeviceClock, RowIds, row_ids
from tests.simulator.execution import CallRow, DeviceOp, Execution
from tests.simulator.nsys_tables import CUPTI
from tests.simulator.program import Api, CommArgs, thread_tids

Row = dict[str, Any]

NONE_ID: Final = (1 << 32) - 1
REPORT_NS: Final = 1_500_000_000  # of time 0 of an execution, since the report began
_HOST_BITS: Final = 1 << 48  # the VM in a globalTid
_VERSION: Final = {"cudaLaunchKernel": 7000, "cudaLaunchKernelExC": 11060, "cudaGraphLaunch": 10000}
_SYNC_TYPE: Final = {Api.EVENT_SYNC: 1, Api.EVENT_QUERY: 1, Api.WAIT_EVENT: 2, Api.STREAM_SYNC: 3, Api.DEVICE_SYNC: 4}
_COPY: Final = re.compile(r"Memcpy (\w+) \((\w+) -> (\w+)\)")
# CommArgs.name without "_" -> NCCL's name, its schema, which side counts
_NCCL: Final = {
    "allreduce": ("AllReduce", 5, "in"), "allgather": ("AllGather", 4, "in"), "allgatherbase": ("AllGather", 4, "in"),
    "reducescatter": ("ReduceScatter", 5, "out"), "reducescatterbase": ("ReduceScatter", 5, "out"), "broadcast": ("Broadcast", 6, "in"),
    "send": ("Send", 9, "in"), "recv": ("Recv", 9, "out"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NsysVariation:
    """What exports differ in, each a trap of its own.

    ``records``: what tells which cudaEventRecord was waited for: "pairs" (eventSyncId), "ids" (event ids, used again),
    "none" (no CUDA_EVENT rows). ``device_of_syncs``: "right", or "zero" as real exports have it. ``window_ns``: rows
    that begin outside are cut.
    """

    registered_strings: bool = False  # names of ranges in StringIds
    plain_names: bool = False  # ranges without what emit_nvtx adds
    nccl: bool = False  # NCCL's own ranges, with payload
    start_end_ranges: bool = False  # annotations as start/end ranges
    end_elsewhere: bool = False  # ... that end on another thread
    graph_rows: bool = False  # one row a graph launch
    first_device: int = 0
    records: str = "pairs"
    syncs: bool = True
    wrong_sync_types: bool = False
    device_of_syncs: str = "right"
    window_ns: tuple[int, int] | None = None
    without_tables: tuple[str, ...] = ()
    epoch: bool = True
    device_clock: DeviceClock = DeviceClock()  # noqa: RUF009
    other_rows: bool = True  # marks, a domain, overhead, calls of the operating system


def global_pid(pid: int) -> int:
    return _HOST_BITS | pid << 24


class _Process:
    """The rows of one execution."""

    def __init__(self, execution: Execution, pid: int, schema: str, vary: NsysVariation, strings: dict[str, int]):
        self.execution, self.schema, self.vary, self.strings = execution, schema, vary, strings
        self.ids: RowIds = row_ids(execution)
        self.process, self.pid = global_pid(pid), pid
        self.rows: dict[str, list[Row]] = {}
        self.pair = 21_000
        self.last_pair: dict[int, int] = {}  # record's call -> its eventSyncId

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, 100 + len(self.strings))

    def thread(self, tid: int) -> int:
        """The main thread's tid is the pid; both may have been moved for another process's sake."""
        own = self.execution.program.pid
        return self.process | (self.pid if tid == own else tid)

    def add(self, table: str, start_ns: int, end_ns: int | None = None, **columns: Any) -> None:
        window = self.vary.window_ns
        if window is not None and not window[0] <= start_ns < window[1]:
            return
        times: Row = {} if end_ns is None else {"start": REPORT_NS + start_ns, "end": REPORT_NS + end_ns}
        self.rows.setdefault(table, []).append(times | columns)

    # host

    def ranges(self) -> None:
        for i, op in enumerate(self.execution.host):
            text = op.name
            if not self.vary.plain_names:
                text += f", seq = {op.seq}" if op.seq is not None else ""
                text += f", op_id = {300_000 + i}"
            named: Row = {"textId": self.string(text)} if self.vary.registered_strings else {"text": text}
            thread = self.thread(self.ids.host_tid[i])
            kind, more = 59, named
            if op.annotation and self.vary.start_end_ranges:
                kind = 60
                more = named | {"rangeId": i, "endGlobalTid": thread + 1 if self.vary.end_elsewhere else thread}
            self.add("NVTX_EVENTS", op.start_ns, op.end_ns, eventType=kind, globalTid=thread, domainId=0, **more)

    def calls(self) -> None:
        versioned = self.schema != "2020"
        for i, row in enumerate(self.execution.calls):
            name, correlation = row.call.name, self.ids.call_correlation[i]
            driver = name.startswith("cu") and name[2].isupper()
            spelled = name if driver or not versioned else f"{name}_v{_VERSION.get(name, 3020)}"
            thread = self.thread(self.ids.call_tid[i])
            named: Row = {"nameId": self.string(spelled), "globalTid": thread, "correlationId": correlation}
            self.add(
                CUPTI + "RUNTIME",
                row.start_ns,
                row.end_ns,
                eventClass=int(driver),
                returnValue=self.returned(row),
                **named,
            )
            comm = row.call.work[0].comm if row.call.work else None
            if self.vary.nccl and comm is not None:
                self.nccl(row, comm, thread)
            self.synchronisation(i, row)

    def returned(self, row: CallRow) -> int:
        """cudaErrorNotReady of a query that came too early, else cudaSuccess."""
        if row.call.api is not Api.EVENT_QUERY or row.record is None:
            return 0
        awaited = self.execution.calls[row.record].sources
        return 600 if any(self.execution.device[op].end_ns > row.end_ns for op in awaited) else 0

    def nccl(self, row: CallRow, comm: CommArgs, thread: int) -> None:
        word, schema, side = _NCCL[comm.name.replace("_", "").replace("tensor", "")]
        ranks = next(group.ranks for group in self.execution.program.groups if group.name == comm.group)
        peer = comm.dst_rank if comm.dst_rank is not None else comm.src_rank
        last = {9: ranks.index(peer) if peer in ranks else 0, 5: 0, 6: 0}.get(schema)
        elements = comm.in_nelems if side == "in" else comm.out_nelems
        values = [self.communicator(comm.group), elements * comm.elem_bytes, *([] if last is None else [last])]
        self.nccl_range(f"nccl{word}", row.start_ns, row.end_ns, thread, tables.payload(schema, values))

    def communicator(self, group: str) -> int:
        return (1 << 63) + 17 * (1 + int(group or 0))  # beyond int64, as hashes are

    def nccl_range(self, name: str, start_ns: int, end_ns: int, thread: int, data: bytes) -> None:
        named: Row = {"textId": self.string(name), "binaryData": data}
        self.add("NVTX_EVENTS", start_ns, end_ns, eventType=59, globalTid=thread, domainId=tables.NCCL_DOMAIN, **named)

    def communicators(self) -> None:
        program = self.execution.program
        devices = sorted({op.device for op in self.execution.device})
        for k, group in enumerate(program.groups):
            if program.rank in group.ranks and devices:
                values = (
                    self.communicator(group.name),
                    len(group.ranks),
                    group.ranks.index(program.rank),
                    self.device(devices[0]),
                )
                start_ns = self.execution.start_ns - 100_000 + 2_000 * k
                data = tables.payload(2, values)
                self.nccl_range(
                    "ncclCommInitRankConfig", start_ns, start_ns + 1_000, self.thread(self.ids.host_tid[0]), data
                )

    # device

    def device(self, device: int) -> int:
        return device + self.vary.first_device

    def placed(self, device: int, stream: int, correlation: int) -> Row:
        where: Row = {"deviceId": self.device(device), "contextId": device + 1, "streamId": stream, "greenContextId": 0}
        return where | {"correlationId": correlation, "globalPid": self.process}

    def work(self) -> None:
        graphs: dict[int, list[DeviceOp]] = {}
        for i, op in enumerate(self.execution.device):
            if self.vary.graph_rows and self.execution.calls[op.call].call.name == "cudaGraphLaunch":
                graphs.setdefault(op.call, []).append(op)
                continue
            placed = self.placed(op.device, op.stream, self.ids.device_correlation[i])
            start_ns = self.vary.device_clock.at(op.start_ns)
            end_ns = start_ns + op.end_ns - op.start_ns
            size: Row = {"bytes": op.work.size_bytes}
            if op.work.kind == "kernel":
                name = self.string(op.work.name)
                node = (1 << 33) + op.site[2] if len(self.execution.calls[op.call].call.work) > 1 else None
                more: Row = {
                    "demangledName": name,
                    "shortName": self.string(op.work.name.split("(")[0]),
                    "launchType": 1,
                }
                self.add(CUPTI + "KERNEL", start_ns, end_ns, graphNodeId=node, gridX=80, blockX=128, **placed, **more)
            elif op.work.kind == "gpu_memcpy":
                self.add(CUPTI + "MEMCPY", start_ns, end_ns, **placed, **size, **self.copy(op.work.name))
            else:
                self.add(CUPTI + "MEMSET", start_ns, end_ns, **placed, **size, value=0, memKind=self.memory("DEVICE"))
        for call, ops in graphs.items():
            placed = self.placed(ops[0].device, ops[0].stream, self.ids.call_correlation[call])
            start_ns = self.vary.device_clock.at(ops[0].start_ns)
            end_ns = start_ns + ops[-1].end_ns - ops[0].start_ns
            self.add(CUPTI + "GRAPH_TRACE", start_ns, end_ns, graphId=3, graphExecId=4, **placed)

    def copy(self, name: str) -> Row:
        found = _COPY.fullmatch(name)
        kind, source, target = found.groups() if found else ("DtoH", "Device", "Pageable")
        number = next(k for k, word in tables.COPY_KINDS.items() if word == kind.upper())
        return {"copyKind": number, "srcKind": self.memory(source.upper()), "dstKind": self.memory(target.upper())}

    def memory(self, word: str) -> int:
        known = tables.MEMORY_KINDS_2020 if self.schema == "2020" else tables.MEMORY_KINDS
        return next(k for k, name in known.items() if name == word)

    # synchronisation

    def synchronisation(self, i: int, row: CallRow) -> None:
        call, correlation = row.call, self.ids.call_correlation[i]
        if call.api is Api.RECORD and self.vary.records != "none":
            assert call.event is not None, "a record has an event"
            self.pair += 1
            self.last_pair[i] = self.pair
            event: Row = {
                "eventId": call.event + 1,
                "eventSyncId": self.pair if self.vary.records == "pairs" else None,
                "timestamp": 0,
            }
            self.add(CUPTI + "CUDA_EVENT", row.start_ns, **event, **self.placed(call.device, call.stream, correlation))
        if call.api not in _SYNC_TYPE or not self.vary.syncs:
            return
        on_stream = call.api in (Api.STREAM_SYNC, Api.WAIT_EVENT)
        device = call.device
        if call.api in (Api.EVENT_SYNC, Api.EVENT_QUERY) and row.record is not None:
            device = self.execution.calls[row.record].call.device
        placed = self.placed(device, call.stream if on_stream else NONE_ID, correlation)
        if self.vary.device_of_syncs == "zero":
            placed["deviceId"] = 0
        kind = 2 if self.vary.wrong_sync_types and call.api is Api.STREAM_SYNC else _SYNC_TYPE[call.api]
        waited: Row = {"eventId": NONE_ID, "eventSyncId": NONE_ID}
        if call.event is not None:
            waited = {
                "eventId": call.event + 1,
                "eventSyncId": self.last_pair.get(-1 if row.record is None else row.record, NONE_ID),
            }
        if self.vary.records != "pairs":
            waited["eventSyncId"] = None
        inset_ns = (row.end_ns - row.start_ns) // 4
        self.add(
            CUPTI + "SYNCHRONIZATION", row.start_ns + inset_ns, row.end_ns - inset_ns, syncType=kind, **placed, **waited
        )

    def others(self) -> None:
        start_ns, thread = self.execution.start_ns, self.thread(self.execution.program.pid)
        for kind, domain, text in ((75, tables.NCCL_DOMAIN, "NCCL"), (34, 0, "a mark")):
            at: Row = {"start": REPORT_NS + start_ns, "globalTid": thread}
            self.add("NVTX_EVENTS", start_ns, eventType=kind, domainId=domain, text=text, **at)
        named: Row = {"globalTid": thread, "nameId": self.string("Buffer flush"), "overheadType": 3}
        self.add(CUPTI + "OVERHEAD", start_ns, start_ns + 900, **named)
        tids = thread_tids(self.execution.program)
        for row in self.execution.overheads:
            at = {"globalTid": self.thread(tids[row.thread]), "nameId": self.string(row.name), "overheadType": 3}
            self.add(CUPTI + "OVERHEAD", row.start_ns, row.end_ns, **at)
        self.add(
            "OSRT_API",
            start_ns,
            start_ns + 700,
            globalTid=thread,
            nameId=self.string("poll"),
            eventClass=27,
            returnValue=0,
        )

    def all(self) -> dict[str, list[Row]]:
        if self.vary.nccl:
            self.communicators()
        self.ranges()
        self.calls()
        self.work()
        if self.vary.other_rows and self.execution.host:
            self.others()
        return self.rows


def write_nsys(
    executions: Sequence[Execution], path: str | Path, *, schema: str = "3.25", vary: NsysVariation | None = None
) -> tuple[RowIds, ...]:
    """Write an export with a process for each execution; returns which row is which, by execution.

    ``schema`` is one of ``nsys_tables.SCHEMAS``. Executions with the same ``Program.pid`` get pids 1000 apart; their
    correlation ids may be equal, as they are in real exports. Rows stand in the order of their starts.
    """
    vary, strings = vary or NsysVariation(), {"nothing": 99}
    pids: list[int] = []
    for execution in executions:
        pid = execution.program.pid
        while pid in pids:
            pid += 1000
        pids.append(pid)
    processes = [_Process(e, pid, schema, vary, strings) for e, pid in zip(executions, pids, strict=True)]
    rows: dict[str, list[Row]] = {table: [] for table in tables.LAYOUTS}
    for process in processes:
        for table, own in process.all().items():
            rows[table] += own
    for own in rows.values():
        own.sort(key=lambda row: (row.get("start") or 0, -(row.get("end") or 0)))
    rows |= _around(schema, vary, pids, strings, times=len(processes))
    Path(path).unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    with connection:
        for table in (table for table in tables.LAYOUTS if table not in vary.without_tables):
            columns = tables.create(connection, table, schema)
            if columns:
                tables.fill(connection, table, columns, rows[table])
    connection.close()
    return tuple(process.ids for process in processes)


def _around(
    schema: str, vary: NsysVariation, pids: Sequence[int], strings: dict[str, int], times: int
) -> dict[str, list[Row]]:
    """The tables that describe the others. Payload schemas repeat once per process, as in real exports."""
    memory = tables.MEMORY_KINDS_2020 if schema == "2020" else tables.MEMORY_KINDS
    schemas, entries = tables.schema_rows() if vary.nccl else ([], [])
    meta = {"EXPORT_SCHEMA_VERSION": schema, "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems"}
    if vary.window_ns is not None:
        meta |= {
            "DERIVED_FROM": "whole.sqlite",
            "DERIVED_WINDOW_NS": "-".join(str(REPORT_NS + ns) for ns in vary.window_ns),
        }
    return {
        "StringIds": [{"id": number, "value": text} for text, number in strings.items()],
        "META_DATA_EXPORT": [{"name": name, "value": value} for name, value in meta.items()],
        "META_DATA_CAPTURE": [{"name": "CUDA_SKIP_SOME_API_CALLS", "value": "true"}],
        "ENUM_NSYS_EVENT_TYPE": [{"id": k, "name": name} for k, name in tables.EVENT_TYPES.items()],
        "ENUM_CUDA_MEMCPY_OPER": [
            {"id": k, "name": f"CUDA_MEMCPY_KIND_{name}"} for k, name in tables.COPY_KINDS.items()
        ],
        "ENUM_CUDA_MEM_KIND": [{"id": k, "name": f"CUDA_MEMOPR_MEMORY_KIND_{name}"} for k, name in memory.items()],
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": EPOCH_NS - REPORT_NS}] if vary.epoch else [],
        "PROCESSES": [{"globalPid": global_pid(pid), "pid": pid, "name": "python3"} for pid in pids],
        "NVTX_PAYLOAD_SCHEMAS": schemas * times,
        "NVTX_PAYLOAD_SCHEMA_ENTRIES": entries * times,
    }
