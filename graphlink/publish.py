"""Writing into the output folder so that it is either as before or complete: files are made in a temporary folder and
moved in at the end.

The temporary folder is ``DIR/.graphlink/tmp-<host>-<pid>-<start of the process>-<random>``, on the same file system as
DIR, so that moving is renaming. A journal lies there while files are moved: whoever opens DIR next (``settle``) takes
back what a process that was killed meanwhile had moved. Taking back may be cut short as well: each of its steps may be
done twice.

Journals and summaries come with a folder, whoever made it. So whatever they list, only plain names that graphlink
itself gives (``is_own``) are moved or removed, in DIR alone, and no link leads out of it (``refuse_links``).
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, NoReturn

import msgspec

from graphlink.errors import GraphlinkError, OutputError
from graphlink.output_names import SUMMARY, is_own

HIDDEN: Final = ".graphlink"
TEMPORARY: Final = "tmp-"
OLD: Final = "old"
JOURNAL: Final = "journal.json"
DONE: Final = "journal.done"
MOST_MOVING_S: Final = 600  # a journal of another host is one of a killed process once it is older
_IS_OPEN: Final = re.compile(
    r"/dev/(std(out|err)|fd/\d+|tty|null)|/proc/(self|\d+)/fd/\d+"
)  # leads to where it must be written
_CUT: Final = (
    "a run was killed while it moved files, and they cannot be put back",
    "run the command as somebody who may write there",
)


class _Listed(msgspec.Struct):
    """The part that is needed of an old summary, whatever version wrote it."""

    graphlink: str
    files: list[str]


def refuse_links(folder: Path) -> None:
    """Refuse a folder of ours that is a link, through which files elsewhere would be moved and removed.

    Raises:
        OutputError: it is one.
    """
    if os.path.islink(folder):  # noqa: PTH114 - False, where Path.is_symlink raises, in a folder that may not be read
        raise OutputError(
            "is a link, not a folder of graphlink", path=folder, todo="remove it, or choose another folder with --out"
        )


def temporary(folder: Path) -> Path:
    """Make a new folder in ``folder``, named so that it is known whose it is."""
    return Path(tempfile.mkdtemp(prefix=f"{TEMPORARY}{_host()}-{os.getpid()}-{_started(os.getpid())}-", dir=folder))


def left_by_the_killed(folder: Path) -> list[Path]:
    """Find temporary folders in ``folder`` that are of no process of this host that lives."""
    mine = f"{TEMPORARY}{_host()}-"
    return [
        path
        for path in _temporaries(folder)
        if path.name.startswith(mine) and not _lives(*path.name.removeprefix(mine).split("-")[:2])
    ]


def settle(folder: Path) -> None:
    """Make an output folder what it was before, or is after, a publication that was cut short; remove temporary folders
    that killed processes left.

    Waits for a process of this host that moves files right now. A folder of nobody's is left alone, as is a link.

    Raises:
        OutputError: files cannot be moved back, or another host may still be moving them.
    """
    hidden = folder / HIDDEN
    with naming(folder, *_CUT):
        if hidden.is_symlink() or not _temporaries(hidden):
            return
        with _moving(hidden):
            killed = left_by_the_killed(hidden)
            for left in _temporaries(hidden):
                elsewhere = not left.name.startswith(f"{TEMPORARY}{_host()}-") and os.path.isfile(left / JOURNAL)  # noqa: PTH113
                # of one that is far in the future the clock was wrong: it would be waited for for good
                if elsewhere and abs(time.time() - (left / JOURNAL).stat().st_mtime) < MOST_MOVING_S:
                    raise OutputError(
                        "another host moves files into it, or was killed while it did",
                        path=folder,
                        todo=f"try again; after {MOST_MOVING_S // 60} minutes what was there before is put back",
                    )
                if elsewhere or left in killed:
                    _take_back_journal(folder, left)
                    shutil.rmtree(left, ignore_errors=True)
    with contextlib.suppress(OSError):  # it holds something else
        hidden.rmdir()


def _temporaries(folder: Path) -> list[Path]:
    inside: list[Path] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # whose it is may just remove it
        inside = sorted(folder.iterdir())
    return [path for path in inside if path.name.startswith(TEMPORARY) and not path.is_symlink() and path.is_dir()]


def _host() -> str:
    return platform.node().replace("-", "_")


def _lives(pid: str, started: str) -> bool:
    """Tell whether the process lives. ``started``: as ``_started`` returns it, which differs for another process that
    got the same number."""
    if not (pid.isascii() and pid.isdecimal()):
        return True  # whoever it is
    with contextlib.suppress(PermissionError):  # somebody else's, which lives
        try:
            os.kill(int(pid), 0)
        except (ProcessLookupError, OverflowError):  # OverflowError: a number that no process can have
            return False
    return not started.isdecimal() or _started(int(pid)) in (started, "x")


def _started(pid: int) -> str:
    """Return when a process began, in ticks since the machine did; "ended" for a zombie, "x" where the system does not
    say. ``proc(5)``, fields 3 and 22 of ``stat``."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "ended" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return "x"


