"""Writes a large, realistic pair of traces: one rank of a tensor-parallel training run, as libkineto and PyTorch lay
them out.

Streaming: memory stays flat, 10 million events can be written. The same ``events`` and ``seed`` give the same bytes.

What is in it, for 1 M events: 0.31 M cpu_op rows (nesting; each with its ET node), 0.19 M runtime calls, 0.13 M device
ops, 20 k ``cuda_sync`` rows, the rest flows (``ac2g``, ``fwdbwd``); a main and an autograd thread that hand over to
each other, streams 7 (compute), 20 (copies) and 24 (NCCL), a ProfilerStep about every 20 k events. Device ops start
when launch, stream and event waits allow it, and the host blocks in its synchronisation calls until then: there is no
impossible dependency in it.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LAYERS = 200  # of a step
ITEM_EVERY = 25  # layers between two ``.item()``
PID, AUTOGRAD = 4242, 4307
BASE_NS = 1_739_791_525_000_000_000
COMPUTE, COPY, NCCL = 7, 20, 24

_KINETO_HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85031714816,
      "computeMajor": 8, "computeMinor": 0, "numSms": 108
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2, "pg_count": 1, "pg_config": \
[{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 2, "ranks": [0, 1]}]},
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1739791525000000000,
  "traceEvents": ["""
_ET_HEAD = """{
  "schema": "1.1.0-chakra.0.0.4", "pid": 4242, "time": "2025-02-17 11:25:30", "start_ts": 6418683372,
  "nodes": ["""
