"""Calls without times between two that have met: NCCL's own numbers say that none is missing, so they are the ops in between."""

from __future__ import annotations

import numpy as np

from graphlink.model import I64, NOWHERE
from graphlink.nccl.sides import CallSide, OpSide
from graphlink.nccl.units import Unit, may_meet, of_unit


def fill_holes(calls: CallSide, ops: OpSide, op_of: I64, lane: int, unit: Unit) -> tuple[I64, I64]:
    """Further pairs of a lane and its unit. ``op_of``: the op of each call so far. Of collectives only: messages have no numbers.

    A hole is filled where numbers run on without a gap from one met call to the next and the trace has as many ops of that function
    between theirs, each of which the call may be. O(n log n).
    """
    found: list[tuple[int, int]] = []
    own = calls.of_lane[lane]
    own = own[(calls.seq[own] >= 0) & ~calls.message[own]]
    for function in np.unique(calls.function[own]).tolist():
        call = own[calls.function[own] == function]
        op = np.flatnonzero(of_unit(ops, unit) & (ops.function == function))
        met = np.flatnonzero(op_of[call] != NOWHERE)
        place = np.searchsorted(op, op_of[call[met]])
        holes = np.flatnonzero((np.diff(met) > 1) & (np.diff(met) == np.diff(place)) & (np.diff(calls.seq[call[met]]) == np.diff(met)))
        for k in holes.tolist():
            i, j = call[met[k] + 1 : met[k + 1]], op[place[k] + 1 : place[k + 1]]
            if may_meet(calls, ops, i, j).all():
                found += zip(i.tolist(), j.tolist(), strict=True)
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]
