"""The strip of a run on its page: what each GPU was busy with and why it was idle, over time."""

from __future__ import annotations

from typing import Final

import numpy as np

from graphlink.gpu.busy import BINS, KEYS, LEVELS
from graphlink.gpu.records import DeviceTime
from graphlink.gpu.table import MOST_LANES, idle_percent
from graphlink.model import F64, I64
from graphlink.page.found import Found
from graphlink.page.parts import Section, Strip
from graphlink.page.path import strip_cells
from graphlink.report.summary import Rank

MOST_MARKS: Final = 100  # steps of a rank: more lines would hide what lies below them
MOST_CELLS: Final = 12_000  # of all lanes together: more would be a page that opens slowly


def run_over_time(found: Found) -> Section | None:
    """Return the section; None where no GPU was recorded."""
    devices = [(rank, gpu) for rank in found.ranks for gpu in rank.gpu if gpu.over_time]
    whole = sum(len(rank.gpu) for rank in found.ranks)
    if not devices:
        return None
    most = sorted(devices, key=lambda pair: -idle_percent(pair[0]))[:MOST_LANES]
    shown = [pair for pair in devices if pair in most]
    placed = [_span(found, rank, gpu) for rank, gpu in shown]
    first = min(start for start, _ in placed)
    placed = [(start - first, end - first) for start, end in placed]  # floats would not hold times since 1970
    length_ns = max(end for _, end in placed)
    cells = min(BINS, MOST_CELLS // len(shown))
    edges = np.linspace(0, length_ns, cells + 1)
    parts = {
        (lane, KEYS.index(key)): _resampled(levels, *placed[lane], edges)
        for lane, (_, gpu) in enumerate(shown)
        for key, levels in gpu.over_time.items()
    }
    some = f", the {len(shown)} most idle of {whole} GPUs" if len(shown) < whole else ""
    says = (
        "From left to right the time of the run. The height of a colour shows for which part of the moment the GPU did "
        "so: busy time above, idle time by its cause below it."
    )
    marks = [
        [found.run_ns(rank.rank, step.start_ns) - first for step in rank.steps] if len(rank.steps) <= MOST_MARKS else []
        for rank, _ in shown
    ]
    if any(marks):
        says += " Lines mark where steps began."
    return Section(
        "time",
        "The run over time",
        [
            Strip(
                "run-strip",
                f"What each GPU did, and why it was idle{some}",
                says,
                [f"rank {rank.rank}" + f", GPU {gpu.device}" * (len(rank.gpu) > 1) for rank, gpu in shown],
                length_ns,
                cells,
                strip_cells(parts, KEYS, cells),
                marks,
            )
        ],
    )


def _span(found: Found, rank: Rank, gpu: DeviceTime) -> tuple[int, int]:
    """Return from when to when a device was recorded, on the clock of the run, or of the rank where that is unknown."""
    lead = next((sum(one.offset_ns) // 2 for one in rank.clock.devices if one.device == gpu.device), 0)
    start, end = gpu.from_ns - lead, gpu.to_ns - lead
    return found.run_ns(rank.rank, start), found.run_ns(rank.rank, end)


def _resampled(levels: str, start_ns: int, end_ns: int, edges: F64) -> I64:
    """Return the time in ns of each cell between ``edges``; ``levels``: of bins from ``start_ns`` to ``end_ns``."""
    shares = np.array([LEVELS.index(level) for level in levels]) / (len(LEVELS) - 1)
    so_far = np.append(0.0, np.cumsum(shares * (end_ns - start_ns) / len(levels)))
    at_edges = np.interp(edges, np.linspace(start_ns, end_ns, len(levels) + 1), so_far)
    return np.asarray(np.diff(np.rint(at_edges)), np.int64)
