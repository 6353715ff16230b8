"""The main job: one rank or many, published together or not at all; and its two halves, jobs of single ranks and their joining."""

from __future__ import annotations

import argparse
import glob
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import UNSET

from graphlink.annotate.pipeline.rules import user_rules
from graphlink.cli.inputs import Found, of_files, of_folders, unfold
from graphlink.cli.nsys import ranks_of
from graphlink.cli.out import say
from graphlink.cli.progress import reporting
from graphlink.cli.side_files import given, pair
from graphlink.cli.standins import Standins
from graphlink.emit import bubbles, publish, summary, summary_run
from graphlink.engine.engines import RunsOn, session
from graphlink.errors import GraphlinkError, InputError, UsageError
from graphlink.link.steps import parse_steps
from graphlink.run import job
from graphlink.run.compare import compare
from graphlink.run.fetch import here
from graphlink.run.out import Out, out_of
from graphlink.run.paddle import run_paddle
from graphlink.run.ranks import SOME_FAILED, Failed, Jobs, SomeRanksFailed, good, join_ranks, naming_limits, options_of, rank_jobs
from graphlink.run.state import State, Stored
from graphlink.run.told import cut_short, run_told
from graphlink.version import __version__

log: Final = logging.getLogger("graphlink")


def link(arguments: argparse.Namespace) -> int:
    """Links what ``arguments`` name, writes ``--out`` and prints the summary; returns the exit status.

    Raises:
        GraphlinkError: as the stages do; nothing is published then.
    """
    options = _options(arguments)
    parse_steps(options.step)
    user_rules(options.range_rules)
    if arguments.rank_job:
        return _leave_jobs(arguments, options)
    state, out = State(arguments.out), out_of(arguments.out)
    going_on = arguments.resume and state.exists()
    complete = _complete(arguments, out, options) if arguments.resume else None
    if complete is not None and not going_on:
        return _said(arguments, complete, 0, f"{arguments.out} was complete already")
    with out.publication(force=arguments.force or complete is not None) as publication:
        with reporting(quiet=arguments.quiet, verbose=arguments.verbose):
            made = _write(arguments, options, publication.beside)
            publication.publish()
        status = _said(arguments, made.whole, made.status)  # still inside: if it cannot be said, nothing is published
    state.clear()
    return status


def join(arguments: argparse.Namespace) -> int:
    """``graphlink join DIR``: joins the ranks whose jobs lie in DIR, publishes and prints the summary; returns the exit status.

    Raises:
        GraphlinkError: there are none, or as the stages do; nothing is published then.
    """
    state, out = State(arguments.out), out_of(arguments.out)
    stored = state.all()
    if not stored:
        raise InputError(
            "holds no jobs of ranks to join", path=out.name, todo="run graphlink link --rank-job --out DIR for every rank first"
        )
    options = options_of(stored, job.Options(comm_time=arguments.comm_time, keep_unmatched=arguments.keep_unmatched))
    with out.publication(force=arguments.force) as publication:
        with reporting(quiet=arguments.quiet, verbose=arguments.verbose), session(_runs_on(arguments)):
            missing = _missing(stored, strict=arguments.strict)
            joined = join_ranks(stored, options, arguments.out, publication.beside, _runs_on(arguments), same_run=arguments.same_run)
            told = run_told(joined.run, joined.path, [], joined.result.ranks)
            whole = _summarised(joined.result, options, told, (*missing, *joined.run.warnings, *cut_short(joined.run)), publication.beside)
            publication.publish()
        _said(arguments, whole, 0)
    state.clear()
    return 0


def _options(arguments: argparse.Namespace) -> job.Options:
    return job.Options(
        step=arguments.step,
        sync=arguments.sync,
        hta_limit=arguments.hta_limit,
        target=arguments.target,
        gap_ns=round(arguments.gap_us * 1000),
        linked=arguments.linked,
        host=arguments.host,
        timeline="none" if arguments.no_timeline else arguments.timeline,
        name=arguments.name,
        range_rules=tuple(arguments.range_rule),
        comm_time=arguments.comm_time,
        keep_unmatched=arguments.keep_unmatched,
    )


def _runs_on(arguments: argparse.Namespace) -> RunsOn:
    return RunsOn(arguments.jobs, arguments.engine)


def _said(arguments: argparse.Namespace, whole: summary.Summary, status: int, last: str = "") -> int:
    if not arguments.quiet:
        say(f"{summary.table(whole)}\n\n{last or f'wrote {len(whole.files)} files to {arguments.out}'}")
    return status


