"""The machines that replay graphs, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphlink.choices import ASTRA_SIM, COUPLED, IDEAL, JOINED, RANKS
from graphlink.replay.coupled import play_coupled
from graphlink.replay.ideal import play_ideal
from graphlink.replay.matching import matched
from graphlink.replay.played import Played
from graphlink.replay.slots import play_slots
from graphlink.replay.workload import Workload


def usual_machine(ranks: int) -> str:
    """Return the machine that replays so many ranks where none is named: of several, ranks wait for each other."""
    return COUPLED if ranks > 1 else IDEAL


def play(
    work: Workload, groups: Mapping[int, Sequence[int]], machine: str | None = None, *, together: bool = False
) -> Played:
    """Replay ``work`` on a machine, None for the usual one. ``groups`` and ``together``: as ``matched``."""
    machine = machine or usual_machine(len(work.ranks))
    match = matched(work, groups, together=together) if machine in JOINED else None
    if machine in (ASTRA_SIM, RANKS):
        return play_slots(work, match)
    return play_ideal(work) if match is None else play_coupled(work, match)
