"""What an nsys export lacks, by its tables and by what it says of how it was made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from graphlink.doctor.records import Finding, Kind, if_any
from graphlink.model import Communication, Linked
from graphlink.read.nsys.file import Export, open_export
from graphlink.read.nsys.places import Numbering
from graphlink.read.nsys.ranges import NVTX
from graphlink.read.nsys.report import cut_window

_EXPORT: Final = "nsys export --type sqlite --include-blobs=true REPORT.nsys-rep"
_GRAPH_ROW: Final = "CUDA graph"  # begins the name that the reader gives to a row of a whole graph

NO_NVTX = Kind(
    "nsys-no-nvtx",
    "lost",
    "no NVTX ranges of host ops",
    "no host ops: {calls} API calls stand alone, and {ops} device ops have no name of what launched them",
    "nsys profile --trace=cuda,nvtx, and with torch.autograd.profiler.emit_nvtx(): around the steps",
)
NO_BLOBS = Kind(
    "nsys-no-blobs",
    "lost",
    "the export holds no payloads of NCCL's ranges",
    "communicator, size and peer of {comms} communication ops are unknown: they are computation in the graph; ranks are numbered by file, "
    "process and device",
    _EXPORT + ", of a report with --trace=cuda,nvtx",
)
CUT = Kind(
    "nsys-cut",
    "lost",
    "the export is a window cut out of a longer one",
    "calls, event records and ranges around the window are missing: {orphans} of {ops} device ops have no launch",
    "the window at the recording: nsys profile --capture-range=cudaProfilerApi, and the export whole",
)
GRAPHS = Kind(
    "nsys-graphs-whole",
    "inferred",
    "{ops} launches of CUDA graphs are one row each",
    "kernels inside a graph are no nodes, and streams inside it are not seen",
    "nsys profile --cuda-graph-trace=node",
)
BY_ORDER = Kind(
    "nsys-rank-by-order",
    "inferred",
    "the export does not tell ranks",
    "they are numbered by the number after rank in the file's name, else by file, process and device",
    _EXPORT + " (NCCL's communicators tell ranks), or a file a rank, named run_rank3.sqlite",
)
NO_TIME = Kind(
    "nsys-no-session-time",
    "inferred",
    "the export does not say when its time 0 was",
    "times are those of the report, not of the day: ranks of several exports are not aligned but by collectives",
    "a whole export of nsys 2021 or newer: nsys export --type sqlite REPORT.nsys-rep",
)
ODD = Kind(
    "nsys-odd-rows",
    "note",
    "the export holds rows that are not as they should be",
    "they are read as said",
    "export again with the newest nsys: nsys export --type sqlite REPORT.nsys-rep",
)


def export_lacking(path: Path, linked: Linked, comm: Communication, numbering: Numbering | None) -> Iterator[Finding]:
    """What the export lacks for one (process, device) of it.

    Raises:
        InputError: it cannot be read.
    """
    trace = linked.trace
    ops, orphans = len(trace.device.start_ns), sum(linked.orphans.values())
    with open_export(path) as export:
        if not len(trace.host.start_ns):
            yield Finding(NO_NVTX, figures={"calls": len(trace.calls.start_ns), "ops": ops})
        cut = cut_window(export)
        if cut:
            yield Finding(CUT, orphans / max(ops, 1), {"orphans": orphans, "ops": ops}, told=tuple(cut))
        comms = len(comm.device_row)
        if comms and not _has_payloads(export):
            yield Finding(NO_BLOBS, sum(comm.unknown.values()) / comms, {"comms": comms})
        if not export.epoch_ns:
            yield Finding(NO_TIME, 0.0)
    whole = np.array([s.startswith(_GRAPH_ROW) for s in trace.strings], np.bool_)
    yield from if_any(GRAPHS, {"ops": int(np.count_nonzero(whole[trace.device.name]))}, ops)
    if numbering is not None and numbering.world_size is None and (len(numbering.ranks) > 1 or comms):
        yield Finding(BY_ORDER, 0.0)
    odd = tuple(text for text in trace.warnings if text not in cut)
    if odd:
        yield Finding(ODD, 0.0, told=odd)


def _has_payloads(export: Export) -> bool:
    return any(blobs for _, blobs in export.texts(NVTX, "binaryData", kind="blob"))
