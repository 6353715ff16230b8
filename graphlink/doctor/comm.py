"""Gaps of a recording: its communication, and which rank it is of."""

from __future__ import annotations

from collections.abc import Iterator

from graphlink.doctor.records import Finding, if_any
from graphlink.model import Communication, Trace


def communication_lacking(comm: Communication) -> Iterator[Finding]:
    """Report ops that stay computation, and groups whose members have to be guessed or cannot be."""
    nodes = len(comm.ops.row)
    yield from if_any("comm-unknown", {"unknown": sum(comm.unknown.values()), "comms": nodes}, nodes, comm.unknown)
    doubtful = {name: ops for name, (ops, _) in comm.doubtful.items()}
    time_ns = sum(ns for _, ns in comm.doubtful.values())
    yield from if_any("comm-doubtful", {"doubtful": sum(doubtful.values()), "time_ns": time_ns}, parts=doubtful)
    if comm.unlisted:
        calls = sum(comm.unlisted.values())
        yield Finding(
            "groups-unknown", calls / nodes, {"groups": len(comm.unlisted), "calls": calls}, parts=comm.unlisted
        )
    yield from if_any(
        "groups-assumed", {"groups": len(comm.assumed)}, told=tuple(name or "(unnamed)" for name in comm.assumed)
    )


def rank_lacking(trace: Trace, comm: Communication, *, distributed: bool) -> Iterator[Finding]:
    """Report what a rank lacks. ``distributed``: other ranks were recorded, or the header of the recording shows that
    there were some.
    """
    if trace.rank is None and (distributed or len(comm.ops.row) or trace.process_groups):
        yield Finding("no-rank")
    odd = tuple(text for text in trace.warnings if text.startswith("distributedInfo: "))
    if odd:
        yield Finding("odd-header", 0.0, told=odd)
