"""Files on other file systems, through fsspec: whatever has "://" in its name.

Brought here before they are read and sent after they are written, whole: an unfinished file has another name, or none on object stores,
where an object appears when its upload is complete. Access keys are taken from where each file system's own tools take them.
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


def is_url(text: str) -> bool:
    return "://" in text


def fetch(url: str, folder: Path) -> Path:
    """Copies the file at ``url`` into ``folder``, under its own name. InputError when it is missing, a folder or cannot be read."""
    place = _place(url)
    local = folder / _name(url)
    _fetch(place, place.path, url, local)
    return local


def listing(url: str) -> list[str]:
    """URLs of the files right in a folder, sorted, or of all that match a pattern with ``*``, ``?`` or ``[``, which may be none.

    InputError when there is no such folder.
    """
    place = _place(url)
    web = place.protocol in _WEB
    start = re.match(r"[^*\[]*" if web else r"[^*?\[]*", url)
    assert start is not None
    with _told(url, InputError, "be listed"):
        place.system.invalidate_cache()
        if start.end() < len(url):
            found = [path for path, info in place.system.glob(place.path, detail=True).items() if info["type"] == "file"]
            base = start.group().rpartition("/")[0]
        else:
            found = [info["name"] for info in place.system.ls(place.path, detail=True) if info["type"] == "file"]
            base = url.rstrip("/")
        return sorted(base + "/" + inner for inner in _below(place.system._strip_protocol(base), found))


def put_file(path: Path, url: str) -> None:
    """Copies a local file to ``url``, in place of what is there. OutputError when it cannot be written."""
    place = _place(url)
    with _told(url, OutputError, "be written"):
        if place.protocol in OBJECT_STORES:
            place.system.put_file(str(path), place.path)
            return
        place.system.makedirs(place.system._parent(place.path), exist_ok=True)
        try:
            place.system.put_file(str(path), place.path + PART)
            place.system.mv(place.path + PART, place.path)
        except BaseException:
            with contextlib.suppress(Exception):  # what went wrong above is what is told
                place.system.rm_file(place.path + PART)
            raise


def put_folder(folder: Path, url: str) -> list[str]:
    """Copies all files in and below a local folder to below ``url``, in the order of their names; the URLs of the copies."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    urls = [url.rstrip("/") + "/" + path.relative_to(folder).as_posix() for path in files]
    for path, to in zip(files, urls, strict=True):
        put_file(path, to)
    return urls


def get_folder(url: str, folder: Path) -> list[Path]:
    """Copies all files in and below the folder at ``url`` to below a local one. InputError when it is missing or cannot be read."""
    place = _place(url)
    with _told(url, InputError, "be listed"):
        place.system.invalidate_cache()
        if not place.system.isdir(place.path):
            raise FileNotFoundError(url)
        found = sorted(place.system.find(place.path))
    copies = []
    for path, inner in zip(found, _below(place.path, found), strict=True):
        parts = PurePosixPath(inner).parts
        if ".." in parts or not parts or PurePosixPath(inner).is_absolute():
            raise InputError("holds a file whose name leads out of it", path=url, where=inner, todo="rename it")
        local = folder.joinpath(*parts)
        local.parent.mkdir(parents=True, exist_ok=True)
        _fetch(place, path, url.rstrip("/") + "/" + inner, local)
        copies.append(local)
    return copies


def remove(urls: Iterable[str]) -> None:
    """Removes files; one that is not there is fine. OutputError when one cannot be removed."""
    for url in urls:
        place = _place(url)
        with _told(url, OutputError, "be removed"), contextlib.suppress(FileNotFoundError):
            place.system.rm_file(place.path)


@dataclass(frozen=True, slots=True)
class _Place:
    """``system``: fsspec's file system; ``path``: as it names the file."""

    protocol: str
    system: Any
    path: str


def _place(url: str) -> _Place:
    try:
        import fsspec
    except ImportError:
        raise UsageError("files on other file systems need fsspec", path=url, todo="pip install 'graphlink[remote]'") from None
    protocol = url.partition("://")[0]
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        missing = error.__cause__.name if isinstance(error.__cause__, ImportError) else None
        todo = f"pip install {missing.partition('.')[0]}" if missing else None
        raise UsageError(f"{protocol}:// needs one more package ({error})", path=url, todo=todo) from None
    except Exception as error:
        known = protocol in fsspec.available_protocols()
        what = f"cannot be used ({error})" if known else f"fsspec knows no {protocol}://"
        raise UsageError(what, path=url, todo="check the address") from error
    return _Place(protocol, system, path)


def _name(url: str) -> str:
    """Last part of a URL, without a web address's query."""
    parts = urlsplit(url)
    path = parts.path if parts.scheme in _WEB else url.partition("://")[2]
    name = PurePosixPath(path).name
    if name in ("", ".."):
        raise InputError("names no file", path=url, todo="name a file")
    return name


def _fetch(place: _Place, path: str, url: str, local: Path) -> None:
    part = local.with_name(local.name + PART)
    try:
        with _told(url, InputError, "be read"):
            if place.system.isdir(path):
                raise IsADirectoryError(url)
            place.system.get_file(path, str(part))
            part.replace(local)
    finally:
        part.unlink(missing_ok=True)


def _below(base: str, paths: Iterable[str]) -> list[str]:
    """What the paths have behind ``base``; whole those that lie elsewhere."""
    return [path.removeprefix(base).lstrip("/") for path in paths]


@contextlib.contextmanager
def _told(url: str, kind: type[GraphlinkError], what: str) -> Iterator[None]:
    """Whatever a file system raises (each has errors of its own) as an error that names the URL."""
    try:
        yield
    except FileNotFoundError:
        raise kind("there is no such file or folder", path=url, todo="check the name") from None
    except IsADirectoryError:
        raise kind("is a folder", path=url, todo="name a file") from None
    except PermissionError as error:
        raise kind(f"access is forbidden ({error})", path=url, todo="check the access keys and permissions") from None
    except Exception as error:
        raise kind(f"cannot {what} ({type(error).__name__}: {error})", path=url, todo="check the address and the access keys") from error
