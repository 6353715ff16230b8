"""What each device of a rank spent its time on, in all and step by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.gpu.busy import Busy, busy, length_ns, own_clock_ns
from graphlink.gpu.causes import Hosts, explain
from graphlink.gpu.records import CAUSES, DeviceTime, Idle, StepTime
from graphlink.graph_model import Column, Graph
from graphlink.model import I64, Communication, Linked
from graphlink.pipeline.rules import STEP_MARK
from graphlink.records import Short


@dataclass(frozen=True, slots=True, repr=False)
class GpuTime(Short):
    """The time of each device, of each step, and each device's idle time, by number; times since the start of the graph."""

    gpu: tuple[DeviceTime, ...]
    steps: tuple[StepTime, ...]
    idle: tuple[tuple[int, Idle], ...]


def gpu_time(graph: Graph, linked: Linked, comm: Communication, late: Column | None = None) -> GpuTime:
    """Measure what each device of a rank was busy with, and find why it was idle. O(n log n) in rows.

    ``late``: for how long communication nodes ran until the last rank came.
    """
    devices = busy(linked, comm)
    if not devices:
        return GpuTime((), (), ())
    marks = _step_marks(linked)
    hosts = Hosts(graph, linked, late)
    rows = [(one, _marks_on(one, linked, marks)) for one in devices]
    gpu, idle = [], []
    by_step: list[list[DeviceTime]] = [[] for _ in range(len(marks))]
    for one, (start_ns, end_ns) in rows:
        first, last = int(one.start_ns[0]), int(one.end_ns.max())
        why = explain(hosts, one, int(start_ns.min(initial=first)), int(end_ns.max(initial=last)))
        gpu.append(_device(one, why, first, last, graph.epoch_ns))
        for times, low, high in zip(by_step, start_ns.tolist(), end_ns.tolist(), strict=True):
            times.append(_device(one, why, low, high, graph.epoch_ns))
        idle.append((one.device, _within(why, first, last, graph.epoch_ns)))
    host, strings = linked.trace.host, linked.trace.strings
    steps = [
        StepTime(
            name=strings[host.name[row]],
            start_ns=int(host.start_ns[row]) - graph.epoch_ns,
            end_ns=int(host.end_ns[row]) - graph.epoch_ns,
            gpu=times,
        )
        for row, times in zip(marks.tolist(), by_step, strict=True)
    ]
    return GpuTime(tuple(gpu), tuple(steps), tuple(idle))


def _step_marks(linked: Linked) -> I64:
    """Return the host rows that mark steps, by start: annotations of the thread with most of them, those inside another left out."""
    host, strings = linked.trace.host, linked.trace.strings
    codes = [k for k in np.unique(host.name[host.annotation]).tolist() if STEP_MARK.fullmatch(strings[k])]
    rows = np.flatnonzero(host.annotation & np.isin(host.name, codes))
    if not len(rows):
        return rows
    tids, counts = np.unique(host.tid[rows], return_counts=True)
    rows = rows[host.tid[rows] == tids[np.argmax(counts)]]
    rows = rows[np.lexsort((-host.end_ns[rows], host.start_ns[rows]))]
    reach = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, host.end_ns[rows]))[:-1]
    out: I64 = rows[(host.start_ns[rows] >= reach) & (host.start_ns[rows] < host.end_ns[rows])]
    return out


def _marks_on(one: Busy, linked: Linked, marks: I64) -> tuple[I64, I64]:
    """Return starts and ends of the marks on a device's own clock: its offset is that of the first op after each."""
    host, offset = linked.trace.host, own_clock_ns(linked)[one.rows]
    return (
        host.start_ns[marks] + offset[np.minimum(np.searchsorted(one.start_ns, host.start_ns[marks]), len(offset) - 1)],
        host.end_ns[marks] + offset[np.minimum(np.searchsorted(one.start_ns, host.end_ns[marks]), len(offset) - 1)],
    )


def _device(one: Busy, why: Idle, from_ns: int, to_ns: int, epoch_ns: int) -> DeviceTime:
    compute, working, any_ = (length_ns(covered, from_ns, to_ns) for covered in (one.compute, one.working, one.any))
    part = _within(why, from_ns, to_ns, epoch_ns)
    spent = np.bincount(part.cause, part.end_ns - part.start_ns, len(CAUSES)).astype(np.int64).tolist()
    return DeviceTime(
        device=one.device,
        from_ns=from_ns - epoch_ns,
        to_ns=to_ns - epoch_ns,
        compute_ns=compute,
        exposed_comm_ns=working - compute,
        exposed_copy_ns=any_ - working,
        idle_ns=to_ns - from_ns - any_,
        comm_ns=length_ns(one.comm, from_ns, to_ns),
        copy_ns=length_ns(one.copies, from_ns, to_ns),
        idle_by_cause_ns={name: ns for name, ns in zip(CAUSES, spent, strict=True) if ns},
    )


def _within(why: Idle, from_ns: int, to_ns: int, epoch_ns: int) -> Idle:
    """Return what lies in [from_ns, to_ns), in times since the start of the graph."""
    low, high = np.searchsorted(why.end_ns, from_ns, side="right"), np.searchsorted(why.start_ns, to_ns)
    start, end = np.maximum(why.start_ns[low:high], from_ns), np.minimum(why.end_ns[low:high], to_ns)
    return Idle(start - epoch_ns, end - epoch_ns, why.shift_ns[low:high], why.cause[low:high], why.evidence[low:high], why.texts)
