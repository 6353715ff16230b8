"""Pair the Kineto trace and the execution trace of one rank, and find what of a run is missing.

What the files hold comes before how they are named. All is linear in the number of files, but for sorting.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Final, Literal

import msgspec

from graphlink.errors import InputError, UsageError
from graphlink.read.heads import Head, at_once, deep_rank
from graphlink.read.kinds import KINETO
from graphlink.read.source import open_source
from graphlink.records import NOTE, first_absent, first_few
from graphlink.run.discover.names import counted_ranks, named_rank, named_world, natural_order, places, without_number
from graphlink.run.one_run import APART_NS, differences, of_jobs
from graphlink.run.options import Inputs
from graphlink.tables import grouped
from graphlink.wings import SideFile, side_file

_MOST_RANKS: Final = 8  # that a message lists
_MOST_FILES: Final = 3
WITHOUT_ET: Final = "without an execution trace, linked from Kineto alone"
NOT_RECORDED: Final = "not recorded"  # ends what is reported of ranks that are missing
_TIME: Final = re.compile(r"\d{9,}")  # in names: a time since the epoch
_MERGED: Final = re.compile(rb'"cat"\s*:\s*"')
_DATED_NS: Final = 10**18  # 2001; what is less counts from Kineto's base date or from when a machine started
_MOST_COPIES: Final = 5  # that a message lists
_MOST_HEADS: Final = 2
_BACKEND: Final = "the backend"


@dataclass(frozen=True, slots=True)
class Discovered:
    """The files of the ranks of Kineto traces, or nsys exports where there is no Kineto trace; and the side files of
    NCCL in the folders.

    ``missing``: what is not there of the run, in words: ranks, and partners of files. ``warnings``: what else is worth
    saying, such as recordings that were left aside.
    """

    ranks: tuple[Inputs, ...] = ()
    exports: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    dumps: tuple[SideFile, ...] = ()


class _Ranked(msgspec.Struct, frozen=True):
    """``by``: what gave the rank."""

    head: Head
    rank: int
    by: Literal["content", "name", "order"]


def pair(devices: Sequence[Head], hosts: Sequence[Head], *, same_run: bool = False) -> Discovered:
    """Pair the ranks of Kineto traces ``devices`` and execution traces ``hosts``, in the order of their numbers.

    Raises:
        InputError: two traces of one kind are of one rank; of two runs, unless ``same_run`` insists on one.
        UsageError: no execution trace has the rank of a Kineto trace.
    """
    devices, twins = without_twins(devices)
    device_of = _ranked(devices, [head.rank for head in devices], ())
    refuse_copies([one.head for one in device_of if one.by == "order"])
    refuse_same_rank("Kineto traces", [(one.rank, one.head) for one in device_of])
    host_of, left_aside = _without_merged(_ranked_hosts(device_of, hosts))
    refuse_same_rank("execution traces", [(one.rank, one.head) for one in host_of])
    apart = [found for heads in (devices, [one.head for one in host_of]) if (found := of_other_runs(heads)) is not None]
    if apart and not same_run:
        raise apart[0]
    for one in (*device_of, *host_of):
        refuse_world(one.head, one.rank)
    et = {one.rank: one.head.path for one in host_of}
    device_of = sorted(device_of, key=lambda one: one.rank)
    placed = places([one.head.path for one in device_of], [one.rank for one in device_of])
    ranks = tuple(
        Inputs(kineto=one.head.path, et=et.get(one.rank), expected_rank=one.rank, placed=place)
        for one, place in zip(device_of, placed, strict=True)
    )
    both = [*device_of, *host_of]
    warnings = (
        *twins,
        *left_aside,
        *_named_otherwise(both),
        *_by_order(both),
        *(f"{found.path}: {found.what}" for found in apart),
    )
    missing = (*_half_pairs(device_of, host_of), *holes({one.rank for one in device_of}, devices))
    return Discovered(ranks, warnings=warnings, missing=missing)


def without_twins(devices: Sequence[Head]) -> tuple[list[Head], tuple[str, ...]]:
    """Leave out binary traces of recordings that are there as JSON, which holds more, and those into which ranks were
    merged where there are others; return the others, and what to say. Twins are of one process and begin at one moment.
    """
    merged = [head.path for head in devices if head.merged]
    merged = merged if len(merged) < len(devices) else []
    in_json = {(head.pid, head.start_ns): head.path for head in devices if not head.binary}
    in_json.pop((None, None), None)
    of_json = [(head.path, in_json.get((head.pid, head.start_ns))) for head in devices if head.binary]
    twins = {path: other for path, other in of_json if other is not None}
    said = tuple(f"{path} is left aside: {other} is the same recording and holds more" for path, other in twins.items())
    said += tuple(f"{path} is left aside: ranks are merged in it; alone it is read as these" for path in merged)
    return [head for head in devices if head.path not in twins and head.path not in merged], said


def side_files(paths: Sequence[Path]) -> list[SideFile]:
    """Read the heads of those that are side files; of what cannot be read in a folder that is not known."""

    def head_of(path: Path) -> SideFile | None:
        with contextlib.suppress(InputError):
            return side_file(path)
        return None

    return [head for head in at_once(head_of, paths) if head is not None]


def refuse_world(head: Head, rank: int | None) -> None:
    """Raise InputError where the file's ``rank``, or the number of ranks in its name, cannot be of a run as large as it
    says.
    """
    named = named_world(head.path)
    world, told = (head.world_size, "it records") if head.world_size is not None else (named, "its name says")
    if world is None:
        return
    if named is not None and named != world:
        what = f"its name says {named:,} ranks, and it records {world:,}"
    elif rank is not None and rank >= world:
        what = f"is of rank {rank}, and {told} {world:,} ranks"
    else:
        return
    raise InputError(what, path=head.path, todo="rename the file, or give it alone with --rank")


def holes(present: Collection[int], heads: Iterable[Head]) -> tuple[str, ...]:
    """Return the ranks that are missing of those that the recordings say there were."""
    world = max((head.world_size for head in heads if head.world_size), default=0)
    absent = world - sum(rank < world for rank in present)
    if not absent:
        return ()
    listed = first_absent(present, world, _MOST_RANKS) + f" ({absent:,} in all)" * (absent > _MOST_RANKS)
    return (f"rank{'s' * (absent > 1)} {listed} of {world:,} {'were' if absent > 1 else 'was'} {NOT_RECORDED}",)


def few(texts: Sequence[str], most: int = _MOST_FILES) -> str:
    """Return the first of ``texts``, and how many there are if not all are named."""
    return ", ".join(texts[:most]) + (f", ... ({len(texts):,} in all)" if len(texts) > most else "")


def _ranked(heads: Sequence[Head], recorded: Sequence[int | None], wanted: Sequence[int]) -> list[_Ranked]:
    """Assign ranks by content, else by name, else in order of names: ranks that are ``wanted`` first, then those that
    are free.
    """
    paths = [head.path for head in heads]
    by_name = [None if rank is not None else named_rank(path) for path, rank in zip(paths, recorded, strict=True)]
    told = [rank if rank is not None else name for rank, name in zip(recorded, by_name, strict=True)]
    if None in told and (counted := counted_ranks(paths, told)) is not None:
        by_name = told = list(counted)
    taken = set(told)
    first = dict.fromkeys(wanted)
    free = (rank for rank in chain(first, (k for k in count() if k not in first)) if rank not in taken)
    untold = sorted((k for k, rank in enumerate(told) if rank is None), key=lambda k: natural_order(paths[k]))
    by_order = dict(zip(untold, free, strict=False))
    return [
        _Ranked(head, by_order[k], "order")
        if rank is None
        else _Ranked(head, rank, "name" if recorded[k] is None else "content")
        for k, (head, rank) in enumerate(zip(heads, told, strict=True))
    ]


def _ranked_hosts(devices: Sequence[_Ranked], hosts: Sequence[Head]) -> list[_Ranked]:
    """Assign ranks by what the ET's header says, by the process that a Kineto trace is of too, by the ET's collectives,
    or by name, in this order."""
    of_process = _of_same_process(devices, hosts)
    recorded = [head.rank if head.rank is not None else rank for head, rank in zip(hosts, of_process, strict=True)]
    untold = [k for k, rank in enumerate(recorded) if rank is None]
    for k, rank in zip(untold, at_once(deep_rank, [hosts[k].path for k in untold]), strict=True):
        recorded[k] = rank
    return _ranked(hosts, recorded, sorted(one.rank for one in devices))


def _of_same_process(devices: Sequence[_Ranked], hosts: Sequence[Head]) -> list[int | None]:
    """Return the rank of the Kineto trace that has the ET's pid, where no other file of either kind has it: pids repeat
    over hosts.
    """
    devices_with = Counter(one.head.pid for one in devices)
    hosts_with = Counter(head.pid for head in hosts)
    rank_of: dict[int | None, int] = {
        one.head.pid: one.rank for one in devices if one.head.pid is not None and devices_with[one.head.pid] == 1
    }
    return [rank_of.get(head.pid) if hosts_with[head.pid] == 1 else None for head in hosts]


def _without_merged(hosts: Sequence[_Ranked]) -> tuple[list[_Ranked], list[str]]:
    """Exclude, of several execution traces of a rank, those that are merged with device rows already, and report it."""
    of_rank = Counter(one.rank for one in hosts)
    merged = {one.head.path for one in hosts if of_rank[one.rank] > 1 and _is_merged(one.head.path)}
    said = [f"{NOTE}{path} is left aside: it is merged with device rows already" for path in sorted(merged)]
    return [one for one in hosts if one.head.path not in merged], said


def _is_merged(path: Path) -> bool:
    with open_source(path) as source, contextlib.suppress(InputError):  # cut off, or only the beginning is here
        before = b""
        while part := source.read(1 << 20):
            if _MERGED.search(before + part):
                return True
            before = part[-64:]
    return False


def _named_otherwise(files: Sequence[_Ranked]) -> list[str]:
    other = [
        f"{one.head.path} (rank {one.rank})"
        for one in files
        if one.by == "content" and (named := named_rank(one.head.path)) is not None and named != one.rank
    ]
    return [f"named as of another rank than recorded, the recorded one is taken: {few(other)}"] if other else []


def _by_order(files: Sequence[_Ranked]) -> list[str]:
    listed = [
        f"{one.head.path} (rank {one.rank})" for one in sorted(files, key=lambda one: one.rank) if one.by == "order"
    ]
    what = "neither content nor name tells the rank: in order of names"
    return [f"{what} {few(listed)}; name them kineto_R, et_R or with rank_R"] if listed else []


def _half_pairs(devices: Sequence[_Ranked], hosts: Sequence[_Ranked]) -> list[str]:
    if not hosts:
        return []
    recorded, with_et = {one.rank for one in devices}, {one.rank for one in hosts}
    lone = [f"{one.head.path} (rank {one.rank})" for one in hosts if one.rank not in recorded]
    bare = [f"{one.head.path} (rank {one.rank})" for one in devices if one.rank not in with_et]
    if len(bare) == len(devices):
        raise UsageError(
            f"no execution trace is of the rank of a Kineto trace: {few(lone, 2)} and {few(bare, 2)}",
            todo="give the two of every rank under the same number, or a single pair with --kineto and --et",
        )
    said = ((WITHOUT_ET, bare), ("left aside, as no Kineto trace is of their rank", lone))
    return [f"{what}: {few(names)}" for what, names in said if names]


def refuse_same_rank(what: str, files: Sequence[tuple[int, Head]]) -> None:
    """Return if no rank is there twice. ``what``: the kind of the files, in plural.

    Raises:
        InputError: naming the first files of two runs, or two files of a rank.
    """
    of_rank = grouped(files)
    again = sorted(rank for rank, heads in of_rank.items() if len(heads) > 1)
    if not again:
        return
    runs = _runs(files, len(again) > 1, max(map(len, of_rank.values())))
    if runs is None:
        first, second = of_rank[again[0]][:2]
        more = f"; several are also of rank {first_few(again[1:], _MOST_COPIES)}" if len(again) > 1 else ""
        raise InputError(
            f"is of rank {again[0]}, as is {first.path}{more}",
            path=second.path,
            todo=f"give one of the {what} of each rank: a folder of one run, or files by --kineto and --et",
        )
    apart_by, sets = runs
    (one, ones), (other, others), *_ = sets.items()
    listed = first_few(again, _MOST_COPIES)
    shown = "" if apart_by == _BACKEND else f", {one} and {other}"  # which may be any text of the recording
    raise InputError(
        f"belongs to another run, or another part of it, than {ones[0].path}: they differ by {apart_by}{shown}",
        path=others[0].path,
        where=f"rank {listed}, which {_few(ones)} hold, and again {_few(others)}",
        todo="give one of them, with globs: --kineto 'A/kineto_*.json' --et 'A/et_*.json'",
    )


def refuse_copies(heads: Sequence[Head]) -> None:
    """Raise InputError where two recordings of whose ranks nothing tells are of one process: begin at one moment, or
    differ in nothing of their names but a time.
    """
    for same in grouped(((one.pid, one.path.parent, _TIME.sub("", one.path.name)), one) for one in heads).values():
        if len({one.start_ns for one in same}) > 1 and None not in (same[0].pid, *(one.start_ns for one in same)):
            same.sort(key=lambda one: one.start_ns or 0)
            raise InputError(
                f"{_few(same)} are of one process, {same[0].pid}: windows that its profiler recorded one after the "
                "other, not ranks",
                path=same[0].path.parent,
                todo="give one of them, or each by itself with an --out of its own",
            )
    first: dict[tuple[int | None, int | None], Head] = {}
    for head in heads:
        other = first.setdefault((head.pid, head.start_ns), head)
        if other is not head and None not in (head.pid, head.start_ns):
            raise InputError(
                f"is of the process and the moment of {other.path}, and nothing tells their ranks",
                path=head.path,
                todo="give it once, or name the files kineto_R, or with rank_R",
            )


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
    for how, ones, others in differences(heads, labels):
        return InputError(
            f"belongs to another run than {ones[0].path}: {how}",
            path=others[0].path,
            where=f"{_few(ones)} against {_few(others)}",
            todo="give the recordings of one run, or insist with --same-run",
        )
    return None


def _runs(files: Sequence[tuple[int, Head]], several: bool, most: int) -> tuple[str, dict[str, list[Head]]] | None:
    """Return the labels that distinguish runs, and the files of each: ``most`` runs, and each rank once in a run."""
    for apart_by, labels in _labels([head for _, head in files], several):
        if None in labels:
            continue
        sets = grouped((str(label), file) for file, label in zip(files, labels, strict=True))
        if len(sets) == most and all(len({rank for rank, _ in own}) == len(own) for own in sets.values()):
            return apart_by, {label: [head for _, head in own] for label, own in sets.items()}
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
    names = ", ".join(head.path.name for head in heads[:_MOST_HEADS])
    return names + (f", ... ({len(heads):,} files)" if len(heads) > _MOST_HEADS else "")
