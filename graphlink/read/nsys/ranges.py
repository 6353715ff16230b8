"""NVTX ranges, API calls and what profiling itself took of an nsys export, of all processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I64, Bool, CallRows, FlowRows, HostRows, OverheadRows
from graphlink.read.columns import MAX_NS, MISSING
from graphlink.read.nsys.device import CUPTI, NO_COMMS, RUNTIME
from graphlink.read.nsys.file import PID_MASK, Columns, Export
from graphlink.read.nsys.nccl import Payload, read_payloads
from graphlink.read.nsys.text import ExportNames, RangeNames, call_name, dense, name_column
from graphlink.tables import concat, take

NVTX: Final = "NVTX_EVENTS"
_OVERHEADS: Final = (CUPTI + "OVERHEAD", "PROFILER_OVERHEAD")
DEFAULT_DOMAIN: Final = 0
_NCCL_DOMAINS: Final = frozenset({b"NCCL", b"RCCL"})
# name in ENUM_NSYS_EVENT_TYPE -> the number where that table lacks
_RANGE_TYPES: Final = {b"NvtxPushPopRange": 59, b"NvtxStartEndRange": 60, b"NvtxtPushPopRange": 70, b"NvtxtStartEndRange": 71}
_OTHER_TYPES: Final = {b"NvtxMark": 34, b"NvtxtMark": 65, b"NvtxCategory": 33, b"NvtxDomainCreate": 75, b"NvtxDomainDestroy": 76}
_QUERIES: Final = (b"cudaEventQuery", b"cuEventQuery")
_NOT_READY: Final = 600  # cudaErrorNotReady, CUDA_ERROR_NOT_READY
_BACKWARD: Final = b"Backward"
_ENGINE: Final = b"autograd::engine::evaluate_function"


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
    """Runtime and driver calls in the order of the export; ``tid`` is a globalTid. ``not_ready``: a query that found work undone."""

    not_ready: Bool


@dataclass(frozen=True, slots=True, repr=False)
class ExportOverheads(OverheadRows):
    """What nsys says that profiling itself took, in no order; ``tid`` is a globalTid. These rows are no nodes."""

    tid: I64


def read_calls(export: Export, names: ExportNames) -> ExportCalls:
    """Read calls by their names without version suffix. Those of no thread are counted."""
    columns = export.integers(RUNTIME, ("start", "end", "globalTid", "correlationId", "nameId"))
    name = name_column(export, names, RUNTIME, columns, "nameId", call_name)
    start, end = export.spans(RUNTIME, columns)
    there = columns["globalTid"] != MISSING
    export.left_out["call without thread number"] += int(np.count_nonzero(~there))
    correlation = np.where(columns["correlationId"] == MISSING, 0, columns["correlationId"])
    query = np.isin(name, [names[text] for text in _QUERIES if text in names])
    if query.any():
        query &= export.integers(RUNTIME, ("returnValue",))["returnValue"] == _NOT_READY
    return take(ExportCalls(start, end, columns["globalTid"], name, correlation, query), there)


def read_ranges(export: Export, names: ExportNames) -> ExportRanges:
    """Read all ranges of all domains. Marks, ranges that never ended, and other events are counted by what they are."""
    columns = export.integers(NVTX, ("start", "end", "eventType", "globalTid", "endGlobalTid", "textId", "domainId"))
    types = _types(export)
    kind = columns["eventType"]
    is_range = np.isin(kind, [types[name] for name in _RANGE_TYPES])
    kept = is_range & (columns["globalTid"] != MISSING) & (columns["end"] != MISSING)
    _count_others(export, columns, types, is_range)
    rows = np.flatnonzero(kept)
    texts = _RangeTexts(export, names, columns, kept)
    payload = read_payloads(export, NVTX)
    usual = columns["start"][rows[0]] if len(rows) else 0  # the times of other rows do not matter
    start, end = export.spans(NVTX, {name: np.where(kept, columns[name], usual) for name in ("start", "end")})
    export.note_negative(NVTX, np.where(kept, columns["start"], 0))
    last_thread = columns["endGlobalTid"][rows]
    thread = columns["globalTid"][rows]
    place = np.full(len(kept), -1, np.int64)
    place[rows] = np.arange(len(rows))
    zero, no_text = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int32)
    return ExportRanges(
        start_ns=start[rows],
        end_ns=end[rows],
        tid=thread,
        name=texts.name[rows],
        annotation=~texts.operator[rows],
        order=np.arange(len(rows)),
        rf_id=zero,
        seq_id=texts.seq[rows],
        fw_tid=zero,
        input_shapes=no_text,
        input_types=no_text,
        comm=NO_COMMS,
        apart=(last_thread != MISSING) & (last_thread != 0) & (last_thread != thread),
        nccl=_of_nccl(export, columns, types)[rows],
        payload={int(place[row]): one for row, one in payload.items() if place[row] >= 0},
    )


class _RangeTexts:
    """Name, sequence number and whether it is an operator, of every NVTX row; plain strings fill ``text``, registered ones ``textId``."""

    def __init__(self, export: Export, names: ExportNames, columns: Columns, kept: Bool):
        count = len(kept)
        self.name = np.zeros(count, np.int32)
        self.seq = np.full(count, -1, np.int64)
        self.operator = np.zeros(count, np.bool_)
        plain = np.zeros(count, np.bool_)
        read = RangeNames().read
        place = 0
        for page in export.texts(NVTX, "text"):
            there = [text for text in page if text is not None]
            rows = np.arange(place, place + len(page))
            if len(there) < len(page):
                rows = rows[[text is not None for text in page]]
            self._fill(names, rows, list(map(read, there)))
            plain[rows] = True
            place += len(page)
        registered = np.flatnonzero(~plain & kept & (columns["textId"] != MISSING))
        ids, which = dense(columns["textId"][registered])
        self._fill(names, registered, [read(text or b"") for text in export.strings(ids)], which)
        unnamed = int(np.count_nonzero(kept & (self.name == 0)))
        if unnamed:
            export.warnings.append(f"{unnamed} NVTX ranges have no name in the export")

    def _fill(self, names: ExportNames, rows: I64, found: list[tuple[bytes, int, bool]], which: I64 | slice = slice(None)) -> None:
        if found:
            texts, numbers, operators = zip(*found, strict=True)
            self.name[rows] = names.codes(texts)[which]
            self.seq[rows] = np.array(numbers, np.int64)[which]
            self.operator[rows] = np.array(operators, np.bool_)[which]


def _types(export: Export) -> dict[bytes, int]:
    told = {name: number for number, name in export.rows("ENUM_NSYS_EVENT_TYPE", ("id", "name")) if isinstance(number, int)}
    return {name: told.get(name, number) for name, number in {**_RANGE_TYPES, **_OTHER_TYPES}.items()}


def _count_others(export: Export, columns: Columns, types: dict[bytes, int], is_range: Bool) -> None:
    left_out = export.left_out
    left_out["NVTX range without thread number"] += int(np.count_nonzero(is_range & (columns["globalTid"] == MISSING)))
    open_ended = is_range & (columns["globalTid"] != MISSING) & (columns["end"] == MISSING)
    left_out["NVTX range that did not end in the recording"] += int(np.count_nonzero(open_ended))
    marks = np.isin(columns["eventType"], [types[b"NvtxMark"], types[b"NvtxtMark"]])
    left_out["NVTX mark"] += int(np.count_nonzero(marks))
    left_out["NVTX metadata"] += int(np.count_nonzero(~is_range & ~marks))


def _of_nccl(export: Export, columns: Columns, types: dict[bytes, int]) -> Bool:
    """Ranges of domains that are called NCCL, or whose name was cut away; never of the default domain.

    Domain ids are per process, and the row that names one may be missing.
    """
    domain, kind = columns["domainId"], columns["eventType"]
    out: Bool = (domain != DEFAULT_DOMAIN) & (domain != MISSING)
    named = np.flatnonzero(out & (kind == types[b"NvtxDomainCreate"]))
    if not len(named):
        return out
    process = columns["globalTid"] & PID_MASK
    for row, text in zip(named.tolist(), _texts_at(export, named), strict=True):
        if text is not None and text not in _NCCL_DOMAINS:
            out &= ~((domain == domain[row]) & (process == process[row]))
    return out


def _texts_at(export: Export, rows: I64) -> list[bytes | None]:
    out: list[bytes | None] = []
    place = 0
    if not export.has(NVTX, "text"):
        return [None] * len(rows)
    for page in export.texts(NVTX, "text"):
        out += [page[row - place] for row in rows[(rows >= place) & (rows < place + len(page))].tolist()]
        place += len(page)
    return out


def forward_backward(ranges: ExportRanges, names: ExportNames) -> FlowRows:
    """Find the forward operator of each backward operator by the numbers that ``emit_nvtx`` writes; ``tid`` columns are globalTids.

    As Kineto's flows: from the forward operator with the number that started last before, to the inner of the two backward rows.
    """
    spelled = list(names)
    is_backward = np.array([_BACKWARD in text and not text.startswith(_ENGINE) for text in spelled], np.bool_)
    engine = np.array([text.startswith(_ENGINE) for text in spelled], np.bool_)
    numbered = (ranges.seq_id >= 0) & ~ranges.annotation & ~engine[ranges.name]
    rows = np.flatnonzero(numbered)
    back = is_backward[ranges.name[rows]]
    process = ranges.tid[rows] & PID_MASK
    order = np.lexsort((back, ranges.start_ns[rows], ranges.seq_id[rows], process))
    rows, back, process = rows[order], back[order], process[order]
    position = np.arange(len(rows))
    last = np.maximum.accumulate(np.where(back, -1, position)) if len(rows) else position
    target = np.flatnonzero(back & (last >= 0))
    source = last[target]
    same = (ranges.seq_id[rows[source]] == ranges.seq_id[rows[target]]) & (process[source] == process[target])
    forward, backward = rows[source[same]], rows[target[same]]
    thread, start_ns = ranges.tid, ranges.start_ns
    return FlowRows(thread[forward], start_ns[forward], thread[backward], start_ns[backward])


def read_overheads(export: Export, names: ExportNames) -> ExportOverheads:
    """Read what profiling took. Rows without thread or with a time that is none are passed over: they say nothing."""
    none = np.zeros(0, np.int64)
    parts = [ExportOverheads(none, none, none.astype(np.int32), none)]
    for table in filter(export.has, _OVERHEADS):
        columns = export.integers(table, ("start", "end", "globalTid", "nameId"))
        name = name_column(export, names, table, columns, "nameId", call_name)
        start, end, thread = columns["start"], columns["end"], columns["globalTid"]
        good = (thread != MISSING) & (np.abs(start) < MAX_NS) & (np.abs(end) < MAX_NS) & (start < end)
        parts.append(take(ExportOverheads(start + export.epoch_ns, end + export.epoch_ns, name, thread), good))
    return concat(*parts)
