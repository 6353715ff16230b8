"""Write programs by hand: a builder per thread that draws the durations nobody names from a seeded generator.

rng = random.Random(1)
main = ThreadBuilder("python", rng)
with main.op("aten::mm"):
    main.launch(stream=7, duration_ns=80_000)
main.stream_sync(stream=7)
execution = run(Program(threads=(main.thread(),)))
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from tests.simulator.program import Action, Api, Await, Begin, Call, CommArgs, End, Host, Signal, Thread, Work

_KERNELS = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int, "
    "at::native::AddFunctor<float>)",
    "ampere_sgemm_128x64_tn",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps>>(at::native::ReduceOp)",
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128>(cutlass_80_tensorop_s1688gemm_128x128::Params)",
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>(int, AdamFunctor<float>)",
)


# What a call takes that has nothing to wait for, as measured on real traces (5 to 95 %: stream 2 to 9 us, event 2 to 9,
# device 7 to 14).
_CALL_NS = {
    Api.LAUNCH: (4_000, 15_000),
    Api.STREAM_SYNC: (2_000, 6_000),
    Api.EVENT_SYNC: (2_000, 4_000),
    Api.DEVICE_SYNC: (7_000, 14_000),
}


class ThreadBuilder:
    """Collects the actions of one thread; every method appends. Durations are ns, drawn where None."""

    def __init__(self, name: str, rng: random.Random, start_ns: int = 0):
        self.name, self.rng, self.start_ns = name, rng, start_ns
        self.actions: list[Action] = []

    def thread(self) -> Thread:
        return Thread(self.name, tuple(self.actions), self.start_ns)

    def between(self, low_ns: int, high_ns: int) -> int:
        """As ``rng.randrange`` draws it, without its checks: this is called for every action."""
        most, draw = high_ns - low_ns, self.rng.getrandbits
        assert most > 0, (low_ns, high_ns)
        bits = most.bit_length()
        drawn = draw(bits)
        while drawn >= most:
            drawn = draw(bits)
        return low_ns + drawn

    def host(self, ns: int | None = None) -> None:
        self.actions.append(Host(self.between(1_000, 12_000) if ns is None else ns))

    @contextmanager
    def op(
        self,
        name: str,
        *,
        annotation: bool = False,
        seq: int | None = None,
        backward: bool = False,
        fwd_thread: int | None = None,
        comm: CommArgs | None = None,
    ) -> Iterator[None]:
        begin = Begin(name, annotation, seq, backward, fwd_thread, comm, self.between(300, 4_000))
        self.actions.append(begin)
        yield
        self.host(self.between(200, 3_000))
        self.actions.append(End(self.between(100, 1_500)))

    def work(self, duration_ns: int | None, kind: str, name: str | None, comm: CommArgs | None = None) -> Work:
        if name is None:
            name = {
                "kernel": self.rng.choice(_KERNELS),
                "gpu_memcpy": "Memcpy DtoH (Device -> Pageable)",
                "gpu_memset": "Memset (Device)",
            }[kind]
        if duration_ns is None:
            duration_ns = self.between(2_000, 400_000) if kind == "kernel" else self.between(1_000, 40_000)
        delay_ns, gap_ns = self.between(1_000, 8_000), self.between(600, 2_500)
        size = 0 if kind == "kernel" else 4 * self.between(1, 4096)
        return Work(name, duration_ns, kind, delay_ns, gap_ns, size, comm)

    def launch(
        self,
        stream: int,
        duration_ns: int | None = None,
        *,
        device: int = 0,
        kind: str = "kernel",
        name: str | None = None,
        call: str | None = None,
        comm: CommArgs | None = None,
        blocking: bool = False,
    ) -> None:
        """Enqueue one kernel, copy or memset; ``blocking`` makes it a cudaMemcpy that returns when the copy ended."""
        usual = {"kernel": "cudaLaunchKernel", "gpu_memcpy": "cudaMemcpyAsync", "gpu_memset": "cudaMemsetAsync"}[kind]
        if blocking:
            usual = "cudaMemcpy"
        work = (self.work(duration_ns, kind, name, comm),)
        self._call(Api.LAUNCH, call or usual, device, stream, work=work, blocking=blocking)

    def graph(self, stream: int, kernels: int, *, device: int = 0) -> None:
        """cudaGraphLaunch of a chain of kernels."""
        work = tuple(self.work(None, "kernel", None) for _ in range(kernels))
        self._call(Api.LAUNCH, "cudaGraphLaunch", device, stream, work=work)

    def record(self, event: int, stream: int, device: int = 0) -> None:
        self._call(Api.RECORD, "cudaEventRecord", device, stream, event)

    def wait_event(self, event: int, stream: int, device: int = 0) -> None:
        self._call(Api.WAIT_EVENT, "cudaStreamWaitEvent", device, stream, event)

    def stream_sync(self, stream: int, device: int = 0) -> None:
        self._call(Api.STREAM_SYNC, "cudaStreamSynchronize", device, stream)

    def device_sync(self, device: int = 0) -> None:
        self._call(Api.DEVICE_SYNC, "cudaDeviceSynchronize", device)

    def event_sync(self, event: int) -> None:
        self._call(Api.EVENT_SYNC, "cudaEventSynchronize", event=event)

    def event_query(self, event: int) -> None:
        self._call(Api.EVENT_QUERY, "cudaEventQuery", event=event)

    def other(self, name: str = "cudaStreamIsCapturing") -> None:
        self._call(Api.OTHER, name)

    def signal(self, key: str) -> None:
        self.actions.append(Signal(key))

    def wait_for(self, key: str) -> None:
        self.actions.append(Await(key, self.between(5_000, 15_000)))

    def _call(
        self,
        api: Api,
        name: str,
        device: int = 0,
        stream: int = 0,
        event: int | None = None,
        *,
        work: tuple[Work, ...] = (),
        blocking: bool = False,
    ) -> None:
        call_ns = self.between(*_CALL_NS.get(api, (600, 3_000)))
        # measured on real traces: the call returns 3 to 12 us after the last awaited op ended, seldom up to 28
        return_ns = self.between(12_000, 28_000) if self.rng.random() < 0.03 else self.between(3_000, 12_000)
        self.actions.append(Call(api, name, call_ns, device, stream, event, work, blocking, return_ns))
        self.actions.append(Host(self.between(200, 1_500)))
