"""What became of each call and op, and the table that says so."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from graphlink.model import I64, NOWHERE
from graphlink.nccl.bytime import AMBIGUOUS
from graphlink.nccl.lanes import rivals
from graphlink.nccl.records import JoinedGroup
from graphlink.nccl.sides import CallSide, Codes, OpSide
from graphlink.nccl.units import Unit, of_unit
from graphlink.read.nccl_kinds import DumpKind

NO_GROUP: Final = "no group of the trace"
OTHER_RANK: Final = "another rank"
DIFFERS: Final = "differs"
CROWDED: Final = "several ranks in a process"
SEVERAL: Final = "several calls in one kernel"
NO_PARAMETERS: Final = "no parameters"
NO_COMMUNICATOR: Final = "no communicator joined"

Reasons = NDArray[np.object_]


@dataclass(slots=True)
class Outcome:
    """``op``: of each call, or NOWHERE; ``why``: of calls and ops that are left, "" = by their place among those that met. ``rule``,
    ``unit``, ``mismatch`` (call, op): of lanes."""

    calls: CallSide
    ops: OpSide
    op: I64
    why: Reasons
    op_why: Reasons
    rule: dict[int, str] = field(default_factory=dict)
    unit: dict[int, Unit] = field(default_factory=dict)
    mismatch: dict[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, calls: CallSide, ops: OpSide) -> Outcome:
        count = len(calls.row)
        op_why = np.where(ops.known, "", NO_PARAMETERS).astype(object)
        return cls(calls, ops, np.full(count, NOWHERE, np.int64), np.full(count, "", object), op_why)

    def meet(self, call: I64, op: I64) -> None:
        self.op[call] = op
        self.why[call] = ""

    def leave(self, call: I64, why: str) -> None:
        self.why[call] = why

    def part(self, call: I64, why: str) -> None:
        """Takes back what met."""
        self.op[call] = NOWHERE
        self.why[call] = why

    def part_rivals(self) -> None:
        """Lanes that claim what another has."""
        met = np.bincount(self.calls.lane[self.op != NOWHERE], minlength=len(self.calls.lanes))
        for k in rivals(self.calls.lanes, self.unit, met):
            self.part(self.calls.of_lane[k], AMBIGUOUS)
            del self.unit[k]

    def clash(self, call: I64, op: I64, why: str) -> None:
        """Pairs that stand at one place and are not the same; the first of a lane is what its line of the table shows."""
        self.why[call] = why
        for k, i, j in zip(self.calls.lane[call].tolist(), call.tolist(), op.tolist(), strict=True):
            self.mismatch[k] = min(self.mismatch.get(k, (i, j)), (i, j))


def table(calls: CallSide, ops: OpSide, outcome: Outcome, codes: Codes) -> tuple[JoinedGroup, ...]:
    """A line a lane, and one for each group of the trace that no lane is beside."""
    lines = []
    beside: set[int] = set()
    for k, lane in enumerate(calls.lanes):
        own = calls.of_lane[k]
        unit = outcome.unit.get(k)
        whole = lane.communicator == NOWHERE and k in outcome.rule
        theirs = np.arange(len(ops.group)) if whole else np.flatnonzero(of_unit(ops, unit)) if unit else np.zeros(0, np.int64)
        beside.update(range(len(ops.groups)) if whole else (unit.group,) if unit else ())
        met = own[outcome.op[own] != NOWHERE]
        group = ops.groups[unit.group] if unit else None
        why = outcome.op_why[theirs]
        if lane.kind is not DumpKind.FLIGHT_RECORDER:
            why = np.where(ops.several[theirs] & ops.known[theirs], SEVERAL, why)
        lines.append(
            JoinedGroup(
                dump=lane.dump,
                communicator=lane.key,
                group=None if group is None else group.name,
                ranks=None if group is None else group.ranks,
                calls=len(own),
                ops=len(theirs),
                matched=len(met),
                calls_left=_left(own, met, outcome.why[own]),
                ops_left=_left(theirs, np.sort(outcome.op[met]), why),
                rule=outcome.rule.get(k, ""),
                mismatch=_told(calls, ops, codes, *outcome.mismatch[k]) if k in outcome.mismatch else None,
            )
        )
    for g, group in enumerate(ops.groups):
        count = int(np.count_nonzero(ops.group == g))
        if calls.lanes and g not in beside:
            lines.append(JoinedGroup(NOWHERE, "", group.name, group.ranks, 0, count, 0, {}, {NO_COMMUNICATOR: count}, "", None))
    return tuple(lines)


def _left(own: I64, met: I64, why: Reasons) -> dict[str, int]:
    """Reasons of those of ``own`` that are not among ``met``, both ascending; without one, where they stand beside those that are."""
    at = np.flatnonzero(~np.isin(own, met))
    if len(met):
        place = np.where(own[at] < met[0], "before", np.where(own[at] > met[-1], "after", "between"))
    else:
        place = np.full(len(at), "no counterpart")
    reasons = np.where(why[at] == "", place, why[at])
    return dict(sorted(Counter(reasons.tolist()).items()))


def _told(calls: CallSide, ops: OpSide, codes: Codes, call: int, op: int) -> str:
    one = _words(codes, calls.function[call], calls.count[call], calls.dtype[call], calls.peer[call])
    other = _words(codes, ops.function[op], ops.count[op], ops.dtype[op], ops.peer[op])
    return f"call {int(calls.row[call])} is {one}, op {op} at its place is {other}"


def _words(codes: Codes, function: np.int64, count: np.int64, dtype: np.int64, peer: np.int64) -> str:
    text = codes.text(int(function)) or "unknown"
    if count >= 0:
        text += f" of {int(count):,} {codes.text(int(dtype))}".rstrip()
    return text + (f" with {int(peer)}" if peer >= 0 else "")
