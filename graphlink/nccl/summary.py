"""Side files of NCCL joined with the communication of a rank, what ``summary.json`` holds of that (key ``nccl``), of
a rank and of all ranks, and their printed tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from graphlink.model import I32, I64, CommOps
from graphlink.nccl.read.records import Dump
from graphlink.read.kinds import DumpKind
from graphlink.records import Short
from graphlink.tables import grouped
from graphlink.wings import Field

SHOWN: Final = 12  # lines of a sort that are printed
TIMES: Final = {
    "gpu_ns": "waiting for the GPU",
    "peer_ns": "waiting for the peer",
    "wire_ns": "on the wire",
    "receive_ns": "waiting for data",
    "other_ns": "none of these",
}


class NcclClock(msgspec.Struct, frozen=True, kw_only=True):
    """trace = own + offset_ns; of the GPU's own clock gpu_offset_ns. None: nothing ties them. ``inside`` of ``checked``
    kernel starts fall into the span of their kernel.
    """

    offset_ns: int | None
    residual_ns: int
    gpu_offset_ns: int | None
    inside: int
    checked: int


class NcclFile(msgspec.Struct, frozen=True, kw_only=True):
    """A side file. ``left_out``: events that are in no table, by reason."""

    path: str
    kind: str
    events: int
    calls: int
    left_out: dict[str, int]
    clock: NcclClock


class NcclGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the join table: a communicator of a file against the group of the trace that fits. Either may be
    missing.

    calls = matched + sum(calls_left), ops = matched + sum(ops_left).
    """

    file: int | None  # position in ``files``
    communicator: str | None
    group: str | None
    ranks: tuple[int, ...] | None
    calls: int
    ops: int
    matched: int
    calls_left: dict[str, int]
    ops_left: dict[str, int]
    rule: str
    mismatch: str | None


class NcclTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The times of the matched ops of a group that have proxy steps: the five add up to the time that they ran."""

    group: str
    ops: int
    gpu_ns: int
    peer_ns: int
    wire_ns: int
    receive_ns: int
    other_ns: int


class Nccl(msgspec.Struct, frozen=True, kw_only=True):
    files: list[NcclFile]
    join: list[NcclGroup]
    times: list[NcclTimes]


class NcclRunGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of one group and kind of file, added up over ranks."""

    kind: str | None  # None: groups that no file knows
    group: str | None
    communicator: str | None  # where there is no group
    ranks: tuple[int, ...] | None
    calls: int
    ops: int
    matched: int
    calls_left: dict[str, int]
    ops_left: dict[str, int]
    mismatch: str | None  # the first of the lowest rank that has one


class NcclRun(msgspec.Struct, frozen=True, kw_only=True):
    """Over the ranks that have side files: ``files`` counts them."""

    ranks: int
    files: int
    join: list[NcclRunGroup]
    times: list[NcclTimes]


@dataclass(frozen=True, slots=True)
class Split:
    """The parts of the time of each matched op with proxy steps: gpu + peer + wire + receive + other = end - start,
    exactly.
    """

    op: I32
    gpu_ns: I64
    peer_ns: I64
    wire_ns: I64
    receive_ns: I64
    other_ns: I64  # no step was on its way


@dataclass(frozen=True, slots=True, repr=False)
class SideFiles(Short):
    """The side files of a rank, ``dumps``, joined with its communication, ``ops``: kernels and host-side (gloo) rows by
    start.

    Matched pairs are sorted by op, then dump: op ``op`` is the call ``call`` of dump ``dump``. An op has at most one
    call per dump, and a call at most one op.
    """

    dumps: tuple[Dump, ...]
    ops: CommOps
    op: I32
    dump: I32
    call: I32
    groups: list[NcclGroup]
    clocks: tuple[NcclClock, ...]  # one a dump
    split: Split
    times: list[NcclTimes]


def warnings(files: SideFiles) -> tuple[str, ...]:
    """Return warnings: errors in the files, and files that are not joined at all."""
    joined = set(files.dump.tolist())
    alone = [dump for k, dump in enumerate(files.dumps) if k not in joined and len(dump.calls.rank)]
    return (
        *(f"{dump.path}: {text}" for dump in files.dumps for text in dump.warnings),
        *(f"{dump.path}: none of its calls is joined with the trace, {_reason(dump)}" for dump in alone),
    )


def _reason(dump: Dump) -> str:
    if dump.kind is DumpKind.INSPECTOR and not dump.calls.start_ns.any():
        return "as they have no times: record with NCCL_INSPECTOR_DUMP_VERBOSE=1"
    return "for the reasons in the table: is it of this run?"


