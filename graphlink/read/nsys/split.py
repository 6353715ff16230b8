"""From the rows of a whole nsys export to one ``model.Trace`` a (process, device).

Where a process drives one device, all of its threads, calls and ranges are that rank's. Where it drives several, a thread is in the
rank of every device that its calls launched work on, with all that it did: its time is spent once, but both devices wait for it. A
thread that launched nothing is in all ranks of its process, since it may have handed work to any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import (
    I64,
    NOWHERE,
    Bool,
    CallRows,
    Comm,
    CommTable,
    DeviceRows,
    EventRows,
    FlowRows,
    HostRows,
    SyncRows,
)
from graphlink.read.nsys.device import Work
from graphlink.read.nsys.places import Place
from graphlink.read.nsys.ranges import Calls, RangeRows
from graphlink.read.nsys.streams import Streams
from graphlink.read.nsys.syncs import Events, Syncs, calls_of

_TID: Final = 0xFFFFFF


@dataclass(frozen=True, slots=True)
class Whole:
    """All rows of an export. ``range_comm`` and ``work_comm`` map rows to what NCCL recorded."""

    work: Work
    ranges: RangeRows
    calls: Calls
    syncs: Syncs
    events: Events
    flows: FlowRows  # with globalTids
    streams: Streams
    range_comm: dict[int, Comm]
    work_comm: dict[int, Comm]


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one ``model.Trace``."""

    host: HostRows
    calls: CallRows
    device: DeviceRows
    syncs: SyncRows
    events: EventRows
    flows: FlowRows


def split(whole: Whole, places: tuple[Place, ...]) -> list[Tables]:
    """The tables of each place, in its order; O(rows x processes) to choose rows, then sorts."""
    out: list[Tables] = []
    for process in dict.fromkeys(place.process for place in places):
        mine = _Process(whole, process)
        devices = [place.device for place in places if place.process == process]
        out += [mine.tables(device, alone=len(devices) == 1) for device in devices]
    return out


class _Process:
    """The rows of one process."""

    def __init__(self, whole: Whole, process: int):
        self.whole = whole
        self.work = np.flatnonzero(whole.work.process == process)
        self.ranges = np.flatnonzero(_of(whole.ranges.thread, process))
        self.calls = np.flatnonzero(_of(whole.calls.thread, process))
        self.syncs = np.flatnonzero(whole.syncs.process == process)
        self.events = np.flatnonzero(whole.events.process == process)
        self.flows = np.flatnonzero(_of(whole.flows.fwd_tid, process) & _of(whole.flows.bwd_tid, process))
        self._launches: tuple[I64, I64] | None = None

    def tables(self, device: int | None, *, alone: bool) -> Tables:
        whole = self.whole
        if alone:
            work, ranges, calls, syncs, flows = self.work, self.ranges, self.calls, self.syncs, self.flows
            elsewhere = self.calls[:0]
        else:
            threads, elsewhere = self._threads(device), self._elsewhere(device)
            work = self.work[whole.work.device[self.work] == device]
            ranges = self.ranges[np.isin(whole.ranges.thread[self.ranges], threads)]
            calls = self.calls[np.isin(whole.calls.thread[self.calls], threads)]
            syncs = self._syncs(device, threads)
            flows = self.flows[np.isin(whole.flows.fwd_tid[self.flows], threads) & np.isin(whole.flows.bwd_tid[self.flows], threads)]
        return Tables(
            host=_host(whole, ranges),
            calls=_calls(whole.calls, calls, elsewhere),
            device=_device(whole, work),
            syncs=_sync_rows(whole, syncs),
            events=_event_rows(whole, self.events),
            flows=FlowRows(
                whole.flows.fwd_tid[flows] & _TID,
                whole.flows.fwd_ns[flows],
                whole.flows.bwd_tid[flows] & _TID,
                whole.flows.bwd_ns[flows],
            ),
        )

    def _launched(self) -> tuple[I64, I64]:
        """Calls that launched work, and the device it ran on."""
        if self._launches is None:
            work = self.whole.work
            call = calls_of(work.process[self.work], work.correlation[self.work], self.whole.calls)
            there = call >= 0
            self._launches = call[there], work.device[self.work[there]]
        return self._launches

    def _elsewhere(self, device: int | None) -> I64:
        """Calls that launched on other devices alone, and waited for nothing."""
        call, on = self._launched()
        waits = self.syncs[self.whole.syncs.correlation[self.syncs] > 0]
        out: I64 = np.setdiff1d(call[on != device], call[on == device])
        return out[~np.isin(self.whole.calls.correlation[out], self.whole.syncs.correlation[waits])]

    def _threads(self, device: int | None) -> I64:
        """Threads that launched on a device, and those that launched nothing at all."""
        call, on = self._launched()
        thread = self.whole.calls.thread[call]
        every = np.unique(np.concatenate([self.whole.calls.thread[self.calls], self.whole.ranges.thread[self.ranges]]))
        out: I64 = every[np.isin(every, thread[on == device]) | ~np.isin(every, thread)]
        return out

    def _syncs(self, device: int | None, threads: I64) -> I64:
        """Rows whose call is in the rank, of whatever device: no wait for another may seem one for this. Rows without call by device."""
        syncs, calls = self.whole.syncs, self.whole.calls
        call = calls_of(syncs.process[self.syncs], syncs.correlation[self.syncs], calls)
        here = syncs.device[self.syncs] == device
        here[call >= 0] = np.isin(calls.thread[call[call >= 0]], threads)
        out: I64 = self.syncs[here]
        return out


