"""Calls whose dumps share a clock, laid on the trace by when they were made and when their kernels began."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.annotate.nccl.shift import (
    RIVAL,
    Shift,
    Timeline,
    candidates,
    evidence_bits,
    needed_bits,
    overlap,
    settled,
    shifted,
    timeline,
)
from graphlink.annotate.nccl.sides import CallSide, OpSide, may_meet
from graphlink.model import I64, NOWHERE, Bool

NO_TIMES: Final = "no times"
AMBIGUOUS: Final = "ambiguous"
NO_RUN: Final = "no common run"
SAME_CLOCK_NS: Final = 5_000_000  # two clocks of one host that both show the time of day
AGREE: Final = 0.9  # share of pairs whose kernels must begin together as well


@dataclass(frozen=True, slots=True)
class Laid:
    """Pairs, or why there are none. ``host``, ``gpu``: the shifts of the two clocks as far as they are known."""

    call: I64
    op: I64
    why: str
    host: Shift | None
    gpu: Shift | None


def by_time(calls: CallSide, ops: OpSide, own: I64, *, epoch: bool) -> Laid:
    """Pairs of the calls ``own``, all of one clock. ``epoch``: it shows the time of day, as the trace's does. O(n log n)."""

    def meet(call: I64, op: I64) -> Bool:
        return may_meet(calls, ops, call, op)

    kind = np.unique(np.stack([ops.group, ops.function, ops.count, ops.peer]), axis=1, return_inverse=True)[1].reshape(-1)
    issued = np.flatnonzero(ops.issued_ns != NOWHERE)
    timed = own[calls.host_ns[own] > 0]
    on_gpu = own[calls.gpu_ns[own] > 0]
    every = np.arange(len(ops.start_ns))
    host = timeline(timed, calls.host_ns[timed], issued, ops.issued_ns[issued], kind[issued])
    gpu = timeline(on_gpu, calls.gpu_ns[on_gpu], every, ops.start_ns, kind)
    why = NO_TIMES
    for line, other in ((host, gpu), (gpu, host)):
        if not len(line.call) or not len(line.op):
            continue
        found = _best(line, other, meet, epoch=epoch and line is host)
        if not isinstance(found, str):
            one, two = found
            shifts = (one, two) if line is host else (two, one)
            return Laid(line.call[one.left], line.op[one.right], "", *shifts)
        why = found if why == NO_TIMES else why
    nothing = np.zeros(0, np.int64)
    return Laid(nothing, nothing, why, None, None)


def _best(line: Timeline, other: Timeline, meet, *, epoch: bool) -> tuple[Shift, Shift | None] | str:  # type: ignore[no-untyped-def]
    offsets = candidates(line, meet)
    if epoch:
        offsets = offsets[np.abs(offsets) <= SAME_CLOCK_NS]
    options = [settled(line, offset, meet) for offset in offsets.tolist()]
    options = [one for one in options if len(one.left) and 2 * len(one.left) >= overlap(line, one)]
    if not options:
        return NO_RUN
    both = [(one, _with(line, one, other, meet)) for one in options]
    both = [(one, two) for one, two in both if two is not False]
    if not both:
        return NO_RUN
    best, second = max(both, key=lambda pair: len(pair[0].left))
    assert second is not False
    for one, two in both:
        if abs(one.offset_ns - best.offset_ns) > 2 * best.reach_ns:
            again = shifted(line, one.offset_ns, best.reach_ns, meet)
            if len(again.left) >= RIVAL * len(best.left):
                return AMBIGUOUS
    bits = evidence_bits(line, best)
    if second is not None:
        bits += evidence_bits(other, second)
    if bits < needed_bits(line) and not epoch:
        return AMBIGUOUS
    return best, second


def _with(line: Timeline, one: Shift, other: Timeline, meet) -> Shift | None | bool:  # type: ignore[no-untyped-def]
    """The shift of the other clock that the pairs tell; None where they tell none, False where it contradicts them."""
    at = {call: k for k, call in enumerate(other.call.tolist())}
    op_at = {op: k for k, op in enumerate(other.op.tolist())}
    pairs = [
        (at[c], op_at[o])
        for c, o in zip(line.call[one.left].tolist(), line.op[one.right].tolist(), strict=True)
        if c in at and o in op_at
    ]
    if len(pairs) < 2:
        return None
    left, right = np.array(pairs, np.int64).T
    apart = np.sort(other.op_ns[right] - other.call_ns[left])
    found = settled(other, int(apart[len(apart) // 2]), meet)
    told = set(zip(found.left.tolist(), found.right.tolist(), strict=True))
    if sum(pair in told for pair in pairs) < AGREE * len(pairs):
        return False
    return found
