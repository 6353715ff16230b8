"""The main job: recordings found, ranks linked and joined, files published together or not at all; and its two halves,
jobs and joining.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec

from graphlink import output_names, publish
from graphlink.engine.engines import RunsOn, naming_limits, session
from graphlink.engine.files import is_url
from graphlink.errors import SOME_RANKS_FAILED, GraphlinkError, InputError, OutputError, SeveralRanks, log
from graphlink.records import first_absent
from graphlink.report import summary
from graphlink.run import job
from graphlink.run.discover.find import find, of_merged
from graphlink.run.discover.inputs import refuse_absent
from graphlink.run.discover.standins import Standins
from graphlink.run.fetch import here, naming_urls, with_urls
from graphlink.run.options import Inputs, Options, Recordings
from graphlink.run.out import Out, out_of
from graphlink.run.records import RunResult
from graphlink.run.state import Stored, all_found
from graphlink.version import __version__
from graphlink.wings import Parts, all_of, each


class Made(msgspec.Struct, frozen=True):
    """The files that were published, and the exit status of the command. ``earlier``: by an earlier run, and nothing
    was left to do.
    """

    summary: summary.Summary
    status: int = 0
    earlier: bool = False


@contextlib.contextmanager
def linked(
    recordings: Recordings,
    options: Options,
    runs_on: RunsOn,
    folder: str,
    *,
    force: bool,
    resume: bool,
    partial: bool,
) -> Iterator[Made]:
    """Link the recordings of a run and publish its files in ``folder``, or behind that URL. What is raised inside takes
    them back.

    ``force``: replace the files that the summary of an earlier run lists, and no others; ``resume``: go on with what an
    earlier run that failed or was killed left there; ``partial``: publish the ranks that did not fail.

    Raises:
        GraphlinkError: as the stages do; nothing is published then.
    """
    refuse_absent(
        name for name in recordings.folders if not is_url(name)
    )  # before it is said that outputs are in the way
    out = out_of(folder)
    complete = _complete(recordings, out, options, runs_on) if resume else None
    if complete is not None:
        yield Made(complete, earlier=True)
        out.clear()
        return
    with out.publication(force=force) as publication, _saying_what_is_kept(out):
        made = _write(recordings, options, runs_on, out, publication.beside, resume=resume, partial=partial)
        publication.publish()
        yield made
    out.clear()


@contextlib.contextmanager
def joined(
    joining: Options, runs_on: RunsOn, folder: str, *, force: bool, strict: bool, same_run: bool
) -> Iterator[Made]:
    """Join the ranks whose jobs ``leave_jobs`` left, and publish their files. What is raised inside takes them back.

    Of ``joining`` only what joining reads counts: all else is that of the jobs.

    Raises:
        GraphlinkError: there are none, or as the stages do; nothing is published then.
    """
    from graphlink.run.ranks import join_ranks, options_of

    out = out_of(folder)
    stored = all_found(out)
    if not stored:
        raise InputError(
            "holds no jobs of ranks to join",
            path=out.name,
            todo="run graphlink link --rank-job --out DIR for every rank first",
        )
    options = options_of(stored, joining)
    with out.publication(force=force) as publication:
        with session(runs_on):
            missing = _missing(stored, strict=strict)
            result = join_ranks(stored, options, folder, publication.beside, runs_on, same_run=same_run)
            whole = _summarised(result, options, missing, publication.beside)
            publication.publish()
        yield Made(whole)
    out.clear()


@contextlib.contextmanager
def _saying_what_is_kept(out: Out) -> Iterator[None]:
    """Add to errors that what is done of several ranks stays."""
    try:
        yield
    except (InputError, OutputError) as problem:
        if not out.exists():
            raise
        kept = f"what is done of the ranks is kept in {out.hidden} for --resume"
        todo = f"{problem.todo}; {kept}" if problem.todo else kept
        raise type(problem)(problem.what, path=problem.path, where=problem.where, todo=todo) from problem


def leave_jobs(recordings: Recordings, options: Options, runs_on: RunsOn, folder: str, *, resume: bool) -> list[int]:
    """Do the work on the ranks that are named, and leave it in ``folder`` for ``joined``. Return the ranks.

    Raises:
        GraphlinkError: as the stages do; ``SomeRanksFailed`` if some did.
    """
    from graphlink.run.ranks import good, rank_jobs

    with tempfile.TemporaryDirectory(prefix="graphlink-") as scratch:
        inputs = find(recordings, Path(scratch), runs_on, linked=options.linked, one=True).ranks
        outcomes = rank_jobs(inputs, options, folder, runs_on, resume=resume)
    return [stored.manifest.rank for stored in good(outcomes)]


def _complete(recordings: Recordings, out: Out, options: Options, runs_on: RunsOn) -> summary.Summary | None:
    """Return the result that an earlier run of these recordings with these options wrote, if it was killed after all
    was done.

    Of recordings of this machine that are newer than outputs on this machine it is another run.
    """
    whole = out.published()
    if whole is None or whole.options != _told(options) or whole.graphlink != __version__ or recordings.nsys:
        return None
    if not all(hooks.repeats(recordings, whole) for _, hooks in each()):
        return None
    with tempfile.TemporaryDirectory(prefix="graphlink-") as folder:
        inputs = find(recordings, Path(folder), runs_on, linked=options.linked).ranks
    asked = {frozenset(map(one.name_of, one.files)) for one in inputs}
    there = {frozenset([rank.inputs.kineto, rank.inputs.et, *all_of("files_of", rank)]) for rank in whole.ranks}
    same = asked == {names - {None} for names in there}
    return whole if same and not _changed_since(Path(out.name) / output_names.SUMMARY, inputs) else None


def _changed_since(published: Path, inputs: Sequence[Inputs]) -> bool:
    """Tell whether a recording was written, or put where it is, after ``published``; False where one of them is behind
    a URL.
    """
    local = [path for one in inputs for path in one.files if one.remote_of(path) is None]
    if not published.is_file() or not local:
        return False
    told = [path.stat() for path in local]
    return max(max(one.st_mtime_ns, one.st_ctime_ns) for one in told) > published.stat().st_mtime_ns


def _missing(stored: Sequence[Stored], *, strict: bool) -> tuple[str, ...]:
    """Describe the ranks of the run without a job, in words.

    Raises:
        InputError: there are some, and it is ``strict``.
    """
    there = {s.manifest.rank for s in stored}
    world_size = max(s.manifest.world_size for s in stored)
    gone = first_absent(there, world_size)
    if not gone:
        return ()
    text = f"no job of rank {gone} of {world_size} ranks"
    if strict:
        raise InputError(text, todo="run graphlink link --rank-job for them, or leave out --strict")
    log.warning("%s", text)
    return (text,)


def _write(
    recordings: Recordings,
    options: Options,
    runs_on: RunsOn,
    out: Out,
    folder: Path,
    *,
    resume: bool,
    partial: bool,
) -> Made:
    """Write all files of the job into ``folder``; return what their summary says, and the exit status."""
    # first: an error of theirs should not come after the work
    recorded = {name: hooks.recorded(recordings) for name, hooks in each()}
    made = {name: hooks.instead(recordings, options) for name, hooks in each()}
    parts = Parts({name: part for name, part in made.items() if part is not None})
    if parts:
        result = RunResult((), parts, job.write_parts(parts, folder))
        return Made(_summarised(result, options, (), folder, recorded))
    found = find(recordings, folder, runs_on, linked=options.linked)
    inputs, warnings = found.ranks, found.warnings
    if len(inputs) == 1:
        with naming_limits(inputs[0].name), here(inputs[0]) as one:
            try:
                result = job.run_rank(one, options, folder, runs_on.jobs)
            except SeveralRanks as problem:
                inputs = of_merged(one, problem, folder / "merged")
    if len(inputs) == 1:
        if options.comm_time != "recorded":
            warnings = (
                *warnings,
                "--comm-time transfer: a rank alone does not tell how long it waited for others, so times are as "
                "recorded",
            )
        return Made(_summarised(result, options, warnings, folder, recorded))
    from graphlink.run.ranks import good, join_ranks, rank_jobs

    with session(runs_on):
        outcomes = rank_jobs(inputs, options, out.name, runs_on, resume=resume)
        stored = good(outcomes, partial=partial, kept=out.hidden)
        result = join_ranks(stored, options, out.name, folder, runs_on, same_run=recordings.same_run)
    failed = [one.text().splitlines()[0] for one in outcomes if isinstance(one, GraphlinkError)]
    warnings = (*warnings, *(f"left out, since its job failed: {text}" for text in failed))
    own = {rank.rank: folder / output_names.graph(options.name, rank.rank) for rank in result.ranks}
    fields, doubts = _compared(recordings, out, folder / "graphs", own)
    assert result.run is not None
    result = replace(result, run=msgspec.structs.replace(result.run, **fields))
    whole = _summarised(result, options, (*warnings, *doubts), folder, recorded)
    return Made(whole, SOME_RANKS_FAILED if failed else 0)


def _compared(
    recordings: Recordings, out: Out, folder: Path, own: Mapping[int, Path]
) -> tuple[dict[str, Any], list[str]]:
    """Return what wings make of graphs that others left among the recordings, as fields of ``Run``, and their warnings.

    ``folder``: for copies of those behind URLs; ``own``: the graph of each rank.
    """
    standins, own_folder = Standins(folder), Path(out.name).resolve()
    with naming_urls(standins.urls):
        others = [name for name in recordings.folders if name != out.name]
        beside = standins.graphs([name for name in others if Path(name).resolve() != own_folder])
    compared = [hooks.of_graphs(beside, own) for _, hooks in each()]
    fields = {name: value for made in compared for name, value in (made.part or {}).items()}
    return fields, [with_urls(text, standins.urls) for made in compared for text in made.warnings]


def _summarised(
    result: RunResult,
    options: Options,
    warnings: tuple[str, ...],
    folder: Path,
    recorded: Mapping[str, Any] | None = None,
) -> summary.Summary:
    """Summarise a job whose other files lie in ``folder``, and write that there too; ``warnings`` come before those of
    the run. ``recorded``: what wings read of the run.
    """
    ranks: Sequence[summary.Rank] = result.ranks
    for _, hooks in each():
        ranks = hooks.kept(ranks)
    whole = summary.Summary(
        options=_told(options),
        ranks=list(ranks),
        run=result.run,
        warnings=[*warnings, *result.warnings],
        files=sorted({*result.files, output_names.SUMMARY}),
        **{
            key: value
            for name, hooks in each()
            for key, value in (hooks.of_run(result, recorded.get(name) if recorded else None) or {}).items()
        },
    )
    publish.write_json(folder / output_names.SUMMARY, whole)
    return whole


def _told(options: Options) -> summary.Options:
    return msgspec.convert(asdict(options) | {"gap_us": options.gap_ns / 1000}, summary.Options)
