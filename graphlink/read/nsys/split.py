"""Split the rows of a whole nsys export into one ``model.Trace`` for each (process, device).

Where a process drives one device, all of its threads, calls and ranges are that rank's. Where it drives several, a
thread is in the rank of every device that its calls launched work on, with all that it did: its time is spent once, but
both devices wait for it. A thread that launched nothing is in all ranks of its process, since it may have handed work
to any.

nsys numbers streams within their context, and later stages know a stream by (device, number) alone: so streams are
numbered anew where two contexts of a device have the same number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from graphlink.model import (
    I64,
    NOWHERE,
    CallRows,
    DeviceRows,
    EventRows,
    FlowRows,
    HostRows,
    OverheadRows,
    SyncRows,
    Trace,
)
from graphlink.read.nsys.device import ExportWork
from graphlink.read.nsys.file import PID_MASK
from graphlink.read.nsys.places import Place
from graphlink.read.nsys.ranges import ExportCalls, ExportOverheads, ExportRanges
from graphlink.read.nsys.syncs import ExportEvents, ExportSyncs, calls_of, pid_of
from graphlink.tables import numbered_rows, take, take_as


@dataclass(frozen=True, slots=True)
class ExportRows:
    """All rows of an export, of all processes."""

    work: ExportWork
    ranges: ExportRanges
    calls: ExportCalls
    syncs: ExportSyncs
    events: ExportEvents
    flows: FlowRows  # with globalTids
    overheads: ExportOverheads


def with_clear_streams(rows: ExportRows) -> tuple[ExportRows, list[str]]:
    """Return (rows, changes in words): rows with stream numbers that are unambiguous within process and device, 0 where
    none is known.
    """
    work, syncs, events = rows.work, rows.syncs, rows.events
    of_stream = take(syncs, syncs.stream_known)
    tables = (work, of_stream, events)
    process, device, context, stream = (
        np.concatenate([getattr(table, column) for table in tables])
        for column in ("process", "device", "context", "stream")
    )
    numbers, renumbered = number_streams(process, device, context, stream)
    of_work, known, of_events = np.split(numbers, np.cumsum([len(table.stream) for table in tables[:-1]]))
    of_syncs = np.zeros(len(syncs.stream), np.int64)
    of_syncs[syncs.stream_known] = known
    clear = replace(
        rows,
        work=replace(work, stream=of_work),
        syncs=replace(syncs, stream=of_syncs),
        events=replace(events, stream=of_events),
    )
    return clear, renumbered


def number_streams(process: I64, device: I64, context: I64, stream: I64) -> tuple[I64, list[str]]:
    """Return (number of each row's stream, what changed in words).

    A stream keeps its number unless a lower context of its device has it; then it gets the next one above all numbers
    there. O(n) where numbers lie close together.
    """
    places, at = numbered_rows(process, device)
    streams, of_context = numbered_rows(context, stream)
    used, which = numbered_rows(at, of_context)  # by process, device, context, stream
    free = [0] * len(places)
    for place, k in used.tolist():
        free[place] = max(free[place], int(streams[k, 1]) + 1)
    said: list[str] = []
    numbers: list[int] = []
    taken: set[tuple[int, int]] = set()
    for place, k in used.tolist():
        context_, number = streams[k].tolist()
        if (place, number) in taken:
            said.append(f"stream {number} of context {context_} is stream {free[place]} of device {places[place, 1]}")
            number, free[place] = free[place], free[place] + 1
        taken.add((place, number))
        numbers.append(number)
    return np.array(numbers, np.int64)[which], said


def split(rows: ExportRows, places: tuple[Place, ...], blank: Trace) -> list[Trace]:
    """Return the trace of each place, in its order: ``blank`` with the tables of the place.

    O(rows x processes) to choose rows, then sorts.
    """
    out: list[Trace] = []
    for process in dict.fromkeys(place.process for place in places):
        mine = _of_process(rows, process)
        devices = [place.device for place in places if place.process == process]
        of_each = [mine] if len(devices) == 1 else [_of_device(mine, device) for device in devices]
        out += [_trace(one, replace(blank, pid=pid_of(process))) for one in of_each]
    return out


def _of_process(rows: ExportRows, process: int) -> ExportRows:
    return ExportRows(
        work=take(rows.work, rows.work.process == process),
        ranges=take(rows.ranges, rows.ranges.tid & PID_MASK == process),
        calls=take(rows.calls, rows.calls.tid & PID_MASK == process),
        syncs=take(rows.syncs, rows.syncs.process == process),
        events=take(rows.events, rows.events.process == process),
        flows=take(rows.flows, rows.flows.fwd_tid & PID_MASK == process),  # both ends are of one process
        overheads=take(rows.overheads, rows.overheads.tid & PID_MASK == process),
    )


def _of_device(rows: ExportRows, device: int | None) -> ExportRows:
    """Return the rows of one device out of those of its process.

    Of threads those that launched on it, or launched nothing at all. Of synchronisation rows those whose call is in the
    rank, of whatever device: no wait for another may seem one for this. Rows without a call are chosen by their device.
    """
    work, ranges, calls, syncs, flows = rows.work, rows.ranges, rows.calls, rows.syncs, rows.flows
    call = calls_of(work.process, work.correlation, calls)
    launches, here = call[call != NOWHERE], work.device[call != NOWHERE] == device
    threads = np.setdiff1d(
        np.union1d(calls.tid, ranges.tid), np.setdiff1d(calls.tid[launches], calls.tid[launches[here]])
    )
    # Ids of calls that launched on other devices alone, and waited for nothing, join nothing here.
    elsewhere = np.setdiff1d(launches[~here], launches[here])
    elsewhere = elsewhere[~np.isin(calls.correlation[elsewhere], syncs.correlation[syncs.correlation > 0])]
    joining = calls.correlation.copy()
    joining[elsewhere] = 0
    waiting = calls_of(syncs.process, syncs.correlation, calls)
    awaited = np.where(waiting != NOWHERE, np.isin(np.append(calls.tid, 0)[waiting], threads), syncs.device == device)
    return replace(
        rows,
        work=take(work, work.device == device),
        ranges=take(ranges, np.isin(ranges.tid, threads)),
        calls=take(replace(calls, correlation=joining), np.isin(calls.tid, threads)),
        syncs=take(syncs, awaited),
        flows=take(flows, np.isin(flows.fwd_tid, threads) & np.isin(flows.bwd_tid, threads)),
    )


def _trace(rows: ExportRows, blank: Trace) -> Trace:
    """Return ``blank`` with the rows in order, and thread ids for globalTids."""
    ranges, calls, flows = rows.ranges, rows.calls, rows.flows
    return replace(
        blank,
        host=take_as(replace(ranges, tid=ranges.tid & ~PID_MASK), _by_start(ranges, longest_first=True), HostRows),
        calls=take_as(replace(calls, tid=calls.tid & ~PID_MASK), _by_start(calls, longest_first=True), CallRows),
        device=take_as(rows.work, _by_start(rows.work), DeviceRows),
        syncs=take_as(rows.syncs, _by_start(rows.syncs), SyncRows),
        events=take_as(rows.events, np.arange(len(rows.events.stream)), EventRows),
        flows=replace(flows, fwd_tid=flows.fwd_tid & ~PID_MASK, bwd_tid=flows.bwd_tid & ~PID_MASK),
        overhead=take_as(rows.overheads, _by_start(rows.overheads), OverheadRows),
    )


def _by_start(
    table: HostRows | CallRows | DeviceRows | SyncRows | OverheadRows, *, longest_first: bool = False
) -> NDArray[np.intp]:
    """Return the order of rows by start; of those that start together, the shortest or longest first."""
    return np.lexsort((-table.end_ns if longest_first else table.end_ns, table.start_ns))
