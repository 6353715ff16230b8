"""Several ranks: a job for each, which leaves its work in ``DIR/.graphlink``, and one that joins them and has their files written."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET

from graphlink import publish
from graphlink.engine.engines import Lost, RunsOn, run_all
from graphlink.engine.memory import estimate_bytes
from graphlink.errors import SOME_RANKS_FAILED, GraphlinkError, InputError
from graphlink.nccl.summary import over_ranks
from graphlink.ranks import group_ids as groups
from graphlink.ranks import summary
from graphlink.ranks.comms import rank_comms
from graphlink.read.heads import at_once
from graphlink.replay.across import CriticalAcross, across
from graphlink.replay.across import encode as encode_across
from graphlink.replay.folder import load
from graphlink.report import timeline
from graphlink.run import job
from graphlink.run.fetch import here, unpacked_size
from graphlink.run.job import RunResult
from graphlink.run.join import cut_short, join
from graphlink.run.one_run import of_other_runs, of_other_times
from graphlink.run.state import AGAIN, RankRows, Result, State, Stored, digest

log: Final = logging.getLogger("graphlink")
MOST_REPLAYED: Final = 500_000  # nodes of all ranks up to which they are replayed together in passing
_FLAGS: Final = {"gap_ns": "gap-us", "range_rules": "range-rule"}  # of options that are named otherwise
PATH_NAME: Final = "critical_path.ranks.json"
_Result = TypeVar("_Result")


class SomeRanksFailed(GraphlinkError):
    """Some ranks of several failed; nothing is published, and what was done for the others is kept."""

    exit_status = SOME_RANKS_FAILED


@dataclass(frozen=True, slots=True)
class Failed:
    """What a job that failed has to say."""

    text: str


@dataclass(frozen=True, slots=True)
class Jobs:
    """Ranks whose jobs are done, and what those say that failed."""

    done: tuple[Stored, ...]
    failed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Rank:
    inputs: job.Inputs
    options: job.Options
    out: str


@dataclass(frozen=True, slots=True)
class _Finish:
    stored: Stored
    joined: job.Joined
    options: job.Options
    out: str


@contextlib.contextmanager
def naming_limits(recording: str) -> Iterator[None]:
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


@contextlib.contextmanager
def _fitting(path: object, *, earlier: bool) -> Iterator[None]:
    """Turns what is stumbled over in the state of ``earlier`` commands, which anybody may have made, into an InputError."""
    try:
        yield
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as problem:
        if not earlier:
            raise
        what = f"what an earlier job left does not fit together ({type(problem).__name__}: {problem})"
        raise InputError(what, path=str(path), todo=f"{AGAIN}; if it says the same then, please report it") from problem


def rank_jobs(inputs: Sequence[job.Inputs], options: job.Options, out: str, runs_on: RunsOn, *, resume: bool) -> Jobs:
    """The work on each rank until the others must be known; with ``resume`` only where an earlier command has not done it."""
    options = _of_ranks(options)
    state = State(out)
    state.clear_unfinished()
    earlier = at_once(lambda one: state.found(one, options), inputs) if resume else []
    done = {i: found for i, found in enumerate(earlier) if found is not None}
    todo = [i for i in range(len(inputs)) if i not in done]
    if done:
        log.info("%d of %d ranks are done already", len(done), len(inputs))
    at_once(lambda i: state.forget(inputs[i]), todo)  # or what an earlier job made of other recordings would stand where this one fails
    estimates = [estimate_bytes(unpacked_size(inputs[i])) for i in todo]
    try:
        outcomes = run_all(_rank_job, [_Rank(inputs[i], options, out) for i in todo], runs_on, estimates)
    finally:
        state.clear_unfinished()
    failed = []
    for i, outcome in zip(todo, naming_lost(outcomes, [inputs[i].name for i in todo]), strict=True):
        if isinstance(outcome, Stored):
            done[i] = outcome
        else:
            failed.append(outcome.text)
    return Jobs(tuple(done[i] for i in sorted(done)), tuple(failed))


def _rank_job(task: _Rank) -> Stored | Failed:
    try:
        with naming_limits(task.inputs.name), here(task.inputs) as inputs:
            prepared = job.prepare(inputs, task.options)
        comms = rank_comms(prepared.built.graph, prepared.linked, prepared.comm, prepared.rank, prepared.world_size)
        rows = RankRows(comms, prepared.plan.groups, prepared.staged.run, len(prepared.built.graph.kind))
        return State(task.out).save(task.inputs, task.options, prepared, rows)
    except GraphlinkError as problem:
        return Failed(problem.text())


def join_ranks(
    stored: Sequence[Stored], options: job.Options, out: str, folder: Path, runs_on: RunsOn, *, same_run: bool = False
) -> RunResult:
    """Join ranks whose jobs are done, and write the files of all of them, and those of the run, into ``folder``.

    Raises:
        InputError: two jobs are of one rank, the ranks contradict each other or are of several runs (unless ``same_run`` insists on one),
            or what a job left cannot be read.
        SomeRanksFailed: the files of some ranks cannot be written.
    """
    state = State(out)
    _refuse_same_rank(stored, state)
    stored = sorted(stored, key=lambda s: s.manifest.rank)
    keys = [s.key for s in stored]
    rows = state.rows(keys)
    other = next((s for s, row in zip(stored, rows, strict=True) if row.comms.rank != s.manifest.rank), None)
    if other is not None:
        what = f"what an earlier job left is not of rank {other.manifest.rank}, as it says"
        raise InputError(what, path=state.where(other.key), todo="run the job of this rank again")
    manifests = [s.manifest for s in stored]
    with _fitting(state.where(""), earlier=any(s.earlier for s in stored)):
        apart = of_other_runs(manifests, [row.comms for row in rows])
        if apart is None or same_run:
            joined = join(rows, keep_unmatched=options.keep_unmatched)
            apart = apart or of_other_times(manifests, [row.comms for row in rows], joined.clocks)
    if apart is not None and not same_run:
        raise apart
    warnings = (*joined.warnings, *([f"{apart.path}: {apart.what}"] if apart else []), *cut_short(joined))
    tasks = [_Finish(s, joined.ranks[s.manifest.rank], options, out) for s in stored]
    outcomes = run_all(_finish, tasks, runs_on, [estimate_bytes(s.manifest.unpacked_bytes) for s in stored])
    results = good(naming_lost(outcomes, [s.manifest.recordings[0].path for s in stored]), len(tasks))
    state.take_files(keys, folder)
    files = [name for result in results for name in result.files]
    if any(joined.ids.values()):
        publish.write(folder / groups.NAME, groups.comm_group_json(joined.ids))
        files.append(groups.NAME)
    if options.timeline != "none":
        files.append(timeline.join(folder, sorted(joined.ranks), joined.pipeline))
    files += job.write_pipeline(joined.pipeline, folder)
    replay = None
    if len(stored) > 1 and joined.nodes <= MOST_REPLAYED:
        log.info("replaying all ranks")
        members = {number: ranks for of_rank in joined.ids.values() for (ranks, _), number in of_rank.items()}
        path = across(load({rank: folder / f"{options.name}.{rank}.et" for rank in sorted(joined.ranks)}), members)
        publish.write(folder / PATH_NAME, encode_across(path))
        files.append(PATH_NAME)
        replay = _replay(path)
    ranks = tuple(sorted((r.rank for r in results), key=lambda s: s.rank))
    side_files = [(rank.rank, rank.nccl) for rank in ranks if rank.nccl is not UNSET]
    run = msgspec.structs.replace(joined.summary, replay=replay, nccl=over_ranks(side_files) if side_files else UNSET)
    return RunResult(ranks, joined.pipeline, tuple(files), run, warnings)


def _replay(path: CriticalAcross) -> summary.RunReplay:
    return summary.RunReplay(
        measured_ns=path.measured_ns,
        replayed_ns=path.before_ns + path.length_ns,
        path_ns=path.length_ns,
        path_from_rank=path.nodes.rank[0] if path.nodes.rank else None,
        error_pct=path.error_pct,
        nodes=path.nodes_all,
        ran=path.nodes_run,
        path_share_ns=path.share_ns,
        path_rank_ns={str(r.rank): r.ns for r in path.ranks if r.ns},
    )


def naming_lost(outcomes: Sequence[_Result | Failed | Lost], recordings: Sequence[str]) -> list[_Result | Failed]:
    """A job whose process died cannot say whose it was."""
    return [
        Failed(f"{name}: {outcome.text}") if isinstance(outcome, Lost) else outcome
        for outcome, name in zip(outcomes, recordings, strict=True)
    ]


def _finish(task: _Finish) -> Result | Failed:
    state, key = State(task.out), task.stored.key

    def write(folder: Path) -> Result:
        entry, files = job.finish(state.prepared(key), task.joined, task.options, folder)
        return Result(joined=made_with, rank=entry, files=list(files))

    made_with = digest(task.joined, task.options)
    try:
        with naming_limits(task.stored.manifest.recordings[0].path), _fitting(state.where(key), earlier=task.stored.earlier):
            return state.finish(key, made_with, write)
    except GraphlinkError as problem:
        return Failed(problem.text())


def options_of(stored: Sequence[Stored], joining: job.Options) -> job.Options:
    """The options of jobs that are to be joined, with those of ``joining`` that only joining looks at.

    Raises:
        InputError: the jobs were not all done with the same, or what is kept of them is damaged.
    """
    first = stored[0].manifest.options
    for other in stored[1:]:
        name = next((n for n in first if other.manifest.options.get(n) != first[n]), None)
        if name is not None:
            flag = _FLAGS.get(name, name.replace("_", "-"))
            raise InputError(
                f"the jobs of ranks {stored[0].manifest.rank} and {other.manifest.rank} differ in --{flag}",
                todo="run the jobs of all ranks with the same options",
            )
    try:
        own = msgspec.convert(first, job.Options)
    except msgspec.ValidationError as problem:
        rank = stored[0].manifest.rank
        raise InputError(f"the options of the job of rank {rank} are damaged: {problem}", todo="run the job of this rank again") from None
    return replace(own, comm_time=joining.comm_time, keep_unmatched=joining.keep_unmatched)


def _of_ranks(options: job.Options) -> job.Options:
    default = job.Options()
    return replace(options, comm_time=default.comm_time, keep_unmatched=default.keep_unmatched)


def good(outcomes: Iterable[_Result | Failed], count: int, what: str = "ranks") -> list[_Result]:
    """The results.

    Raises:
        SomeRanksFailed, InputError: some or all have none; the first failure is told.
    """
    good: list[_Result] = []
    failed: list[str] = []
    for outcome in outcomes:
        if isinstance(outcome, Failed):
            failed.append(outcome.text)
        else:
            good.append(outcome)
    if not failed:
        return good
    first = f"{len(failed)} of {count} {what} failed, nothing was published; the first: " if count > 1 else ""
    text = f"{first}{failed[0]}"
    raise (SomeRanksFailed if good else InputError)(text)


def _refuse_same_rank(stored: Sequence[Stored], state: State) -> None:
    first: dict[int, Stored] = {}
    for one in stored:
        other = first.setdefault(one.manifest.rank, one)
        if other is not one:
            raise InputError(
                f"both this and {other.manifest.recordings[0].path} say that they are rank {one.manifest.rank}",
                path=one.manifest.recordings[0].path,
                where=f"{state.where(one.key)} and {state.where(other.key)}",
                todo="give one recording a rank; of jobs done before remove the folder of the one that is not wanted",
            )
