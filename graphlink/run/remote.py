"""Outputs and jobs of ranks behind a URL, where nothing can be renamed as a whole: what is put last says that the rest is there."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

import msgspec

from graphlink import publish
from graphlink.engine import files
from graphlink.errors import GraphlinkError
from graphlink.read.heads import at_once
from graphlink.report import summary

JOURNAL: Final = "journal.json"


class RemoteStore:
    """``out.Store`` behind a URL. A folder counts once its ``last`` file is there."""

    def __init__(self, out: str) -> None:
        self.url = f"{out}/{publish.HIDDEN}/ranks"

    def exists(self) -> bool:
        return files.is_folder(self.url)

    def names(self, last: str) -> list[str]:
        return [url.split("/")[-2] for url in files.listing(f"{self.url}/*/{last}")]

    def where(self, name: str) -> str:
        return f"{self.url}/{name}"

    def read(self, name: str) -> bytes | None:
        return _read(f"{self.url}/{name}")

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        with tempfile.TemporaryDirectory(prefix="graphlink-") as folder, files.fetch(f"{self.url}/{name}", Path(folder)).open("rb") as file:
            yield file

    def place(self, name: str, last: str, write: Callable[[Path], None]) -> None:
        with tempfile.TemporaryDirectory(prefix="graphlink-") as folder:
            write(Path(folder))
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
        files.remove_folder(self.url.rpartition("/")[0])

    def clear_unfinished(self) -> None:
        """What a killed job left does not count, and the next job of that rank removes it."""


class RemoteOut:
    """``out.Out`` behind a URL."""

    def __init__(self, url: str) -> None:
        self.name = url.rstrip("/")
        self.hidden = f"{self.name}/{publish.HIDDEN}"

    def store(self) -> RemoteStore:
        return RemoteStore(self.name)

    def publication(self, *, force: bool) -> RemotePublication:
        return RemotePublication(self.name, force=force)

    def published(self) -> summary.Summary | None:
        if summary.NAME not in (there := _names(self.name)):
            return None
        with tempfile.TemporaryDirectory(prefix="graphlink-") as folder:
            whole = summary.load(files.fetch(f"{self.name}/{summary.NAME}", Path(folder)))
        return whole if set(whole.files) <= set(there) else None


class RemotePublication:
    """``emit.publish.Publication`` behind a URL: the summary goes first and comes last, so none lists what is not there.

    The journal names files of graphlink that no summary lists: of a run that was cut while it put them. It is also what shows, before
    the work begins, that something can be put there.

    Raises:
        OutputError, InputError: the folder holds outputs of an earlier run and ``force`` is not set, holds a file of that name that is
            of no run, or cannot be reached or written.
    """

    def __init__(self, url: str, *, force: bool) -> None:
        self.url, self.force = url, force
        self._old: list[str] = []  # files of earlier runs
        self._cut: list[str] = []  # those of them that no summary lists
        self._put: list[str] = []

    def __enter__(self) -> RemotePublication:
        told = _read(f"{self.url}/{publish.HIDDEN}/{JOURNAL}")
        if told is not None:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._cut = list(filter(publish.is_own, msgspec.json.decode(told, type=list[str])))
        listed = _read(f"{self.url}/{summary.NAME}")
        self._old = list(self._cut)
        if listed is not None:
            self._old += publish.listed(listed, f"{self.url}/{summary.NAME}")
            if not self.force:
                raise publish.taken(self.url)
        self._beside = tempfile.TemporaryDirectory(prefix="graphlink-")
        self.beside = Path(self._beside.name)
        try:
            self._note(self._cut)
        except BaseException:
            self._beside.cleanup()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self._beside.cleanup()
        journal = f"{self.url}/{publish.HIDDEN}/{JOURNAL}"
        if kind is None:
            files.remove([journal])
            return
        with contextlib.suppress(GraphlinkError):  # what went wrong before is what is told
            files.remove(f"{self.url}/{name}" for name in reversed(self._put))
            if not (self._cut or (self._put and self._old)):
                files.remove([journal])

    def publish(self) -> None:
        """Puts every file from beside; files of earlier runs are overwritten or removed."""
        names = sorted(p.name for p in self.beside.iterdir() if p.is_file())
        there, old = set(_names(self.url)), set(self._old)
        foreign = [name for name in names if name in there and name not in old]
        if foreign:
            raise publish.foreign(foreign[0], self.url)
        self._note([*self._old, *names])
        self._put = names
        files.remove([f"{self.url}/{summary.NAME}"])
        at_once(lambda name: files.put_file(self.beside / name, f"{self.url}/{name}"), [name for name in names if name != summary.NAME])
        files.remove(f"{self.url}/{name}" for name in sorted(old.difference(names)))
        files.put_file(self.beside / summary.NAME, f"{self.url}/{summary.NAME}")

    def _note(self, names: Sequence[str]) -> None:
        with tempfile.TemporaryDirectory(prefix="graphlink-") as folder:
            publish.write(Path(folder) / JOURNAL, msgspec.json.encode(list(names)))
            files.put_file(Path(folder) / JOURNAL, f"{self.url}/{publish.HIDDEN}/{JOURNAL}")


def _names(url: str) -> list[str]:
    """Of the files in a folder; none where there is no such folder."""
    return [inner.rpartition("/")[2] for inner in files.listing(url)] if files.is_folder(url) else []


def _read(url: str) -> bytes | None:
    """None where there is no such file."""
    if not files.is_file(url):
        return None
    with tempfile.TemporaryDirectory(prefix="graphlink-") as folder:
        return files.fetch(url, Path(folder)).read_bytes()
