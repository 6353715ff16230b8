"""What a side file of NCCL or c10d lacks: calls that its rings lost, clocks, times, steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from graphlink.doctor.environment import ENOUGH, ENOUGH_RINGS, INSPECTOR_BYTES, WANTED_MASK
from graphlink.doctor.records import Finding, Kind, if_any
from graphlink.model import NOWHERE
from graphlink.nccl.read.records import Dump
from graphlink.nccl.records import SideFiles
from graphlink.read.nccl_kinds import DumpKind
from graphlink.tables import Positions, successive

_MASK: Final = f"NCCL_PROFILE_EVENT_MASK={WANTED_MASK}"
_MESSAGES: Final = ("send", "recv")

ALONE = Kind(
    "nccl-alone",
    "lost",
    "side files of NCCL without a trace",
    "there is no graph of them: their {calls} calls belong to no kernel",
    "a Kineto trace of the same steps beside them: profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
    by_capture=True,
)
MISSING = Kind(
    "nccl-calls-missing",
    "lost",
    "{missing} calls or more are not in the dump, by the numbers of those that are",
    "their kernels have no algorithm, channels or steps; {between} of them lie between calls that are there, so order alone tells nothing",
    "larger rings, and the recorder on before the steps",
)
_MORE: Final[dict[DumpKind, str]] = {
    DumpKind.PLUGIN: ENOUGH_RINGS,
    DumpKind.INSPECTOR: f"NCCL_INSPECTOR_DUMP_COLL_RING_SIZE={ENOUGH} NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=100000 "
    "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0 NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING=0",
    DumpKind.FLIGHT_RECORDER: "TORCH_NCCL_TRACE_BUFFER_SIZE=20000",
}
NO_KERNELS = Kind(
    "nccl-no-kernel-events",
    "lost",
    "no kernel channel events beside {calls} calls",
    "nothing ties the dump's clock to the GPU's, and a call ends where it was enqueued",
    f"{_MASK} (64 are kernel channels)",
)
NO_STOP = Kind(
    "nccl-no-gpu-stop",
    "lost",
    "{without} of {channels} kernel channels have no end on the GPU",
    "how long a channel ran is unknown; only its start ties the clocks",
    "a newer NCCL and its example plugin: early ones write StopGpuClk 0",
)
NO_STEPS = Kind(
    "nccl-no-proxy-steps",
    "note",
    "no steps of the proxy beside {calls} calls",
    "the time of collectives is not split into GPU, peer and wire; right for calls inside a host (NVLink), which need no proxy",
    f"{_MASK} (8 and 16 are proxy ops and steps)",
)
NO_NUMBERS = Kind(
    "nccl-no-seq",
    "inferred",
    "{without} of {calls} calls have no sequence number",
    "they are matched with kernels by order and size",
    "nothing: the library numbers collectives only",
)
NO_TIMES = Kind(
    "nccl-no-times",
    "inferred",
    "{without} of {calls} calls have no times",
    "those between joined calls are joined by their numbers, the others with nothing",
    "the dump once more; of the inspector with NCCL_INSPECTOR_DUMP_VERBOSE=1",
)
NO_DURATION = Kind(
    "flight-no-timing",
    "note",
    "entries of the Flight Recorder have no duration_ms",
    "how long a collective ran is told by its kernel alone",
    "TORCH_NCCL_ENABLE_TIMING=1",
)
LARGE_ONLY = Kind(
    "inspector-large-only",
    "note",
    f"none of {{calls}} messages is below {INSPECTOR_BYTES} bytes, which the inspector leaves out by default",
    "small collectives, if there were some, are matched with nothing",
    "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0",
)
BROKEN = Kind(
    "nccl-broken-rows",
    "lost",
    "parts of the dump could not be used",
    "{events} events are left out",
    "a dump that was written to its end: destroy the communicators, or stop the profiler, before the process ends",
)
UNMATCHED = Kind(
    "nccl-unmatched",
    "note",
    "{left} of {ops} communication ops have no call in the side files",
    "they have no algorithm, channels or steps from there",
    "the recorder on before the steps and off after them, with rings that hold all of them",
)
# Words in the readers' reasons for what is damaged. The others are rows of kinds that no join needs.
_DAMAGED: Final = ("cut off", "no event", "no object", "longer than", "without a", "neither begin", "end before they begin", "another zero")


def dump_lacking(dump: Dump) -> Iterator[Finding]:
    """What one side file lacks. O(n log n) in calls."""
    return (replace(finding, files=(dump.path,)) for finding in _found(dump))


def _found(dump: Dump) -> Iterator[Finding]:
    calls, channels = dump.calls, len(dump.kernels.call)
    count = len(calls.seq)
    missing, between = missing_calls(dump)
    if missing:
        figures = {"missing": missing, "between": between}
        yield Finding(MISSING, missing / (missing + count), figures, record=_MORE.get(dump.kind, MISSING.record))
    plugin = dump.kind is DumpKind.PLUGIN and count > 0
    for kind, lacking in (
        (NO_KERNELS, plugin and not channels),
        (NO_STEPS, plugin and not len(dump.steps.proxy)),
        (LARGE_ONLY, dump.kind is DumpKind.INSPECTOR and count and calls.bytes.min() >= INSPECTOR_BYTES),
    ):
        if lacking:
            yield Finding(kind, figures={"calls": count})
    if dump.kind is DumpKind.FLIGHT_RECORDER and (calls.end_ns > 0).any() and not calls.exec_ns.any():
        yield Finding(NO_DURATION)
    if plugin:
        yield from if_any(NO_STOP, {"without": int(np.count_nonzero(dump.kernels.gpu_end_ns == 0)), "channels": channels}, channels)
    if dump.kind is not DumpKind.PROXY:
        for kind, absent in ((NO_NUMBERS, calls.seq == NOWHERE), (NO_TIMES, calls.start_ns == 0)):
            yield from if_any(kind, {"without": int(np.count_nonzero(absent)), "calls": count}, count)
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
    told = tuple(group.mismatch for group in files.groups if group.mismatch)
    yield from if_any(UNMATCHED, {"left": ops - len(np.unique(files.op)), "ops": ops}, ops, dict(reasons), told)


def missing_calls(dump: Dump) -> tuple[int, int]:
    """How many calls numbers say there were and the dump has not: all, and those of them between calls that it has.

    Numbers count from 1 at the latest, by communicator and rank, in all but a Flight Recorder by function too. Messages share numbers.
    """
    calls = dump.calls
    message = np.isin(calls.function, [k for k, text in enumerate(dump.strings) if text in _MESSAGES])
    numbered = np.flatnonzero((calls.seq != NOWHERE) & ~message)
    series: list[Positions] = [calls.communicator, calls.rank, *([] if dump.kind is DumpKind.FLIGHT_RECORDER else [calls.function])]
    order = numbered[np.lexsort([calls.seq[numbered], *(column[numbered] for column in series)])]
    earlier, later = successive(order, *series)
    between = int(np.maximum(calls.seq[later] - calls.seq[earlier] - 1, 0).sum())
    return between + int(np.maximum(calls.seq[np.setdiff1d(order, later)] - 1, 0).sum()), between
