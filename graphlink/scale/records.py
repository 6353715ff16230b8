"""What ``graphlink scale`` says of the graphs that it made: their ``summary.json``, and what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from graphlink.read import document
from graphlink.read.document import Formatted
from graphlink.records import Lines, Table, counted, first_few, ms
from graphlink.tables import grouped

MADE: Final = "graphlink scale"
_MOST: Final = 16  # recorded ranks that are listed
_FEW: Final = 8


class MadeAxis(msgspec.Struct, frozen=True, kw_only=True):
    """An axis on which ranks lie, ``stride`` apart; ``why``: what tells that they do."""

    name: str
    recorded: int
    made: int
    stride: int
    why: str


class MadeCopies(msgspec.Struct, frozen=True, kw_only=True):
    """How many ranks are copies of a recorded one, that one's own included, and the first few."""

    recorded: int
    copies: int
    ranks: list[int]


class MadeCollective(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one type, of communicators that have ``recorded`` members and now ``made``; of a rank, summed over
    its graph.
    """

    type: str
    recorded: int
    made: int
    count: int
    bytes_recorded: int
    bytes_made: int
    ns_recorded: int
    ns_made: int


class MadePipeline(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline that was made longer, or got other microbatches. ``source``: the recorded stage of each stage.

    ``makespan_ns``: of a step, from the first to the last forward or backward; ``recorded_makespan_ns``: the mean of
    the recorded steps; ``played_makespan_ns``: of those played in the same way as the longer one. ``rest_ns``: what a
    step has beside it, as recorded, None where the graphs do not tell their steps. ``pipelines``: how many lie side by
    side, the slowest of which counts.
    """

    schedule: str
    stages_recorded: int
    stages: int
    microbatches_recorded: int
    microbatches: int
    source: list[int]
    recorded_makespan_ns: int
    played_makespan_ns: int
    makespan_ns: int
    rest_ns: int | None
    bubble_rate: float
    pipelines: int
    told_by: str


class Scaled(Formatted, frozen=True, kw_only=True):
    """``summary.json`` of graphs that were made from recorded ones, and no recording of their own.

    ``made``: by what; ``source``: the folder of the recorded graphs. ``recorded_replayed_ns``: the coupled replay of
    those, ``predicted_ns`` that of the larger run, both of ``steps`` steps (0: not told). ``seed``: None for exact
    copies. ``rule``: of the time of collectives; ``assumed`` and ``unknown``: what the prediction rests on, and what it
    cannot know.
    """

    made: str = MADE
    source: str
    ranks_recorded: int
    ranks: int
    nodes: int
    axes: list[MadeAxis]
    copies: list[MadeCopies]
    communicators: int
    collectives: list[MadeCollective]
    pipeline: MadePipeline | None = None
    seed: int | None
    steps: int
    recorded_replayed_ns: int
    predicted_ns: int
    rule: list[str]
    assumed: list[str]
    unknown: list[str]
    warnings: list[str]
    files: list[str]


def load(path: Path) -> Scaled:
    """Read the summary of graphs that were made.

    Raises:
        InputError: it is none.
    """
    return document.load(path, Scaled, "summary of graphs that graphlink scale made")


def table(made: Scaled, folder: str) -> Lines:
    """Return the report for people: the predicted time first, then what was copied from what, and what that
    rests on.
    """
    steps = f", {ms(made.predicted_ns / made.steps)} ms a step of {made.steps:,}" if made.steps > 1 else ""
    change = made.predicted_ns / made.recorded_replayed_ns - 1 if made.recorded_replayed_ns else 0.0
    was = "of a recorded step" if made.pipeline else "of the replay of the recorded ranks"
    return [
        f"{folder}: {counted(made.ranks, 'rank')} made from {made.ranks_recorded:,} of {made.source}, {made.nodes:,} "
        "nodes",
        f"  predicted {ms(made.predicted_ns)} ms{steps} ({100 * change:+.1f} % to the {ms(made.recorded_replayed_ns)} "
        f"ms {was})",
        *(_pipeline(made.pipeline) if made.pipeline else _copies(made)),
        *(["", "time of communication", *(f"  {line}" for line in made.rule)] if made.rule else []),
        "",
        "assumed",
        *(f"  {line}" for line in made.assumed),
        "",
        "cannot be known from the recording",
        *(f"  {line}" for line in made.unknown),
        *(["", *(f"warning: {line}" for line in made.warnings)] if made.warnings else []),
    ]


def _copies(made: Scaled) -> Lines:
    axes = [(axis.name, f"{axis.recorded:,}", f"{axis.made:,}", axis.why) for axis in made.axes]
    copies = [
        (
            f"{one.recorded}",
            f"{one.copies:,}",
            f"{', '.join(map(str, one.ranks))}{', ...' * (one.copies > len(one.ranks))}",
        )
        for one in made.copies[:_MOST]
    ]
    more = [f"  ... and {len(made.copies) - _MOST:,} recorded ranks more"] if len(made.copies) > _MOST else []
    sizes = [_collective(one) for one in made.collectives]
    head = ("type", "ranks", "now", "count", "bytes", "now", "ms", "now")
    return [
        "",
        "axes of the ranks",
        Table(axes, ("axis", "recorded", "now", "told by"), "<>><"),
        "",
        "copies of recorded ranks",
        Table(copies, ("rank", "times", "is now rank"), ">><"),
        *more,
        *(["", "collectives of a rank that change"] if sizes else []),
        *([Table(sizes, head, "<>>>>>>>")] if sizes else []),
    ]


def _collective(one: MadeCollective) -> tuple[str, ...]:
    numbers = (one.recorded, one.made, one.count, one.bytes_recorded, one.bytes_made)
    return one.type, *(f"{number:,}" for number in numbers), ms(one.ns_recorded), ms(one.ns_made)


def _pipeline(one: MadePipeline) -> Lines:
    copied = grouped((source, stage) for stage, source in enumerate(one.source))
    rest = (
        "not told: the graphs have no marks of steps" if one.rest_ns is None else f"{ms(one.rest_ns)} ms, as recorded"
    )
    rows = [
        ("stages", f"{one.stages_recorded:,}", f"{one.stages:,}"),
        ("microbatches", f"{one.microbatches_recorded:,}", f"{one.microbatches:,}"),
        ("makespan", f"{ms(one.recorded_makespan_ns)} ms", f"{ms(one.makespan_ns)} ms"),
    ]
    off_pct = 100 * (one.played_makespan_ns / one.recorded_makespan_ns - 1) if one.recorded_makespan_ns else 0.0
    slowest = f", the slowest of {one.pipelines:,} side by side" if one.pipelines > 1 else ""
    return [
        "",
        f"{one.schedule}{slowest}; forwards and backwards told by {one.told_by}",
        Table(rows, ("", "recorded", "now"), "<>>"),
        f"  the recorded steps played in the same way: {ms(one.played_makespan_ns)} ms ({off_pct:+.1f} %)",
        f"  idle share of the makespan {100 * one.bubble_rate:.1f} %; what a step has beside it: {rest}",
        "",
        "copies of recorded stages",
        Table(
            [(f"{source}", first_few(stages, _FEW)) for source, stages in copied.items()],
            ("stage", "is now stage"),
            "><",
        ),
    ]
