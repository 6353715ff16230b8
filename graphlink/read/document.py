"""JSON documents that are read whole: what graphlink itself wrote, or somebody in its place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import msgspec

from graphlink.errors import InputError
from graphlink.read.columns import MAX_NS
from graphlink.read.source import reading
from graphlink.records import Short
from graphlink.version import __version__
from graphlink.wings import RecordT

AGAIN: Final = "run graphlink again with --force"  # helps where a file of an earlier version is read
_LONG: Final = re.compile(rb"[0-9]{19}")  # below, a number fits an int64


class Written(Short, msgspec.Struct, frozen=True, kw_only=True):
    """What graphlink writes begins with the version that wrote it."""

    graphlink: str = __version__


class Formatted(Written, frozen=True, kw_only=True):
    """And with the version of its format, where graphlink or others read it again."""

    format: int = 1


def load(path: Path, kind: type[RecordT], what: str, todo: str | None = None) -> RecordT:
    """Read the document at ``path`` as ``kind``, all integers in it within +-2**62, so that sums and floats of them
    stay finite.

    Raises:
        InputError: it cannot be read, or is no ``what``.
    """
    with reading(path):
        data = path.read_bytes()
    try:
        document = msgspec.json.decode(data, type=kind)
        if _LONG.search(data):
            json.loads(data, parse_int=_within)
    except RecursionError:
        raise InputError(f"is no {what}: it is nested too deeply", path=path, todo=todo) from None
    except (msgspec.DecodeError, ValueError) as problem:
        raise InputError(f"is no {what}: {problem}", path=path, todo=todo) from None
    return document


def _within(text: str) -> int:
    """Read an integer. Raises ValueError where it is beyond 2**62."""
    number = int(text)
    if abs(number) >= MAX_NS:
        raise ValueError("a number is beyond 2**62")
    return number


class Made(msgspec.Struct):
    """The part of a summary that says what made graphs that were not recorded."""

    made: str | None = None
    source: str = ""


def refuse_made(summary: Path) -> None:
    """Refuse a folder whose ``summary`` says that its graphs were made, where a recording is needed.

    Raises:
        InputError: they were.
    """
    graphs = made(summary)
    if graphs is not None:
        raise InputError(
            f"holds graphs that {graphs.made} made from those of {graphs.source}; this needs a recording",
            path=summary.parent,
            todo="name a recorded run; what was made is for replay, critical-path --across, check, astra, simulate and "
            "show",
        )


def made(summary: Path) -> Made | None:
    """Return what made the graphs of a summary; None where they were recorded, or it cannot be read."""
    try:
        graphs = msgspec.json.decode(summary.read_bytes(), type=Made)
    except (OSError, ValueError, RecursionError):
        return None
    return None if graphs.made is None else graphs
