"""The jobs of a Paddle worker: each one's phase, step, chunk and microbatch.

Types are named by the passes in Paddle's ``pipeline_scheduler_pass/`` (docs/paddle.md). Steps are cut at the optimizer,
else at the learning rate; where that does not add up, or neither is in the logs, at the longest idle gaps.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from graphlink.errors import InputError
from graphlink.model import EMPTY, I64, NOWHERE, U8, Bool
from graphlink.pipeline.paddle.logs import JobLog
from graphlink.pipeline.records import Pass
from graphlink.records import first_few
from graphlink.tables import codes, how_many, marked, turns

NO_PHASE: Final = 255
RULES: Final = ("paddle", "paddle, chunk by occurrence", "inferred: microbatch by order")
TOLERANCE_NS: Final = 1_000  # the writer reads a clock of whole us
_TYPE: Final = re.compile(r"(forward|backward)(_b|_w)?_?(\d{1,9})?(?:_reduce)?(?:\(chunk(\d{1,9})\))?")
_PHASES: Final = {
    ("forward", None): Pass.F,
    ("backward", None): Pass.B,
    ("backward", "_b"): Pass.I,
    ("backward", "_w"): Pass.W,
}


@dataclass(frozen=True, slots=True)
class Jobs(JobLog):
    """The jobs of one worker with what they are.

    ``phase`` is a ``Pass`` or ``NO_PHASE``. ``part``: which piece of its forward or backward a job is
    (``forward(chunk0)``, where 1F1B overlaps the two), ``NOWHERE`` for a whole one. ``step`` counts from 0. ``rule``
    points into ``RULES``.
    """

    phase: U8
    chunk: I64
    part: I64
    step: I64
    rule: int

    @property
    def work(self) -> Bool:
        """Return which jobs are of phases F, B, I or W."""
        return self.phase <= Pass.W

    @property
    def returns(self) -> Bool:
        """Return which jobs send a gradient back: B or I."""
        return np.asarray((self.phase == Pass.B) | (self.phase == Pass.I))


def jobs_of(logs: Iterable[JobLog]) -> tuple[Jobs, ...]:
    """Return the jobs of every worker that ran a forward or a backward. O(n log n).

    Raises:
        InputError: jobs of a worker overlap by more than 1 us.
    """
    read = [_typed(log) for log in logs]
    with_work = _dense(_dense([jobs for jobs in read if jobs.work.any()], "chunk"), "microbatch")
    workers = _matched(_cut(with_work))
    with_microbatches = [_with_microbatches(jobs) for jobs in workers]
    repeats = [count for jobs in with_microbatches for count in _repeats(jobs)]
    with_chunks = [_with_chunks(jobs, _mode(repeats)) for jobs in with_microbatches]
    usual = _mode(int(n) for jobs in with_chunks for n in _per_step(jobs, jobs.step) if n)
    return tuple(replace(jobs, warnings=(*jobs.warnings, *_missing(jobs, usual))) for jobs in with_chunks)


def _typed(log: JobLog) -> Jobs:
    _refuse_overlaps(log)
    kinds = [_kind(text) for text in log.strings]
    phase, chunk, part = (np.array([kind[i] for kind in kinds], np.int64)[log.type] for i in range(3))
    columns = {field.name: getattr(log, field.name) for field in fields(log)}
    step = np.zeros(len(phase), np.int64)
    return Jobs(**columns, phase=phase.astype(np.uint8), chunk=chunk, part=part, step=step, rule=0)


def _dense(workers: list[Jobs], column: str) -> list[Jobs]:
    """Return ``workers`` with chunks or microbatches numbered 0, 1, ...: they are, but in a log that is none of
    Paddle's.
    """
    used = [getattr(jobs, column)[jobs.work] for jobs in workers]
    numbers = np.unique(np.concatenate([*used, EMPTY]))
    numbers = numbers[numbers != NOWHERE]
    if not len(numbers) or numbers[-1] == len(numbers) - 1:
        return workers
    many = "chunks" if column == "chunk" else "microbatches"
    said = f"the {many} of the logs are {first_few(numbers.tolist(), 8)}: numbered from 0"
    values = [getattr(jobs, column) for jobs in workers]
    changes: list[dict[str, Any]] = [
        {column: np.where(value == NOWHERE, NOWHERE, np.searchsorted(numbers, value))} for value in values
    ]
    return _warned([replace(jobs, **change) for jobs, change in zip(workers, changes, strict=True)], said)


def _warned(workers: list[Jobs], said: str) -> list[Jobs]:
    """Give a warning of all workers to the first."""
    return [replace(workers[0], warnings=(*workers[0].warnings, said)), *workers[1:]]


def _kind(text: str) -> tuple[int, int, int]:
    """Return phase, chunk, part."""
    if text == "optimizer":
        return Pass.OPT, NOWHERE, NOWHERE
    found = _TYPE.fullmatch(text)
    phase = _PHASES.get((found[1], found[2])) if found else None
    if found is None or phase is None:
        return NO_PHASE, NOWHERE, NOWHERE
    return phase, int(found[3] or NOWHERE), int(found[4] or NOWHERE)


def _refuse_overlaps(log: JobLog) -> None:
    over = np.append(0, np.maximum.accumulate(log.end_ns)[:-1] - log.start_ns[1:])
    later = int(over.argmax())
    if over[later] > TOLERANCE_NS:
        raise InputError(
            f"its jobs overlap by {over[later] / 1e6:.3f} ms, and a worker runs one at a time: the file mixes runs",
            path=log.path,
            where=f"{log.strings[log.type[later]]} of microbatch {log.microbatch[later]}, job_start_time "
            f"{log.start_ns[later] / 1e6:.3f}",
            todo="keep the log of one run in it, or record again",
        )


# steps


def _cut(workers: Sequence[Jobs]) -> list[Jobs]:
    """Return ``workers`` with their steps and warnings."""
    by_marks = [_steps_by_marks(jobs) for jobs in workers]
    marked = [steps for steps in by_marks if steps is not None]
    if not marked and workers:
        return _cut_without_marks(workers)
    count = _mode(int(steps.max()) + 1 for steps in marked)
    forwards = [_per_step(jobs, steps) for jobs, steps in zip(workers, by_marks, strict=True) if steps is not None]
    usual = _mode(int(n) for per_step in forwards for n in per_step if n)
    out = []
    for jobs, steps in zip(workers, by_marks, strict=True):
        gaps = _steps_by_gaps(jobs, count)
        if steps is None or _faults(jobs, gaps, usual) < _faults(jobs, steps, usual):
            said = f"{jobs.path}: optimizer or lr jobs are missing: its steps are cut at the longest idle gaps"
            out.append(replace(jobs, step=gaps, warnings=(*jobs.warnings, said)))
        else:
            out.append(replace(jobs, step=steps))
    return out


def _cut_without_marks(workers: Sequence[Jobs]) -> list[Jobs]:
    ranges = [
        jobs.stop_step - jobs.first_step
        for jobs in workers
        if jobs.first_step is not None and jobs.stop_step is not None
    ]
    count = (
        _mode(ranges) if ranges else _mode(how_many(_may_begin(jobs)) for jobs in workers if _knows_microbatches(jobs))
    )
    forwards = [n for jobs in workers if (n := how_many(jobs.phase == Pass.F))]
    count = max(min(count, *forwards, len(workers[0].phase)), 1) if forwards else 1
    how = "cut at the longest idle gaps" if count > 1 else "taken as one"
    said = f"the logs hold neither optimizer nor lr jobs: steps are {how}"
    return _warned([replace(jobs, step=_steps_by_gaps(jobs, count)) for jobs in workers], said)


def _steps_by_marks(jobs: Jobs) -> I64 | None:
    """Cut steps by marks: a step ends with its optimizer jobs; without any, it begins with its lr jobs."""
    optimizer = jobs.phase == Pass.OPT
    lr = np.array([text == "lr" for text in jobs.strings])[jobs.type]
    if not (optimizer.any() or lr.any()):
        return None
    first = optimizer[:-1] & ~optimizer[1:] if optimizer.any() else lr[1:] & ~lr[:-1]
    return _steps_with_work(np.append(False, first), jobs.work)


def _steps_by_gaps(jobs: Jobs, count: int) -> I64:
    """Cut into ``count`` steps where the worker idled longest before a forward of microbatch 0; where there are too few
    of those, anywhere."""
    may = np.flatnonzero(_may_begin(jobs))
    may = may[may > 0]
    if len(may) < count - 1:
        may = np.arange(1, len(jobs.phase))
    gap = jobs.start_ns[may] - np.maximum.accumulate(jobs.end_ns)[may - 1]
    first = marked(len(jobs.phase), may[np.argsort(-gap, kind="stable")[: count - 1]])
    return _steps_with_work(first, jobs.work)


def _matched(workers: Sequence[Jobs]) -> list[Jobs]:
    """Match steps of workers: who logged fewer steps than another worker of its machine takes the numbers of those
    steps of it in whose middle its own lie."""
    middles = [_middles(jobs) for jobs in workers]
    most = max(map(len, middles), default=0)
    out = []
    for jobs, middle in zip(workers, middles, strict=True):
        if len(middle) == most:
            out.append(jobs)
            continue
        said = f"{jobs.path}: holds {len(middle)} steps where others hold {most}"
        whole = [
            m for other, m in zip(workers, middles, strict=True) if len(m) == most and other.machine == jobs.machine
        ]
        place = np.searchsorted(whole[0][:-1] // 2 + whole[0][1:] // 2, middle) if whole else np.arange(len(middle))
        if (np.diff(place) <= 0).any():
            place = np.arange(len(middle))
        out.append(replace(jobs, step=place[jobs.step], warnings=(*jobs.warnings, said)))
    return out


def _middles(jobs: Jobs) -> I64:
    """Return the middle of each step: stages begin one after the other and end in reverse."""
    order = np.flatnonzero(jobs.work)
    steps, first = np.unique(jobs.step[order], return_index=True)
    last = np.append(first[1:], len(order)) - 1
    return np.asarray((jobs.start_ns[order[first]] // 2 + jobs.end_ns[order[last]] // 2)[: len(steps)])


def _may_begin(jobs: Jobs) -> Bool:
    """Return which forwards may be the first of a step."""
    forward = jobs.phase == Pass.F
    lowest = jobs.chunk[forward].min(initial=np.iinfo(np.int64).max)
    return np.asarray(
        forward & (jobs.chunk == lowest) & (jobs.part <= 0) & ((jobs.microbatch == 0) | (not _knows_microbatches(jobs)))
    )


def _knows_microbatches(jobs: Jobs) -> bool:
    return bool((jobs.microbatch[jobs.work] != NOWHERE).any())


def _steps_with_work(first: Bool, work: Bool) -> I64:
    """Return steps from where each begins; one without work counts to the step before."""
    step = np.cumsum(first)
    holds = np.bincount(step[work], minlength=int(step[-1]) + 1) > 0
    return np.asarray(np.maximum(np.cumsum(holds) - 1, 0)[step])


def _per_step(jobs: Jobs, step: I64) -> I64:
    """Count the forwards of each step."""
    return np.bincount(step[jobs.phase == Pass.F], minlength=int(step[-1]) + 1)


def _faults(jobs: Jobs, step: I64, usual: int) -> int:
    """Return how far steps are from holding a forward and a backward of every microbatch, and as many forwards as
    others hold.
    """
    faults = int(np.abs(_per_step(jobs, step) - usual).sum())
    if jobs.returns.any():
        forwards, backwards = _forwards_and_backwards(jobs, codes(step, jobs.chunk, jobs.microbatch))
        faults += int(np.abs(forwards - backwards).sum())
    return faults


def _forwards_and_backwards(jobs: Jobs, code: I64) -> tuple[I64, I64]:
    whole = jobs.part <= 0
    size = int(code.max(initial=-1)) + 1
    return np.bincount(code[(jobs.phase == Pass.F) & whole], minlength=size), np.bincount(
        code[jobs.returns & whole], minlength=size
    )


# chunks and microbatches


def _with_microbatches(jobs: Jobs) -> Jobs:
    if _knows_microbatches(jobs):
        return jobs
    return replace(jobs, microbatch=np.where(jobs.work, turns(jobs.step, jobs.type), NOWHERE), rule=2)


def _repeats(jobs: Jobs) -> list[int]:
    """Count how often each microbatch goes forward in a step under one type."""
    forward = (jobs.phase == Pass.F) & (jobs.part <= 0)
    code = codes(jobs.step[forward], jobs.chunk[forward], jobs.microbatch[forward])
    return [int(n) for n in np.bincount(code)]


def _with_chunks(jobs: Jobs, repeats: int) -> Jobs:
    """Number chunks as the types do; else a microbatch's k-th forward is of chunk k, and backwards go through them in
    reverse.
    """
    if (jobs.chunk[jobs.work] != NOWHERE).any():
        return jobs
    if repeats <= 1:
        return replace(jobs, chunk=np.where(jobs.work, 0, NOWHERE))
    code = codes(jobs.step, jobs.phase, jobs.part, jobs.microbatch)
    k, count = turns(code), np.bincount(code)[code]
    chunk = np.where(jobs.phase == Pass.F, k, repeats - 1 - k)
    return replace(jobs, chunk=np.where(jobs.work & (count == repeats), chunk, NOWHERE), rule=max(jobs.rule, 1))


def _missing(jobs: Jobs, usual: int) -> list[str]:
    """Warn of what shows that lines are missing."""
    path, forward, out = jobs.path, jobs.phase == Pass.F, []
    if not forward.any():
        return [f"{path}: holds no forward job"]
    per_step = _per_step(jobs, jobs.step)
    odd = np.flatnonzero((per_step != usual) & (per_step > 0))
    if len(odd):
        out.append(
            f"{path}: {len(odd)} steps have not {usual} forwards as others have, e.g. its step {odd[0]} has "
            f"{per_step[odd[0]]}"
        )
    if not jobs.returns.any():
        return [*out, f"{path}: holds no backward job"]
    code = codes(jobs.step, jobs.chunk, jobs.microbatch)
    forwards, backwards = _forwards_and_backwards(jobs, code)
    unequal = np.flatnonzero(forwards != backwards)
    if len(unequal):
        first = int(np.flatnonzero((code == unequal[0]) & jobs.work)[0])
        out.append(
            f"{path}: {len(unequal)} microbatches have not as many forwards as backwards, e.g. microbatch "
            f"{jobs.microbatch[first]} of its "
            f"step {jobs.step[first]}: {forwards[unequal[0]]} and {backwards[unequal[0]]}; lines of its log are missing"
        )
    return out


def _mode(values: Iterable[int]) -> int:
    """Return the most frequent value, the smallest of several; 1 of none."""
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value)) if counts else 1
