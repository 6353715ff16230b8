"""Files on other file systems, through fsspec: whatever has "://" in its name.

Brought here before they are read and sent after they are written, whole: an unfinished file has another name, or none
on object stores, where an object appears when its upload is complete. Access keys are taken from where each file
system's own tools take them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from graphlink.errors import GraphlinkError, InputError, OutputError, UsageError

PART: Final = ".part"  # ends the name of an unfinished file
OBJECT_STORES: Final = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss", "r2")
_WEB: Final = ("http", "https")
_VERSION: Final = (
    "ETag",
    "etag",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "created",
)  # fsspec has no common name for it


@dataclass(frozen=True, slots=True)
class FileState:
    """A file as it was when it was looked at. ``version`` changes when the file does: an etag or a time, empty where
    there is none.

    ``name``: its path, or its URL.
    """

    name: str
    size_bytes: int
    version: str


def is_url(text: str) -> bool:
    return "://" in text


def refuse_urls(given: Iterable[str]) -> None:
    """Raise UsageError where one of the names is a URL."""
    for name in filter(is_url, given):
        raise UsageError("is read from folders of this machine only", path=name, todo="copy it here first")


def is_pattern(url: str) -> bool:
    """Tell whether a URL contains a pattern (``*``, ``?``, ``[``)."""
    return len(_plain_start(url)) < len(url)


def fetch(url: str, folder: Path) -> Path:
    """Copy the file at ``url`` into ``folder``, under its own name. InputError when it is missing, a folder or cannot
    be read.
    """
    local = folder / _name(url)
    part = local.with_name(local.name + PART)
    try:
        with _at(url, InputError, "be read") as (system, path):
            if system.isdir(path):
                raise IsADirectoryError(url)
            system.get_file(path, str(part))
            part.replace(local)
    finally:
        part.unlink(missing_ok=True)
    return local


def fetch_start(remote: FileState, local: Path, size_bytes: int) -> None:
    """Copy the first ``size_bytes`` of a file. InputError when it cannot be read."""
    data = b""
    if remote.size_bytes:  # object stores refuse a range of nothing
        with _at(remote.name, InputError, "be read") as (system, path):
            data = system.cat_file(path, start=0, end=min(size_bytes, remote.size_bytes))
    local.parent.mkdir(parents=True, exist_ok=True)
    local.write_bytes(data[:size_bytes])  # a web server may send all


def remote(url: str) -> FileState:
    """Open the file at ``url``. InputError when it is missing, a folder or cannot be reached."""
    with _at(url, InputError, "be read") as (system, path):
        info = system.info(path)
        if info["type"] != "file":
            raise IsADirectoryError(url)
    return _remote(url, info)


def found(url: str) -> list[FileState]:
    """List the files right in a folder, sorted, or all that match a pattern with ``*``, ``?`` or ``[``, which may be
    none.

    InputError when there is no such folder.
    """
    return [_remote(inner, info) for inner, info in _entries(url) if info["type"] == "file"]


def folders(url: str) -> list[str]:
    """List the URLs of the folders right in a folder, sorted, or of all that match a pattern. InputError when there is
    no such folder.
    """
    return [inner.rstrip("/") for inner, info in _entries(url) if info["type"] == "directory"]


def is_file(url: str) -> bool:
    """Tell whether ``url`` is a file. Raises: InputError: that cannot be found out."""
    with _at(url, InputError, "be read") as (system, path), contextlib.suppress(FileNotFoundError):
        return bool(system.info(path)["type"] == "file")
    return False


def is_folder(url: str) -> bool:
    """Tell whether ``url`` is a folder. Raises: InputError: that cannot be found out."""
    with _at(url, InputError, "be listed") as (system, path):
        return bool(system.isdir(path))


def read(url: str) -> bytes | None:
    """Return the bytes of a file; None where there is none. InputError when it cannot be read."""
    with _at(url, InputError, "be read") as (system, path), contextlib.suppress(FileNotFoundError):
        data: bytes = system.cat_file(path)
        return data
    return None


def put_file(path: Path, url: str) -> None:
    """Copy a local file to ``url``, in place of what is there. OutputError when it cannot be written."""
    with _at(url, OutputError, "be written") as (system, there):
        if url.partition("://")[0] in OBJECT_STORES:
            system.put_file(str(path), there)
            return
        system.makedirs(system._parent(there), exist_ok=True)
        try:
            system.put_file(str(path), there + PART)
            system.mv(there + PART, there)
        except BaseException:
            with contextlib.suppress(Exception):  # what went wrong above is what is told
                system.rm_file(there + PART)
            raise


def remove(urls: Iterable[str]) -> None:
    """Remove files; one that is not there is fine. OutputError when one cannot be removed."""
    for url in urls:
        with _at(url, OutputError, "be removed") as (system, path), contextlib.suppress(FileNotFoundError):
            system.rm_file(path)


def remove_folder(url: str) -> None:
    """Remove a folder with all in it; one that is not there is fine. OutputError when something cannot be removed."""
    with _at(url, OutputError, "be removed") as (system, path), contextlib.suppress(FileNotFoundError):
        system.rm(path, recursive=True)


def _plain_start(url: str) -> str:
    """Return the beginning without a pattern; what follows "?" in a web address is none."""
    return re.split(r"[*\[]" if url.partition("://")[0] in _WEB else r"[*?\[]", url, maxsplit=1)[0]


def _entries(url: str) -> list[tuple[str, dict[str, Any]]]:
    """Yield URL and fsspec's facts of what is right in a folder, or matches a pattern."""
    with _at(url, InputError, "be listed") as (system, path):
        if is_pattern(url):
            infos = list(system.glob(path, detail=True).values())
            base = _plain_start(url).rpartition("/")[0]
        else:
            infos = system.ls(path, detail=True)
            base = url.rstrip("/")
        inner = [info["name"].removeprefix(system._strip_protocol(base)).lstrip("/") for info in infos]
    entries = [(f"{base}/{name}", info) for name, info in zip(inner, infos, strict=True) if name]
    if infos and not entries and infos[0]["type"] == "file":
        raise InputError("is a file, not a folder", path=url, todo="give a folder, or files with --et and --kineto")
    return sorted(entries, key=lambda entry: entry[0])


def _remote(url: str, info: dict[str, Any]) -> FileState:
    return FileState(url, info.get("size") or 0, str(next((info[key] for key in _VERSION if info.get(key)), "")))


def _place(url: str) -> tuple[Any, str]:
    """Return fsspec's file system, as it is now, and how that names the file."""
    try:
        import fsspec
    except ImportError:
        raise UsageError(
            "files on other file systems need fsspec", path=url, todo="pip install '.[remote]' in a clone of graphlink"
        ) from None
    protocol = url.partition("://")[0]
    try:
        system, path = fsspec.core.url_to_fs(url)
        system.invalidate_cache()
    except ImportError as error:
        missing = error.__cause__.name if isinstance(error.__cause__, ImportError) else None
        todo = f"pip install {missing.partition('.')[0]}" if missing else None
        raise UsageError(f"{protocol}:// needs one more package ({error})", path=url, todo=todo) from None
    except Exception as error:
        known = protocol in fsspec.available_protocols()
        what = f"cannot be used ({error})" if known else f"fsspec knows no {protocol}://"
        raise UsageError(what, path=url, todo="check the address") from error
    return system, path


def _name(url: str) -> str:
    """Return the last part of a URL, without a web address's query."""
    parts = urlsplit(url)
    path = parts.path if parts.scheme in _WEB else url.partition("://")[2]
    name = PurePosixPath(path).name
    if name in ("", ".."):
        raise InputError("names no file", path=url, todo="name a file")
    return name


@contextlib.contextmanager
def _at(url: str, kind: type[GraphlinkError], what: str) -> Iterator[tuple[Any, str]]:
    """Yield what ``_place`` returns, and convert whatever a file system raises (each has errors of its own) to an error
    that names the URL.
    """
    place = _place(url)
    try:
        yield place
    except FileNotFoundError:
        missing = "bucket" if kind is OutputError else "file"
        raise kind(f"there is no such {missing} or folder", path=url, todo="check the name") from None
    except IsADirectoryError:
        raise kind("is a folder", path=url, todo="name a file") from None
    except PermissionError as error:
        raise kind(f"access is forbidden ({error})", path=url, todo="check the access keys and permissions") from None
    except Exception as error:
        raise kind(
            f"cannot {what} ({type(error).__name__}: {error})", path=url, todo="check the address and the access keys"
        ) from error
