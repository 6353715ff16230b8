"""The pipeline in ``timeline.perfetto-trace``: of each stage a row of its ranges and one of its bubbles
(docs/timeline.md).

It is a part of the file like that of a rank, and ``timeline.join`` puts it before theirs. Times are those of the run's
common clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO, Final

import numpy as np

from graphlink.model import I32, NOWHERE
from graphlink.perfetto import packets as perfetto
from graphlink.perfetto.packets import Arg, Process, Track
from graphlink.perfetto.slices import flat, lanes
from graphlink.pipeline.file import CAUSES
from graphlink.pipeline.panels import row_label
from graphlink.pipeline.records import Idle, Pass, Ranges, RunPipeline
from graphlink.tables import concat, numbered_rows

PROCESS: Final = "pipeline"
NUMBER: Final = -1  # in place of a rank: tracks and sequences of the last number that perfetto.RANKS allows
_NONE: Final = np.zeros(0, np.int64)


def write(out: BinaryIO, pipeline: RunPipeline) -> int:
    """Write the pipeline's part of the timeline, a whole trace by itself; return its size in bytes. Cost: O(n
    log n).
    """
    return sum(out.write(block) for block in perfetto.encode(trace_of(pipeline)))


def trace_of(pipeline: RunPipeline) -> perfetto.PerfettoTrace:
    """Return rows, slices and their arguments: the ranges rank by rank, then all idle intervals."""
    ranges, idle = concat(*(run.ranges for run in pipeline.runs)), pipeline.idle
    rules = [run.ranges.rules[code] for run in pipeline.runs for code in run.ranges.rule.tolist()]
    tracks, track = _rows(pipeline)
    names, range_name = _range_names(ranges)
    start_ns, end_ns = np.append(ranges.start_ns, idle.start_ns), np.append(ranges.end_ns, idle.end_ns)
    zero_ns = min(int(start_ns.min(initial=0)), 0)  # the file knows no times before 0
    name = np.concatenate([range_name, len(names) + idle.cause.astype(np.int32)])
    args = [*_range_args(ranges, rules), *_idle_args(idle, len(range_name))]
    return perfetto.PerfettoTrace(
        rank=NUMBER,
        epoch_ns=0,
        processes=(Process(PROCESS),),
        tracks=tracks,
        names=[*names, *CAUSES],
        slices=flat(track, start_ns - zero_ns, end_ns - zero_ns, name),
        args=tuple(args),
    )


def _rows(pipeline: RunPipeline) -> tuple[tuple[Track, ...], I32]:
    """Return the rows, and for each range, then for each idle interval, its row."""
    tracks: list[Track] = []
    of_range, of_idle = [_NONE], np.zeros(len(pipeline.idle.rank), np.int64)
    for rank, run in zip(pipeline.ranks, pipeline.runs, strict=True):
        mine, label = run.ranges, row_label(rank, run.ranges.stage)
        lane = lanes(mine.start_ns, mine.end_ns, np.zeros(len(mine.phase), np.int64))  # ranges may run at the same time
        of_range.append(len(tracks) + lane)
        names = [*[label] * (int(lane.max(initial=0)) + 1), f"bubbles of {label}"]
        tracks += [Track(0, name, order=len(tracks) + k) for k, name in enumerate(names)]
        of_idle[pipeline.idle.rank == rank] = len(tracks) - 1
    return tuple(tracks), np.concatenate([*of_range, of_idle]).astype(np.int32)


def _range_names(ranges: Ranges) -> tuple[list[str], I32]:
    """Return the names, phase and microbatch, and which each range has."""
    used, code = numbered_rows(ranges.phase, ranges.microbatch)
    names = [Pass(phase).name + ("" if number == NOWHERE else str(number)) for phase, number in used.tolist()]
    return names, code.astype(np.int32)


def _range_args(ranges: Ranges, rules: Sequence[str]) -> list[Arg]:
    every = np.arange(len(rules))
    args = [Arg("busy_ns", every, ranges.busy_ns)]
    for name, absent in (
        ("stage", NOWHERE),
        ("chunk", NOWHERE),
        ("microbatch", NOWHERE),
        ("step", NOWHERE),
        ("device_ops", 0),
    ):
        value = getattr(ranges, name)
        args.append(Arg(name, np.flatnonzero(value != absent), value[value != absent]))
    return [*args, Arg("rule", every, every, rules)]


def _idle_args(idle: Idle, first: int) -> list[Arg]:
    there = np.flatnonzero(idle.step != NOWHERE)
    said = (
        np.flatnonzero(np.array([bool(text) for text in idle.texts], np.bool_)[idle.evidence]) if idle.texts else _NONE
    )
    return [
        Arg("step", first + there, idle.step[there]),
        Arg("evidence", first + said, idle.evidence[said], idle.texts),
    ]
