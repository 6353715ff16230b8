"""``bubbles.json``: pipeline ranges, idle intervals by cause, and what the rates mean (docs/bubbles.md).

What a source cannot know is absent, never 0 or null: a rate without value, causes that its recording cannot show
(``causes_not_seen``), the microbatch of an optimizer range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType, structs

from graphlink import output_names
from graphlink.causes import OF_STAGES, Cause
from graphlink.errors import InputError
from graphlink.figures import figure
from graphlink.model import I64, NOWHERE
from graphlink.pipeline.records import (
    Idle,
    Layers,
    Ns,
    Number,
    Other,
    Pass,
    Pipeline,
    Ranges,
    RunPipeline,
    StageRun,
    StepEntry,
)
from graphlink.read import document
from graphlink.read.document import AGAIN, Formatted
from graphlink.read.kineto_rows import MAX_SPAN_NS
from graphlink.tables import grouped, nowhere, numbered_texts, sums, take
from graphlink.wings import RowTable

_MOST: Final = 1 << 16  # stages, chunks, microbatches: tables have one entry each
_BLOCK: Final = 1 << 14  # idle intervals that are written at a time
PhaseName = Literal["F", "B", "I", "W", "OPT"]
CauseName = Literal[
    "warmup",
    "cooldown",
    "dependency_stall",
    "exposed_communication",
    "straggler_wait",
    "optimizer_sync",
    "launch_starved",
    "host_sync",
    "data_loading",
    "memory_management",
    "profiler_artefact",
    "unknown",
]
PHASES: Final[tuple[PhaseName, ...]] = get_args(PhaseName)  # by ``Pass``
CAUSES: Final[tuple[CauseName, ...]] = get_args(CauseName)  # by ``Cause``
# what shows of the ranges alone; the other causes need communication or the host to be recorded
_FROM_RANGES: Final = frozenset(
    {Cause.WARMUP, Cause.COOLDOWN, Cause.DEPENDENCY_STALL, Cause.OPTIMIZER_SYNC, Cause.UNKNOWN}
)
FORMULAS: Final = {  # of rates, the last by numbers alone, not by what was idle
    "bubble_rate_makespan": "1 - work of all stages / (stages x makespan); makespan = first start to last end of F, B, "
    "I and W ranges",
    "bubble_rate_zb": "1 - work of all stages / (stages x cost); cost = longest own window of a stage, last end - "
    "first start of work",
    "bubble_ratio_ideal": "(stages - 1) / (chunks x microbatches): bubble over ideal time of GPipe, 1F1B or "
    "interleaved with equal stages",
}
_WORK: Final = (
    "union of the compute kernels, and of the copies that ranges issued, inside the F, B, I and W ranges of the stage"
)
_JOB_WORK: Final = (
    "time of the jobs of the F, B, I and W phases of the stage, with the waits inside them: the bubble "
    "is at least what is shown"
)
_HOST_WORK: Final = "host time of the F, B, I and W ranges of the stage, without waits: the run shows no device"


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """One definition of a bubble rate; over several steps the sums are taken over all of them. No ``value``: it cannot
    be known.
    """

    name: str
    formula: str
    value: float | UnsetType = UNSET
    steps: list[Number]
    communication_is_work: bool = False
    optimizer_inside: bool = False


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of the figures of the file."""

    work: str
    sees_device: bool  # False: ranges and work are those of the host
    bubble_rate_makespan: Rate
    bubble_rate_zb: Rate
    bubble_ratio_ideal: Rate
    causes_not_seen: list[CauseName]  # that the recording cannot show; their time is in ``unknown``


class StageEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline rank over all steps: ``work_ns`` + sum of ``idle_ns`` = ``makespan_ns``."""

    rank: Number
    stage: Number  # its first virtual stage
    replica: Number = 0  # which of several pipelines side by side it is of
    makespan_ns: Ns
    work_ns: Annotated[Ns, figure(means="stage_work")]
    idle_ns: dict[CauseName, Ns]
    optimizer_ns: Ns  # optimizer ranges: after the makespan, in no sum here
    optimizer_sync_ns: Ns | UnsetType = UNSET  # likewise
    layers: list[Layers] | UnsetType = UNSET  # of the chunks whose forwards show some

    @property
    def lost_ns(self) -> Annotated[int, figure("idle", means="bubble")]:
        return sum(self.idle_ns.values())

    @property
    def lost(self) -> Annotated[tuple[int, int], figure("idle share", means="bubble")]:
        return self.lost_ns, self.lost_ns + self.work_ns


class RangeEntry(msgspec.Struct, frozen=True, kw_only=True):
    rank: Number
    stage: Number | UnsetType = UNSET
    chunk: Number | UnsetType = UNSET
    phase: PhaseName
    microbatch: Number | UnsetType = UNSET
    step: Number | UnsetType = UNSET
    start_ns: Annotated[Ns, figure(text="first start of its device work")]
    end_ns: Annotated[Ns, figure(text="last end of its device work")]
    busy_ns: Annotated[Ns, figure(text="of it at work")]
    device_ops: Number | UnsetType = UNSET
    rule: Annotated[str, figure(text="what named it")]

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


class IdleEntry(msgspec.Struct, frozen=True, kw_only=True):
    rank: Number
    stage: Number
    step: Number | UnsetType = UNSET
    start_ns: Ns
    end_ns: Ns
    cause: CauseName
    evidence: str

    @property
    def duration_ns(self) -> Annotated[int, figure(means="bubble")]:
        return self.end_ns - self.start_ns


class Bubbles(Formatted, frozen=True, kw_only=True):
    """The file. ``left_out``: ranges and device ops that belong to none, by rank and reason."""

    pipeline: Pipeline
    definition: Definition
    steps: list[StepEntry]
    stages: list[StageEntry]
    left_out: dict[str, dict[str, int]]
    warnings: list[str]
    ranges: list[RangeEntry]
    idle: list[IdleEntry]


class Compared(Bubbles, frozen=True, kw_only=True):
    """The output of ``graphlink bubbles --json``: the file, and the schedule that was asked for."""

    what_if: Other | UnsetType = UNSET


def summarised(pipeline: RunPipeline) -> Pipeline:
    """Return ``summary.json.pipeline``, which stands at the start of ``bubbles.json`` as well."""
    seen = _by_cause(pipeline.idle, any(run.sees_causes for run in pipeline.runs))
    return Pipeline(
        stages=pipeline.stages,
        microbatches=pipeline.microbatches,
        chunks=pipeline.chunks,
        schedule=pipeline.schedule,
        nearest=_sound([pipeline.nearest])[0] or UNSET,
        causes_ns={CAUSES[c]: ns for c, ns in seen.items() if c != Cause.OPTIMIZER_SYNC},
        optimizer_sync_ns=seen.get(Cause.OPTIMIZER_SYNC, UNSET),
        theory=UNSET if pipeline.theory is None else pipeline.theory,
        warnings=_sound(pipeline.warnings),
        **structs.asdict(pipeline.rates),
    )


def blocks(pipeline: RunPipeline) -> Iterator[bytes]:
    """Yield the file, the ranges of a rank at a time and then idle intervals: one of either per line. Cost: O(ranges +
    idle).
    """
    warnings = [*pipeline.warnings, *(text for run in pipeline.runs for text in run.warnings)]
    file = Bubbles(
        pipeline=summarised(pipeline),
        definition=_definition(pipeline),
        steps=list(pipeline.steps),
        stages=[_stage(pipeline, i) for i in range(len(pipeline.ranks))],
        left_out={str(run.rank): run.left_out for run in pipeline.runs if run.left_out},
        warnings=_sound(list(dict.fromkeys(warnings))),
        ranges=[],
        idle=[],
    )
    head = msgspec.json.encode(file)
    empty = b'"ranges":[],"idle":[]}'
    assert head.endswith(empty)
    yield head[: -len(empty)] + b'"ranges":['
    yield from _lists(map(_ranges, pipeline.runs))
    yield b'],\n"idle":['
    stage_of = {entry.rank: entry.stage for entry in file.stages}
    texts = _sound(pipeline.idle.texts)
    yield from _lists(
        _idle(pipeline.idle, slice(low, low + _BLOCK), stage_of, texts)
        for low in range(0, len(pipeline.idle.rank), _BLOCK)
    )
    yield b"]}\n"


def load(path: Path) -> Bubbles:
    """Read a file of an earlier run.

    Raises:
        InputError: it cannot be read, or is none of ours.
    """
    if not path.exists():
        document.refuse_made(path.with_name(output_names.SUMMARY))
        raise InputError(
            "there is no such file: no pipeline was found in the run, or an older graphlink wrote this folder",
            path=path,
            todo="name the --out folder of a run with pipeline ranges; graphlink show DIR tells what it holds",
        )
    file = document.load(path, Bubbles, f"{output_names.BUBBLES} of this version of graphlink", AGAIN)
    why = _strange(file)
    if why:
        raise InputError(why, path=path, todo=AGAIN)
    return file


def _of_run(folder: Path, name: str) -> Sequence[Any]:
    """Return the list of that name in the file of a run; nothing where no pipeline was found.

    Raises:
        InputError: it is none.
    """
    return getattr(load(folder / output_names.BUBBLES), name) if (folder / output_names.BUBBLES).is_file() else ()


_PLACE: Final = ("rank", "stage")
_TIMES: Final = ("start_ns", "end_ns", "duration_ns")
RANGES: Final = RowTable(
    RangeEntry,
    (*_PLACE, "chunk", "phase", "microbatch", "step", *_TIMES, "busy_ns", "device_ops", "rule"),
    lambda folder, _: _of_run(folder, "ranges"),
    of_run=True,
)
BUBBLES: Final = RowTable(
    IdleEntry,
    (*_PLACE, "step", *_TIMES, "cause", "evidence"),
    lambda folder, _: _of_run(folder, "idle"),
    of_run=True,
)


def _strange(file: Bubbles) -> str:
    """Return what no file of ours says; empty where all is well."""
    ranks = {stage.rank for stage in file.stages}
    if len(ranks) < len(file.stages):
        return "a rank stands twice in its stages"
    strange = ({e.rank for e in file.ranges} | {e.rank for e in file.idle}) - ranks
    if strange:
        return f"rank {min(strange)} is none of its stages"
    said = file.pipeline
    chunks = [said.chunks, *(e.chunk + 1 for e in file.ranges if e.chunk is not UNSET)]
    counts = [
        said.stages,
        said.microbatches,
        *chunks,
        max(chunks) * max(said.stages, len(file.stages)),
        *(s.stage for s in file.stages),
        *(one.chunk for s in file.stages for one in s.layers or ()),
        *(n for e in file.ranges for n in (e.stage, e.microbatch) if n is not UNSET),
    ]
    if not 0 <= min(counts) <= max(counts) < _MOST:
        return f"it counts {min(counts) if min(counts) < 0 else max(counts):,} stages, chunks or microbatches"
    for one in (one for stage in file.stages for one in stage.layers or ()):
        if len(one.mean_ns) < 3 or min(one.mean_ns) < 0 or not any(one.mean_ns):
            return "its layers take no time"
    return "its times lie more than 104 days apart" if _too_long(file) else ""


def _too_long(file: Bubbles) -> bool:
    """Return whether times lie too far apart to be drawn and added up."""
    entries: list[RangeEntry | IdleEntry | StepEntry] = [*file.ranges, *file.idle, *file.steps]
    ns = [*(e.start_ns for e in entries), *(e.end_ns for e in entries)]
    spans = [
        *(ns for step in file.steps for ns in (*step.work_ns, *step.own_ns)),
        *(ns for s in file.stages for ns in (s.makespan_ns, s.work_ns, s.optimizer_ns, *s.idle_ns.values())),
        *(e.busy_ns for e in file.ranges),
    ]
    return max(ns, default=0) - min(ns, default=0) >= MAX_SPAN_NS or max(map(abs, spans), default=0) >= MAX_SPAN_NS << 5


def ranges_of(file: Bubbles) -> tuple[Ranges, ...]:
    """Return the ranges of each rank of ``file.stages`` as the record that they were written from."""
    by_rank = grouped((entry.rank, entry) for entry in file.ranges)
    return tuple(_columns(by_rank.get(stage.rank, [])) for stage in file.stages)


def replica(file: Bubbles, number: int = 0) -> tuple[int, ...]:
    """Return where in ``file.stages`` the ranks of one pipeline stand, in the order of their stages."""
    mine = (i for i, entry in enumerate(file.stages) if entry.replica == number)
    return tuple(sorted(mine, key=lambda i: file.stages[i].stage))


def idle_of(file: Bubbles) -> Idle:
    """Return the idle intervals of ``file`` as the record that they were written from."""
    evidence, texts = numbered_texts(e.evidence for e in file.idle)
    cause = {name: i for i, name in enumerate(CAUSES)}
    return Idle(
        cause=np.array([cause[e.cause] for e in file.idle], np.uint8),
        evidence=evidence,
        texts=texts,
        **_numbers(file.idle, "rank", "step", "start_ns", "end_ns"),
    )


def _columns(entries: Sequence[RangeEntry]) -> Ranges:
    rule, rules = numbered_texts(e.rule for e in entries)
    return Ranges(
        phase=np.array([PHASES.index(e.phase) for e in entries], np.uint8),
        device_ops=np.array([0 if e.device_ops is UNSET else e.device_ops for e in entries], np.int64),
        rule=rule,
        rules=rules,
        **_numbers(entries, "step", "stage", "chunk", "microbatch", "start_ns", "end_ns", "busy_ns"),
    )


def _numbers(entries: Sequence[IdleEntry | RangeEntry], *names: str) -> dict[str, I64]:
    """Return a column of each of these fields, ``NOWHERE`` where it is not said."""
    said = {name: [getattr(e, name) for e in entries] for name in names}
    return {name: np.array([NOWHERE if v is UNSET else v for v in said[name]], np.int64) for name in names}


def _definition(pipeline: RunPipeline) -> Definition:
    steps = [s.number for s in pipeline.steps]
    hidden = {c for run in pipeline.runs if not run.sees_causes for c in OF_STAGES if c not in _FROM_RANGES}
    sees_device = all(run.sees_device for run in pipeline.runs)
    return Definition(
        work=_HOST_WORK if not sees_device else _JOB_WORK if hidden else _WORK,
        sees_device=sees_device,
        causes_not_seen=[CAUSES[c] for c in sorted(hidden)],
        **{
            name: Rate(name=name, formula=formula, value=getattr(pipeline.rates, name), steps=steps)
            for name, formula in FORMULAS.items()
        },
    )


def _stage(pipeline: RunPipeline, i: int) -> StageEntry:
    run = pipeline.runs[i]
    stages, optimizer = run.ranges.stage, run.ranges.phase == Pass.OPT
    seen = _by_cause(take(pipeline.idle, pipeline.idle.rank == run.rank), run.sees_causes)
    return StageEntry(
        rank=run.rank,
        stage=int(stages[stages != NOWHERE].min()) if (stages != NOWHERE).any() else i,
        replica=pipeline.pipe[i],
        makespan_ns=sum(s.end_ns - s.start_ns for s in pipeline.steps),
        work_ns=sum(s.work_ns[i] for s in pipeline.steps),
        idle_ns={CAUSES[c]: ns for c, ns in seen.items() if c != Cause.OPTIMIZER_SYNC},
        optimizer_ns=int((run.ranges.end_ns - run.ranges.start_ns)[optimizer].sum()),
        optimizer_sync_ns=seen.get(Cause.OPTIMIZER_SYNC, UNSET),
        layers=list(run.layers) or UNSET,
    )


def _by_cause(idle: Idle, sees_causes: bool) -> dict[Cause, int]:
    """Sum up idle time, without the causes that cannot be seen."""
    totals = sums(len(OF_STAGES), idle.cause, idle.end_ns - idle.start_ns)
    return {
        cause: ns
        for cause, ns in zip(OF_STAGES, totals.tolist(), strict=True)
        if sees_causes or ns or cause in _FROM_RANGES
    }


def _lists(parts: Iterator[list[msgspec.Struct]]) -> Iterator[bytes]:
    encoder, between = msgspec.json.Encoder(), b"\n"
    for part in parts:
        if part:
            yield between + b",\n".join(map(encoder.encode, part))
            between = b",\n"


def _sound(texts: Sequence[str]) -> list[str]:
    """Make texts writable: recorded names may hold half a surrogate pair."""
    return [text.encode("utf-8", "backslashreplace").decode() for text in texts]


def _maybe(values: I64) -> list[int | UnsetType]:
    return [UNSET if v == NOWHERE else v for v in values.tolist()]


def _ranges(run: StageRun) -> list[msgspec.Struct]:
    r, rules = run.ranges, _sound(run.ranges.rules)
    ops = r.device_ops if run.sees_causes else nowhere(len(r.device_ops))
    columns = (_maybe(r.stage), _maybe(r.chunk), r.phase.tolist(), _maybe(r.microbatch), _maybe(r.step))
    times = (r.start_ns.tolist(), r.end_ns.tolist(), r.busy_ns.tolist(), _maybe(ops), r.rule.tolist())
    return [
        RangeEntry(
            rank=run.rank,
            stage=stage,
            chunk=chunk,
            phase=PHASES[phase],
            microbatch=microbatch,
            step=step,
            start_ns=start,
            end_ns=end,
            busy_ns=busy,
            device_ops=ops_,
            rule=rules[rule],
        )
        for stage, chunk, phase, microbatch, step, start, end, busy, ops_, rule in zip(*columns, *times, strict=True)
    ]


def _idle(idle: Idle, part: slice, stage_of: dict[int, int], texts: Sequence[str]) -> list[msgspec.Struct]:
    columns = (idle.rank, idle.start_ns, idle.end_ns, idle.cause, idle.evidence)
    rows = zip(*(c[part].tolist() for c in columns), _maybe(idle.step[part]), strict=True)
    return [
        IdleEntry(
            rank=rank,
            stage=stage_of[rank],
            step=step,
            start_ns=start,
            end_ns=end,
            cause=CAUSES[cause],
            evidence=texts[evidence],
        )
        for rank, start, end, cause, evidence, step in rows
    ]
