"""The records that the stages of a run hand on: a rank linked, prepared, joined, finished; all ranks together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from graphlink.depend.build import Built
from graphlink.graph.path_file import Explained
from graphlink.graph.target import CommPlan
from graphlink.graph_model import NO_COLUMN, Column, Graph
from graphlink.model import I32, Communication, Linked, Trace
from graphlink.perfetto.packets import NO_ARROWS, Arrows
from graphlink.ranks.group_ids import GroupIds
from graphlink.ranks.match import Matching
from graphlink.ranks.records import AlignedClock, AlignedClocks, GroupKey, RankComms
from graphlink.ranks.summary import Run
from graphlink.records import Short
from graphlink.replay.machines import IdealReplay
from graphlink.report import summary
from graphlink.run.options import Inputs, Options
from graphlink.wings import Parts


@dataclass(frozen=True, slots=True, repr=False)
class LinkedRank(Short):
    """One rank, read, matched and linked. ``trace``: as recorded, before calls were cut; ``beside``: what wings read
    beside the recording, with their ``warnings``; ``other_run``: how an execution trace that was left out differs from
    the recording.
    """

    trace: Trace
    linked: Linked
    comm: Communication
    beside: Parts
    warnings: tuple[str, ...]
    other_run: str | None = None

    def world_size(self, rank: int) -> int:
        """Return the recorded number of ranks, at least what ``rank`` and the groups of the communication need."""
        return max(self.trace.world_size or 1, rank + 1, *(r + 1 for ranks, _ in self.comm.ops.groups for r in ranks))


@dataclass(frozen=True, slots=True, repr=False)
class GraphedRank(Short):
    """A rank that has its graph, for wings: ``parts`` are those of the wings before."""

    rank: int
    graph: Graph
    linked: Linked
    comm: Communication
    beside: Parts
    parts: Parts
    range_rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class PreparedRank(Short):
    """The graph of a rank, with all that its files are written from."""

    inputs: Inputs
    rank: int
    world_size: int
    comm: Communication
    built: Built
    plan: CommPlan
    parts: Parts
    folded: int  # host nodes that --host launches folded into others
    warnings: tuple[str, ...]

    @property
    def linked(self) -> Linked:
        """Return the recording that the graph was built from."""
        return self.built.graph.linked


@dataclass(frozen=True, slots=True)
class RankRows:
    """All of a rank that joining reads: its communication, the communicators that its graph names, and what wings read
    of it.
    """

    comms: RankComms
    groups: tuple[GroupKey, ...]
    parts: Parts
    nodes: int


@dataclass(frozen=True, slots=True)
class Aligned:
    """The ranks of a run with what they have in common. ``position``: of each rank whose communication is known, where
    it stands in ``matching`` and ``clocks``.
    """

    comms: dict[int, RankComms]
    matching: Matching
    clocks: AlignedClocks
    position: dict[int, int]


@dataclass(frozen=True, slots=True, repr=False)
class Joined(Short):
    """The part of a run's analysis that the files of one rank are written with.

    ``ids`` holds every communicator of ``PreparedRank.plan.groups``. Ids of nodes begin at ``first_id``. Of nodes:
    ``unmatched`` have no counterpart, ``size_bytes`` is that on all ranks where they differed, ``wait_ns`` how long a
    node ran until the last rank came, ``excluded_ns`` the same of those that count in no figure, ``across`` are the
    arrows between ranks. ``parts``: of wings. ``replayed``: the graph is kept, for the replay of all ranks; ``hosts``:
    how many machines recorded the run, as far as is known.
    """

    ids: GroupIds
    world_size: int
    first_id: int = 0
    clock: AlignedClock | None = None
    unmatched: I32 | None = None
    size_bytes: Column = NO_COLUMN
    wait_ns: Column = NO_COLUMN
    excluded_ns: Column = NO_COLUMN
    across: Arrows = NO_ARROWS
    parts: Parts = field(default_factory=Parts)
    replayed: bool = False
    hosts: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class RankWork(Short):
    """A rank whose files are being written into ``folder``, for wings. ``graph``, from the replay on, is as written.

    ``played``: its replay, ``explained``: its critical path, ``grouped``: of each wing what
    it found when it put nodes into groups.
    """

    prepared: PreparedRank
    joined: Joined
    options: Options
    folder: Path
    graph: Graph
    played: IdealReplay
    explained: Explained
    grouped: Parts

    @property
    def rank(self) -> int:
        return self.prepared.rank

    @property
    def linked(self) -> Linked:
        return self.prepared.linked

    @property
    def comm(self) -> Communication:
        return self.prepared.comm


class Finished(Short, msgspec.Struct, frozen=True):
    """A rank whose files are written: its entry of ``summary.json``, their names, and its graph as it stands in the
    ``.et``.
    """

    entry: summary.Rank
    files: tuple[str, ...]
    graph: Graph


@dataclass(frozen=True, slots=True, repr=False)
class RunResult(Short):
    """All ranks of a run, by rank, as ``summary.json`` has them, the parts of wings, and the names of all files.

    ``run`` and its ``warnings`` only where several ranks were joined.
    """

    ranks: Sequence[summary.Rank]
    parts: Parts
    files: tuple[str, ...]
    run: Run | None = None
    warnings: tuple[str, ...] = ()
