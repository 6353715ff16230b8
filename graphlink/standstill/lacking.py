"""The standstill of a rank as ``graphlink doctor`` reports it."""

from __future__ import annotations

from collections.abc import Iterator

from graphlink.depend.build import Built
from graphlink.doctor.recording import AGAIN, EXPLAINED_SHARE, share_of
from graphlink.doctor.records import Finding
from graphlink.graph.critical import critical_path, shares
from graphlink.model import Communication, Linked
from graphlink.replay.machines import replay
from graphlink.standstill.standstill import stood_still


def standing_lacking(built: Built, linked: Linked, comm: Communication) -> Iterator[Finding]:
    """Report the standstill that ``summary.json`` has, where less than 95 % of that of calls or of threads is
    explained, or it warns.
    """
    graph = built.graph
    cost = graph.cost_ns
    path = critical_path(graph, replay(graph, cost).end_ns, cost, shares(graph, linked, comm))
    stood = stood_still(built, linked, path)
    found = stood.standstill
    parts = {"calls": found.calls, "threads": found.threads, "streams": found.streams}
    rests = {name: part.ns - part.explained_ns for name, part in parts.items()}
    share = max(share_of(rests["calls"], found.calls.ns), share_of(rests["threads"], found.threads.ns))
    if share > 1 - EXPLAINED_SHARE or stood.warnings:
        figures = {"unexplained_ns": sum(rests.values()) + stood.beside_ns} | {
            f"{name}_ns": ns for name, ns in rests.items()
        }
        pieces = tuple(
            f"{p.ns / 1e6:,.3f} ms at {p.start_ns / 1e6:,.3f} ms, {p.what}: {p.record}" for p in found.largest
        )
        yield Finding(
            "standstill", share, figures, told=(*stood.warnings, *pieces), record=AGAIN if rests["threads"] else ""
        )
