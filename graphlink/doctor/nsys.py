"""Gaps of an nsys export, by its tables and by what it records of how it was made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from graphlink.doctor.records import Finding, if_any
from graphlink.model import Communication, Linked
from graphlink.read.nsys.file import Export, open_export
from graphlink.read.nsys.numbering import Numbering
from graphlink.read.nsys.ranges import NVTX
from graphlink.read.nsys.report import cut_window

_GRAPH_ROW: Final = "CUDA graph"  # begins the name that the reader gives to a row of a whole graph


def export_lacking(path: Path, linked: Linked, comm: Communication, numbering: Numbering | None) -> Iterator[Finding]:
    """Report what the export lacks for one (process, device) of it.

    Raises:
        InputError: it cannot be read.
    """
    trace = linked.trace
    ops, orphans = len(trace.device.start_ns), sum(linked.orphans.values())
    with open_export(path) as export:
        if not len(trace.host.start_ns):
            yield Finding("nsys-no-nvtx", figures={"calls": len(trace.calls.start_ns), "ops": ops})
        cut = cut_window(export)
        if cut:
            yield Finding("nsys-cut", orphans / max(ops, 1), {"orphans": orphans, "ops": ops}, told=tuple(cut))
        comms = len(comm.device_row)
        if comms and not _has_payloads(export):
            yield Finding("nsys-no-blobs", sum(comm.unknown.values()) / comms, {"comms": comms})
        if not export.epoch_ns:
            yield Finding("nsys-no-session-time", 0.0)
    whole = np.array([s.startswith(_GRAPH_ROW) for s in trace.strings], np.bool_)
    yield from if_any("nsys-graphs-whole", {"ops": int(np.count_nonzero(whole[trace.device.name]))}, ops)
    if numbering is not None and numbering.world_size is None and (len(numbering.ranks) > 1 or comms):
        yield Finding("nsys-rank-by-order", 0.0)
    odd = tuple(text for text in trace.warnings if text not in cut)
    if odd:
        yield Finding("nsys-odd-rows", 0.0, told=odd)


def _has_payloads(export: Export) -> bool:
    return any(blobs for _, blobs in export.texts(NVTX, "binaryData", kind="blob"))
