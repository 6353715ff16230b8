"""Calls whose dumps share a clock, laid on the trace by when they were made and by when their kernels began."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from graphlink.annotate.nccl.shift import (
    MayMeet,
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
RIVAL: Final = 0.8  # a shift that explains so large a share of what the best one does is as good
AGREE: Final = 0.9  # share of pairs whose kernels must begin together as well
TAIL: Final = 3  # times the reach: a pair that nothing else comes near


@dataclass(frozen=True, slots=True)
class Laid:
    """Pairs, or why there are none. ``host``, ``gpu``: the shifts of the two clocks as far as they are known."""

    call: I64
    op: I64
    why: str
    host: Shift | None
    gpu: Shift | None


class _Option(NamedTuple):
    """A shift of one clock, and that of the other clock which its pairs tell."""

    shift: Shift
    other: Shift | None


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
        if isinstance(found, _Option):
            shifts = (found.shift, found.other) if line is host else (found.other, found.shift)
            return Laid(*_filled(line, found.shift, meet), "", *shifts)
        why = found if why == NO_TIMES else why
    nothing = np.zeros(0, np.int64)
    return Laid(nothing, nothing, why, None, None)


def _best(line: Timeline, other: Timeline, meet: MayMeet, *, epoch: bool) -> _Option | str:
    offsets = candidates(line, meet)
    if epoch:
        offsets = offsets[np.abs(offsets) <= SAME_CLOCK_NS]
    options: list[_Option] = []
    for offset in offsets.tolist():
        one = settled(line, offset, meet)
        if 2 * len(one.left) >= max(1, overlap(line, one)):
            told = _other_clock(line, one, other, meet)
            if told is None or _agree(line, one, other, told):
                options.append(_Option(one, told))
    if not options:
        return NO_RUN
    best = max(options, key=lambda option: len(option.shift.left))
    reach = best.shift.reach_ns
    for option in options:
        if abs(option.shift.offset_ns - best.shift.offset_ns) > 2 * reach:
            again = shifted(line, option.shift.offset_ns, reach, meet)
            if len(again.left) >= RIVAL * len(best.shift.left):
                return AMBIGUOUS
    if not epoch:  # a clock that could show anything
        bits = evidence_bits(line, best.shift) + (evidence_bits(other, best.other) if best.other else 0.0)
        if bits < needed_bits(line):
            return AMBIGUOUS
    return best


def _other_clock(line: Timeline, one: Shift, other: Timeline, meet: MayMeet) -> Shift | None:
    """The shift of the other clock that the pairs tell; None where fewer than two have times on it."""
    left, right = _places(line, one, other)
    if len(left) < 2:
        return None
    apart = np.sort(other.op_ns[right] - other.call_ns[left])
    return settled(other, int(apart[len(apart) // 2]), meet)


def _agree(line: Timeline, one: Shift, other: Timeline, told: Shift) -> bool:
    """Whether most of the pairs that both clocks could tell are told by both."""
    left, right = _places(line, one, other)
    of_left = np.full(len(other.call), NOWHERE, np.int64)
    of_left[told.left] = told.right
    return bool(np.count_nonzero(of_left[left] == right) >= AGREE * len(left))


def _places(line: Timeline, one: Shift, other: Timeline) -> tuple[I64, I64]:
    """Where the pairs of one timeline stand in the other, those that are in it."""
    left, right = _place(other.call, line.call[one.left]), _place(other.op, line.op[one.right])
    both = (left != NOWHERE) & (right != NOWHERE)
    return left[both], right[both]


def _place(of: I64, wanted: I64) -> I64:
    """Position of each wanted value, NOWHERE where it is not there."""
    order = np.argsort(of)
    at = np.searchsorted(of, wanted, sorter=order)
    found = order[np.minimum(at, len(of) - 1)] if len(of) else np.zeros(len(wanted), np.int64)
    place: I64 = np.where(of[found] == wanted, found, NOWHERE) if len(of) else np.full(len(wanted), NOWHERE)
    return place


def _filled(line: Timeline, shift: Shift, meet: MayMeet) -> tuple[I64, I64]:
    """Calls and ops of a shift, and pairs a little farther apart that are much nearer to each other than to any other call or op."""
    wide = shifted(line, shift.offset_ns, TAIL * shift.reach_ns, meet)
    at = line.call_ns + shift.offset_ns
    rest = np.abs(line.op_ns[wide.right] - at[wide.left])
    apart = np.minimum(_to_neighbour(at)[wide.left], _to_neighbour(line.op_ns)[wide.right])
    sure = (rest <= shift.reach_ns) | (TAIL * rest <= apart)
    return line.call[wide.left[sure]], line.op[wide.right[sure]]


def _to_neighbour(times_ns: I64) -> I64:
    """From each time to the nearest other one."""
    gap = np.diff(times_ns, prepend=np.iinfo(np.int64).min // 2, append=np.iinfo(np.int64).max // 2)
    nearest: I64 = np.minimum(gap[:-1], gap[1:])
    return nearest
