"""Standstill in the printed summary of a rank."""

from __future__ import annotations

from graphlink.records import ms
from graphlink.standstill.standstill import Standstill, Stood


def standstill_line(found: Standstill) -> str:
    """Format the standstill: ``1,234.000 ms, 97.1 % explained: calls 99.0, threads 96.2, streams 88.0``, and the
    longest piece that nothing explains."""
    parts = {"calls": found.calls, "threads": found.threads, "streams": found.streams}
    whole = all_stood(found)
    shares = ", ".join(f"{name} {explained(part)}" for name, part in parts.items())
    longest = (
        f"; longest unexplained {ms(found.largest[0].ns)} ms: {found.largest[0].what[:60]}" if found.largest else ""
    )
    return f"{ms(whole.ns)} ms, {explained(whole)} % explained: {shares}{longest}"


def all_stood(found: Standstill) -> Stood:
    """Add up the standstill of calls, threads and streams."""
    parts = (found.calls, found.threads, found.streams)
    return Stood(ns=sum(p.ns for p in parts), explained_ns=sum(p.explained_ns for p in parts))


def explained(stood: Stood) -> str:
    """Return the explained share in per cent, one decimal rounded down, so that 100.0 is all of it; nothing to explain
    is all.
    """
    return f"{(1000 * stood.explained_ns // stood.ns if stood.ns else 1000) / 10:.1f}"
