"""The outcome of a machine: when each node ran and what delayed it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from graphlink.graph.critical import held_by
from graphlink.graph_model import UNKNOWN_DEP, EdgeKind
from graphlink.model import I32, I64, NOWHERE, U8, Bool
from graphlink.records import Short
from graphlink.replay.matching import Matched
from graphlink.replay.workload import Workload

NOT_RUN: Final = -1

# kinds of ``held_kind`` beside those of edges
FREE: Final = 254  # nothing held it back: it started at 0
SLOT: Final = 253  # the slot was taken
MEETING: Final = 252  # a collective: the last member to arrive
MESSAGE: Final = 251  # a receive: its send
HELD_WORDS: Final = {
    **{int(k): k.name.lower() for k in EdgeKind},
    UNKNOWN_DEP: "dependency",
    FREE: "start",
    SLOT: "slot",
    MEETING: "meeting",
    MESSAGE: "message",
}


@dataclass(frozen=True, slots=True, repr=False)
class Ended(Short):
    """When each node ended, ns from 0, ``NOT_RUN`` for nodes that could not run, and the communication that was
    replayed."""

    end_ns: I64
    match: Matched

    @property
    def rank_begin_ns(self) -> I64:
        """Return when each rank of the workload began."""
        return self.match.clock.begin_ns

    @property
    def total_ns(self) -> int:
        return int(self.end_ns.max(initial=0))

    @property
    def ran(self) -> Bool:
        return np.asarray(self.end_ns != NOT_RUN)


@dataclass(frozen=True, slots=True, repr=False)
class Played(Ended):
    """One entry per node, times in ns from 0; nodes that could not run have ``NOT_RUN`` in all times.

    A node starts when ``held_by`` has ended: a dependency (the last of those that ended last), or with ``SLOT`` the
    node that had its slot. Its own time begins at ``begin_ns``: later than its start only for a collective that waits
    for the others and a receive that waits for its send; ``joined`` is then the member that came last, or the send.
    """

    start_ns: I64
    begin_ns: I64
    held_by: I32
    held_kind: U8
    joined: I32  # NOWHERE where the node began as it started
    has_lags: bool = True  # launch latency can run beside the stream; not on machines with slots


class Binding(NamedTuple):
    """Of each node the dependency that held it back: ``NOWHERE`` without any, the kind of its edge (or ``FREE``), when
    it ended, and how much later the node may begin.
    """

    dependency: I32
    kind: U8
    ended_ns: I64
    lag_ns: I64


def binding(work: Workload, end_ns: I64, lag_ns: I64 | None = None) -> Binding:
    """Find the last of the dependencies that held a node back longest, of all nodes at once. Linear."""
    edge = held_by(work.first, work.source, end_ns, lag_ns)
    node, kind = np.append(work.source, np.int32(NOWHERE))[edge], np.append(work.kind, np.uint8(FREE))[edge]
    lag = np.zeros(len(edge), np.int64) if lag_ns is None else np.append(lag_ns, 0)[edge]
    return Binding(node, kind, np.append(end_ns, 0)[node], lag)
