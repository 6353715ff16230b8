"""What nsys says that profiling itself took: ``CUPTI_ACTIVITY_KIND_OVERHEAD`` and ``PROFILER_OVERHEAD``. These rows are no nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I32, I64, OverheadRows
from graphlink.read.columns import MAX_NS, MISSING
from graphlink.read.nsys.device import CUPTI
from graphlink.read.nsys.file import Export
from graphlink.read.nsys.text import Names, call_name, name_column

OVERHEAD: Final = (CUPTI + "OVERHEAD", "PROFILER_OVERHEAD")


@dataclass(frozen=True, slots=True)
class Overheads:
    """Rows of all processes, in no order; ``thread`` is a globalTid. Times absolute."""

    start_ns: I64
    end_ns: I64
    thread: I64
    name: I32

    def of(self, process: int) -> OverheadRows:
        """Those of the threads of a process (a globalPid), sorted by start."""
        mine = np.flatnonzero(self.thread & ~0xFFFFFF == process)
        mine = mine[np.lexsort((self.end_ns[mine], self.start_ns[mine]))]
        return OverheadRows(self.start_ns[mine], self.end_ns[mine], self.name[mine])


def read_overheads(export: Export, names: Names) -> Overheads:
    """Rows without thread or with a time that is none are passed over: they say nothing."""
    parts: list[tuple[I64, I64, I64, I32]] = []
    for table in OVERHEAD:
        if not export.has(table):
            continue
        columns = export.integers(table, ("start", "end", "globalTid", "nameId"))
        name = name_column(export, names, table, columns, "nameId", call_name)
        start, end, thread = columns["start"], columns["end"], columns["globalTid"]
        good = np.flatnonzero((thread != MISSING) & (np.abs(start) < MAX_NS) & (np.abs(end) < MAX_NS) & (start < end))
        parts.append((start[good] + export.epoch_ns, end[good] + export.epoch_ns, thread[good], name[good]))
    none = np.zeros(0, np.int64)
    parts.append((none, none, none, none.astype(np.int32)))
    starts, ends, threads, codes = zip(*parts, strict=True)
    return Overheads(np.concatenate(starts), np.concatenate(ends), np.concatenate(threads), np.concatenate(codes))
