"""Gaps of a side file of NCCL or c10d: calls that its rings lost, clocks, times, steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from graphlink.doctor.kinds import ENOUGH, ENOUGH_RINGS, INSPECTOR_BYTES
from graphlink.doctor.records import Finding, if_any
from graphlink.model import NOWHERE
from graphlink.nccl.read.records import Dump
from graphlink.nccl.summary import SideFiles, added
from graphlink.read.kinds import DumpKind
from graphlink.tables import Positions, how_many, successive

_MESSAGES: Final = ("send", "recv")

_MORE: Final[dict[DumpKind, str]] = {
    DumpKind.PLUGIN: ENOUGH_RINGS,
    DumpKind.INSPECTOR: f"NCCL_INSPECTOR_DUMP_COLL_RING_SIZE={ENOUGH} "
    "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=100000 "
    "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0 NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING=0",
    DumpKind.FLIGHT_RECORDER: "TORCH_NCCL_TRACE_BUFFER_SIZE=20000",
}
# Words in the readers' reasons for what is damaged. The others are rows of kinds that no join needs.
_DAMAGED: Final = (
    "cut off",
    "no event",
    "no object",
    "longer than",
    "without a",
    "neither begin",
    "end before they begin",
    "another zero",
)


def dump_lacking(dump: Dump) -> Iterator[Finding]:
    """Report what one side file lacks. O(n log n) in calls."""
    return (replace(finding, files=(dump.path,)) for finding in _found(dump))


def _found(dump: Dump) -> Iterator[Finding]:
    calls, channels = dump.calls, len(dump.kernels.call)
    count = len(calls.seq)
    missing, between = missing_calls(dump)
    if missing:
        figures = {"missing": missing, "between": between}
        yield Finding("nccl-calls-missing", missing / (missing + count), figures, record=_MORE.get(dump.kind, ""))
    plugin = dump.kind is DumpKind.PLUGIN and count > 0
    for kind, lacking in (
        ("nccl-no-kernel-events", plugin and not channels),
        ("nccl-no-proxy-steps", plugin and not len(dump.steps.proxy)),
        ("inspector-large-only", dump.kind is DumpKind.INSPECTOR and count and calls.bytes.min() >= INSPECTOR_BYTES),
    ):
        if lacking:
            yield Finding(kind, figures={"calls": count})
    if dump.kind is DumpKind.FLIGHT_RECORDER and (calls.end_ns > 0).any() and not calls.exec_ns.any():
        yield Finding("flight-no-timing")
    if plugin:
        yield from if_any(
            "nccl-no-gpu-stop",
            {"without": how_many(dump.kernels.gpu_end_ns == 0), "channels": channels},
            channels,
        )
    if dump.kind is not DumpKind.PROXY:
        for kind, absent in (("nccl-no-seq", calls.seq == NOWHERE), ("nccl-no-times", calls.start_ns == 0)):
            yield from if_any(kind, {"without": how_many(absent), "calls": count}, count)
    damaged = {reason: n for reason, n in dump.left_out.items() if any(word in reason for word in _DAMAGED)}
    if damaged or dump.warnings:
        events = sum(damaged.values())
        yield Finding("nccl-broken-rows", events / max(dump.events, 1), {"events": events}, damaged, dump.warnings)


def join_lacking(files: SideFiles) -> Iterator[Finding]:
    """Report which communication of a rank its side files lack. The join table of ``summary.json`` has the same
    numbers.
    """
    reasons = added(group.ops_left for group in files.groups)
    ops = len(files.ops.row)
    told = tuple(group.mismatch for group in files.groups if group.mismatch)
    yield from if_any("nccl-unmatched", {"left": ops - len(np.unique(files.op)), "ops": ops}, ops, reasons, told)


def missing_calls(dump: Dump) -> tuple[int, int]:
    """Count the calls that exist by their numbers and that the dump lacks: all, and those of them between calls that it
    has.

    Numbers count from 1 at the latest, by communicator and rank, in all but a Flight Recorder by function too. Messages
    share numbers.
    """
    calls = dump.calls
    message = np.isin(calls.function, [k for k, text in enumerate(dump.strings) if text in _MESSAGES])
    numbered = np.flatnonzero((calls.seq != NOWHERE) & ~message)
    series: list[Positions] = [
        calls.communicator,
        calls.rank,
        *([] if dump.kind is DumpKind.FLIGHT_RECORDER else [calls.function]),
    ]
    order = numbered[np.lexsort([calls.seq[numbered], *(column[numbered] for column in series)])]
    earlier, later = successive(order, *series)
    between = int(np.maximum(calls.seq[later] - calls.seq[earlier] - 1, 0).sum())
    return between + int(np.maximum(calls.seq[np.setdiff1d(order, later)] - 1, 0).sum()), between