@contextlib.contextmanager
def _moving(hidden: Path) -> Iterator[None]:
    """Lock the folder: one process at a time moves files, where the file system has locks. The lock of a process that
    is killed is released."""
    with contextlib.ExitStack() as stack:
        if sys.platform != "win32":
            import fcntl

            with contextlib.suppress(OSError):
                number = os.open(hidden, os.O_RDONLY)
                stack.callback(os.close, number)
                fcntl.flock(number, fcntl.LOCK_EX)
        yield


def _take_back_journal(folder: Path, beside: Path) -> None:
    """Move back what a journal lists, as far as it was moved and graphlink gives such names. Without a journal nothing
    was moved.
    """
    journal = beside / JOURNAL
    if JOURNAL not in os.listdir(beside) or not journal.is_file():  # noqa: PTH208 - which fails where it cannot be known
        return
    try:
        listed = msgspec.json.decode(journal.read_bytes(), type=dict[str, list[str]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # cut short: then nothing had been moved
        return
    aside = beside / OLD
    if aside.is_symlink() or not aside.is_dir():  # it is made before anything is moved
        return
    for name in filter(is_own, listed.get("new", ())):
        if not os.path.lexists(beside / name) and os.path.lexists(folder / name):  # it did move
            (folder / name).rename(beside / name)
    for name in filter(is_own, listed.get("old", ())):
        if os.path.lexists(aside / name):
            (aside / name).rename(folder / name)
    journal.rename(beside / DONE)  # before anything of it is removed, which would look like moved


@contextlib.contextmanager
def naming(
    path: str | Path,
    what: str = "cannot be written",
    todo: str = "make room or choose another folder with --out; what was published there before is untouched",
    kind: type[GraphlinkError] = OutputError,
) -> Iterator[None]:
    """Turn an ``OSError`` of writing ``path``, or of what else ``kind`` says, into an error that names it."""
    try:
        yield
    except OSError as problem:
        raise kind(f"{what}: {problem.strerror or problem}", path=path, todo=todo) from None


@contextlib.contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file for bytes."""
    with naming(path), path.open("wb", buffering=1 << 20) as out:
        yield out


def write(path: Path, data: bytes) -> None:
    with writing(path) as out:
        out.write(data)


def write_anew(path: Path, data: bytes) -> None:
    """Write a file of its own in the same folder, and move it in place: what was there is whole, or replaced as a
    whole, and a link is not followed. A device, a pipe or what this process has open is written as it is.

    Raises:
        OSError: it cannot be written.
    """
    there = path.exists() and not path.is_symlink()
    if _IS_OPEN.fullmatch(str(path)) or (there and not path.is_file()):
        path.write_bytes(data)
        return
    beside = path.with_name(f".{secrets.token_hex(16)}.part")
    number = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(number, "wb") as out:
            out.write(data)
        if there:
            shutil.copymode(path, beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def as_json(value: object) -> bytes:
    """Encode a record as JSON with line breaks; of names that are no UTF-8 what is none is a question mark."""
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_utf8(msgspec.to_builtins(value)))
    return msgspec.json.format(encoded, indent=1)


def _utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_utf8(key): _utf8(inner) for key, inner in value.items()}
    return [_utf8(inner) for inner in value] if isinstance(value, list | tuple) else value


def write_json(path: Path, value: object) -> None:
    """Write a record as JSON with line breaks, as ``write`` does."""
    write(path, as_json(value) + b"\n")


class Publication:
    """A folder being written: files go to ``beside``, ``publish`` moves them in, leaving without it takes everything
    back.

    >>> with Publication(Path("out"), force=False) as publication:   # doctest: +SKIP
    ...     write(publication.beside / "a.json", b"{}")
    ...     publication.publish()

    Raises:
        OutputError: DIR is no folder, cannot be written to, or holds outputs of an earlier run and ``force`` is not
            set; a file that would be written is there already and is not one of an earlier run (``force`` or not).

    With ``only`` the other files of the earlier run stay.
    """

    def __init__(self, folder: Path, *, force: bool, only: Sequence[str] | None = None) -> None:
        self.folder, self.force, self._only = folder, force, only
        self.beside = folder / HIDDEN  # until it is made
        self._made: list[Path] = []  # folders that go if they are empty in the end, outermost first
        self._old: list[str] = []
        self._earlier: tuple[int, ...] | None = None

    def __enter__(self) -> Publication:
        try:
            refuse_links(self.folder / HIDDEN)
            settle(self.folder)
            with naming(self.folder):
                self._earlier = self._summary_there()
                old = self._files_of_earlier_run()
                self._old = old if self._only is None else [name for name in old if name in self._only]
                self._make_folders()
        except BaseException:
            self._take_back()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            with _moving(self.folder / HIDDEN), naming(self.folder, *_CUT):
                if (self.beside / DONE).exists():
                    (self.beside / DONE).rename(self.beside / JOURNAL)
                _take_back_journal(self.folder, self.beside)
        self._take_back()

    def publish(self) -> None:
        """Move every file from the temporary folder into the output folder; the summary last, so that no summary lists
        what is not there.

        Old files are set aside first and put back if anything fails on the way, or after it while the folder is still
        being written.
        """
        names = sorted((p.name for p in self.beside.iterdir() if p.is_file()), key=lambda n: (n == SUMMARY, n))
        strange = next((name for name in names if not is_own(name)), None)
        if strange is not None:  # could be neither taken back nor replaced
            raise OutputError(
                f"{strange} is no name of an output",
                path=self.beside,
                todo="remove the folder .graphlink, and run again",
            )
        aside = self.beside / OLD
        with _moving(self.folder / HIDDEN), naming(self.folder):
            if self._summary_there() != self._earlier:
                raise_overtaken(self.folder)
            there = [name for name in names if (self.folder / name).exists() or (self.folder / name).is_symlink()]
            refuse_foreign(there, self._old, self.folder)
            aside.mkdir()
            write(self.beside / JOURNAL, msgspec.json.encode({"old": self._old, "new": names}))
            for name in self._old:
                if (self.folder / name).is_file() or (self.folder / name).is_symlink():
                    (self.folder / name).rename(aside / name)
            for name in names:
                (self.beside / name).rename(self.folder / name)
            (self.beside / JOURNAL).rename(self.beside / DONE)

    def _summary_there(self) -> tuple[int, ...] | None:
        """Return what tells the summary in the folder from another one; None where there is none."""
        try:
            status = (self.folder / SUMMARY).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _files_of_earlier_run(self) -> list[str]:
        if self.folder.exists() and not self.folder.is_dir():
            raise OutputError("is a file, not a folder", path=self.folder, todo="choose another folder with --out")
        old = self.folder / SUMMARY
        if not (old.exists() or old.is_symlink()):
            return []
        try:
            data = old.read_bytes()
        except OSError as error:
            raise _irreplaceable(error.strerror or str(error), old) from None
        return replaced_by_force(data, old, self.folder, force=self.force)

    def _make_folders(self) -> None:
        hidden = self.folder / HIDDEN
        for path in reversed([hidden, *(p for p in hidden.parents if not p.exists())]):
            path.mkdir(exist_ok=path == hidden)  # which may be empty, and goes then
            self._made.append(path)
        self.beside = temporary(hidden)

    def _take_back(self) -> None:
        if self.beside.name != HIDDEN:
            shutil.rmtree(self.beside, ignore_errors=True)
        for path in reversed(self._made):
            with contextlib.suppress(OSError):  # somebody else put something into it meanwhile
                path.rmdir()


def add(folder: Path, name: str, data: bytes) -> None:
    """Put one more file into the output folder of a run, or replace it, and list it in the summary: both or neither.

    Raises:
        OutputError: as ``Publication``; a file of that name that no summary lists is not replaced.
    """
    with Publication(folder, force=True, only=(name, SUMMARY)) as publication:
        with naming(folder / SUMMARY):
            whole = msgspec.json.decode((folder / SUMMARY).read_bytes())
        whole["files"] = sorted({*whole["files"], name})
        write(publication.beside / name, data)
        write_json(publication.beside / SUMMARY, whole)
        publication.publish()


def replaced_by_force(data: bytes, path: str | Path, folder: str | Path, *, force: bool) -> list[str]:
    """Return names of graphlink's files that the summary of an earlier run lists, whatever version wrote it; no others
    may be replaced.

    Raises:
        OutputError: it is none of graphlink's, or ``force`` is not set.
    """
    try:
        names = msgspec.json.decode(data, type=_Listed).files
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _irreplaceable("it was not written by graphlink", path) from None
    if not force:
        todo = "choose another folder with --out, or replace those files (and no others) with --force"
        raise OutputError("holds the outputs of an earlier run", path=folder, todo=todo)
    return list(filter(is_own, dict.fromkeys(names)))


def refuse_foreign(there: Iterable[str], old: Iterable[str], folder: str | Path) -> None:
    """Raise OutputError where a file that would be written is ``there`` and none of the ``old`` ones of an
    earlier run.
    """
    known = set(old)
    foreign = next((name for name in there if name not in known), None)
    if foreign is not None:
        what = f"{foreign} is there already and is not listed in a summary of graphlink"
        raise OutputError(what, path=folder, todo="move it away or choose another folder with --out")


def refuse_others(folder: Path, ours: Container[str], verb: str) -> None:
    """Raise OutputError where the folder of ``verb`` holds anything but ``ours``."""
    others = sorted(path.name for path in folder.iterdir() if path.name not in ours) if folder.is_dir() else []
    if others:
        what = f"holds {others[0]}, which is not of graphlink {verb}"
        raise OutputError(what, path=folder, todo="name another folder with --out")


def raise_overtaken(folder: str | Path) -> NoReturn:
    """Raise OutputError: what this run made is not what the folder will hold."""
    raise OutputError(
        "another run published its outputs into it meanwhile; those stay, and nothing of this one was published",
        path=folder,
        todo="choose another folder with --out, or run again with --force",
    )


def _irreplaceable(problem: str, path: str | Path) -> OutputError:
    return OutputError(
        f"cannot be replaced: {problem}", path=path, todo="move it away or choose another folder with --out"
    )
