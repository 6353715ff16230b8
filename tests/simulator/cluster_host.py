"""Writes the program of each rank of a simulated cluster, for the machine to run.

The host, one thread, runs ahead of the device within a step and waits for it at the step's end. A compute block is as
many small kernels as it was told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tests.simulator.cluster_program import (
    COMPUTE_STREAM,
    DESCRIPTIONS,
    ClusterGroup,
    Op,
    TrueMeeting,
    elements,
    named_groups,
)
from tests.simulator.cluster_records import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    COLLECTIVE,
    F64,
    I32,
    I64,
    NOWHERE,
    REDUCE_SCATTER,
    SEND,
    ClusterTraining,
    GroupKey,
    RankTimes,
)
from tests.simulator.execution import Execution
from tests.simulator.program import (
    Action,
    Api,
    Begin,
    Call,
    CommArgs,
    End,
    Group,
    Host,
    Meeting,
    Overhead,
    Program,
    Thread,
    Work,
)

FILLER_NS = 5_000  # of the host, an op and a launch
GAP_NS = 1_000  # between kernels
WAIT_NS = 1_500  # of the host, to make the compute stream wait for a communication
BETWEEN_NS = 40_000  # from a step's end to the begin of the next


class CommNames(NamedTuple):
    """What a communication is called: as PyTorch records it, around it, the range inside it, its kernel."""

    recorded: str
    op: str
    range: str
    kernel: str


NAMES = {
    ALL_REDUCE: CommNames("allreduce", "c10d::allreduce_", "nccl:all_reduce", "ncclDevKernel_AllReduce_Sum_RING_LL"),
    ALL_GATHER: CommNames(
        "_allgather_base", "c10d::_allgather_base_", "nccl:_all_gather_base", "ncclDevKernel_AllGather_RING_LL"
    ),
    BROADCAST: CommNames("broadcast", "c10d::broadcast_", "nccl:broadcast", "ncclDevKernel_Broadcast_RING_LL"),
    ALL_TO_ALL: CommNames("all_to_allv", "c10d::alltoall_base_", "nccl:all_to_all", "ncclDevKernel_SendRecv"),
    REDUCE_SCATTER: CommNames(
        "_reduce_scatter_base",
        "c10d::_reduce_scatter_base_",
        "nccl:_reduce_scatter_base",
        "ncclDevKernel_ReduceScatter_Sum_RING_LL",
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
DTYPES = {2: "BFloat16", 4: "Float", 8: "Long"}

_ROWS_A_KERNEL, _ROWS_A_COMM = 3, 9
_WAIT = Begin("record_param_comms", comm=CommArgs("wait", "Byte", 1))
_FILLER_ENDS = (Host(1_200), End(1_400))


def names_of(op: Op) -> CommNames:
    if op.kind == COLLECTIVE:
        return NAMES[op.type]
    return SENDS if op.kind == SEND else RECEIVES


def process_id(rank: int) -> int:
    """Its main thread has the same id."""
    return 4_000 + 1_000 * rank


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What becomes of a rank. One entry of each an op: its ``meeting``, how long it takes the device (once all that
    meet have started), how much longer than usual the host. ``kernels``: of a forward layer's compute. ``held``: by
    step, what holds up the host first."""

    rank: int
    meeting: Sequence[Meeting | None]
    length_ns: Sequence[int]
    jitter_ns: Sequence[int]
    kernels: int
    began_ns: int
    held: Mapping[int, Overhead]


