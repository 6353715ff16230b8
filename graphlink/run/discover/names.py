"""Ranks in the names of files.

A number is a rank only where the name says so: after ``rank`` (of the run: not after ``local_rank``, ``tp_rank`` and
the like), ``et``, ``kineto`` or ``trace.``, or where the numbers of all files are 0 to n - 1. Others are processes
(PyTorch's own ``host_pid.time``), steps, devices (``mi250``) or dates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from graphlink.patterns import DIGITS

_SUFFIX: Final = re.compile(r"(?:\.(?:pt|trace|json|gz|zst|pytorch|pftrace))+$", re.IGNORECASE)
# Ranks inside a part of the run, or of its machines: "tp_rank_0"
_OTHERS: Final = "step|iter|epoch|pid|host|node|gpu|local"  # what is counted, where numbers are no ranks
_INNER: Final = r"(?:(?P<inner>local|node|group|tp|pp|dp|ep|cp|sp|mp|dcp|etp|edp)[_.-]?)?"
_RANK: Final = re.compile(
    rf"(?<![a-z]){_INNER}rank[_.-]?(?P<rank>\d{{1,9}})(?!\d)(?:[_.-]?of[_.-]?(?P<world>\d{{1,9}})(?!\d))?",
    re.IGNORECASE,
)
# et_0, et_plus_0, kineto0, trace.0
_KIND: Final = re.compile(
    rf"(?<![a-z])(?:(?:et|kineto)(?:(?:[_.-](?:plus|trace))*(?P<word>[_.-](?!{_OTHERS})[a-z]+)*[_.-])?|trace\.)(?P<rank>\d{{1,9}})(?![0-9a-z])",
    re.IGNORECASE,
)
_NUMBER: Final = re.compile(r"(?<!\d)\d{1,9}(?!\d)")  # longer ones are times
_TIMES: Final = re.compile(r"step|iter|epoch|pid", re.IGNORECASE)  # what is counted there is no rank


def is_trace_name(name: str) -> bool:
    """Tell whether a file of that name is looked into when a folder is searched."""
    return _SUFFIX.search(name) is not None


def is_named_as_recording(path: Path) -> bool:
    """Tell whether the file's own name has a rank where recordings have theirs."""
    return _told(_stem(path)) is not None


def named_rank(path: Path, *, alone: bool = False) -> int | None:
    """Read the number after ``rank``, ``et``, ``kineto`` or ``trace.`` in the file's name, else after ``rank`` in its
    folder's. ``alone``: no other file has it, too; behind a word of its own it may then be anything
    (``kineto_shift_110``).
    """
    found = _told(_stem(path)) or _rank_in(path.parent.name)
    return int(found["rank"]) if found and not (alone and found.groupdict().get("word")) else None


def told_rank(recorded: int | None, path: Path, *, alone: bool = False) -> int | None:
    """Return the rank that a file records, else that of its name, as ``named_rank``."""
    return recorded if recorded is not None else named_rank(path, alone=alone)


def named_world(path: Path) -> int | None:
    """Read the number of ranks in ``rank0of8``."""
    found = _rank_in(_stem(path)) or _rank_in(path.parent.name)
    return int(found["world"]) if found and found["world"] else None


def counted_ranks(paths: Sequence[Path], told: Sequence[int | None]) -> list[int] | None:
    """Find the numbers in the names of all files of a run that are 0 to n - 1, each once, and no other than what is
    ``told`` of any.

    That is the last number of each, or where names are alike but for numbers any of them, or the name of its folder.
    Without any, the number of a node and that of the rank on it: ``report_{node}_{local}``. None where there is no such
    number, or two that differ.
    """
    full = [
        numbers
        for numbers in _columns(paths)
        if sorted(numbers) == list(range(len(paths)))
        and all(t in (None, n) for t, n in zip(told, numbers, strict=True))
    ]
    if full:
        return full[0] if all(numbers == full[0] for numbers in full) else None
    found = placed_ranks(paths)
    return found if found is not None and all(t in (None, n) for t, n in zip(told, found, strict=True)) else None


