"""An nsys sqlite export of any schema since 2020 -> one ``model.Trace`` a (process, device). docs/nsys.md says how rows
are read.

Time: one pass over each table inside sqlite, few Python objects a row, then sorts. Memory: the columns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from graphlink.errors import InputError
from graphlink.model import NOWHERE, Comm, Gpu, System, Trace
from graphlink.read import kinds
from graphlink.read.columns import ByteTexts, Strings
from graphlink.read.commnames import Meaning, kernel_meaning, meanings
from graphlink.read.devices import cuda_version, gpus
from graphlink.read.nsys.device import CUPTI, GRAPH, KERNEL, RUNTIME, ExportWork, process_of, read_work
from graphlink.read.nsys.file import PID_MASK, Export, open_export
from graphlink.read.nsys.nccl import GROUP_END, GROUP_START, comm_of, kernel_comms, members, operation
from graphlink.read.nsys.numbering import Numbering
from graphlink.read.nsys.places import Contents, Place, number
from graphlink.read.nsys.ranges import (
    NVTX,
    ExportCalls,
    ExportRanges,
    forward_backward,
    read_calls,
    read_overheads,
    read_ranges,
)
from graphlink.read.nsys.split import ExportRows, split, with_clear_streams
from graphlink.read.nsys.syncs import (
    EVENTS,
    SYNCS,
    calls_of,
    context_devices,
    read_events,
    read_syncs,
    with_records,
    with_untold,
)
from graphlink.tables import comm_table, numbered_rows

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
        described = _gpus(export)
        work = read_work(export, names, described)
        calls = read_calls(export, names)
        ranges = read_ranges(export, names)
        devices = context_devices(export, work)
        events = read_events(export, devices)
        syncs = read_syncs(export, names, calls, devices)
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
            host_name=_host_name(export),
            gpus=described,
            system=_system(export),
        )
        first, *others = split(rows, places, whole)
        first = replace(first, left_out={reason: n for reason, n in export.left_out.items() if n})
        return Contents(places, found), (first, *others)


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
        export.left_out[f"{what} of processes without device work"] += int(
            np.count_nonzero(~np.isin(process, processes))
        )
    for table in sorted(export.tables.keys() - _READ):
        if any(export.has(table, column) for column in _TIMES):
            export.left_out[table] += export.count(table)


def _host_name(export: Export) -> str:
    """Return the name of the machine that was recorded; "" where the export names none, or several."""
    rows = export.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value"))
    names = {value for name, value in rows if name == b"Hostname" and isinstance(value, bytes)}
    return names.pop().decode("utf-8", "replace") if len(names) == 1 else ""


def _system(export: Export) -> System:
    """Return what the export tells of the machine; nothing of what it tells in several ways."""
    told: dict[str, set[str]] = {}
    for name, value in export.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value")):
        if isinstance(name, bytes) and isinstance(value, bytes):
            told.setdefault(name.decode("utf-8", "replace"), set()).add(value.decode("utf-8", "replace").strip())
    once = {name: values.pop() for name, values in told.items() if len(values) == 1}
    cpu, driver = once.get("CpuDescription", ""), once.get("NvDriverVersion", "")
    return System(
        cpu="" if cpu == "unknown" else cpu, driver=driver, cuda_driver=cuda_version(once.get("CudaDriverVersion"))
    )


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