_SHAPES = (
    "[[4096, 1024], [1024, 1024], []]",
    "[[4096, 1024]]",
    "[[4096, 4096], [1024], [], []]",
    "[[16, 256, 1024], []]",
)


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: rows of ``traceEvents``, ET nodes, and device ops and host rows among the events."""

    events: int
    et_nodes: int
    host_rows: int
    device_ops: int


def us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


@dataclass(slots=True)
class _Op:
    name: str
    start_ns: int
    rf_id: int
    et_id: int
    seq: int
    fw_tid: int


@dataclass(frozen=True, slots=True)
class _Forward:
    """A forward op that has a backward op: the flow between them, and their sequence number."""

    flow: int
    seq: int


class _Thread:
    """One host thread: a clock and the stack of open ops."""

    def __init__(self, tid: int, number: int, root: int):
        self.tid, self.number, self.root = tid, number, root
        self.now_ns = 0
        self.stack: list[_Op] = []


class Run:
    """The simulated rank and its two files."""

    def __init__(self, kineto: IO[str], et: IO[str], seed: int):
        self.kineto, self.et = kineto, et
        self.random = random.Random(seed)
        self.events = self.host_rows = self.device_ops = self.et_nodes = 0
        self.rf_id, self.correlation, self.flows, self.seq, self.et_id = 0, 1000, 0, 0, 3
        self.main, self.autograd = _Thread(PID, 1, 2), _Thread(AUTOGRAD, 2, 3)
        self.main.now_ns = 5_000_000_000
        self.free_ns = {COMPUTE: 0, COPY: 0, NCCL: 0}
        self.waits_ns = {COMPUTE: 0, COPY: 0, NCCL: 0}
        kineto.write(_KINETO_HEAD)
        et.write(_ET_HEAD)
        for ident, name in ((1, "process"), (2, "thread"), (3, "thread")):
            thread = 2 if ident == 3 else 1
            self._node(ident, 1, f"[pytorch|profiler|execution_trace|{name}]", 0, -1, 7, thread, 0, "[]", "[]")

    # rows

    def _row(self, text: str) -> None:
        self.kineto.write(",\n  {\n    " + text + "\n  }" if self.events else "\n  {\n    " + text + "\n  }")
        self.events += 1

    def _node(
        self,
        ident: int,
        parent: int,
        name: str,
        rf_id: int,
        seq: int,
        scope: int,
        tid: int,
        fw_tid: int,
        shapes: str,
        types: str,
    ) -> None:
        values = f'[[{ident * 3 + 1}, {ident * 3 + 2}, 0, 4194304, 4, "cuda:0"], 1, 1]' if shapes != "[]" else "[]"
        self.et.write(
            (",\n" if self.et_nodes else "\n")
            + f'    {{\n      "id": {ident}, "name": "{name}", "ctrl_deps": {parent},\n'
            f'      "inputs": {{"values": {values}, "shapes": {shapes}, "types": {types}}},\n'
            f'      "outputs": {{"values": {values}, "shapes": {shapes}, "types": {types}}},\n'
            f'      "attrs": [{{"name": "rf_id", "type": "uint64", "value": {rf_id}}},'
            '{"name": "fw_parent", "type": "uint64", "value": 0},'
            f'{{"name": "seq_id", "type": "int64", "value": {seq}}},{{"name": "scope", "type": "uint64", "value": '
            f"{scope}}},"
            f'{{"name": "tid", "type": "uint64", "value": {tid}}},{{"name": "fw_tid", "type": "uint64", "value": '
            f"{fw_tid}}},"
            f'{{"name": "op_schema", "type": "string", "value": "{name}(Tensor self, Tensor other) -> Tensor"}},'
            '{"name": "kernel_backend", "type": "string", "value": ""},{"name": "kernel_file", "type": "string", '
            '"value": ""}]\n    }'
        )
        self.et_nodes += 1

    # host

    def begin(self, thread: _Thread, name: str, *, seq: int = -1, backward: bool = False) -> _Op:
        self.rf_id += 1
        self.et_id += 1
        thread.now_ns += self.random.randrange(300, 2200)
        op = _Op(name, thread.now_ns, self.rf_id, self.et_id, seq, int(backward))
        thread.stack.append(op)
        thread.now_ns += self.random.randrange(800, 3500)
        return op

    def end(self, thread: _Thread, category: str = "cpu_op") -> None:
        op = thread.stack.pop()
        thread.now_ns += self.random.randrange(400, 2500)
        shapes = _SHAPES[op.rf_id % len(_SHAPES)] if category == "cpu_op" else "[]"
        types = '["Tensor(float)", "Int", "Int"]' if category == "cpu_op" else "[]"
        sequence = f', "Fwd thread id": {op.fw_tid}, "Sequence number": {op.seq}' if op.seq >= 0 else ""
        inputs = (
            f', "Concrete Inputs": ["", "1", "False"], "Input type": ["c10::BFloat16", "Scalar", "Scalar"], '
            f'"Input Strides": [[1024, 1], [1, 1024], []], "Input Dims": {shapes}, '
            '"Module Hierarchy": '
            '"GPTModel.TransformerBlock.ModuleList.TransformerLayer.MLP.ColumnParallelLinear.forward", '
            '"Fallback": "False", "Record shapes": "True", "Overload": "Tensor"'
        )
        recorded = inputs if category == "cpu_op" else ""
        self._row(
            f'"ph": "X", "cat": "{category}", "name": "{op.name}", "pid": {PID}, "tid": {thread.tid},\n'
            f'    "ts": {us(op.start_ns)}, "dur": {us(thread.now_ns - op.start_ns)},\n    "args": {{\n'
            f'      "External id": {op.rf_id + 7},"Record function id": {op.rf_id}{sequence}{recorded}, "Ev Idx": '
            f"{op.rf_id - 1}\n    }}"
        )
        self.host_rows += 1
        parent = thread.stack[-1].et_id if thread.stack else thread.root
        scope = 1 if op.fw_tid else 7 if category != "cpu_op" else 0
        self._node(op.et_id, parent, op.name, op.rf_id, op.seq, scope, thread.number, op.fw_tid, shapes, types)

    def leaf(self, thread: _Thread, name: str, *streams: int) -> None:
        """An op that launches a kernel on each of the streams."""
        self.begin(thread, name)
        for stream in streams:
            self.launch(thread, stream)
        self.end(thread)

    def call(self, thread: _Thread, name: str, duration_ns: int) -> int:
        """A runtime call; returns its correlation."""
        self.correlation += self.random.randrange(1, 4)
        thread.now_ns += self.random.randrange(150, 700)
        start = thread.now_ns
        thread.now_ns += duration_ns
        external = thread.stack[-1].rf_id + 7 if thread.stack else self.correlation
        self._row(
            f'"ph": "X", "cat": "cuda_runtime", "name": "{name}", "pid": {PID}, "tid": {thread.tid},\n'
            f'    "ts": {us(start)}, "dur": {us(duration_ns)},\n    "args": {{\n'
            f'      "External id": {external}, "cbid": 211, "correlation": {self.correlation}\n    }}'
        )
        return self.correlation

    def flow(self, ph: str, ident: int, pid: int, tid: int, at_ns: int, name: str) -> None:
        bind = ', "bp": "e"' if ph == "f" else ""
        self._row(
            f'"ph": "{ph}", "id": {ident}, "pid": {pid}, "tid": {tid}, "ts": {us(at_ns)},\n    "cat": "{name}", '
            f'"name": "{name}"{bind}'
        )

    # device

    def launch(self, thread: _Thread, stream: int, *, copy: str = "", collective: bool = False) -> int:
        """Enqueues one device op; returns when it ends."""
        draw = self.random.randrange
        correlation = self.call(thread, "cudaMemcpyAsync" if copy else "cudaLaunchKernel", draw(2500, 7000))
        launched_ns = thread.now_ns
        self.flow("s", correlation, PID, thread.tid, launched_ns - 2000, "ac2g")
        start = max(
            launched_ns + draw(1800, 5200),
            self.free_ns[stream] + draw(600, 1800),
            self.waits_ns[stream] + draw(600, 1800),
        )
        end = start + (draw(20_000, 70_000) if collective else draw(3_000, 14_000) if copy else draw(5_000, 30_000))
        self.free_ns[stream] = end
        external = thread.stack[-1].rf_id + 7
        if copy:
            what = (
                f'"cat": "gpu_memcpy", "name": "{copy}", "pid": 0, "tid": {stream}',
                '"bytes": 4194304, "memory bandwidth (GB/s)": 12.41',
            )
        elif collective:
            what = (
                '"cat": "kernel", "name": '
                '"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", '
                f'"pid": 0, "tid": {stream}',
                '"registers per thread": 96, "shared memory": 83232, "blocks per SM": 0.222222, "warps per SM": '
                "3.555556, "
                '"grid": [24, 1, 1], "block": [512, 1, 1], "Collective name": "allreduce", "In msg nelems": 4194304, '
                '"Out msg nelems": 4194304, "Group size": 2, "dtype": "BFloat16", '
                '"In split size": "[]", "Out split size": "[]", "Process Group Name": "0", '
                '"Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]"',
            )
        else:
            name = _KERNELS[correlation % len(_KERNELS)]
            what = (
                f'"cat": "kernel", "name": "{name}", "pid": 0, "tid": {stream}',
                '"registers per thread": 32, "shared memory": 0, "blocks per SM": 18.962963, "warps per SM": '
                "75.851852, "
                '"grid": [2048, 1, 1], "block": [128, 1, 1], "warps": 4, "est. achieved occupancy %": 100',
            )
        self._row(
            f'"ph": "X", {what[0]},\n    "ts": {us(start)}, "dur": {us(end - start)},\n    "args": {{\n'
            f'      "External id": {external}, "queued": 0, "device": 0, "context": 1, "stream": {stream}, '
            f'"correlation": {correlation},\n'
            f"      {what[1]}\n    }}"
        )
        self.device_ops += 1
        self.flow("f", correlation, 0, stream, start, "ac2g")
        return end

    def wait(self, thread: _Thread, waiting: int, on: int) -> None:
        """Record on stream ``on``, and ``waiting`` waits for it."""
        record = self.call(thread, "cudaEventRecord", self.random.randrange(600, 1500))
        at_ns = thread.now_ns
        correlation = self.call(thread, "cudaStreamWaitEvent", self.random.randrange(600, 1500))
        self.waits_ns[waiting] = max(self.waits_ns[waiting], self.free_ns[on])
        awaited = f'"wait_on_stream": {on}, "wait_on_cuda_event_record_corr_id": {record}, '
        self.sync_row("Stream Wait Event", at_ns + 300, 400, waiting, correlation, awaited)

    def sync_row(
        self, kind: str, start_ns: int, duration_ns: int, stream: int, correlation: int, record: str = ""
    ) -> None:
        self._row(
            f'"ph": "X", "cat": "cuda_sync", "name": "{kind}", "pid": 0, "tid": {stream},\n'
            f'    "ts": {us(start_ns)}, "dur": {us(duration_ns)},\n    "args": {{\n'
            f'      "cuda_sync_kind": "{kind}", {record}"stream": {stream}, "correlation": {correlation}, "device": 0, '
            f'"context": 1\n    }}'
        )

    def synchronize(self, thread: _Thread, stream: int | None) -> None:
        """cudaStreamSynchronize, or cudaDeviceSynchronize without a stream."""
        awaited = max(self.free_ns.values()) if stream is None else self.free_ns[stream]
        begins = thread.now_ns + 700
        took = max(awaited - begins, 0) + self.random.randrange(2500, 6000)
        correlation = self.call(thread, "cudaDeviceSynchronize" if stream is None else "cudaStreamSynchronize", took)
        start = thread.now_ns - took + 300
        self.sync_row(
            "Context Sync" if stream is None else "Stream Sync",
            start,
            took - 600,
            -1 if stream is None else stream,
            correlation,
        )


_KERNELS = (
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
    "at::native::GeluType)"
    "::{lambda()#2}::operator()() const::{lambda(c10::BFloat16)#1}, at::detail::Array<char*, 2> >(int, "
    "at::native::GeluCUDAKernelImpl)",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, "
    "c10::BFloat16 const*)",
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, "
    "at::native::func_wrapper_t<c10::BFloat16>, unsigned int>>",
)
_BACKWARD = (
    ("NativeDropoutBackward0", (("aten::native_dropout_backward", 1),)),
    ("GeluBackward0", (("aten::gelu_backward", 1),)),
    ("NativeLayerNormBackward0", (("aten::native_layer_norm_backward", 2),)),
    ("AddmmBackward0", (("aten::t", 0), ("aten::mm", 1), ("aten::t", 0), ("aten::mm", 1), ("aten::sum", 1))),
)


def forward(run: Run) -> list[_Forward]:
    """One layer, 9 ops and 4 kernels; returns what has a backward op."""
    at, made = run.main, []
    for outer, inner in (
        ("aten::linear", "aten::addmm"),
        ("aten::layer_norm", "aten::native_layer_norm"),
        ("aten::gelu", ""),
        ("aten::dropout", "aten::native_dropout"),
    ):
        run.seq += 1
        op = run.begin(at, outer, seq=run.seq)
        run.flows += 1
        run.flow("s", run.flows, PID, at.tid, op.start_ns, "fwdbwd")
        made.append(_Forward(run.flows, run.seq))
        if inner == "aten::addmm":
            run.begin(at, "aten::t")
            run.leaf(at, "aten::transpose")
            run.end(at)
        if inner:
            run.leaf(at, inner, COMPUTE)
        else:
            run.launch(at, COMPUTE)
        run.end(at)
    return made


def backward(run: Run, made: list[_Forward]) -> None:
    """The same layer on the autograd thread, 22 ops and 9 kernels."""
    at = run.autograd
    for forward_op, (name, inner) in zip(reversed(made), _BACKWARD, strict=True):
        run.begin(at, f"autograd::engine::evaluate_function: {name}", seq=forward_op.seq, backward=True)
        op = run.begin(at, name, seq=forward_op.seq, backward=True)
        run.flow("f", forward_op.flow, PID, at.tid, op.start_ns, "fwdbwd")
        for leaf, kernels in inner:
            run.leaf(at, leaf, *[COMPUTE] * kernels)
        run.end(at)
        run.end(at)
    for _ in range(2):
        run.begin(at, "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad")
        run.begin(at, "torch::autograd::AccumulateGrad")
        run.leaf(at, "aten::add_", COMPUTE)
        run.end(at)
        run.end(at)


def all_reduce(run: Run, at: _Thread) -> None:
    """Tensor-parallel AllReduce: the NCCL stream waits for compute, compute waits for it."""
    run.begin(at, "c10d::allreduce_")
    run.begin(at, "record_param_comms")
    run.wait(at, NCCL, COMPUTE)
    run.launch(at, NCCL, collective=True)
    run.wait(at, COMPUTE, NCCL)
    run.end(at)
    run.end(at)


def load(run: Run) -> None:
    """A batch comes in by the copy stream."""
    at = run.main
    run.begin(at, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
    run.end(at, "user_annotation")
    run.begin(at, "aten::to")
    run.begin(at, "aten::copy_")
    run.launch(at, COPY, copy="Memcpy HtoD (Pinned -> Device)")
    run.end(at)
    run.end(at)
    run.begin(at, "Stream.wait_stream")
    run.wait(at, COMPUTE, COPY)
    run.end(at, "user_annotation")


def item(run: Run) -> None:
    at = run.main
    run.begin(at, "aten::item")
    run.begin(at, "aten::_local_scalar_dense")
    run.launch(at, COMPUTE, copy="Memcpy DtoH (Device -> Pinned)")
    run.synchronize(at, COMPUTE)
    run.end(at)
    run.end(at)


def optimizer(run: Run) -> None:
    at = run.main
    run.begin(at, "Optimizer.step#AdamW.step")
    for _ in range(LAYERS // 10):
        run.leaf(at, "aten::_fused_adamw_", COMPUTE, COMPUTE)
    run.end(at, "user_annotation")


def step(run: Run, number: int, enough: int) -> None:
    """One training step: forward and backward of groups of layers (microbatches), optimizer, all gradients
    synchronised.
    """
    main, autograd = run.main, run.autograd
    run.begin(main, f"ProfilerStep#{number}")
    load(run)
    for _ in range(0, LAYERS, ITEM_EVERY):
        layers = []
        for _ in range(ITEM_EVERY):
            layers.append(forward(run))
            all_reduce(run, main)
            for _ in range(3):
                run.call(main, "cudaStreamIsCapturing", run.random.randrange(300, 900))
        autograd.now_ns = max(autograd.now_ns, main.now_ns + 30_000)
        for layer in reversed(layers):
            backward(run, layer)
        main.now_ns = autograd.now_ns + 25_000  # loss.backward() returns
        item(run)
        if run.events >= enough:
            break
    optimizer(run)
    run.synchronize(main, None)
    run.end(main, "user_annotation")


def write(folder: Path, events: int, seed: int = 1) -> Written:
    """Writes ``kineto_0.json`` and ``et_0.json`` with at least ``events`` rows (at most one group of layers more) into
    ``folder``.
    """
    with (
        (folder / "kineto_0.json").open("w", buffering=1 << 20) as kineto,
        (folder / "et_0.json").open("w", buffering=1 << 20) as et,
    ):
        run = Run(kineto, et, seed)
        number = 0
        while run.events < events:
            step(run, number, events)
            number += 1
        kineto.write('\n  ],\n  "traceName": "synthetic.json"\n}\n')
        et.write('\n  ],\n  "finish_ts": 6418683999\n}\n')
        return Written(run.events, run.et_nodes, run.host_rows, run.device_ops)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print(write(arguments.folder, arguments.events, arguments.seed))


if __name__ == "__main__":
    main()
