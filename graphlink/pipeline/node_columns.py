"""Columns of a rank's nodes from the pipeline of the run: the range of each device op, and the idle time before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.causes import NAMES, OF_STAGES, Cause
from graphlink.graph_model import Column, Graph, NodeKind
from graphlink.model import I32, I64, NOWHERE, U8
from graphlink.pipeline.records import Idle, Pass, RunPipeline, StageRun
from graphlink.ranks.records import AlignedClock
from graphlink.tables import take


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
        if not len(self.recorded):
            return np.full(len(given), NOWHERE, np.int32)
        at = np.minimum(np.searchsorted(self.recorded, given), len(self.recorded) - 1)
        return np.where(self.recorded[at] == given, at, NOWHERE).astype(np.int32)


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
    op = np.flatnonzero(graph.kind == NodeKind.DEVICE_OP)
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
    hit = found < len(order)
    hit[hit] = starts[order[found[hit]]] == end[hit]
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
    new = np.append(True, start[1:] != end[:-1])
    first = np.flatnonzero(new)
    group = np.cumsum(new) - 1
    last = np.append(first[1:] - 1, len(own) - 1)
    longest = np.lexsort((end - start, group))[np.append(first[1:] - 1, len(own) - 1)]
    return end[last], end[last] - start[first], idle.cause[own][longest]
