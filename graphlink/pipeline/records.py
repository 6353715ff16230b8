"""The records that the parts of pipeline analysis exchange. Nothing here knows the source (Kineto, nsys, Paddle).

Glossary
  rank         a pipeline rank, one compute timeline: p of them.
  stage        virtual stage, 0 .. p * chunks - 1: chunk * p + rank unless the schedule says otherwise.
  chunk        which of its model chunks a rank runs; 0 where it has one.
  microbatch   0 .. m - 1 within a step.
  step         0, 1, ...: steps of the recording, cut by optimizer ranges or step marks.

Times are int64 ns on the run's common clock (``_ns``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from graphlink.causes import OF_STAGE, Reasons
from graphlink.figures import figure
from graphlink.model import I32, I64, U8, CommOps, TimedRows
from graphlink.records import Lines, Short, Table, counted, ms, shares_words
from graphlink.spans import KeyedSpans, Spans
from graphlink.wings import Field

Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Ns = Annotated[int, msgspec.Meta(gt=-(1 << 62), lt=1 << 62)]
NO_TIME: Final = int(np.iinfo(np.int64).min)


class Pass(IntEnum):
    """The contract's phases: B is the full backward, I the input gradient and W the weight gradient of a split one."""

    F = 0
    B = 1
    I = 2
    W = 3
    OPT = 4


@dataclass(frozen=True, slots=True)
class NamedRanges(TimedRows):
    """Ranges of passes. ``NOWHERE`` where step, stage, chunk or microbatch is unknown. ``rule`` points into ``rules``,
    "inferred:..." where no name gave it.
    """

    phase: U8  # Pass
    step: I64
    stage: I64
    chunk: I64
    microbatch: I64
    rule: I32
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ranges(NamedRanges):
    """The pipeline ranges of one rank, sorted by step, then start. One entry per range.

    ``start_ns`` and ``end_ns``: first start and last end of the range's device work without communication; in a run
    without device ops, of the host range. ``busy_ns``: of that time at work.
    """

    busy_ns: I64
    device_ops: I64


@dataclass(frozen=True, slots=True)
class Delays(Reasons):
    """The delays of work after moments in which a rank was idle, as its own recording shows them, sorted by start;
    disjoint in a ``StageRun``.

    Where ``exchange`` is not ``NOWHERE`` that communication ran meanwhile, and only the other ranks tell how much of it
    was waiting: its transfer counts first, its waiting only where ``cause`` is UNKNOWN. ``evidence`` points into
    ``texts``, whose entry 0 is "".
    """

    exchange: I32
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Witness:
    """NCCL's own record of the exchanges of a rank, one entry for each exchange that it recorded, ascending.

    ``came_ns``: until when an exchange waited for its first peer, ``NO_TIME`` where nothing says so. ``words``: how its
    time divides.
    """

    TABLES = {"words": 0}  # noqa: RUF012 - for ``run.codec``: ``words`` is as long as the columns

    exchange: I64
    came_ns: I64
    words: tuple[str, ...]


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """How the passes of a chunk divide over its layers. ``mean_ns``: what a pass of the phase works before its first
    layer, in each of its layers, and after them (a loss)."""

    chunk: Number
    phase: Number  # Pass
    mean_ns: tuple[Ns, ...]


@dataclass(frozen=True, slots=True)
class StageRun:
    """All that pipeline analysis wants of one rank.

    ``work``: union of compute inside its F, B, I and W ranges, by step; ``optimizer`` inside its OPT ranges.
    ``previous``: the global rank that its first activations came from, ``NOWHERE`` if none did or nothing tells.
    ``recorded_from_ns``: when its recording begins. ``exchanges``: all its communication; ``ordinal`` names each over
    ranks (position in its group's order), ``NOWHERE`` if unknown.
    """

    rank: int
    previous: int
    recorded_from_ns: int
    ranges: Ranges
    work: KeyedSpans
    optimizer: Spans
    exchanges: CommOps
    ordinal: I64
    delays: Delays
    sees_device: bool  # False: times are those of host ranges
    sees_causes: (
        bool  # False (Paddle): neither communication nor host can be seen, so their causes are absent, not zero
    )
    left_out: dict[str, int]  # ranges and device ops that belong to none, by reason
    warnings: tuple[str, ...]
    witness: Witness | None = None  # None: there are no side files of NCCL
    layers: tuple[Layers, ...] = ()  # of the chunks whose forwards show some
    # ranks that its host sends to and receives from; where nothing names them, ``NOWHERE`` for each side of a stage
    peers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Idle(Reasons):
    """Idle time of all ranks by cause, sorted by rank, then start. Disjoint on a rank; ``optimizer_sync`` lies outside
    the makespan.
    """

    rank: I64
    step: I64
    texts: tuple[str, ...]


class StepEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A step over all ranks: per rank, work + idle = ``end_ns`` - ``start_ns``. Lists have one entry per rank, as
    ``stages``.
    """

    number: Number
    start_ns: Ns  # first start of an F, B, I or W range
    end_ns: Ns  # last end
    work_ns: tuple[Ns, ...]
    own_ns: tuple[Ns, ...]  # end of a rank's last work minus start of its first


class Rates(msgspec.Struct, frozen=True):
    """The three rates of ``docs/bubbles.md``, means over steps weighted by time; absent where what they need is
    unknown.
    """

    bubble_rate_makespan: float | UnsetType = UNSET
    bubble_rate_zb: float | UnsetType = UNSET
    bubble_ratio_ideal: float | UnsetType = UNSET


class PartsNs(msgspec.Struct, frozen=True, kw_only=True):
    """The measured bubble (stages x makespan - work, all steps): measured = schedule + imbalance + communication +
    rest.
    """

    schedule: Annotated[int, figure(text="lost by the schedule itself: equal stages, no transfers")]
    imbalance: Annotated[int, figure(text="added by stages of unequal times")]
    communication: Annotated[
        int, figure(text="added by the shortest transfers; exposed_communication is their time as recorded")
    ]
    rest: Annotated[int, figure(text="added by all else: jitter, host, collectives")]
    measured: Annotated[int, figure(text="all of it")]


class Theory(Rates, frozen=True, kw_only=True):
    """The time that the recognised schedule itself must lose on the mean measured times."""

    parts_ns: PartsNs


class IdleParts(msgspec.Struct, frozen=True, kw_only=True):
    """The idle time of each rank inside its own window, in three parts: until its first backward starts, from then
    until its last forward ends, and after that."""

    until_backward_ns: tuple[int, ...]
    between_ns: tuple[int, ...]
    after_forward_ns: tuple[int, ...]


class Searched(msgspec.Struct, frozen=True, kw_only=True):
    """The search of an order under a limit of activation memory. Memory is in multiples of what 1F1B stores at most, on
    its first rank.

    ``kept``: of a microbatch's activations, what the weight gradient still needs after the input gradient. ``peak``: by
    rank. ``idle_1f1b``: of 1F1B on the same times.
    """

    memory: float
    kept: float
    peak: tuple[float, ...]
    idle: IdleParts
    idle_1f1b: IdleParts


class RankStep(msgspec.Struct, frozen=True, kw_only=True):
    """What the predicted step of a rank is made of; the three add up to it."""

    rank: Number
    work_ns: Ns
    optimizer_ns: Ns
    rest_ns: int  # idle in the pipeline, waiting for the optimizers of others, data loading, the host


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted time of a step, from its first action to that of the next step: ``pipeline_ns`` + ``between_ns``.

    ``measured_ns``: the median of the recording, absent where no two of its steps follow each other. ``missed``: by
    which share of itself the same computation fell short of the recorded steps, which ``pipeline_ns`` is longer for;
    absent where their schedule is unknown. ``doubt``: why the prediction is not to be relied on, absent where nothing
    speaks against it.
    """

    step_ns: Ns
    measured_ns: Ns | UnsetType = UNSET
    pipeline_ns: Ns
    between_ns: int
    missed: float | UnsetType = UNSET
    ranks: list[RankStep]
    rests_on: str
    cannot_know: str
    doubt: str | UnsetType = UNSET


class Other(msgspec.Struct, frozen=True, kw_only=True):
    """The result of another schedule on the measured times of a step. ``activations``: the most each rank holds, of one
    microbatch in one rank's share of the model. ``searched``: of a schedule that was searched for these times.
    ``step``: the predicted time of a step."""

    schedule: str
    stages: int
    microbatches: int
    chunks: int
    makespan_ns: int
    bubble_rate_makespan: float | UnsetType = UNSET
    bubble_rate_zb: float | UnsetType = UNSET
    bubble_ratio_ideal: float | UnsetType = UNSET
    activations: tuple[float, ...]
    searched: Searched | UnsetType = UNSET
    step: StepTime | UnsetType = UNSET
    assumed: tuple[str, ...]  # sentences for the user


