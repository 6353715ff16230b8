"""The pipeline of a run in the outputs of all runs: columns of the nodes of a rank, and rows of the timeline.

Columns are the range of each device op, and the idle time before it. In ``timeline.perfetto-trace`` each stage has a
row of its ranges and one of its bubbles (docs/timeline.md). They are a part of the file like that of a rank, and
``timeline.join`` puts it before theirs. Times are those of the run's common clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.causes import NAMES, OF_STAGES, Cause
from graphlink.graph_model import Column, Graph, NodeKind
from graphlink.model import EMPTY, I32, I64, NOWHERE, U8
from graphlink.perfetto import packets as perfetto
from graphlink.perfetto.packets import Arg, Process, Track
from graphlink.perfetto.slices import flat, lanes
from graphlink.pipeline.file import CAUSES
from graphlink.pipeline.panels import row_label
from graphlink.pipeline.records import Idle, Pass, Ranges, RunPipeline, StageRun
from graphlink.ranks.records import AlignedClock
from graphlink.spans import continued
from graphlink.tables import MOST, concat, numbered_rows, take


@dataclass(frozen=True, slots=True)
class RankPipeline:
    """The part of a pipeline that the files of one rank show: its ranges with their stages, and its idle time.

    ``recorded``: as in ``RunPipeline``.
    """

    run: StageRun
    idle: Idle
    recorded: I64

    def ranges_of(self, given: I32) -> I32:
        """Return, for ranges as ``stage_run`` counts them, those of ``run``; ``NOWHERE`` where they are of a step that
        is left out.
        """
        at = np.searchsorted(self.recorded, given)
        return np.where(np.append(self.recorded, MOST)[at] == given, at, NOWHERE).astype(np.int32)


def rank_pipeline(pipeline: RunPipeline | None, rank: int) -> RankPipeline | None:
    """Return a rank's part; None where ``rank`` is no part of it."""
    if pipeline is None or rank not in pipeline.ranks:
        return None
    place = pipeline.ranks.index(rank)
    return RankPipeline(
        pipeline.runs[place],
        take(pipeline.idle, pipeline.idle.rank == rank),
        pipeline.recorded[place],
    )


def columns(
    graph: Graph, of_device: I32, run: StageRun, idle: Idle, clock: AlignedClock | None = None
) -> dict[str, Column]:
    """Return the range of each device op, and the idle time of its stage before it with what most of that was. O(n log
    n).

    ``of_device``: the range of ``run`` of each device row, ``NOWHERE`` for none. Delays have no columns. ``clock``: how
    the graph's clock becomes that of ``run`` and ``idle``, where it is another.
    """
    op = graph.nodes_of(NodeKind.DEVICE_OP)
    which = of_device[graph.row[op]]
    working, at = op[which != NOWHERE], which[which != NOWHERE]

    def known(value: I64) -> Column:
        return Column.of(working, value[at], value[at] != NOWHERE)

    r = run.ranges
    return {
        "pipeline_stage": known(r.stage),
        "pipeline_microbatch": known(r.microbatch),
        "pipeline_chunk": known(r.chunk),
        "pipeline_phase": Column.of(working, r.phase[at], texts=tuple(p.name for p in Pass)),
        **_bubbles(graph, working, idle, run.rank, clock),
    }


def _bubbles(graph: Graph, working: I64, idle: Idle, rank: int, clock: AlignedClock | None) -> dict[str, Column]:
    """Return the columns of the first of the nodes ``working`` after each idle time of their stage."""
    own = np.flatnonzero((idle.rank == rank) & (idle.cause != Cause.OPTIMIZER_SYNC))
    if not len(own) or not len(working):
        return {}
    end, length, held = _whole(idle, own)
    starts = graph.start_ns[working] + graph.epoch_ns
    if clock is not None:
        starts = clock.of(starts)
    order = np.argsort(starts, kind="stable")
    found = np.searchsorted(starts[order], end)
    hit = np.append(starts[order], MOST)[found] == end
    node, length, held = working[order[found[hit]]], length[hit], held[hit]
    return {
        "bubble_before_ns": Column.of(node, length, length > 0),
        "bubble_cause": Column.of(node, held, length > 0, NAMES[: len(OF_STAGES)]),
    }


def _whole(idle: Idle, own: I64) -> tuple[I64, I64, U8]:
    """Join the idle intervals of one rank that touch: where each ends, its length, and the cause of its longest
    piece.
    """
    start, end = idle.start_ns[own], idle.end_ns[own]
    first, last = continued(start, end, idle.rank[own])
    longest = np.lexsort((end - start, np.repeat(first, last - first + 1)))[last]
    return end[last], end[last] - start[first], idle.cause[own][longest]


PROCESS: Final = "pipeline"
NUMBER: Final = -1  # in place of a rank: tracks and sequences of the last number that perfetto.RANKS allows
_NONE: Final = EMPTY


def trace_of(pipeline: RunPipeline) -> perfetto.PerfettoTrace:
    """Return rows, slices and their arguments: the ranges rank by rank, then all idle intervals. O(n log n)."""
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
    return [
        Arg("busy_ns", every, ranges.busy_ns),
        *(Arg.known(name, every, getattr(ranges, name)) for name in ("stage", "chunk", "microbatch", "step")),
        Arg.known("device_ops", every, ranges.device_ops, 0),
        Arg("rule", every, every, rules),
    ]


def _idle_args(idle: Idle, first: int) -> list[Arg]:
    said = (
        np.flatnonzero(np.array([bool(text) for text in idle.texts], np.bool_)[idle.evidence]) if idle.texts else _NONE
    )
    return [
        Arg.known("step", first + np.arange(len(idle.step)), idle.step),
        Arg("evidence", first + said, idle.evidence[said], idle.texts),
    ]
