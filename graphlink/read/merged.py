"""A Kineto trace into which those of several ranks were merged (SGLang does it), taken apart again.

Numbers repeat in it: correlations, streams, and devices where each process sees its own alone. So no number joins its
rows with a rank, but the mark of their process (``[TP00-DP01] 83``), else their place in the file: mergers write one
recording behind the other.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from graphlink.errors import SeveralRanks
from graphlink.model import Trace
from graphlink.process import gc_paused
from graphlink.read.columns import MARK
from graphlink.read.kineto import KinetoRows
from graphlink.read.kineto_rows import CALL, DEVICE, HOST, TABLE_OF, Event
from graphlink.read.stream import BLOCK_BYTES, Block, open_array

_NEXT: Final = "\0"  # is no process


class _Apart:
    """The rows of each rank so far, by the mark or else the process that it has. Rows of devices without a mark are of
    the process whose host row was read last.
    """

    def __init__(self, path: str) -> None:
        self.ranks: dict[str, KinetoRows] = defaultdict(lambda: KinetoRows(path, flows=True))
        self.last = ""
        self.turns = 0  # changes from one process to another
        self.by_place = False  # rows of devices have no mark

    def add(self, block: Block[Event]) -> None:
        ranks = [self._rank_of(row) for row in block.rows]
        following = self.last
        for at in reversed(range(len(ranks))):  # names belong to what comes behind them
            following = ranks[at] = following if ranks[at] == _NEXT else ranks[at]
        for rank in dict.fromkeys(ranks):
            own = [at for at, other in enumerate(ranks) if other == rank]
            self.ranks[rank].add(Block([block.rows[at] for at in own], [block.index[at] for at in own], [], {}))
        self.ranks[self.last].add(Block([], [], [], block.bad))

    def _rank_of(self, row: Event) -> str:
        process, table = "" if row.pid is None else str(row.pid), TABLE_OF.get(row.cat or "")
        mark, on_host = MARK.match(process), process and table in (HOST, CALL)
        otherwise = _NEXT if row.ph == "M" or not (self.last or table == DEVICE) else self.last
        rank = mark[0].rstrip() if mark else process if on_host or process in self.ranks else otherwise
        if on_host and rank != self.last:
            self.last, self.turns = rank, self.turns + 1
        self.by_place |= not mark and table == DEVICE
        return rank

    def told(self) -> dict[str, KinetoRows] | None:
        """Return the ranks, by mark or in the order of the file; None where nothing tells of which some rows are."""
        ranks = {name: rows for name, rows in self.ranks.items() if rows.workers or rows.parts[CALL].count}
        if any(part.count for name, rows in self.ranks.items() if name not in ranks for part in rows.parts.values()):
            return None
        calls, ops = ([rows.parts[table].seen("correlation") for rows in ranks.values()] for table in (CALL, DEVICE))
        joined = ([np.count_nonzero(np.isin(ids, by)) for by in calls] for ids in ops)  # of each rank, by calls of each
        if self.by_place and (
            self.turns != len(ranks)
            or not all(map(len, calls))
            or any(max(counts) > counts[k] for k, counts in enumerate(joined))
        ):
            return None
        in_marks = {name: [*map(int, re.findall(r"\d+", name))] if name.startswith("[") else [] for name in ranks}
        return {name: ranks[name] for name in sorted(ranks, key=in_marks.__getitem__)}


def read_merged(path: str | Path, problem: SeveralRanks, *, block_bytes: int = BLOCK_BYTES) -> list[Trace]:
    """Return the trace of each rank in the file at ``path``: in the order of the numbers in marks, else in that of the
    file. As ``read_kineto``, which raised ``problem``; no trace has a rank, as the merged one tells of one at most, nor
    a number of ranks that are fewer. One pass; memory is that of the columns of all.

    Raises:
        SeveralRanks: the ``problem``, where nothing tells of which rank some rows are.
    """
    with gc_paused(), open_array(path, ("traceEvents",), block_bytes) as array:
        apart = _Apart(str(path))
        for block in array.blocks(Event):
            apart.add(block)
    ranks = apart.told()
    if ranks is None:
        raise problem
    said = f"one of {len(ranks)} recordings that were merged into one file: that of "
    return [
        replace(
            trace,
            rank=None,
            world_size=trace.world_size if (trace.world_size or 0) >= len(ranks) else None,
            mended={**trace.mended, "merged-ranks": 1},
            warnings=(*trace.warnings, said + name),
        )
        for name, trace in ((name, rows.trace(array)) for name, rows in ranks.items())
    ]
