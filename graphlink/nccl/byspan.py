"""Entries of a Flight Recorder that were made while an op ran which asked for a row of gloo's.

Both show the time of day of one host, and the entry is made in the op, so no offset is sought: a busy host may stop between the two.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from graphlink.model import I64, NOWHERE
from graphlink.nccl.sides import CallSide, OpSide
from graphlink.nccl.units import Unit, may_meet, of_unit, units

AGREE: Final = 0.9  # share of a lane's entries in the time of the ops that must be inside one


class SpanPairs(NamedTuple):
    unit: Unit
    call: I64
    op: I64


def by_span(calls: CallSide, ops: OpSide, lane: int) -> SpanPairs | None:
    """The group whose ops a lane's entries were made in; None where they were not, or two groups fit. O(n log n)."""
    own = calls.of_lane[lane]
    own = own[calls.host_ns[own] > 0]
    found = [pairs for unit in units(calls, ops, lane) if (pairs := _in_unit(calls, ops, own, unit)) is not None]
    return found[0] if len(found) == 1 else None


def _in_unit(calls: CallSide, ops: OpSide, own: I64, unit: Unit) -> SpanPairs | None:
    theirs = np.flatnonzero(of_unit(ops, unit) & (ops.asked_until_ns != NOWHERE))
    if not len(theirs):
        return None
    theirs = theirs[np.argsort(ops.issued_ns[theirs], kind="stable")]
    from_ns, until_ns = ops.issued_ns[theirs], ops.asked_until_ns[theirs]
    own = own[(calls.host_ns[own] >= from_ns[0]) & (calls.host_ns[own] <= until_ns.max())]
    place = np.searchsorted(from_ns, calls.host_ns[own], side="right") - 1
    inside = (calls.host_ns[own] <= until_ns[place]) & may_meet(calls, ops, own, theirs[place])
    call, op = own[inside], theirs[place[inside]]
    if not len(call) or len(call) < AGREE * len(own) or len(np.unique(op)) < len(op):
        return None
    return SpanPairs(unit, call, op)
