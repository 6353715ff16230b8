"""Side files of NCCL in the job of a rank: read, joined with its communication, and summarised."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from graphlink.errors import InputError
from graphlink.linking.communication import communication
from graphlink.model import NOWHERE, Communication, Linked, ProcessGroup
from graphlink.nccl.read.records import Dump
from graphlink.nccl.records import SideFiles
from graphlink.nccl.summary import Nccl, NcclFile
from graphlink.read.kinds import DumpKind

log: Final = logging.getLogger("graphlink")


def read_dumps(files: Mapping[Path, str], found: Collection[Path]) -> tuple[tuple[Dump, ...], tuple[str, ...]]:
    """Read the side files of a rank; return them, and warnings of those of ``found`` that cannot be read. ``files``:
    name by path.

    Raises:
        InputError: another one cannot be read.
    """
    if not files:
        return (), ()
    from graphlink.nccl.read.read import read_dump

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


def known_groups(
    linked: Linked, dumps: Sequence[Dump], members: Mapping[str, tuple[int, ...]]
) -> tuple[ProcessGroup, ...]:
    """Return groups for ``communication`` whose members a trace lacks. ``members``: key of a communicator -> global
    ranks in ring order.

    A Flight Recorder lists them. A communicator of NCCL is the group that its calls are of; a name that two
    communicators have tells nothing.
    """
    from graphlink.nccl.join import join

    found: dict[str, ProcessGroup] = {}
    for dump in dumps:
        for one in dump.communicators if dump.kind is DumpKind.FLIGHT_RECORDER else ():
            if one.ranks and one.name:
                found[one.name] = ProcessGroup(one.name, one.desc, size=len(one.ranks), ranks=one.ranks)
    rank = NOWHERE if linked.trace.rank is None else linked.trace.rank
    joined = join(linked, communication(linked, tuple(found.values())), dumps, rank)
    ranks_of: dict[str, set[tuple[int, ...]]] = {}
    for line in joined.groups:
        ranks = members.get(line.communicator or "")
        if line.group and line.ranks is None and line.matched and ranks is not None:
            ranks_of.setdefault(line.group, set()).add(ranks)
    for name, every in ranks_of.items():
        if len(every) == 1 and name not in found:
            (known,) = every
            found[name] = ProcessGroup(name, size=len(known), ranks=known)
    return tuple(found.values())


def joined(dumps: Sequence[Dump], linked: Linked, comm: Communication, rank: int) -> SideFiles | None:
    """Join the side files of a rank with its communication. None where there are no side files."""
    if not dumps:
        return None
    from graphlink.nccl.join import join

    log.info("joining %d calls of NCCL", sum(len(dump.calls.rank) for dump in dumps))
    return join(linked, comm, dumps, rank)


def warnings(files: SideFiles | None) -> tuple[str, ...]:
    """Return warnings: errors in the files, and files that are not joined at all."""
    if files is None:
        return ()
    met = set(files.dump.tolist())
    alone = [dump for k, dump in enumerate(files.dumps) if k not in met and len(dump.calls.rank)]
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
