"""The state that jobs of single ranks leave for the one that joins them: ``DIR/.graphlink/ranks/<key>/``, a folder per
rank.

A folder counts when it is whole (``out.Store``), so a job that is killed leaves nothing that could be taken for a
result. ``<key>`` is made of the names of the rank's recordings: the same command finds again what it did before. The
records in it are files of ``codec``, which run nothing when they are read.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec

from graphlink import publish
from graphlink.engine.files import FileState
from graphlink.errors import GraphlinkError, InputError
from graphlink.graph.write_et import COMMUNICATION
from graphlink.graph_model import Graph
from graphlink.read.document import Written
from graphlink.read.heads import at_once
from graphlink.report import summary
from graphlink.run import codec
from graphlink.run.fetch import unpacked_size
from graphlink.run.options import Inputs, Options
from graphlink.run.out import Out
from graphlink.run.records import PreparedRank, RankRows
from graphlink.version import __version__

MANIFEST: Final = "rank.json"
AGAIN: Final = "run the job of this rank again"
FINISHED: Final = "finished"  # a folder: the rank's files and RESULT
RESULT: Final = "result.json"


class Manifest(Written, frozen=True, kw_only=True):
    """The record that a finished job of one rank leaves of itself."""

    rank: int
    world_size: int
    recorded_world_size: int | None = None
    job: str = ""  # "" where the recording tells none
    unpacked_bytes: int  # of the recordings
    recordings: Annotated[list[FileState], msgspec.Meta(min_length=1)]
    options: Options
    members: tuple[
        tuple[str, tuple[int, ...]], ...
    ] = ()  # of communicators, as the side files of all ranks recorded them


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a rank that were written with the result of joining, which ``joined`` recognises by its digest."""

    joined: str
    rank: summary.Rank
    files: list[str]


@dataclass(frozen=True, slots=True)
class Stored:
    """A rank whose job is done: by this command, or ``earlier`` by whoever left it in the folder."""

    key: str
    manifest: Manifest
    earlier: bool = True

    @property
    def name(self) -> str:
        """Return the name of its recording."""
        return self.manifest.recordings[0].name


_FILES: Final[dict[type, str]] = {PreparedRank: "prepared.columns", RankRows: "rows.columns"}
_GRAPH: Final = "graph.{}.columns"
_Told = TypeVar("_Told", Manifest, Result)
_Record = TypeVar("_Record", PreparedRank, RankRows)


def key(inputs: Inputs) -> str:
    """Return 16 hexadecimal digits of the names of the recordings and which rank is wanted of them."""
    named = [_name(inputs, p) if p else "" for p in (inputs.kineto, inputs.et, inputs.nsys)]
    named += [_name(inputs, p) for p in inputs.nccl]
    return hashlib.sha256(repr((named, inputs.place, inputs.rank, inputs.numbering)).encode()).hexdigest()[:16]


def found(out: Out, inputs: Inputs, options: Options) -> Stored | None:
    """Find the result of an earlier job on the same recordings with the same options, by the same version."""
    stored = _stored(out, key(inputs))
    if stored is None:
        return None
    told = stored.manifest
    try:
        same = told.options == options and told.recordings == recordings(inputs) and told.members == inputs.members
    except OSError:  # a recording is gone: the job says so
        return None
    return stored if same else None


def all_found(out: Out) -> list[Stored]:
    """Return every rank whose job is done, by key.

    Raises:
        InputError: one was made by another version of graphlink.
    """
    done = []
    names = out.names(MANIFEST)
    for name, stored in zip(names, at_once(lambda one: _stored(out, one), names), strict=True):
        if stored is None:
            what, todo = "was not made by this version of graphlink", "run the jobs of all ranks with one version"
            raise InputError(what, path=out.where(name), todo=todo)
        done.append(stored)
    return done


def save(out: Out, inputs: Inputs, options: Options, prepared: PreparedRank, rows: RankRows) -> Stored:
    """Keep the work on a rank, in place of what an earlier job left of it.

    Raises:
        OutputError: there is no room, or no leave to write.
    """
    manifest = Manifest(
        rank=prepared.rank,
        world_size=prepared.world_size,
        recorded_world_size=prepared.linked.trace.world_size,
        job=prepared.linked.trace.job,
        unpacked_bytes=unpacked_size(inputs),
        recordings=recordings(inputs),
        options=options,
        members=inputs.members,
    )
    with out.place(key(inputs), MANIFEST) as folder:
        for record in (prepared, rows):
            with publish.writing(folder / _FILES[type(record)]) as file:
                codec.dump(record, file.write)
        publish.write(folder / MANIFEST, msgspec.json.encode(manifest))
    return Stored(key(inputs), manifest, earlier=False)


def load(out: Out, of: str, kind: type[_Record]) -> _Record:
    """Read a record that the job with the key ``of`` left.

    Raises:
        InputError: it cannot be read.
    """
    name = f"{of}/{_FILES[kind]}"
    where = out.where(name)
    with publish.naming(where, "cannot be read", AGAIN, InputError), out.opened(name) as stored:
        return codec.load(stored, kind, where, AGAIN)


def keep_graph(graph: Graph, folder: Path) -> None:
    """Leave what a replay reads of a finished graph in ``folder``: it is read back in a tenth of the time that the
    ``.et`` takes.
    """
    columns = {name: column for name, column in graph.columns.items() if name in COMMUNICATION}
    with publish.writing(folder / _GRAPH.format(graph.metadata.rank)) as file:
        codec.dump(replace(graph, columns=columns, rows=None), file.write)


def take_graph(rank: int, folder: Path) -> Graph:
    """Return what ``keep_graph`` left of a rank, and remove it.

    Raises:
        InputError: it cannot be read.
    """
    path = folder / _GRAPH.format(rank)
    try:
        with publish.naming(path, "cannot be read", AGAIN, InputError), path.open("rb") as file:
            return codec.load(file, Graph, path, AGAIN)
    finally:
        path.unlink(missing_ok=True)


def finished(out: Out, of: str, joined: str) -> Result | None:
    """Return the files of a rank that are there, if they were written with the same ``joined``."""
    there = _decoded(out.read(f"{of}/{FINISHED}/{RESULT}"), Result)
    return (
        there if there is not None and there.joined == joined and out.holds(f"{of}/{FINISHED}", there.files) else None
    )


def _stored(out: Out, of: str) -> Stored | None:
    manifest = _decoded(out.read(f"{of}/{MANIFEST}"), Manifest)
    return Stored(of, manifest) if manifest is not None and manifest.graphlink == __version__ else None


def recordings(inputs: Inputs) -> list[FileState]:
    """Return name, size and time of change of the files of a rank."""
    out = []
    for path in inputs.files:
        state = inputs.remote_of(path)
        if state is None:
            told = path.stat()
            state = FileState(_name(inputs, path), told.st_size, str(told.st_mtime_ns))
        out.append(state)
    return out


def _name(inputs: Inputs, path: Path) -> str:
    remote = inputs.remote_of(path)
    return os.path.abspath(path) if remote is None else remote.name  # noqa: PTH100  (links stay)


def digest(*records: object) -> str:
    """Return a digest of records, alike in every process."""
    made = hashlib.sha256()
    for record in records:
        codec.dump(record, made.update)
    return made.hexdigest()


def _decoded(data: bytes | None, kind: type[_Told]) -> _Told | None:
    try:
        return msgspec.json.decode(data, type=kind) if data is not None else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, GraphlinkError):  # the last: no options of ours
        return None