def _leave_jobs(arguments: argparse.Namespace, options: job.Options) -> int:
    """``--rank-job``: the work on the ranks that are named, left for ``graphlink join``."""
    with tempfile.TemporaryDirectory(prefix="graphlink-") as folder, reporting(quiet=arguments.quiet, verbose=arguments.verbose):
        inputs, _ = _inputs(arguments, options, Path(folder))
        jobs = rank_jobs(inputs, options, arguments.out, _runs_on(arguments), resume=arguments.resume)
    good([*jobs.done, *map(Failed, jobs.failed)], len(inputs))
    if not arguments.quiet:
        ranks = ", ".join(str(s.manifest.rank) for s in jobs.done)
        out = out_of(arguments.out)
        say(f"rank {ranks}: kept in {out.hidden}; when all ranks are, graphlink join {out.name}")
    return 0


def _complete(arguments: argparse.Namespace, out: Out, options: job.Options) -> summary.Summary | None:
    """What an earlier run of these recordings with these options wrote, if it was killed after all was done.

    Of recordings of this machine that are newer than outputs on this machine it is another run.
    """
    whole = out.published()
    if whole is None or whole.options != _told(options) or whole.graphlink != __version__ or arguments.paddle_logs or arguments.nsys:
        return None
    with tempfile.TemporaryDirectory(prefix="graphlink-") as folder:
        inputs, _ = _inputs(arguments, options, Path(folder))
    asked = {frozenset(map(one.name_of, one.files)) for one in inputs}
    same = asked == {_files_of(rank) for rank in whole.ranks}
    return whole if same and not _changed_since(Path(arguments.out) / summary.NAME, inputs) else None


def _files_of(rank: summary.Rank) -> frozenset[str]:
    side_files = [] if rank.nccl is UNSET else [file.path for file in rank.nccl.files]
    return frozenset([*filter(None, (rank.inputs.kineto, rank.inputs.et)), *side_files])


def _changed_since(published: Path, inputs: Sequence[job.Inputs]) -> bool:
    """Whether a recording was written, or put where it is, after ``published``; False where one of them is behind a URL."""
    local = [path for one in inputs for path in one.files if one.remote_of(path) is None]
    if not published.is_file() or not local:
        return False
    told = [path.stat() for path in local]
    return max(max(one.st_mtime_ns, one.st_ctime_ns) for one in told) > published.stat().st_mtime_ns


def _missing(stored: Sequence[Stored], *, strict: bool) -> tuple[str, ...]:
    """Ranks of the run without a job, in words.

    Raises:
        InputError: there are some, and it is ``strict``.
    """
    there = {s.manifest.rank for s in stored}
    world_size = max(s.manifest.world_size for s in stored)
    gone = list(islice((r for r in range(world_size) if r not in there), 9))
    if not gone:
        return ()
    text = f"no job of rank {', '.join(map(str, gone[:8]))}{', ...' if len(gone) > 8 else ''} of {world_size} ranks"
    if strict:
        raise InputError(text, todo="run graphlink link --rank-job for them, or leave out --strict")
    log.warning("%s", text)
    return (text,)


def _inputs(arguments: argparse.Namespace, options: job.Options, folder: Path) -> tuple[Sequence[job.Inputs], tuple[str, ...]]:
    """The ranks that ``arguments`` name, and warnings. Those of nsys exports are known once they are read: their traces lie in ``folder``
    then; so do the beginnings of files behind URLs."""
    standins = Standins(folder / "urls")  # a folder, which is not published
    with standins.telling():
        found = standins.stood_for(_found(standins.named(arguments)))
    warnings = (*found.missing, *found.warnings)
    for text in warnings:
        log.warning("%s", text)
    if found.missing and arguments.strict:
        raise InputError(
            f"--strict, and the run is not whole: {'; '.join(found.missing)}", todo="add what is missing, or leave out --strict"
        )
    if not found.exports:
        if options.linked and (bare := [rank for rank in found.ranks if rank.et is None]):
            what = "--linked merges an execution trace with device ops, and there is none for it"
            raise UsageError(what, path=bare[0].name, todo="give one of every rank, or leave out --linked")
        return found.ranks, warnings
    if options.linked:
        raise UsageError("--linked merges an execution trace with device ops, and nsys exports have none", path=found.exports[0])
    if arguments.nccl:
        raise UsageError("--nccl is for Kineto traces: side files are not joined with nsys exports", path=found.exports[0])
    if arguments.strict:
        raise UsageError(
            "--strict is for Kineto traces: an nsys export says neither its partners nor how many there are", path=found.exports[0]
        )
    traces = folder / "nsys"  # a folder, which is not published
    traces.mkdir()
    return ranks_of(found.exports, arguments.rank, traces, _runs_on(arguments)), warnings


