"""Side files of NCCL in the job of a rank: read, joined with its communication, and told in its summary."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from graphlink.errors import InputError
from graphlink.model import NOWHERE, Communication, Linked
from graphlink.nccl import summary as told
from graphlink.nccl.join import join
from graphlink.nccl.noted import SideFiles
from graphlink.nccl.ops import ops_of
from graphlink.nccl.read.read import read_dump
from graphlink.nccl.read.records import Dump
from graphlink.nccl.records import NcclJoin

log: Final = logging.getLogger("graphlink")


def read_dumps(files: Mapping[Path, str], found: Collection[Path]) -> tuple[tuple[Dump, ...], tuple[str, ...]]:
    """The side files of a rank, and warnings of those of ``found`` that cannot be read. ``files``: by path what they are called.

    Raises:
        InputError: another one cannot be read.
    """
    dumps, unread = [], []
    for path, name in files.items():
        log.info("reading %s", name)
        try:
            dump = read_dump(path)
        except InputError as problem:
            if path not in found:
                raise
            unread.append(f"{name} is left out: {problem.what}")
            continue
        dumps.append(replace(dump, path=name))
    return tuple(dumps), tuple(unread)


def joined(dumps: Sequence[Dump], linked: Linked, comm: Communication, rank: int) -> SideFiles | None:
    """None where there are no side files."""
    if not dumps:
        return None
    log.info("joining %d calls of NCCL", sum(len(dump.calls.rank) for dump in dumps))
    return SideFiles(tuple(dumps), join(ops_of(linked, comm), dumps, rank))


def warnings(files: SideFiles | None) -> tuple[str, ...]:
    if files is None:
        return ()
    met = set(files.join.dump.tolist())
    alone = [dump.path for k, dump in enumerate(files.dumps) if k not in met and len(dump.calls.rank)]
    return (
        *(f"{dump.path}: {text}" for dump in files.dumps for text in dump.warnings),
        *(f"{path}: none of its calls is joined with the trace, for the reasons in the table: is it of this run?" for path in alone),
        *files.join.warnings,
    )


def summarised(files: SideFiles) -> told.Nccl:
    """What ``summary.json`` says of them."""
    return told.Nccl(
        files=[
            told.NcclFile(
                path=dump.path,
                kind=dump.kind.value,
                events=dump.events,
                calls=len(dump.calls.rank),
                left_out=dict(sorted(dump.left_out.items())),
                clock=told.NcclClock(
                    offset_ns=clock.offset_ns,
                    residual_ns=clock.residual_ns,
                    gpu_offset_ns=clock.gpu_offset_ns,
                    inside=clock.inside,
                    checked=clock.checked,
                ),
            )
            for dump, clock in zip(files.dumps, files.join.clocks, strict=True)
        ],
        join=[
            told.NcclGroup(
                file=None if group.dump == NOWHERE else group.dump,
                communicator=group.communicator or None,
                group=group.group,
                ranks=None if group.ranks is None else list(group.ranks),
                calls=group.calls,
                ops=group.ops,
                matched=group.matched,
                calls_left=group.calls_left,
                ops_left=group.ops_left,
                rule=group.rule,
                mismatch=group.mismatch,
            )
            for group in files.join.groups
        ],
        times=_times(files.join),
    )


def _times(joined: NcclJoin) -> list[told.NcclTimes]:
    split, ops = joined.split, joined.ops
    codes, which = np.unique(ops.group_name[split.op], return_inverse=True)
    sums = {}
    for name in told.TIMES:
        sums[name] = np.zeros(len(codes), np.int64)
        np.add.at(sums[name], which.reshape(-1), getattr(split, name))
    count = np.bincount(which.reshape(-1), minlength=len(codes))
    return [
        told.NcclTimes(group=ops.strings[code], ops=int(count[k]), **{name: int(column[k]) for name, column in sums.items()})
        for k, code in enumerate(codes.tolist())
    ]
