"""Members of process groups that a trace lacks, from side files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphlink.link.communication import communication
from graphlink.model import NOWHERE, Linked, ProcessGroup
from graphlink.nccl.join import join
from graphlink.nccl.ops import ops_of
from graphlink.nccl.read.records import Dump
from graphlink.read.nccl_kinds import DumpKind


def known_groups(linked: Linked, dumps: Sequence[Dump], members: Mapping[str, tuple[int, ...]]) -> tuple[ProcessGroup, ...]:
    """Groups for ``communication``, by name. ``members``: key of a communicator -> global ranks in ring order.

    A Flight Recorder lists them. A communicator of NCCL is the group that its calls are of; a name that two communicators have tells
    nothing.
    """
    found: dict[str, ProcessGroup] = {}
    for dump in dumps:
        for one in dump.communicators if dump.kind is DumpKind.FLIGHT_RECORDER else ():
            if one.ranks and one.name:
                found[one.name] = ProcessGroup(one.name, one.desc, size=len(one.ranks), ranks=one.ranks)
    rank = NOWHERE if linked.trace.rank is None else linked.trace.rank
    joined = join(ops_of(linked, communication(linked, tuple(found.values()))), dumps, rank)
    keys: dict[str, set[str]] = {}
    for line in joined.groups:
        if line.group and line.ranks is None and line.matched and line.communicator in members:
            keys.setdefault(line.group, set()).add(line.communicator)
    for name, of_name in keys.items():
        ranks = {members[key] for key in of_name}
        if len(ranks) == 1 and name not in found:
            (of_group,) = ranks
            found[name] = ProcessGroup(name, size=len(of_group), ranks=of_group)
    return tuple(found.values())
