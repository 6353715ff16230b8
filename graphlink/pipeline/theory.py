"""What a run had to lose by its schedule, and what unequal stages, transfers and the rest added.

The orders of a run are played (a) with all stages at the mean of their medians, (b) with each stage at its own, (c) with the transfers
too; (d) is the run as measured. The bubble (p x makespan - work) of (a) is the schedule's, (b) - (a) the imbalance of the stages,
(c) - (b) communication, (d) - (c) the rest: jitter, host, collectives. The parts add up to the measured bubble, to the ns; a negative
one stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphlink.pipeline.forms import rates
from graphlink.pipeline.measured import Measured
from graphlink.pipeline.order import UNKNOWN, Order
from graphlink.pipeline.recognise import Recognised
from graphlink.pipeline.records import Definitions, Parts, Step, Theory
from graphlink.pipeline.simulate import Timed, Times, simulate


def theory(recognised: Recognised, measured: Measured, steps: Sequence[Step]) -> Theory | None:
    """Definitions of (a) and the split, over the recognised steps that ``steps`` has; None without a schedule or such a step.

    Three simulations for each kind of step (microbatches, fused backwards), so linear in the actions of a step, not of the run.
    """
    bounds = {step.number: step for step in steps}
    there = [played for played in recognised.steps if played.step in bounds]
    if recognised.schedule == UNKNOWN or not there:
        return None
    known: dict[bytes, Rebuilt] = {}
    rebuilt = []
    for played in there:
        key = b"".join(column.tobytes() for order in played.orders for column in (order.phase, order.stage, order.microbatch))
        if key not in known:
            known[key] = rebuild(played.orders, measured)
        rebuilt.append(known[key])
    equal, own, moved = (
        sum(part) for part in zip(*((k.equal.bubble_ns, k.own.bubble_ns, k.moved.bubble_ns) for k in rebuilt), strict=True)
    )
    bubble = sum(_measured_bubble_ns(bounds[played.step]) for played in there)
    parts = Parts(schedule_ns=equal, imbalance_ns=own - equal, communication_ns=moved - own, rest_ns=bubble - moved, measured_ns=bubble)
    return Theory(definitions([one.equal for one in rebuilt]), parts)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A step played three times: (a) equal stages, (b) own medians, (c) own medians and transfers."""

    equal: Timed
    own: Timed
    moved: Timed


def rebuild(orders: Sequence[Order], measured: Measured) -> Rebuilt:
    """Timelines of a step in the orders of the schedule."""
    times = measured.times
    none = np.zeros_like(times.forward_ns)
    still = replace(times, forward_ns=none, backward_ns=none)
    return Rebuilt(simulate(orders, equal_stages(measured)), simulate(orders, still), simulate(orders, times))


def equal_stages(measured: Measured) -> Times:
    """Every virtual stage takes the mean of the medians of those that ran the phase, rounded to ns; transfers take none."""
    medians, seen = measured.times.duration_ns, measured.seen
    mean = np.rint(np.where(seen, medians, 0).sum(axis=1) / np.maximum(seen.sum(axis=1), 1)).astype(np.int64)
    none = np.zeros_like(measured.times.forward_ns)
    return Times(np.repeat(mean[:, None], medians.shape[1], axis=1), none, none)


def definitions(timed: Sequence[Timed]) -> Definitions:
    """Of simulated steps. ``bubble_ratio_ideal`` is bubble time / ideal time as simulated: on equal stages without transfers
    (p - 1) / (v m) for GPipe, 1F1B and interleaved, for which Megatron gives that form, and true for the others too."""
    work = sum(sum(one.work_ns) for one in timed)
    ratio = sum(one.bubble_ns for one in timed) / work if work else None
    return rates([one.makespan_ns for one in timed], [one.work_ns for one in timed], [one.own_ns for one in timed], ratio)


def _measured_bubble_ns(step: Step) -> int:
    return int(len(step.work_ns) * (step.end_ns - step.start_ns) - sum(step.work_ns))
