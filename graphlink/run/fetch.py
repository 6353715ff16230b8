"""Recordings on other file systems, brought to the machine that works on them for as long as it does."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from graphlink.engine import files
from graphlink.engine.memory import unpacked_bytes
from graphlink.errors import GraphlinkError
from graphlink.run.options import Inputs


@contextlib.contextmanager
def here(inputs: Inputs) -> Iterator[Inputs]:
    """Fetch ``inputs``: yield them with all files on this machine: what is fetched for it lies in a temporary folder
    and goes at the end.

    Raises:
        InputError: a file cannot be fetched. Errors of the work inside name URLs, not copies.
    """
    if not inputs.remote:
        yield inputs
        return
    with tempfile.TemporaryDirectory(prefix="graphlink-") as folder:
        copies: dict[Path | None, Path] = {}
        for number, (path, remote) in enumerate(inputs.remote):
            place = Path(folder) / str(number)  # the two may have one name
            place.mkdir()
            copies[path] = files.fetch(remote.name, place)
        fetched = tuple((copies[path], remote) for path, remote in inputs.remote)
        with naming_urls({str(copy): remote.name for copy, remote in fetched}):
            yield replace(
                inputs,
                kineto=copies.get(inputs.kineto, inputs.kineto),
                et=copies.get(inputs.et, inputs.et),
                nccl=tuple(copies.get(path, path) for path in inputs.nccl),
                found=frozenset(copies.get(path, path) for path in inputs.found),
                remote=fetched,
            )


@contextlib.contextmanager
def naming_urls(urls: Mapping[str, str]) -> Iterator[None]:
    """Raise errors from inside with ``urls`` in place of local names."""
    try:
        yield
    except GraphlinkError as problem:
        texts = (problem.what, problem.path, problem.where, problem.todo)
        what, path, where, todo = (with_urls(str(text), urls) if text is not None else None for text in texts)
        raise type(problem)(str(what), path=path, where=where, todo=todo) from problem


def with_urls(text: str, urls: Mapping[str, str]) -> str:
    for local, url in urls.items():
        text = text.replace(local, url)
    return text


def unpacked_size(inputs: Inputs) -> int:
    """Return the bytes of the rank's files once unpacked, as far as that is known without fetching them."""
    behind = [(path, inputs.remote_of(path)) for path in inputs.files]
    return sum(unpacked_bytes(path, None if remote is None else remote.size_bytes) for path, remote in behind)
