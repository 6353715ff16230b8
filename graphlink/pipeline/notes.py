"""What the graph of a rank says of its pipeline: range and idle time before, by node."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.model import I32, I64, NOWHERE, U8, Bool, Graph, NodeKind
from graphlink.pipeline.records import Cause, Idle, StageRun
from graphlink.ranks.clocks import onto_run
from graphlink.ranks.records import Clock


@dataclass(frozen=True, slots=True)
class Notes:
    """One entry a node. ``phase``, ``stage``, ``microbatch`` and ``chunk`` are valid where ``in_range``; an optimizer has only the first.

    ``bubble_before_ns`` is 0 but on the first device op after idle time of its stage, and ``bubble_cause`` is what most of that was.
    """

    in_range: Bool
    phase: U8
    stage: I64
    microbatch: I64
    chunk: I64
    bubble_before_ns: I64
    bubble_cause: U8


def notes(graph: Graph, of_device: I32, run: StageRun, idle: Idle, clock: Clock | None = None) -> Notes:
    """``of_device``: the range of ``run`` of each device row, ``NOWHERE`` for none. Delays have no notes. O(n log n).

    ``clock``: how the graph's clock becomes that of ``run`` and ``idle``, where it is another.
    """
    count = len(graph.kind)
    op = np.flatnonzero(graph.kind == NodeKind.DEVICE_OP)
    which = np.full(count, NOWHERE, np.int64)
    which[op] = of_device[graph.row[op]]
    in_range = which != NOWHERE
    at = np.where(in_range, which, 0)
    r = run.ranges
    before, cause = np.zeros(count, np.int64), np.zeros(count, np.uint8)
    own = np.flatnonzero((idle.rank == run.rank) & (idle.cause != Cause.OPTIMIZER_SYNC))
    if len(own) and in_range.any():
        end, length, held = _whole(idle, own)
        working = np.flatnonzero(in_range)
        starts = graph.start_ns[working] + graph.epoch_ns
        if clock is not None:
            starts = onto_run(clock, starts)
        order = np.argsort(starts, kind="stable")
        found = np.searchsorted(starts[order], end)
        hit = found < len(order)
        hit[hit] = starts[order[found[hit]]] == end[hit]
        node = working[order[found[hit]]]
        before[node], cause[node] = length[hit], held[hit]

    def of(column: I64 | U8) -> I64:
        return np.where(in_range, column[at].astype(np.int64), NOWHERE) if len(column) else np.full(count, NOWHERE)

    return Notes(in_range, of(r.phase).astype(np.uint8), of(r.stage), of(r.microbatch), of(r.chunk), before, cause)


def _whole(idle: Idle, own: I64) -> tuple[I64, I64, U8]:
    """Idle intervals of one rank, pieces that touch put together: where each ends, its length, and the cause of its longest piece."""
    start, end = idle.start_ns[own], idle.end_ns[own]
    new = np.append(True, start[1:] != end[:-1])
    first = np.flatnonzero(new)
    group = np.cumsum(new) - 1
    last = np.append(first[1:] - 1, len(own) - 1)
    longest = np.lexsort((end - start, group))[np.append(first[1:] - 1, len(own) - 1)]
    return end[last], end[last] - start[first], idle.cause[own][longest]
