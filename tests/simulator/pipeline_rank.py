"""One rank of a simulated pipeline: its ranges in order, its messages, what it loses; host and device to the ns.

A rank is a generator that yields the key of what it has to know of others before it goes on (``Job.done``). So nothing
needs a common clock, and each rank knows its times as it writes its actions.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from tests.simulator import pipeline_holds as holds
from tests.simulator.pipeline_host import COLLECTIVE, COMPUTE, LAUNCH_NS, SOONEST_NS, RankHost
from tests.simulator.pipeline_losses import Loss, Place, Placed, Started
from tests.simulator.pipeline_names import RANGE_NAMES
from tests.simulator.pipeline_orders import Slot
from tests.simulator.pipeline_records import Job, Message, PipelineTraining, TrueIdle, TrueRange
from tests.simulator.program import Api, CommArgs

START_NS = 50_000  # when the first step begins
LEAD_NS = 100_000  # from the start of a step to the first kernel of rank 0
MEETING_NS = 20_000  # transfer of a collective that is there for somebody to wait
BYTES_PER_NS = 100
RECV, SEND = {"F": 28, "B": 36}, {"F": 32, "B": 40}  # streams of the two directions
GROUP = {"F": "1", "B": "2"}  # their process groups
WORLD = "0"
_KERNELS = {
    "F": "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    "B": "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_nt",
    "I": "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_nn",
    "W": "ampere_bf16_s16816gemm_bf16_64x128_ldg8_f2f_stages_32x6_nt",
    "OPT": "void at::native::multi_tensor_apply_kernel<at::native::FusedOptimizerTensorListMetadata<4>, "
    "FusedAdamMathFunctor<float>>",
}
_NCCL = "ncclDevKernel_{}(ncclDevKernelArgsStorage<4096ul>)"
_COLLECTIVE = {
    "allreduce": ("AllReduce_Sum_f32_RING_LL", "c10d::allreduce_", "nccl:all_reduce"),
    "_allgather_base": ("AllGather_RING_LL", "c10d::_allgather_base_", "nccl:_all_gather_base"),
}

Steps = Generator[object, None, Any]  # yields keys of ``Job.done``; what it returns is said where it is used


class RankRun:
    """Runs its part of a training; the records are complete when ``run`` has ended."""

    def __init__(self, training: PipelineTraining, rank: int, order: Sequence[Slot], placed: Placed, job: Job):
        self.training, self.rank, self.order, self.placed, self.job = training, rank, order, placed, job
        self.names = RANGE_NAMES[training.names]
        self.host = RankHost(START_NS, rank % 8)
        self.losses: Mapping[tuple[int, int, int], Loss] = placed.at.get(rank, {})
        self.longer_ns: Mapping[tuple[int, int, int], int] = placed.longer_ns.get(rank, {})
        self.ranges: list[TrueRange] = []
        self.idle: list[TrueIdle] = []
        self.started: list[Started] = []
        self.steps: list[tuple[int, int]] = []  # of the whole pipeline
        self.step = 0
        self.free_ns = 0  # end of the last compute kernel
        self.sent: list[Message] = []
        self.links: dict[str, Message] = {}
        self.counts: dict[str, int] = {}
        self.seqs: dict[tuple[int, int, int], int] = {}

    def run(self) -> Steps:
        begin_ns = START_NS
        for step in range(self.training.steps):
            self.step = step
            self.host.until(begin_ns)
            if self.names.step:
                self.host.begin(self.names.step.format(step=step + 1, rank=self.rank), annotation=True)
            yield from self.one_step(begin_ns + LEAD_NS)
            if self.names.step:
                self.host.end()
            yield from self.meet(("over", step), self.host.clock_ns)
            begin_ns = self.job.last_ns(("over", step)) + LEAD_NS
        self.host.begin("aten::zeros")
        self.host.end()

    def meet(self, key: object, ns: int) -> Iterator[object]:
        return self.job.meet(key, self.rank, ns, self.training.stages)

    def lost(self, start_ns: int, end_ns: int, cause: str) -> None:
        if start_ns < end_ns:
            self.idle.append(TrueIdle(self.rank, self.step, start_ns, end_ns, cause))

    def one_step(self, begins_ns: int) -> Steps:
        host = self.host
        self.free_ns = begins_ns
        if self.placed.opening and not self.step:
            yield from self.collective(WORLD, "opening", self.training.stages, host.clock_ns + MEETING_NS, MEETING_NS)
        first = len(self.ranges)
        for position, slot in enumerate(self.order):
            yield from self.range(position, slot)
        yield from self.meet(("worked", self.step), self.free_ns)
        ended_ns = self.job.last_ns(("worked", self.step))
        self.steps.append((begins_ns, ended_ns))
        self.lost(begins_ns, self.ranges[first].start_ns, "warmup")
        self.lost(self.free_ns, ended_ns, "cooldown")
        if self.training.optimizer_ns:
            yield from self.optimizer(ended_ns)
        last_ns = max([*host.tail_ns.values(), *(message.arrival_ns for message in self.sent)])
        host.wait(Api.DEVICE_SYNC, "cudaDeviceSynchronize", 0, last_ns)
        self.sent.clear()

    # ranges

    def range(self, position: int, slot: Slot) -> Steps:
        host, training = self.host, self.training
        stage = slot.chunk * training.stages + self.rank
        free_ns = self.free_ns
        sends = bool(self.sent) and self.sent[-1].ready_ns == free_ns
        arrival_ns = yield from self.input(slot, stage, idle=position > 0)
        self.prepare(position, slot, stage, arrival_ns)
        threaded = training.autograd_thread and slot.phase != "F"
        if self.names.compute:
            host.begin(self.names.of(slot, stage), annotation=True)
        if threaded:
            host.hand_over()
        total_ns, busy_ns = training.jittered_ns(slot.phase, stage, self.step, position), 0
        starts: list[int] = []
        for kernel in range(training.kernels):
            site = self.step, position, kernel
            length_ns = total_ns * (kernel + 1) // training.kernels - total_ns * kernel // training.kernels
            length_ns += self.longer_ns.get(site, 0)
            loss = self.losses.get(site)
            start_ns = max(self.free_ns, arrival_ns)
            if loss is not None:
                start_ns = yield from self.lose(loss, start_ns)
            self.compute(slot, kernel, start_ns, length_ns, loss is not None and loss.how == "request")
            starts.append(start_ns)
            busy_ns += length_ns
        if threaded:
            host.hand_over()
        if self.names.compute:
            host.end()
        times = starts[0], self.free_ns, busy_ns
        self.ranges.append(TrueRange(self.rank, stage, slot.chunk, slot.phase, slot.microbatch, self.step, *times))
        if position:
            place = Place(self.rank, slot.phase, slot.microbatch, slot.chunk, self.step)
            self.started.append(Started(place, free_ns, arrival_ns, starts[0], sends))
        self.output(slot, stage)

    def compute(self, slot: Slot, kernel: int, start_ns: int, length_ns: int, requests_buffer: bool) -> None:
        """A kernel and the ops around it: forward on the main thread, backward as autograd runs it, from the last op to
        the first.
        """
        host, ops = self.host, 1
        if slot.phase == "F":
            seq = self.seqs[slot.chunk, slot.microbatch, kernel] = 100 + self.count("forward ops")
            host.begin("aten::addmm", seq=seq)
        else:
            seq = self.seqs[slot.chunk, slot.microbatch, self.training.kernels - 1 - kernel]
            host.begin("autograd::engine::evaluate_function: AddmmBackward0", seq=seq, fwd_thread=0)
            host.begin("AddmmBackward0", seq=seq, backward=True, fwd_thread=0)
            ops = 2
        self.free_ns = start_ns + length_ns
        call_ns, overhead = LAUNCH_NS, ""
        if requests_buffer:
            call_ns, overhead = start_ns - SOONEST_NS - host.clock_ns, "Activity Buffer Request"
        host.launch(COMPUTE, start_ns, self.free_ns, _KERNELS[slot.phase], call_ns=call_ns, overhead=overhead)
        host.end(ops)

    # messages

    def input(self, slot: Slot, stage: int, idle: bool) -> Steps:
        """When what a range needs arrives from another rank, -1 where nothing has to. ``idle``: the stage is idle until
        then.
        """
        way, source = ("F", stage - 1) if slot.phase == "F" else ("B", stage + 1)
        if slot.phase == "W" or source < 0 or source == self.training.stages * self.training.chunks:
            return -1
        key = (way, source, slot.microbatch, self.step)
        if key not in self.job.done:
            yield key
        message = self.job.messages.pop(key)
        if self.training.visible:
            begins_ns = self.receive(way, slot, stage, source % self.training.stages, message)
        else:
            begins_ns = message.arrival_ns = message.ready_ns + message.transfer_ns
        if idle:
            self.stall(begins_ns, message)
        return message.arrival_ns

    def stall(self, begins_ns: int, message: Message) -> None:
        """The stage waits for who makes its input, and then for the transfer where kernels show it."""
        if message.arrival_ns <= self.free_ns:
            return
        if begins_ns > max(self.free_ns, message.ready_ns) and self.training.visible:
            raise ValueError(
                f"rank {self.rank} waits for a transfer that neither its sender nor the schedule holds back: make "
                "ranges longer"
            )
        self.lost(self.free_ns, begins_ns, "dependency_stall")
        self.lost(max(self.free_ns, begins_ns), message.arrival_ns, "exposed_communication")

    def output(self, slot: Slot, stage: int) -> None:
        way, target = ("F", stage + 1) if slot.phase == "F" else ("B", stage - 1)
        if slot.phase == "W" or target < 0 or target == self.training.stages * self.training.chunks:
            return
        message = Message(self.free_ns, self.training.boundary_ns(min(stage, target)))
        if self.training.visible:
            self.send(way, slot, stage, target % self.training.stages, message)
        key = (way, stage, slot.microbatch, self.step)
        self.job.messages[key] = message
        self.job.finish(key)

    def receive(self, way: str, slot: Slot, stage: int, source: int, message: Message) -> int:
        host, stream = self.host, RECV[way]
        comm = self.comm("recv", way, source, self.rank, message.transfer_ns)
        ops = self.open_message(self.names.moving(self.names.recv, slot, stage), comm)
        host.begin(f"nccl:recv {self.rank}<-{source}", annotation=True)
        posted_ns = max(host.clock_ns + LAUNCH_NS + SOONEST_NS, host.free_ns(stream))
        begins_ns = message.receive(posted_ns)
        host.launch(
            stream, posted_ns, message.arrival_ns, _NCCL.format("SendRecv"), api_name="cuLaunchKernelEx", comm=comm
        )
        host.end()
        host.order(stream, COMPUTE)
        host.end(ops)
        self.job.finish(message)
        return begins_ns

    def send(self, way: str, slot: Slot, stage: int, target: int, message: Message) -> None:
        host, stream = self.host, SEND[way]
        comm = self.comm("send", way, self.rank, target, message.transfer_ns)
        ops = self.open_message(self.names.moving(self.names.send, slot, stage), comm)
        host.order(COMPUTE, stream)
        host.begin(f"nccl:send {self.rank}->{target}", annotation=True)
        message.before = self.links.get(way)
        self.links[way] = message
        self.sent.append(message)
        # the receiver will say when it really begins and ends: no earlier than this
        times = message.ready_ns, message.ready_ns + 1
        message.send = host.launch(stream, *times, _NCCL.format("SendRecv"), api_name="cuLaunchKernelEx", comm=comm)
        host.end(ops + 1)

    def open_message(self, name: str, comm: CommArgs) -> int:
        if name:
            self.host.begin(name, annotation=True)
        self.host.begin("c10d::send" if comm.name == "send" else "c10d::recv_")
        self.host.begin("record_param_comms", comm=comm)
        return 3 if name else 2

    def comm(self, name: str, way: str, source: int, target: int, transfer_ns: int) -> CommArgs:
        nelems = transfer_ns * BYTES_PER_NS // 2
        seq = self.count(f"{name} {way}") * self.training.stages + source
        return CommArgs(name, "BFloat16", 2, nelems, nelems, GROUP[way], seq, source, target)

    def count(self, what: str) -> int:
        self.counts[what] = self.counts.get(what, 0) + 1
        return self.counts[what]

    # losses

    def prepare(self, position: int, slot: Slot, stage: int, arrival_ns: int) -> None:
        """What the main thread does for the losses of a range before it opens it."""
        total_ns = self.training.jittered_ns(slot.phase, stage, self.step, position)
        for kernel in range(self.training.kernels if self.losses else 0):
            loss = self.losses.get((self.step, position, kernel))
            if loss is None:
                continue
            if arrival_ns > self.free_ns:
                raise ValueError(
                    f"{loss.cause}: the range at {loss.places} waits for its input anyway: choose another place"
                )
            if loss.how in ("stream", "event", "device"):
                holds.copy_to_host(
                    self.host, self.free_ns, self.free_ns + total_ns * kernel // self.training.kernels + loss.ns
                )
            holds.before_range(self.host, loss, self.free_ns)

    def lose(self, loss: Loss, at_ns: int) -> Steps:
        """Before the launch of a kernel that could start at ``at_ns``: returns when it starts instead."""
        if loss.is_collective:
            return (yield from self.meeting(loss, at_ns))
        yield from holds.before_launch(self.host, loss, at_ns, self.sent)
        self.lost(at_ns, at_ns + loss.ns, loss.cause)
        return at_ns + loss.ns

    def meeting(self, loss: Loss, at_ns: int) -> Steps:
        """A collective on the compute path: all but its transfer is waiting for who comes last. Returns its end."""
        begins_ns = at_ns
        if loss.how == "first-collective" and loss.places[0].rank == self.rank:
            begins_ns += loss.ns
            self.host.until(at_ns + 500)
            self.host.overhead_until("Buffer Flush", holds.held_until_ns(begins_ns) - 2_000)
        transfer_ns = loss.ns if loss.cause == "exposed_communication" else MEETING_NS
        group = self.placed.groups[loss.places]
        end_ns: int = yield from self.collective(group, loss, len(loss.places), begins_ns, transfer_ns)
        self.lost(
            at_ns, end_ns - transfer_ns, "straggler_wait" if loss.cause == "exposed_communication" else loss.cause
        )
        self.lost(end_ns - transfer_ns, end_ns, "exposed_communication")
        return end_ns

    def collective(
        self, group: str, key: object, members: int, begins_ns: int, transfer_ns: int, name: str = "allreduce"
    ) -> Steps:
        """A collective between compute and compute. Returns its end: ``transfer_ns`` after the last member came."""
        host = self.host
        kernel, op, nccl = _COLLECTIVE[name]
        key = (key, self.step)
        yield from self.job.meet(key, self.rank, begins_ns, members)
        end_ns = self.job.last_ns(key) + transfer_ns
        nelems = transfer_ns * BYTES_PER_NS // 4
        comm = CommArgs(name, "Float", 4, nelems, nelems, group, self.count(f"group {group}"))
        host.begin(op)
        host.begin("record_param_comms", comm=comm)
        host.order(COMPUTE, COLLECTIVE)
        host.begin(nccl, annotation=True)
        host.launch(COLLECTIVE, begins_ns, end_ns, _NCCL.format(kernel), api_name="cuLaunchKernelEx", comm=comm)
        host.end()
        host.order(COLLECTIVE, COMPUTE)
        host.end(2)
        return end_ns

    def optimizer(self, ended_ns: int) -> Steps:
        """Norm all-reduce over all ranks, the optimizer's kernel, parameter all-gather."""
        training, host = self.training, self.host
        norm_ns = training.norm_ns + self.placed.norm_ns
        start_ns = self.free_ns
        if norm_ns:
            start_ns = yield from self.collective(WORLD, "norm", training.stages, self.free_ns, norm_ns)
            self.lost(ended_ns, start_ns, "optimizer_sync")
        end_ns = start_ns + training.optimizer_ns
        host.begin(self.names.optimizer, annotation=True)
        host.begin("aten::_fused_adam_")
        host.launch(COMPUTE, start_ns, end_ns, _KERNELS["OPT"])
        host.end(2)
        self.ranges.append(TrueRange(self.rank, self.rank, 0, "OPT", 0, self.step, start_ns, end_ns, end_ns - start_ns))
        if training.gather_ns:
            until_ns = yield from self.collective(
                WORLD, "gather", training.stages, end_ns, training.gather_ns, "_allgather_base"
            )
            self.lost(end_ns, until_ns, "optimizer_sync")
