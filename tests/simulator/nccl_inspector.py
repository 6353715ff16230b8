"""Writes the log of NCCL's inspector: a JSON object a call, as it ended, with when it was made only where the inspector
was verbose.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tests.simulator.cluster import ClusterRun
from tests.simulator.cluster_host import host_name
from tests.simulator.cluster_records import NOWHERE
from tests.simulator.nccl_calls import NcclCall
from tests.simulator.nccl_side import Side
from tests.simulator.nccl_steps import CHANNELS


def inspector_parts(run: ClusterRun, pid: int, calls: Sequence[NcclCall]) -> Iterator[tuple[str, list[NcclCall]]]:
    """One file a process, calls by when they ended."""
    if calls:
        yield f"{host_name(run.training, calls[0].rank)}-pid{pid}.log", sorted(calls, key=lambda call: call.end_ns)


def inspector_plain(side: Side) -> bytes:
    return _text(side, verbose=False)


def inspector_verbose(side: Side) -> bytes:
    return _text(side, verbose=True)


def _text(side: Side, *, verbose: bool) -> bytes:
    rng = np.random.default_rng([side.run.training.seed, 13, side.pid])
    noise_ns = rng.integers(-600, 600, len(side.calls), endpoint=True).tolist()
    turns: dict[tuple[int, int, str], int] = {}
    lines = []
    for call, timed, noise in zip(side.calls, side.timed, noise_ns, strict=True):
        key = (call.rank, call.communicator, call.function)
        turns[key] = turns.get(key, -1) + 1
        lines.append(json.dumps(_object(side, call, noise, turns[key], verbose=verbose, timed=timed)) + "\n")
    return "".join(lines).encode()


def _object(side: Side, call: NcclCall, noise_ns: int, turn: int, *, verbose: bool, timed: bool) -> dict[str, Any]:
    sort = "coll" if call.peer == NOWHERE else "p2p"
    rank = call.rank

    def us(true_ns: int) -> float:
        return side.epoch_ns(rank, true_ns) / 1_000

    performance: dict[str, Any] = {
        sort: call.function, f"{sort}_sn": call.seq if call.seq != NOWHERE else turn, f"{sort}_msg_size_bytes": call.bytes,
        f"{sort}_exec_time_us": (call.end_ns - call.start_ns + noise_ns) / 1_000, f"{sort}_timing_source": "kernel_gpu",
        f"{sort}_algobw_gbs": 1.0, f"{sort}_busbw_gbs": 1.0,
    }  # fmt: skip
    if sort == "p2p":
        performance["p2p_peer"] = call.peer
    if verbose:
        channels = [
            {"channel_id": c, "kernel_start_ts": us(call.start_ns + 3_000), "kernel_stop_ts": us(call.end_ns + 3_000)}
            for c in range(CHANNELS)
        ]
        performance["event_trace_ts"] = {
            f"{sort}_start_ts": us(call.api_ns) if timed else 0,
            f"{sort}_stop_ts": us(call.api_ns + 700),
            "kernel_events": channels,
        }
    return {
        "header": {
            "id": hex(call.communicator), "comm_name": "unknown", "rank": call.member, "n_ranks": call.size, "nnodes": 1,
        },
        "metadata": {
            "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "profiler_plugin",
            "dump_timestamp_us": int(us(call.end_ns + 50_000)), "hostname": host_name(side.run.training, rank), "pid": side.pid,
        },
        f"{sort}_perf": performance,
    }  # fmt: skip
