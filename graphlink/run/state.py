"""What jobs of single ranks leave for the one that joins them: ``DIR/.graphlink/ranks/<key>/``, a folder a rank.

A folder counts when it is whole (``out.Store``), so a job that is killed leaves nothing that could be taken for a result. ``<key>``
is made of the names of the rank's recordings: the same command finds again what it did before. The records in it are files of ``codec``,
which run nothing when they are read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from graphlink import publish
from graphlink.errors import InputError
from graphlink.pipeline.records import StageRun
from graphlink.ranks.records import GroupKey, RankComms
from graphlink.read.heads import at_once
from graphlink.report import summary
from graphlink.run import codec
from graphlink.run.fetch import unpacked_size
from graphlink.run.job import Inputs, Options, Prepared
from graphlink.run.out import out_of
from graphlink.version import __version__

FORMAT: Final = 2
MANIFEST: Final = "rank.json"
ROWS: Final = "rows.columns"
PREPARED: Final = "prepared.columns"
AGAIN: Final = "run the job of this rank again"
FINISHED: Final = "finished"  # a folder: the rank's files and RESULT
RESULT: Final = "result.json"


class Recording(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that a rank was made of, as it was then. Behind a URL ``version`` tells it, as ``engine.files.Remote`` has it."""

    path: str
    size_bytes: int
    mtime_ns: int
    version: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished job of one rank says of itself."""

    graphlink: str = __version__
    format: int = FORMAT
    rank: int
    world_size: int
    recorded_world_size: int | None = None
    job: str = ""  # "" where the recording tells none
    unpacked_bytes: int  # of the recordings
    recordings: Annotated[list[Recording], msgspec.Meta(min_length=1)]
    options: dict[str, Any]
    members: list[tuple[str, list[int]]] = []  # of communicators, as the side files of all ranks told


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a rank that were written with what joining said, which ``joined`` tells by its digest."""

    joined: str
    rank: summary.Rank
    files: list[str]


