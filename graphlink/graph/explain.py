"""What holds a rank up: critical path, slack of every node, and what would be gained from whom."""

from __future__ import annotations

from dataclasses import dataclass

from graphlink.graph.critical import CriticalPath, path_by_lags, shares
from graphlink.graph.gains import Gains, Replayed, top_gains
from graphlink.graph.names import Names, names
from graphlink.graph.slack import slack, spans
from graphlink.graph.syncpoints import SyncGain, calls_of, sync_gains, sync_points
from graphlink.model import I64, Communication, Graph, Linked


@dataclass(frozen=True, slots=True)
class Explained:
    """``slack_ns`` has one entry a node. ``syncs`` are the ``top`` sync points that gain most, ``calls`` the names of their calls."""

    path: CriticalPath
    slack_ns: I64
    names: Names
    gains: Gains
    syncs: tuple[SyncGain, ...]
    calls: tuple[str, ...]
    syncs_others_at_most_ns: int


def explain(graph: Graph, linked: Linked, comm: Communication, end_ns: I64, cost_ns: I64, top: int = 100) -> Explained:
    """All of it from one replay (``end_ns``, ``cost_ns``: one entry a node), with the ``top`` largest gains. O(n log n)."""
    share = shares(graph, linked, comm)
    late = slack(graph, end_ns, cost_ns)
    path = path_by_lags(graph, end_ns, late.lag_ns, share)
    ways = spans(graph, late)
    named = names(graph, linked)
    gains = top_gains(Replayed(graph, late, ways, path, share, named.code), top)
    syncs = sync_gains(graph, sync_points(graph), late, ways, path)
    listed = syncs[:top]
    others = max((s.gain_ns for s in syncs[top : top + 1]), default=0)
    return Explained(path, late.node_ns, named, gains, listed, calls_of(graph, linked, listed), others)
