"""What a device recording of one rank lacks: rows, ids and times. Kineto and nsys alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from graphlink.doctor.records import Finding, Kind, if_any
from graphlink.link.launch import BEFORE_WINDOW, NO_CALL, NO_CORRELATION, STARTS_EARLY, launches_without_ops, rounding_ns
from graphlink.model import Linked, Trace
from graphlink.pipeline.spans import union, within
from graphlink.read.devices import UNPLACED

# Reasons of ``Trace.left_out`` for rows that are damaged. The others are rows that no graph needs.
BROKEN: Final = frozenset({
    "unreadable", "not a span (ph is not X)", "dur < 0 taken as 0", "host row without thread number", "call without thread number",
    "device row without stream", "device row without device", "cuda_sync of unknown kind", "cuda_event without stream",
    "end before start taken as no length", "event record without stream, process or call", "synchronisation row of unknown kind",
    "NVTX range without thread number",
})  # fmt: skip
OVERHEAD_SHARE: Final = 0.01  # of the recorded time, below which the profiler's own cost is not told
_ACTIVITIES: Final = "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]); with nsys --trace=cuda,nvtx"

_DEVICE_SIDE: Final = (
    "the device's side: CUPTI (or roctracer) found, allowed to (NVreg_RestrictProfilingToAdminUsers=0) and used by no other profiler; "
    "fewer steps, if buffers were dropped"
)

EMPTY = Kind("empty-recording", "lost", "no host op and no device op", "there is no graph", _ACTIVITIES, by_capture=True)
NO_HOST = Kind(
    "no-host-rows",
    "lost",
    "no host ops: {calls} API calls and {ops} device ops stand alone",
    "host time is gaps between calls; no op names, no edges between threads, and a wait ends at the next call",
    "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
    by_capture=True,
)
NO_DEVICE = Kind(
    "no-device-rows",
    "lost",
    "no device ops, though {calls} API calls were recorded",
    "no launch, stream, event or sync edge; what the device did is host time",
    _ACTIVITIES + "; if it was on, " + _DEVICE_SIDE,
    by_capture=True,
)
HOST_ONLY = Kind(
    "host-only",
    "note",
    "no device ops and no API calls: {rows} host ops",
    "the graph is of the host alone, which is right for a run on the CPU",
    "nothing, if it ran on the CPU; of a run on a GPU: " + _ACTIVITIES,
)
UNRECORDED = Kind(
    "launches-without-ops",
    "lost",
    "{calls} launch calls have no device op",
    "what they launched is not in the graph: device time is missing, and waits for it stay host time; right for calls captured into "
    "a graph, and at the end of a cut recording",
    _DEVICE_SIDE,
)
NO_CALLS = Kind(
    "no-calls",
    "lost",
    "no API calls: {ops} device ops without a launch",
    "no launch and no sync edge: host and device are not tied",
    _ACTIVITIES,
    by_capture=True,
)
BEFORE = Kind(
    "launches-before-window",
    "lost",
    "{orphans} of {ops} device ops were launched before the recording",
    "they have no launch edge and no caller, only the order of their streams; collectives among them lose their parameters",
    "torch.cuda.synchronize() and a barrier before the first recorded step",
    by_capture=True,
)
LAUNCHES = Kind(
    "launches-missing",
    "lost",
    "the launch calls of {orphans} of {ops} device ops are not there",
    "they have no launch edge and no caller, only the order of their streams",
    "the file as the profiler wrote it, not cut or filtered; fewer steps, if the profiler dropped buffers",
)
EARLY = Kind(
    "starts-before-launch",
    "lost",
    "{orphans} of {ops} device ops start before their launch call",
    "their launch edges would be against time and are left out",
    "record again after a step of warm-up (schedule(warmup=1)): the clocks of host and device differ",
    by_capture=True,
)
INTEGER = Kind(
    "integer-us",
    "inferred",
    "times are rounded to microseconds: {zero} of {rows} rows have no length",
    "order inside a microsecond is a guess, and 1 us of slack is given to each edge",
    "a PyTorch of mid 2024 or newer (its traces have baseTimeNanoseconds)",
)
BROKEN_ROWS = Kind(
    "broken-rows",
    "lost",
    "{rows} rows are damaged",
    "they are left out or mended as said",
    "the file as the profiler wrote it; record again",
)
UNPLACED_ROWS = Kind(
    "unknown-device-rows",
    "lost",
    "{rows} rows of a device are of a category that is not known, and do not say on which stream or device they ran",
    "they are left out: device time is missing, and waits for it stay host time",
    "with each row of the device args.device and args.stream, or a process labelled as a device (process_labels) and a thread a stream",
)
REPEATED = Kind(
    "repeated-calls",
    "inferred",
    "{calls} API calls repeat the correlation id of an earlier one",
    "device ops go to the earliest call: launch edges of the others are missing",
    "one recording a file: several were joined in this one",
)
OVERLAP = Kind(
    "calls-overlap",
    "inferred",
    "{calls} API calls run on into the next call or op of their thread",
    "they are taken to end there, so a wait in them is cut short",
    "a PyTorch of mid 2024 or newer where times are whole microseconds; else one recording a file, as the profiler wrote it",
)
BACKWARD = Kind(
    "no-backward-links",
    "lost",
    "{rows} ops of autograd, and neither fwdbwd flows nor sequence numbers",
    "no thread edge from forward to backward ops: what a backward waited for is not seen",
    "profile(activities=[ProfilerActivity.CPU, ...]), which writes both; with nsys emit_nvtx()",
    by_capture=True,
)
SHAPES = Kind(
    "no-shapes",
    "lost",
    "no shapes of {rows} host ops",
    "nodes lack inputs' shapes and types, and host-side communication its size",
    "profile(record_shapes=True), or an execution trace, which always has them",
    by_capture=True,
)
PYTHON = Kind(
    "python-rows",
    "note",
    "{python} python_function rows beside {rows} others",
    "nothing of the graph: they make the file larger and the recorded steps slower",
    "profile(with_stack=False)",
    by_capture=True,
)
OVERHEAD = Kind(
    "profiler-overhead",
    "note",
    "the profiler itself took {overhead_ms} ms in {rows} rows",
    "that time is in the graph as the run's own; bubbles call it profiler_artefact",
    "schedule(wait=1, warmup=1, active=3): fewer steps after a step of warm-up; with nsys --capture-range=cudaProfilerApi",
    by_capture=True,
)
STEPS = Kind(
    "no-steps",
    "note",
    "no ProfilerStep marks",
    "--step cannot choose, and steps are not compared",
    "prof.step() at the end of each training step",
    by_capture=True,
)


def rows_lacking(linked: Linked, *, nsys: bool) -> Iterator[Finding]:
    """Which rows are not there, or not tied to others. ``nsys``: of an export, whose host ops are a matter of its own."""
    trace = linked.trace
    rows, calls, ops = len(trace.host.start_ns), len(trace.calls.start_ns), len(trace.device.start_ns)
    if not rows and not ops:
        yield Finding(EMPTY)
        return
    if not rows and not nsys:
        yield Finding(NO_HOST, figures={"calls": calls, "ops": ops})
    if not ops:
        yield Finding(NO_DEVICE, figures={"calls": calls}) if calls else Finding(HOST_ONLY, figures={"rows": rows})
    elif not calls:
        yield Finding(NO_CALLS, figures={"ops": ops})
    else:
        yield from _orphans(linked, ops)
    lost = launches_without_ops(trace) if ops else {}
    yield from if_any(UNRECORDED, {"calls": sum(lost.values())}, calls, lost)
    numbered = trace.calls.correlation[trace.calls.correlation != 0]
    yield from if_any(REPEATED, {"calls": len(numbered) - len(np.unique(numbered))}, calls)
    broken = {reason: count for reason, count in trace.left_out.items() if reason in BROKEN}
    count = sum(broken.values())
    yield from if_any(BROKEN_ROWS, {"rows": count}, count + rows + calls + ops, broken)
    unplaced = {reason: count for reason, count in trace.left_out.items() if reason.endswith(UNPLACED)}
    count = sum(unplaced.values())
    yield from if_any(UNPLACED_ROWS, {"rows": count}, count + ops, unplaced)


def _orphans(linked: Linked, ops: int) -> Iterator[Finding]:
    for kind, reasons in ((BEFORE, (BEFORE_WINDOW,)), (LAUNCHES, (NO_CALL, NO_CORRELATION)), (EARLY, (STARTS_EARLY,))):
        parts = {reason: linked.orphans[reason] for reason in reasons if reason in linked.orphans}
        yield from if_any(kind, {"orphans": sum(parts.values()), "ops": ops}, ops, parts if len(reasons) > 1 else {})


def times_lacking(trace: Trace, linked: Linked) -> Iterator[Finding]:
    """What the times do not tell, and what the profiler took of them. ``trace``: as recorded, before its calls were cut."""
    tables = (trace.host, trace.calls, trace.device)
    rows = sum(len(t.start_ns) for t in tables)
    if rounding_ns(trace) and rows:
        zero = sum(int(np.count_nonzero(t.start_ns == t.end_ns)) for t in tables)
        yield Finding(INTEGER, zero / rows, {"zero": zero, "rows": rows})
    cut = int(np.count_nonzero(trace.calls.end_ns != linked.trace.calls.end_ns))
    yield from if_any(OVERLAP, {"calls": cut}, len(trace.calls.end_ns))
    from_ns, until_ns = bounds(trace)
    overhead = trace.overhead
    inside = (overhead.end_ns > from_ns) & (overhead.start_ns < until_ns)
    covered = within(union(overhead.start_ns, overhead.end_ns), from_ns, until_ns)
    took_ns = int((covered.end_ns - covered.start_ns).sum())
    if took_ns >= OVERHEAD_SHARE * (until_ns - from_ns):
        yield from if_any(OVERHEAD, {"overhead_ns": took_ns, "rows": int(np.count_nonzero(inside))}, until_ns - from_ns)


def bounds(trace: Trace) -> tuple[int, int]:
    """Return the first start and the last end of all rows."""
    there = [t for t in (trace.host, trace.calls, trace.device) if len(t.start_ns)]
    return min((int(t.start_ns.min()) for t in there), default=0), max((int(t.end_ns.max()) for t in there), default=0)


def links_lacking(linked: Linked) -> Iterator[Finding]:
    """Whether forward and backward ops are tied."""
    trace, et = linked.trace, linked.et
    host = trace.host
    engine = np.array([s.startswith("autograd::engine::evaluate_function") for s in trace.strings], np.bool_)[host.name]
    numbered = bool((host.seq_id >= 0).any()) or (et is not None and bool((et.seq_id >= 0).any()))
    if engine.any() and not numbered and not len(trace.flows.fwd_ns):
        count = int(np.count_nonzero(engine))
        yield Finding(BACKWARD, count / len(engine), {"rows": count})


def details_lacking(linked: Linked) -> Iterator[Finding]:
    """What the host rows of a Kineto trace do not say of themselves, or need not."""
    trace, et = linked.trace, linked.et
    host = trace.host
    rows = len(host.start_ns)
    if not rows:
        return
    with_shapes = np.count_nonzero(host.input_shapes) + (np.count_nonzero(et.input_shapes) if et is not None else 0)
    if not with_shapes:
        yield Finding(SHAPES, figures={"rows": rows})
    python = trace.left_out.get("python_function", 0)
    others = rows + len(trace.calls.start_ns) + len(trace.device.start_ns)
    yield from if_any(PYTHON, {"python": python, "rows": others}, python + others)
    if not any(s.startswith("ProfilerStep") for s in trace.strings):
        yield Finding(STEPS, 0.0)
