"""Side files of a simulated cluster, as NCCL's profilers and PyTorch's Flight Recorder write them, with known truth.

run = cluster_run(ClusterTraining(data=2, tensor=2, steps=6))
files = write_nccl(run, "traces", NcclProfile(kind="plugin", last=8))
files[0].calls[0].kernel  # correlation of the kernel that the first call in the file is
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.simulator.cluster import ClusterRun
from tests.simulator.cluster_host import process_id
from tests.simulator.dialects import EPOCH_NS
from tests.simulator.nccl_calls import NcclCall, nccl_calls
from tests.simulator.nccl_files import WRITERS
from tests.simulator.nccl_records import NcclProfile, TrueCall, TrueFile, TrueStep
from tests.simulator.nccl_side import Side
from tests.simulator.nccl_steps import proxy_ops


def write_nccl(run: ClusterRun, folder: str | Path, profile: NcclProfile) -> tuple[TrueFile, ...]:
    """Write what ``profile`` records of all recorded ranks of ``run`` into a folder; linear in calls."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    writer = WRITERS[profile.kind]
    processes: dict[int, list[int]] = {}
    for rank in run.ranks:
        processes.setdefault(process_id(rank - rank % profile.ranks_a_process), []).append(rank)
    files = []
    for pid, ranks in processes.items():
        calls = [call for rank in ranks for call in _recorded(run, rank, profile)]
        for name, part in writer.parts(run, pid, calls):
            side = _side(run, profile, pid, part)
            text = writer.text(side)
            path = folder / name
            path.write_bytes(text if profile.cut is None else text[: int(len(text) * profile.cut)])
            files.append(
                TrueFile(
                    path, tuple(sorted({call.rank for call in part})), tuple(ranks), _truth(side, steady=writer.steady)
                )
            )
    return tuple(files)


def _recorded(run: ClusterRun, rank: int, profile: NcclProfile) -> list[NcclCall]:
    calls = nccl_calls(run, rank, jitter_ns=profile.jitter_ns, pairs=profile.message_pairs)
    ended_ns = run.times[rank].ended_ns
    low, high = EPOCH_NS + profile.began * ended_ns, EPOCH_NS + profile.ended * ended_ns
    calls = [call for call in calls if low <= call.api_ns <= high and call.bytes >= profile.min_bytes]
    rng = np.random.default_rng([profile.seed, 9, rank])
    kept = rng.random(len(calls)) >= profile.dropped
    calls = [call for call, keep in zip(calls, kept.tolist(), strict=True) if keep]
    if profile.last is not None:
        left: dict[int, int] = {}
        surviving = []
        for call in reversed(calls):
            left[call.communicator] = left.get(call.communicator, profile.last) - 1
            if left[call.communicator] >= 0:
                surviving.append(call)
        calls = surviving[::-1]
    return calls


def _side(run: ClusterRun, profile: NcclProfile, pid: int, calls: Sequence[NcclCall]) -> Side:
    rng = np.random.default_rng([profile.seed, 10, pid, len(calls)])
    timed = (rng.random(len(calls)) >= profile.zero_times).tolist()
    proxies = tuple(proxy_ops(run, profile, call) if profile.proxy_steps else () for call in calls)
    return Side(run, profile, pid, tuple(calls), tuple(timed), proxies)


def _truth(side: Side, *, steady: bool) -> tuple[TrueCall, ...]:
    kernels = {rank: side.run.recordings[rank].communication() for rank in {call.rank for call in side.calls}}
    found = []
    for call, proxies in zip(side.calls, side.proxies, strict=True):
        true_ns = call.launch_ns
        shown = side.epoch_ns(call.rank, true_ns)
        own = true_ns - side.zero_ns if steady else shown
        steps = tuple(TrueStep(state, start, end) for op in proxies for state, start, end in op.states())
        found.append(
            TrueCall(
                rank=call.rank,
                communicator=call.communicator,
                function=call.function,
                seq=call.seq,
                kernel=None if call.grouped else kernels[call.rank].get(call.op, (None,))[0],
                offset_ns=shown - own,
                steps=steps,
                wire_bytes=sum(op.bytes for op in proxies if op.sends),
            )
        )
    return tuple(found)
