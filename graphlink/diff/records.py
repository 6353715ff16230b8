"""What ``graphlink diff`` finds, as its ``--json`` holds it (docs/diff.md). A is the run before, B the one after."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from graphlink.figures import figure
from graphlink.read.document import Formatted
from graphlink.records import Short

Answer = Literal["better", "the same", "worse", "cannot tell", "do not compare"]
Tier = Literal["structure", "work", "effect"]
Per = Literal["step", "first step", "run"]
Level = Literal["path", "path without numbers", "ops of the path", "op", "kernel"]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs. ``steps_ns``: the time of each step of the run, the first included (of several ranks the
    longest over ranks).
    """

    folder: str
    ranks: list[int]
    world_size: int
    gpus: list[str]
    device_ops: int
    steps_ns: list[int]
    step_key: str
    found_by: str


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """What tells the runs apart, or that they are alike in it. ``points``: what it takes off the score."""

    about: Annotated[str, figure("what", unit="word")]
    before: str
    after: str
    same: bool
    points: float


class Comparable(Short, msgspec.Struct, frozen=True, kw_only=True):
    """Whether the runs compare. ``score``: 0 to 100, refused below ``least``; ``alike_pct``: how much of their work is
    the same.

    ``matched_by``: how operations of the two runs were matched. ``other_hardware``: then their kernels are not compared
    by name.
    """

    score: int
    least: int
    alike_pct: float
    matched_by: Level
    other_hardware: bool
    reasons: list[Reason]


class Verdict(Short, msgspec.Struct, frozen=True, kw_only=True):
    """Whether B is better than A. Times are of a ``per``: mean over steps without the first, the first step, or the
    complete run.

    ``low_pct`` to ``high_pct``: where the change lies with ``level``; ``p``: the chance of so much or more if there is
    no change. All None where there are too few steps for a test, or the runs do not compare. ``test``: "Welch",
    "paired" (steps of one place are alike) or "".
    """

    answer: Answer
    identical: bool
    per: Per
    steps_before: int
    steps_after: int
    before_ns: int
    after_ns: int
    change_ns: int
    change_pct: float
    low_pct: float | None
    high_pct: float | None
    p: float | None
    level: float
    test: str
    why: str


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the time of a step, A and B. The changes of all parts add up to that of the step exactly."""

    what: str
    before_ns: int
    after_ns: int
    change_ns: int


class Split(Short, msgspec.Struct, frozen=True, kw_only=True):
    """The time of a step by what its GPU did: of one device of a rank, or (``rank`` None) the mean over ranks of their
    busiest devices.
    """

    rank: int | None
    device: int | None
    before_ns: int
    after_ns: int
    change_ns: int
    parts: list[Amount]

    @property
    def with_sum(self) -> list[Amount]:
        whole = Amount(what="sum", before_ns=self.before_ns, after_ns=self.after_ns, change_ns=self.change_ns)
        return [*self.parts, whole]


class Change(Short, msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is other in B, the cause before what follows from it.

    ``tier``: ``structure`` (calls, kernels, waits, ranks, microbatches that came or went), ``work`` (the same calls
    take another time) or ``effect`` (idle time, waits). ``ranks``: empty where it is of the run or of all ranks alike.
    ``before``, ``after``: in ``unit``. ``change_ns``: of device or host time a step, mean over ``ranks``; None where it
    has no time of its own. ``factor``: after / before.
    """

    tier: Tier
    kind: str
    what: str
    ranks: Annotated[list[int], figure(unit="numbers")]
    path: list[str]
    name: str
    unit: str
    before: float | None
    after: float | None
    factor: float | None
    change_ns: Annotated[int | None, figure(unit="signed")]
    change_pct: Annotated[float | None, figure("of the step", means="of_step")]  # of the time of a step before
    evidence: str


def change(
    tier: Tier,
    kind: str,
    what: str,
    sides: tuple[float | None, float | None] = (None, None),
    unit: str = "",
    **others: Any,
) -> Change:
    """Return a change, as yet of all ranks; ``sides``: before and after, in ``unit``; ``others``: its other fields."""
    before, after = sides
    known: dict[str, Any] = {"ranks": [], "path": [], "name": "", "change_ns": None, "change_pct": None, "evidence": ""}
    known["factor"] = round(after / before, 6) if before and after is not None else None
    return Change(tier=tier, kind=kind, what=what, unit=unit, before=before, after=after, **{**known, **others})


class OperationChange(Short, msgspec.Struct, frozen=True, kw_only=True):
    """An operation in both runs, mean over ranks, a step; what a run lacks is 0 there."""

    path: Annotated[list[str], figure("operation")]
    calls_before: float
    calls_after: float
    device_before_ns: int
    device_after_ns: int
    host_before_ns: int
    host_after_ns: int


class NameChange(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel, copy or GPU call of an operation that came, went or is called more or less often; a step, mean over
    ranks.
    """

    path: Annotated[list[str], figure("operation")]
    name: str
    count_before: float
    count_after: float
    before_ns: int
    after_ns: int


class GroupChange(msgspec.Struct, frozen=True, kw_only=True):
    """One function of a communicator, over all its ranks, a step: how often, bytes of one rank, transfer (once a
    meeting), and waiting (summed over ranks)."""

    group: str
    ranks: Annotated[int, figure(unit="about")]
    type: Annotated[str, figure("operation", unit="word")]
    count_before: float
    count_after: float
    bytes_before: float
    bytes_after: float
    transfer_before_ns: int
    transfer_after_ns: int
    wait_before_ns: int
    wait_after_ns: int


class PipelineChange(msgspec.Struct, frozen=True, kw_only=True):
    """The pipelines; None where there is none, or where a figure cannot be known."""

    schedule_before: str | None
    schedule_after: str | None
    stages_before: int | None
    stages_after: int | None
    microbatches_before: int | None
    microbatches_after: int | None
    chunks_before: int | None
    chunks_after: int | None
    bubble_rate_before: float | None
    bubble_rate_after: float | None
    causes_before_ns: dict[str, int]
    causes_after_ns: dict[str, int]


class RankChange(Short, msgspec.Struct, frozen=True, kw_only=True):
    """A rank that both runs have, ``rank`` in A and ``rank_after`` in B. ``path_..._ns``: what its critical path goes
    to.
    """

    rank: int
    rank_after: int
    before_ns: int
    after_ns: int
    wait_before_ns: int  # in communication for late ranks, a step
    wait_after_ns: int
    path_before_ns: dict[str, int]
    path_after_ns: dict[str, int]


class FailOn(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--fail-on`` decides."""

    limit_pct: float
    exceeded: bool
    why: str


class DiffReport(Formatted, frozen=True, kw_only=True):
    """All that ``graphlink diff`` finds: ``changes`` with causes first, then the figures behind them.

    ``path_..._ns``: the critical path over all ranks, or of the only one. ``straggler_...``: evidence, "" where no rank
    stands out.
    """

    before: Side
    after: Side
    comparable: Comparable
    verdict: Verdict
    changes: list[Change]
    split: Split
    splits: list[Split]
    ranks: list[RankChange]
    operations: list[OperationChange]
    kernels: list[NameChange]
    syncs: list[NameChange]
    communication: list[GroupChange]
    pipeline: PipelineChange | None
    path_before_ns: dict[str, int]
    path_after_ns: dict[str, int]
    straggler_before: str
    straggler_after: str
    fail_on: FailOn | None = None
    notes: list[str]
