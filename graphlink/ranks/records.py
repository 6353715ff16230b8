"""The records that the parts for several ranks exchange. Nothing here knows graphs: communication rows only.

Glossary
  op        one communication of one rank: a kernel, or a host-side (gloo) row. Position in that rank's ``RankComms``.
  group     a communicator, the same on all ranks: members in ring order and a name.
  match     one collective or message, matched over ranks: an op of each member.

Times are int64 ns. ``RankComms`` has them on the rank's own clock; ``AlignedClocks`` says how to bring them onto the
run's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.model import I32, I64, U8, Bool, CommOps
from graphlink.model import GroupKey as GroupKey


@dataclass(frozen=True, slots=True, repr=False)
class RankComms(CommOps):
    """The communication of one rank of which kind, group and size are known, with the times of its graph, and what
    tells of the rank.

    ``groups`` are numbered as they first come. ``node``: of each op its id in the rank's graph.
    """

    rank: int
    world_size: int
    host: str  # name of the machine, "" where the recording does not tell
    resolution_ns: int
    began_ns: int  # first and last moment of the recording, on the rank's own clock
    ended_ns: int
    node: I32
    overhead_start_ns: I64  # what the profiler itself cost: disjoint or not, by start
    overhead_end_ns: I64


@dataclass(frozen=True, slots=True)
class Matches:
    """Collectives and messages over all ranks.

    ``of_op[r]``: for each op of the r-th rank its match, ``NOWHERE`` for what has no counterpart. A match has an op
    of every recorded member of its group (of a message: its two ends); ``complete`` where no member's recording is
    missing. Members of match m stand in ``rank[first[m]:first[m + 1]]`` (position of the rank) and ``op``, by rank.
    ``group`` indexes ``groups``; ``turn`` counts the matches of a group (of messages: of source, target, tag) in
    order, from 0. Matches are sorted by the least start of their ops as recorded.
    """

    groups: tuple[GroupKey, ...]
    of_op: tuple[I32, ...]
    kind: U8  # CommKind: COLLECTIVE, or SEND for a message
    type: I32
    group: I32
    turn: I64
    complete: Bool
    first: I64
    rank: I32
    op: I32


@dataclass(frozen=True, slots=True)
class Line:
    """Another clock by one's own: other = own + offset + drift * (own - from)."""

    offset_ns: int
    drift: float
    from_ns: int

    def of(self, own_ns: I64) -> I64:
        """Map times, rounded to ns. What does not come later stays so."""
        return np.asarray(own_ns + self.offset_ns + np.rint(self.drift * (own_ns - self.from_ns)).astype(np.int64))

    def at(self, own_ns: int) -> int:
        """Map one time, rounded to ns."""
        return own_ns + self.offset_ns + round(self.drift * (own_ns - self.from_ns))

    def then(self, further: Line) -> Line:
        """Map this one's own clock to the further one's other."""
        at = self.from_ns
        if further.drift:  # a drift is only known well near where it was measured
            other = further.from_ns - self.offset_ns
            at = other - round(self.drift * (other - self.from_ns) / (1 + self.drift))
        return Line(further.at(self.at(at)) - at, (1 + self.drift) * (1 + further.drift) - 1, at)

    def back(self) -> Line:
        """Return the inverse line."""
        there = self.at(self.from_ns)
        return Line(self.from_ns - there, 1 / (1 + self.drift) - 1, there)


@dataclass(frozen=True, slots=True)
class AlignedClock(Line):
    """A rank's clock: the run's by its own.

    ``residual_ns``: median of what matched ends still differ by; 0 where nothing was fitted. ``shares``: the rank whose
    clock it was taken to be, by the data; its own where it was fitted. ``known`` is False where nothing ties it to the
    run's clock.
    """

    rank: int
    residual_ns: int
    shares: int
    known: bool


@dataclass(frozen=True, slots=True)
class AlignedClocks:
    """One ``AlignedClock`` a rank, in their order. ``residual_ns``: the tolerance of whatever compares times of two
    ranks.
    """

    clocks: tuple[AlignedClock, ...]
    residual_ns: int
    warnings: tuple[str, ...]
