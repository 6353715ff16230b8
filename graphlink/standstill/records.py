"""How much of what stood still an edge explains, as ``summary.json`` has it (docs/standstill.md)."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from graphlink.figures import figure
from graphlink.records import Short, ms
from graphlink.wings import Field

GOAL_PCT: Final = 95  # explained, of calls and of threads: what else is missing is a warning


class Stood(msgspec.Struct, frozen=True, kw_only=True):
    """Time stood still, and what of it an edge of the graph explains."""

    ns: int
    explained_ns: int

    @property
    def explained(self) -> str:
        """Return the explained share in per cent, one decimal rounded down, so that 100.0 is all of it; nothing to
        explain is all.
        """
        return f"{(1000 * self.explained_ns // self.ns if self.ns else 1000) / 10:.1f}"


class PathStood(msgspec.Struct, frozen=True, kw_only=True):
    """The length of the replayed critical path, and what of it are host gaps, delays, and blocked calls that nothing
    explains.
    """

    ns: int
    pinned_ns: int


class Piece(Short, msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of standstill that no edge explains."""

    what: str
    ns: Annotated[int, figure(means="explained")]
    start_ns: Annotated[int, figure("at", unit="place")]  # since the start of the graph's first node
    record: Annotated[str, figure("what would have shown why", unit="word")]


class Standstill(Short, msgspec.Struct, frozen=True, kw_only=True):
    """The standstill of a rank (docs/standstill.md).

    ``calls``: time in calls that block, beyond what such a call takes with nothing to wait for. ``threads``: silence of
    100 us or more between rows of a thread. ``python_ns``: silence in which nothing could have woken the thread, in
    neither figure. ``streams``: lateness of device ops after launch, latency and stream. ``largest``: the longest
    unexplained pieces, longest first, and launches that a full queue blocked.
    """

    calls: Stood
    threads: Stood
    python_ns: int
    streams: Stood
    path: PathStood
    largest: list[Piece]

    @property
    def whole(self) -> Stood:
        """Add up the standstill of calls, threads and streams."""
        parts = (self.calls, self.threads, self.streams)
        return Stood(ns=sum(p.ns for p in parts), explained_ns=sum(p.explained_ns for p in parts))

    def trust(self, measured_ns: int) -> str:
        """Return in words how much of the standstill is explained, of a run that took ``measured_ns``."""
        whole = self.whole
        if 100 * whole.ns < measured_ns:
            return "hardly anything waited"
        guess = "; what a change of the others saves is not known" if float(whole.explained) < GOAL_PCT else ""
        return f"{whole.explained} % of {ms(whole.ns)} ms of waits (calls, threads and streams) are explained{guess}"

    @property
    def line(self) -> str:
        """Format the standstill: ``1,234.000 ms, 97.1 % explained: calls 99.0, threads 96.2, streams 88.0``, and the
        longest piece that nothing explains.
        """
        shares = ", ".join(f"{name} {getattr(self, name).explained}" for name in ("calls", "threads", "streams"))
        longest = self.largest[0] if self.largest else None
        rest = f"; longest unexplained {ms(longest.ns)} ms: {longest.what[:60]}" if longest else ""
        return f"{ms(self.whole.ns)} ms, {self.whole.explained} % explained: {shares}{rest}"


FIELDS: Final = (Field("critical_path", "standstill", Standstill),)
