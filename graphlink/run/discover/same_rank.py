"""Recordings that are not of one run: several of one rank where one is wanted, or other sizes, jobs and times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from graphlink.errors import InputError
from graphlink.read.heads import Head
from graphlink.read.kinds import KINETO
from graphlink.records import first_few
from graphlink.run.discover.names import named_world, without_number
from graphlink.run.one_run import APART_NS, differences, of_jobs

_DATED_NS: Final = 10**18  # 2001; what is less counts from Kineto's base date or from when a machine started
_MOST_RANKS: Final = 5  # that a message lists
_MOST_FILES: Final = 2
_BACKEND: Final = "the backend"


def refuse_same_rank(what: str, files: Sequence[tuple[int, Head]]) -> None:
    """Return if no rank is there twice. ``what``: the kind of the files, in plural.

    Raises:
        InputError: naming the first files of two runs, or two files of a rank.
    """
    of_rank: dict[int, list[Head]] = defaultdict(list)
    for rank, head in files:
        of_rank[rank].append(head)
    again = sorted(rank for rank, heads in of_rank.items() if len(heads) > 1)
    if not again:
        return
    runs = _runs(files, len(again) > 1, max(map(len, of_rank.values())))
    if runs is None:
        first, second = of_rank[again[0]][:2]
        more = f"; of {len(again) - 1:,} more ranks there are several, too" if len(again) > 1 else ""
        raise InputError(
            f"is of rank {again[0]}, as is {first.path}{more}",
            path=second.path,
            todo=f"give one of the {what} of a rank, without the copy",
        )
    apart_by, sets = runs
    (one, ones), (other, others), *_ = sets.items()
    listed = first_few(again, _MOST_RANKS)
    shown = "" if apart_by == _BACKEND else f", {one} and {other}"  # which may be any text of the recording
    raise InputError(
        f"is of another run, or another part of it, than {ones[0].path}: they differ by {apart_by}{shown}",
        path=others[0].path,
        where=f"rank {listed}, which {_few(ones)} hold, and again {_few(others)}",
        todo="give one of them, with globs: --kineto 'A/kineto_*.json' --et 'A/et_*.json'",
    )


def refuse_copies(heads: Sequence[Head]) -> None:
    """Raise InputError where two recordings of whose ranks nothing tells are of one process and begin at one moment."""
    first: dict[tuple[int, int], Head] = {}
    for head in heads:
        if head.pid is not None and head.start_ns is not None:
            other = first.setdefault((head.pid, head.start_ns), head)
            if other is not head:
                what = f"is of the process and the moment of {other.path}, and nothing tells their ranks"
                raise InputError(what, path=head.path, todo="give it once, or name the files kineto_R, or with rank_R")


def of_other_runs(heads: Sequence[Head]) -> InputError | None:
    """Return the error to raise where recordings of one kind differ in what is the same in all of a run: number of
    ranks, job, and the time."""
    worlds = [head.world_size or named_world(head.path) for head in heads]
    labels = (
        ("the number of ranks", [f"{world:,}" if world else None for world in worlds]),
        of_jobs([head.job for head in heads]),
        (
            "the time",
            [time if head.kind == KINETO.name else None for head, time in zip(heads, _times(heads), strict=True)],
        ),
    )
    for found in differences(heads, labels):
        return InputError(
            f"is of another run than {found.ones[0].path}: {found.how}",
            path=found.others[0].path,
            where=f"{_few(found.ones)} against {_few(found.others)}",
            todo="give the recordings of one run, or insist with --same-run",
        )
    return None


def _runs(files: Sequence[tuple[int, Head]], several: bool, most: int) -> tuple[str, dict[str, list[Head]]] | None:
    """Return the labels that distinguish runs, and the files of each: ``most`` runs, and each rank once in a run."""
    for apart_by, labels in _labels([head for _, head in files], several):
        if None in labels:
            continue
        sets: dict[str, list[Head]] = defaultdict(list)
        ranks: dict[str, set[int]] = defaultdict(set)
        for (rank, head), label in zip(files, labels, strict=True):
            sets[str(label)].append(head)
            ranks[str(label)].add(rank)
        if len(sets) == most and all(len(ranks[label]) == len(sets[label]) for label in sets):
            return apart_by, sets
    return None


def _labels(heads: Sequence[Head], several: bool) -> Iterator[tuple[str, list[str | None]]]:
    """Yield what can distinguish runs, surest first, and its value for each file. Names do so only where ``several``
    ranks are repeated: one name that differs is a copy's."""
    yield "the number of ranks", [f"{head.world_size:,}" if head.world_size else None for head in heads]
    yield "the number of process groups", [f"{head.group_count:,}" if head.group_count else None for head in heads]
    yield _BACKEND, [head.backend for head in heads]
    yield "the time", _times(heads)
    if several:
        yield "name", [without_number(head.path) for head in heads]
        yield "folder", [str(head.path.parent) for head in heads]
        yield "folder", [str(head.path.parent.parent) for head in heads]


def _times(heads: Sequence[Head]) -> list[str | None]:
    """Return times in minutes since the first when the first of those began that began less than ``APART_NS`` apart.

    Recordings whose base date is only recorded at their end do not compare with others.
    """
    known = [head.start_ns for head in heads if head.start_ns is not None]
    dated = any(start >= _DATED_NS for start in known)
    starts = sorted({start for start in known if not dated or start >= _DATED_NS})
    begin: dict[int, int] = {}
    for k, start in enumerate(starts):
        before = begin[starts[k - 1]] if k else start
        begin[start] = before if start - before <= APART_NS else start
    return [
        None if head.start_ns not in begin else f"{(begin[head.start_ns] - starts[0]) / 60e9:,.0f} min"
        for head in heads
    ]


def _few(heads: Sequence[Head]) -> str:
    names = ", ".join(head.path.name for head in heads[:_MOST_FILES])
    return names + (f", ... ({len(heads):,} files)" if len(heads) > _MOST_FILES else "")
