"""Joins calls whose dumps share a clock by when they were made and by when their kernels began."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from graphlink.model import I64, NOWHERE, Bool
from graphlink.nccl.ops import OpSide
from graphlink.nccl.shift import (
    LEAST_NS,
    TAIL,
    WIDE_NS,
    EventTimes,
    MayMeet,
    Shift,
    candidates,
    evidence_bits,
    from_pairs,
    middle,
    near,
    needed_bits,
    of_calls,
    overlap,
    settled,
    shifted,
    timeline,
)
from graphlink.nccl.sides import AMBIGUOUS, NO_TIME, SEVERAL, CallSide, Outcome, Unit, may_meet, of_unit, rivals
from graphlink.spans import Axis
from graphlink.tables import codes, least, lookup, nowhere, successive, tuples

SAME_CLOCK_NS: Final = 200_000  # two clocks of one host that both show the time of day
FEWEST: Final = 4  # pairs that such clocks need
RIVAL: Final = 0.8  # a shift that explains so large a share of what the best one does is as good
AGREE: Final = 0.9  # share of pairs that a second witness must confirm
MOSTLY: Final = 0.9  # of a lane's pairs that must be of one unit
_FAR_NS: Final = 1 << 60

Shifts = tuple[Shift, Shift | None]  # of one clock, and of the other one as the pairs of the first tell it


def by_time(outcome: Outcome, lanes: Sequence[int], *, epoch: bool) -> Shift | None:
    """Join the calls of ``lanes``, all of one clock. Return the shift of the host's clock where it is known. O(n log
    n).

    ``epoch``: the clock shows the time of day, as the trace's does.
    """
    calls, ops = outcome.calls, outcome.ops
    own = np.flatnonzero(np.isin(calls.lane, lanes))
    even = np.where(ops.several, NOWHERE, ops.count)  # other counts differ each time
    kind = codes(ops.group, ops.function, even, ops.peer)
    issued = np.flatnonzero(ops.issued_ns != NOWHERE)
    timed = own[calls.host_ns[own] > 0]
    on_gpu = own[calls.gpu_ns[own] > 0]
    host = timeline(timed, calls.host_ns[timed], issued, ops.issued_ns[issued], kind[issued])
    gpu = timeline(on_gpu, calls.gpu_ns[on_gpu], np.arange(len(kind)), ops.trace.start_ns, kind)
    why = NO_TIME
    for line, other in ((host, gpu), (gpu, host)):
        if not len(line.call) or not len(line.op):
            continue
        found = _Search(calls, ops, line, other, epoch=epoch and line is host).best()
        if not isinstance(found, str):
            shift, of_other = found
            _join_under(outcome, lanes, line, shift)
            return shift if line is host else of_other
        why = found if why == NO_TIME else why
    outcome.leave(own, why)
    return None


class _Search:
    """A search for the shift of one clock, with another as a witness."""

    def __init__(self, calls: CallSide, ops: OpSide, line: EventTimes, other: EventTimes, *, epoch: bool) -> None:
        self.calls, self.ops, self.line, self.other, self.epoch = calls, ops, line, other, epoch

    def meet(self, call: I64, op: I64) -> Bool:
        return may_meet(self.calls, self.ops, call, op)

    def best(self) -> Shifts | str:
        options = self.options()
        if not options:
            return "no common run"
        best = max(options, key=lambda option: len(option[0].left))
        if not self.rivals(best[0], options) and (self.same_clock(best[0]) or self.proven(*best)):
            return best
        counted = [option for option in options if self.counted(option[0])]
        return counted[0] if len(counted) == 1 else AMBIGUOUS

    def options(self) -> list[Shifts]:
        """Return shifts under which half of what both recorded meets, and which the other clock does not contradict."""
        line = self.line
        offsets = candidates(line, self.meet)
        for offset in self.numbered():
            if not (np.abs(offsets - offset) <= WIDE_NS).any():
                offsets = np.append(offsets, offset)
        found: list[Shifts] = []
        for offset in offsets.tolist():
            one = settled(line, offset, self.meet)
            if 2 * len(one.left) >= max(1, overlap(line, one)):
                left, right = _places(line, one, self.other)
                other = from_pairs(self.other, left, right) if len(left) > 1 else None
                if other is None or len(other.left) >= AGREE * len(left):
                    found.append((one, other))
        return found

    def rivals(self, best: Shift, options: list[Shifts]) -> bool:
        """Return whether another shift explains nearly as much."""
        far = [one.offset_ns for one, _ in options if abs(one.offset_ns - best.offset_ns) > 2 * best.reach_ns]
        again = (shifted(self.line, offset, best.reach_ns, self.meet) for offset in far)
        return any(len(other.left) >= RIVAL * len(best.left) for other in again)

    def same_clock(self, shift: Shift) -> bool:
        return self.epoch and abs(shift.offset_ns) <= SAME_CLOCK_NS and len(shift.left) >= FEWEST

    def proven(self, shift: Shift, other: Shift | None) -> bool:
        bits = evidence_bits(self.line, shift) + (evidence_bits(self.other, other) if other else 0.0)
        return bits >= needed_bits(self.line)

    def numbered(self) -> list[int]:
        """Return the offsets under which the calls of a lane meet the ops of a group by their numbers."""
        line, calls, ops = self.line, self.calls, self.ops
        found = []
        for lane in np.unique(calls.lane[line.call]).tolist():
            left = np.flatnonzero((calls.lane[line.call] == lane) & (calls.ordinal[line.call] >= 0))
            for group in np.flatnonzero(calls.may_be[lane]).tolist():
                right = np.flatnonzero((ops.group[line.op] == group) & (ops.seq[line.op] > 0) & ~ops.message[line.op])
                number = ops.seq[line.op[right]] - 1
                _, i, j = np.intersect1d(calls.ordinal[line.call[left]], number, return_indices=True)
                if len(i):
                    found.append(middle(line.op_ns[right[j]] - line.call_ns[left[i]]))
        return found

    def counted(self, shift: Shift) -> bool:
        """Return whether the pairs have the same numbers on both sides, PyTorch's from 1, NCCL's from 0."""
        call, op = self.line.call[shift.left], self.line.op[shift.right]
        known = (self.calls.ordinal[call] >= 0) & (self.ops.seq[op] >= 0) & ~self.ops.message[op]
        same = self.calls.ordinal[call[known]] + 1 == self.ops.seq[op[known]]
        return bool(len(same) and np.count_nonzero(same) >= AGREE * len(same))


def _places(line: EventTimes, one: Shift, other: EventTimes) -> tuple[I64, I64]:
    """Return where the pairs of one timeline stand in the other, those that are in it."""
    left = lookup(other.call + 1, line.call[one.left] + 1)  # ids begin at 1
    right = lookup(other.op + 1, line.op[one.right] + 1)
    both = (left != NOWHERE) & (right != NOWHERE)
    return left[both], right[both]


def _join_under(outcome: Outcome, lanes: Sequence[int], line: EventTimes, shift: Shift) -> None:
    """Join what meets under a shift, once each lane has the one unit that most of its pairs are of; then what numbers
    add to that.
    """
    calls, ops = outcome.calls, outcome.ops
    unit = _units_of(calls, ops, line, shift)
    met = np.unique(calls.lane[line.call[shift.left]]).tolist()
    unsure = [k for k in met if k not in unit and calls.lanes[k].communicator != NOWHERE]
    group, peer = np.full((2, len(calls.lanes)), NOWHERE, np.int64)
    for k, one in unit.items():
        group[k], peer[k] = one
    anywhere = np.array([lane.communicator == NOWHERE for lane in calls.lanes], np.bool_)
    line = of_calls(line, ~np.isin(calls.lane[line.call], unsure))

    def meet(call: I64, op: I64) -> Bool:
        lane = calls.lane[call]
        there = (ops.group[op] == group[lane]) & ((peer[lane] == NOWHERE) | (peer[lane] == ops.peer[op]))
        return np.asarray(may_meet(calls, ops, call, op) & (there | anywhere[lane]))

    left, right = _filled(line, shift, meet, calls.lane[line.call], ops.group[line.op])
    outcome.meet(line.call[left], line.op[right])
    part, of_part = _parts(calls, ops, line, shift, left)
    unit |= {k: of_part[k] for k in of_part.keys() - unit.keys()}
    clash = shifted(line, shift.offset_ns, shift.reach_ns, lambda call, op: ~meet(call, op))
    free = ~np.isin(clash.left, np.union1d(left, part)) & ~np.isin(clash.right, right)
    free &= ops.group[line.op[clash.right]] == group[calls.lane[line.call[clash.left]]]
    outcome.clash(line.call[clash.left[free]], line.op[clash.right[free]])
    outcome.leave(line.call[part], SEVERAL)
    outcome.unit |= unit
    for k in lanes:
        own = calls.of_lane[k]
        outcome.rule[k] = "time"
        if k in unit:
            _fill_holes(outcome, k, unit[k])
        elif k in unsure:
            outcome.leave(own, AMBIGUOUS)
        outcome.leave(own[(outcome.op[own] == NOWHERE) & (calls.host_ns[own] == 0)], NO_TIME)


def _units_of(calls: CallSide, ops: OpSide, line: EventTimes, shift: Shift) -> dict[int, Unit]:
    """Return the unit of each lane that nearly all of its pairs under a shift are of; without lanes that have none, and
    rivals.

    Each lane is looked at alone: where a process has several ranks, their calls stand at nearly the same times. O(n log
    n).
    """
    found: dict[int, Unit] = {}
    met = np.zeros(len(calls.lanes), np.int64)
    lanes = calls.lane[line.call]
    for k in np.unique(lanes[shift.left]).tolist():
        own = of_calls(line, lanes == k)
        alone = shifted(own, shift.offset_ns, shift.reach_ns, lambda call, op: may_meet(calls, ops, call, op))
        op = own.op[alone.right]
        peer = ops.peer[op] if calls.lanes[k].pair else nowhere(len(op))
        every, count = np.unique(np.stack([ops.group[op], peer], axis=1), axis=0, return_counts=True)
        if len(op) and count.max() >= MOSTLY * len(op):
            found[k], met[k] = Unit(*every[count.argmax()].tolist()), count.max()
    for k in rivals(calls.lanes, found, met):
        del found[k]
    return found


def _fill_holes(outcome: Outcome, lane: int, unit: Unit) -> None:
    """Join calls between two that have met where NCCL's numbers say that none is missing. Collectives only. O(n log n).

    A hole is filled where numbers run on without a gap from one met call to the next and the trace has as many ops of
    that function between theirs, each of which the call may be.
    """
    calls, ops = outcome.calls, outcome.ops
    own = calls.of_lane[lane]
    own = own[(calls.seq[own] >= 0) & ~calls.message[own]]
    for function in np.unique(calls.function[own]).tolist():
        call = own[calls.function[own] == function]
        op = np.flatnonzero(of_unit(ops, unit) & (ops.function == function))
        met = np.flatnonzero(outcome.op[call] != NOWHERE)
        place = np.searchsorted(op, outcome.op[call[met]])
        holes = np.flatnonzero(
            (np.diff(met) > 1) & (np.diff(met) == np.diff(place)) & (np.diff(calls.seq[call[met]]) == np.diff(met))
        )
        for k in holes.tolist():
            i, j = call[met[k] + 1 : met[k + 1]], op[place[k] + 1 : place[k + 1]]
            if may_meet(calls, ops, i, j).all():
                outcome.meet(i, j)


def _parts(calls: CallSide, ops: OpSide, line: EventTimes, shift: Shift, met: I64) -> tuple[I64, dict[int, Unit]]:
    """Return calls that have met nothing and stand nearest to a kernel of several calls, and the group of lanes that
    have all of those in one."""
    found, op = near(line, shift)
    lane, group = calls.lane[line.call[found]], ops.group[line.op[op]]
    kept = ~np.isin(found, met) & ops.several[line.op[op]] & calls.may_be[lane, group]
    found, lane, group = found[kept], lane[kept], group[kept]
    first = dict(tuples(lane[::-1], group[::-1]))
    torn = set(lane[group != np.array([first[k] for k in lane.tolist()], np.int64)].tolist())
    return found, {k: Unit(g, NOWHERE) for k, g in first.items() if k not in torn}


def _filled(line: EventTimes, shift: Shift, meet: MayMeet, lane: I64, group: I64) -> tuple[I64, I64]:
    """Return pairs of a shift that are clearly nearer to each other than to others of their lane and group, of which
    one may be missing; and those a little farther apart that are much nearer to each other than to any other call or
    op.

    A pair beside which another call of the lane, or op of the group, is left is none: that one may be the right one.
    """
    wide = shifted(line, shift.offset_ns, TAIL * shift.reach_ns, meet, around=2)
    at = line.call_ns + shift.offset_ns
    rest = np.abs(line.op_ns[wide.right] - at[wide.left])
    apart = np.minimum(_to_neighbour(at)[wide.left], _to_neighbour(line.op_ns)[wide.right])
    among = np.minimum(_among(at, lane)[wide.left], _among(line.op_ns, group)[wide.right])
    sure = (rest <= LEAST_NS) | ((rest <= shift.reach_ns) & (2 * rest <= among)) | (TAIL * rest <= apart)
    left, right = wide.left[sure], wide.right[sure]
    far_ns = TAIL * shift.reach_ns
    free_call, free_op = np.ones(len(at), np.bool_), np.ones(len(line.op), np.bool_)
    free_call[left], free_op[right] = False, False
    alone = ~_near(line.op_ns[right], lane[left], at[free_call], lane[free_call], far_ns)
    alone &= ~_near(at[left], group[right], line.op_ns[free_op], group[free_op], far_ns)
    return left[alone], right[alone]


def _near(times_ns: I64, of: I64, others_ns: I64, others_of: I64, far_ns: int) -> Bool:
    """Return whether one of ``others`` that is of the same stands within ``far_ns`` of each time: it could have been
    the one that meets.
    """
    axis = Axis.over(np.append(of, others_of), times_ns - far_ns, times_ns + far_ns, others_ns)
    place = np.sort(axis.of(others_of, others_ns))
    from_, until = axis.of(of, times_ns - far_ns), axis.of(of, times_ns + far_ns)
    return np.searchsorted(place, from_) < np.searchsorted(place, until, side="right")


def _among(times_ns: I64, of: I64) -> I64:
    """Return the least time between two that are of the same: as near one that is missing may have been."""
    order = np.lexsort((times_ns, of))
    earlier, later = successive(order, of)
    return least(int(of.max(initial=0)) + 1, of[later], times_ns[later] - times_ns[earlier], _FAR_NS)[of]


def _to_neighbour(times_ns: I64) -> I64:
    """Return the time from each to the nearest other one."""
    gap = np.concatenate([[_FAR_NS], np.diff(times_ns), [_FAR_NS]])
    return np.asarray(np.minimum(gap[:-1], gap[1:]))
