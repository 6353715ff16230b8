"""Where the outputs of a run go, and the jobs of its ranks until then: a folder of this machine, or one behind a URL."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Protocol

from graphlink import publish
from graphlink.engine.files import is_url
from graphlink.report import summary
from graphlink.run.remote import RemoteOut

_TRIES: Final = 4


class Store(Protocol):
    """Folders of files, each of which counts only when it is whole. Names are relative, with "/"."""

    def exists(self) -> bool:
        """Whether there are folders, whole or not."""

    def names(self, last: str) -> list[str]:
        """Folders of the first level that are whole; ``last`` as in ``place``."""

    def where(self, name: str) -> str | Path:
        """For messages."""

    def read(self, name: str) -> bytes | None:
        """A file; None where there is none."""

    def opened(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """A file that is there."""

    def place(self, name: str, last: str, write: Callable[[Path], None]) -> None:
        """A folder with what ``write`` writes, in place of an older one; of its files ``last`` says that all are there."""

    def drop(self, name: str, last: str) -> None:
        """Removes a folder, if there is one; at no time does what is left of it count."""

    def holds(self, name: str, inner: Sequence[str]) -> bool:
        """Whether these files are in a folder."""

    def take(self, name: str, last: str, to: Path) -> None:
        """Brings the files of a folder but ``last`` into one of this machine; they need not be in the store afterwards."""

    def clear(self) -> None:
        """Removes all."""

    def clear_unfinished(self) -> None:
        """Removes what killed jobs left half done."""


class Publishing(Protocol):
    """Files go to ``beside``, ``publish`` makes them the outputs, leaving without it takes everything back."""

    beside: Path

    def __enter__(self) -> Publishing: ...

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None: ...

    def publish(self) -> None: ...


class Out(Protocol):
    """``name``: as the user knows it; ``hidden``: where jobs are kept until all are joined."""

    name: str
    hidden: str

    def store(self) -> Store: ...

    def publication(self, *, force: bool) -> Publishing: ...

    def published(self) -> summary.Summary | None:
        """The summary of an earlier run all of whose files are there."""


def out_of(name: str) -> Out:
    return RemoteOut(name) if is_url(name) else LocalOut(name)


class LocalStore:
    """A folder appears by being renamed.

    Raises:
        OutputError: it would lie behind a link.
    """

    def __init__(self, out: Path) -> None:
        self.folder = out / publish.HIDDEN / "ranks"
        for folder in (self.folder.parent, self.folder):
            publish.refuse_links(folder)

    def exists(self) -> bool:
        return self.folder.is_dir()

    def names(self, last: str) -> list[str]:
        return sorted(p.name for p in self.folder.iterdir() if not p.name.startswith(publish.TEMPORARY)) if self.folder.is_dir() else []

    def where(self, name: str) -> Path:
        return self.folder / name

    def read(self, name: str) -> bytes | None:
        try:
            return (self.folder / name).read_bytes()
        except OSError:
            return None

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        with (self.folder / name).open("rb") as file:
            yield file

    def place(self, name: str, last: str, write: Callable[[Path], None]) -> None:
        folder = self.folder / name
        with publish.naming(self.folder):
            beside = self._beside()
        try:
            write(beside)
            with publish.naming(self.folder):
                self._put(beside, folder)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise

    def _put(self, beside: Path, folder: Path) -> None:
        """In place of what is there, also of what another job of the same rank puts there meanwhile: the last one stays."""
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
        """A kill on the way leaves it as it was or gone, never with some of its files."""
        aside = self._beside()
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    def drop(self, name: str, last: str) -> None:
        if (self.folder / name).exists():
            with publish.naming(self.folder), contextlib.suppress(FileNotFoundError):  # another job of this rank may have done it
                self._remove(self.folder / name)

    def _beside(self) -> Path:
        for _ in range(_TRIES):  # the job of another rank that fails may just remove the empty folder
            self.folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                return publish.temporary(self.folder)
        return publish.temporary(self.folder)

    def holds(self, name: str, inner: Sequence[str]) -> bool:
        return all(publish.is_own(one) and (self.folder / name / one).is_file() for one in inner)

    def take(self, name: str, last: str, to: Path) -> None:
        with publish.naming(to):
            for path in sorted((self.folder / name).iterdir()):
                if path.name != last:
                    publish.refuse_links(path)  # files are written to where they are taken
                    path.rename(to / path.name)

    def clear(self) -> None:
        """The hidden folder goes too if nothing else is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.parent.rmdir()

    def clear_unfinished(self) -> None:
        """Jobs of other ranks may be at work. The folder goes too if nothing else is in it."""
        for path in publish.left_by_the_killed(self.folder):
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


class LocalOut:
    def __init__(self, name: str) -> None:
        self.folder = Path(name)
        self.name, self.hidden = str(self.folder), str(self.folder / publish.HIDDEN)

    def store(self) -> LocalStore:
        return LocalStore(self.folder)

    def publication(self, *, force: bool) -> publish.Publication:
        return publish.Publication(self.folder, force=force)

    def published(self) -> summary.Summary | None:
        if not (self.folder / summary.NAME).is_file():
            return None
        whole = summary.load(self.folder / summary.NAME)
        return whole if all(publish.is_own(name) and (self.folder / name).is_file() for name in whole.files) else None
