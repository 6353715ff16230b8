"""A rank's Kineto file the plain way: a dict a row. What the fast writer of simulated clusters must write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphlink.testing import DIALECTS, ClusterRun
from graphlink.testing.cluster_kineto import WAIT_ARGS, comm_args, head, process_id
from graphlink.testing.cluster_records import NOWHERE
from graphlink.testing.cluster_rows import WAIT, rank_rows
from graphlink.testing.dialects import BASE_NS, Clock, ExternalId

CBID = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147,
    "cudaDeviceSynchronize": 165,
}


def document(run: ClusterRun, rank: int, name: str, *, seq: bool, told: bool, cuda_sync: bool) -> dict[str, Any]:
    """``told``: with arguments of communication."""
    dialect, rows = DIALECTS[name], rank_rows(run, rank)
    told = told and dialect.comm_args
    pid, device = process_id(rank), rank % run.training.ranks_per_host
    found: list[dict[str, Any]] = []

    def add(cat: str, row: Any, title: str, pid: int, tid: int, args: dict[str, Any]) -> None:
        start, end = row.start_ns, row.end_ns
        if dialect.clock is Clock.INT_US:
            by_ends = cat in ("cpu_op", "user_annotation")
            ts, dur = start // 1000, end // 1000 - start // 1000 if by_ends else (end - start) // 1000
        else:
            ts, dur = (start - (BASE_NS if dialect.clock is Clock.RELATIVE_US else 0)) / 1000, (end - start) / 1000
        found.append({"ph": "X", "cat": cat, "name": title, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args})

    def comm(at: int, on_op: bool) -> dict[str, Any]:
        if not told or at == NOWHERE:
            return {}
        return WAIT_ARGS if at == WAIT else comm_args(run, rank, run.records[rank].ops[at], seq=seq, on_op=on_op)

    def external(op: int, correlation: int) -> Iterator[tuple[str, int]]:
        linked = op + 1 if op != NOWHERE and not rows.host[op].annotation else None
        if dialect.external_id is ExternalId.CORRELATION:
            yield "External id", correlation
        elif linked is not None or dialect.external_id is ExternalId.OP:
            yield "External id", linked or correlation

    for i, row in enumerate(rows.host):
        args = {"External id": i + 1, str(dialect.index_key): i} | ({"Record function id": i + 2} if dialect.record_function_id else {})
        add("user_annotation" if row.annotation else "cpu_op", row, row.name, pid, pid, args | comm(row.comm, on_op=True))
    for kernel in rows.kernels:
        args = dict(external(kernel.op, kernel.correlation)) | {"device": device, "stream": kernel.stream, "context": 1}
        args |= {"correlation": kernel.correlation, "grid": [80, 1, 1], "block": [128, 1, 1]}
        add("kernel", kernel, kernel.name, device, kernel.stream, args | comm(kernel.comm, on_op=False))
    for call in rows.calls:
        args = dict(external(call.op, call.correlation)) | {"cbid": CBID[call.name], "correlation": call.correlation}
        add("cuda_runtime", call, call.name, pid, pid, args)
    for sync in rows.syncs if cuda_sync and dialect.sync_rows else ():
        args = {} if dialect.external_id is ExternalId.OP_OR_MISSING else {"External id": sync.correlation}
        args |= {"cuda_sync_kind": sync.kind, "correlation": sync.correlation, "device": device, "context": 1}
        args["stream"] = dialect.no_stream if sync.stream < 0 else sync.stream
        if sync.kind == "Stream Wait Event":
            args |= {"wait_on_stream": sync.record_stream, "wait_on_cuda_event_record_corr_id": sync.record}
            args["wait_on_cuda_event_id"] = sync.record_stream
        add("cuda_sync", sync, sync.kind, device, sync.stream, args)
    for overhead in rows.overheads:
        add("overhead", overhead, overhead.name, -1, pid, {})
    beside = head(run, rank)
    if not told:
        beside["distributedInfo"] = {k: v for k, v in beside["distributedInfo"].items() if not k.startswith("pg_")}
    if dialect.clock is Clock.RELATIVE_US:
        beside["baseTimeNanoseconds"] = BASE_NS
    return beside | {"traceEvents": found}
