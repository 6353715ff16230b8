"""Write an execution as a Kineto trace, in the dialect of any era."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests.simulator.dialects import (
    BASE_NS,
    DIALECTS,
    EPOCH_NS,
    Clock,
    DeviceClock,
    Dialect,
    ExternalId,
    RowIds,
    cuspy_kinds,
    row_ids,
)
from tests.simulator.execution import CallRow, DeviceOp, Execution, HostOp
from tests.simulator.program import Api, CommArgs, thread_tids

Row = dict[str, Any]

CBID = {
    "cudaLaunchKernel": 211, "cudaLaunchKernelExC": 430, "cuLaunchKernel": 307, "cuLaunchKernelEx": 652,
    "cudaLaunchCooperativeKernel": 269, "cudaGraphLaunch": 311, "cudaMemcpy": 31, "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51, "cudaEventRecord": 135, "cudaStreamWaitEvent": 147, "cudaStreamSynchronize": 131,
    "cudaDeviceSynchronize": 165, "cudaEventSynchronize": 137, "cudaEventQuery": 138, "cudaStreamIsCapturing": 317,
}  # fmt: skip
_HIP = {
    "cuLaunchKernel": "hipModuleLaunchKernel",
    "cuLaunchKernelEx": "hipExtModuleLaunchKernel",
    "cudaLaunchKernelExC": "hipExtLaunchKernel",
    "cudaMemcpy": "hipMemcpyWithStream",
}
_SYNC_KIND = {
    Api.STREAM_SYNC: "Stream Sync",
    Api.DEVICE_SYNC: "Context Sync",
    Api.EVENT_SYNC: "Event Sync",
    Api.EVENT_QUERY: "Event Sync",
    Api.WAIT_EVENT: "Stream Wait Event",
}


@dataclass(frozen=True, slots=True)
class Variation:
    """What recordings of one era may differ in.

    ``record_ids``: what wait and event rows name as the awaited record: "right"; "absent" (before Sep 2023);
    "unresolved" (-1, CUDA >= 12.9); "later" (the event's last record, even if after the wait). ``sync_rows_share`` < 1
    leaves out some rows by seed. ``comm_args``: they say what a communication is, where their writer can; ``seq``: and
    its sequence number; None as of the dialect.
    """

    record_ids: str = "right"
    suppress_idle_waits: bool = False  # no wait rows on streams without device ops
    sync_rows_share: float = 1.0
    forward_flows: bool = True
    launch_flows: bool = True
    gpu_annotations: bool = True
    comm_args: bool = True
    seq: bool | None = None
    python_rows: bool = False
    other_rows: bool = True  # memory instants, overhead, spans, metadata
    shuffle_seed: int | None = None
    indent: int | None = None
    clock_ns: int = 0  # what this recording's clock is ahead of the others'
    device_clock: DeviceClock = DeviceClock()  # noqa: RUF009


class _Writer:
    def __init__(self, execution: Execution, dialect: Dialect, cuda_sync: bool, vary: Variation):
        self.execution, self.dialect, self.vary = execution, dialect, vary
        self.cuda_sync = cuda_sync and dialect.sync_rows
        self.told = vary.comm_args and dialect.comm_args
        self.seq = dialect.event_rows if vary.seq is None else vary.seq
        self.ids: RowIds = row_ids(execution)
        self.pid = execution.program.pid
        self.rows: list[Row] = []
        self.category = dict(dialect.category)
        # ROCm's default stream is 0, and its device numbers are a driver's node numbers
        self.first_device = 2 if dialect.hip else 0
        self.default_stream = 0 if dialect.hip and all(op.stream for op in execution.device) else 7
        self.busy = {(op.device, op.stream) for op in execution.device}

    # times

    def ts(self, ns: int) -> float | int:
        ns += self.vary.clock_ns
        if self.dialect.clock is Clock.INT_US:
            return (EPOCH_NS + ns) // 1000
        if self.dialect.clock is Clock.FLOAT_US:
            return (EPOCH_NS + ns) / 1000
        return (EPOCH_NS - BASE_NS + ns) / 1000

    def span(self, category: str, name: str, start_ns: int, end_ns: int, pid: int, tid: int, args: Row) -> Row:
        dur: float | int = (end_ns - start_ns) / 1000
        if self.dialect.clock is Clock.INT_US:
            # Kineto rounds host ops by their ends and activities of CUPTI by their length
            host = category in ("cpu_op", "user_annotation", "python_function")
            dur = int(self.ts(end_ns) - self.ts(start_ns)) if host else (end_ns - start_ns) // 1000
        row: Row = {"ph": "X", "cat": self.category.get(category, category), "name": name, "pid": pid, "tid": tid}
        row |= {"ts": self.ts(start_ns), "dur": dur, "args": args}
        self.rows.append(row)
        return row

    def flow(self, phase: str, category: str, flow_id: int, ns: int, pid: int, tid: int) -> None:
        row: Row = {"ph": phase, "id": flow_id, "pid": pid, "tid": tid, "ts": self.ts(ns)}
        row |= {"cat": category, "name": category}
        self.rows.append(row | {"bp": "e"} if phase == "f" else row)

    def stream(self, stream: int) -> int:
        return self.default_stream if stream == 7 and self.dialect.hip else stream

    def device(self, device: int) -> int:
        return device + self.first_device

    def on_device(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """A span of the device as its clock has it."""
        shown_ns = self.vary.device_clock.at(start_ns)
        return shown_ns, shown_ns + end_ns - start_ns

    # host

    def host_ops(self) -> None:
        ids, host = self.ids, self.execution.host
        for i in sorted(range(len(host)), key=ids.host_index.__getitem__):
            op = host[i]
            category = "user_annotation" if op.annotation else "cpu_op"
            self.span(category, op.name, op.start_ns, op.end_ns, self.pid, ids.host_tid[i], self.host_args(i, op))
        if self.vary.forward_flows:
            self.forward_flows()

    def host_args(self, i: int, op: HostOp) -> Row:
        ids, dialect = self.ids, self.dialect
        args: Row = {"External id": ids.host_external_id[i]}
        if dialect.external_id is ExternalId.OP_LOWER_CASE:
            args = {"external id": ids.host_external_id[i]}
        if dialect.record_function_id:
            args["Record function id"] = ids.host_rf_id[i]
        if op.seq is not None:
            args["Sequence number"] = op.seq
            args["Fwd thread id"] = 0 if op.fwd_thread is None else op.fwd_thread + 1
        if dialect.index_key == "Profiler Event Index":
            args["Trace name"] = "PyTorch Profiler"
        if dialect.index_key is not None:
            args[dialect.index_key] = ids.host_index[i]
        if op.comm is not None and self.told:
            args |= self.comm_args(op.comm, on_op=True)
        return args

    def comm_args(self, comm: CommArgs, *, on_op: bool) -> Row:
        program = self.execution.program
        group = next((g for g in program.groups if g.name == comm.group), None)
        args: Row = {
            "Collective name": comm.name, "dtype": comm.dtype, "In msg nelems": comm.in_nelems,
            "Out msg nelems": comm.out_nelems, "Group size": len(group.ranks) if group else 1,
            "In split size": str([*comm.splits[0]]), "Out split size": str([*comm.splits[1]]),
            "Process Group Ranks": str(list(group.ranks)) if group else "[]",
        }  # fmt: skip
        seq = {"Seq": comm.seq} if self.seq else {}
        if group is None:
            return args | seq
        args |= {"Process Group Name": group.name, "Process Group Description": group.desc}
        if on_op:
            args |= {"Global rank start": group.ranks[0], "Global rank stride": group.stride}
        key, other = ("Dst Rank", comm.dst_rank) if comm.name == "send" else ("Src Rank", comm.src_rank)
        if other is not None:
            args |= {key: group.ranks[other], "Rank": other}
        args |= seq
        if self.dialect.event_rows:
            args |= {"Comms Id": ((int(group.name or 0) + 1) * 1_000_003 + comm.seq) % (1 << 63)}
        return args

    def forward_flows(self) -> None:
        """From the last-starting forward op with a sequence number to the inner backward row."""
        forward: dict[int, int] = {}
        flow_id = 0
        for i, op in enumerate(self.execution.host):
            if op.seq is None:
                continue
            if op.fwd_thread is None:
                forward[op.seq] = i
            elif op.backward and op.seq in forward:
                flow_id += 1
                source = forward[op.seq]
                start_ns = self.execution.host[source].start_ns
                self.flow("s", "fwdbwd", flow_id, start_ns, self.pid, self.ids.host_tid[source])
                self.flow("f", "fwdbwd", flow_id, op.start_ns, self.pid, self.ids.host_tid[i])

    # calls and device ops

    def linked_op(self, call: CallRow) -> int | None:
        """External id of the innermost cpu_op around a call."""
        op = call.op
        while op is not None and self.execution.host[op].annotation:
            op = self.execution.host[op].parent
        return None if op is None else self.ids.host_external_id[op]

    def external(self, call_index: int) -> Row:
        linked, correlation = self.linked_op(self.execution.calls[call_index]), self.ids.call_correlation[call_index]
        match self.dialect.external_id:
            case ExternalId.OP_LOWER_CASE:
                return {"external id": linked or 0}
            case ExternalId.CORRELATION:
                return {"External id": correlation}
            case ExternalId.OP:
                return {"External id": linked or correlation}
            case ExternalId.OP_OR_MISSING:
                return {} if linked is None else {"External id": linked}
            case ExternalId.NONE:
                return {}

    def call_rows(self) -> None:
        launched = {op.call for op in self.execution.device}
        for i, row in enumerate(self.execution.calls):
            name, correlation, tid = row.call.name, self.ids.call_correlation[i], self.ids.call_tid[i]
            args = self.external(i)
            if self.dialect.hip:
                name = _HIP.get(name, name.replace("cuda", "hip", 1))
                args |= {"cid": 100 + len(name), "correlation": correlation}
                if row.call.api is Api.LAUNCH:
                    args["stream"] = hex(self.stream(row.call.stream))
                if row.call.work and row.call.work[0].kind == "gpu_memcpy":
                    args |= {"src": "0x55674ecd4180", "dst": "0x7fda0e810200", "kind": "1"}
                    args["size"] = str(row.call.work[0].size_bytes)
            else:
                args |= {"cbid": CBID.get(name, 409), "correlation": correlation}
            category = (
                "cuda_driver" if row.call.name.startswith("cu") and row.call.name[2].isupper() else "cuda_runtime"
            )
            if self.dialect.hip:
                category = "cuda_runtime"
            self.span(category, name, row.start_ns, row.end_ns, self.pid, tid, args)
            if self.vary.launch_flows:
                # older files put an end on calls that launch nothing, too
                if i in launched:
                    self.flow("s", self.dialect.launch_flow, correlation, row.start_ns, self.pid, tid)
                elif self.dialect.resolution_ns > 1:
                    self.flow("f", self.dialect.launch_flow, correlation, row.start_ns, self.pid, tid)
            self.sync_row(i, row)

    def device_rows(self) -> None:
        for i, op in enumerate(self.execution.device):
            device, stream = self.device(op.device), self.stream(op.stream)
            args = self.external(op.call) | self.device_args(op, device, stream)
            args["correlation"] = self.ids.device_correlation[i]
            name = op.work.name
            if self.dialect.hip and name.startswith("nccl"):
                name = "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)"
            if op.work.comm is not None and self.told:
                args |= self.comm_args(op.work.comm, on_op=False)
            if self.dialect.cuspy and name.startswith("Mem"):
                name, kinds = cuspy_kinds(name)
                args |= kinds
            start_ns, end_ns = self.on_device(op.start_ns, op.end_ns)
            self.span(op.work.kind, name, start_ns, end_ns, device, stream, args)
            if self.vary.launch_flows:
                self.flow("f", self.dialect.launch_flow, args["correlation"], start_ns, device, stream)

    def device_args(self, op: DeviceOp, device: int, stream: int) -> Row:
        args: Row = {"device": device, "stream": stream}
        if self.dialect.hip:
            kinds = {"kernel": "Dispatch Kernel", "gpu_memcpy": "DtoH", "gpu_memset": "Device"}
            return args | {"kind": kinds[op.work.kind]}
        args["context"] = device + 1
        if op.work.kind == "kernel":
            args |= {"queued": 0, "registers per thread": 32, "shared memory": 0, "grid": [80, 1, 1]}
            args |= {"block": [128, 1, 1]}
            if op.site[2] or len(self.execution.calls[op.call].call.work) > 1:
                args |= {"graph id": 3, "graph node id": 12884901888 + op.site[2]} if self.dialect.event_rows else {}
        else:
            args |= {"bytes": op.work.size_bytes, "memory bandwidth (GB/s)": 1.5}
        return args

    # synchronisation rows

    def sync_row(self, i: int, row: CallRow) -> None:
        call, dialect = row.call, self.dialect
        correlation = self.ids.call_correlation[i]
        if call.api is Api.RECORD and dialect.event_rows:
            done_ns = max([row.end_ns, *(self.execution.device[op].end_ns + 1_000 for op in row.sources)])
            args = self.external(i) | {"device": call.device, "stream": call.stream, "correlation": correlation}
            done_ns = self.vary.device_clock.at(done_ns)
            self.span("cuda_event", "cudaEvent", done_ns, done_ns, call.device, call.stream, args | {"context": 1})
        kind = _SYNC_KIND.get(call.api)
        if not self.cuda_sync or kind is None or not self.kept(i, row):
            return
        on_stream = call.api in (Api.STREAM_SYNC, Api.WAIT_EVENT)
        device, stream = self.sync_device(row), call.stream if on_stream else dialect.no_stream
        args = self.external(i)
        if dialect.external_id not in (ExternalId.OP_OR_MISSING, ExternalId.NONE):
            args = {"External id": correlation}
        args["cuda_sync_kind"] = kind
        if call.event is not None:
            args |= self.awaited(row)
        args |= {"stream": stream, "correlation": correlation, "device": device, "context": device + 1}
        tid = stream if on_stream else -1
        if dialect.sync_row_tids and call.api is Api.STREAM_SYNC:
            tid = stream + 1_000_000
        # measured: a row starts 0 to 2 us after its call and ends within 1 us of it
        length_ns = row.end_ns - row.start_ns
        self.span(
            "cuda_sync", kind, row.start_ns + min(800, length_ns // 4), row.end_ns - min(400, length_ns // 4),
            device, tid, args,
        )  # fmt: skip

    def kept(self, i: int, row: CallRow) -> bool:
        if self.vary.sync_rows_share < 1 and random.Random(i).random() >= self.vary.sync_rows_share:
            return False
        idle = row.call.api is Api.WAIT_EVENT and (row.call.device, row.call.stream) not in self.busy
        return not (idle and self.vary.suppress_idle_waits)

    def sync_device(self, row: CallRow) -> int:
        if row.call.api in (Api.EVENT_SYNC, Api.EVENT_QUERY) and row.record is not None:
            return self.execution.calls[row.record].call.device
        return row.call.device

    def awaited(self, row: CallRow) -> Row:
        event, record = row.call.event, row.record
        assert event is not None, "asked for calls with an event only"
        if self.vary.record_ids == "later":
            same = [i for i, c in enumerate(self.execution.calls) if c.call.api is Api.RECORD and c.call.event == event]
            record = same[-1] if same else None
        if record is None or self.vary.record_ids == "unresolved":
            named: Row = {"wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1}
        else:
            named = {"wait_on_stream": self.execution.calls[record].call.stream}
            named["wait_on_cuda_event_record_corr_id"] = self.ids.call_correlation[record]
        if self.dialect.cuspy:
            named["wait_on_stream"] = -1
        if self.vary.record_ids == "absent":
            del named["wait_on_cuda_event_record_corr_id"]
        return named | {"wait_on_cuda_event_id": event + 1}

    # what is no work

    def overheads(self) -> None:
        tids = thread_tids(self.execution.program)
        for row in self.execution.overheads:
            self.span("overhead", row.name, row.start_ns, row.end_ns, -1, tids[row.thread], {})

    def gpu_annotations(self) -> None:
        host = self.execution.host
        spans: dict[tuple[int, int, int], list[int]] = {}  # annotation, device, stream -> first start, last end
        for op in self.execution.device:
            at = self.execution.calls[op.call].op
            while at is not None:
                if host[at].annotation:
                    span = spans.setdefault((at, op.device, op.stream), [op.start_ns, op.end_ns])
                    span[:] = min(span[0], op.start_ns), max(span[1], op.end_ns)
                at = host[at].parent
        for (at, device, stream), (start_ns, end_ns) in spans.items():
            args = {"External id": self.ids.host_external_id[at]}
            pid, tid = self.device(device), self.stream(stream)
            start_ns, end_ns = self.on_device(start_ns - 1, end_ns + 1)
            self.span("gpu_user_annotation", host[at].name, start_ns, end_ns, pid, tid, args)

    def python_rows(self) -> None:
        for i, op in enumerate(self.execution.host):
            if op.parent is None:
                args = {"Python id": 2 * i + 1, "Python parent id": None, "Python module id": 0, "Ev Idx": 100_000 + i}
                name, tid = "train.py(12): step", self.ids.host_tid[i]
                self.span("python_function", name, op.start_ns - 100, op.end_ns + 50, self.pid, tid, args)
                args = {"Python id": 2 * i + 2, "Python parent id": 2 * i + 1, "Ev Idx": 200_000 + i}
                self.span("python_function", "<built-in method>", op.start_ns, op.end_ns, self.pid, tid, args)

    def other_rows(self) -> None:
        start_ns, end_ns = self.execution.start_ns, self.execution.end_ns
        ts, pid = self.ts(start_ns - 40_000), self.pid
        for key, value in (("process_name", {"name": "python"}), ("process_labels", {"labels": "CPU"})):
            self.rows.append({"name": key, "ph": "M", "ts": ts, "pid": pid, "tid": 0, "args": value})
        for device, stream in sorted(self.busy):
            row: Row = {"name": "thread_name", "ph": "M", "ts": ts, "pid": self.device(device)}
            self.rows.append(row | {"tid": self.stream(stream), "args": {"name": f"stream {self.stream(stream)} "}})
        for tid in sorted(set(self.ids.host_tid) | set(self.ids.call_tid)):
            named = {"name": f"thread {tid} (python)"}
            self.rows.append({"name": "thread_name", "ph": "M", "ts": ts, "pid": pid, "tid": tid, "args": named})
        row = self.span("Trace", "PyTorch Profiler (0)", start_ns - 2_000, end_ns + 2_000, 0, 0, {"Op count": 0})
        row |= {"pid": "Spans", "tid": "PyTorch Profiler"}
        instant: Row = {"ph": "i", "s": "g", "name": "Iteration Start: PyTorch Profiler", "pid": "Traces"}
        self.rows.append(instant | {"tid": "Trace PyTorch Profiler", "ts": ts})
        end: Row = {
            "ph": "i",
            "s": "g",
            "name": "Record Window End",
            "pid": "",
            "tid": "",
            "ts": self.ts(end_ns + 9_000),
        }
        self.rows.append(end)
        memory: Row = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": pid, "tid": pid}
        self.rows.append(memory | {"ts": ts, "args": {"Bytes": 512, "Device Id": 0, "Device Type": 1}})
        self.span("overhead", "Activity Buffer Request", start_ns - 9_000, start_ns - 1_000, -1, 0, {})

    def document(self) -> Row:
        self.host_ops()
        self.device_rows()
        self.call_rows()
        self.overheads()
        if self.vary.gpu_annotations and self.dialect.index_key == "Ev Idx":
            self.gpu_annotations()
        if self.vary.python_rows:
            self.python_rows()
        if self.vary.other_rows:
            self.other_rows()
        if self.vary.shuffle_seed is not None:
            random.Random(self.vary.shuffle_seed).shuffle(self.rows)
        if self.dialect.string_tids:
            for row in self.rows:
                if isinstance(row["tid"], int) and row["ph"] != "M":
                    on_device = row["pid"] != self.pid and row.get("cat") != "overhead"
                    row["tid"] = f"stream {row['tid']}" if on_device else str(row["tid"])
        return self.head() | {"traceEvents": self.rows, "traceName": "kineto.json"}

    def head(self) -> Row:
        program, dialect = self.execution.program, self.dialect
        if dialect.string_tids:
            return {} if program.rank is None else {"distributedInfo": {"rank": program.rank}}
        devices = sorted({device for device, _ in self.busy})
        vendor = "AMD Instinct MI250X" if dialect.hip else "NVIDIA A100-SXM4-80GB"
        head: Row = {"schemaVersion": 1, "deviceProperties": [{"id": device, "name": vendor} for device in devices]}
        if program.rank is not None:
            info: Row = {"backend": "nccl", "rank": program.rank, "world_size": program.world_size}
            if self.told:
                groups = [
                    {
                        "pg_name": g.name,
                        "pg_desc": g.desc,
                        "backend_config": "cuda:nccl",
                        "pg_size": len(g.ranks),
                        "ranks": list(g.ranks),
                    }
                    for g in program.groups
                ]
                info |= {"pg_count": len(groups), "pg_config": groups}
            head["distributedInfo"] = info
        if program.host_name is not None:
            head["host_name"] = program.host_name
        if dialect.clock is Clock.RELATIVE_US:
            head |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS}
        return head


def kineto_document(
    execution: Execution, *, dialect: str = "2024", cuda_sync: bool = True, vary: Variation | None = None
) -> Row:
    """The trace as a JSON-ready dict. ``dialect`` is a key of ``DIALECTS``; ``cuda_sync`` has no effect where that
    writer had no such rows. Raises KeyError for an unknown dialect.
    """
    return _Writer(execution, DIALECTS[dialect], cuda_sync, vary or Variation()).document()


def write_kineto(
    execution: Execution,
    path: str | Path,
    *,
    dialect: str = "2024",
    cuda_sync: bool = True,
    vary: Variation | None = None,
) -> RowIds:
    """Write the trace as ``path`` (gzip if it ends in .gz) and return which row is which."""
    vary = vary or Variation()
    write_json(kineto_document(execution, dialect=dialect, cuda_sync=cuda_sync, vary=vary), path, vary.indent)
    return row_ids(execution)


def write_json(document: Row, path: str | Path, indent: int | None = None) -> None:
    """Minified, or indented; gzip without a time stamp, so equal documents give equal files."""
    data = (msgspec.json.encode(document) if indent is None else json.dumps(document, indent=indent).encode()) + b"\n"
    path = Path(path)
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
