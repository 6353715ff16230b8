"""From the rows of a whole nsys export to one ``model.Trace`` a (process, device).

Where a process drives one device, all of its threads, calls and ranges are that rank's. Where it drives several, a thread is in the
rank of every device that its calls launched work on, with all that it did: its time is spent once, but both devices wait for it. A
thread that launched nothing is in all ranks of its process, since it may have handed work to any.

nsys numbers streams within their context, and later stages know a stream by (device, number) alone: so streams are numbered anew where
two contexts of a device have the same number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from graphlink.model import I64, Bool, CallRows, DeviceRows, EventRows, FlowRows, HostRows, OverheadRows, SyncRows, Trace
from graphlink.read.nsys.device import ExportWork
from graphlink.read.nsys.file import PID_MASK
from graphlink.read.nsys.places import Place
from graphlink.read.nsys.ranges import ExportCalls, ExportOverheads, ExportRanges
from graphlink.read.nsys.syncs import ExportEvents, ExportSyncs, calls_of, pid_of
from graphlink.read.nsys.text import dense
from graphlink.tables import take, take_as

_Threaded = TypeVar("_Threaded", ExportRanges, ExportCalls)


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


def with_clear_streams(rows: ExportRows) -> tuple[ExportRows, tuple[str, ...]]:
    """Return (rows, changes): rows with stream numbers that are unambiguous within process and device, 0 where none is known.

    ``changes`` are in words.
    """
    work, syncs, events = rows.work, rows.syncs, rows.events
    known, told = np.flatnonzero(syncs.stream_known), np.flatnonzero(syncs.record_known)
    process = np.concatenate([work.process, syncs.process[known], syncs.process[told], events.process])
    device = np.concatenate([work.device, syncs.device[known], syncs.record_device[told], events.device])
    context = np.concatenate([work.context, syncs.context[known], syncs.record_context[told], events.context])
    stream = np.concatenate([work.stream, syncs.stream[known], syncs.record_stream[told], events.stream])
    numbers, renumbered = number_streams(process, device, context, stream)
    bounds = np.cumsum([len(work.stream), len(known), len(told)])
    of_work, of_known, of_told, of_events = np.split(numbers, bounds)
    of_syncs, of_records = np.zeros(len(syncs.kind), np.int64), np.zeros(len(syncs.kind), np.int64)
    of_syncs[known], of_records[told] = of_known, of_told
    clear = replace(
        rows,
        work=replace(work, stream=of_work),
        syncs=replace(syncs, stream=of_syncs, record_stream=of_records),
        events=replace(events, stream=of_events),
    )
    return clear, tuple(renumbered)


def number_streams(process: I64, device: I64, context: I64, stream: I64) -> tuple[I64, list[str]]:
    """Return (number of each row's stream, what changed in words).

    A stream keeps its number unless a lower context of its device has it; then it gets the next one above all numbers there.
    O(n) where numbers lie close together.
    """
    _, p = dense(process)
    device, d = dense(device)
    context, c = dense(context)
    stream, s = dense(stream)
    used, which = dense(((p * max(1, len(device)) + d) * max(1, len(context)) + c) * max(1, len(stream)) + s)
    numbers = np.zeros(len(used), np.int64)
    said: list[str] = []
    taken: set[tuple[int, int, int]] = set()
    free: dict[tuple[int, int], int] = {}
    rest, at_stream = np.divmod(used, max(1, len(stream)))
    rest, at_context = np.divmod(rest, max(1, len(context)))
    at_process, at_device = np.divmod(rest, max(1, len(device)))
    recorded = list(zip(at_process.tolist(), at_device.tolist(), stream[at_stream].tolist(), strict=True))
    for one, other, number in recorded:  # by process, device, context, stream
        free[one, other] = max(free.get((one, other), 0), number + 1)
    for k, (*where, number) in enumerate(recorded):
        place = where[0], where[1]
        if (*place, number) in taken:
            said.append(f"stream {number} of context {context[at_context[k]]} is stream {free[place]} of device {device[at_device[k]]}")
            number, free[place] = free[place], free[place] + 1
        taken.add((*place, number))
        numbers[k] = number
    return numbers[which], said


def split(rows: ExportRows, places: tuple[Place, ...], blank: Trace) -> list[Trace]:
    """Return the trace of each place, in its order: ``blank`` with the tables of the place.

    O(rows x processes) to choose rows, then sorts.
    """
    out: list[Trace] = []
    for process in dict.fromkeys(place.process for place in places):
        mine = _Process(rows, process)
        devices = [place.device for place in places if place.process == process]
        out += [mine.trace(device, blank, alone=len(devices) == 1) for device in devices]
    return out


class _Process:
    """The rows of one process."""

    def __init__(self, rows: ExportRows, process: int):
        self.rows, self.process = rows, process
        self.work = np.flatnonzero(rows.work.process == process)
        self.ranges = np.flatnonzero(_of(rows.ranges.tid, process))
        self.calls = np.flatnonzero(_of(rows.calls.tid, process))
        self.syncs = np.flatnonzero(rows.syncs.process == process)
        self.flows = np.flatnonzero(_of(rows.flows.fwd_tid, process) & _of(rows.flows.bwd_tid, process))
        call = calls_of(rows.work.process[self.work], rows.work.correlation[self.work], rows.calls)
        self.launches, self.launched_on = call[call >= 0], rows.work.device[self.work[call >= 0]]

    def trace(self, device: int | None, blank: Trace, *, alone: bool) -> Trace:
        """Return the trace of one of its devices; ``alone``: of the only one."""
        rows = self.rows
        work, ranges, calls, syncs, flows = self.work, self.ranges, self.calls, self.syncs, self.flows
        elsewhere = self.calls[:0]
        if not alone:
            threads, elsewhere = self._threads(device), self._elsewhere(device)
            work = work[rows.work.device[work] == device]
            ranges = ranges[np.isin(rows.ranges.tid[ranges], threads)]
            calls = calls[np.isin(rows.calls.tid[calls], threads)]
            syncs = self._syncs(device, threads)
            flows = flows[np.isin(rows.flows.fwd_tid[flows], threads) & np.isin(rows.flows.bwd_tid[flows], threads)]
        joining = rows.calls.correlation.copy()
        joining[elsewhere] = 0  # ids of calls that launched on other devices join nothing here
        handed = take(rows.flows, flows)
        return replace(
            blank,
            host=take_as(_own(rows.ranges), _sorted(rows.ranges, ranges, longest_first=True), HostRows),
            calls=take_as(replace(_own(rows.calls), correlation=joining), _sorted(rows.calls, calls, longest_first=True), CallRows),
            device=take_as(rows.work, _sorted(rows.work, work), DeviceRows),
            syncs=take_as(rows.syncs, _sorted(rows.syncs, syncs), SyncRows),
            events=take_as(rows.events, rows.events.process == self.process, EventRows),
            flows=replace(handed, fwd_tid=handed.fwd_tid & ~PID_MASK, bwd_tid=handed.bwd_tid & ~PID_MASK),
            overhead=take_as(rows.overheads, _sorted(rows.overheads, np.flatnonzero(_of(rows.overheads.tid, self.process))), OverheadRows),
            pid=pid_of(self.process),
        )

    def _elsewhere(self, device: int | None) -> I64:
        """Return the calls that launched on other devices alone, and waited for nothing."""
        waits = self.syncs[self.rows.syncs.correlation[self.syncs] > 0]
        out: I64 = np.setdiff1d(self.launches[self.launched_on != device], self.launches[self.launched_on == device])
        return out[~np.isin(self.rows.calls.correlation[out], self.rows.syncs.correlation[waits])]

    def _threads(self, device: int | None) -> I64:
        """Return the threads that launched on a device, and those that launched nothing at all."""
        thread = self.rows.calls.tid[self.launches]
        every = np.unique(np.concatenate([self.rows.calls.tid[self.calls], self.rows.ranges.tid[self.ranges]]))
        out: I64 = every[np.isin(every, thread[self.launched_on == device]) | ~np.isin(every, thread)]
        return out

    def _syncs(self, device: int | None, threads: I64) -> I64:
        """Return rows whose call is in the rank, of whatever device: no wait for another may seem one for this.

        Rows without a call are chosen by their device.
        """
        syncs, calls = self.rows.syncs, self.rows.calls
        call = calls_of(syncs.process[self.syncs], syncs.correlation[self.syncs], calls)
        here = syncs.device[self.syncs] == device
        here[call >= 0] = np.isin(calls.tid[call[call >= 0]], threads)
        out: I64 = self.syncs[here]
        return out


def _of(thread: I64, process: int) -> Bool:
    out: Bool = thread & PID_MASK == process
    return out


def _own(table: _Threaded) -> _Threaded:
    """Return a table with thread ids for globalTids."""
    return replace(table, tid=table.tid & ~PID_MASK)


def _sorted(table: HostRows | CallRows | DeviceRows | SyncRows | OverheadRows, rows: I64, *, longest_first: bool = False) -> I64:
    """Return rows of a table by start; of those that start together, the shortest or longest first."""
    end_ns = table.end_ns[rows]
    return rows[np.lexsort((-end_ns if longest_first else end_ns, table.start_ns[rows]))]
