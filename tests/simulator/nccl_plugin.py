"""Writes the dump of NCCL's example profiler plugin: an event a line, a tree printed depth first, almost JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.simulator.cluster import ClusterRun
from tests.simulator.cluster_records import NOWHERE
from tests.simulator.nccl_calls import NcclCall
from tests.simulator.nccl_side import Side
from tests.simulator.nccl_steps import CHANNELS, ProxyOp


def plugin_parts(run: ClusterRun, pid: int, calls: Sequence[NcclCall]) -> Iterator[tuple[str, list[NcclCall]]]:
    """A file a communicator and rank."""
    parts: dict[tuple[int, int], list[NcclCall]] = {}
    for call in calls:
        parts.setdefault((call.communicator, call.rank), []).append(call)
    for (communicator, _), part in parts.items():
        yield f"nccl{pid}_{communicator}_{part[0].member}.json", part


def plugin_old(side: Side) -> bytes:
    """Up to 2.29: enums and pointers without quotes, a comma after the last event, no bracket that closes."""
    return ("[\n" + "".join(f"{line},\n" for line in _Writer(side, quoted=False).lines())).encode()


def plugin_new(side: Side) -> bytes:
    """2.30: quoted, and an empty object last."""
    return ("[\n" + "".join(f"{line},\n" for line in _Writer(side, quoted=True).lines()) + "{}]\n").encode()


class _Writer:
    def __init__(self, side: Side, *, quoted: bool) -> None:
        self.side, self.quote = side, '"' if quoted else ""
        self.ids: dict[str, int] = {}

    def begin(
        self, name: str, cat: str, true_ns: int | None, args: str = "", number: int | None = None
    ) -> tuple[str, int]:
        if number is None:
            number = self.ids.get(cat, 0)
            self.ids[cat] = number + 1
        return self.event(name, cat, "b", number, true_ns, args), number

    def event(self, name: str, cat: str, phase: str, number: int, true_ns: int | None, args: str = "") -> str:
        us = 0.0 if true_ns is None else self.side.steady_us(true_ns)
        described = f', "args": {{{args}}}' if args else ""
        head = f'{{"name": "{name}", "cat": "{cat}", "ph": "{phase}", "id": {number}, "pid": {self.side.pid}, "tid": 1'
        return f'{head}, "ts": {us:f}{described}}}'

    def lines(self) -> Iterator[str]:
        for call, timed, proxies in zip(self.side.calls, self.side.timed, self.side.proxies, strict=True):
            yield from self.call(call, proxies, timed=timed)

    def call(self, call: NcclCall, proxies: tuple[ProxyOp, ...], *, timed: bool) -> Iterator[str]:
        q, stream = self.quote, hex(0x262C000 + 0x100 * call.group)
        line, group = self.begin("Group API", "GROUP_API", call.api_ns - 400, '"groupApiId": 0, "groupDepth":1')
        yield line
        line, launch = self.begin(
            "KernelLaunch", "KERNEL_LAUNCH", None, f'"groupId": {group}, "Stream": {q}{stream}{q}'
        )
        yield line
        yield self.event("KernelLaunch", "KERNEL_LAUNCH", "e", launch, call.launch_ns + 5_000)
        collective = call.peer == NOWHERE
        cat = "COLL" if collective else "P2P"
        root = '"root": 0, ' if collective else ""
        args = (
            f'"count": {call.elems}, "datatype": {q}{call.type}{q}, {root}"GraphCaptured":0, "Stream": {q}{stream}{q}'
        )
        line, api = self.begin(call.function, f"{cat}_API", call.api_ns - 300 if collective else None, args)
        yield line
        args = (
            f'"CommHash": {call.communicator}, "Rank": {call.member}, "Count": {call.elems}, "Datatype": "{call.type}"'
        )
        args += f', "nChannels": {CHANNELS}'
        if collective:
            args = f'"SeqNum": {call.seq}, {args}, "Algorithm": "RING", "Protocol": "LL"'
        else:
            args += f', "Peer": {call.peer}'
        line, number = self.begin(call.function, cat, call.api_ns if timed else None, args)
        yield line
        if self.side.profile.kernel_channels:
            yield from self.channels(call)
        for op in proxies:
            yield from self.proxy(call, op)
        yield self.event(call.function, cat, "e", number, call.api_ns + 700)
        yield self.event(call.function, f"{cat}_API", "e", api, call.launch_ns + 6_000)
        yield self.event("Group API", "GROUP_API", "e", group, call.launch_ns + 6_500)

    def channels(self, call: NcclCall) -> Iterator[str]:
        for channel in range(CHANNELS):
            gpu_ns = self.side.gpu_ns(call.rank, call.start_ns + 200 + 90 * channel)
            args = f'"Channel": {channel}, "StartGpuClk": {gpu_ns}, "StopGpuClk": 0'
            yield self.event("KernelCh", "GPU", "b", 0, call.start_ns + 3_000 + 500 * channel, args)
            yield self.event("KernelCh", "GPU", "e", 0, None)

    def proxy(self, call: NcclCall, op: ProxyOp) -> Iterator[str]:
        name = "ProgressSend" if op.sends else "ProgressRecv"
        args = (
            f'"Channel": {op.channel}, "Peer": {op.peer}, "Steps": {len(op.steps)}, "ChunkSize": 131072, '
            f'"transSize": {op.bytes}'
        )
        line, number = self.begin(name, "PROXY", call.start_ns, args)
        yield line
        for step, bounds in enumerate(op.steps):
            for k, state in enumerate(op.names):
                line, own = self.begin(state, "NET", bounds[k], f'"Step": {step}')
                yield line
                yield self.event(state, "NET", "e", own, bounds[k + 1])
        yield self.event(name, "PROXY", "e", number, call.end_ns)
