"""An nsys sqlite export of any schema since 2020 -> one ``model.Trace`` a (process, device). docs/nsys.md says how rows
are read.

Where a process drives one device, all of its threads, calls and ranges are that rank's. Where it drives several, a
thread is in the rank of every device that its calls launched work on, with all that it did: its time is spent once, but
both devices wait for it. A thread that launched nothing is in all ranks of its process, since it may have handed work
to any.

nsys numbers streams within their context, and later stages know a stream by (device, number) alone: so streams are
numbered anew where two contexts of a device have the same number.

Time: one pass over each table inside sqlite, few Python objects a row, then sorts. Memory: the columns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from graphlink.errors import InputError
from graphlink.model import (
    I64,
    NOWHERE,
    CallRows,
    Comm,
    DeviceRows,
    EventRows,
    FlowRows,
    Gpu,
    HostRows,
    OverheadRows,
    SyncRows,
    System,
    Trace,
)
from graphlink.read import kinds
from graphlink.read.columns import ByteTexts, Parts, Strings
from graphlink.read.commnames import Meaning, kernel_meaning, meanings
from graphlink.read.devices import cuda_version, gpus
from graphlink.read.kineto_rows import CALL, DEVICE, EVENT, LAUNCHED, SYNC
from graphlink.read.mend import give_calls
from graphlink.read.nsys.device import CUPTI, GRAPH, KERNEL, RUNTIME, ExportWork, process_of, read_work
from graphlink.read.nsys.file import PID_MASK, Export, open_export
from graphlink.read.nsys.nccl import GROUP_END, GROUP_START, comm_of, kernel_comms, members, operation
from graphlink.read.nsys.places import Contents, Numbering, Place, number
from graphlink.read.nsys.ranges import (
    NVTX,
    ExportCalls,
    ExportOverheads,
    ExportRanges,
    forward_backward,
    read_calls,
    read_overheads,
    read_ranges,
)
from graphlink.read.nsys.syncs import (
    EVENTS,
    SYNCS,
    ExportEvents,
    ExportSyncs,
    calls_of,
    context_devices,
    pid_of,
    read_events,
    read_syncs,
    with_records,
    with_untold,
)
from graphlink.tables import codes, comm_table, grouped, how_many, largest, numbered_rows, spread, take, take_as


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
    clear = replace(
        rows,
        work=replace(work, stream=of_work),
        syncs=replace(syncs, stream=spread(len(syncs.stream), syncs.stream_known, known, 0)),
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
    free = largest(len(places), used[:, 0], streams[used[:, 1], 1] + 1).tolist()
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
        of_process = ExportRows(
            work=take(rows.work, rows.work.process == process),
            ranges=take(rows.ranges, rows.ranges.tid & PID_MASK == process),
            calls=take(rows.calls, rows.calls.tid & PID_MASK == process),
            syncs=take(rows.syncs, rows.syncs.process == process),
            events=take(rows.events, rows.events.process == process),
            flows=take(rows.flows, rows.flows.fwd_tid & PID_MASK == process),  # both ends are of one process
            overheads=take(rows.overheads, rows.overheads.tid & PID_MASK == process),
        )
        devices = [place.device for place in places if place.process == process]
        of_each = [of_process] if len(devices) == 1 else [_of_device(of_process, device) for device in devices]
        out += [_trace(of_rank, replace(blank, pid=pid_of(process))) for of_rank in of_each]
    return out


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


_READ: Final = frozenset({KERNEL, CUPTI + "MEMCPY", CUPTI + "MEMSET", GRAPH, RUNTIME, SYNCS, EVENTS, NVTX})
_WINDOW: Final = re.compile(rb"[\d ,.:;()\[\]-]{1,60}")
_TIMES: Final = ("start", "timestamp")  # a table with such a column holds events


def read_nsys(path: str | Path) -> tuple[Trace, ...]:
    """Read the export at ``path`` (plain, gzip or zstd): a trace for every (process, device) that ran work, by rank;
    times in int64 ns.

    Without device work: one for every process with ranges or calls. What is no node is counted, in
    ``left_out`` of the first (process, device).

    Raises InputError: no nsys export, damaged or cut off; a row whose time is no integer or beyond 2**62; rows more
    than 104 days apart; nothing in it.
    """
    contents, unnumbered = read_report(path)
    numbering = number([contents])[0]
    traces = [numbered(trace, numbering, k) for k, trace in enumerate(unnumbered)]
    return tuple(sorted(traces, key=lambda trace: trace.rank or 0))


def numbered(trace: Trace, numbering: Numbering, place: int) -> Trace:
    """Return a trace with its rank, and with what NCCL tells of the run."""
    return replace(trace, rank=numbering.ranks[place], world_size=numbering.world_size, process_groups=numbering.groups)


def read_report(path: str | Path) -> tuple[Contents, tuple[Trace, ...]]:
    """Read an export as ``read_nsys`` does, but do not number its ranks, which are a matter of all files of a run.

    A file is read once, however many ranks it holds.
    """
    with open_export(path) as export:
        names = ByteTexts(Strings())
        host_name, system = _system(export)
        described = _gpus(export)
        work = read_work(export, names, described)
        calls = read_calls(export, names)
        ranges = read_ranges(export, names)
        devices = context_devices(export, work)
        events = read_events(export, devices)
        syncs = read_syncs(export, names, calls, devices)
        work, calls, told_calls = _with_calls(work, calls, syncs, events, names.strings)
        places = _places(export, work, ranges, calls)
        strings = tuple(names.strings)
        found = members([(int(ranges.tid[row]) & PID_MASK, one) for row, one in ranges.payload.items()])
        range_comm = _range_comms(strings, ranges, {m.communicator: m.size for m in found})
        work_comm = _kernel_comms(strings, work, calls, ranges, range_comm)
        work, ranges = replace(work, comm=comm_table(work_comm)), replace(ranges, comm=comm_table(range_comm))
        flows = forward_backward(ranges, strings)
        rows, renumbered = with_clear_streams(
            ExportRows(work, ranges, calls, syncs, events, flows, read_overheads(export, names))
        )
        several = [process for process, count in Counter(place.process for place in places).items() if count > 1]
        told = with_untold(with_records(rows.syncs, rows.events), names, calls, np.array(several, np.int64))
        rows = replace(rows, syncs=told)
        _count_unread(export, rows, places)
        export.refuse_span(len(np.unique(calls.tid)) + len(np.unique(ranges.tid)) + len(np.unique(rows.work.stream)))
        whole = Trace(
            path=str(path),
            strings=tuple(names.strings),
            host=ranges,
            calls=calls,
            device=work,
            syncs=syncs,
            events=events,
            flows=flows,
            overhead=rows.overheads,
            pid=None,
            rank=None,
            world_size=None,
            process_groups=(),
            resolution_ns=1,
            left_out={},
            warnings=(*export.warnings, *renumbered, *cut_window(export)),
            host_name=host_name,
            gpus=described,
            system=system,
        )
        traces = split(rows, places, whole)
        for k, place in enumerate(places):
            mended, said = told_calls.get(place.process, ({}, []))
            traces[k] = replace(traces[k], mended=mended, warnings=(*traces[k].warnings, *said))
        traces[0] = replace(traces[0], left_out={reason: n for reason, n in export.left_out.items() if n})
        return Contents(places, found), tuple(traces)


def _with_calls(
    work: ExportWork, calls: ExportCalls, syncs: ExportSyncs, events: ExportEvents, strings: Strings
) -> tuple[ExportWork, ExportCalls, dict[int, tuple[dict[str, int], list[str]]]]:
    """Give device rows without a correlation that of the call that order tells; return (work, calls, of each process
    with such rows as ``give_calls``)."""
    of_work, of_calls = work.correlation.copy(), calls.correlation.copy()
    told = {}
    for process in np.unique(work.process[of_work <= 0]).tolist():
        rows, mine = work.process == process, calls.tid & PID_MASK == process
        parts = {table: Parts() for table in (CALL, DEVICE, SYNC, EVENT, LAUNCHED)}
        columns = ("start_ns", "end_ns", "correlation")
        parts[CALL].add(
            **{name: getattr(calls, name)[mine] for name in (*columns, "tid", "name")},
            external=np.zeros(how_many(mine), np.int64),
        )
        parts[DEVICE].add(
            **{name: getattr(work, name)[rows] for name in (*columns, "device", "kind", "graph", "graph_node")},
            stream=codes(work.context[rows], work.stream[rows]),
            external=np.zeros(how_many(rows), np.int64),
        )
        parts[SYNC].add(correlation=syncs.correlation[syncs.process == process])
        parts[EVENT].add(correlation=events.correlation[events.process == process])
        told[process] = give_calls(parts, strings, 0)
        of_work[rows], of_calls[mine] = (parts[table].seen("correlation") for table in (DEVICE, CALL))
    return replace(work, correlation=of_work), replace(calls, correlation=of_calls), told


def _places(export: Export, work: ExportWork, ranges: ExportRanges, calls: ExportCalls) -> tuple[Place, ...]:
    """Return each (process, device) that ran work, in ascending order; without any, each process that has rows."""
    found = {Place(process, device) for process, device in numbered_rows(work.process, work.device)[0].tolist()}
    if not found:
        threads = np.concatenate([ranges.tid, calls.tid])
        found = {Place(process, None) for process in np.unique(process_of(threads)).tolist()}
    if not found and any(table.startswith("rocpd") for table in export.tables):
        raise InputError(f"is {kinds.ROCPD.what}", path=export.path, todo=kinds.ROCPD.todo)
    if not found:
        raise InputError(
            "holds no device work, no NVTX ranges and no API calls",
            path=export.path,
            where=f"tables {', '.join(sorted(export.tables)[:8]) or 'none'}",
            todo="record with nsys profile --trace=cuda,nvtx and export with nsys export --type sqlite",
        )
    # A globalPid is unsigned: the hardware number in its highest bits may make it negative here.
    return tuple(sorted(found, key=lambda p: (p.process % (1 << 64), -1 if p.device is None else p.device)))


def _range_comms(strings: Sequence[str], ranges: ExportRanges, sizes: dict[int, int]) -> dict[int, Comm]:
    calls = [operation(text) for text in strings]
    rows = np.flatnonzero(ranges.nccl & np.array([call is not None for call in calls], np.bool_)[ranges.name])
    interned: dict[Comm, Comm] = {}
    out = {}
    for row in rows.tolist():
        comm = comm_of(calls[ranges.name[row]] or "", ranges.payload.get(row, {}), sizes)
        out[row] = interned.setdefault(comm, comm)
    return out


def _kernel_comms(
    strings: Sequence[str], work: ExportWork, calls: ExportCalls, ranges: ExportRanges, range_comm: dict[int, Comm]
) -> dict[int, Comm]:
    """Map each device row to the call of NCCL that it runs."""
    if not range_comm:
        return {}
    kernels = np.flatnonzero(meanings(strings, work.name, kernel_meaning) == Meaning.BACKEND)
    call = calls_of(work.process[kernels], work.correlation[kernels], calls)
    launched = call != NOWHERE
    thread, start_ns = (column[call[launched]].tolist() for column in (calls.tid, calls.start_ns))
    bounds = np.array([text in (GROUP_START, GROUP_END) for text in strings], np.bool_)
    rows = np.flatnonzero(ranges.nccl & bounds[ranges.name])
    rows = np.union1d(rows, np.fromiter(range_comm, np.int64, len(range_comm)))
    return kernel_comms(
        ranges.tid[rows],
        ranges.start_ns[rows],
        ranges.end_ns[rows],
        [strings[code] for code in ranges.name[rows].tolist()],
        {k: range_comm[row] for k, row in enumerate(rows.tolist()) if row in range_comm},
        zip(thread, start_ns, kernels[launched].tolist(), strict=True),
    )


def _count_unread(export: Export, rows: ExportRows, places: tuple[Place, ...]) -> None:
    processes = np.array([place.process for place in places], np.int64)
    for what, process in (
        ("NVTX ranges", process_of(rows.ranges.tid)),
        ("API calls", process_of(rows.calls.tid)),
        ("synchronisation rows", rows.syncs.process),
        ("event records", rows.events.process),
    ):
        export.left_out[f"{what} of processes without device work"] += how_many(~np.isin(process, processes))
    for table in sorted(export.tables.keys() - _READ):
        if any(export.has(table, column) for column in _TIMES):
            export.left_out[table] += export.count(table)


def _system(export: Export) -> tuple[str, System]:
    """Return the name of the machine, and what else the export tells of it; nothing of what it tells in several
    ways.
    """
    recorded = grouped(
        (name, value.decode("utf-8", "replace").strip())
        for name, value in export.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value"))
        if isinstance(name, bytes) and isinstance(value, bytes)
    )
    once = {name: values[0] for name, values in recorded.items() if len({*values}) == 1}
    cpu, driver = once.get(b"CpuDescription", ""), once.get(b"NvDriverVersion", "")
    system = System("" if cpu == "unknown" else cpu, driver, cuda_driver=cuda_version(once.get(b"CudaDriverVersion")))
    return once.get(b"Hostname", ""), system


def _gpus(export: Export) -> tuple[Gpu, ...]:
    """Return the devices of the machine, by their CUDA numbers where the export has those."""
    number = "cuDevice" if export.has("TARGET_INFO_GPU", "cuDevice") else "id"
    rows = export.rows("TARGET_INFO_GPU", (number, "name", "computeMajor", "computeMinor", "smCount"))
    return gpus(
        (device, name.decode("utf-8", "replace") if isinstance(name, bytes) else "", *rest)
        for device, name, *rest in rows
    )


def cut_window(export: Export) -> list[str]:
    """Return warnings of tools that cut the export."""
    told = {
        name: value for name, value in export.rows("META_DATA_EXPORT", ("name", "value")) if isinstance(value, bytes)
    }
    if b"DERIVED_FROM" not in told and b"DERIVED_WINDOW_NS" not in told:
        return []
    window = _WINDOW.fullmatch(told.get(b"DERIVED_WINDOW_NS", b""))
    shown = f" ({window[0].decode()} ns)" if window else ""
    return [f"the export was cut to a window{shown}: calls, records and ranges around it are missing"]
