"""Which ranks an nsys export holds: a rank is a (process, device) that ran work, and what its number is.

Numbers come from the largest NCCL communicator that all of them are in, where the export tells one (``--include-blobs=true``); else
they follow the order of file, process and device. A file alone in its rank may have it in its name, which the caller knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graphlink.model import ProcessGroup
from graphlink.read.nsys.nccl import Member


class Place(NamedTuple):
    """A process (its globalPid) and one of its devices; None where nothing ran on any device."""

    process: int
    device: int | None


@dataclass(frozen=True, slots=True)
class Contents:
    """What a file tells of its ranks; ``places`` in ascending order."""

    places: tuple[Place, ...]
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Numbering:
    """The ranks of the places of one file, and what NCCL tells of the run. ``told``: the numbers are NCCL's own."""

    ranks: tuple[int, ...]
    told: bool
    world_size: int | None
    groups: tuple[ProcessGroup, ...]


@dataclass(frozen=True, slots=True)
class _Communicator:
    size: int
    place: dict[int, tuple[int, Place]]  # rank in it -> file, place
    clear: bool  # no rank is claimed twice

    def holds_each_once(self, places: list[tuple[int, Place]]) -> bool:
        return self.clear and sorted(self.place.values()) == sorted(places)


def number(files: Sequence[Contents], named: Sequence[int | None] = ()) -> list[Numbering]:
    """Return ranks for the places of all files, which are those of one run. ``named``: the rank that the name of a file says."""
    communicators = _communicators(files)
    everywhere = [(k, place) for k, contents in enumerate(files) for place in contents.places]
    world = max((c for c in communicators.values() if c.holds_each_once(everywhere)), key=lambda c: c.size, default=None)
    if world is not None:
        rank_of = {where: rank for rank, where in world.place.items()}
    elif len(named) == len(files) and _names_tell(files, named):
        rank_of = {(k, files[k].places[0]): rank for k, rank in enumerate(named) if rank is not None}
    else:
        rank_of = {where: rank for rank, where in enumerate(everywhere)}
    groups = tuple(_group(name, c, None if c is world else rank_of) for name, c in sorted(communicators.items()))
    size = None if world is None else world.size
    return [
        Numbering(tuple(rank_of[k, place] for place in contents.places), world is not None, size, groups)
        for k, contents in enumerate(files)
    ]


def _names_tell(files: Sequence[Contents], named: Sequence[int | None]) -> bool:
    return all(len(contents.places) == 1 for contents in files) and None not in named and len(set(named)) == len(files)


def _communicators(files: Sequence[Contents]) -> dict[int, _Communicator]:
    found: dict[int, _Communicator] = {}
    for k, contents in enumerate(files):
        for member in contents.members:
            place = _place(member, contents.places)
            known = found.setdefault(member.communicator, _Communicator(member.size, {}, clear=True))
            clear = known.clear and known.size == member.size
            if place is not None:
                clear = clear and known.place.setdefault(member.rank, (k, place)) == (k, place)
            found[member.communicator] = _Communicator(known.size, known.place, clear)
    return found


def _place(member: Member, places: tuple[Place, ...]) -> Place | None:
    """Where a member ran: on the device it names, if that ran work, or on the only one of its process."""
    own = [place for place in places if place.process == member.process]
    return next((place for place in own if place.device == member.device), own[0] if len(own) == 1 else None)


def _group(name: int, communicator: _Communicator, rank_of: dict[tuple[int, Place], int] | None) -> ProcessGroup:
    """A communicator as a group of ranks; ``rank_of`` None: its own ranks are those of the run."""
    if rank_of is None:
        return ProcessGroup(name=str(name), backend="nccl", size=communicator.size, ranks=tuple(range(communicator.size)))
    ranks = tuple(rank_of[communicator.place[r]] for r in range(communicator.size) if r in communicator.place)
    whole = communicator.clear and len(ranks) == communicator.size == len(set(ranks))
    return ProcessGroup(name=str(name), backend="nccl", size=communicator.size, ranks=ranks if whole else None)
