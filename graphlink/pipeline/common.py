"""A rank's part of a pipeline, brought onto what all ranks have in common: the run's clock, and one count of their communication."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from graphlink.model import I64, NOWHERE, CommKind
from graphlink.pipeline.records import UNTOLD, Exchanges, Holds, Spans, StageRun, StepSpans, Witness
from graphlink.ranks.clocks import onto_run
from graphlink.ranks.records import Clock, Meetings, RankComms


def on_run_clock(run: StageRun, clock: Clock) -> StageRun:
    """All times mapped by ``clock``. Order and disjointness stay; what rounding leaves empty goes."""
    if clock.offset_ns == 0 and clock.drift == 0:
        return run

    def at(own_ns: I64) -> I64:
        return onto_run(clock, own_ns)

    work, optimizer, holds, ex = run.work, run.optimizer, run.holds, run.exchanges
    worked, optimized, held = (at(s.start_ns) < at(s.end_ns) for s in (work, optimizer, holds))
    return replace(
        run,
        recorded_from_ns=int(at(np.array([run.recorded_from_ns], np.int64))[0]),
        ranges=replace(run.ranges, start_ns=at(run.ranges.start_ns), end_ns=at(run.ranges.end_ns)),
        work=StepSpans(at(work.start_ns)[worked], at(work.end_ns)[worked], work.step[worked]),
        optimizer=Spans(at(optimizer.start_ns)[optimized], at(optimizer.end_ns)[optimized]),
        exchanges=replace(ex, start_ns=at(ex.start_ns), end_ns=at(ex.end_ns)),
        holds=Holds(
            at(holds.start_ns)[held], at(holds.end_ns)[held], holds.cause[held], holds.exchange[held], holds.evidence[held], holds.texts
        ),
        witness=None if run.witness is None else _witness_at(run.witness, at),
    )


def _witness_at(witness: Witness, at: Callable[[I64], I64]) -> Witness:
    came_ns = witness.came_ns.copy()
    came_ns[came_ns != UNTOLD] = at(came_ns[came_ns != UNTOLD])
    return replace(witness, came_ns=came_ns)


def counted_alike(ex: Exchanges, comms: RankComms, meetings: Meetings, position: int) -> Exchanges:
    """``ex`` with the ordinals that its meetings have, so that recordings which begin apart still tell of the same operation.

    ``position``: of the rank in ``meetings.of_op``. What met nobody has an ordinal that no other rank has.
    """
    known = np.flatnonzero(np.isin(ex.kind, (CommKind.COLLECTIVE, CommKind.SEND, CommKind.RECV)) & (ex.group != NOWHERE))
    order = np.lexsort((ex.end_ns[known], ex.start_ns[known]))
    known = known[order]
    if len(known) != len(comms.start_ns) or not np.array_equal(ex.start_ns[known], comms.start_ns):
        return ex  # kernels beside those of the graph: each rank's own count is the best there is
    meeting = meetings.of_op[position].astype(np.int64)
    alone = -2 - ((position << 40) + np.arange(len(meeting)))
    ordinal = ex.ordinal.copy()
    ordinal[known] = np.where(meeting == NOWHERE, alone, meetings.turn[np.maximum(meeting, 0)] if len(meetings.turn) else alone)
    return replace(ex, ordinal=ordinal)
