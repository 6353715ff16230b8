"""The result of a replay, as ``graphlink replay --json`` writes it."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from graphlink.read.document import Written
from graphlink.records import Short


class NodeAt(Short, msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    id: int
    name: str


class Drift(Short, msgspec.Struct, frozen=True, kw_only=True):
    """``drift_ns``: replayed less recorded start; ``change_ns``: how much more than that of ``held_by``, over an edge
    of kind ``edge``.
    """

    node: NodeAt
    held_by: NodeAt | None
    edge: str
    drift_ns: int
    change_ns: int


class SlotWaitEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of ``lane`` stood ready for ``waited_ns`` in all, since another node had the slot; ``behind`` had it most
    often.
    """

    rank: int
    lane: str
    slot: str
    nodes: int
    waited_ns: int
    behind: str
    behind_ns: int


class FamilyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of one name, with the parts of ops. ``before``: of device delays, the op and the device op before which
    most of them lie.
    """

    name: str
    work: str
    nodes: int
    ns: int
    before: list[str] = []


class PathEntry(Short, msgspec.Struct, frozen=True, kw_only=True):
    length_ns: int
    nodes: int
    work_ns: dict[str, int]
    gap_share: float
    delay_share: float
    slot_waits: int  # nodes of the path that waited for a slot
    top: list[FamilyEntry]


class RankEntry(msgspec.Struct, frozen=True, kw_only=True):
    """``measured_ns``: None for a file without recorded times. ``error_pct``: None there too, and for a rank that does
    not finish, whose ``replayed_ns`` is the time until nothing could run.
    """

    rank: int
    nodes: int
    ran: int  # of them
    measured_ns: int | None
    replayed_ns: int
    finished: bool
    error_pct: float | None


class StuckEntry(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    left: int
    node: NodeAt
    waits_for: str


class Run(Short, msgspec.Struct, frozen=True, kw_only=True):
    """One run of the machine: of one rank, or of all.

    ``measured_ns``: the last recorded end less the first recorded start of all ranks, on the run's clock; None without
    recorded times, where the ranks have no clock in common, and where they were made to begin together. ``error_pct``
    compares ``total_ns``; None there too, and if a rank does not finish.
    """

    ranks: list[RankEntry]
    total_ns: int
    measured_ns: int | None
    error_pct: float | None
    path: PathEntry
    drifts: list[Drift]
    slot_waits: list[SlotWaitEntry]
    stuck: list[StuckEntry]
    notes: list[str]


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction, and where the truth is with the level of its band."""

    ns: int
    low_ns: int
    high_ns: int


class Band(Short, msgspec.Struct, frozen=True, kw_only=True):
    """Where a second run, so changed and of as many steps, ends with ``level_pct`` (docs/replay.md, "How sure").

    ``run``: its time; ``step``: the mean of its steps after the first. Both are None where nothing tells, and ``why``
    says why; ``step`` also where there are no two such steps. ``steps``: how many the recording has, 0 if nothing marks
    them. Half widths for the run: ``spread_ns`` of what differs from step to step, ``unexplained_ns`` of time on the
    path that nothing explains, ``latency_ns`` of communication; the latter two as [below, above], or empty where no
    change of that kind has a band.
    """

    level_pct: int
    steps: int
    run: Span | None = None
    step: Span | None = None
    spread_ns: int | None = None
    between_runs_pct: float | None = None
    unexplained_ns: list[int]
    latency_ns: list[int]
    why: str = ""


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was made: of how many ``nodes``, of waits of how many; by how much their times grew, added up
    (``ns``); what it rests on and what it cannot know.
    """

    kind: str
    what: str
    nodes: int
    ns: int
    rests_on: str
    cannot_know: str


class WhatIf(Short, msgspec.Struct, frozen=True, kw_only=True):
    """The same run with changes. ``done``: what each change did; ``not_here``: changes that name nothing on these
    ranks. ``band``: None where a rank does not finish. ``gain_pct``: of ``path_ns``, the length of the critical path
    without the changes: what no graph explains, such as that the recording of a rank began late, is not in it.
    ``steps_ns``: what a step takes on average without and with the changes, of all but the first; None where fewer
    than two are marked. ``bare_ns``: the same of steps of which nothing is recorded, without as ``graphlink.capture``
    kept them; None where it kept none.
    """

    ranks: list[RankEntry]
    before_ns: int
    after_ns: int
    path_ns: int
    steps_ns: list[float] | None
    bare_ns: list[float] | None = None
    gain_pct: float | None  # None where a rank does not finish, before or after
    band: Band | None
    path: PathEntry
    done: list[Made]
    not_here: list[str]
    stuck: list[StuckEntry]


class ScalableName(msgspec.Struct, frozen=True, kw_only=True):
    """The ``nodes`` of one name, with the parts of ops, and of one sort of work. ``scale``: what takes them,
    ``=FACTOR`` behind it, on ``--scale``. ``before`` as in ``FamilyEntry``.
    """

    sort: str
    name: str
    nodes: int
    ns: int
    path_ns: int | None  # of it on the critical path
    scale: str
    before: list[str] = []


class Capturable(msgspec.Struct, frozen=True, kw_only=True):
    """Ops or ranges of one name, ``nodes`` of them, with the ``launches`` inside them. ``cuda_graph``: what takes them
    on ``--cuda-graph``; ``why_not``: what keeps them from being launches of CUDA graphs.
    """

    name: str
    nodes: int
    launches: int
    cuda_graph: str
    why_not: str = ""


class Listed(Written, msgspec.Struct, frozen=True, kw_only=True):
    """What can be scaled, longest first. ``of``, ``ns``: how many names there are in all, with ``sort`` of that sort,
    and what they take.

    ``path_ns``: the length of the critical path; None where the ranks are replayed one by one, or one cannot finish.
    """

    machine: str
    sort: str | None
    path_ns: int | None
    of: int
    ns: int
    names: list[ScalableName]
    ranges: list[ScalableName] = []  # ranges and modules that take longest, with all that is inside them
    cuda_graphs: list[Capturable] = []  # the names with most launches inside


class Report(Written, frozen=True, kw_only=True):
    """``why_alone``: why each rank was replayed alone although no machine was named; absent where that is not so."""

    machine: str
    why_alone: str | UnsetType = UNSET
    runs: list[Run]
    what_if: list[WhatIf]  # one entry a run, or none
    cannot: list[str]  # what a what-if does not answer
