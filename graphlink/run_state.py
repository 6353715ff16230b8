"""What jobs of single ranks leave for the one that joins them: ``DIR/.graphlink/ranks/<key>/``, a folder a rank.

A folder appears whole or not at all, so a job that is killed leaves nothing that could be taken for a result. ``<key>`` is made of the
names of the rank's recordings: the same command finds again what it did before. The files are pickles of graphlink's own records, to be
trusted like the folder that they lie in.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from graphlink.annotate.pipeline.records import StageRun
from graphlink.annotate.ranks.records import GroupKey, RankComms
from graphlink.emit import publish, summary
from graphlink.errors import InputError
from graphlink.run import Inputs, Options, Prepared
from graphlink.version import __version__

FORMAT: Final = 1
MANIFEST: Final = "rank.json"
ROWS: Final = "rows.pickle"
PREPARED: Final = "prepared.pickle"
FINISHED: Final = "finished"  # a folder: the rank's files and RESULT
RESULT: Final = "result.json"
_TMP: Final = "tmp-"


class Recording(msgspec.Struct, frozen=True):
    """A file that a rank was made of, as it was then."""

    path: str
    size_bytes: int
    mtime_ns: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished job of one rank says of itself."""

    graphlink: str = __version__
    format: int = FORMAT
    rank: int
    world_size: int
    recordings: list[Recording]
    options: dict[str, Any]


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
    """A rank whose job is done."""

    key: str
    manifest: Manifest


class State:
    """The jobs that are done for an output folder."""

    def __init__(self, out: Path) -> None:
        self.folder = out / publish.HIDDEN / "ranks"

    def key(self, inputs: Inputs) -> str:
        """Of the names of the recordings and which rank is wanted of them: 16 hexadecimal digits."""
        named = [os.path.abspath(p) if p else "" for p in (inputs.kineto, inputs.et, inputs.nsys)]  # noqa: PTH100  (links stay)
        return hashlib.sha256(repr((named, inputs.place, inputs.rank, inputs.numbering)).encode()).hexdigest()[:16]

    def found(self, inputs: Inputs, options: Options) -> Stored | None:
        """What an earlier job made of the same recordings with the same options, by the same version."""
        stored = self._stored(self.key(inputs))
        if stored is None:
            return None
        told = stored.manifest
        same = told.graphlink == __version__ and told.options == plain(options) and told.recordings == recordings(inputs)
        return stored if same else None

    def all(self) -> list[Stored]:
        """Every rank whose job is done, by key.

        Raises:
            InputError: one was made by another version of graphlink.
        """
        if not self.folder.is_dir():
            return []
        names = sorted(p.name for p in self.folder.iterdir() if not p.name.startswith(_TMP))
        out = []
        for name in names:
            stored = self._stored(name)
            if stored is None or stored.manifest.graphlink != __version__:
                raise InputError(
                    "was not made by this version of graphlink", path=self.folder / name, todo="run the jobs of all ranks with one version"
                )
            out.append(stored)
        return out

    def save(self, inputs: Inputs, options: Options, prepared: Prepared, rows: RankRows) -> Stored:
        """Keeps the work on a rank, in place of what an earlier job left of it.

        Raises:
            OutputError: there is no room, or no leave to write.
        """
        manifest = Manifest(rank=prepared.rank, world_size=prepared.world_size, recordings=recordings(inputs), options=plain(options))

        def write(folder: Path) -> None:
            _dump(folder / PREPARED, prepared)
            _dump(folder / ROWS, rows)
            publish.write(folder / MANIFEST, msgspec.json.encode(manifest))

        key = self.key(inputs)
        self._place(self.folder / key, write)
        return Stored(key, manifest)

    def rows(self, key: str) -> RankRows:
        loaded: RankRows = _load(self.folder / key / ROWS)
        return loaded

    def prepared(self, key: str) -> Prepared:
        loaded: Prepared = _load(self.folder / key / PREPARED)
        return loaded

    def finish(self, key: str, joined: str, write: Callable[[Path], Result]) -> Result:
        """The rank's files: those that are there if they were written with the same ``joined``, else ``write`` makes them."""
        folder = self.folder / key / FINISHED
        there = self.result(key)
        if there is not None and there.joined == joined and all((folder / name).is_file() for name in there.files):
            return there
        made: list[Result] = []

        def write_all(beside: Path) -> None:
            made.append(write(beside))
            publish.write(beside / RESULT, msgspec.json.encode(made[0]))

        self._place(folder, write_all)
        return made[0]

    def result(self, key: str) -> Result | None:
        try:
            return msgspec.json.decode((self.folder / key / FINISHED / RESULT).read_bytes(), type=Result)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def move_files(self, key: str, to: Path) -> None:
        """Moves the rank's files into a folder of the same file system."""
        folder = self.folder / key / FINISHED
        with publish.naming(to):
            for path in sorted(folder.iterdir()):
                if path.name != RESULT:
                    path.rename(to / path.name)

    def clear(self) -> None:
        """Forgets all jobs, and removes the hidden folder if nothing else is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.parent.rmdir()

    def clear_unfinished(self) -> None:
        """Removes what killed jobs left half done, and the folder if nothing else is in it."""
        if self.folder.is_dir():
            for path in self.folder.glob(f"{_TMP}*"):
                shutil.rmtree(path, ignore_errors=True)
            if not any(self.folder.iterdir()):
                self.folder.rmdir()

    def _stored(self, key: str) -> Stored | None:
        try:
            manifest = msgspec.json.decode((self.folder / key / MANIFEST).read_bytes(), type=Manifest)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        return Stored(key, manifest) if manifest.format == FORMAT else None

    def _place(self, folder: Path, write: Callable[[Path], None]) -> None:
        with publish.naming(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            beside = Path(tempfile.mkdtemp(prefix=_TMP, dir=self.folder))
        try:
            write(beside)
            with publish.naming(self.folder):
                shutil.rmtree(folder, ignore_errors=True)
                beside.rename(folder)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise


def recordings(inputs: Inputs) -> list[Recording]:
    out = []
    for path in (inputs.kineto, inputs.et, inputs.nsys):
        if path is not None:
            told = path.stat()
            out.append(Recording(os.path.abspath(path), told.st_size, told.st_mtime_ns))  # noqa: PTH100
    return out


def plain(options: Options) -> dict[str, Any]:
    """Options as JSON gives them back."""
    given: Mapping[str, Any] = asdict(options)
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(given))
    return decoded


def digest(value: object) -> str:
    """Of a record, alike in every process."""
    return hashlib.sha256(pickle.dumps(value, protocol=5)).hexdigest()


def _dump(path: Path, value: object) -> None:
    with publish.writing(path) as out:
        pickle.dump(value, out, protocol=pickle.HIGHEST_PROTOCOL)


def _load(path: Path) -> Any:
    try:
        with path.open("rb") as stored:
            return pickle.load(stored)
    except (OSError, EOFError, pickle.UnpicklingError) as problem:
        raise InputError(f"what an earlier job left cannot be read: {problem}", path=path, todo="run the job of this rank again") from None
