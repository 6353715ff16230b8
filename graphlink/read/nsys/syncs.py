"""Synchronisation rows and event records of an nsys export, of all processes.

Which call a row is of is known from (process, correlation), and the call is believed where the row's own type says
otherwise (seen in a real export). The device is that of the context: real exports write device 0 on every
synchronisation row. The record behind a wait is the CUDA_EVENT row with its ``eventSyncId`` in the process, else the
last earlier record of its (process, context, event): ids of events are used again. "Earlier" is by correlation id,
which CUPTI gives out as calls begin; a record's time is that of its completion, or 0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from graphlink.model import I64, NOWHERE, U8, Bool, EventRows, SyncKind, SyncRows
from graphlink.read.columns import MISSING, NO_ID, ByteTexts
from graphlink.read.nsys.device import CUPTI, ExportWork, context_of, is_number
from graphlink.read.nsys.file import PID_MASK, Columns, Export
from graphlink.read.nsys.ranges import ExportCalls
from graphlink.tables import codes, concat, how_many, last_before, lookup, numbered_rows

Devices = dict[tuple[int, int], int]  # of each (process, context)
SYNCS: Final = CUPTI + "SYNCHRONIZATION"
EVENTS: Final = CUPTI + "CUDA_EVENT"
_NO_PAIR: Final = (*NO_ID, 0)
_TYPES: Final = (SyncKind.EVENT, SyncKind.STREAM_WAIT, SyncKind.STREAM, SyncKind.DEVICE)  # numbered from 1
_BY_TYPE: Final = np.array([0, *(1 + kind for kind in _TYPES)], np.uint8)
_CALL: Final = re.compile(rb"cu(?:da)?(\w+?)(?:_ptds)?(?:_ptsz)?")
_BY_CALL: Final = {
    b"EventSynchronize": SyncKind.EVENT,
    b"EventQuery": SyncKind.EVENT,
    b"StreamWaitEvent": SyncKind.STREAM_WAIT,
    b"StreamSynchronize": SyncKind.STREAM,
    b"DeviceSynchronize": SyncKind.DEVICE,
    b"CtxSynchronize": SyncKind.DEVICE,
    b"ThreadSynchronize": SyncKind.DEVICE,
}


@dataclass(frozen=True, slots=True, repr=False)
class ExportSyncs(SyncRows):
    """Synchronisation rows of all processes, in no order, with what tells streams and records apart."""

    process: I64
    context: I64
    pair: I64  # eventSyncId; 0 = none


@dataclass(frozen=True, slots=True, repr=False)
class ExportEvents(EventRows):
    """Event records of all processes, in no order."""

    process: I64
    context: I64
    event: I64
    pair: I64  # eventSyncId; 0 = none


def call_kinds(names: ByteTexts) -> U8:
    """Return for every name so far 1 + SyncKind of a call that is called so, 0 for all others."""
    out = np.zeros(len(names.strings), np.uint8)
    for text, code in names.items():
        call = _CALL.fullmatch(text)
        if call and call[1] in _BY_CALL:
            out[code] = 1 + _BY_CALL[call[1]]
    return out


def read_events(export: Export, devices: Devices) -> ExportEvents:
    """Read event records."""
    columns = export.integers(
        EVENTS, ("deviceId", "contextId", "streamId", "correlationId", "globalPid", "eventId", "eventSyncId")
    )
    kept = is_number(columns["streamId"]) & (columns["globalPid"] != MISSING) & (columns["correlationId"] > 0)
    export.left_out["event record without stream, process or call"] += how_many(~kept)
    process, context = columns["globalPid"][kept], context_of(columns["contextId"][kept])
    pair = columns["eventSyncId"][kept]
    return ExportEvents(
        process=process,
        device=_devices(process, context, columns["deviceId"][kept], devices),
        context=context,
        stream=columns["streamId"][kept],
        correlation=columns["correlationId"][kept],
        event=columns["eventId"][kept],
        pair=np.where(np.isin(pair, _NO_PAIR), 0, pair),
    )


def read_syncs(export: Export, names: ByteTexts, calls: ExportCalls, devices: Devices) -> ExportSyncs:
    """Read every synchronisation row whose kind is known, by its call or else by its type; without records. O(n
    log n).
    """
    wanted = (
        "start",
        "end",
        "deviceId",
        "contextId",
        "streamId",
        "correlationId",
        "globalPid",
        "syncType",
        "eventId",
        "eventSyncId",
    )
    columns = export.integers(SYNCS, wanted)
    start, end = export.spans(SYNCS, columns)
    kind, kept = _kinds(export, names, columns, calls)
    columns, kind = {name: column[kept] for name, column in columns.items()}, kind[kept]
    process, context = columns["globalPid"], context_of(columns["contextId"])
    on_stream = np.isin(kind, [SyncKind.STREAM, SyncKind.STREAM_WAIT])
    of_event = np.isin(kind, [SyncKind.EVENT, SyncKind.STREAM_WAIT])
    known_event = of_event & ~np.isin(columns["eventId"], NO_ID)
    nothing, no = np.zeros(len(kind), np.int64), np.zeros(len(kind), np.bool_)
    return ExportSyncs(
        kind=kind,
        start_ns=start[kept],
        end_ns=end[kept],
        correlation=columns["correlationId"],
        device=_devices(process, context, columns["deviceId"], devices),
        stream=columns["streamId"],
        stream_known=on_stream & is_number(columns["streamId"]) & (columns["streamId"] != NO_ID[-1]),  # unsigned -1
        record=nothing,
        record_known=no,
        record_stream=nothing,
        record_stream_known=no,
        event=np.where(known_event, columns["eventId"], 0),
        event_known=known_event,
        process=process,
        context=context,
        pair=np.where(of_event & ~np.isin(columns["eventSyncId"], _NO_PAIR), columns["eventSyncId"], 0),
    )


def _kinds(export: Export, names: ByteTexts, columns: Columns, calls: ExportCalls) -> tuple[U8, Bool]:
    """Return the kind of each synchronisation row, and which count: their kind is known, and they waited."""
    sync_type = columns["syncType"]
    by_type = _BY_TYPE[np.where((sync_type > 0) & (sync_type < len(_BY_TYPE)), sync_type, 0)]
    call = calls_of(columns["globalPid"], columns["correlationId"], calls)
    by_call = np.append(call_kinds(names)[calls.name], 0)[call]
    wrong = how_many((by_call > 0) & (by_type > 0) & (by_type != by_call))
    if wrong:
        export.warnings.append(f"{wrong} synchronisation rows have another type than their call: the call is believed")
    kind = np.where(by_call > 0, by_call, by_type)
    known, not_ready = (kind > 0) & (columns["globalPid"] != MISSING), np.append(calls.not_ready, False)[call]
    export.left_out["synchronisation row of unknown kind"] += how_many(~known)
    export.left_out["query that found its event not ready"] += how_many(known & not_ready)
    return (kind - 1).astype(np.uint8), known & ~not_ready


def with_records(syncs: ExportSyncs, events: ExportEvents) -> ExportSyncs:
    """Return ``syncs`` with the record that each waits for, where rows tell."""
    w, e = syncs, events
    record = last_before((e.process, e.pair), e.correlation, (w.process, w.pair), w.correlation)
    paired = w.pair != 0
    record[~paired] = NOWHERE
    # Where records have pair ids, one that no record has is of a record that the export lacks: its event id would find
    # another.
    by_event = w.event_known & ~(paired & np.isin(w.process, e.process[e.pair != 0]))
    same = last_before((e.process, e.context, e.event), e.correlation, (w.process, w.context, w.event), w.correlation)
    # A stream may wait for an event of another device: then the context is not the event's, and an id in use only once
    # tells it.
    other = last_before((e.process, e.event), e.correlation, (w.process, w.event), w.correlation)
    other[~_used_once(w.process, w.event, e)] = NOWHERE
    for found in (same, other):
        record = np.where((record == NOWHERE) & by_event, found, record)
    correlation, stream = (np.append(column, 0)[record] for column in (events.correlation, events.stream))
    known = record != NOWHERE
    return replace(syncs, record=correlation, record_known=known, record_stream=stream, record_stream_known=known)


def with_untold(syncs: ExportSyncs, names: ByteTexts, calls: ExportCalls, processes: I64) -> ExportSyncs:
    """Add a row that tells nothing for each stream or device synchronisation of ``processes`` that has none.

    Those drive several devices. A call without a row may be of any, while a rank, which has one device only, would take
    it for its own.
    """
    kind = call_kinds(names)[calls.name]
    asked = np.flatnonzero(
        np.isin(kind, [1 + SyncKind.STREAM, 1 + SyncKind.DEVICE]) & np.isin(calls.tid & PID_MASK, processes)
    )
    rows = calls_of(syncs.process, syncs.correlation, calls)
    calls_without = np.setdiff1d(asked, rows)
    new = {f.name: np.zeros(len(calls_without), getattr(syncs, f.name).dtype) for f in fields(syncs)}
    new["kind"][:] = SyncKind.EVENT
    new["start_ns"], new["end_ns"] = calls.start_ns[calls_without], calls.end_ns[calls_without]
    new["process"], new["correlation"] = calls.tid[calls_without] & PID_MASK, calls.correlation[calls_without]
    return concat(syncs, ExportSyncs(**new))


def context_devices(export: Export, work: ExportWork) -> Devices:
    """Return the device of each (process, context): of the work in it, else as TARGET_INFO_CUDA_CONTEXT_INFO says."""
    places, place = numbered_rows(work.process, work.context)
    of_work = dict(
        zip(map(tuple, places.tolist()), work.device[np.unique(place, return_index=True)[1]].tolist(), strict=True)
    )
    rows = export.rows("TARGET_INFO_CUDA_CONTEXT_INFO", ("processId", "contextId", "deviceId"))
    recorded = [row for row in rows if all(isinstance(number, int) for number in row)]
    return {
        (process, context): device
        for process in np.unique(work.process).tolist()
        for pid, context, device in recorded
        if pid == pid_of(process)
    } | of_work


def pid_of(process: int) -> int:
    return process >> 24 & 0xFFFFFF


def _devices(process: I64, context: I64, recorded: I64, devices: Devices) -> I64:
    out = np.where(is_number(recorded), recorded, 0)
    for (one, other), device in devices.items():
        out[(process == one) & (context == other)] = device
    return out


def calls_of(process: I64, correlation: I64, calls: ExportCalls) -> I64:
    """Return the call of each (process, correlation), the earliest where several have it; -1 where there is none. O(n
    log n).
    """
    order, count = np.argsort(calls.start_ns, kind="stable"), len(calls.start_ns)
    processes, ids = np.append(calls.tid[order] & PID_MASK, process), np.append(calls.correlation[order], correlation)
    code = np.where(ids > 0, codes(processes, ids) + 1, 0)
    return np.append(order, NOWHERE)[lookup(code[:count], code[count:])]


def _used_once(process: I64, event: I64, events: ExportEvents) -> Bool:
    """Tell whether an event id is in use in one context of the process only."""
    code = codes(np.append(events.process, process), np.append(events.event, event))
    recorded, asked = np.split(code, [len(events.event)])
    contexts = np.bincount(numbered_rows(recorded, events.context)[0][:, 0], minlength=int(code.max(initial=-1)) + 1)
    return np.asarray(contexts[asked] == 1)
