"""Several ranks: a job for each, which leaves its work in ``DIR/.graphlink``, and one that joins them and has their
files written.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

import msgspec

from graphlink import output_names, publish
from graphlink.engine.engines import RunsOn, run_all
from graphlink.engine.memory import estimate_bytes
from graphlink.errors import SOME_RANKS_FAILED, GraphlinkError, InputError, log
from graphlink.process import ResultT
from graphlink.ranks import summary
from graphlink.ranks.columns import rank_comms
from graphlink.read.heads import at_once
from graphlink.replay.across import CriticalAcross, across
from graphlink.run import job, state
from graphlink.run.fetch import here, unpacked_size
from graphlink.run.join import cut_short, join
from graphlink.run.one_run import of_other_runs, of_other_times
from graphlink.run.options import Inputs, Options
from graphlink.run.out import Out, out_of
from graphlink.run.records import Joined, PreparedRank, RankRows, RunResult
from graphlink.run.state import Result, Stored
from graphlink.wings import each

MOST_REPLAYED: Final = 500_000  # nodes of all ranks up to which they are replayed together in passing
_FLAGS: Final = {"gap_ns": "gap-us", "range_rules": "range-rule"}  # of options that are named otherwise


class SomeRanksFailed(GraphlinkError):
    """Some ranks of several failed; nothing is published, and what was done for the others is kept."""

    exit_status = SOME_RANKS_FAILED


@contextlib.contextmanager
def _fitting(path: object, *, earlier: bool) -> Iterator[None]:
    """Turn what is stumbled over in the state of ``earlier`` commands, which anybody may have made, into an
    InputError.
    """
    try:
        yield
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as problem:
        if not earlier:
            raise
        what = f"what an earlier job left does not fit together ({type(problem).__name__}: {problem})"
        raise InputError(
            what, path=str(path), todo=f"{state.AGAIN}; if it says the same then, please report it"
        ) from problem


def rank_jobs(
    inputs: Sequence[Inputs], options: Options, out: str, runs_on: RunsOn, *, resume: bool
) -> list[Stored | GraphlinkError]:
    """Do the work on each rank until the others must be known; with ``resume`` only where an earlier command has not
    done it.
    """
    default = Options()
    options = replace(
        options, comm_time=default.comm_time, keep_unmatched=default.keep_unmatched
    )  # which only joining reads
    place = out_of(out)
    place.clear_unfinished()
    earlier = at_once(lambda one: state.found(place, one, options), inputs) if resume else []
    done: dict[int, Stored | GraphlinkError] = {i: found for i, found in enumerate(earlier) if found is not None}
    todo = [i for i in range(len(inputs)) if i not in done]
    if done:
        log.info("%d of %d ranks are done already", len(done), len(inputs))
    # or what an earlier job made of other recordings would stand where this one fails
    at_once(lambda i: place.drop(state.key(inputs[i]), state.MANIFEST), todo)
    estimates = [estimate_bytes(unpacked_size(inputs[i])) for i in todo]
    work = functools.partial(_rank_job, options=options, out=out)
    try:
        outcomes = run_all(work, [inputs[i] for i in todo], [inputs[i].name for i in todo], runs_on, estimates)
    finally:
        place.clear_unfinished()
    done.update(zip(todo, outcomes, strict=True))
    return [done[i] for i in range(len(inputs))]


def _rank_job(inputs: Inputs, options: Options, out: str) -> Stored:
    with here(inputs) as local:
        prepared = job.prepare(local, options)
    comms = rank_comms(prepared.built.graph, prepared.linked, prepared.comm, prepared.rank, prepared.world_size)
    rows = RankRows(comms, prepared.plan.groups, prepared.parts.asked("to_join"), len(prepared.built.graph.kind))
    return state.save(out_of(out), inputs, options, prepared, rows)


def join_ranks(
    stored: Sequence[Stored], options: Options, out: str, folder: Path, runs_on: RunsOn, *, same_run: bool = False
) -> RunResult:
    """Join ranks whose jobs are done, and write the files of all of them, and those of the run, into ``folder``.

    Raises:
        InputError: two jobs are of one rank, the ranks contradict each other or are of several runs (unless
            ``same_run`` insists on one), or what a job left cannot be read.
        SomeRanksFailed: the files of some ranks cannot be written.
    """
    place = out_of(out)
    _refuse_same_rank(stored, place)
    stored = sorted(stored, key=lambda s: s.manifest.rank)
    keys = [s.key for s in stored]
    rows = at_once(lambda key: state.load(place, key, RankRows), keys)
    other = next((s for s, row in zip(stored, rows, strict=True) if row.comms.rank != s.manifest.rank), None)
    if other is not None:
        what = f"what an earlier job left is not of rank {other.manifest.rank}, as it says"
        raise InputError(what, path=place.where(other.key), todo="run the job of this rank again")
    manifests = [s.manifest for s in stored]
    with _fitting(place.where(""), earlier=any(s.earlier for s in stored)):
        apart = of_other_runs(manifests, [row.comms for row in rows])
        if apart is None or same_run:
            joined = join(rows, keep_unmatched=options.keep_unmatched)
            apart = apart or of_other_times(manifests, [row.comms for row in rows], joined.clocks)
    if apart is not None and not same_run:
        raise apart
    warnings = (*joined.warnings, *([f"{apart.path}: {apart.what}"] if apart else []), *cut_short(joined))
    replayed = len(stored) > 1 and sum(row.nodes for row in rows) <= MOST_REPLAYED
    tasks = [(s, replace(joined.ranks[s.manifest.rank], replayed=replayed)) for s in stored]
    names, estimates = [s.name for s in stored], [estimate_bytes(s.manifest.unpacked_bytes) for s in stored]
    results = good(run_all(functools.partial(_finish, options=options, out=out), tasks, names, runs_on, estimates))
    at_once(lambda key: place.take(f"{key}/{state.FINISHED}", state.RESULT, folder), keys)
    ids = {rank: one.ids for rank, one in joined.ranks.items()}
    files = [
        *(name for result in results for name in result.files),
        *job.write_common(ids, joined.parts, options, folder),
    ]
    replay = None
    if replayed:
        log.info("replaying all ranks")
        members = {number: ranks for of_rank in ids.values() for (ranks, _), number in of_rank.items()}
        path = across({rank: state.take_graph(rank, folder) for rank in sorted(joined.ranks)}, members)
        publish.write(folder / output_names.PATH_ACROSS, msgspec.json.encode(path) + b"\n")
        files.append(output_names.PATH_ACROSS)
        replay = _replay(path)
    ranks = tuple(result.rank for result in results)
    fields = {name: value for _, hooks in each() for name, value in (hooks.of_records(ranks) or {}).items()}
    run = msgspec.structs.replace(joined.summary, replay=replay, **fields)
    return RunResult(ranks, joined.parts, tuple(files), run, warnings)


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
        top_gain=path.top_gain,
    )


def _finish(task: tuple[Stored, Joined], options: Options, out: str) -> Result:
    stored, joined = task
    place, made_with = out_of(out), state.digest(joined, options)
    there = state.finished(place, stored.key, made_with)
    if there is not None:
        return there
    name = f"{stored.key}/{state.FINISHED}"
    with _fitting(place.where(stored.key), earlier=stored.earlier), place.place(name, state.RESULT) as folder:
        done = job.finish(state.load(place, stored.key, PreparedRank), joined, options, folder)
        if joined.replayed:
            state.keep_graph(done.graph, folder)
        result = Result(joined=made_with, rank=done.entry, files=list(done.files))
        publish.write(folder / state.RESULT, msgspec.json.encode(result))
    return result


def options_of(stored: Sequence[Stored], joining: Options) -> Options:
    """Return the options of jobs that are to be joined, with those of ``joining`` that only joining reads.

    Raises:
        InputError: the jobs were not all done with the same.
    """
    first = stored[0].manifest.options
    for other in stored[1:]:
        name = next(
            (f.name for f in fields(first) if getattr(other.manifest.options, f.name) != getattr(first, f.name)), None
        )
        if name is not None:
            flag = _FLAGS.get(name, name.replace("_", "-"))
            raise InputError(
                f"the jobs of ranks {stored[0].manifest.rank} and {other.manifest.rank} differ in --{flag}",
                todo="run the jobs of all ranks with the same options",
            )
    return replace(first, comm_time=joining.comm_time, keep_unmatched=joining.keep_unmatched)


def good(
    outcomes: Sequence[ResultT | GraphlinkError], what: str = "ranks", *, partial: bool = False, kept: str | None = None
) -> list[ResultT]:
    """Return the results; where some failed, those of the others only if it is ``partial``. ``kept``: where these are
    kept.

    Raises:
        SomeRanksFailed, InputError: some or all have none; the first failure is reported.
    """
    good = [one for one in outcomes if not isinstance(one, GraphlinkError)]
    failed = [one.text() for one in outcomes if isinstance(one, GraphlinkError)]
    if not failed or (good and partial):
        return good
    text = failed[0]
    if len(outcomes) > 1:
        text = f"{len(failed)} of {len(outcomes)} {what} failed, nothing was published; the first: {text}"
    if not good:
        raise InputError(text)
    todo = f"{len(good)} are kept in {kept}: go on with --resume, or publish them with --partial" if kept else None
    raise SomeRanksFailed(text, todo=todo)


def _refuse_same_rank(stored: Sequence[Stored], place: Out) -> None:
    first: dict[int, Stored] = {}
    for one in stored:
        other = first.setdefault(one.manifest.rank, one)
        if other is not one:
            raise InputError(
                f"both this and {other.name} say that they are rank {one.manifest.rank}",
                path=one.name,
                where=f"{place.where(one.key)} and {place.where(other.key)}",
                todo="give one recording a rank; of jobs done before remove the folder of the one that is not wanted",
            )
