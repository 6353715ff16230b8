"""Random programs by seed: anything CUDA allows (``random_program``), and training steps as PyTorch runs them
(``training_program``).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.simulator.build import ThreadBuilder
from tests.simulator.program import CommArgs, Group, Program

_OPS = ("aten::mm", "aten::add", "aten::relu", "aten::copy_", "aten::convolution", "aten::sum", "aten::_to_copy")
_OTHER = ("cudaStreamIsCapturing", "cudaMalloc", "cudaPeekAtLastError", "cudaFuncGetAttributes")
_KERNEL_CALLS = (
    "cudaLaunchKernel", "cudaLaunchKernel", "cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel",
    "cuLaunchKernelEx", "cudaLaunchCooperativeKernel",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """What a random program may hold. ``streams`` counts per device.

    Stream numbers differ from device to device, as CUPTI's do (7 and 15 for the first streams of two devices). With
    ``shared_numbers`` they coincide; streams then wait for events of their own device only, as a recording could not
    tell the others apart.

    With ``own_streams`` each thread keeps to streams and events of its own and makes no device synchronisation, so
    nothing races and a scaled run has the same structure.
    """

    threads: int = 1
    streams: int = 3
    devices: int = 1
    ops: int = 40  # per thread
    queries: bool = True
    syncs: bool = True
    blocking: bool = True
    graphs: bool = True
    events: int = 4
    own_streams: bool = False
    annotations: bool = True
    shared_numbers: bool = False


class _Random:
    """Writes the random actions of one thread."""

    def __init__(self, rng: random.Random, shape: Shape, thread: int):
        self.rng, self.shape = rng, shape
        name = "python" if thread == 0 else f"worker_{thread}"
        self.to = ThreadBuilder(name, rng, start_ns=0 if thread == 0 else rng.randrange(1_000, 200_000))
        own = thread if shape.own_streams else 0
        self.streams = [7 + 13 * (own * shape.streams + i) for i in range(shape.streams)]
        self.events = [own * shape.events + i for i in range(shape.events)]
        self.recorded = self.events[0]  # the event last recorded here

    def stream(self) -> tuple[int, int]:
        """Mostly the first stream of device 0, as in a real program."""
        if self.rng.random() < 0.4:
            return self.streams[0], 0
        stream, device = self.rng.choice(self.streams), self.rng.randrange(self.shape.devices)
        return self.on(stream, device), device

    def on(self, stream: int, device: int) -> int:
        return stream if self.shape.shared_numbers else stream + 8 * device

    def call(self) -> None:
        shape, to, roll = self.shape, self.to, self.rng.random()
        stream, device = self.stream()
        event = self.recorded if self.rng.random() < 0.6 else self.rng.choice(self.events)
        if roll < 0.45:
            to.launch(stream, device=device, call=self.rng.choice(_KERNEL_CALLS))
        elif roll < 0.52:
            to.launch(stream, device=device, kind=self.rng.choice(("gpu_memcpy", "gpu_memset")))
        elif roll < 0.55 and shape.graphs:
            to.graph(stream, self.rng.randrange(2, 6), device=device)
        elif roll < 0.57 and shape.blocking:
            to.launch(stream, device=device, kind="gpu_memcpy", blocking=True)
        elif roll < 0.70:
            self.recorded = self.rng.choice(self.events)
            # An event belongs to one device: recording it on a stream of another one is an error
            # (cudaErrorInvalidResourceHandle).
            at = self.recorded % shape.devices
            to.record(self.recorded, stream + self.on(0, at) - self.on(0, device), at)
        elif roll < 0.84:
            at = event % shape.devices if shape.shared_numbers else device
            to.wait_event(event, stream, at)
        elif roll < 0.87 and shape.queries:
            to.event_query(event)
        elif roll < 0.92 and shape.syncs:
            self.sync(stream, device, event)
        else:
            to.other(self.rng.choice(_OTHER))

    def sync(self, stream: int, device: int, event: int) -> None:
        roll = self.rng.random()
        if roll < 0.5:
            self.to.stream_sync(stream, device)
        elif roll < 0.75 or self.shape.own_streams:
            self.to.event_sync(event)
        else:
            self.to.device_sync(device)

    def op(self, depth: int) -> None:
        annotation = self.shape.annotations and self.rng.random() < 0.1
        name = f"## block_{self.rng.randrange(9)} ##" if annotation else self.rng.choice(_OPS)
        with self.to.op(name, annotation=annotation):
            for _ in range(self.rng.randrange(6)):
                roll = self.rng.random()
                if roll < 0.3 and depth < 3:
                    self.op(depth + 1)
                elif roll < 0.5:
                    self.to.host()
                else:
                    self.call()


def random_program(seed: int, shape: Shape | None = None) -> Program:
    """A random program; the same seed and shape give the same program on every Python version.

    Each thread ends with a stream synchronisation (one thread: a device synchronisation) and an op after it.
    """
    shape = shape or Shape()
    rng = random.Random(seed)
    threads = []
    for index in range(shape.threads):
        thread = _Random(rng, shape, index)
        for _ in range(shape.ops):
            if rng.random() < 0.12:
                thread.call()  # outside any op
            else:
                thread.op(0)
            if rng.random() < 0.15:
                thread.to.host(rng.randrange(5_000, 60_000))
        if shape.threads == 1:
            thread.to.device_sync()
        else:
            thread.to.stream_sync(thread.streams[0])
        with thread.to.op("aten::item"):
            thread.to.host()
        threads.append(thread.to.thread())
    return Program(tuple(threads), pid=4000 + seed % 1000, seed=seed)


@dataclass(frozen=True, slots=True)
class Training:
    """Data-parallel training: forward on the main thread, backward on the autograd thread, gradients reduced on a
    stream of their own.

    The two threads take turns, so nothing races: a scaled run has the same structure.
    """

    steps: int = 3
    layers: int = 4
    ranks: int = 2
    rank: int = 0
    compute_stream: int = 7
    copy_stream: int = 20
    comm_stream: int = 24
    item_every_step: bool = True


class _Trainer:
    def __init__(self, seed: int, what: Training):
        self.what, self.rng = what, random.Random(seed)
        self.main = ThreadBuilder("python", self.rng)
        self.autograd = ThreadBuilder("pt_autograd_0", self.rng)
        self.seq, self.comm_seq, self.events = 100, 0, 0

    def event(self) -> int:
        self.events += 1
        return self.events % 8  # PyTorch recycles events: they are recorded again

    def order(self, to: ThreadBuilder, before: int, after: int) -> None:
        """``after`` waits for what is on ``before``."""
        event = self.event()
        to.record(event, before)
        to.wait_event(event, after)

    def step(self, number: int) -> None:
        main, what = self.main, self.what
        with main.op(f"ProfilerStep#{number}", annotation=True):
            self.load()
            seqs = [self.layer(i) for i in range(what.layers)]
            main.host(main.between(5_000, 30_000))
            main.signal(f"backward {number}")
            self.autograd.wait_for(f"backward {number}")
            for i, seq in reversed(list(enumerate(seqs))):
                self.layer_backward(i, seq)
            self.autograd.signal(f"done {number}")
            main.wait_for(f"done {number}")
            self.optimise()
            if what.item_every_step:
                self.item()
            main.host(main.between(10_000, 60_000))
        main.host(main.between(5_000, 20_000))

    def load(self) -> None:
        main, what = self.main, self.what
        with main.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", annotation=True):
            main.host(main.between(20_000, 60_000))
        with main.op("aten::to"), main.op("aten::_to_copy"), main.op("aten::copy_"):
            copy = "Memcpy HtoD (Pinned -> Device)"
            main.launch(what.copy_stream, main.between(20_000, 90_000), kind="gpu_memcpy", name=copy)
        self.order(main, what.copy_stream, what.compute_stream)

    def layer(self, index: int) -> int:
        main, what = self.main, self.what
        self.seq += 1
        with main.op("aten::linear" if index % 2 else "aten::conv2d", seq=self.seq):
            main.host()
            with main.op("aten::addmm" if index % 2 else "aten::convolution"):
                main.launch(what.compute_stream, main.between(30_000, 200_000))
                if index == 0:
                    main.launch(what.compute_stream, kind="gpu_memset")
        with main.op("aten::relu", seq=self.seq + 1):
            main.launch(what.compute_stream, main.between(4_000, 20_000))
        self.seq += 1
        return self.seq

    def layer_backward(self, index: int, seq: int) -> None:
        kind = "AddmmBackward0" if index % 2 else "ConvolutionBackward0"
        for name, number, kernels in (("ReluBackward0", seq, 1), (kind, seq - 1, 2)):
            to, what = self.autograd, self.what
            with to.op(f"autograd::engine::evaluate_function: {name}", seq=number, fwd_thread=0):
                with to.op(name, seq=number, backward=True, fwd_thread=0), to.op("aten::mm"):
                    for _ in range(kernels):
                        to.launch(what.compute_stream, to.between(20_000, 150_000))
                to.host()
        with self.autograd.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"):
            self.all_reduce(self.autograd, 4096 * (index + 1))

    def all_reduce(self, to: ThreadBuilder, nelems: int) -> None:
        what = self.what
        self.comm_seq += 1
        comm = CommArgs("allreduce", "Float", 4, nelems, nelems, "0", self.comm_seq)
        with to.op("c10d::allreduce_"), to.op("record_param_comms", comm=comm):
            self.order(to, what.compute_stream, what.comm_stream)
            with to.op("nccl:all_reduce", annotation=True):
                kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
                to.launch(
                    what.comm_stream, to.between(40_000, 160_000), name=kernel, call="cuLaunchKernelEx", comm=comm
                )

    def optimise(self) -> None:
        main, what = self.main, self.what
        with main.op("record_param_comms", comm=CommArgs("wait", "Byte", 1, seq=self.comm_seq)):
            self.order(main, what.comm_stream, what.compute_stream)
        with main.op("Optimizer.step#SGD.step", annotation=True):
            for _ in range(2):
                with main.op("aten::_foreach_add_"):
                    main.launch(what.compute_stream, main.between(10_000, 60_000), call="cudaLaunchKernelExC")

    def item(self) -> None:
        main, stream = self.main, self.what.compute_stream
        with main.op("aten::item"), main.op("aten::_local_scalar_dense"):
            main.launch(stream, main.between(1_000, 3_000), kind="gpu_memcpy")
            main.stream_sync(stream)


def training_program(seed: int, what: Training | None = None) -> Program:
    """Training steps as PyTorch runs them, ended by a device synchronisation. One rank: ranks do not wait for each
    other.
    """
    what = what or Training()
    trainer = _Trainer(seed, what)
    for number in range(1, what.steps + 1):
        trainer.step(number)
    trainer.main.device_sync()
    with trainer.main.op("aten::zeros"):
        trainer.main.host()
    groups = (Group("0", "default_pg", tuple(range(what.ranks))),) if what.ranks > 1 else ()
    threads = (trainer.main.thread(), trainer.autograd.thread())
    return Program(threads, groups, what.rank, what.ranks, pid=5000 + seed % 1000, seed=seed)
