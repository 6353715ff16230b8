"""What recorded actions took, first ones and others, and what lies between them, found in steps that were made of known
ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from graphlink.model import I64
from graphlink.pipeline.recognise import recognise
from graphlink.pipeline.records import Pass
from graphlink.pipeline.schedules import ActionTimes, Order, Timed, orders, simulate
from graphlink.pipeline.theory import measure
from graphlink.pipeline.what_if_schedule import drawn, habits
from tests.pipeline.made import recorded

TIMES = ActionTimes(np.array([[90, 110], [200, 240], [0, 0], [0, 0]], np.int64), np.array([30]), np.array([50]))
GAPS = {Pass.F: (4, 9), Pass.B: (2, 15)}  # after an action whose result stays, or goes to another rank


def true_step(made: Sequence[Order]) -> Timed:
    """A step whose first backward on each rank takes three quarters, and whose ranks send and post receives between two
    actions.
    """
    each: list[I64] = []
    gaps: list[I64] = []
    last = len(made) - 1
    for rank, order in enumerate(made):
        took = TIMES.duration_ns[order.phase, order.stage].copy()
        took[np.argmax(order.phase == Pass.B)] *= 3
        took[np.argmax(order.phase == Pass.B)] //= 4
        sends = np.where(order.phase == Pass.F, rank < last, rank > 0)
        each.append(took)
        gaps.append(
            np.array([GAPS[Pass(phase)][sent] for phase, sent in zip(order.phase, sends.astype(int), strict=True)])
        )
    return simulate(made, TIMES, each, gaps)


ALL = (("1F1B", 4), ("1F1B", 16), ("GPipe", 8))


@pytest.mark.parametrize(
    ("was", "had", "others"), [("1F1B", 8, ALL), ("1F1B", 4, ALL), ("GPipe", 6, (("GPipe", 3), ("GPipe", 12)))]
)
def test_other_schedules_and_microbatches_are_predicted_to_the_ns(
    was: str, had: int, others: Sequence[tuple[str, int]]
) -> None:
    """The first backward is faster, so more microbatches take longer in proportion; and an action costs its rank more
    than it takes.
    """
    made = orders(was, 2, had)
    ranges = recorded(made, true_step(made))
    measured = measure(ranges, recognise(ranges))
    known = habits(measured)
    for schedule, microbatches in others:
        other = orders(schedule, 2, microbatches)
        found = {one.makespan_ns for one in drawn(other, TIMES, known)}
        assert found == {true_step(other).makespan_ns}, (schedule, microbatches)


def test_one_microbatch_tells_of_the_others_too() -> None:
    made = orders("GPipe", 2, 1)
    ranges = recorded(made, true_step(made))
    known = habits(measure(ranges, recognise(ranges)))
    for first, others in known.varied:
        assert first is others or not len(first)
