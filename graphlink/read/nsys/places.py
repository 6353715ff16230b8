"""The ranks that an nsys export contains: a rank is a (process, device) that ran work, and what its number is.

Numbers come from the largest NCCL communicator that all of them are in, where the export tells one
(``--include-blobs=true``); else they follow the order of file, process and device. A file alone in its rank may have it
in its name, which the caller knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graphlink.model import ProcessGroup
from graphlink.read.nsys.nccl import Member


@dataclass(frozen=True, slots=True)
class Numbering:
    """The ranks of the places of one file, and what NCCL tells of the run: the numbers are its own where ``world_size``
    is known.
    """

    ranks: tuple[int, ...]
    world_size: int | None
    groups: tuple[ProcessGroup, ...]


class Place(NamedTuple):
    """A process (its globalPid) and one of its devices; None where nothing ran on any device."""

    process: int
    device: int | None


@dataclass(frozen=True, slots=True)
class Contents:
    """The ranks that a file records; ``places`` in ascending order."""

    places: tuple[Place, ...]
    members: tuple[Member, ...]


Members = dict[int, tuple[int, Place]]  # of a communicator: rank in it -> file, place


def number(files: Sequence[Contents], named: Sequence[int | None] = ()) -> list[Numbering]:
    """Return ranks for the places of all files, which are those of one run. ``named``: the rank that the name of a file
    says.
    """
    communicators = _communicators(files)
    everywhere = [(k, place) for k, contents in enumerate(files) for place in contents.places]
    of_all = [name for name, (_, members) in communicators.items() if sorted(members.values()) == sorted(everywhere)]
    alone = all(len(contents.places) == 1 for contents in files)
    world = max(of_all, key=lambda name: communicators[name][0], default=None)
    if world is not None:
        rank_of = {where: rank for rank, where in communicators[world][1].items()}
    elif alone and None not in named and len(named) == len(set(named)) == len(files):
        rank_of = {(k, files[k].places[0]): rank for k, rank in enumerate(named) if rank is not None}
    else:
        rank_of = {where: rank for rank, where in enumerate(everywhere)}
    size = None if world is None else communicators[world][0]
    groups = [
        _group(str(name), *communicators[name], None if name == world else rank_of) for name in sorted(communicators)
    ]
    return [
        Numbering(tuple(rank_of[k, place] for place in contents.places), size, tuple(groups))
        for k, contents in enumerate(files)
    ]


def _communicators(files: Sequence[Contents]) -> dict[int, tuple[int, Members]]:
    """Return size and members of each communicator; no members where two have the same rank, or they differ about the
    size.
    """
    found: dict[int, tuple[int, Members]] = {}
    doubtful = set()
    for k, contents in enumerate(files):
        for member in contents.members:
            place = _place(member, contents.places)
            size, members = found.setdefault(member.communicator, (member.size, {}))
            taken = place is not None and members.setdefault(member.rank, (k, place)) != (k, place)
            if taken or size != member.size:
                doubtful.add(member.communicator)
    return {name: (size, {} if name in doubtful else members) for name, (size, members) in found.items()}


def _place(member: Member, places: tuple[Place, ...]) -> Place | None:
    """Find where a member ran: on the device it names, if that ran work, or on the only one of its process."""
    own = [place for place in places if place.process == member.process]
    return next((place for place in own if place.device == member.device), own[0] if len(own) == 1 else None)


def _group(name: str, size: int, members: Members, rank_of: dict[tuple[int, Place], int] | None) -> ProcessGroup:
    """Return a communicator as a group of ranks; ``rank_of`` None: its own ranks are those of the run."""
    if rank_of is None:
        return ProcessGroup(name, backend="nccl", size=size, ranks=tuple(range(size)))
    ranks = tuple(rank_of[members[r]] for r in range(size) if r in members)
    return ProcessGroup(name, backend="nccl", size=size, ranks=ranks if len(ranks) == size == len(set(ranks)) else None)
