"""Schedules computed on the measured times of an earlier run: what they would give, and their picture above the recorded one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import structs

from graphlink.errors import OutputError, UsageError
from graphlink.pipeline.file import Bubbles, Compared, Other, idle_of, ranges_of, replica
from graphlink.pipeline.panels import Marks, Panel, computed, recorded
from graphlink.pipeline.recognise import Recognised, recognise
from graphlink.pipeline.schedules import SPLIT, Order, default_chunks, named
from graphlink.pipeline.simulate import Timed
from graphlink.pipeline.svg import heading, picture
from graphlink.pipeline.theory import Measured, WhatIf, measure, rebuild, what_if

MOST_ACTIONS: Final = 100_000  # of a rank in a step; more would keep memory and clock busy to no use
_MOST_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class Wanted:
    """The schedule asked for; None: as recorded, or what the schedule has."""

    schedule: str
    microbatches: int | None
    chunks: int | None
    input_share: float | None


def offer(file: Bubbles, wanted: Wanted) -> WhatIf:
    """What the schedule would give on the times of ``file``; of several pipelines side by side, on those of the first.

    Raises:
        UsageError: there is no such schedule for these numbers, or a rank would have more than ``MOST_ACTIONS``.
    """
    measured = _one(file).measured
    microbatches = file.pipeline.microbatches if wanted.microbatches is None else wanted.microbatches
    try:
        schedule = named(wanted.schedule)
        chunks = default_chunks(schedule, measured.chunks) if wanted.chunks is None else wanted.chunks
        actions = microbatches * chunks * (3 if schedule in SPLIT else 2)
        if actions > MOST_ACTIONS:
            asked = f"{microbatches:,} microbatches with {chunks:,} chunk{'s' * (chunks != 1)}"
            raise UsageError(f"--schedule {schedule}: {asked} are {actions:,} actions a rank, at most {MOST_ACTIONS:,}")
        given = what_if(wanted.schedule, microbatches, measured, chunks=wanted.chunks, input_share=wanted.input_share)
    except ValueError as problem:
        raise UsageError(f"--schedule {wanted.schedule}: {problem}", todo="see graphlink bubbles --help") from None
    return replace(given, assumed=(*_of_several(file), *given.assumed))


@dataclass(frozen=True, slots=True)
class _One:
    """The first pipeline of a run, its ranks in the order of their stages."""

    recognised: Recognised
    measured: Measured


def _one(file: Bubbles) -> _One:
    every = ranges_of(file)
    ranges = [every[i] for i in replica(file)]
    recognised = recognise(ranges)
    return _One(recognised, measure(ranges, recognised, waits_inside=not file.definition.sees_device))


def _of_several(file: Bubbles) -> tuple[str, ...]:
    """Which pipeline counts, where there are several."""
    count, mine = len({stage.replica for stage in file.stages}), [str(file.stages[i].rank) for i in replica(file)]
    shown = ", ".join(mine[:_MOST_NAMED]) + (", ..." if len(mine) > _MOST_NAMED else "")
    return (f"times are those of one pipeline of {count} side by side: ranks {shown}, in the order of their stages",) if count > 1 else ()


def compared(file: Bubbles, given: WhatIf) -> Compared:
    """Return ``file`` with what the other schedule gives."""
    other = Other(
        schedule=given.schedule,
        stages=given.stages,
        microbatches=given.microbatches,
        chunks=given.chunks,
        makespan_ns=given.timed.makespan_ns,
        activations=list(given.activations),
        assumed=list(given.assumed),
        **structs.asdict(given.rates),
    )
    return Compared(**structs.asdict(file), what_if=other)


def compare(file: Bubbles, other: WhatIf | None, path: Path) -> None:
    """Draws ``other``, or else the schedule of the run itself, above what was recorded.

    Raises:
        UsageError, OutputError
    """
    orders: Sequence[Order]
    if other is None:
        one = _one(file)
        if not one.recognised.steps:
            raise UsageError("--compare: the schedule of this run is unknown", todo="name one with --schedule")
        orders = one.recognised.steps[0].orders
        timed, caption = (
            rebuild(orders, one.measured).equal,
            f"{file.pipeline.schedule} itself: all stages at their mean times, no transfers",
        )
    else:
        orders, timed = other.orders, other.timed
        caption = f"{other.schedule} on the measured times, {other.microbatches} microbatches, computed"
    count = len({stage.replica for stage in file.stages})
    whole = caption if count == 1 else f"{caption}, one pipeline of {count}"
    above = _drawn(orders, timed, whole, [file.stages[i].rank for i in replica(file)])
    ranks = [stage.rank for stage in file.stages]
    panels = recorded(ranks, ranges_of(file), idle_of(file), file.steps)
    drawing = picture(heading(file.pipeline), [above, *panels])
    try:
        path.write_bytes(drawing)
    except OSError as problem:
        raise OutputError(
            f"cannot be written: {problem.strerror or problem}", path=path, todo="make room, or name another file with --compare"
        ) from None


def _drawn(orders: Sequence[Order], timed: Timed, caption: str, ranks: Sequence[int]) -> Panel:
    """Return a computed step as a panel of the picture; ``ranks``: what its rows are called."""
    none = np.zeros(0, np.int64)
    phase, stage, microbatch = (np.concatenate([none, *(getattr(o, name) for o in orders)]) for name in ("phase", "stage", "microbatch"))
    row = np.repeat(np.arange(len(orders)), [len(order.stage) for order in orders])
    chunk = np.concatenate([none, *(np.unique(order.stage, return_inverse=True)[1].reshape(-1) for order in orders)])
    start, end = np.concatenate([none, *timed.start_ns]), np.concatenate([none, *timed.end_ns])
    boxes = Marks(row, phase, start, end, stage, chunk, microbatch, np.zeros_like(row), ("",))
    return computed(caption, tuple(f"rank {rank}" for rank in ranks), boxes)
