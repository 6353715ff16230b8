"""Draws steps whose actions take what recorded ones took, and between which a rank does what it did.

The first of the forwards, or backwards, of a stage in a step is told from the others: its backward makes the gradients
to which the others add. Between two actions a rank sends, posts receives and returns to its schedule, which takes time
even where no input is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import F64, I64, NOWHERE, Bool
from graphlink.pipeline.records import Pass, Ranges
from graphlink.pipeline.schedules import Order
from graphlink.pipeline.simulate import PHASES, ActionTimes, Timed, inputs, simulate
from graphlink.pipeline.theory import Measured
from graphlink.tables import turns

MOST_DRAWS: Final = 32
MOST_ACTIONS: Final = 200_000  # of all draws


@dataclass(frozen=True, slots=True)
class Habits:
    """How the actions of a recording went. ``varied``: by phase, of the first ones of a stage in a step, then of the
    others, what each took in multiples of the median of its stage. ``gap_ns``: by phase, of an action whose result
    stays on its rank, then of one whose result another rank receives, the median time to the rank's next action, of
    those that waited for no input."""

    varied: tuple[tuple[F64, F64], ...]
    gap_ns: I64


def habits(measured: Measured) -> Habits:
    """Measure them over all recognised steps. O(n log n)."""
    first, others = ([_varied(one, measured, first) for one in measured.played] for first in (True, False))
    by_phase = [
        tuple(np.concatenate([one[phase] for one in ranks]) for ranks in (first, others)) for phase in range(PHASES)
    ]
    return Habits(tuple((a if len(a) else b, b if len(b) else a) for a, b in by_phase), _gaps(measured))


def _varied(one: Ranges, measured: Measured, first: bool) -> list[F64]:
    """Return by phase what each action of a rank took in multiples of the median of its stage; where that is 0 none."""
    median = measured.times.duration_ns[one.phase, one.stage]
    mine = (median > 0) & ((turns(one.phase, one.stage, one.step) == 0) == first)
    return [
        one.busy_ns[at] / median[at] for at in (np.flatnonzero(mine & (one.phase == phase)) for phase in range(PHASES))
    ]


def _gaps(measured: Measured) -> I64:
    out = np.zeros((PHASES, 2), np.int64)
    found = [_gaps_of_step(measured, step) for step in range(len(measured.recognised.steps))]
    if not found:
        return out
    phase, sends, gap_ns = (np.concatenate(columns) for columns in zip(*found, strict=True))
    for of in range(PHASES):
        for sent in (0, 1):
            mine = gap_ns[(phase == of) & (sends == sent)]
            mine = mine if len(mine) else gap_ns[phase == of]
            out[of, sent] = round(float(np.median(mine))) if len(mine) else 0
    return out


def _gaps_of_step(measured: Measured, at: int) -> tuple[I64, Bool, I64]:
    """Return, of each action whose successor on its rank waited for no input, phase, whether it sends, and the time to
    the successor.
    """
    step = measured.recognised.steps[at]
    number = [
        np.cumsum([0, *(len(one.rows[rank]) for one in measured.recognised.steps)]) for rank in range(len(step.rows))
    ]
    rows = [slice(first[at], first[at + 1]) for first in number]
    mine = [(one.start_ns[of], one.end_ns[of]) for one, of in zip(measured.played, rows, strict=True)]
    start_ns, end_ns = (np.concatenate(columns) for columns in zip(*mine, strict=True))
    first = np.cumsum([0, *map(len, step.orders)])
    producer, lag_ns = inputs(step.orders, first, measured.times)
    came_ns = np.where(producer == NOWHERE, np.iinfo(np.int64).min, end_ns[producer] + lag_ns)
    before = np.setdiff1d(np.arange(first[-1] - 1), first[1:-1] - 1)
    before = before[came_ns[before + 1] <= end_ns[before]]
    phase = np.concatenate([order.phase for order in step.orders])[before]
    return phase, _sends(first, producer)[before], np.maximum(start_ns[before + 1] - end_ns[before], 0)


def _sends(first: I64, producer: I64) -> Bool:
    """Tell whether the result of each action goes to another rank."""
    rank = np.repeat(np.arange(len(first) - 1), np.diff(first))
    out = np.zeros(len(producer), np.bool_)
    out[producer[(producer != NOWHERE) & (rank[producer] != rank)]] = True
    return out


def drawn(orders: Sequence[Order], times: ActionTimes, known: Habits) -> list[Timed]:
    """Simulate steps whose actions vary as the recorded ones of their phase did, by a fixed seed; one step where they
    do not vary.
    """
    first = np.cumsum([0, *map(len, orders)])
    phase, sends = np.concatenate([order.phase for order in orders]), _sends(first, inputs(orders, first, times)[0])
    gaps_ns = np.split(known.gap_ns[phase, sends.astype(np.int64)], first[1:-1])
    varied = [_whole(known, of) for of in range(PHASES)]
    if all((factors == 1).all() for pair in varied for factors in pair):
        return [simulate(orders, times, gaps_ns=gaps_ns)]
    random = np.random.default_rng(0)
    draws = min(MOST_DRAWS, max(1, MOST_ACTIONS // max(1, len(phase))))
    return [
        simulate(orders, times, [_each_ns(one, times, varied, random) for one in orders], gaps_ns) for _ in range(draws)
    ]


def _whole(known: Habits, phase: int) -> tuple[F64, F64]:
    """Return how the backwards vary that were recorded, for a phase that was not."""
    for other in (phase, Pass.B, Pass.I, Pass.W, Pass.F):
        if len(known.varied[other][0]):
            return known.varied[other]
    return np.ones(1), np.ones(1)


def _each_ns(order: Order, times: ActionTimes, varied: Sequence[tuple[F64, F64]], random: np.random.Generator) -> I64:
    out = times.duration_ns[order.phase, order.stage].astype(np.float64)
    first = turns(order.phase, order.stage) == 0
    for phase, factors in enumerate(varied):
        for of, which in zip(factors, (first, ~first), strict=True):
            mine = which & (order.phase == phase)
            out[mine] *= random.choice(of, int(np.count_nonzero(mine)))
    return np.rint(out).astype(np.int64)