def rank_plans(
    training: ClusterTraining,
    ops: Sequence[Sequence[Op]],
    meetings: Sequence[TrueMeeting],
    began_ns: Sequence[int],
    held: Mapping[int, Mapping[int, Overhead]],
) -> list[RankPlan]:
    """One a rank, of its ops as issued. ``began_ns``: when the program of each goes on; ``held``: of which ranks and
    steps.
    """
    rng, host = np.random.default_rng([training.seed, 1]), np.random.default_rng([training.seed, 12])
    kernels = _kernels(training, ops[0])
    steps = 1 + training.step_jitter * np.random.default_rng([training.seed, 13]).random((len(ops), training.steps))
    scale = [
        (1 + training.jitter * rng.random(len(mine))) * mine_by_step[[op.step for op in mine]]
        for mine, mine_by_step in zip(ops, steps, strict=True)
    ]
    late_ns = [rng.integers(0, training.end_jitter_ns, len(mine), endpoint=True).tolist() for mine in ops]
    met: list[list[Meeting | None]] = [[None] * len(mine) for mine in ops]
    length_ns = [_block_ns(training, rank, mine, scale[rank], kernels) for rank, mine in enumerate(ops)]
    for m, (_, members) in enumerate(meetings):
        transfer_ns = training.transfer_ns(max(ops[rank][i].bytes for rank, i in members))
        for rank, i in members:
            met[rank][i] = Meeting(m, len(members))
            length_ns[rank][i] = transfer_ns + late_ns[rank][i]
    jitter_ns = [host.exponential(training.host_jitter_ns, len(mine)).astype(np.int64).tolist() for mine in ops]
    return [
        RankPlan(rank, met[rank], length_ns[rank], jitter_ns[rank], kernels, began_ns[rank], held.get(rank, {}))
        for rank in range(len(ops))
    ]


def _kernels(training: ClusterTraining, ops: Sequence[Op]) -> int:
    """So many a forward layer that a rank has as many rows as asked for."""
    comms = sum(op.group != NOWHERE for op in ops)
    left = training.events_per_rank - comms * _ROWS_A_COMM
    return max(1, round(left / (_ROWS_A_KERNEL * sum(op.weight for op in ops))))


def _block_ns(training: ClusterTraining, rank: int, ops: Sequence[Op], scale: F64, kernels: int) -> list[int]:
    """Compute, and at least what the host takes to launch its kernels, so that they follow each other closely."""
    weight = np.array([op.weight for op in ops], np.int64)
    slow, factor = training.straggler or (rank, 1.0)
    least_ns = kernels * FILLER_NS * weight
    wanted_ns = np.maximum(training.compute_ns * weight, least_ns) * scale * (factor if slow == rank else 1.0)
    taken_ns: list[int] = np.maximum(np.rint(wanted_ns).astype(np.int64), least_ns).tolist()
    return taken_ns


class RankProgram(NamedTuple):
    """``first``: of each op of the rank the first of its actions; ``meeting``: its number, or ``NOWHERE``."""

    program: Program
    first: I64
    meeting: I32

    def op_of(self, sites: Sequence[tuple[int, ...]]) -> I64:
        """Position of the op that each site belongs to."""
        found: I64 = np.searchsorted(self.first, np.array([site[1] for site in sites], np.int64), "right") - 1
        return found

    def times(self, execution: Execution) -> RankTimes:
        begun, device = (
            self.op_of([row.site for row in execution.host]),
            self.op_of([row.site for row in execution.device]),
        )
        ops, ran_ns = (
            np.arange(len(self.first)),
            np.array([(op.start_ns, op.end_ns) for op in execution.device], np.int64),
        )
        return RankTimes(
            issue_ns=np.array([row.start_ns for row in execution.host], np.int64)[np.searchsorted(begun, ops)],
            start_ns=ran_ns[np.searchsorted(device, ops), 0],
            end_ns=ran_ns[np.searchsorted(device, ops, "right") - 1, 1],
            meeting=self.meeting,
            ended_ns=execution.calls[-1].end_ns,
        )


def rank_program(
    training: ClusterTraining, groups: Sequence[ClusterGroup], plan: RankPlan, ops: Sequence[Op]
) -> RankProgram:
    """``ops``: as recorded. Linear in kernels."""
    rank = plan.rank
    named = named_groups(training, groups, rank)
    host = _Host(plan, ops, named, rank % training.ranks_per_host)
    host.run()
    program = Program(
        threads=(Thread("python", tuple(host.actions), plan.began_ns + BETWEEN_NS - 500),),
        groups=tuple(Group(name, DESCRIPTIONS[groups[index].sort], ranks) for index, (ranks, name) in named.items()),
        rank=rank,
        world_size=training.world,
        pid=process_id(rank),
        seed=rank,
        host_name=host_name(training, rank),
    )
    meeting = np.array([NOWHERE if m is None else m.key for m in plan.meeting], np.int32)
    return RankProgram(program, np.array(host.first, np.int64), meeting)


def host_name(training: ClusterTraining, rank: int) -> str:
    return f"node{rank // training.ranks_per_host}"


