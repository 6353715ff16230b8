"""What the name of a file says of its rank."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_SUFFIX: Final = re.compile(r"(?:\.(?:pt|trace|json|gz|zst|pytorch))+$", re.IGNORECASE)
_RANK: Final = re.compile(r"(?<![a-z])rank[_.-]?(\d{1,9})(?!\d)", re.IGNORECASE)
_KIND: Final = re.compile(r"(?<![a-z])(?:et|kineto)[_.-]?(\d{1,9})(?!\d)", re.IGNORECASE)
_NUMBER: Final = re.compile(r"(?<!\d)\d{1,9}(?!\d)")  # longer ones are times


def is_trace_name(name: str) -> bool:
    """Whether a file of that name is looked into when a folder is searched."""
    return _SUFFIX.search(name) is not None


def is_named_as_recording(path: Path) -> bool:
    """Whether the file's own name has a rank where recordings have theirs."""
    stem = _stem(path)
    return (_RANK.search(stem) or _KIND.search(stem)) is not None


def named_rank(path: Path) -> int | None:
    """The number after ``rank``, ``et`` or ``kineto`` in the file's name, else after ``rank`` in its folder's."""
    stem = _stem(path)
    found = _RANK.search(stem) or _KIND.search(stem) or _RANK.search(path.parent.name)
    return int(found[1]) if found else None


def number(path: Path) -> int | None:
    """``named_rank``, else the last number of the file's name, else a folder's name that is a number."""
    named = named_rank(path)
    if named is not None:
        return named
    last = _last_number(_stem(path)) or _NUMBER.fullmatch(path.parent.name)
    return int(last[0]) if last else None


def without_number(path: Path) -> str:
    """The file's name without its rank: the same for the files of a run, as a rule."""
    stem = _stem(path)
    found = _RANK.search(stem) or _KIND.search(stem)
    start, end = found.span(1) if found else last.span() if (last := _last_number(stem)) else (0, 0)
    return f"{stem[:start]}*{stem[end:]}" if end else stem


def _stem(path: Path) -> str:
    return _SUFFIX.sub("", path.name)


def _last_number(stem: str) -> re.Match[str] | None:
    return max(_NUMBER.finditer(stem), key=re.Match.start, default=None)
