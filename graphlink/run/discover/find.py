"""The ranks of a run: what the recordings that a caller names hold, paired, with their side files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from graphlink.engine.engines import RunsOn
from graphlink.errors import InputError, UsageError
from graphlink.report import summary
from graphlink.run.discover.inputs import Found, of_files, of_folders, unfold
from graphlink.run.discover.nsys import ranks_of
from graphlink.run.discover.recordings import Recordings
from graphlink.run.discover.side_files import given, pair
from graphlink.run.discover.standins import Standins
from graphlink.run.job import Inputs

log: Final = logging.getLogger("graphlink")


@dataclass(frozen=True, slots=True)
class Ranks:
    """The files of each rank, and in words what is missing, was left aside or is doubtful."""

    inputs: Sequence[Inputs]
    warnings: tuple[str, ...]


def find(recordings: Recordings, folder: Path, runs_on: RunsOn, *, linked: bool = False, one: bool = False) -> Ranks:
    """Find and pair the recordings. The traces of nsys exports, which say their ranks once they are read, lie in ``folder`` then, and so
    do the beginnings of files behind URLs.

    ``linked``: every rank needs an execution trace. ``one``: of several, the rank ``recordings.rank`` is picked out.

    Raises:
        InputError: a file or folder is missing, cannot be read, or there is none of a rank; with ``recordings.strict`` anything is missing.
        UsageError: files cannot be paired, or not be used as asked.
    """
    standins = Standins(folder / "urls")  # a folder, which is not published
    with standins.telling():
        found = standins.stood_for(_found(standins.named(recordings), one=one))
    warnings = (*found.missing, *found.warnings)
    for text, count in summary.alike(warnings):
        log.warning("%s%s", text, summary.like_it(count))
    if found.missing and recordings.strict:
        raise InputError(
            f"--strict, and the run is not whole: {'; '.join(found.missing)}", todo="add what is missing, or leave out --strict"
        )
    if not found.exports:
        if linked and (bare := [rank for rank in found.ranks if rank.et is None]):
            what = "--linked merges an execution trace with device ops, and there is none for it"
            raise UsageError(what, path=bare[0].name, todo="give one of every rank, or leave out --linked")
        return Ranks(found.ranks, warnings)
    if linked:
        raise UsageError("--linked merges an execution trace with device ops, and nsys exports have none", path=found.exports[0])
    if recordings.nccl:
        raise UsageError("--nccl is for Kineto traces: side files are not joined with nsys exports", path=found.exports[0])
    if recordings.strict:
        raise UsageError(
            "--strict is for Kineto traces: an nsys export says neither its partners nor how many there are", path=found.exports[0]
        )
    traces = folder / "nsys"  # a folder, which is not published
    traces.mkdir()
    return Ranks(ranks_of(found.exports, recordings.rank, traces, runs_on), warnings)


def _found(recordings: Recordings, *, one: bool) -> Found:
    of_several = one and recordings.several
    rank = None if of_several else recordings.rank
    if recordings.nsys:
        found = Found(exports=tuple(unfold(recordings.nsys)))
    elif recordings.folders:
        found = of_folders(recordings.folders, rank, same_run=recordings.same_run)
    else:
        found = of_files(recordings.kineto, recordings.et, rank, same_run=recordings.same_run)
    if found.ranks:
        names = unfold(recordings.nccl)
        dumps = given(names)
        inside = [dump for dump in dumps if dump.path not in names]  # of folders: like those that are found
        paired = pair((*found.dumps, *inside), [dump for dump in dumps if dump.path in names], found.ranks)
        found = replace(found, ranks=paired.ranks, missing=(*found.missing, *paired.missing))
    if of_several and recordings.rank is not None and not found.exports:
        found = _only(found, recordings.rank)
    return found


def _only(found: Found, rank: int) -> Found:
    """For the job of one rank that is to be picked out of all."""
    mine = tuple(one for one in found.ranks if one.expected_rank == rank)
    if len(found.ranks) == 1 and found.ranks[0].expected_rank is None:  # nothing but --rank tells it
        mine = (replace(found.ranks[0], rank=rank),)
    if not mine:
        there = ", ".join(str(one.expected_rank) for one in found.ranks[:8])
        raise InputError(f"there is no recording of rank {rank}, but of {there}", todo="choose another --rank")
    return replace(found, ranks=mine)
