"""Joins the calls of side files with the communication of a rank.

A Flight Recorder entry is the op of its group with its sequence number; of gloo, the row that was asked for while it was made. Calls of
other dumps, and of traces without numbers, are laid on the trace by time: all dumps of a process share a clock, whose offset is sought
(``shift``). A call is left alone, with a reason, rather than joined with what it may not be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np

from graphlink.model import NOWHERE
from graphlink.nccl.bylength import by_length
from graphlink.nccl.byseq import by_sequence
from graphlink.nccl.byspan import by_span
from graphlink.nccl.bytime import AMBIGUOUS, NO_TIME, Laid, by_time
from graphlink.nccl.clocks import dump_clock
from graphlink.nccl.holes import fill_holes
from graphlink.nccl.lanes import of_several_ranks
from graphlink.nccl.outcome import CROWDED, DIFFERS, NO_GROUP, OTHER_RANK, SEVERAL, Outcome, table
from graphlink.nccl.read.records import Clock, Dump
from graphlink.nccl.records import NcclJoin, Ops
from graphlink.nccl.sides import CallSide, Codes, OpSide, call_side, op_side
from graphlink.nccl.split import split_ops
from graphlink.nccl.units import units
from graphlink.read.nccl_kinds import DumpKind

_SHARE_CLOCKS: Final = (DumpKind.PLUGIN, DumpKind.INSPECTOR)  # of one process


def join(ops: Ops, dumps: Sequence[Dump], rank: int) -> NcclJoin:
    """The calls of one rank's side files beside its communication. Nothing is raised: what does not fit is counted by reason.

    O(n log n) in ops and calls.
    """
    codes = Codes()
    side = op_side(ops, rank, codes)
    calls = call_side(dumps, side.groups, rank, codes)
    outcome = Outcome.of(calls, side)
    laid = _lay(calls, side, dumps, outcome)
    matched = np.flatnonzero(outcome.op != NOWHERE)
    dump = np.array([lane.dump for lane in calls.lanes], np.int64)[calls.lane[matched]]
    order = np.lexsort((dump, outcome.op[matched]))
    op, dump, call = outcome.op[matched][order], dump[order], calls.row[matched][order]
    clocks = tuple(dump_clock(one, laid.get(k), op[dump == k], call[dump == k], ops) for k, one in enumerate(dumps))
    return NcclJoin(
        ops=ops,
        op=op.astype(np.int32),
        dump=dump.astype(np.int32),
        call=call.astype(np.int32),
        groups=table(calls, side, outcome, codes),
        clocks=clocks,
        split=split_ops(ops, dumps, clocks, op, dump, call),
        warnings=(),
    )


def _lay(calls: CallSide, ops: OpSide, dumps: Sequence[Dump], outcome: Outcome) -> dict[int, Laid]:
    """By sequence where there is one to go by, else by time; returns what is known of the clock of each dump."""
    rest: dict[tuple[object, ...], list[int]] = defaultdict(list)
    own_keys = {lane.key for k, lane in enumerate(calls.lanes) if units(calls, ops, k)}
    crowded = of_several_ranks(calls.lanes)
    for k, lane in enumerate(calls.lanes):
        own = calls.of_lane[k]
        if not units(calls, ops, k):
            outcome.leave(own, OTHER_RANK if lane.key in own_keys else NO_GROUP)
            continue
        if k in crowded:
            outcome.leave(own, CROWDED)
            continue
        if lane.kind is DumpKind.FLIGHT_RECORDER:
            pairs = by_sequence(calls, ops, k)
            if pairs is not None:
                outcome.meet(pairs.call, pairs.op)
                outcome.clash(pairs.differing_call, pairs.differing_op, DIFFERS)
                outcome.rule[k], outcome.unit[k] = "seq", pairs.unit
                continue
            asked = by_span(calls, ops, k)
            if asked is not None:
                outcome.meet(asked.call, asked.op)
                outcome.rule[k], outcome.unit[k] = "span", asked.unit
                continue
        if lane.kind is DumpKind.INSPECTOR and not calls.host_ns[own].any():
            told = by_length(calls, ops, k)
            if told is None:
                outcome.leave(own, AMBIGUOUS)
            else:
                outcome.meet(told.call, told.op)
                outcome.rule[k], outcome.unit[k] = "run", told.unit
                outcome.leave(own[outcome.op[own] == NOWHERE], AMBIGUOUS)
            continue
        rest[_clock_of(dumps[lane.dump], lane.dump)].append(k)
    laid: dict[int, Laid] = {}
    for lanes in rest.values():
        own = np.flatnonzero(np.isin(calls.lane, lanes))
        one = by_time(calls, ops, own, epoch=dumps[calls.lanes[lanes[0]].dump].clock is Clock.EPOCH)
        if one.why:
            outcome.leave(own, one.why)
            continue
        _take(calls, ops, one, lanes, outcome)
        laid |= dict.fromkeys((calls.lanes[k].dump for k in lanes), one)
    outcome.part_rivals()
    return laid


def _clock_of(dump: Dump, k: int) -> tuple[object, ...]:
    if dump.kind in _SHARE_CLOCKS and dump.pid is not None:
        return (dump.kind, dump.host, dump.pid)
    return (dump.kind, k)


def _take(calls: CallSide, ops: OpSide, laid: Laid, lanes: Sequence[int], outcome: Outcome) -> None:
    """The pairs of lanes laid by time, if each lane has one group; then what the numbers tell of calls without times."""
    outcome.meet(laid.call, laid.op)
    outcome.clash(laid.clash_call, laid.clash_op, DIFFERS)
    outcome.leave(laid.part, SEVERAL)
    for k in lanes:
        own = calls.of_lane[k]
        outcome.rule[k] = "time"
        if k in laid.unit:
            outcome.unit[k] = laid.unit[k]
            outcome.meet(*fill_holes(calls, ops, outcome.op, k, laid.unit[k]))
        elif k in laid.unsure:
            outcome.leave(own, AMBIGUOUS)
        outcome.leave(own[(outcome.op[own] == NOWHERE) & (calls.host_ns[own] == 0)], NO_TIME)
