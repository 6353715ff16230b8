"""What the profiler of one rank shows: host ops, calls, kernels and what waited for what, as rows on that rank's clock.

A compute block is as many small kernels as its run was told. Its host, one thread, runs ahead of the device within a step and waits
for it at the step's end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from graphlink.testing.cluster_faults import ProfilerOverhead, Recorded
from graphlink.testing.cluster_machine import CALL_NS, FILLER_NS, GAP_NS, RankTimes
from graphlink.testing.cluster_program import COMPUTE_STREAM, Op
from graphlink.testing.cluster_records import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    COLLECTIVE,
    NOWHERE,
    REDUCE_SCATTER,
    SEND,
    TrueClock,
)
from graphlink.testing.dialects import EPOCH_NS

if TYPE_CHECKING:
    from graphlink.testing.cluster import ClusterRun

WAIT = -2  # ``comm`` of a wait for a communication


class CommNames(NamedTuple):
    """What a communication is called: as PyTorch records it, around it, the range inside it, its kernel."""

    recorded: str
    op: str
    range: str
    kernel: str


NAMES = {
    ALL_REDUCE: CommNames("allreduce", "c10d::allreduce_", "nccl:all_reduce", "ncclDevKernel_AllReduce_Sum_RING_LL"),
    ALL_GATHER: CommNames("_allgather_base", "c10d::_allgather_base_", "nccl:_all_gather_base", "ncclDevKernel_AllGather_RING_LL"),
    BROADCAST: CommNames("broadcast", "c10d::broadcast_", "nccl:broadcast", "ncclDevKernel_Broadcast_RING_LL"),
    ALL_TO_ALL: CommNames("all_to_allv", "c10d::alltoall_base_", "nccl:all_to_all", "ncclDevKernel_SendRecv"),
    REDUCE_SCATTER: CommNames(
        "_reduce_scatter_base", "c10d::_reduce_scatter_base_", "nccl:_reduce_scatter_base", "ncclDevKernel_ReduceScatter_Sum_RING_LL"
    ),
}
SENDS = CommNames("send", "c10d::send", "nccl:send", "ncclDevKernel_SendRecv")
RECEIVES = CommNames("recv", "c10d::recv_", "nccl:recv", "ncclDevKernel_SendRecv")
FILLERS = (
    ("aten::mm", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"),
    ("aten::gelu", "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>"),
    ("aten::add", "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add>"),
    ("aten::native_layer_norm", "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel"),
)


def names_of(op: Op) -> CommNames:
    if op.kind == COLLECTIVE:
        return NAMES[op.type]
    return SENDS if op.kind == SEND else RECEIVES


class HostRow(NamedTuple):
    """``comm``: position of the rank's op that this records, ``WAIT``, or ``NOWHERE``. ``parent``: position of a row or ``NOWHERE``."""

    start_ns: int
    end_ns: int
    name: str
    annotation: bool
    parent: int
    comm: int


class CallRow(NamedTuple):
    """``op``: host row that made the call, ``NOWHERE`` outside all."""

    start_ns: int
    end_ns: int
    name: str
    op: int
    correlation: int


class KernelRow(NamedTuple):
    """``op``: host row whose call launched it."""

    start_ns: int
    end_ns: int
    name: str
    stream: int
    op: int
    correlation: int
    comm: int


class SyncRow(NamedTuple):
    """``stream`` (-1: the host) waited for what ``record_stream`` had at the record of correlation ``record``; -1 where unknown."""

    start_ns: int
    end_ns: int
    kind: str
    stream: int
    correlation: int
    record_stream: int
    record: int


class OverheadRow(NamedTuple):
    start_ns: int
    end_ns: int
    name: str


Timed = TypeVar("Timed", HostRow, CallRow, KernelRow, SyncRow, OverheadRow)


@dataclass(frozen=True, slots=True)
class RankRows:
    """All rows of a rank's recording in ns since the epoch on its clock, each sorted by start (host: then longest first)."""

    rank: int
    host: list[HostRow]
    calls: list[CallRow]
    kernels: list[KernelRow]
    syncs: list[SyncRow]
    overheads: list[OverheadRow]


def rank_rows(run: ClusterRun, rank: int) -> RankRows:
    """Of a recorded rank; O(n log n) in rows."""
    builder = _Builder(run.records[rank], run.times[rank], run.kernels)
    builder.build()
    held = sorted((f.step, f.name) for f in run.faults if isinstance(f, ProfilerOverhead) and f.rank == rank)
    return builder.rows(rank, run.ranks[rank].clock, [name for _, name in held])


