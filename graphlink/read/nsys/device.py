"""The device work in an nsys export: kernels, copies, memsets and CUDA graphs, of all processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I32, I64, Bool, DeviceKind, DeviceRows, Gpu
from graphlink.read.columns import MISSING, ByteTexts
from graphlink.read.devices import sm_share
from graphlink.read.nsys.file import PID_MASK, Columns, Export
from graphlink.read.nsys.text import name_column
from graphlink.tables import codes, comm_table, concat, how_many, numbered_rows, numbered_values, take

CUPTI: Final = "CUPTI_ACTIVITY_KIND_"
KERNEL: Final = CUPTI + "KERNEL"
GRAPH: Final = CUPTI + "GRAPH_TRACE"
RUNTIME: Final = CUPTI + "RUNTIME"
NO_COMMS: Final = comm_table({})
_IDS: Final = (
    "start",
    "end",
    "deviceId",
    "contextId",
    "streamId",
    "graphId",
    "graphNodeId",
    "correlationId",
    "globalPid",
)
_GRID: Final = ("gridX", "gridY", "gridZ")
_MOST_BLOCKS: Final = 1 << 20  # along an axis: more than any device has SMs

_MIGRATIONS: Final = ("UVM HtoD", "UVM DtoH", "UVM DtoD")
# Kineto's words, by the last part of the names in ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND; the numbers where those
# tables lack.
_COPIES: Final = (
    "Unknown",
    "HtoD",
    "DtoH",
    "HtoA",
    "AtoH",
    "AtoA",
    "AtoD",
    "DtoA",
    "DtoD",
    "HtoH",
    "PtoP",
    *_MIGRATIONS,
)
_MEMORY: Final = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class ExportWork(DeviceRows):
    """Device rows of all processes, in no order; ``process`` is a globalPid, ``stream`` as recorded: unique within its
    ``context``.
    """

    process: I64
    context: I64


def read_work(export: Export, names: ByteTexts, gpus: Sequence[Gpu] = ()) -> ExportWork:
    """Read all device work. Rows that belong to no stream of a process, and migrations of unified memory, are counted.

    A graph that was launched while nodes were not traced is one row of GRAPH_TRACE, and stands for its kernels.
    """
    parts = [_kernels(export, names, gpus), _copies(export, names), _memsets(export, names)]
    return concat(*parts, _graphs(export, names, parts))


def process_of(thread: I64) -> I64:
    """Return the globalPid of each globalTid."""
    return np.where(thread == MISSING, MISSING, thread & PID_MASK)


def is_number(column: I64) -> Bool:
    """Tell whether it can be the number of a device, context or stream. CUPTI has 32 bits for each."""
    return (column >= 0) & (column < 1 << 32)


def context_of(column: I64) -> I64:
    return np.where(is_number(column), column, 0)


def _work(
    export: Export,
    table: str,
    columns: Columns,
    name: I32,
    kind: DeviceKind,
    keep: Bool | None = None,
    gpus: Sequence[Gpu] = (),
) -> ExportWork:
    start, end = export.spans(table, columns)
    nothing = np.zeros(len(start), np.int64)
    placed = np.ones(len(start), np.bool_) if keep is None else keep.copy()
    for column, what in (("deviceId", "device"), ("streamId", "stream"), ("globalPid", "process")):
        without = placed & ((columns[column] == MISSING) if column == "globalPid" else ~is_number(columns[column]))
        export.left_out[f"device row without {what}"] += how_many(without)
        placed &= ~without
    work = ExportWork(
        start_ns=start,
        end_ns=end,
        process=columns["globalPid"],
        device=columns["deviceId"],
        context=context_of(columns["contextId"]),
        stream=columns["streamId"],
        graph=np.maximum(columns["graphId"], 0),
        graph_node=np.maximum(columns["graphNodeId"], 0),
        correlation=columns["correlationId"],
        name=name,
        kind=np.full(len(start), kind, np.uint8),
        bytes=columns.get("bytes", nothing),
        sm_share=sm_share(columns.get("blocks", nothing), columns["deviceId"], gpus),
        lane=np.zeros(len(start), np.int32),
        comm=NO_COMMS,
    )
    return take(work, placed)


def _kernels(export: Export, names: ByteTexts, gpus: Sequence[Gpu]) -> ExportWork:
    spelled = "demangledName" if export.has(KERNEL, "demangledName") else "shortName"
    columns = export.integers(KERNEL, (*_IDS, spelled, *_GRID))
    name = name_column(export, names, KERNEL, columns[spelled], spelled)
    x, y, z = (np.minimum(columns[axis], _MOST_BLOCKS) for axis in _GRID)
    columns["blocks"] = np.maximum(x, 0) * np.where(y > 0, y, 1) * np.where(z > 0, z, 1)
    return _work(export, KERNEL, columns, name, DeviceKind.KERNEL, gpus=gpus)


def _copies(export: Export, names: ByteTexts) -> ExportWork:
    table = CUPTI + "MEMCPY"
    columns = export.integers(table, (*_IDS, "bytes", "copyKind", "srcKind", "dstKind"))
    copy, memory = _words(export, "ENUM_CUDA_MEMCPY_OPER", _COPIES), _words(export, "ENUM_CUDA_MEM_KIND", _MEMORY)
    ends, which_ends = numbered_rows(columns["srcKind"], columns["dstKind"])
    copies, which = numbered_rows(columns["copyKind"], which_ends)
    said = []
    for number, k in copies.tolist():
        words = [memory.get(end, "Unknown") for end in ends[k].tolist() if end != MISSING]
        said.append(f"Memcpy {copy.get(number, 'Unknown')}" + (f" ({' -> '.join(words)})" if len(words) == 2 else ""))
    migrations = np.isin(columns["copyKind"], [number for number, word in copy.items() if word in _MIGRATIONS])
    export.left_out["migrations of unified memory"] += how_many(migrations)
    return _work(export, table, columns, names.strings.column(said)[which], DeviceKind.MEMCPY, ~migrations)


def _memsets(export: Export, names: ByteTexts) -> ExportWork:
    table = CUPTI + "MEMSET"
    columns = export.integers(table, (*_IDS, "bytes", "memKind"))
    memory = _words(export, "ENUM_CUDA_MEM_KIND", _MEMORY)
    kinds, which = numbered_values(columns["memKind"])
    said = ["Memset" if kind == MISSING else f"Memset ({memory.get(kind, 'Unknown')})" for kind in kinds.tolist()]
    return _work(export, table, columns, names.strings.column(said)[which], DeviceKind.MEMSET)


def _graphs(export: Export, names: ByteTexts, others: list[ExportWork]) -> ExportWork:
    """Return rows of whole graphs, without those whose nodes are recorded as well: they would count twice."""
    columns = export.integers(GRAPH, _IDS)
    ids, which = numbered_values(columns["graphId"])
    name = names.strings.column(["CUDA graph" if i == MISSING else f"CUDA graph {i}" for i in ids.tolist()])[which]
    process = np.concatenate([columns["globalPid"], *(w.process for w in others)])
    launch = np.concatenate([columns["correlationId"], *(w.correlation for w in others)])
    code, count = np.where(launch > 0, codes(process, launch) + 1, 0), len(which)
    whole = ~np.isin(code[:count], np.setdiff1d(code[count:], [0]))
    export.left_out["rows of CUDA graphs whose nodes are recorded"] += how_many(~whole)
    return _work(export, GRAPH, columns, name, DeviceKind.KERNEL, whole)


def _words(export: Export, table: str, words: tuple[str, ...]) -> dict[int, str]:
    """Return {number: word}: as the export's own table spells its numbers, which were others in early versions; else as
    since 2021.

    Of ``CUDA_MEMOPR_MEMORY_KIND_DEVICE_STATIC`` the longest ending that is a known word counts: ``DEVICE_STATIC``.
    """
    known = {word.upper().replace(" ", "_"): word for word in words}
    told = {}
    for number, name in export.rows(table, ("id", "name")):
        text = name.decode("ascii", "replace") if isinstance(name, bytes) else ""
        word = max((end for end in known if f"_{text}".endswith(f"_{end}")), key=len, default=None)
        if isinstance(number, int) and word is not None:
            told[number] = known[word]
    return told or dict(enumerate(words))
