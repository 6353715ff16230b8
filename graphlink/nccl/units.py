"""What a lane may be in the trace, and which call may be which op."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphlink.model import I64, NOWHERE, Bool
from graphlink.nccl.sides import CallSide, OpSide
from graphlink.read.nccl_kinds import DumpKind


class Unit(NamedTuple):
    """What a lane is laid beside: a group, or of a pair's lane its messages with one peer (a place in the group)."""

    group: int
    peer: int  # NOWHERE = the whole group


def units(calls: CallSide, ops: OpSide, lane: int) -> list[Unit]:
    """All that a lane may be."""
    one = calls.lanes[lane]
    whole = [Unit(g, NOWHERE) for g in np.flatnonzero(calls.may_be[lane]).tolist() if not one.pair or ops.groups[g].ranks is None]
    if not one.pair:
        return whole
    way = ops.message & (ops.peer >= 0) & (ops.first == (one.member == 0))
    return whole + [Unit(*pair) for pair in np.unique(np.stack([ops.group[way], ops.peer[way]], axis=1), axis=0).tolist()]


def of_unit(ops: OpSide, unit: Unit) -> Bool:
    """Its ops."""
    own: Bool = ops.group == unit.group
    if unit.peer != NOWHERE:
        own &= ops.message & (ops.peer == unit.peer)
    return own


def may_meet(calls: CallSide, ops: OpSide, call: I64, op: I64) -> Bool:
    """Whether each call may be the op beside it: functions, elements, types and peers that both sides tell are equal."""
    lane, group = calls.lane[call], ops.group[op]
    of_group = calls.may_be[lane, group]
    pair = np.array([one.pair for one in calls.lanes], np.bool_)[lane]
    member = np.array([one.member for one in calls.lanes], np.int64)[lane]
    of_pair = pair & ops.message[op] & (ops.peer[op] >= 0) & (ops.first[op] == (member == 0))
    equal = ops.known[op] & (calls.function[call] == ops.function[op]) & (of_group & _agree(calls.peer[call], ops.peer[op]) | of_pair)
    count = calls.count[call]
    elements = _agree(count, ops.count[op]) | (_recorder(calls)[lane] & (count == ops.other_count[op]))
    sizes = (count >= 0) | _agree(calls.bytes[call], ops.bytes[op])
    types = (calls.dtype[call] == ops.dtype[op]) | (calls.dtype[call] == 0) | (ops.dtype[op] == 0)
    found: Bool = equal & elements & sizes & types
    return found


def _recorder(calls: CallSide) -> Bool:
    """Lanes whose counts are of inputs or outputs as PyTorch has them."""
    return np.array([lane.kind is DumpKind.FLIGHT_RECORDER for lane in calls.lanes], np.bool_)


def _agree(one: I64, other: I64) -> Bool:
    same: Bool = (one == other) | (one < 0) | (other < 0)
    return same
