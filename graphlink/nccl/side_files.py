"""Find side files of NCCL, and the ranks that they are of (docs/nccl.md)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphlink.errors import InputError
from graphlink.nccl.read.read import read_dump_head
from graphlink.nccl.read.records import Communicator, DumpHead
from graphlink.read import kinds
from graphlink.read.heads import Head, at_once, looks_like, read_heads
from graphlink.read.kinds import read_dump_kind
from graphlink.read.source import reading
from graphlink.run.discover.names import told_rank
from graphlink.run.discover.pairing import Discovered, few, side_files
from graphlink.run.options import Inputs
from graphlink.tables import grouped
from graphlink.wings import any_of


def given(paths: Iterable[Path]) -> list[DumpHead]:
    """Return the headers of the files, and of what is in the folders, that ``--nccl`` names; each once.

    Raises:
        InputError: a file is no side file, or a folder holds none.
    """
    named = list(paths)
    files = [path for path in named if not path.is_dir()]
    pipe = next((path for path in files if path.exists() and not path.is_file()), None)
    if pipe is not None:
        raise InputError(
            "is no file but a pipe or a device",
            path=pipe,
            todo="give a file: side files are looked into before they are read",
        )
    head_of = dict(zip(files, at_once(read_dump_head, files), strict=True))
    out: dict[Path, DumpHead] = {}
    for path in named:
        found: list[Any] = [head_of[path]] if path in head_of else side_files(sorted(_inside(path)))
        heads = [head for head in found if head is not None]
        if not heads:
            raise _none(path)
        out |= {head.path: head for head in heads}
    return list(out.values())


def _inside(folder: Path) -> list[Path]:
    with reading(folder):
        return [path for path in folder.iterdir() if path.is_file() and any_of("may_be_side_file", path.name)]


def paired(found: Discovered, names: Sequence[Path]) -> Discovered:
    """Return what was found with the side files of each rank: those among it, and those that ``names`` name.

    Raises:
        InputError: a file is no side file, or a folder holds none.
    """
    dumps = given(names)
    inside = [dump for dump in dumps if dump.path not in names]  # of folders: like those that are found
    named = [dump for dump in dumps if dump.path in names]
    both = pair((*found.dumps, *inside), named, found.ranks)
    return replace(found, ranks=both.ranks, missing=(*found.missing, *both.missing))


def pair(found: Sequence[Any], named: Sequence[Any], ranks: Sequence[Inputs]) -> Discovered:
    """Pair ``ranks`` with their side files, ``found`` in folders and ``named``. Linear in files, ranks, and
    communicators of files.
    """
    only_found = {dump.path for dump in found} - {dump.path for dump in named}
    dumps = {dump.path: dump for dump in (*found, *named)}.values()
    traces = _traces(ranks)
    world = max((t.world_size for t in traces if t.world_size), default=len(ranks) if len(ranks) > 1 else None)
    pids, whole = _pids(traces, dumps), _whole(dumps, world)
    told = [_of_ranks(dump, pids, whole) for dump in dumps]
    places = grouped((trace.rank, k) for k, trace in enumerate(traces))
    of_rank: list[list[DumpHead]] = [[] for _ in ranks]
    untold: list[str] = []
    lone: list[str] = []
    for dump, numbers in zip(dumps, told, strict=True):
        mine = [k for number in sorted(numbers) for k in places.get(number, ())]
        if not mine and len(ranks) == 1 and (not numbers or traces[0].rank is None):
            mine = [0]
        if told_rank(dump.rank, dump.path) is None:  # else its process tells nothing more
            mine = [k for k in mine if None in (dump.pid, traces[k].pid) or dump.pid == traces[k].pid]
        for k in mine:
            of_rank[k].append(dump)
        if not mine:
            (lone if numbers else untold).append(str(dump.path))
    everyone = world is not None and set().union(*told) >= set(range(world))
    members = (_members(dumps, told) if everyone else {}) | {key: tuple(range(world or 0)) for key in whole}
    paired = tuple(
        replace(
            one,
            nccl=tuple(dump.path for dump in mine),
            found=frozenset(dump.path for dump in mine if dump.path in only_found),
            members=_members_of(mine, members),
        )
        for one, mine in zip(ranks, of_rank, strict=True)
    )
    said = (
        ("nothing tells of which rank these side files of NCCL are, or they are of other processes", untold),
        ("no Kineto trace is of the rank and process of these side files of NCCL", lone),
    )
    return Discovered(paired, missing=tuple(f"left aside, as {why}: {few(names)}" for why, names in said if names))


def _traces(ranks: Sequence[Inputs]) -> list[Head]:
    """Return the header of each recording, with the rank as recorded, else as named or given. What may be a pipe is not
    looked into.
    """
    heads = {head.path: head for head in read_heads([one.recording for one in ranks if one.recording.is_file()])}
    out = []
    for one in ranks:
        head = heads.get(one.recording, Head(one.recording, None))
        out.append(
            replace(head, rank=next((n for n in (head.rank, one.rank, one.expected_rank) if n is not None), None))
        )
    return out


def _pids(traces: Sequence[Head], dumps: Collection[DumpHead]) -> dict[int, int]:
    """Return the rank of processes, where no other trace and no other host has the pid: pids repeat over hosts."""
    count = Counter(trace.pid for trace in traces)
    hosts = Counter(pid for pid, _ in {(dump.pid, dump.host) for dump in dumps})
    return {
        trace.pid: trace.rank
        for trace in traces
        if trace.pid is not None and trace.rank is not None and count[trace.pid] == 1 and hosts[trace.pid] == 1
    }


def _whole(dumps: Collection[DumpHead], world: int | None) -> frozenset[str]:
    """Return the keys of the communicators that have all ranks of the run, so that a rank in one is a global rank."""
    if world is None:
        return frozenset()
    sizes = _sizes(dumps)
    seen = grouped((communicator.key, own) for dump in dumps for communicator, own in _own(dump))
    return frozenset(
        key
        for key, ranks in seen.items()
        if sizes.get(key, world) == world and (key in sizes or set(ranks) == set(range(world)))
    )


def _of_ranks(dump: DumpHead, pids: dict[int, int], whole: frozenset[str]) -> set[int]:
    """Find the global ranks that a side file is of, by the first that tells; none where nothing does."""
    number = told_rank(dump.rank, dump.path)
    if number is None and dump.pid is not None:
        number = pids.get(dump.pid)
    return {own for communicator, own in _own(dump) if communicator.key in whole} if number is None else {number}


def _own(dump: DumpHead) -> list[tuple[Communicator, int]]:
    """Find the communicators with a rank in them that calls of the file are of."""
    return [(communicator, rank) for communicator, rank in dump.members if rank is not None]


def _sizes(dumps: Collection[DumpHead]) -> dict[str, int]:
    """Return the numbers of ranks of communicators that are recorded."""
    return {
        communicator.key: communicator.size for dump in dumps for communicator, _ in _own(dump) if communicator.size
    }


def _members(dumps: Collection[DumpHead], told: Sequence[set[int]]) -> dict[str, tuple[int, ...]]:
    """Return for each communicator the global ranks in its order, where each rank that made calls is known; side files
    of all ranks are given."""
    place: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    sizes = _sizes(dumps)
    for dump, numbers in zip(dumps, told, strict=True):
        own = Counter(communicator.key for communicator, _ in _own(dump))
        for communicator, rank in _own(dump):
            place[communicator.key][rank] |= numbers if own[communicator.key] == 1 else set()
    out = {}
    for key, ranks in place.items():
        members = tuple(number for k in sorted(ranks) for number in ranks[k])
        if set(ranks) == set(range(sizes.get(key, len(ranks)))) and len(members) == len(set(members)) == len(ranks) > 1:
            out[key] = members
    return out


def _members_of(
    dumps: Iterable[DumpHead], members: dict[str, tuple[int, ...]]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    keys = {communicator.key for dump in dumps for communicator, _ in dump.members} & members.keys()
    return tuple((key, members[key]) for key in sorted(keys))


def _none(path: Path) -> InputError:
    if path.is_dir():
        return InputError("holds no side file of NCCL", path=path, todo="give the folder of the dumps, or the files")
    what = read_dump_kind(path)
    kind = kinds.ALL.get(looks_like(path) or "")
    if kind is not None and kind is not kinds.NCCL:
        return InputError(f"is {kind.what}, not a side file of NCCL", path=path, todo=kind.todo)
    return InputError(
        f"is {what or 'no side file of NCCL or the Flight Recorder'}",
        path=path,
        todo="docs/nccl.md says which are read",
    )
