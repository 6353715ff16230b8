"""Calls and ops that carry the same sequence number of the same group: Flight Recorder files, and traces since PyTorch 2.4."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphlink.model import I64
from graphlink.nccl.sides import CallSide, OpSide
from graphlink.nccl.units import Unit, may_meet, of_unit, units


class SeqPairs(NamedTuple):
    """``call``, ``op`` meet; ``differs``: (call, op) of one number that cannot be the same."""

    unit: Unit
    call: I64
    op: I64
    differing_call: I64
    differing_op: I64


def by_sequence(calls: CallSide, ops: OpSide, lane: int) -> SeqPairs | None:
    """The group of the trace in which most numbers of a lane tell the same call; None where most do not, or two groups fit as well.

    Messages are numbered apart from collectives. A number that a side has twice pairs nothing. O(n log n).
    """
    own = calls.of_lane[lane]
    own = own[calls.seq[own] >= 0]
    found = [_in_unit(calls, ops, own, unit) for unit in units(calls, ops, lane)]
    found.sort(key=lambda one: -len(one.call))
    if not found or not len(found[0].call) or len(found[0].differing_call) >= len(found[0].call):
        return None
    if len(found) > 1 and len(found[1].call) == len(found[0].call):
        return None
    return found[0]


def _in_unit(calls: CallSide, ops: OpSide, own: I64, unit: Unit) -> SeqPairs:
    theirs = np.flatnonzero(of_unit(ops, unit) & (ops.seq >= 0) & ops.known)
    left, left_at = _once(2 * calls.seq[own] + calls.message[own], own)
    right, right_at = _once(2 * ops.seq[theirs] + ops.message[theirs], theirs)
    _, i, j = np.intersect1d(left, right, assume_unique=True, return_indices=True)
    call, op = left_at[i], right_at[j]
    same = may_meet(calls, ops, call, op)
    return SeqPairs(unit, call[same], op[same], call[~same], op[~same])


def _once(number: I64, at: I64) -> tuple[I64, I64]:
    """Numbers that stand there once, and where."""
    values, first, count = np.unique(number, return_index=True, return_counts=True)
    return values[count == 1], at[first[count == 1]]
