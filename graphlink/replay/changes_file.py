"""Reads the changes of a what-if from a file of ``--what-if``.

A file is TOML: a table ``[[time]]``, ``[[wait]]`` or ``[[network]]`` a change, in any number. In each of the first two
a selector says which nodes or waits it is about, and one more key what becomes of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import numpy as np
from msgspec.structs import replace

from graphlink.errors import InputError, UsageError
from graphlink.patterns import UserPattern
from graphlink.read.source import reading
from graphlink.replay.changes import Changes

_MOST_BYTES: Final = 1 << 20  # of a file
_MOST_DEEP: Final = (
    16  # brackets in each other, and parts of a key: a file of changes has 3, and readers take memory for each
)
_QUOTED: Final = re.compile(rb'''"""(?:[^\\]|\\.)*?"""|'{3}.*?'{3}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|#[^\n]*''', re.DOTALL)
_BETWEEN: Final = re.compile(rb"[][{},=\r\n]")
_AT: Final = re.compile(
    r"(?P<what>.*) - at `\$(?:\.(?P<table>\w+))?(?:\[(?P<entry>\d+)\])?(?:\.(?P<key>\w+))?[^`]*`", re.DOTALL
)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<key>.*)`", re.DOTALL)


def load_changes(path: Path | Mapping[str, Any]) -> Changes:
    """Read a file of changes; folders in it are from the folder that it is in. Or take its tables as they are.

    Raises:
        InputError: it cannot be read, is no TOML, or has a table, key or value that is not known, which the error
            names.
        UsageError: the tables have such a one.
    """
    if isinstance(path, Mapping):
        try:
            return msgspec.convert(path, Changes, dec_hook=_pattern)
        except (msgspec.ValidationError, ValueError) as problem:
            raise UsageError(f"what_if: {problem}", todo="docs/replay.md has all tables and keys") from None
    with reading(path), path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise InputError(f"is no file of changes: it has more than {_MOST_BYTES:,} bytes", path=path)
    if _depth(data) > _MOST_DEEP:
        raise InputError("is no file of changes: it is nested too deeply", path=path)
    try:
        changes = msgspec.toml.decode(data, type=Changes, dec_hook=_pattern)
    except msgspec.ValidationError as problem:
        raise _wrong(path, str(problem)) from None
    except (msgspec.DecodeError, RecursionError, ValueError) as problem:
        raise InputError(f"is no TOML: {problem}", path=path, todo="docs/replay.md has an example") from None
    if not changes.any:
        raise InputError("has no changes", path=path, todo="add tables such as [[time]]: docs/replay.md has an example")
    times = (
        change if change.like is None else replace(change, like=str(path.parent / change.like))
        for change in changes.time
    )
    return replace(changes, time=tuple(times))


def _depth(data: bytes) -> int:
    """Return how many brackets or parts of a key lie in each other at most, as far as bytes show it."""
    bare = _QUOTED.sub(b"", data)
    bytes_ = np.frombuffer(bare, np.uint8)
    steps = np.isin(bytes_, [*b"[{"]).astype(np.int64) - np.isin(bytes_, [*b"]}"])
    # between these lies a key, or a number with its one point
    return max(int(np.cumsum(steps).max(initial=0)), max(part.count(b".") for part in _BETWEEN.split(bare)))


def _pattern(kind: type, value: Any) -> Any:
    """Compile a regular expression in a file. Raises ValueError."""
    if kind is not UserPattern or not isinstance(value, str):
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
    try:
        return UserPattern(value, "the pattern")
    except UsageError as problem:
        raise ValueError(problem.what) from None


def _wrong(path: Path, problem: str) -> InputError:
    """Return the error of what msgspec says is wrong, with entry and key."""
    place = _AT.fullmatch(problem)
    what, table, entry, key = (problem, None, None, None) if place is None else place.groups()
    unknown, todo = _UNKNOWN.fullmatch(what), "docs/replay.md has all keys"
    if unknown is not None:
        key, what = unknown["key"], f"there is no key {unknown['key'][:40]!r}"
        tables = {field.name: get_args(field.type)[0] for field in msgspec.structs.fields(Changes)}
        todo = f"its keys are {', '.join((Changes if table is None else tables[table]).__struct_fields__)}"
    where = "" if table is None else f"[[{table}]]" if entry is None else f"[[{table}]] number {int(entry) + 1}"
    where += f"{', ' if where else ''}key {key[:40]}" if key else ""
    return InputError(f"is no file of changes: {what}", path=path, where=where or None, todo=todo)
