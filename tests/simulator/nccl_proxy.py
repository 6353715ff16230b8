"""Writes the dump of NCCL's proxy profiler (pull request 1210): steps of the network, then the collectives that the
framework announced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tests.simulator.cluster import ClusterRun
from tests.simulator.nccl_calls import NcclCall, first_of_ops
from tests.simulator.nccl_side import Side
from tests.simulator.nccl_steps import CHANNELS

_STATES = {True: ("GPUWait", "GPUWait", "SendWait"), False: ("RecvWait", "FlushWait", "GPUWait")}
ANNOUNCED_NS = 1_500  # a framework says what it will call before it does


def proxy_parts(run: ClusterRun, pid: int, calls: Sequence[NcclCall]) -> Iterator[tuple[str, list[NcclCall]]]:
    """A file a rank. Of several calls of one op the framework announces the op."""
    for rank in sorted({call.rank for call in calls}):
        first = first_of_ops(calls, rank)
        yield (
            f"nccl_proxy_rank{rank}.json",
            [call._replace(function="AllToAll", grouped=False) if call.grouped else call for call in first],
        )


def proxy_text(side: Side) -> bytes:
    """Times count from the first collective, which the framework announced before any step."""
    zero_ns = side.zero_ns
    events: list[dict[str, Any]] = []
    ident = 0
    for number, (call, proxies) in enumerate(zip(side.calls, side.proxies, strict=True), 1):
        beside = {
            "chunkSize": 131072, "totalSteps": 2, "totalChannels": CHANNELS, "collectiveName": f"{_name(call)}-{number}",
            "totalbytes": call.bytes & 0xFFFFFFFF, "proto": 2,
        }  # fmt: skip
        for slot, op in enumerate(proxies):
            for step, bounds in enumerate(op.steps):
                ident += 1
                name = f"{'Send' if op.sends else 'Recv'}-{op.peer}-{step}"
                head = {"cat": "NET", "id": ident, "pid": op.channel, "tid": 1}
                args = {"opCount": 2 * number, "proxyOpIndex": slot}
                rest = {key: value for key, value in beside.items() if key != "totalChannels"}
                events.append(
                    {"name": name, "ph": "b", **head, "ts": (bounds[0] - zero_ns) / 1_000, "args": args, **beside}
                )
                for k, state in enumerate(_STATES[op.sends]):
                    for phase, at in (("b", bounds[k]), ("e", bounds[k + 1])):
                        events.append({"name": state, "ph": phase, **head, "ts": (at - zero_ns) / 1_000, **rest})
                events.append({"name": name, "ph": "e", **head, "ts": (bounds[3] - zero_ns) / 1_000, **rest})
    for number, (call, timed) in enumerate(zip(side.calls, side.timed, strict=True), 1):
        shown_us = (call.api_ns - ANNOUNCED_NS - zero_ns) / 1_000 if timed else 0.0
        head = {"cat": "COL", "pid": -1, "tid": 1}
        events.append({"id": number, "ph": "b", "name": f"{_name(call)}-{number}", **head, "ts": shown_us})
        events.append(
            {"id": number, "ph": "e", "name": f"{_name(call)}-{number}", **head, "ts": (call.end_ns - zero_ns) / 1_000}
        )
    return ("[\n" + "".join(f"{json.dumps(event)},\n" for event in events) + "{} ]").encode()


def _name(call: NcclCall) -> str:
    return call.function.lower()
