"""Training programs with one trouble planted in them, and the same programs without it.

plan = Plan("item", ranks=2)
plan.write("traces")            # what each rank recorded
plan.truth_pct()                # what the run gains without the trouble
plan.twin().write("healthy")
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from tests.simulator import run_together, write_kineto
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
    Program,
    Thread,
    Work,
)

US: Final = 1_000
COMPUTE, COPY, COMM = 7, 20, 24  # streams
# op, kernel and its time in us: of a layer forward, and of it backward
FORWARD: Final = (
    ("aten::mm", "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x5_tn_align8>", 40),
    ("aten::_flash_attention_forward", "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128>>", 45),
    ("aten::native_layer_norm", "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>", 25),
)
BACKWARD: Final = (
    ("aten::mm", "sm80_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize128x128x32", 45),
    ("aten::mm", "sm80_xmma_gemm_bf16bf16_bf16f32_f32_nt_n_tilesize128x256x32", 40),
    ("aten::_flash_attention_backward", "void flash::flash_bwd_dq_dk_dv_loop_kernel<Flash_bwd_kernel_traits<64>>", 50),
)
HALVED: Final = ("slow kernel", "slow op", "float32", "embedding", "pointwise")
WORKERS: Final = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
ALONE: Final = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
ADD: Final = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
COPIES: Final = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>(int)"
FUSED: Final = (
    "void at::native::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>"
)
NCCL: Final = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True)
class Plan:
    """``trouble``: planted in the program, "" for none; ``size``: how much of it; ``on``: the rank that has it, None =
    all. ``cured``: what is left of it once the advice is followed, 1 = nothing was done. ``seed``: of the program."""

    trouble: str
    size: float = 1.0
    ranks: int = 1
    on: int | None = None
    steps: int = 7
    seed: int = 0
    cured: float = 1

    def twin(self) -> Plan:
        """Return the same program without trouble."""
        return replace(self, trouble="captured" if self.trouble == "launches" else "", size=1, on=None)

    def cure(self) -> Plan:
        """Return the program after the advice was followed: without the trouble, or with half of its time where that is
        what is supposed."""
        if self.trouble in ("buckets", "collectives", "experts"):
            return replace(self, cured=0)
        return replace(self, cured=0.5) if self.trouble in HALVED and self.on is None else self.twin()

    def executions(self) -> tuple[Execution, ...]:
        return _executed(self)

    def makespan_ns(self) -> int:
        ran = self.executions()
        return max(max(one.end_ns, *(op.end_ns for op in one.device)) for one in ran) - min(one.start_ns for one in ran)

    def truth_pct(self) -> float:
        return 100 * (1 - self.cure().makespan_ns() / self.makespan_ns())

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for rank, execution in enumerate(self.executions()):
            write_kineto(execution, folder / f"kineto_{rank}.json", dialect="2026")

    def has(self, trouble: str, rank: int) -> bool:
        return self.trouble == trouble and self.on in (None, rank)


@cache
def _executed(plan: Plan) -> tuple[Execution, ...]:
    return tuple(run_together([_Rank(plan, rank).program() for rank in range(plan.ranks)]))


class _Rank:
    """Writes the program of a rank: each step gets a batch, goes forward and backward, reduces gradients and updates."""

    def __init__(self, plan: Plan, rank: int):
        self.plan, self.rank = plan, rank
        self.rng, shape = random.Random(f"{plan.seed} {rank}"), random.Random(plan.seed)
        self.layers, self.host_us, self.factor = shape.randint(4, 7), shape.uniform(6, 12), shape.uniform(0.8, 1.3)
        self.actions: list[Action] = []
        self.events = 0
        self.seq = 0
        self.step = 0

    def has(self, trouble: str) -> bool:
        return self.plan.has(trouble, self.rank)

    def jittered(self, us: float) -> int:
        return max(1, round(us * US * self.rng.uniform(0.97, 1.03)))

    def program(self) -> Program:
        for step in range(self.plan.steps):
            self.step = step
            self.add(Begin(f"ProfilerStep#{self.step}", annotation=True, ns=500))
            self.run_step()
            self.add(End(2 * US))
        self.add(Call(Api.DEVICE_SYNC, "cudaDeviceSynchronize", 4 * US, return_ns=4 * US))
        groups = (Group("0", "default_pg", tuple(range(self.plan.ranks))),) if self.plan.ranks > 1 else ()
        return Program(
            (Thread("python", tuple(self.actions)),), groups, self.rank, self.plan.ranks, pid=4000 + 1000 * self.rank,
            seed=self.rank, host_name="node0",
        )  # fmt: skip

    def add(self, *actions: Action) -> None:
        self.actions += actions

    def op(self, name: str, *inner: Action, host_us: float | None = None) -> None:
        own = self.host_us if host_us is None else host_us
        self.add(Begin(name, ns=self.jittered(own)), *inner, End(300))

    def launch(
        self, kernel: str, us: float, *, stream: int = COMPUTE, kind: str = "kernel", call_us: float = 4,
        delay_us: float = 3, gap_us: float = 1, **more: object,
    ) -> Call:  # fmt: skip
        name = {"kernel": "cudaLaunchKernel", "gpu_memcpy": "cudaMemcpyAsync", "gpu_memset": "cudaMemsetAsync"}[kind]
        work = Work(
            kernel,
            self.jittered(us),
            kind,
            self.jittered(delay_us),
            round(gap_us * US),
            4096 if kind != "kernel" else 0,
        )
        return Call(Api.LAUNCH, name, self.jittered(call_us), 0, stream, work=(replace(work, **more),))  # type: ignore[arg-type]

    def order(self, before: int, after: int) -> None:
        self.events = (self.events + 1) % 512
        self.add(Call(Api.RECORD, "cudaEventRecord", 800, 0, before, self.events), Host(300))
        self.add(Call(Api.WAIT_EVENT, "cudaStreamWaitEvent", 700, 0, after, self.events), Host(300))

    def run_step(self) -> None:
        plan = self.plan
        if plan.trouble == "captured":
            return self.captured()
        if self.step == 0 and self.has("start"):
            self.op("aten::empty", Host(self.jittered(20_000 * plan.size)))
        if self.has("pause"):
            self.add(Host(self.jittered(2_500 * plan.size)))
        if self.step % 3 == 2 and self.has("collector"):
            self.add(Host(self.jittered(6_000 * plan.size)))
        self.batch()
        for layer in range(self.layers):
            for op in FORWARD:
                self.kernel(*op, layer)
        for layer in reversed(range(self.layers)):
            for op in BACKWARD:
                self.kernel(*op, layer)
            if plan.ranks > 1:
                self.reduce(layer)
        self.update()
        if self.step % 3 == 2 and self.has("evaluation"):
            self.evaluation()
        if self.step % 3 == 1 and self.has("checkpoint"):
            self.checkpoint()
        if self.step % 3 == 1 and self.has("tuning"):
            self.tuning()
        return None

    def captured(self) -> None:
        """A step as one launch of a CUDA graph."""
        self.batch()
        ops = (*FORWARD * self.layers, *BACKWARD * self.layers)
        work = tuple(Work(kernel, self.jittered(us * self.factor), gap_ns=US) for _, kernel, us in ops)
        work += (Work(FUSED, self.jittered(60), gap_ns=US),)
        call = Call(Api.LAUNCH, "cudaGraphLaunch", 10 * US, 0, COMPUTE, work=work)
        self.op("graph", call)

    def batch(self) -> None:
        size = self.plan.size
        if self.has("loader"):
            self.add(Begin(ALONE, annotation=True, ns=self.jittered(15)))
            for part in range(3):
                self.op("aten::stack", Host(self.jittered(800 * size * (part + 1) / 2)))
            self.add(End(US))
        else:
            self.add(Begin(WORKERS, annotation=True, ns=self.jittered(15)), End(US))
        if self.has("embedding"):  # on the CPU, and what it gives is copied
            self.op("aten::embedding", Host(self.jittered(2_000 * size * self.plan.cured)))
            copy = self.launch("Memcpy HtoD (Pageable -> Device)", 40, kind="gpu_memcpy")
            self.op("aten::copy_", replace(copy, blocking=True, return_ns=3 * US))
        if self.has("pageable"):
            copy = self.launch("Memcpy HtoD (Pageable -> Device)", 600 * size, kind="gpu_memcpy")
            self.op("aten::copy_", replace(copy, blocking=True, return_ns=3 * US))
            return
        self.op("aten::copy_", self.launch("Memcpy HtoD (Pinned -> Device)", 60, stream=COPY, kind="gpu_memcpy"))
        self.order(COPY, COMPUTE)

    def kernel(self, op: str, kernel: str, us: float, layer: int) -> None:
        plan, host_us = self.plan, None
        us *= self.factor
        if self.has("launches"):
            host_us = 80 * plan.size
        if self.has("slow kernel") and op == "aten::native_layer_norm":
            us *= 8 * plan.size * plan.cured
        if self.has("slow rank"):
            us *= 1 + 0.5 * plan.size
        if self.has("throttled") and self.step >= 3:
            us *= 1 + 0.6 * plan.size
        if self.has("shared") and self.rng.random() < 0.3:
            us *= 1 + self.rng.uniform(1, 2) * plan.size
        delay_us = 3.0
        gap_us = 80 * plan.size if self.has("late") and op == "aten::native_layer_norm" else 1
        if plan.trouble == "expert" and op == "aten::mm" and self.step % plan.ranks == self.rank:
            us *= 1 + 2 * plan.size  # of the experts another one is hot in each step
        if self.has("experts") and op == "aten::mm":  # of each layer another one, and all have other sizes
            us *= 1 + 0.4 * layer
            us *= 1 + 2 * plan.size * plan.cured * ((self.step * 3 + layer) % plan.ranks == self.rank)
        if self.has("labels") and op == "aten::mm" and layer % 2 == 0:
            copy = self.launch("Memcpy HtoD (Pageable -> Device)", 2, kind="gpu_memcpy")
            self.op("aten::copy_", replace(copy, blocking=True, return_ns=3 * US))
        if self.has("float32") and op == "aten::mm":
            kernel, us = "ampere_sgemm_128x64_tn", us * 3 * plan.size * plan.cured
        if self.has("layout") and op == "aten::mm":
            convert = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>"
            self.op("aten::cudnn_convolution", self.launch(convert, 25 * plan.size), self.launch(kernel, us))
        else:
            self.op(op, self.launch(kernel, us, delay_us=delay_us, gap_us=gap_us), host_us=host_us)
        if self.has("pointwise"):
            self.op("aten::add", self.launch(ADD, 15 * plan.size * plan.cured))
        if self.has("contiguous") and op == "aten::mm":
            self.add(Begin("aten::contiguous", ns=US), Begin("aten::clone", ns=US))
            self.op("aten::copy_", self.launch(COPIES, 25 * plan.size))
            self.add(End(300), End(300))
        if self.has("item") and layer % 2 == 0:
            self.item()
        if self.has("allocator") and layer % 2 == 0:
            self.op("aten::empty", Call(Api.OTHER, "cudaMalloc", self.jittered(250 * plan.size)))
            free = Call(Api.DEVICE_SYNC, "cudaFree", self.jittered(100 * plan.size), return_ns=2 * US)
            self.op("aten::resize_", free)
        if self.has("slow op") and op == "aten::native_layer_norm":
            self.op("aten::unique", Host(self.jittered(350 * plan.size * plan.cured)), host_us=plan.cured)

    def item(self) -> None:
        self.add(Begin("aten::item", ns=US), Begin("aten::_local_scalar_dense", ns=US))
        self.add(self.launch("Memcpy DtoH (Device -> Pageable)", 2, kind="gpu_memcpy"))
        self.add(Call(Api.STREAM_SYNC, "cudaStreamSynchronize", 3 * US, 0, COMPUTE, return_ns=5 * US))
        self.add(End(300), End(300))
        self.add(Host(self.jittered(15)))

    def evaluation(self) -> None:
        self.add(Begin("evaluate", annotation=True, ns=self.jittered(50)))
        for _ in range(round(4 * self.plan.size)):
            for layer in range(self.layers):
                for op in FORWARD:
                    self.kernel(*op, layer)
            self.item()
        self.add(End(US))

    def checkpoint(self) -> None:
        self.add(Begin("checkpoint", annotation=True, ns=self.jittered(200)))
        copy = self.launch("Memcpy DtoH (Device -> Pageable)", 1_500 * self.plan.size, kind="gpu_memcpy")
        self.op("aten::copy_", replace(copy, blocking=True, return_ns=3 * US))
        self.add(Host(self.jittered(5_000 * self.plan.size)), End(US))

    def tuning(self) -> None:
        """An op tries eight algorithms, and waits for each."""
        self.add(Begin("aten::cudnn_convolution", ns=self.jittered(500 * self.plan.size)))
        for k in range(8):
            self.add(self.launch(f"sm80_xmma_fprop_implicit_gemm_{k}", 100), Host(self.jittered(400 * self.plan.size)))
            self.add(Call(Api.STREAM_SYNC, "cudaStreamSynchronize", 3 * US, 0, COMPUTE, return_ns=5 * US))
        self.add(End(US))

    def reduce(self, layer: int) -> None:
        """Reduce the gradients of a layer, in many buckets if that is the trouble: each costs 45 us beside its bytes."""
        size, few = self.plan.size, self.has("buckets")
        if self.has("collectives"):  # each takes the host longer than the network
            for part in range(64 if self.plan.cured else 1):
                nelems = 64 * (500 + 800 * layer) if not self.plan.cured else 500 + 800 * layer + part
                self.all_reduce(nelems, 5 + nelems / 4_000, host_us=20 * size)
            return
        count = (4 if size < 1 else 8) if few and self.plan.cured else 1
        for part in range(count):
            whole = (400_000 + 40_000 * layer) // count
            nelems = whole + 997 * part
            us = 45 + nelems / 16_000 if few or layer else 8  # what no computation can hide is short
            if self.has("exposed"):
                us += 350 * size
            self.all_reduce(nelems, us)

    def all_reduce(self, nelems: int, us: float, host_us: float = 1) -> None:
        self.seq += 1
        comm = CommArgs("allreduce", "Float", 4, nelems, nelems, "0", self.seq)
        work = self.launch(NCCL, us, stream=COMM, comm=comm, meeting=Meeting(self.seq, self.plan.ranks))
        self.add(Begin("c10d::allreduce_", ns=round(host_us * US)), Begin("record_param_comms", comm=comm, ns=US))
        self.order(COMPUTE, COMM)
        self.add(work)
        self.add(End(US), End(US))

    def update(self) -> None:
        plan = self.plan
        if plan.ranks > 1:
            self.order(COMM, COMPUTE)
        self.add(Begin("Optimizer.step#AdamW.step", annotation=True, ns=3 * US))
        if self.has("optimizer") or self.has("unfused"):  # the one holds the host, the other the GPU
            call_us, host_us = (4.0, 5 * plan.size) if self.has("optimizer") else (1.0, 0.2)
            for _ in range(40):
                for op in ("aten::mul_", "aten::lerp_", "aten::addcmul_", "aten::sqrt", "aten::addcdiv_"):
                    self.op(op, self.launch(ADD, 4 * 60 / 200, call_us=call_us), host_us=host_us)
        else:
            self.op("aten::_fused_adamw_", self.launch(FUSED, 60))
        self.add(End(5 * US))