@dataclass
class _Host:
    plan: RankPlan
    ops: Sequence[Op]
    named: Mapping[int, GroupKey]
    device: int
    actions: list[Action] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    done: dict[int, int] = field(default_factory=dict)  # op -> event recorded after its launch
    events: int = 0

    def run(self) -> None:
        plan, step = self.plan, -1
        for at, op in enumerate(self.ops):
            if op.step != step:
                self.end_step(step)
                step = op.step
                self.actions.append(Begin(f"ProfilerStep#{step}", annotation=True, ns=500))
                if step in plan.held:
                    self.actions += [Host(1_000), plan.held[step], Host(1_000)]
            self.first.append(len(self.actions))
            for waited in op.waits:
                self.actions.append(_WAIT)
                self.call(Api.WAIT_EVENT, "cudaStreamWaitEvent", 700, COMPUTE_STREAM, self.done[waited])
                self.actions += [Host(200), End(300)]
            if op.group == NOWHERE:
                self.block(plan.length_ns[at], plan.kernels * op.weight)
            else:
                self.communication(at, op)
            self.actions.append(Host(plan.jitter_ns[at]))
        self.end_step(step)

    def end_step(self, step: int) -> None:
        if step >= 0:
            self.actions.append(Call(Api.DEVICE_SYNC, "cudaDeviceSynchronize", 3_000, self.device, return_ns=4_000))
            self.actions += [Host(500), End(BETWEEN_NS - 1_000)]

    def call(
        self, api: Api, name: str, ns: int, stream: int, event: int | None = None, work: Work | None = None
    ) -> None:
        self.actions.append(Call(api, name, ns, self.device, stream, event, (work,) if work else ()))

    def block(self, length_ns: int, count: int) -> None:
        bounds = [length_ns * i // count for i in range(count + 1)]
        for i in range(count):
            gap_ns = GAP_NS if i < count - 1 else 0
            self.actions += [*_filler(i % len(FILLERS), bounds[i + 1] - bounds[i] - gap_ns, self.device), *_FILLER_ENDS]

    def communication(self, at: int, op: Op) -> None:
        plan, names = self.plan, names_of(op)
        comm = _comm(op, plan.rank, self.named[op.group])
        self.actions += [Begin(names.op, ns=1_000), Begin("record_param_comms", comm=comm, ns=1_000)]
        self.actions.append(Begin(names.range, annotation=True, ns=1_000))
        if op.after:
            self.events += 1
            self.call(Api.RECORD, "cudaEventRecord", 700, COMPUTE_STREAM, self.events)
            self.actions.append(Host(500))
            self.call(Api.WAIT_EVENT, "cudaStreamWaitEvent", 700, op.stream, self.events)
        self.actions.append(Host(1_100 if op.after else 3_000))
        work = Work(
            names.kernel, plan.length_ns[at], launch_delay_ns=4_000, gap_ns=GAP_NS, comm=comm, meeting=plan.meeting[at]
        )
        self.call(Api.LAUNCH, "cudaLaunchKernelExC", 5_000, op.stream, work=work)
        self.events += 1
        self.done[at] = self.events
        self.actions.append(Host(1_500))
        self.call(Api.RECORD, "cudaEventRecord", 800, op.stream, self.events)
        self.actions += [Host(4_700), End(1_000), End(1_000), End(2_000)]


@lru_cache(maxsize=1 << 12)  # most are alike
def _filler(which: int, length_ns: int, device: int) -> tuple[Action, Action]:
    name, kernel = FILLERS[which]
    work = Work(kernel, length_ns, launch_delay_ns=2_600, gap_ns=GAP_NS)
    return Begin(name, ns=600), Call(Api.LAUNCH, "cudaLaunchKernel", 1_800, device, COMPUTE_STREAM, work=(work,))


def _comm(op: Op, rank: int, key: GroupKey) -> CommArgs:
    members, name = key
    sent, got = elements(op, len(members))
    ends: tuple[int | None, int | None] = (None, None)
    if op.kind != COLLECTIVE:
        own, peer = members.index(rank), members.index(op.peer)
        ends = (own, peer) if op.kind == SEND else (peer, own)
    return CommArgs(
        names_of(op).recorded, DTYPES[op.elem_bytes], op.elem_bytes, sent, got, name, op.seq, *ends, op.splits
    )