def placed_ranks(paths: Sequence[Path]) -> list[int] | None:
    """Return rank = node x ranks a node + local rank where names have these two as ``_placed`` reads them; None where
    they do not tell.
    """
    found = _placed(paths)
    return None if found is None else [rank for _, _, rank in found]


def places(paths: Sequence[Path], ranks: Sequence[int]) -> list[tuple[int, int] | None]:
    """Return (node, local rank) of each of the files of a run, as their names tell; None for all where names do not
    tell, or numbers in them are the ``ranks`` themselves, and for those of another rank than the names say."""
    found = None if any(numbers == [*ranks] for numbers in _columns(paths)) else _placed(paths)
    return [
        (node, local) if named == rank else None for (node, local, named), rank in zip(found or (), ranks, strict=False)
    ] or [None] * len(paths)


def _placed(paths: Sequence[Path]) -> list[tuple[int, int, int]] | None:
    """Read the number of a node, that of a rank on it, and so the rank, in names that differ in these two alone, as
    ``report_0_3`` (node 0, local rank 3) or ``report_03``.

    Nodes and local ranks are each 0 to n - 1. With a separator some of the files may be missing; without one, all of
    them must be there, or the digits could be of one number. None where the names do not tell.
    """
    stems = [_stem(path) for path in paths]
    if len(paths) < 2 or len({DIGITS.sub("0", stem) for stem in stems}) > 1 or _TIMES.search(stems[0]):
        return None
    if any(
        (found["inner"] or "node").lower() not in ("node", "local") for found in _RANK.finditer(stems[0])
    ):  # of tensors, stages, ...
        return None
    columns = [column for column in zip(*map(DIGITS.findall, stems), strict=True) if len(set(column)) > 1]
    if len(columns) == 1 and all(1 < len(text) < 6 for text in columns[0]):
        node, local = ([int(text[part]) for text in columns[0]] for part in (slice(-1), slice(-1, None)))
        if len({*columns[0]}) < len({*node}) * len({*local}):
            return None
    elif len(columns) == 2 and all(len(text) < 6 for column in columns for text in column):
        node, local = ([int(text) for text in column] for column in columns)
    else:
        return None
    each = max(local) + 1
    ranks = [n * each + k for n, k in zip(node, local, strict=True)]
    whole = {*node} == {*range(max(node) + 1)} and {*local} == {*range(each)}
    if not whole or len({*ranks}) < len(ranks):
        return None
    return list(zip(node, local, ranks, strict=True))


def natural_order(path: Path) -> list[tuple[int, str]]:
    """Return a key that sorts trace_2 before trace_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", str(path))]


def without_number(path: Path) -> str:
    """Return the file's name without its rank: the same for the files of a run, as a rule."""
    stem = _stem(path)
    found, numbers = _told(stem), list(_NUMBER.finditer(stem))
    if found is None and not numbers:
        return stem
    start, end = numbers[-1].span() if found is None else found.span("rank")
    return f"{stem[:start]}*{stem[end:]}"


def _stem(path: Path) -> str:
    return _SUFFIX.sub("", path.name)


def _rank_in(text: str) -> re.Match[str] | None:
    return next((found for found in _RANK.finditer(text) if not found["inner"]), None)


def _told(stem: str) -> re.Match[str] | None:
    return _rank_in(stem) or _KIND.search(stem)


def _columns(paths: Sequence[Path]) -> Iterator[list[int]]:
    """Return the numbers that each of ``paths`` has."""
    for texts in ([_stem(path) for path in paths], [path.parent.name for path in paths]):
        numbers = [[int(found) for found in _NUMBER.findall(text)] for text in texts]
        if all(numbers):
            yield [row[-1] for row in numbers]
        if len({DIGITS.sub("0", text) for text in texts}) == 1:
            yield from (list(column) for column in zip(*numbers, strict=True))