@dataclass(frozen=True, slots=True)
class RunPipeline:
    """The pipeline of a run: what ``bubbles.json``, the picture, the tracks and the notes in the graphs are made from.

    ``runs``, ``recorded`` and ``pipe`` are parallel, by rank. ``recorded``: which of the ranges that a run
    was given its ranges are (those of some steps are left out), ascending. ``pipe``: the pipeline of a rank, from 0,
    where several (replicas) run side by side. ``schedule`` is a name of the contract or "unknown"; then ``nearest``
    names the nearest and the first difference.
    """

    runs: tuple[StageRun, ...]
    recorded: tuple[I64, ...]
    pipe: tuple[int, ...]
    steps: tuple[StepEntry, ...]
    stages: int  # p
    microbatches: int
    chunks: int
    schedule: str
    nearest: str
    idle: Idle
    rates: Rates
    theory: Theory | None
    warnings: tuple[str, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(run.rank for run in self.runs)


class Pipeline(Short, msgspec.Struct, frozen=True, kw_only=True):
    """The pipeline of the run; docs/bubbles.md has the definitions. What cannot be known is absent.

    Communication is not work and the optimizer is outside, in all figures. ``stages``: pipeline ranks. The sum of
    ``causes_ns`` is stages x makespan - work over all steps.
    """

    stages: int
    microbatches: int
    chunks: int
    schedule: str
    nearest: str | UnsetType = UNSET  # schedule unknown: the nearest one, and the first difference
    bubble_rate_makespan: float | UnsetType = UNSET
    bubble_rate_zb: float | UnsetType = UNSET
    bubble_ratio_ideal: float | UnsetType = UNSET
    causes_ns: dict[str, int]
    optimizer_sync_ns: int | UnsetType = UNSET  # after the makespan, in no sum
    theory: Theory | UnsetType = UNSET  # absent where the schedule is unknown
    warnings: list[str] = []


def shape(pipeline: Pipeline) -> str:
    """Describe schedule and size in words."""
    named = "schedule unknown" if pipeline.schedule == "unknown" else pipeline.schedule
    return f"{named}: {sized(pipeline.stages, pipeline.microbatches, pipeline.chunks)}"


def sized(ranks: int, microbatches: int, chunks: int) -> str:
    """Return the size of a pipeline in words: its stages; of ranks with several, which are their chunks, its ranks."""
    many = f"{microbatches:,} microbatch{'es' * (microbatches != 1)}"
    one = f"{counted(ranks, 'stage')}, {many}, {counted(chunks, 'chunk')}"
    return f"{counted(ranks, 'rank')} with {chunks:,} stages each, {many}" if chunks > 1 else one


_OF: Final = {  # what rates are shares of, in words
    "bubble_rate_makespan": " of the time from the first start to the last end of the stages",
    "bubble_rate_zb": " of the longest time from the first start to the last end of one stage",
    "bubble_ratio_ideal": " of the time that stages would work without idle time: a formula, for equal stages",
}


def pipeline_table(pipeline: Pipeline) -> Lines:
    """Return the table that is printed of it."""
    theory = pipeline.theory
    rows = [("nearest", pipeline.nearest)] if pipeline.nearest is not UNSET else []
    for name, of in _OF.items():
        value, ideal = getattr(pipeline, name), getattr(theory, name, UNSET) if name != "bubble_ratio_ideal" else UNSET
        if value is not UNSET:
            rows.append((name, f"{value:.4f}{of}" + ("" if ideal is UNSET else f" (the schedule itself {ideal:.4f})")))
    whole = sum(pipeline.causes_ns.values())
    parts = shares_words({f"{name} ({OF_STAGE.get(name, name)})": ns for name, ns in pipeline.causes_ns.items()}, whole)
    sync_ns = 0 if pipeline.optimizer_sync_ns is UNSET else pipeline.optimizer_sync_ns
    rows += [
        ("idle", f"{ms(whole)} ms" + f": {parts}" * bool(parts)),
        *([("after it", f"optimizer_sync {ms(sync_ns)} ms")] if sync_ns else []),
        *(("warning", text) for text in pipeline.warnings),
    ]
    return [f"pipeline, {shape(pipeline)}", Table(rows)]


FIELDS: Final = (Field("run", "pipeline", Pipeline | None, None),)  # None: no pipeline was found
