"""Gaps of a device recording of one rank: rows, ids and times. Kineto and nsys alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from graphlink.doctor.records import Finding, if_any
from graphlink.linking.launch import (
    BEFORE_WINDOW,
    NO_CALL,
    NO_CORRELATION,
    STARTS_EARLY,
    launches_without_ops,
    rounding_ns,
)
from graphlink.model import Linked, Trace
from graphlink.read.devices import UNPLACED
from graphlink.spans import union, within
from graphlink.steps import PROFILER_STEP

# Reasons of ``Trace.left_out`` for rows that are damaged. The others are rows that no graph needs.
BROKEN: Final = frozenset({
    "unreadable", "not a span (ph is not X)", "dur < 0 taken as 0", "host row without thread "
                                                                    "number", "call without thread number",
    "device row without stream", "device row without device", "cuda_sync of unknown kind", "cuda_event without stream",
    "end before start taken as no "
    "length", "event record without stream, process or call", "synchronisation row of unknown kind",
    "NVTX range without thread number",
})  # fmt: skip
OVERHEAD_SHARE: Final = 0.01  # of the recorded time, below which the profiler's own cost is not reported


def rows_lacking(linked: Linked, *, nsys: bool) -> Iterator[Finding]:
    """Report which rows are missing, or not linked to others. ``nsys``: of an export, whose host ops are a matter of
    its own.
    """
    trace = linked.trace
    rows, calls, ops = len(trace.host.start_ns), len(trace.calls.start_ns), len(trace.device.start_ns)
    if not rows and not ops:
        yield Finding("empty-recording")
        return
    if not rows and not nsys:
        yield Finding("no-host-rows", figures={"calls": calls, "ops": ops})
    if not ops:
        yield (
            Finding("no-device-rows", figures={"calls": calls})
            if calls
            else Finding("host-only", figures={"rows": rows})
        )
    elif not calls:
        yield Finding("no-calls", figures={"ops": ops})
    else:
        yield from _orphans(linked, ops)
    lost = launches_without_ops(trace) if ops else {}
    yield from if_any("launches-without-ops", {"calls": sum(lost.values())}, calls, lost)
    numbered = trace.calls.correlation[trace.calls.correlation != 0]
    yield from if_any("repeated-calls", {"calls": len(numbered) - len(np.unique(numbered))}, calls)
    broken = {reason: count for reason, count in trace.left_out.items() if reason in BROKEN}
    count = sum(broken.values())
    yield from if_any("broken-rows", {"rows": count}, count + rows + calls + ops, broken)
    unplaced = {reason: count for reason, count in trace.left_out.items() if reason.endswith(UNPLACED)}
    count = sum(unplaced.values())
    yield from if_any("unknown-device-rows", {"rows": count}, count + ops, unplaced)


def _orphans(linked: Linked, ops: int) -> Iterator[Finding]:
    for kind, reasons in (
        ("launches-before-window", (BEFORE_WINDOW,)),
        ("launches-missing", (NO_CALL, NO_CORRELATION)),
        ("starts-before-launch", (STARTS_EARLY,)),
    ):
        parts = {reason: linked.orphans[reason] for reason in reasons if reason in linked.orphans}
        yield from if_any(kind, {"orphans": sum(parts.values()), "ops": ops}, ops, parts if len(reasons) > 1 else {})


def times_lacking(trace: Trace, linked: Linked) -> Iterator[Finding]:
    """Report what the times do not show, and how much of them the profiler took. ``trace``: as recorded, before its
    calls were cut.
    """
    tables = (trace.host, trace.calls, trace.device)
    rows = sum(len(t.start_ns) for t in tables)
    if rounding_ns(trace) and rows:
        zero = sum(int(np.count_nonzero(t.start_ns == t.end_ns)) for t in tables)
        yield Finding("integer-us", zero / rows, {"zero": zero, "rows": rows})
    cut = int(np.count_nonzero(trace.calls.end_ns != linked.trace.calls.end_ns))
    yield from if_any("calls-overlap", {"calls": cut}, len(trace.calls.end_ns))
    from_ns, until_ns = bounds(trace)
    overhead = trace.overhead
    inside = (overhead.end_ns > from_ns) & (overhead.start_ns < until_ns)
    covered = within(union(overhead.start_ns, overhead.end_ns), from_ns, until_ns)
    took_ns = int((covered.end_ns - covered.start_ns).sum())
    if took_ns >= OVERHEAD_SHARE * (until_ns - from_ns):
        yield from if_any(
            "profiler-overhead", {"overhead_ns": took_ns, "rows": int(np.count_nonzero(inside))}, until_ns - from_ns
        )


def bounds(trace: Trace) -> tuple[int, int]:
    """Return the first start and the last end of all rows."""
    there = [t for t in (trace.host, trace.calls, trace.device) if len(t.start_ns)]
    return min((int(t.start_ns.min()) for t in there), default=0), max((int(t.end_ns.max()) for t in there), default=0)


def links_lacking(linked: Linked) -> Iterator[Finding]:
    """Report whether forward and backward ops are linked."""
    trace, et = linked.trace, linked.et
    host = trace.host
    engine = np.array([s.startswith("autograd::engine::evaluate_function") for s in trace.strings], np.bool_)[host.name]
    numbered = bool((host.seq_id >= 0).any()) or (et is not None and bool((et.seq_id >= 0).any()))
    if engine.any() and not numbered and not len(trace.flows.fwd_ns):
        count = int(np.count_nonzero(engine))
        yield Finding("no-backward-links", count / len(engine), {"rows": count})


def details_lacking(linked: Linked) -> Iterator[Finding]:
    """Report what the host rows of a Kineto trace do not record, or need not."""
    trace, et = linked.trace, linked.et
    host = trace.host
    rows = len(host.start_ns)
    if not rows:
        return
    with_shapes = np.count_nonzero(host.input_shapes) + (np.count_nonzero(et.input_shapes) if et is not None else 0)
    if not with_shapes:
        yield Finding("no-shapes", figures={"rows": rows})
    if not any(map(PROFILER_STEP.fullmatch, trace.strings)):
        yield Finding("no-steps", 0.0)
