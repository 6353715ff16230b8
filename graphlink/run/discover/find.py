"""The ranks of a run: what the recordings that a caller names hold, paired, with their side files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from graphlink import publish
from graphlink.engine.engines import RunsOn, naming_limits, run_all
from graphlink.engine.memory import estimate_bytes, unpacked_bytes
from graphlink.errors import InputError, SeveralRanks, UsageError, log
from graphlink.model import Trace
from graphlink.read.merged import read_merged
from graphlink.records import like_it
from graphlink.report import summary
from graphlink.run import codec
from graphlink.run.discover.inputs import of_files, of_folders, unfold
from graphlink.run.discover.names import natural_order, placed_ranks, places
from graphlink.run.discover.pairing import Discovered
from graphlink.run.discover.standins import Standins
from graphlink.run.fetch import naming_urls
from graphlink.run.options import Inputs, Recordings
from graphlink.wings import each

if TYPE_CHECKING:
    from graphlink.read.nsys.places import Contents

_NAMED_RANK: Final = re.compile(r"(?<![a-z])rank[_.-]?([0-9]{1,9})(?![0-9])", re.IGNORECASE)  # of an nsys export


def find(
    recordings: Recordings, folder: Path, runs_on: RunsOn, *, linked: bool = False, one: bool = False
) -> Discovered:
    """Find and pair the recordings; what is missing, was left aside or is doubtful is in ``warnings``.

    The traces of nsys exports, which say their ranks once they are read, lie in ``folder`` then, and so do the
    beginnings of files behind URLs.

    ``linked``: every rank needs an execution trace. ``one``: of several, the rank ``recordings.rank`` is picked out.

    Raises:
        InputError: a file or folder is missing, cannot be read, or there is none of a rank; with ``recordings.strict``
            anything is missing.
        UsageError: files cannot be paired, or not be used as asked.
    """
    standins = Standins(folder / "urls")  # a folder, which is not published
    with naming_urls(standins.urls):
        found = standins.stood_for(_found(standins.named(recordings), one=one))
    warnings = (*found.missing, *found.warnings)
    for text, count in summary.alike(warnings):
        log.warning("%s%s", text, like_it(count))
    if found.missing and recordings.strict:
        raise InputError(
            f"--strict, and the run is not whole: {'; '.join(found.missing)}",
            todo="add what is missing, or leave out --strict",
        )
    if not found.exports:
        if linked and (bare := [rank for rank in found.ranks if rank.et is None]):
            what = "--linked merges an execution trace with device ops, and there is none for it"
            raise UsageError(what, path=bare[0].name, todo="give one of every rank, or leave out --linked")
        return Discovered(found.ranks, warnings=warnings)
    for option, refused in (
        (linked, "--linked merges an execution trace with device ops, and nsys exports have none"),
        (recordings.nccl, "--nccl is for Kineto traces: side files are not joined with nsys exports"),
        (
            recordings.strict,
            "--strict is for Kineto traces: an nsys export says neither its partners nor how many there are",
        ),
    ):
        if option:
            raise UsageError(refused, path=found.exports[0])
    traces = folder / "nsys"  # a folder, which is not published
    traces.mkdir()
    return Discovered(tuple(ranks_of(found.exports, recordings.rank, traces, runs_on)), warnings=warnings)


def _found(recordings: Recordings, *, one: bool) -> Discovered:
    of_several = one and recordings.several
    rank = None if of_several else recordings.rank
    if recordings.nsys:
        found = Discovered(exports=tuple(unfold(recordings.nsys)))
    elif recordings.folders:
        found = of_folders(recordings.folders, rank, same_run=recordings.same_run)
    else:
        found = of_files(recordings.kineto, recordings.et, rank, same_run=recordings.same_run)
    if found.ranks:
        side_files = unfold(recordings.nccl)
        for _, hooks in each():
            found = hooks.paired(found, side_files)
    if of_several and recordings.rank is not None and not found.exports:
        found = _only(found, recordings.rank)
    return found


def _only(found: Discovered, rank: int) -> Discovered:
    """Select the job of one rank out of all."""
    mine = tuple(one for one in found.ranks if one.expected_rank == rank)
    if len(found.ranks) == 1 and found.ranks[0].expected_rank is None:  # nothing but --rank tells it
        mine = (replace(found.ranks[0], rank=rank),)
    if not mine:
        there = ", ".join(str(one.expected_rank) for one in found.ranks[:8])
        raise InputError(f"there is no recording of rank {rank}, but of {there}", todo="choose another --rank")
    return replace(found, ranks=mine)


def ranks_of(exports: Sequence[Path], rank: int | None, folder: Path, runs_on: RunsOn) -> list[Inputs]:
    """Return the ranks that the nsys exports of a run hold; each is read once, and the traces of its ranks are left in
    ``folder``.

    ``rank``: that of the only one, from ``--rank``. Files count in the order of their names, numbers in them by value.

    Raises:
        InputError, SomeRanksFailed: all or some files cannot be read.
        UsageError: ``rank`` is given, and there are several.
    """
    from graphlink.read.nsys.places import number

    exports = sorted(exports, key=natural_order)
    tasks = [(export, folder / f"nsys.{k}") for k, export in enumerate(exports)]
    if len(tasks) == 1:
        with naming_limits(str(exports[0])):
            files = [_store(tasks[0])]
    else:
        estimates = [estimate_bytes(unpacked_bytes(e)) for e in exports]
        from graphlink.run.ranks import good

        files = good(run_all(_store, tasks, list(map(str, exports)), runs_on, estimates, "files"), "files")
    if rank is not None and sum(len(contents.places) for contents in files) > 1:
        raise UsageError(
            f"--rank is for a single rank, and the nsys exports hold {sum(len(contents.places) for contents in files)}",
            path=exports[0],
            todo="leave it out: they are numbered by communicator, or by file, process and device",
        )
    out = []
    named = [int(found[1]) if (found := _NAMED_RANK.search(path.name)) else None for path in exports]
    if None in named:
        named = [*(placed_ranks(exports) or named)]
    for k, (export, contents, numbering) in enumerate(zip(exports, files, number(files, named), strict=True)):
        if rank is not None and numbering.world_size is None:
            numbering = replace(numbering, ranks=(rank,))
        out += [
            Inputs(nsys=export, place=place, stored=_stored(tasks[k][1], place), numbering=numbering, rank=rank)
            for place in range(len(contents.places))
        ]
    told = [one.numbering.ranks[one.place] if one.numbering else 0 for one in out]
    placed = (
        places(exports, told) if len(out) == len(exports) else [None] * len(out)
    )  # of files with several ranks names do not tell
    return [replace(one, placed=place) for one, place in zip(out, placed, strict=True)]


def of_merged(one: Inputs, problem: SeveralRanks, folder: Path) -> tuple[Inputs, ...]:
    """Return the ranks whose recordings were merged into one, of which reading said so by the ``problem``; their traces
    are left in ``folder``, which is made.

    Raises:
        SeveralRanks: the ``problem``, where an execution trace, a side file or a rank was given with it, or nothing
            tells of which rank some rows are.
    """
    if one.kineto is None or one.et is not None or one.nccl or one.rank is not None:
        raise problem
    traces = read_merged(one.kineto, problem)
    folder.mkdir(exist_ok=True)
    _leave(traces, folder / "merged")
    ranks = range(len(traces))
    return tuple(replace(one, place=k, stored=_stored(folder / "merged", k), expected_rank=k) for k in ranks)


def _store(task: tuple[Path, Path]) -> Contents:
    from graphlink.read.nsys.report import read_report

    export, prefix = task
    log.info("reading %s", export)
    contents, traces = read_report(export)
    _leave(traces, prefix)
    return contents


def _leave(traces: Sequence[Trace], prefix: Path) -> None:
    for place, trace in enumerate(traces):
        with publish.writing(_stored(prefix, place)) as out:
            codec.dump(trace, out.write)


def _stored(prefix: Path, place: int) -> Path:
    return prefix.with_name(f"{prefix.name}.{place}.columns")
