"""Recordings on other file systems while they are found and paired: their beginnings, in a folder of this machine that
looks like theirs.

All that is asked of them until their ranks are known is in their headers; so the same code answers as for files of this
machine.
"""

from __future__ import annotations

import contextlib
import glob
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

from graphlink.engine import files
from graphlink.errors import InputError, UsageError
from graphlink.read.heads import HEAD_BYTES, at_once, read_head
from graphlink.run.discover.inputs import is_looked_into, unfold
from graphlink.run.discover.pairing import Discovered
from graphlink.run.fetch import with_urls
from graphlink.run.options import Recordings
from graphlink.wings import any_of

SHORT_BYTES: Final = 1 << 20  # of a file: is fetched first, and tells the rank of most
LONG_BYTES: Final = HEAD_BYTES + (1 << 18)  # more than ``read_head`` reads, packed or not
MOST_GRAPHS: Final = 64  # of others that are read


class Standins:
    """Files with the names of those behind URLs, below ``folder``.

    Attributes:
        urls: How names of stand-ins begin, and the URLs that they stand for.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._remotes: dict[Path, files.FileState] = {}
        self.urls: dict[str, str] = {}

    def named(self, recordings: Recordings) -> Recordings:
        """Return recordings that name stand-ins, which are there then, instead of URLs.

        Raises:
            InputError: a file or folder is missing or cannot be reached.
            UsageError: its file system needs a package that is not there.
        """
        both = [name for name in (*recordings.kineto, *recordings.et) if files.is_url(name)]
        self._add(
            [one for name in both for one in (files.found(name) if files.is_pattern(name) else [files.remote(name)])]
        )
        self._add([one for name in filter(files.is_url, recordings.nccl) for one in _side_files(name)])
        for url in self._folders(recordings.folders):
            self._fill(url)
        kineto, et, nccl, folders = (
            tuple(map(self._name, names))
            for names in (recordings.kineto, recordings.et, recordings.nccl, recordings.folders)
        )
        return replace(recordings, kineto=kineto, et=et, nccl=nccl, folders=folders)

    def stood_for(self, found: Discovered) -> Discovered:
        """Replace what was found of stand-ins by what these stand for.

        Raises:
            UsageError: nsys exports are among it, which are read from any place in the file.
        """
        for path in found.exports:
            if path in self._remotes:
                raise UsageError(
                    "nsys exports are read from this machine only",
                    path=self._remotes[path].name,
                    todo="copy it here first",
                )
        return replace(
            found,
            ranks=tuple(
                replace(one, remote=tuple((path, self._remotes[path]) for path in one.files if path in self._remotes))
                for one in found.ranks
            ),
            warnings=tuple(with_urls(text, self.urls) for text in found.warnings),
            missing=tuple(with_urls(text, self.urls) for text in found.missing),
        )

    def graphs(self, names: Sequence[str]) -> list[Path]:
        """Find Chakra graphs that somebody left in folders of recordings, those behind URLs as copies."""
        for url in self._folders(names):
            local = self._local(url)
            local.mkdir(parents=True, exist_ok=True)
            for graph in files.found(f"{url}/*.et")[:MOST_GRAPHS] if not files.is_file(url) else ():
                files.fetch(graph.name, local)
        return [path for name in unfold(map(self._name, names)) for path in sorted(name.glob("*.et"))]

    def _folders(self, names: Sequence[str]) -> list[str]:
        out = []
        for url in filter(files.is_url, names):
            out += (
                (files.folders(url) or [one.name for one in files.found(url)])
                if files.is_pattern(url)
                else [url.rstrip("/")]
            )
        return out

    def _fill(self, url: str) -> None:
        """Make stand-ins for a file, or for what a folder holds, or the folders in it where it holds no recording
        itself.
        """
        if files.is_file(url):
            self._add([files.remote(url)])
            return
        self._local(url).mkdir(parents=True, exist_ok=True)
        here = self._add(_recordings(url))
        if not any(read_head(path).kind for path in here):
            below = [inner for inner in files.folders(url) if not inner.rpartition("/")[2].startswith(".")]
            self._add([one for recordings in at_once(_recordings, below) for one in recordings])

    def _add(self, found: Sequence[files.FileState]) -> list[Path]:
        added = {self._local(one.name): one for one in found}
        at_once(_fetch_head, list(added.items()))
        self._remotes |= added
        return list(added)

    def _name(self, name: str) -> str:
        if not files.is_url(name):
            return name
        local = self._local(name.rstrip("/"))
        inner = local.relative_to(self._folder)
        return f"{glob.escape(str(self._folder))}/{inner}" if files.is_pattern(name) else str(local)

    def _local(self, url: str) -> Path:
        scheme, slashes, rest = re.split("(://+)", url, maxsplit=1)
        prefix = scheme + slashes
        if prefix.startswith("http"):
            rest = rest.partition("?")[0]
        root = self._folder / re.sub("[:/]", "_", prefix)
        parts = PurePosixPath(rest).parts
        if ".." in parts:
            raise InputError("has a name that leads out of its folder", path=url, todo="rename it")
        self.urls[f"{root}/"] = prefix
        return root.joinpath(*parts)


def _recordings(url: str) -> list[files.FileState]:
    return [one for one in files.found(url) if is_looked_into(one.name.rpartition("/")[2])]


def _side_files(name: str) -> list[files.FileState]:
    if files.is_pattern(name) or files.is_folder(name):
        return [one for one in files.found(name) if any_of("may_be_side_file", one.name.rpartition("/")[2])]
    return [files.remote(name)]


def _fetch_head(stand: tuple[Path, files.FileState]) -> None:
    path, remote = stand
    files.fetch_start(remote, path, SHORT_BYTES)
    with contextlib.suppress(InputError):  # cut off inside its header
        if remote.size_bytes <= SHORT_BYTES or read_head(path).rank is not None:
            return
    files.fetch_start(remote, path, LONG_BYTES)
