"""Several ranks: each in a process of its own, then written with communicator ids that all share."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from graphlink import run
from graphlink.annotate.pipeline.analyse import RankPipeline, analyse, rank_pipeline
from graphlink.annotate.pipeline.records import StageRun
from graphlink.annotate.ranks.records import GroupKey
from graphlink.emit import groups, publish, timeline
from graphlink.errors import GraphlinkError, InputError

log: Final = logging.getLogger("graphlink")
SOME_FAILED: Final = 3
_Given = TypeVar("_Given")
_Result = TypeVar("_Result")


class SomeRanksFailed(GraphlinkError):
    """Some ranks of several failed; nothing is published."""

    exit_status = SOME_FAILED


@dataclass(frozen=True, slots=True)
class _Ready:
    """A rank whose graph waits in ``file`` for the ids of communicators."""

    rank: int
    world_size: int
    groups: tuple[GroupKey, ...]
    staged: StageRun | None
    file: Path


@dataclass(frozen=True, slots=True)
class Failed:
    """What a process that failed has to say."""

    text: str


@dataclass(frozen=True, slots=True)
class _Task:
    """What a process is given; ``ids`` and what is behind it only in the second round."""

    inputs: run.Inputs
    options: run.Options
    folder: Path
    file: Path
    ids: groups.GroupIds | None = None
    world_size: int = 1
    pipeline: RankPipeline | None = None


@contextlib.contextmanager
def naming_limits(recording: Path) -> Iterator[None]:
    """Turns what a rank asks too much of into an InputError that names its recording."""
    try:
        yield
    except MemoryError:
        raise InputError(
            "out of memory",
            path=recording,
            todo="use a machine with more, fewer ranks at a time with --jobs, or only some steps with --step",
        ) from None
    except RecursionError:
        raise InputError("this or its execution trace is nested too deeply", path=recording, todo="record it again") from None


def run_ranks(inputs: Sequence[run.Inputs], options: run.Options, folder: Path, jobs: int | None) -> run.RunResult:
    """Writes the files of all ranks, and those of the run, into ``folder``.

    Raises:
        SomeRanksFailed, InputError: some or all ranks failed; the first failure is told.
    """
    at_once = min(jobs or cores(), len(inputs))
    work = folder / "work"
    work.mkdir()
    tasks = [_Task(one, options, folder, work / f"{i}.pickle") for i, one in enumerate(inputs)]
    ready = good(in_processes(_prepare, tasks, at_once), len(inputs))
    _refuse_same_rank(ready, inputs)
    ids = groups.assign({r.rank: r.groups for r in ready})
    world_size = max(r.world_size for r in ready)
    pipeline = analyse([r.staged for r in ready])
    second = [
        _Task(t.inputs, options, folder, r.file, ids[r.rank], world_size, rank_pipeline(pipeline, r.rank))
        for t, r in zip(tasks, ready, strict=True)
    ]
    results = good(in_processes(_finish, second, at_once), len(inputs))
    files = [name for result in results for name in result.files]
    if any(ids.values()):
        publish.write(folder / groups.NAME, groups.comm_group_json(ids))
        files.append(groups.NAME)
    if options.timeline != "none":
        files.append(timeline.join(folder, sorted(r.rank for r in ready), pipeline))
    files += run.write_pipeline(pipeline, folder)
    return run.RunResult(tuple(sorted((r.summary for r in results), key=lambda s: s.rank)), pipeline, tuple(files))


def _prepare(task: _Task) -> _Ready | Failed:
    try:
        with naming_limits(task.inputs.recording):
            prepared = run.prepare(task.inputs, task.options)
        with publish.writing(task.file) as out:
            pickle.dump(prepared, out, protocol=pickle.HIGHEST_PROTOCOL)
    except GraphlinkError as problem:
        return Failed(problem.text())
    return _Ready(prepared.rank, prepared.world_size, prepared.plan.groups, prepared.staged.run, task.file)


def _finish(task: _Task) -> run.RankResult | Failed:
    assert task.ids is not None
    try:
        with task.file.open("rb") as stored:
            prepared: run.Prepared = pickle.load(stored)
        task.file.unlink()
        with naming_limits(task.inputs.recording):
            return run.finish(prepared, task.ids, task.options, task.folder, task.world_size, task.pipeline)
    except GraphlinkError as problem:
        return Failed(problem.text())


def in_processes(work: Callable[[_Given], _Result], tasks: Sequence[_Given], at_once: int, what: str = "ranks") -> list[_Result]:
    """``work`` of every task, in the order of ``tasks``."""
    if at_once == 1:
        return [work(task) for task in tasks]
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(at_once, mp_context=context, initializer=_leave_signals_to_parent)
    try:
        futures = [pool.submit(work, task) for task in tasks]
        for done, _ in enumerate(as_completed(futures), start=1):
            log.info("%d of %d %s", done, len(tasks), what)
        results = [f.result() for f in futures]
    except BrokenProcessPool:
        raise InputError(
            "a process that worked on a rank was killed, most likely for want of memory", todo="fewer ranks at a time with --jobs"
        ) from None
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()
    return results


def _leave_signals_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def good(outcomes: Iterable[_Result | Failed], count: int, what: str = "ranks") -> list[_Result]:
    good: list[_Result] = []
    failed: list[Failed] = []
    for outcome in outcomes:
        if isinstance(outcome, Failed):
            failed.append(outcome)
        else:
            good.append(outcome)
    if not failed:
        return good
    text = f"{len(failed)} of {count} {what} failed, nothing was published; the first: {failed[0].text}"
    raise (SomeRanksFailed if good else InputError)(text)


def _refuse_same_rank(ready: Sequence[_Ready], inputs: Sequence[run.Inputs]) -> None:
    first: dict[int, Path] = {}
    for one, files in zip(ready, inputs, strict=True):
        if one.rank in first:
            raise InputError(
                f"both this and {first[one.rank]} say that they are rank {one.rank}",
                path=files.recording,
                todo="give one recording a rank",
            )
        first[one.rank] = files.recording


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
