"""The machines that replay graphs, by name; and the ideal one: as many threads and streams as wanted, a node starts
when its last dependency has ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphlink.choices import ASTRA_SIM, COUPLED, IDEAL, JOINED, RANKS
from graphlink.graph.order import longest_path
from graphlink.graph_model import Graph, Groups
from graphlink.model import I64, TimedRows
from graphlink.replay.coupled import ended, play_coupled
from graphlink.replay.matching import Matched, matched, unmatched
from graphlink.replay.played import Ended, Played
from graphlink.replay.slots import play_slots
from graphlink.replay.workload import Workload


def usual_machine(ranks: int) -> str:
    """Return the machine that replays so many ranks where none is named: of several, ranks wait for each other."""
    return COUPLED if ranks > 1 else IDEAL


def play(work: Workload, groups: Groups, machine: str | None = None, *, together: bool = False) -> Played:
    """Replay ``work`` on a machine, None for the usual one. ``groups`` and ``together``: as ``matched``."""
    machine = machine or usual_machine(len(work.ranks))
    if machine not in JOINED:
        return play_slots(work, None) if machine == ASTRA_SIM else play_ideal(work)
    match = _matched(work, groups, together=together)
    return play_slots(work, match) if machine == RANKS else play_coupled(work, match)


def ends(work: Workload, groups: Groups) -> Ended:
    """Return when each node ends in ``play``, of which ``followed`` makes the rest."""
    return ended(work, _matched(work, groups) if len(work.ranks) > 1 else _alone(work))


def _matched(work: Workload, groups: Groups, *, together: bool = False) -> Matched:
    name, match = f"{together} {groups}", None
    as_recorded = not work.gone.any() and bool((work.source < work.target).all())  # then what matches hangs on no edge
    if as_recorded:
        match = work.kept.get(name)
    if match is None:
        match = matched(work, groups, together=together)
        work.kept.update({name: match} if as_recorded else {})
    return match


@dataclass(frozen=True, slots=True, repr=False)
class IdealReplay(TimedRows):
    """The times at which each node starts and ends if it starts as soon as its last dependency has ended; ns from 0."""

    @property
    def total_ns(self) -> int:
        return int(self.end_ns.max(initial=0))


def replay(graph: Graph, cost_ns: I64) -> IdealReplay:
    """Replay ``graph``: start and end of each node in int64 ns from 0, if it starts as soon as its last dependency has
    ended.

    ``cost_ns`` has what each node costs (``Graph.cost_ns``), one int64 ns per node.

    Nodes stand in an order in which every edge runs forward, so one pass over the edges is enough. A node without
    dependencies starts at 0.
    """
    end = longest_path(graph.first, graph.source, cost_ns)
    return IdealReplay(end - cost_ns, end)


def measured_ns(graph: Graph) -> int:
    """Return the recorded time in ns from the start of the first node to the end of the last one."""
    return int(graph.end_ns.max() - graph.start_ns.min()) if len(graph.kind) else 0


def play_ideal(work: Workload) -> Played:
    """Replay the longest path through ``work.cost_ns``: no rank waits for others. Ids may stand in any order; nodes in
    and after a cycle do not run. Linear.
    """
    return play_coupled(work, _alone(work))


def _alone(work: Workload) -> Matched:
    return work.of_edges("ideal", lambda: unmatched(work))


def error_pct(replayed_ns: int, measured_ns: int) -> float:
    """Return the error, signed, in per cent of the measured time; 0 where nothing was measured."""
    return round(100 * (replayed_ns / measured_ns - 1), 6) if measured_ns else 0.0


def gain_pct(gain_ns: int, path_ns: int) -> float:
    """Return a gain in per cent of the length of the critical path as recorded, the one basis of gains; 0 where that is
    0."""
    return round(100 * gain_ns / path_ns, 6) if path_ns else 0.0