def summarised(files: SideFiles) -> Nccl:
    """Return the part of ``summary.json`` on the side files of a rank."""
    return Nccl(
        files=[
            NcclFile(
                path=dump.path,
                kind=dump.kind.value,
                events=dump.events,
                calls=len(dump.calls.rank),
                left_out=dict(sorted(dump.left_out.items())),
                clock=clock,
            )
            for dump, clock in zip(files.dumps, files.clocks, strict=True)
        ],
        join=files.groups,
        times=files.times,
    )


def over_ranks(of_rank: Sequence[tuple[int, Nccl]]) -> NcclRun:
    """Add up the tables of ranks. ``of_rank``: rank and its table, by rank."""
    lines = grouped(
        (
            (
                None if line.file is None else one.files[line.file].kind,
                line.group,
                line.communicator if line.group is None else None,
                line.ranks,
            ),
            (rank, line),
        )
        for rank, one in of_rank
        for line in one.join
    )
    times = grouped((row.group, row) for _, nccl in of_rank for row in nccl.times)
    return NcclRun(
        ranks=len(of_rank),
        files=sum(len(one.files) for _, one in of_rank),
        join=[
            NcclRunGroup(
                kind=kind,
                group=group,
                communicator=named,
                ranks=ranks,
                calls=sum(line.calls for _, line in found),
                ops=sum(line.ops for _, line in found),
                matched=sum(line.matched for _, line in found),
                calls_left=added(line.calls_left for _, line in found),
                ops_left=added(line.ops_left for _, line in found),
                mismatch=next((f"rank {rank}: {line.mismatch}" for rank, line in found if line.mismatch), None),
            )
            for (kind, group, named, ranks), found in lines.items()
        ],
        times=[
            NcclTimes(
                group=group,
                ops=sum(row.ops for row in rows),
                **{name: sum(getattr(row, name) for row in rows) for name in TIMES},
            )
            for group, rows in times.items()
        ],
    )


def rank_rows(nccl: Nccl) -> list[tuple[str, str]]:
    """Return the printed block of a rank: its files, its join table, and how the time inside communication divides."""
    return [
        *_shown("NCCL", map(_file, nccl.files)),
        *_shown("  joined", map(_line, nccl.join)),
        *_shown("  time", map(_time, nccl.times)),
    ]


def run_rows(nccl: NcclRun) -> list[tuple[str, str]]:
    """Return the printed block of all ranks."""
    files = f"{nccl.files:,} side files of {nccl.ranks:,} rank{'s' * (nccl.ranks != 1)}"
    return [("NCCL", files), *_shown("  joined", map(_line, nccl.join)), *_shown("  time", map(_time, nccl.times))]


def _shown(name: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    """Return the first lines of a sort, and how many more there are."""
    every = [(name, line) for line in lines]
    return every[:SHOWN] + ([("  ...", f"and {len(every) - SHOWN:,} more")] if len(every) > SHOWN else [])


def _file(file: NcclFile) -> str:
    left = f", left out: {_counted(file.left_out)}" if file.left_out else ""
    clock = file.clock
    if clock.offset_ns is None and clock.gpu_offset_ns is None:
        tied = "its clock is tied to nothing"
    else:
        tied = f"its clock fits to {clock.residual_ns / 1e3:,.1f} us"
        tied += f", {clock.inside:,} of {clock.checked:,} kernel starts in their kernel" if clock.checked else ""
    return f"{file.path} ({file.kind}): {file.events:,} events, {file.calls:,} calls{left}; {tied}"


def _line(line: NcclGroup | NcclRunGroup) -> str:
    name = (
        f"communicator {line.communicator or '(unknown)'}"
        if line.group is None
        else f"group {line.group or '(unnamed)'}"
    )
    calls, ops = (f" ({_counted(left)})" if left else "" for left in (line.calls_left, line.ops_left))
    first = f"; first mismatch: {line.mismatch}" if line.mismatch else ""
    return f"{name}: {line.matched:,} of {line.calls:,} calls{calls}, of {line.ops:,} ops{ops}{first}"


def _time(row: NcclTimes) -> str:
    told = in_words(getattr(row, name) for name in TIMES)
    return f"group {row.group or '(unnamed)'}, {row.ops:,} op{'s' * (row.ops != 1)}: {told or 'none'}"


def in_words(times_ns: Iterable[int]) -> str:
    """Name times, in the order of ``TIMES``, that are not 0, the longest first."""
    parts = sorted(zip(times_ns, TIMES.values(), strict=False), key=lambda part: -part[0])
    return ", ".join(f"{ns / 1e6:,.3f} ms {words}" for ns, words in parts if ns)


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {n:,}" for reason, n in counts.items())


def added(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Add up counts by reason, in the order in which the reasons first come."""
    return dict(sum(map(Counter, counts), Counter()))


RANK_FIELDS: Final = (Field("replaced", "nccl", Nccl | UnsetType, UNSET),)  # absent without side files of NCCL
RUN_FIELDS: Final = (Field("compared", "nccl", NcclRun | UnsetType, UNSET),)  # absent where no rank has side files
