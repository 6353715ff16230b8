"""Joins the calls of side files with the communication of a rank.

A Flight Recorder entry is the op of its group with its sequence number. Calls of other dumps, and of traces without numbers, are laid
on the trace by time: all dumps of a process share a clock, whose offset is sought (``shift``). A call is left alone, with a reason,
rather than joined with what it may not be.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np

from graphlink.annotate.nccl.byseq import by_sequence
from graphlink.annotate.nccl.bytime import Laid, by_time
from graphlink.annotate.nccl.records import DumpClock, JoinedGroup, NcclJoin, Ops, Split
from graphlink.annotate.nccl.sides import CallSide, Codes, OpSide, call_side, op_side
from graphlink.model import I64, NOWHERE
from graphlink.read.nccl.records import Clock, Dump, DumpKind

NO_GROUP: Final = "no group of the trace"
OTHER_GROUP: Final = "ambiguous"
DIFFERS: Final = "differs"
MOSTLY: Final = 0.9  # of a lane's pairs that must be in one group


class _Found:
    """What is known of each call so far."""

    def __init__(self, calls: CallSide) -> None:
        self.op = np.full(len(calls.row), NOWHERE, np.int64)
        self.why: list[str] = [""] * len(calls.row)  # of calls without an op; "" = by its place among those that have one
        self.rule: dict[int, str] = {}
        self.group: dict[int, int] = {}
        self.mismatch: dict[int, tuple[int, int]] = {}

    def leave(self, which: I64, why: str) -> None:
        for i in which.tolist():
            self.why[i] = why


def join(ops: Ops, dumps: Sequence[Dump], rank: int) -> NcclJoin:
    """The calls of one rank's side files beside its communication. Nothing is raised: what does not fit is counted by reason.

    O(n log n) in ops and calls.
    """
    codes = Codes()
    side = op_side(ops, rank, codes)
    calls = call_side(dumps, side.groups, rank, codes)
    found = _Found(calls)
    laid = _lay(calls, side, dumps, found)
    matched = np.flatnonzero(found.op != NOWHERE)
    lane_dump = np.array([lane.dump for lane in calls.lanes], np.int64)
    dump = lane_dump[calls.lane[matched]]
    order = np.lexsort((dump, found.op[matched]))
    return NcclJoin(
        ops=ops,
        op=found.op[matched][order].astype(np.int32),
        dump=dump[order].astype(np.int32),
        call=calls.row[matched][order].astype(np.int32),
        groups=_table(calls, side, dumps, found, codes),
        clocks=tuple(_clock(laid.get(k)) for k in range(len(dumps))),
        split=_no_split(),
        warnings=(),
    )


def _lay(calls: CallSide, ops: OpSide, dumps: Sequence[Dump], found: _Found) -> dict[int, Laid]:
    """By sequence where there is one to go by, else by time; returns what is known of the clock of each dump."""
    rest: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for k, lane in enumerate(calls.lanes):
        own = np.flatnonzero(calls.lane == k)
        if not calls.may_be[k].any():
            found.leave(own, NO_GROUP)
            continue
        if lane.kind is DumpKind.FLIGHT_RECORDER:
            pairs = by_sequence(calls, ops, k)
            if pairs is not None:
                found.op[pairs.call] = pairs.op
                found.leave(pairs.differing_call, DIFFERS)
                found.rule[k], found.group[k] = "seq", pairs.group
                if len(pairs.differing_call):
                    found.mismatch[k] = (int(pairs.differing_call[0]), int(pairs.differing_op[0]))
                continue
        rest[_clock_of(dumps[lane.dump], lane.dump)].append(k)
    laid: dict[int, Laid] = {}
    for lanes in rest.values():
        epoch = dumps[calls.lanes[lanes[0]].dump].clock is Clock.EPOCH
        own = np.flatnonzero(np.isin(calls.lane, lanes))
        one = by_time(calls, ops, own, epoch=epoch)
        if one.why:
            found.leave(own, one.why)
            continue
        found.op[one.call] = one.op
        for k in lanes:
            _keep_one_group(calls, ops, found, k)
            laid[calls.lanes[k].dump] = one
    return laid


def _clock_of(dump: Dump, k: int) -> tuple[object, ...]:
    if dump.kind is DumpKind.PLUGIN and dump.pid is not None:
        return (dump.kind, dump.host, dump.pid)
    return (dump.kind, k)


def _keep_one_group(calls: CallSide, ops: OpSide, found: _Found, lane: int) -> None:
    own = np.flatnonzero((calls.lane == lane) & (found.op != NOWHERE))
    found.rule[lane] = "time"
    if not len(own) or calls.lanes[lane].communicator == NOWHERE:
        return
    groups, count = np.unique(ops.group[found.op[own]], return_counts=True)
    best = int(count.argmax())
    if count[best] >= MOSTLY * len(own):
        found.group[lane] = int(groups[best])
        own = own[ops.group[found.op[own]] != groups[best]]
    found.leave(own, OTHER_GROUP)
    found.op[own] = NOWHERE


def _table(calls: CallSide, ops: OpSide, dumps: Sequence[Dump], found: _Found, codes: Codes) -> tuple[JoinedGroup, ...]:
    lines = []
    beside: set[int] = set()
    for k, lane in enumerate(calls.lanes):
        own = np.flatnonzero(calls.lane == k)
        g = found.group.get(k)
        group = None if g is None else ops.groups[g]
        theirs = np.flatnonzero(ops.group == g) if g is not None else np.zeros(0, np.int64)
        if lane.communicator == NOWHERE:
            theirs = np.arange(len(ops.group))
        beside.update({g} - {None} if lane.communicator != NOWHERE else range(len(ops.groups)))  # type: ignore[arg-type]
        met = own[found.op[own] != NOWHERE]
        lines.append(
            JoinedGroup(
                dump=lane.dump,
                communicator=lane.key,
                group=None if group is None else group.name,
                ranks=None if group is None else group.ranks,
                calls=len(own),
                ops=len(theirs),
                matched=len(met),
                calls_left=_left(own, met, [found.why[i] for i in own.tolist()]),
                ops_left=_left(theirs, np.sort(found.op[met]), ["" if ops.known[i] else "no parameters" for i in theirs.tolist()]),
                rule=found.rule.get(k, ""),
                mismatch=None,
            )
        )
    for g, group in enumerate(ops.groups):
        count = int(np.count_nonzero(ops.group == g))
        if dumps and g not in beside:
            lines.append(JoinedGroup(NOWHERE, "", group.name, group.ranks, 0, count, 0, {}, {"no communicator": count}, "", None))
    return tuple(lines)


def _left(own: I64, met: I64, why: list[str]) -> dict[str, int]:
    """Reasons of those of ``own`` that are not among ``met``; without one, where they stand beside those that are."""
    left = ~np.isin(own, met)
    low, high = (own.searchsorted(met[0]), own.searchsorted(met[-1])) if len(met) else (0, 0)
    count: Counter[str] = Counter()
    for at in np.flatnonzero(left).tolist():
        place = "no counterpart" if not len(met) else "before" if at < low else "after" if at > high else "between"
        count[why[at] or place] += 1
    return dict(sorted(count.items()))


def _clock(laid: Laid | None) -> DumpClock:
    if laid is None:
        return DumpClock(None, 0, None, 0, 0)
    host, gpu = laid.host, laid.gpu
    return DumpClock(
        None if host is None else host.offset_ns,
        0 if host is None else host.residual_ns,
        None if gpu is None else gpu.offset_ns,
        0,
        0,
    )


def _no_split() -> Split:
    nothing = np.zeros(0, np.int64)
    return Split(nothing.astype(np.int32), nothing, nothing, nothing, nothing, nothing)
