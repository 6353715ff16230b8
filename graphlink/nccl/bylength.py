"""Calls without times, laid on the trace by NCCL's numbers and by how long they ran on the GPU: logs of an inspector that was not verbose.

NCCL numbers the calls of a function in a communicator, so one shift brings numbers to places in the trace. Which one, the lengths tell:
by how few kernels of the trace are as long as each. Where a kernel is missing in the trace the shift changes, so that pairs prove
nothing until enough of them in a row have agreed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphlink.model import I64, NOWHERE, Bool
from graphlink.nccl.sides import CallSide, OpSide
from graphlink.nccl.units import Unit, may_meet, of_unit, units

NEAR_NS: Final = 4_000  # what the library's and the profiler's length of one kernel differ by
NEAR_SHARE: Final = 0.01
MOST_ANCHORS: Final = 64
CANDIDATES: Final = 16
RIVAL: Final = 0.8  # a shift that explains so large a share of what the best one does is as good
AGREE: Final = 0.9  # share of the pairs of a shift that must be as long
NEEDED_BITS: Final = 10.0


class LengthPairs(NamedTuple):
    unit: Unit
    call: I64
    op: I64


def by_length(calls: CallSide, ops: OpSide, lane: int) -> LengthPairs | None:
    """The group of the trace in which most calls of a lane are found; None where none or two are. O(n log n) but for the anchors."""
    own = calls.of_lane[lane]
    own = own[(calls.seq[own] >= 0) & (calls.exec_ns[own] > 0)]
    found = []
    for unit in units(calls, ops, lane):
        parts = [_function(calls, ops, one, unit) for one in _alike(calls, own)]
        call, op = (np.concatenate([np.zeros(0, np.int64), *(part[k] for part in parts)]) for k in range(2))
        found.append(LengthPairs(unit, call, op))
    found.sort(key=lambda one: -len(one.call))
    if not found or not len(found[0].call) or (len(found) > 1 and len(found[1].call) >= RIVAL * len(found[0].call)):
        return None
    return found[0]


def _alike(calls: CallSide, own: I64) -> list[I64]:
    """Calls that are numbered together, by number: of one function, of messages with one peer."""
    key = np.stack([calls.function[own], np.where(calls.message[own], calls.peer[own], NOWHERE)])
    _, code = np.unique(key, axis=1, return_inverse=True)
    order = np.lexsort((calls.seq[own], code.reshape(-1)))
    cuts = np.flatnonzero(np.diff(code.reshape(-1)[order])) + 1
    return [part for part in np.split(own[order], cuts) if len(part)]


def _function(calls: CallSide, ops: OpSide, call: I64, unit: Unit) -> tuple[I64, I64]:
    theirs = of_unit(ops, unit) & (ops.function == calls.function[call[0]])
    if calls.message[call[0]] and unit.peer == NOWHERE:
        theirs &= ops.peer == calls.peer[call[0]]
    op = np.flatnonzero(theirs)
    nothing = np.zeros(0, np.int64)
    if not len(op) or (np.diff(calls.seq[call]) <= 0).any():
        return nothing, nothing
    length = ops.end_ns[op] - ops.start_ns[op]
    bits = _bits(length)
    best, second = _Shift(nothing, nothing, np.zeros(0, np.bool_)), 0
    for shift in _candidates(calls, call, length):
        one = _shifted(calls, ops, call, op, shift)
        if one.agrees.sum() > best.agrees.sum():
            best, second = one, int(best.agrees.sum())
        else:
            second = max(second, int(one.agrees.sum()))
    agreeing = int(best.agrees.sum())
    if agreeing < AGREE * len(best.agrees) or second >= RIVAL * agreeing:
        return nothing, nothing
    told = bits[best.op]
    if told[best.agrees].sum() < NEEDED_BITS + np.log2(len(call) + len(op)):
        return nothing, nothing
    sure = _sure(best.agrees, told, whole=_whole(ops, unit.group))
    return call[best.call[sure]], op[best.op[sure]]


class _Shift(NamedTuple):
    """Positions among the calls and ops of one function, and whether each pair may be one and is as long."""

    call: I64
    op: I64
    agrees: Bool


def _candidates(calls: CallSide, call: I64, length_ns: I64) -> list[int]:
    """Shifts that bring calls beside kernels as long, the commonest first."""
    anchors = np.unique(np.linspace(0, len(call) - 1, min(len(call), MOST_ANCHORS)).astype(np.int64))
    parts = [np.flatnonzero(_as_long(calls.exec_ns[call[k]], length_ns)) - calls.seq[call[k]] for k in anchors.tolist()]
    shifts, votes = np.unique(np.concatenate(parts), return_counts=True)
    found: list[int] = shifts[np.argsort(-votes, kind="stable")[:CANDIDATES]].tolist()
    return found


def _shifted(calls: CallSide, ops: OpSide, call: I64, op: I64, shift: int) -> _Shift:
    at = calls.seq[call] + shift
    inside = np.flatnonzero((at >= 0) & (at < len(op)))
    left, right = call[inside], op[at[inside]]
    agrees = may_meet(calls, ops, left, right) & _as_long(calls.exec_ns[left], ops.end_ns[right] - ops.start_ns[right])
    return _Shift(inside, at[inside], agrees)


def _as_long(exec_ns: I64 | np.int64, length_ns: I64) -> Bool:
    near: Bool = np.abs(exec_ns - length_ns) <= NEAR_NS + NEAR_SHARE * length_ns
    return near


def _bits(length_ns: I64) -> NDArray[np.float64]:
    """Of each kernel how rare its length is."""
    order = np.sort(length_ns)
    near = NEAR_NS + NEAR_SHARE * length_ns
    alike = np.searchsorted(order, length_ns + near, side="right") - np.searchsorted(order, length_ns - near, side="left")
    bits: NDArray[np.float64] = np.log2(len(order) / alike)
    return bits


def _whole(ops: OpSide, group: int) -> bool:
    """Whether PyTorch's numbers say that the trace has all collectives of a group from its first to its last."""
    seq = ops.seq[(ops.group == group) & ~ops.message]
    return len(seq) > 0 and bool(seq.min() >= 0 and seq.max() - seq.min() + 1 == len(np.unique(seq)) == len(seq))


def _sure(agrees: Bool, bits: NDArray[np.float64], *, whole: bool) -> Bool:
    """Pairs that agree and have enough agreement on either side before the next that do not, or the end unless the trace is ``whole``."""
    sure = agrees.copy()
    for way in (slice(None), slice(None, None, -1)):
        flags, told = agrees[way], bits[way]
        since = np.cumsum(np.where(flags, told, 0.0))
        breaks = np.maximum.accumulate(np.where(flags, 0.0, since))
        kept = flags & (since - breaks - np.where(flags, told, 0.0) >= NEEDED_BITS)
        if whole and agrees.all():
            kept = flags
        sure[way] &= kept
    return sure