def _of(thread: I64, process: int) -> Bool:
    out: Bool = thread & ~_TID == process
    return out


def _host(whole: Whole, rows: I64) -> HostRows:
    r = whole.ranges
    rows = rows[np.lexsort((rows, -r.end_ns[rows], r.start_ns[rows]))]
    nothing, zero = np.zeros(len(rows), np.int32), np.zeros(len(rows), np.int64)
    return HostRows(
        start_ns=r.start_ns[rows],
        end_ns=r.end_ns[rows],
        tid=r.thread[rows] & _TID,
        name=r.name[rows],
        annotation=r.annotation[rows],
        order=rows.astype(np.int64),
        rf_id=zero,
        seq_id=r.seq_id[rows],
        fw_tid=zero,
        input_shapes=nothing,
        input_types=nothing,
        comm=_comm_table(whole.range_comm, rows, len(r.thread)),
        apart=r.apart[rows],
    )


def _calls(calls: Calls, rows: I64, elsewhere: I64) -> CallRows:
    """``elsewhere``: calls that launched on other devices, whose ids join nothing here."""
    rows = rows[np.lexsort((-calls.end_ns[rows], calls.start_ns[rows]))]
    return CallRows(
        start_ns=calls.start_ns[rows],
        end_ns=calls.end_ns[rows],
        tid=calls.thread[rows] & _TID,
        name=calls.name[rows],
        correlation=np.where(np.isin(rows, elsewhere), 0, calls.correlation[rows]),
    )


def _device(whole: Whole, rows: I64) -> DeviceRows:
    w = whole.work
    rows = rows[np.lexsort((w.end_ns[rows], w.start_ns[rows]))]
    return DeviceRows(
        start_ns=w.start_ns[rows],
        end_ns=w.end_ns[rows],
        device=w.device[rows],
        stream=whole.streams.work[rows],
        name=w.name[rows],
        kind=w.kind[rows],
        correlation=w.correlation[rows],
        bytes=w.bytes[rows],
        comm=_comm_table(whole.work_comm, rows, len(w.start_ns)),
    )


def _comm_table(comms: dict[int, Comm], rows: I64, count: int) -> CommTable:
    if not comms:
        return CommTable(np.zeros(0, np.int32), ())
    place = np.full(count, NOWHERE, np.int32)
    place[rows] = np.arange(len(rows), dtype=np.int32)
    found = sorted((int(place[row]), comm) for row, comm in comms.items() if place[row] != NOWHERE)
    return CommTable(np.array([row for row, _ in found], np.int32), tuple(comm for _, comm in found))


def _sync_rows(whole: Whole, rows: I64) -> SyncRows:
    s = whole.syncs
    rows = rows[np.lexsort((s.end_ns[rows], s.start_ns[rows]))]
    told, event = s.record_known[rows], s.event_known[rows]
    return SyncRows(
        kind=s.kind[rows],
        start_ns=s.start_ns[rows],
        end_ns=s.end_ns[rows],
        correlation=s.correlation[rows],
        device=s.device[rows],
        stream=whole.streams.syncs[rows],
        stream_known=s.stream_known[rows],
        record=np.where(told, s.record[rows], 0),
        record_known=told,
        record_stream=whole.streams.records[rows],
        record_stream_known=told,
        event=np.where(event, s.event[rows], 0),
        event_known=event,
    )


def _event_rows(whole: Whole, rows: I64) -> EventRows:
    return EventRows(whole.events.correlation[rows], whole.events.device[rows], whole.streams.events[rows])
