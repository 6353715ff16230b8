"""Schedules computed on the measured times of an earlier run: what they would give, and their picture above the recorded one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from graphlink.annotate.pipeline.measured import Measured, measure
from graphlink.annotate.pipeline.recognise import Recognised, recognise
from graphlink.annotate.pipeline.records import Definitions
from graphlink.annotate.pipeline.schedules import SPLIT, default_chunks, named
from graphlink.annotate.pipeline.theory import rebuild
from graphlink.annotate.pipeline.whatif import what_if
from graphlink.emit.bubbles import Bubbles
from graphlink.emit.bubbles_records import idle_of, ranges_of, replica, steps_of
from graphlink.emit.pipeline_panels import Boxes, Panel, computed, recorded
from graphlink.emit.pipeline_svg import heading, picture
from graphlink.errors import OutputError, UsageError
from graphlink.model import I64, U8

MOST_ACTIONS: Final = 100_000  # of a rank in a step; more would keep memory and clock busy to no use
_MOST_NAMED: Final = 8


class Order(Protocol):
    """What one rank runs in a step, one entry an action."""

    @property
    def phase(self) -> U8: ...
    @property
    def stage(self) -> I64: ...
    @property
    def microbatch(self) -> I64: ...


class Timed(Protocol):
    """Start and end of each action, from 0, one array a rank."""

    @property
    def start_ns(self) -> tuple[I64, ...]: ...
    @property
    def end_ns(self) -> tuple[I64, ...]: ...
    @property
    def makespan_ns(self) -> int: ...


class Played(Protocol):
    """A computed step; one order a rank."""

    @property
    def orders(self) -> Sequence[Order]: ...
    @property
    def timed(self) -> Timed: ...


class Offer(Played, Protocol):
    """What another schedule gives. ``activations``: the most a rank holds, of one microbatch in one rank's share of the model."""

    @property
    def schedule(self) -> str: ...
    @property
    def stages(self) -> int: ...
    @property
    def microbatches(self) -> int: ...
    @property
    def chunks(self) -> int: ...
    @property
    def definitions(self) -> Definitions: ...
    @property
    def activations(self) -> tuple[float, ...]: ...
    @property
    def assumed(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """The schedule asked for; None: as recorded, or what the schedule has."""

    schedule: str
    microbatches: int | None
    chunks: int | None
    input_share: float | None


def offer(file: Bubbles, wanted: Wanted) -> Offer:
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


@dataclass(frozen=True, slots=True)
class _Own:
    orders: Sequence[Order]
    timed: Timed


def own(file: Bubbles) -> Played:
    """The recorded schedule itself: equal stages, no transfers; of several pipelines side by side, the first.

    Raises:
        UsageError: it was not recognised.
    """
    one = _one(file)
    if not one.recognised.steps:
        raise UsageError("--compare: the schedule of this run is unknown", todo="name one with --schedule")
    orders = one.recognised.steps[0].orders
    return _Own(orders, rebuild(orders, one.measured).equal)


def compare(file: Bubbles, other: Offer | None, path: Path) -> None:
    """Draws ``other``, or else the schedule of the run itself, above what was recorded.

    Raises:
        UsageError, OutputError
    """
    if other is None:
        played, caption = own(file), f"{file.pipeline.schedule} itself: all stages at their mean times, no transfers"
    else:
        played, caption = other, f"{other.schedule} on the measured times, {other.microbatches} microbatches, computed"
    count = len({stage.replica for stage in file.stages})
    above = drawn(played, caption if count == 1 else f"{caption}, one pipeline of {count}", [file.stages[i].rank for i in replica(file)])
    ranks = [stage.rank for stage in file.stages]
    panels = recorded(ranks, ranges_of(file), idle_of(file), steps_of(file))
    drawing = picture(heading(file.pipeline), [above, *panels])
    try:
        path.write_bytes(drawing)
    except OSError as problem:
        raise OutputError(
            f"cannot be written: {problem.strerror or problem}", path=path, todo="make room, or name another file with --compare"
        ) from None


def drawn(played: Played, caption: str, ranks: Sequence[int]) -> Panel:
    """A computed step as a panel of the picture; ``ranks``: what its rows are called."""
    orders, timed = played.orders, played.timed
    sizes = [len(order.stage) for order in orders]
    labels = tuple(f"rank {rank}" for rank in ranks)
    none = np.zeros(0, np.int64)
    return computed(
        caption,
        labels,
        Boxes(
            row=np.repeat(np.arange(len(orders)), sizes),
            phase=np.concatenate([none, *(order.phase for order in orders)]).astype(np.uint8),
            stage=np.concatenate([none, *(order.stage for order in orders)]),
            chunk=np.concatenate([none, *(np.unique(order.stage, return_inverse=True)[1].reshape(-1) for order in orders)]),
            microbatch=np.concatenate([none, *(order.microbatch for order in orders)]),
            start_ns=np.concatenate([none, *timed.start_ns]),
            end_ns=np.concatenate([none, *timed.end_ns]),
            rule=np.zeros(sum(sizes), np.int32),
            rules=("",),
        ),
    )