class _Builder:
    """Everything that happened, in true time; calls get their place in order as correlation, from 1."""

    def __init__(self, record: Recorded, times: RankTimes, kernels: int):
        self.record, self.times, self.per_layer = record, times, kernels
        self.host: list[HostRow] = []
        self.calls: list[CallRow] = []
        self.kernels: list[KernelRow] = []
        self.syncs: list[SyncRow] = []
        self.done: dict[int, int] = {}  # op -> correlation of the record after its launch

    def build(self) -> None:
        times, ops = self.times, self.record.ops
        issued_ns, start_ns, end_ns = times.issue_ns.tolist(), times.start_ns.tolist(), times.end_ns.tolist()
        at = 0
        for number, step in enumerate(times.steps):
            around = self.op(step.begin_ns - 500, step.end_ns + 500, f"ProfilerStep#{number}", NOWHERE, annotation=True)
            while at < len(ops) and ops[at].step == number:
                now_ns = issued_ns[at]
                for waited in ops[at].waits:
                    inner = self.op(now_ns, now_ns + CALL_NS - 300, "record_param_comms", around, WAIT)
                    self.wait(now_ns + 300, inner, COMPUTE_STREAM, ops[waited].stream, self.done[waited])
                    now_ns += CALL_NS
                if ops[at].group == NOWHERE:
                    self.block(around, now_ns, start_ns[at], end_ns[at], self.per_layer * ops[at].weight)
                else:
                    self.communication(around, now_ns, start_ns[at], end_ns[at], at)
                at += 1
            correlation = self.call(step.sync_ns, step.end_ns, "cudaDeviceSynchronize", around)
            length_ns = step.end_ns - step.sync_ns
            self.syncs.append(SyncRow(step.sync_ns + 500, step.sync_ns + length_ns - 200, "Context Sync", -1, correlation, -1, -1))

    def op(self, start_ns: int, end_ns: int, name: str, parent: int, comm: int = NOWHERE, *, annotation: bool = False) -> int:
        self.host.append(HostRow(start_ns, end_ns, name, annotation, parent, comm))
        return len(self.host) - 1

    def call(self, start_ns: int, end_ns: int, name: str, op: int) -> int:
        self.calls.append(CallRow(start_ns, end_ns, name, op, len(self.calls) + 1))
        return len(self.calls)

    def wait(self, at_ns: int, op: int, stream: int, record_stream: int, record: int) -> None:
        correlation = self.call(at_ns, at_ns + 700, "cudaStreamWaitEvent", op)
        self.syncs.append(SyncRow(at_ns + 100, at_ns + 600, "Stream Wait Event", stream, correlation, record_stream, record))

    def block(self, around: int, now_ns: int, start_ns: int, end_ns: int, count: int) -> None:
        length_ns = end_ns - start_ns
        for i in range(count):
            issued_ns = now_ns + i * FILLER_NS
            name, kernel = FILLERS[i % len(FILLERS)]
            op = self.op(issued_ns, issued_ns + 3_600, name, around)
            correlation = self.call(issued_ns + 600, issued_ns + 2_400, "cudaLaunchKernel", op)
            first_ns, last_ns = start_ns + length_ns * i // count, start_ns + length_ns * (i + 1) // count
            last_ns -= GAP_NS if i < count - 1 else 0
            self.kernels.append(KernelRow(first_ns, last_ns, kernel, COMPUTE_STREAM, op, correlation, NOWHERE))

    def communication(self, around: int, now_ns: int, start_ns: int, end_ns: int, at: int) -> None:
        op = self.record.ops[at]
        names = names_of(op)
        outer = self.op(now_ns, now_ns + 20_000, names.op, around)
        recorded = self.op(now_ns + 1_000, now_ns + 19_000, "record_param_comms", outer, at)
        self.op(now_ns + 2_000, now_ns + 18_000, names.range, recorded, annotation=True)
        if op.after:
            record = self.call(now_ns + 3_000, now_ns + 3_700, "cudaEventRecord", recorded)
            self.wait(now_ns + 4_200, recorded, op.stream, COMPUTE_STREAM, record)
        correlation = self.call(now_ns + 6_000, now_ns + 11_000, "cudaLaunchKernelExC", recorded)
        self.done[at] = self.call(now_ns + 12_500, now_ns + 13_300, "cudaEventRecord", recorded)
        if self.record.kept[at]:
            self.kernels.append(KernelRow(start_ns, end_ns, names.kernel, op.stream, recorded, correlation, at))

    # what of it was recorded

    def rows(self, rank: int, clock: TrueClock, overhead_names: Sequence[str]) -> RankRows:
        inside = self.inside
        kept = sorted((i for i, row in enumerate(self.host) if inside(row)), key=lambda i: (self.host[i].start_ns, -self.host[i].end_ns))
        place = [NOWHERE] * len(self.host) + [NOWHERE]
        for position, i in enumerate(kept):
            place[i] = position
        host = [self.host[i] for i in kept]
        calls = [row for row in self.calls if inside(row)]
        known = {row.correlation for row in calls} | {NOWHERE}
        kernels = sorted(row for row in self.kernels if row.end_ns <= self.record.ended_ns and row.correlation in known)
        syncs = [row for row in self.syncs if row.correlation in known]
        held = [OverheadRow(*ns, name) for ns, name in zip(self.times.held_ns, overhead_names, strict=True)]
        return RankRows(
            rank,
            [HostRow(a, b, r.name, r.annotation, place[r.parent], r.comm) for a, b, r in _on(clock, host)],
            [CallRow(a, b, r.name, place[r.op], r.correlation) for a, b, r in _on(clock, calls)],
            [KernelRow(a, b, r.name, r.stream, place[r.op], r.correlation, r.comm) for a, b, r in _on(clock, kernels)],
            [
                SyncRow(a, b, r.kind, r.stream, r.correlation, *((r.record_stream, r.record) if r.record in known else (-1, -1)))
                for a, b, r in _on(clock, syncs)
            ],
            [OverheadRow(a, b, r.name) for a, b, r in _on(clock, [row for row in held if inside(row)])],
        )

    def inside(self, row: HostRow | CallRow | OverheadRow) -> bool:
        return row.start_ns >= self.record.began_ns and row.end_ns <= self.record.ended_ns


def _on(clock: TrueClock, rows: Sequence[Timed]) -> Iterator[tuple[int, int, Timed]]:
    """Start and end of each row on the rank's clock, and the row."""
    true_ns = np.array([row[:2] for row in rows], np.int64).reshape(-1, 2)
    for (start_ns, end_ns), row in zip(clock.recorded(true_ns + EPOCH_NS).tolist(), rows, strict=True):
        yield start_ns, end_ns, row
