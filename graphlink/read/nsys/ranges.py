"""NVTX ranges, API calls and what profiling itself took of an nsys export, of all processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import EMPTY, I32, I64, Bool, CallRows, FlowRows, HostRows, OverheadRows
from graphlink.patterns import AUTOGRAD_ENGINE, fits
from graphlink.read.columns import MAX_NS, MISSING, ByteTexts
from graphlink.read.nsys.device import CUPTI, NO_COMMS, RUNTIME
from graphlink.read.nsys.file import PID_MASK, Columns, Export
from graphlink.read.nsys.nccl import Payload, read_payloads
from graphlink.read.nsys.text import call_name, name_column, range_name, spelled
from graphlink.tables import concat, how_many, last_before, take

NVTX: Final = "NVTX_EVENTS"
_OVERHEADS: Final = (CUPTI + "OVERHEAD", "PROFILER_OVERHEAD")
DEFAULT_DOMAIN: Final = 0
_NCCL_DOMAINS: Final = frozenset({b"NCCL", b"RCCL"})
# name in ENUM_NSYS_EVENT_TYPE -> the number where that table lacks
_RANGE_TYPES: Final = {
    b"NvtxPushPopRange": 59,
    b"NvtxStartEndRange": 60,
    b"NvtxtPushPopRange": 70,
    b"NvtxtStartEndRange": 71,
}
_OTHER_TYPES: Final = {
    b"NvtxMark": 34,
    b"NvtxtMark": 65,
    b"NvtxCategory": 33,
    b"NvtxDomainCreate": 75,
    b"NvtxDomainDestroy": 76,
}
_QUERIES: Final = (b"cudaEventQuery", b"cuEventQuery")
_NOT_READY: Final = 600  # cudaErrorNotReady, CUDA_ERROR_NOT_READY
_BACKWARD: Final = "Backward"


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class ExportRanges(HostRows):
    """NVTX ranges of all processes in the order of the export. ``tid`` is the globalTid of the start.

    ``apart``: ended on another thread, so no part of the nesting on its own. ``nccl``: of NCCL's own domain.
    ``payload`` maps rows to what NCCL recorded with them.
    """

    nccl: Bool
    payload: dict[int, Payload]


@dataclass(frozen=True, slots=True, repr=False)
class ExportCalls(CallRows):
    """Runtime and driver calls in the order of the export; ``tid`` is a globalTid. ``not_ready``: a query that found
    work undone.
    """

    not_ready: Bool


@dataclass(frozen=True, slots=True, repr=False)
class ExportOverheads(OverheadRows):
    """The time that profiling itself took, as nsys records it, in no order; ``tid`` is a globalTid. These rows are no
    nodes.
    """

    tid: I64


def read_calls(export: Export, names: ByteTexts) -> ExportCalls:
    """Read calls by their names without version suffix. Those of no thread are counted."""
    columns = export.integers(RUNTIME, ("start", "end", "globalTid", "correlationId", "nameId"))
    name = name_column(export, names, RUNTIME, columns["nameId"], "nameId", call_name)
    start, end = export.spans(RUNTIME, columns)
    there = columns["globalTid"] != MISSING
    export.left_out["call without thread number"] += how_many(~there)
    query = np.isin(name, [names[text] for text in _QUERIES if text in names])
    if query.any():
        query &= export.integers(RUNTIME, ("returnValue",))["returnValue"] == _NOT_READY
    return take(ExportCalls(start, end, columns["globalTid"], name, columns["correlationId"], query), there)


def read_ranges(export: Export, names: ByteTexts) -> ExportRanges:
    """Read all ranges of all domains. Marks, ranges that never ended, and other events are counted by what they are."""
    columns = export.integers(NVTX, ("start", "end", "eventType", "globalTid", "endGlobalTid", "textId", "domainId"))
    recorded = export.rows("ENUM_NSYS_EVENT_TYPE", ("id", "name"))
    types = {**_RANGE_TYPES, **_OTHER_TYPES} | {name: number for number, name in recorded if isinstance(number, int)}
    kind = columns["eventType"]
    is_range = np.isin(kind, [types[name] for name in _RANGE_TYPES])
    of_thread = is_range & (columns["globalTid"] != MISSING)
    kept, left_out = of_thread & (columns["end"] != MISSING), export.left_out
    left_out["NVTX range without thread number"] += how_many(is_range & ~of_thread)
    left_out["NVTX range that did not end in the recording"] += how_many(of_thread & ~kept)
    marks = np.isin(kind, [types[b"NvtxMark"], types[b"NvtxtMark"]])
    left_out["NVTX mark"] += how_many(marks)
    left_out["NVTX metadata"] += how_many(~is_range & ~marks)
    rows = np.flatnonzero(kept)
    name, seq_id, operator = _texts(export, names, np.where(kept, columns["textId"], MISSING))
    unnamed = how_many(kept & (name == 0))
    if unnamed:
        export.warnings.append(f"{unnamed} NVTX ranges have no name in the export")
    payload = read_payloads(export, NVTX)
    usual = columns["start"][rows[0]] if len(rows) else 0  # the times of other rows do not matter
    start, end = export.spans(NVTX, {name: np.where(kept, columns[name], usual) for name in ("start", "end")})
    export.note_negative(NVTX, np.where(kept, columns["start"], 0))
    last_thread = columns["endGlobalTid"][rows]
    thread = columns["globalTid"][rows]
    place = np.cumsum(kept) - 1
    zero, no_text = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int32)
    return ExportRanges(
        start_ns=start[rows],
        end_ns=end[rows],
        tid=thread,
        name=name[rows],
        annotation=~operator[rows],
        order=np.arange(len(rows)),
        rf_id=zero,
        seq_id=seq_id[rows],
        fw_tid=zero,
        input_shapes=no_text,
        input_types=no_text,
        comm=NO_COMMS,
        apart=(last_thread != MISSING) & (last_thread != 0) & (last_thread != thread),
        nccl=_of_nccl(names, columns, types, name)[rows],
        payload={int(place[row]): one for row, one in payload.items() if kept[row]},
    )


def _texts(export: Export, names: ByteTexts, ids: I64) -> tuple[I32, I64, Bool]:
    """Return name, sequence number and whether it is an operator's, of every NVTX row: of what it spells out, or else
    of the string of its id.
    """
    name, seq_id, operator = np.zeros(len(ids), np.int32), np.full(len(ids), -1, np.int64), np.zeros(len(ids), np.bool_)
    for rows, texts, which in spelled(export, NVTX, ids, "text"):
        if texts:
            bare, numbers, operators = zip(*map(range_name, texts), strict=True)
            name[rows] = names.column(bare)[which]
            seq_id[rows] = np.array(numbers, np.int64)[which]
            operator[rows] = np.array(operators, np.bool_)[which]
    return name, seq_id, operator


def _of_nccl(names: ByteTexts, columns: Columns, types: dict[bytes, int], name: I32) -> Bool:
    """Select the ranges of domains that are called NCCL, or whose name was cut away; never of the default domain.

    Domain ids are per process, and the row that names one may be missing.
    """
    domain, kind = columns["domainId"], columns["eventType"]
    out: Bool = (domain != DEFAULT_DOMAIN) & (domain != MISSING)
    other_name = ~np.isin(name, [0, *(names.get(text, 0) for text in _NCCL_DOMAINS)])
    process = columns["globalTid"] & PID_MASK
    for row in np.flatnonzero(out & (kind == types[b"NvtxDomainCreate"]) & other_name).tolist():
        out &= ~((domain == domain[row]) & (process == process[row]))
    return out


def forward_backward(ranges: ExportRanges, strings: Sequence[str]) -> FlowRows:
    """Find the forward operator of each backward operator by the numbers that ``emit_nvtx`` writes; ``tid`` columns are
    globalTids.

    As Kineto's flows: from the forward operator with the number that started last before, to the inner of the two
    backward rows.
    """
    is_engine = fits(AUTOGRAD_ENGINE, strings)
    is_backward = np.array([_BACKWARD in text for text in strings], np.bool_)
    rows = np.flatnonzero((ranges.seq_id >= 0) & ~ranges.annotation & ~is_engine[ranges.name])
    back = is_backward[ranges.name[rows]]
    forward, backward = rows[~back], rows[back]
    start_ns, thread = ranges.start_ns, ranges.tid
    backward = backward[np.lexsort((start_ns[backward], ranges.seq_id[backward], thread[backward] & PID_MASK))]
    keys, asked = ((thread[of] & PID_MASK, ranges.seq_id[of]) for of in (forward, backward))
    source = last_before(keys, start_ns[forward], asked, start_ns[backward] + 1)
    backward, forward = backward[source >= 0], forward[source[source >= 0]]
    return FlowRows(thread[forward], start_ns[forward], thread[backward], start_ns[backward])


def read_overheads(export: Export, names: ByteTexts) -> ExportOverheads:
    """Read what profiling took. Rows without thread or with a time that is none are not read: they say nothing."""
    none = EMPTY
    parts = [ExportOverheads(none, none, none.astype(np.int32), none)]
    for table in filter(export.has, _OVERHEADS):
        columns = export.integers(table, ("start", "end", "globalTid", "nameId"))
        name = name_column(export, names, table, columns["nameId"], "nameId", call_name)
        start, end, thread = columns["start"], columns["end"], columns["globalTid"]
        good = (thread != MISSING) & (np.abs(start) < MAX_NS) & (np.abs(end) < MAX_NS) & (start < end)
        parts.append(take(ExportOverheads(start + export.epoch_ns, end + export.epoch_ns, name, thread), good))
    return concat(*parts)
