"""Schedules computed on the measured times of an earlier run: what they would give, and their picture above the
recorded one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import structs

from graphlink.errors import OutputError, UsageError
from graphlink.pipeline.file import Bubbles, idle_of, ranges_of, replica
from graphlink.pipeline.panels import Marks, Panel, computed, recorded
from graphlink.pipeline.recognise import recognise
from graphlink.pipeline.records import Ranges
from graphlink.pipeline.schedules import AUTO, SEARCHED, Order, default_chunks, named, splits
from graphlink.pipeline.simulate import Timed, simulate
from graphlink.pipeline.step_time import step_time
from graphlink.pipeline.svg import picture
from graphlink.pipeline.theory import KEPT, Measured, Memory, PlayedSchedule, equal_stages, measure, what_if
from graphlink.records import first_few
from graphlink.tables import codes

MOST_ACTIONS: Final = 100_000  # of a rank in a step; more would keep memory and clock busy to no use
_MOST_NAMED: Final = 8


def offer(
    file: Bubbles,
    name: str,
    microbatches: int | None = None,
    chunks: int | None = None,
    input_share: float | None = None,
    of_1f1b: float | None = None,
    kept: float | None = None,
) -> PlayedSchedule:
    """Simulate what the schedule ``name`` would give on the times of ``file``, and its step; of several pipelines, on
    those of the first.

    None: as recorded, or what the schedule has. ``of_1f1b``, ``kept``: as in ``Memory``.

    Raises:
        UsageError: there is no such schedule for these numbers, or a rank would have more than ``MOST_ACTIONS``.
    """
    ranges, measured = _measured(file)
    microbatches = file.pipeline.microbatches if microbatches is None else microbatches
    try:
        schedule = named(name)
        pieces = default_chunks(schedule, measured.recognised.chunks) if chunks is None else chunks
        actions = microbatches * pieces * (3 if splits(schedule) else 2)
        if actions > MOST_ACTIONS:
            asked = f"{microbatches:,} microbatches with {pieces:,} chunk{'s' * (pieces != 1)}"
            raise UsageError(f"--schedule {schedule}: {asked} are {actions:,} actions a rank, at most {MOST_ACTIONS:,}")
        memory = _memory(schedule, of_1f1b, kept)
        found = what_if(schedule, microbatches, measured, chunks=pieces, input_share=input_share, memory=memory)
    except ValueError as problem:
        raise UsageError(f"--schedule {name}: {problem}", todo="see graphlink bubbles --help") from None
    step = step_time(measured, found, file.steps, [file.stages[i].rank for i in replica(file)], ranges)
    return found._replace(
        other=structs.replace(found.other, assumed=(*_of_several(file), *found.other.assumed), step=step)
    )


def _memory(schedule: str, of_1f1b: float | None, kept: float | None) -> Memory | None:
    """Return the memory that the options give a schedule; None for one that is not searched.

    Raises:
        UsageError: they are not for this schedule.
    """
    if of_1f1b is not None and schedule != AUTO:
        raise UsageError(f"--memory is for --schedule {AUTO}, not for {schedule}", todo="leave it away")
    if schedule not in SEARCHED:
        if kept is not None:
            raise UsageError(
                f"--weight-memory is for --schedule {', '.join(SEARCHED)}, not for {schedule}", todo="leave it away"
            )
        return None
    return Memory(SEARCHED[schedule] if of_1f1b is None else of_1f1b, KEPT if kept is None else kept)


def _measured(file: Bubbles) -> tuple[list[Ranges], Measured]:
    """Return the ranges of the first pipeline of a run, its ranks in the order of their stages, and what was measured
    of them.
    """
    every, mine = ranges_of(file), replica(file)
    ranges = [every[i] for i in mine]
    layers = tuple(tuple(file.stages[i].layers or ()) for i in mine)
    return ranges, replace(
        measure(ranges, recognise(ranges), waits_inside=not file.definition.sees_device), layers=layers
    )


def _of_several(file: Bubbles) -> tuple[str, ...]:
    """Describe which pipeline counts, where there are several."""
    count, mine = len({stage.replica for stage in file.stages}), [str(file.stages[i].rank) for i in replica(file)]
    shown = first_few(mine, _MOST_NAMED)
    return (
        (f"times are those of one pipeline of {count} side by side: ranks {shown}, in the order of their stages",)
        if count > 1
        else ()
    )


def compare(file: Bubbles, offered: PlayedSchedule | None, path: Path) -> None:
    """Draw ``offered``, or else the schedule of the run itself, above what was recorded.

    Raises:
        UsageError, OutputError
    """
    if offered is None:
        _, measured = _measured(file)
        if not measured.recognised.steps:
            raise UsageError("--compare: the schedule of this run is unknown", todo="name one with --schedule")
        orders = measured.recognised.steps[0].orders
        timed = simulate(orders, equal_stages(measured))
        caption = f"{file.pipeline.schedule} itself: all stages at their mean times, no transfers"
    else:
        other, orders, timed, _ = offered
        caption = f"{other.schedule} on the measured times, {other.microbatches} microbatches, computed"
    count = len({stage.replica for stage in file.stages})
    whole = caption if count == 1 else f"{caption}, one pipeline of {count}"
    above = _drawn(orders, timed, whole, [file.stages[i].rank for i in replica(file)])
    ranks = [stage.rank for stage in file.stages]
    panels = recorded(ranks, ranges_of(file), idle_of(file), file.steps)
    drawing = picture(file.pipeline, [above, *panels])
    try:
        path.write_bytes(drawing)
    except OSError as problem:
        raise OutputError(
            f"cannot be written: {problem.strerror or problem}",
            path=path,
            todo="make room, or name another file with --compare",
        ) from None


def _drawn(orders: Sequence[Order], timed: Timed, caption: str, ranks: Sequence[int]) -> Panel:
    """Return a computed step as a panel of the picture; ``ranks``: what its rows are called."""
    none = np.zeros(0, np.int64)
    phase, stage, microbatch = (
        np.concatenate([none, *(getattr(o, name) for o in orders)]) for name in ("phase", "stage", "microbatch")
    )
    row = np.repeat(np.arange(len(orders)), [len(order.stage) for order in orders])
    chunk = np.concatenate([none, *(codes(order.stage) for order in orders)])
    start, end = np.concatenate([none, *timed.start_ns]), np.concatenate([none, *timed.end_ns])
    boxes = Marks(row, phase, start, end, stage, chunk, microbatch, np.zeros_like(row), ("",))
    return computed(caption, tuple(f"rank {rank}" for rank in ranks), boxes)
