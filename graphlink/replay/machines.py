"""The machines that replay graphs, by name; and the ideal one: as many threads and streams as wanted, a node starts
when its last dependency has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphlink.choices import ASTRA_SIM, COUPLED, IDEAL, JOINED, RANKS
from graphlink.depend.edges import topological
from graphlink.graph.order import blocks, longest_path
from graphlink.graph_model import Graph
from graphlink.model import I64, NOWHERE
from graphlink.records import Short
from graphlink.replay.coupled import play_coupled
from graphlink.replay.matching import matched, unmatched
from graphlink.replay.played import NOT_RUN, Played, binding
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


@dataclass(frozen=True, slots=True, repr=False)
class IdealReplay(Short):
    """The times at which each node starts and ends if it starts as soon as its last dependency has ended; ns from 0."""

    start_ns: I64
    end_ns: I64

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
    if not len(graph.kind):
        return 0
    return int(graph.end_ns.max() - graph.start_ns.min())


def play_ideal(work: Workload) -> Played:
    """Replay the longest path through ``work.cost_ns``. Ids may stand in any order; nodes in and after a cycle do not
    run. Linear.
    """
    forward = all(np.all(work.source[block.edges] < block.target) for block in blocks(work.first))
    end = longest_path(work.first, work.source, work.cost_ns, work.lag_ns) if forward else _any_order(work)
    bound = binding(work, end, work.lag_ns)
    start = np.where(end != NOT_RUN, bound.ended_ns, NOT_RUN)
    nobody = np.full(len(work), NOWHERE, np.int32)
    return Played(start, start, end, bound.dependency, bound.kind, nobody, unmatched(work))


def _any_order(work: Workload) -> I64:
    """Return the same as ``longest_path`` where edges run both ways; ``NOT_RUN`` in and after a cycle."""
    columns = (work.first, work.source, work.lags(), work.cost_ns)
    first, source, lag, cost = (column.tolist() for column in columns)
    end = [NOT_RUN] * len(work)
    for node in topological(work.source, work.target, np.arange(len(work))).tolist():
        edges = range(first[node], first[node + 1])
        end[node] = cost[node] + max([0, *(end[source[k]] + lag[k] for k in edges)])
    return np.array(end, np.int64)


def error_pct(replayed_ns: int, measured_ns: int) -> float:
    """Return the error, signed, in per cent of the measured time; 0 where nothing was measured."""
    return round(100 * (replayed_ns / measured_ns - 1), 6) if measured_ns else 0.0


def gain_pct(gain_ns: int, path_ns: int) -> float:
    """Return a gain in per cent of the length of the critical path as recorded, the one basis of gains; 0 where that is
    0."""
    return round(100 * gain_ns / path_ns, 6) if path_ns else 0.0
