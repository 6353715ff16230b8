"""The strip of a run on its page: what each GPU was busy with and why it was idle, over time; without GPUs, what the
host of each rank did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from graphlink.gpu.busy import BINS, HOST_KEYS, KEYS, LEVELS
from graphlink.gpu.records import DeviceTime
from graphlink.gpu.table import MOST_LANES, idle_percent, replay_words
from graphlink.model import F64, I64
from graphlink.page.found import Found
from graphlink.page.parts import Section, Strip
from graphlink.page.path import strip_cells
from graphlink.report.summary import Rank

MOST_MARKS: Final = 100  # steps of a rank: more lines would hide what lies below them
MOST_CELLS: Final = 12_000  # of all lanes together: more would be a page that opens slowly
_KEYS: Final = (*HOST_KEYS, *KEYS)
_ON_GPUS: Final = (
    "What each GPU did, and why it was idle",
    "From left to right the time of the run. The height of a colour shows for which part of the moment the GPU did "
    "so: busy time above, idle time by its cause below it.",
)
_ON_HOSTS: Final = (
    "What the host of each rank did",
    "From left to right the time of the run. The height of a colour shows for which part of the moment the host did "
    "so: ops of any of its threads above; below, while no op ran, messages that were awaited, Python between ops, and "
    "time that nothing recorded explains.",
)


class _Lane(NamedTuple):
    rank: Rank
    name: str
    over_time: Mapping[str, str]
    start_ns: int
    end_ns: int


def run_over_time(found: Found) -> Section | None:
    """Return the section; None where the summary tells no time of any GPU or host."""
    lanes = [_lane(found, rank, gpu) for rank in found.ranks for gpu in rank.gpu if gpu.over_time]
    whole, on_gpus = sum(len(rank.gpu) for rank in found.ranks), found.has_gpus
    if not on_gpus:
        hosts, whole = [rank for rank in found.ranks if rank.host_over_time], len(found.ranks)
        lanes = [_lane(found, rank, None) for rank in hosts]
    if not lanes:
        return None
    most = sorted(lanes, key=lambda lane: -idle_percent(lane.rank))[:MOST_LANES]
    shown = [lane for lane in lanes if lane in most]
    first = min(lane.start_ns for lane in shown)
    placed = [(lane.start_ns - first, lane.end_ns - first) for lane in shown]  # floats would not hold times since 1970
    length_ns = max(end for _, end in placed)
    cells = min(BINS, MOST_CELLS // len(shown))
    edges = np.linspace(0, length_ns, cells + 1)
    parts = {
        (k, _KEYS.index(key)): _resampled(levels, *placed[k], edges)
        for k, lane in enumerate(shown)
        for key, levels in lane.over_time.items()
    }
    marks = [
        [found.run_ns(rank.rank, step.start_ns) - first for step in rank.steps] if len(rank.steps) <= MOST_MARKS else []
        for rank in (lane.rank for lane in shown)
    ]
    title, says = _ON_GPUS if on_gpus else _ON_HOSTS
    most_idle = f", the {len(shown)} most idle of {whole} GPUs" if on_gpus else f", {len(shown)} of {whole} ranks"
    if any(marks):
        says += " Lines mark where steps began."
    return Section(
        "time",
        "The run over time",
        [
            Strip(
                "run-strip",
                title
                + most_idle * (len(shown) < whole)
                + replay_words(*(gpu for rank in found.ranks for gpu in rank.gpu)),
                says,
                [lane.name for lane in shown],
                length_ns,
                cells,
                strip_cells(parts, _KEYS, cells),
                marks,
            )
        ],
    )


def _lane(found: Found, rank: Rank, gpu: DeviceTime | None) -> _Lane:
    """Return what a device, else the host of a rank, did over time, and from when to when, on the clock of the run, or
    of the rank where that is unknown."""
    name, over_time, start_ns, end_ns = f"rank {rank.rank}", rank.host_over_time, 0, rank.replay.measured_ns
    if gpu is not None:
        lead_ns = next((sum(one.offset_ns) // 2 for one in rank.clock.devices if one.device == gpu.device), 0)
        name, over_time = name + f", GPU {gpu.device}" * (len(rank.gpu) > 1), gpu.over_time
        start_ns, end_ns = gpu.from_ns - lead_ns, gpu.to_ns - lead_ns
    return _Lane(rank, name, over_time or {}, found.run_ns(rank.rank, start_ns), found.run_ns(rank.rank, end_ns))


def _resampled(levels: str, start_ns: int, end_ns: int, edges: F64) -> I64:
    """Return the time in ns of each cell between ``edges``; ``levels``: of bins from ``start_ns`` to ``end_ns``."""
    shares = np.array([LEVELS.index(level) for level in levels]) / (len(LEVELS) - 1)
    so_far = np.append(0.0, np.cumsum(shares * (end_ns - start_ns) / len(levels)))
    at_edges = np.interp(edges, np.linspace(start_ns, end_ns, len(levels) + 1), so_far)
    return np.asarray(np.diff(np.rint(at_edges)), np.int64)
