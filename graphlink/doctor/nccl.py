"""What a side file of NCCL or c10d lacks: calls that its rings lost, clocks, times, steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from graphlink.doctor.environment import ENOUGH, INSPECTOR_BYTES, POOLS, WANTED_MASK
from graphlink.doctor.records import Finding, Kind, Level
from graphlink.model import NOWHERE, Bool
from graphlink.nccl.read.records import Dump
from graphlink.nccl.records import SideFiles
from graphlink.read.nccl_kinds import DumpKind

_MASK: Final = f"NCCL_PROFILE_EVENT_MASK={WANTED_MASK}"
_MESSAGES: Final = ("send", "recv")

ALONE = Kind(
    "nccl-alone",
    Level.LOST,
    "side files of NCCL without a trace",
    "there is no graph of them: their {calls} calls belong to no kernel",
    "a Kineto trace of the same steps beside them: profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
    by_capture=True,
)
MISSING = Kind(
    "nccl-calls-missing",
    Level.LOST,
    "{missing} calls or more are not in the dump, by the numbers of those that are",
    "their kernels have no algorithm, channels or steps; {between} of them lie between calls that are there, so order alone tells nothing",
    "larger rings, and the recorder on before the steps",
)
_MORE: Final[dict[DumpKind, str]] = {
    DumpKind.PLUGIN: " ".join(f"NCCL_PROFILE_{pool}_POOL_SIZE={ENOUGH}" for pool in POOLS),
    DumpKind.INSPECTOR: f"NCCL_INSPECTOR_DUMP_COLL_RING_SIZE={ENOUGH} NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=100000 "
    "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0 NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING=0",
    DumpKind.FLIGHT_RECORDER: "TORCH_NCCL_TRACE_BUFFER_SIZE=20000",
}
NO_KERNELS = Kind(
    "nccl-no-kernel-events",
    Level.LOST,
    "no kernel channel events beside {calls} calls",
    "nothing ties the dump's clock to the GPU's, and a call ends where it was enqueued",
    f"{_MASK} (64 are kernel channels)",
)
NO_STOP = Kind(
    "nccl-no-gpu-stop",
    Level.LOST,
    "{without} of {channels} kernel channels have no end on the GPU",
    "how long a channel ran is unknown; only its start ties the clocks",
    "a newer NCCL and its example plugin: early ones write StopGpuClk 0",
)
NO_STEPS = Kind(
    "nccl-no-proxy-steps",
    Level.NOTE,
    "no steps of the proxy beside {calls} calls",
    "the time of collectives is not split into GPU, peer and wire; right for calls inside a host (NVLink), which need no proxy",
    f"{_MASK} (8 and 16 are proxy ops and steps)",
)
NO_NUMBERS = Kind(
    "nccl-no-seq",
    Level.INFERRED,
    "{without} of {calls} calls have no sequence number",
    "they are matched with kernels by order and size",
    "nothing: the library numbers collectives only",
)
NO_TIMES = Kind(
    "nccl-no-times",
    Level.INFERRED,
    "{without} of {calls} calls have no times",
    "those between joined calls are joined by their numbers, the others with nothing",
    "the dump once more; of the inspector with NCCL_INSPECTOR_DUMP_VERBOSE=1",
)
NO_DURATION = Kind(
    "flight-no-timing",
    Level.NOTE,
    "entries of the Flight Recorder have no duration_ms",
    "how long a collective ran is told by its kernel alone",
    "TORCH_NCCL_ENABLE_TIMING=1",
)
LARGE_ONLY = Kind(
    "inspector-large-only",
    Level.NOTE,
    f"none of {{calls}} messages is below {INSPECTOR_BYTES} bytes, which the inspector leaves out by default",
    "small collectives, if there were some, are matched with nothing",
    "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0",
)
BROKEN = Kind(
    "nccl-broken-rows",
    Level.LOST,
    "parts of the dump could not be used",
    "{events} events are left out",
    "a dump that was written to its end: destroy the communicators, or stop the profiler, before the process ends",
)
UNMATCHED = Kind(
    "nccl-unmatched",
    Level.NOTE,
    "{left} of {ops} communication ops have no call in the side files",
    "they have no algorithm, channels or steps from there",
    "the recorder on before the steps and off after them, with rings that hold all of them",
)
KINDS: Final = (ALONE, UNMATCHED, MISSING, NO_KERNELS, NO_STOP, NO_STEPS, NO_NUMBERS, NO_TIMES, NO_DURATION, LARGE_ONLY, BROKEN)
# Words in the readers' reasons for what is damaged. The others are rows of kinds that no join needs.
_DAMAGED: Final = ("cut off", "no event", "no object", "longer than", "without a", "neither begin", "end before they begin", "another zero")


def dump_lacking(dump: Dump) -> Iterator[Finding]:
    """What one side file lacks. O(n log n) in calls."""
    return (replace(finding, files=(dump.path,)) for finding in _found(dump))


def _found(dump: Dump) -> Iterator[Finding]:
    calls, kernels = dump.calls, dump.kernels
    count = len(calls.seq)
    missing, between = missing_calls(dump)
    if missing:
        figures = {"missing": missing, "between": between}
        yield Finding(MISSING, missing / (missing + count), figures, record=_MORE.get(dump.kind, MISSING.record))
    if dump.kind is DumpKind.PLUGIN and count:
        if not len(kernels.call):
            yield Finding(NO_KERNELS, figures={"calls": count})
        without = int(np.count_nonzero(kernels.gpu_end_ns == 0))
        if without:
            yield Finding(NO_STOP, without / len(kernels.call), {"without": without, "channels": len(kernels.call)})
        if not len(dump.steps.proxy):
            yield Finding(NO_STEPS, figures={"calls": count})
    if dump.kind is not DumpKind.PROXY:
        yield from _counted(NO_NUMBERS, calls.seq == NOWHERE)
        yield from _counted(NO_TIMES, calls.start_ns == 0)
    if dump.kind is DumpKind.FLIGHT_RECORDER and (calls.end_ns > 0).any() and not calls.exec_ns.any():
        yield Finding(NO_DURATION)
    if dump.kind is DumpKind.INSPECTOR and count and calls.bytes.min() >= INSPECTOR_BYTES:
        yield Finding(LARGE_ONLY, figures={"calls": count})
    damaged = {reason: n for reason, n in dump.left_out.items() if any(word in reason for word in _DAMAGED)}
    if damaged or dump.warnings:
        events = sum(damaged.values())
        yield Finding(BROKEN, events / max(dump.events, 1), {"events": events}, damaged, dump.warnings)


def join_lacking(files: SideFiles) -> Iterator[Finding]:
    """What of a rank's communication its side files do not know. The join table of ``summary.json`` has the same numbers."""
    reasons: Counter[str] = Counter()
    for group in files.groups:
        reasons.update({why: count for why, count in group.ops_left.items() if count})
    ops = len(files.ops.row)
    left = ops - len(np.unique(files.op))
    if left:
        told = tuple(group.mismatch for group in files.groups if group.mismatch)
        yield Finding(UNMATCHED, left / ops, {"left": left, "ops": ops}, dict(reasons), told)


def _counted(kind: Kind, lacking: Bool) -> Iterator[Finding]:
    without = int(np.count_nonzero(lacking))
    if without:
        yield Finding(kind, without / len(lacking), {"without": without, "calls": len(lacking)})


def missing_calls(dump: Dump) -> tuple[int, int]:
    """How many calls numbers say there were and the dump has not: all, and those of them between calls that it has.

    Numbers count from 1 at the latest, by communicator and rank, in all but a Flight Recorder by function too. Messages share numbers.
    """
    calls = dump.calls
    message = np.isin(calls.function, [k for k, text in enumerate(dump.strings) if text in _MESSAGES])
    function = np.zeros_like(calls.function) if dump.kind is DumpKind.FLIGHT_RECORDER else calls.function
    numbered = np.stack([calls.communicator, calls.rank, function, calls.seq])[:, (calls.seq != NOWHERE) & ~message]
    numbered = np.unique(numbered, axis=1)  # sorted, so that those of one count follow each other
    number, first = numbered[3], np.ones(numbered.shape[1], np.bool_)
    first[1:] = np.diff(numbered[:3]).any(axis=0)
    between = int((np.diff(number, prepend=0) - 1)[~first].sum())
    return between + int(np.maximum(number[first] - 1, 0).sum()), between