def _found(arguments: argparse.Namespace) -> Found:
    """What ``arguments`` name."""
    of_several = arguments.rank_job and (arguments.folder or len(arguments.kineto) > 1 or any(map(glob.has_magic, arguments.kineto)))
    rank = None if of_several else arguments.rank
    if arguments.nsys:
        found = Found(exports=tuple(unfold(arguments.nsys)))
    elif arguments.folder:
        found = of_folders(arguments.folder, rank, same_run=arguments.same_run)
    else:
        found = of_files(arguments.kineto, arguments.et, rank, same_run=arguments.same_run)
    if found.ranks:
        names = unfold(arguments.nccl)
        dumps = given(names)
        inside = [dump for dump in dumps if dump.path not in names]  # of folders: like those that are found
        paired = pair((*found.dumps, *inside), [dump for dump in dumps if dump.path in names], found.ranks)
        found = replace(found, ranks=paired.ranks, missing=(*found.missing, *paired.missing))
    if of_several and arguments.rank is not None and not found.exports:
        found = _only(found, arguments.rank)
    return found


def _same_folder(name: str, other: str) -> bool:
    return name == other or Path(name).resolve() == Path(other).resolve()


def _only(found: Found, rank: int) -> Found:
    """For the job of one rank that is to be picked out of all."""
    mine = tuple(one for one in found.ranks if one.expected_rank == rank)
    if len(found.ranks) == 1 and found.ranks[0].expected_rank is None:  # nothing but --rank tells it
        mine = (replace(found.ranks[0], rank=rank),)
    if not mine:
        there = ", ".join(str(one.expected_rank) for one in found.ranks[:8])
        raise InputError(f"there is no recording of rank {rank}, but of {there}", todo="choose another --rank")
    return replace(found, ranks=mine)


@dataclass(frozen=True, slots=True)
class _Made:
    whole: summary.Summary
    status: int


def _write(arguments: argparse.Namespace, options: job.Options, folder: Path) -> _Made:
    """All files of the job into ``folder``; what their summary says, and the exit status."""
    if arguments.paddle_logs is not None:
        result = run_paddle(Path(arguments.paddle_logs), options.step, folder)
        return _Made(_summarised(result, options, None, (), folder), 0)
    inputs, warnings = _inputs(arguments, options, folder)
    if len(inputs) == 1:
        with naming_limits(inputs[0].name), here(inputs[0]) as one:
            result = job.run_rank(one, options, folder)
        if options.comm_time != "recorded":
            warnings = (
                *warnings,
                "--comm-time transfer: a rank alone does not tell how long it waited for others, so times are as recorded",
            )
        return _Made(_summarised(result, options, None, warnings, folder), 0)
    out, runs_on = arguments.out, _runs_on(arguments)
    with session(runs_on):
        jobs = rank_jobs(inputs, options, out, runs_on, resume=arguments.resume)
        if jobs.failed and not (jobs.done and arguments.partial):
            raise _failed(jobs, len(inputs), out_of(out))
        joined = join_ranks(jobs.done, options, out, folder, runs_on, same_run=arguments.same_run)
    warnings = (*warnings, *(f"left out, since its job failed: {text.splitlines()[0]}" for text in jobs.failed))
    standins = Standins(folder / "graphs")
    with standins.telling():
        beside = standins.graphs([name for name in arguments.folder if not _same_folder(name, out)])  # not with outputs of our own
    compared, others = compare(beside, {rank: folder / f"{options.name}.{rank}.et" for rank in joined.run.ranks})
    told = run_told(joined.run, joined.path, compared, joined.result.ranks)
    whole = _summarised(
        joined.result, options, told, (*warnings, *map(standins.told, others), *joined.run.warnings, *cut_short(joined.run)), folder
    )
    return _Made(whole, SOME_FAILED if jobs.failed else 0)


def _failed(jobs: Jobs, count: int, out: Out) -> GraphlinkError:
    text = f"{len(jobs.failed)} of {count} ranks failed, nothing was published; the first: {jobs.failed[0]}"
    if not jobs.done:
        return InputError(text)
    return SomeRanksFailed(text, todo=f"{len(jobs.done)} are kept in {out.hidden}: go on with --resume, or publish them with --partial")


def _summarised(
    result: job.RunResult, options: job.Options, told: summary_run.Run | None, warnings: tuple[str, ...], folder: Path
) -> summary.Summary:
    """The summary of a job whose other files lie in ``folder``, written there too."""
    whole = summary.Summary(
        options=_told(options),
        ranks=list(result.ranks),
        run=told,
        pipeline=bubbles.summarised(result.pipeline) if result.pipeline is not None else None,
        warnings=list(warnings),
        files=sorted({*result.files, summary.NAME}),
    )
    publish.write(folder / summary.NAME, summary.encode(whole))
    return whole


def _told(options: job.Options) -> summary.Options:
    return summary.Options(
        step=options.step,
        sync=options.sync,
        hta_limit=options.hta_limit,
        target=options.target,
        gap_us=options.gap_ns / 1000,
        comm_time=options.comm_time,
        keep_unmatched=options.keep_unmatched,
        host=options.host,
        range_rules=list(options.range_rules),
        linked=options.linked,
        timeline=options.timeline,
        name=options.name,
    )
