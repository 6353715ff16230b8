"""The place of the outputs of a run, and of the jobs of its ranks until then: a folder of this machine, or one behind a
URL.

Behind a URL nothing can be renamed as a whole: what is put last says that the rest is there.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

import msgspec

from graphlink import output_names, publish
from graphlink.engine import files
from graphlink.errors import GraphlinkError
from graphlink.read.heads import at_once
from graphlink.report import summary

_TRIES: Final = 4


class LocalOut:
    """An output folder of this machine, and the work on single ranks in it until all are joined.

    Of that each rank has a folder, which counts only when it is whole: here it appears by being renamed. Names of such
    folders and files are relative, with "/". ``last`` is the file that says that all others of a folder are there.

    Attributes:
        name: The output folder, as the user knows it.
        hidden: Where the work on single ranks is kept.

    Raises:
        OutputError: that would lie behind a link.
    """

    def __init__(self, out: Path) -> None:
        self.name, self.hidden = str(out), str(out / publish.HIDDEN)
        self.folder = out / publish.HIDDEN / "ranks"
        for folder in (self.folder.parent, self.folder):
            publish.refuse_links(folder)

    def publication(self, *, force: bool) -> publish.Publication:
        return publish.Publication(Path(self.name), force=force)

    def published(self) -> summary.Summary | None:
        """Return the summary of an earlier run all of whose files are there."""
        out = Path(self.name)
        if not (out / output_names.SUMMARY).is_file():
            return None
        whole = summary.load(out / output_names.SUMMARY)
        return whole if all(output_names.is_own(name) and (out / name).is_file() for name in whole.files) else None

    def exists(self) -> bool:
        """Return whether there are folders, whole or not."""
        return self.folder.is_dir()

    def names(self, last: str) -> list[str]:
        """Return the folders of the first level that are whole."""
        return (
            sorted(p.name for p in self.folder.iterdir() if not p.name.startswith(publish.TEMPORARY))
            if self.folder.is_dir()
            else []
        )

    def where(self, name: str) -> Path:
        """Return the name for messages."""
        return self.folder / name

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file; None where there is none."""
        try:
            return (self.folder / name).read_bytes()
        except OSError:
            return None

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        with (self.folder / name).open("rb") as file:
            yield file

    @contextlib.contextmanager
    def place(self, name: str, last: str) -> Iterator[Path]:
        """Yield a folder to fill, and put it in place of an older one."""
        with publish.naming(self.folder):
            beside = self._beside()
        try:
            yield beside
            with publish.naming(self.folder):
                self._put(beside, self.folder / name)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise

    def _put(self, beside: Path, folder: Path) -> None:
        """Put the folder in place of what is there, also of what another job of the same rank puts there meanwhile: the
        last one stays.
        """
        for left in reversed(range(_TRIES)):
            with contextlib.suppress(FileNotFoundError):
                if folder.exists():
                    self._remove(folder)
            try:
                beside.rename(folder)
            except OSError as problem:
                if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not left:
                    raise
            else:
                return

    def _remove(self, folder: Path) -> None:
        """Remove a folder: a kill on the way leaves it as it was or gone, never with some of its files."""
        aside = self._beside()
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    def drop(self, name: str, last: str) -> None:
        """Remove a folder, if there is one; at no time does what is left of it count."""
        if (self.folder / name).exists():
            with (
                publish.naming(self.folder),
                contextlib.suppress(FileNotFoundError),
            ):  # another job of this rank may have done it
                self._remove(self.folder / name)

    def _beside(self) -> Path:
        for _ in range(_TRIES):  # the job of another rank that fails may just remove the empty folder
            self.folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                return publish.temporary(self.folder)
        return publish.temporary(self.folder)

    def holds(self, name: str, inner: Sequence[str]) -> bool:
        """Return whether these files are in a folder."""
        return all(output_names.is_own(one) and (self.folder / name / one).is_file() for one in inner)

    def take(self, name: str, last: str, to: Path) -> None:
        """Bring the files of a folder but ``last`` into one of this machine; they need not be here afterwards."""
        with publish.naming(to):
            for path in sorted((self.folder / name).iterdir()):
                if path.name != last:
                    publish.refuse_links(path)  # files are written to where they are taken
                    path.rename(to / path.name)

    def clear(self) -> None:
        """Remove all, the hidden folder too if nothing else is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.parent.rmdir()

    def clear_unfinished(self) -> None:
        """Remove what killed jobs left half done, the folder too if nothing else is in it. Jobs of other ranks may be
        at work.
        """
        for path in publish.left_by_the_killed(self.folder):
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


class RemoteOut:
    """``LocalOut`` behind a URL. A folder counts once its ``last`` file is there."""

    def __init__(self, out: str) -> None:
        self.name, self.hidden = out, f"{out}/{publish.HIDDEN}"
        self.url = f"{self.hidden}/ranks"

    def publication(self, *, force: bool) -> RemotePublication:
        return RemotePublication(self.name, force=force)

    def published(self) -> summary.Summary | None:
        if output_names.SUMMARY not in (there := _names(self.name)):
            return None
        with tempfile.TemporaryDirectory(prefix="graphlink-") as folder:
            whole = summary.load(files.fetch(f"{self.name}/{output_names.SUMMARY}", Path(folder)))
        return whole if set(whole.files) <= set(there) else None

    def exists(self) -> bool:
        return files.is_folder(self.url)

    def names(self, last: str) -> list[str]:
        return [one.name.split("/")[-2] for one in files.found(f"{self.url}/*/{last}")]

    def where(self, name: str) -> str:
        return f"{self.url}/{name}"

    def read(self, name: str) -> bytes | None:
        return files.read(f"{self.url}/{name}")

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        with (
            tempfile.TemporaryDirectory(prefix="graphlink-") as folder,
            files.fetch(f"{self.url}/{name}", Path(folder)).open("rb") as file,
        ):
            yield file

    @contextlib.contextmanager
    def place(self, name: str, last: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="graphlink-") as folder:
            yield Path(folder)
            self.drop(name, last)
            for path in sorted(Path(folder).iterdir(), key=lambda p: (p.name == last, p.name)):
                files.put_file(path, f"{self.url}/{name}/{path.name}")

    def drop(self, name: str, last: str) -> None:
        files.remove([f"{self.url}/{name}/{last}"])
        files.remove_folder(f"{self.url}/{name}")

    def holds(self, name: str, inner: Sequence[str]) -> bool:
        return set(inner) <= set(_names(f"{self.url}/{name}"))

    def take(self, name: str, last: str, to: Path) -> None:
        for one in _names(f"{self.url}/{name}"):
            if one != last:
                files.fetch(f"{self.url}/{name}/{one}", to)

    def clear(self) -> None:
        files.remove_folder(self.hidden)

    def clear_unfinished(self) -> None:
        """Remove what a killed job left: it does not count."""


class RemotePublication:
    """``publish.Publication`` behind a URL: the summary goes first and comes last, so none lists what is not there.

    The journal names files of graphlink that no summary lists: of a run that was cut while it put them. It is also what
    shows, before the work begins, that something can be put there.

    Raises:
        OutputError, InputError: the folder holds outputs of an earlier run and ``force`` is not set, holds a file of
            that name that is of no run, or cannot be reached or written.
    """

    def __init__(self, url: str, *, force: bool) -> None:
        self.url, self.force = url, force
        self._old: list[str] = []  # files of earlier runs
        self._cut: list[str] = []  # those of them that no summary lists
        self._put: list[str] = []

    def __enter__(self) -> RemotePublication:
        told = files.read(f"{self.url}/{publish.HIDDEN}/{publish.JOURNAL}")
        if told is not None:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._cut = list(filter(output_names.is_own, msgspec.json.decode(told, type=list[str])))
        self._listed = files.read(f"{self.url}/{output_names.SUMMARY}")
        self._old = list(self._cut)
        if self._listed is not None:
            where = f"{self.url}/{output_names.SUMMARY}"
            self._old += publish.replaced_by_force(self._listed, where, self.url, force=self.force)
        self._note(self._cut)
        self._beside = tempfile.TemporaryDirectory(prefix="graphlink-")
        self.beside = Path(self._beside.name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._beside.cleanup()
        journal = f"{self.url}/{publish.HIDDEN}/{publish.JOURNAL}"
        if kind is None:
            files.remove([journal])
            return
        with contextlib.suppress(GraphlinkError):  # what went wrong before is what is told
            files.remove(f"{self.url}/{name}" for name in reversed(self._put))
            if not (self._cut or (self._put and self._old)):
                files.remove([journal])

    def publish(self) -> None:
        """Put every file from the temporary folder; files of earlier runs are overwritten or removed."""
        if files.read(f"{self.url}/{output_names.SUMMARY}") != self._listed:
            publish.raise_overtaken(self.url)
        names = sorted(p.name for p in self.beside.iterdir() if p.is_file())
        there = set(_names(self.url))
        publish.refuse_foreign([name for name in names if name in there], self._old, self.url)
        self._note([*self._old, *names])
        self._put = names
        files.remove([f"{self.url}/{output_names.SUMMARY}"])
        at_once(
            lambda name: files.put_file(self.beside / name, f"{self.url}/{name}"),
            [name for name in names if name != output_names.SUMMARY],
        )
        files.remove(f"{self.url}/{name}" for name in sorted(set(self._old).difference(names)))
        files.put_file(self.beside / output_names.SUMMARY, f"{self.url}/{output_names.SUMMARY}")

    def _note(self, names: Sequence[str]) -> None:
        with tempfile.TemporaryDirectory(prefix="graphlink-") as folder:
            publish.write(Path(folder) / publish.JOURNAL, msgspec.json.encode(list(names)))
            files.put_file(Path(folder) / publish.JOURNAL, f"{self.url}/{publish.HIDDEN}/{publish.JOURNAL}")


def _names(url: str) -> list[str]:
    """Return the names of the files in a folder; none where there is no such folder."""
    return [one.name.rpartition("/")[2] for one in files.found(url)] if files.is_folder(url) else []


Out = LocalOut | RemoteOut


def out_of(name: str) -> Out:
    """Return the output folder of that name: of this machine, or behind a URL."""
    return RemoteOut(name.rstrip("/")) if files.is_url(name) else LocalOut(Path(name))