@dataclass(frozen=True, slots=True)
class RankRows:
    """All of a rank that joining reads: its communication, the communicators that its graph names, its part of a pipeline."""

    comms: RankComms
    groups: tuple[GroupKey, ...]
    staged: StageRun | None
    nodes: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A rank whose job is done: by this command, or ``earlier`` by whoever left it in the folder."""

    key: str
    manifest: Manifest
    earlier: bool = True


_Told = TypeVar("_Told", Manifest, Result)
_Record = TypeVar("_Record", Prepared, RankRows)


class State:
    """The jobs that are done for an output folder."""

    def __init__(self, out: str) -> None:
        self._store = out_of(out).store()

    def exists(self) -> bool:
        return self._store.exists()

    def key(self, inputs: Inputs) -> str:
        """Of the names of the recordings and which rank is wanted of them: 16 hexadecimal digits."""
        named = [_name(inputs, p) if p else "" for p in (inputs.kineto, inputs.et, inputs.nsys)]
        named += [_name(inputs, p) for p in inputs.nccl]
        return hashlib.sha256(repr((named, inputs.place, inputs.rank, inputs.numbering)).encode()).hexdigest()[:16]

    def found(self, inputs: Inputs, options: Options) -> Stored | None:
        """What an earlier job made of the same recordings with the same options, by the same version."""
        stored = self._stored(self.key(inputs))
        if stored is None:
            return None
        told = stored.manifest
        try:
            same = (
                told.graphlink == __version__
                and told.options == plain(options)
                and told.recordings == recordings(inputs)
                and told.members == _members(inputs)
            )
        except OSError:  # a recording is gone: the job says so
            return None
        return stored if same else None

    def all(self) -> list[Stored]:
        """Every rank whose job is done, by key.

        Raises:
            InputError: one was made by another version of graphlink.
        """
        names = self._store.names(MANIFEST)
        out = []
        for name, stored in zip(names, at_once(self._stored, names), strict=True):
            if stored is None or stored.manifest.graphlink != __version__:
                raise InputError(
                    "was not made by this version of graphlink",
                    path=self._store.where(name),
                    todo="run the jobs of all ranks with one version",
                )
            out.append(stored)
        return out

    def save(self, inputs: Inputs, options: Options, prepared: Prepared, rows: RankRows) -> Stored:
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
            options=plain(options),
            members=_members(inputs),
        )

        def write(folder: Path) -> None:
            for name, record in ((PREPARED, prepared), (ROWS, rows)):
                with publish.writing(folder / name) as out:
                    codec.dump(record, out.write)
            publish.write(folder / MANIFEST, msgspec.json.encode(manifest))

        key = self.key(inputs)
        self._store.place(key, MANIFEST, write)
        return Stored(key, manifest, earlier=False)

    def where(self, key: str) -> str | Path:
        """For messages."""
        return self._store.where(key)

    def forget(self, inputs: Inputs) -> None:
        """Remove what an earlier job of these recordings left."""
        self._store.drop(self.key(inputs), MANIFEST)

    def rows(self, keys: Sequence[str]) -> list[RankRows]:
        return at_once(lambda key: self._load(f"{key}/{ROWS}", RankRows), keys)

    def prepared(self, key: str) -> Prepared:
        return self._load(f"{key}/{PREPARED}", Prepared)

    def finish(self, key: str, joined: str, write: Callable[[Path], Result]) -> Result:
        """The rank's files: those that are there if they were written with the same ``joined``, else ``write`` makes them."""
        folder = f"{key}/{FINISHED}"
        there = self.result(key)
        if there is not None and there.joined == joined and self._store.holds(folder, there.files):
            return there
        made: list[Result] = []

        def write_all(beside: Path) -> None:
            made.append(write(beside))
            publish.write(beside / RESULT, msgspec.json.encode(made[0]))

        self._store.place(folder, RESULT, write_all)
        return made[0]

    def result(self, key: str) -> Result | None:
        return _decoded(self._store.read(f"{key}/{FINISHED}/{RESULT}"), Result)

    def take_files(self, keys: Sequence[str], to: Path) -> None:
        """Bring the ranks' files into a folder of this machine, on the file system of the jobs if they are on one of it."""
        at_once(lambda key: self._store.take(f"{key}/{FINISHED}", RESULT, to), keys)

    def clear(self) -> None:
        """Forget all jobs."""
        self._store.clear()

    def clear_unfinished(self) -> None:
        self._store.clear_unfinished()

    def _stored(self, key: str) -> Stored | None:
        manifest = _decoded(self._store.read(f"{key}/{MANIFEST}"), Manifest)
        return Stored(key, manifest) if manifest is not None and manifest.format == FORMAT else None

    def _load(self, name: str, kind: type[_Record]) -> _Record:
        try:
            with self._store.opened(name) as stored:
                return codec.load(stored, kind, self._store.where(name), AGAIN)
        except OSError as problem:
            raise InputError(f"cannot be read: {problem.strerror or problem}", path=self._store.where(name), todo=AGAIN) from None


def recordings(inputs: Inputs) -> list[Recording]:
    out = []
    for path in inputs.files:
        remote = inputs.remote_of(path)
        if remote is not None:
            out.append(Recording(remote.url, remote.size_bytes, 0, remote.version))
        else:
            told = path.stat()
            out.append(Recording(_name(inputs, path), told.st_size, told.st_mtime_ns))
    return out


def _members(inputs: Inputs) -> list[tuple[str, list[int]]]:
    return [(key, list(ranks)) for key, ranks in inputs.members]


def _name(inputs: Inputs, path: Path) -> str:
    remote = inputs.remote_of(path)
    return os.path.abspath(path) if remote is None else remote.url  # noqa: PTH100  (links stay)


def plain(options: Options) -> dict[str, Any]:
    """Options as JSON gives them back."""
    given: Mapping[str, Any] = asdict(options)
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(given))
    return decoded


def digest(*records: object) -> str:
    """Of records, alike in every process."""
    made = hashlib.sha256()
    for record in records:
        codec.dump(record, made.update)
    return made.hexdigest()


def _decoded(data: bytes | None, kind: type[_Told]) -> _Told | None:
    try:
        return msgspec.json.decode(data, type=kind) if data is not None else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
