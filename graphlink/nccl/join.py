"""Joins the calls of side files with the communication of a rank.

A Flight Recorder entry is the op of its group with its sequence number; of gloo, the row that was asked for while it
was made. Calls of other dumps, and of traces without numbers, are joined by time (``bytime``): all dumps of a process
share a clock, whose offset is sought. A call is left alone, with a reason, rather than joined with what it may not be.
Then the clocks of the files are known, and the time of matched ops is divided over what proxies waited for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from graphlink.linking.communication import communication
from graphlink.model import EMPTY, I32, I64, NOWHERE, Bool, CommOps, Communication, Linked, ProcessGroup
from graphlink.nccl.bytime import by_time
from graphlink.nccl.ops import OpSide, Side, op_side
from graphlink.nccl.read.records import Dump, State
from graphlink.nccl.shift import Shift, middle
from graphlink.nccl.sides import (
    SEVERAL,
    CallSide,
    Outcome,
    Reasons,
    Unit,
    call_side,
    gpu_starts,
    may_meet,
    of_several_ranks,
    of_unit,
    units,
)
from graphlink.nccl.summary import TIMES, NcclClock, NcclGroup, NcclTimes, SideFiles, Split
from graphlink.read.columns import Strings
from graphlink.read.kinds import DumpKind
from graphlink.tables import grouped, how_many, in_order, numbered_values, spread, sums

_SHARE_CLOCKS: Final = (DumpKind.PLUGIN, DumpKind.INSPECTOR)  # of one process
_TIME_OF_DAY: Final = (DumpKind.INSPECTOR, DumpKind.FLIGHT_RECORDER)  # what their clocks show
SLACK_NS: Final = 2_000  # a block may seem to begin so long before its kernel: two clocks, each rounded
_AGREE: Final = 0.9  # share of a lane's entries in the time of the ops that must be inside one


_Pairs = tuple[Unit, I64, I64, Bool]  # calls and ops of one unit at the same place, and whether they may be the same


def join(linked: Linked, comm: Communication, dumps: Sequence[Dump], rank: int) -> SideFiles:
    """Join the calls of one rank's side files with its communication. Nothing is raised: what does not fit is counted
    by reason.

    O(n log n) in ops and calls.
    """
    codes = Strings()
    side = op_side(linked, comm, rank, codes)
    calls = call_side(dumps, side, rank, codes)
    outcome = Outcome(calls, side)
    shifts = _join(outcome, dumps)
    call = np.flatnonzero(outcome.op != NOWHERE)
    dump = np.array([lane.dump for lane in calls.lanes], np.int32)[calls.lane[call]]
    order = np.lexsort((dump, outcome.op[call]))
    dump, call = dump[order], call[order]
    op, row = outcome.op[call].astype(np.int32), calls.row[call].astype(np.int32)
    clocks = tuple(dump_clock(own, shifts.get(k), op[dump == k], row[dump == k], side) for k, own in enumerate(dumps))
    split = split_ops(comm.ops, dumps, clocks, op, dump, row)
    return SideFiles(
        tuple(dumps), comm.ops, op, dump, row, _table(outcome, list(codes)), clocks, split, _times(side, split)
    )


def known_groups(
    linked: Linked, dumps: Sequence[Dump], members: Mapping[str, tuple[int, ...]]
) -> tuple[ProcessGroup, ...]:
    """Return groups for ``communication`` whose members a trace lacks. ``members``: key of a communicator -> global
    ranks in ring order.

    A Flight Recorder lists them. A communicator of NCCL is the group that its calls are of; a name that two
    communicators have tells nothing.
    """
    found = {
        listed.name: ProcessGroup(listed.name, listed.desc, size=len(listed.ranks), ranks=listed.ranks)
        for dump in dumps
        if dump.kind is DumpKind.FLIGHT_RECORDER
        for listed in dump.communicators
        if listed.ranks and listed.name
    }
    rank = NOWHERE if linked.trace.rank is None else linked.trace.rank
    joined = join(linked, communication(linked, tuple(found.values())), dumps, rank)
    ranks_of = grouped(
        (line.group, members[line.communicator or ""])
        for line in joined.groups
        if line.group and line.ranks is None and line.matched and (line.communicator or "") in members
    )
    for name, every in ranks_of.items():
        if len({*every}) == 1 and name not in found:
            found[name] = ProcessGroup(name, size=len(every[0]), ranks=every[0])
    return tuple(found.values())


def _join(outcome: Outcome, dumps: Sequence[Dump]) -> dict[int, Shift]:
    """Join by number or span where an entry has them, else by time; return the shift of the clock of each dump as far
    as it is known.
    """
    calls, ops = outcome.calls, outcome.ops
    rest: dict[tuple[object, ...], list[int]] = defaultdict(list)
    may_be = [units(calls, ops, k) for k in range(len(calls.lanes))]
    own_keys = {lane.key for lane, some in zip(calls.lanes, may_be, strict=True) if some}
    crowded = of_several_ranks(calls.lanes)
    for k, lane in enumerate(calls.lanes):
        own = calls.of_lane[k]
        if not may_be[k]:
            outcome.leave(own, "another rank" if lane.key in own_keys else "no group of the trace")
        elif k in crowded:
            outcome.leave(own, "several ranks in a process")
        elif lane.kind is not DumpKind.FLIGHT_RECORDER or not _by_recorder(outcome, k, may_be[k]):
            dump = dumps[lane.dump]
            shared = dump.kind in _SHARE_CLOCKS and dump.pid is not None
            rest[(dump.kind, dump.host, dump.pid) if shared else (dump.kind, lane.dump)].append(k)
    shifts: dict[int, Shift] = {}
    for lanes in rest.values():
        shift = by_time(outcome, lanes, epoch=calls.lanes[lanes[0]].kind in _TIME_OF_DAY)
        if shift is not None:
            shifts |= dict.fromkeys((calls.lanes[k].dump for k in lanes), shift)
    outcome.part_rivals()
    return shifts


def _by_recorder(outcome: Outcome, lane: int, may_be: Sequence[Unit]) -> bool:
    """Join a lane of a Flight Recorder by number, else by span; return whether one of them tells its unit."""
    for rule, find in (("seq", _by_sequence), ("span", _by_span)):
        found = find(outcome.calls, outcome.ops, outcome.calls.of_lane[lane], may_be)
        if found is not None:
            outcome.rule[lane] = rule
            outcome.unit[lane], call, op, same = found
            outcome.meet(call[same], op[same])
            outcome.clash(call[~same], op[~same])
            return True
    return False


def _by_sequence(calls: CallSide, ops: OpSide, own: I64, may_be: Sequence[Unit]) -> _Pairs | None:
    """Return pairs of the unit in which most numbers tell the same call; None where most do not, or two units fit as
    well.

    Messages are numbered apart from collectives. A number that a side has twice pairs nothing. O(n log n).
    """
    own = own[calls.seq[own] >= 0]
    left, left_at = _once(2 * calls.seq[own] + calls.message[own], own)
    found = []
    for unit in may_be:
        theirs = np.flatnonzero(of_unit(ops, unit) & (ops.seq >= 0) & ops.known)
        right, right_at = _once(2 * ops.seq[theirs] + ops.message[theirs], theirs)
        _, i, j = np.intersect1d(left, right, assume_unique=True, return_indices=True)
        call, op = left_at[i], right_at[j]
        found.append((unit, call, op, may_meet(calls, ops, call, op)))
    counts = [int(same.sum()) for *_, same in found]
    most = max(counts, default=0)
    if not most or counts.count(most) > 1:
        return None
    best = found[counts.index(most)]
    return best if 2 * most > len(best[1]) else None


def _once(number: I64, at: I64) -> tuple[I64, I64]:
    """Return the numbers that stand there once, and where."""
    values, first, count = np.unique(number, return_index=True, return_counts=True)
    return values[count == 1], at[first[count == 1]]


def _by_span(calls: CallSide, ops: OpSide, own: I64, may_be: Sequence[Unit]) -> _Pairs | None:
    """Return entries with the ops of the one unit that ran, asking for a row of gloo's, while they were made. O(n log
    n).

    Both show the time of day of one host, and the entry is made in the op, so no offset is sought: a busy host may stop
    between the two.
    """
    own = own[calls.host_ns[own] > 0]
    found = [pairs for unit in may_be if (pairs := _spans(calls, ops, own, unit)) is not None]
    return found[0] if len(found) == 1 else None


def _spans(calls: CallSide, ops: OpSide, own: I64, unit: Unit) -> _Pairs | None:
    theirs = np.flatnonzero(of_unit(ops, unit) & (ops.asked_until_ns != NOWHERE))
    if not len(theirs):
        return None
    theirs = in_order(theirs, ops.issued_ns)
    from_ns, until_ns = ops.issued_ns[theirs], ops.asked_until_ns[theirs]
    own = own[(calls.host_ns[own] >= from_ns[0]) & (calls.host_ns[own] <= until_ns.max())]
    place = np.searchsorted(from_ns, calls.host_ns[own], side="right") - 1
    inside = (calls.host_ns[own] <= until_ns[place]) & may_meet(calls, ops, own, theirs[place])
    call, op = own[inside], theirs[place[inside]]
    if not len(call) or len(call) < _AGREE * len(own) or len(np.unique(op)) < len(op):
        return None
    return unit, call, op, np.ones(len(call), np.bool_)


def _table(outcome: Outcome, words: Sequence[str]) -> list[NcclGroup]:
    """Return a line per lane, and one for each group of the trace that no lane is joined with. ``words``: of the codes
    of both sides.
    """
    lanes, ops = outcome.calls.lanes, outcome.ops
    joined = {unit.group for unit in outcome.unit.values()}
    apart = lanes and not any(_of_all_groups(outcome, k) for k in range(len(lanes)))
    return [_line(outcome, words, k) for k in range(len(lanes))] + [
        NcclGroup(
            file=None,
            communicator=None,
            group=group.name,
            ranks=group.ranks,
            calls=0,
            ops=how_many(ops.group == g),
            matched=0,
            calls_left={},
            ops_left={"no communicator joined": how_many(ops.group == g)},
            rule="",
            mismatch=None,
        )
        for g, group in enumerate(ops.groups if apart else ())
        if g not in joined
    ]


def _of_all_groups(outcome: Outcome, lane: int) -> bool:
    """Tell whether the calls of a lane, of which no communicator is known, are joined with ops of any group."""
    return outcome.calls.lanes[lane].communicator == NOWHERE and lane in outcome.rule


def _line(outcome: Outcome, words: Sequence[str], k: int) -> NcclGroup:
    """Return the line of the lane ``k``."""
    ops, lane, own, unit = outcome.ops, outcome.calls.lanes[k], outcome.calls.of_lane[k], outcome.unit.get(k)
    group = ops.groups[unit.group] if unit else None
    of_lane = np.full(len(ops.group), fill_value=_of_all_groups(outcome, k))
    if unit:
        of_lane |= of_unit(ops, unit)
    theirs, joined = np.flatnonzero(of_lane), own[outcome.op[own] != NOWHERE]
    why = outcome.op_why[theirs]
    if lane.kind is not DumpKind.FLIGHT_RECORDER:
        why = np.where(ops.several[theirs] & ops.known[theirs], SEVERAL, why)
    return NcclGroup(
        file=lane.dump,
        communicator=lane.key or None,
        group=group.name if group else None,
        ranks=group.ranks if group else None,
        calls=len(own),
        ops=len(theirs),
        matched=len(joined),
        calls_left=_left(own, joined, outcome.why[own]),
        ops_left=_left(theirs, np.sort(outcome.op[joined]), why),
        rule=outcome.rule.get(k, ""),
        mismatch=_difference(outcome, words, *outcome.mismatch[k]) if k in outcome.mismatch else None,
    )


def _times(ops: OpSide, split: Split) -> list[NcclTimes]:
    """Sum the parts of the time of ops by the name of their group."""
    names = Strings()
    of_group = names.column([group.name for group in ops.groups])[ops.group[split.op]]
    return [
        NcclTimes(
            group=name,
            ops=how_many(of_group == code),
            **{part: int(getattr(split, part)[of_group == code].sum()) for part in TIMES},
        )
        for name, code in names.items()
        if code in of_group
    ]


def _left(own: I64, met: I64, why: Reasons) -> dict[str, int]:
    """Count the reasons of those of ``own`` that are not among ``met``, both ascending; without one, their places among
    those that are.
    """
    at = np.flatnonzero(~np.isin(own, met))
    if len(met):
        place = np.where(own[at] < met[0], "before", np.where(own[at] > met[-1], "after", "between"))
    else:
        place = np.full(len(at), "no counterpart")
    reasons = np.where(why[at] == "", place, why[at])
    return dict(sorted(Counter(reasons.tolist()).items()))


def _difference(outcome: Outcome, words: Sequence[str], call: int, op: int) -> str:
    def text(side: Side, at: int) -> str:
        said = words[side.function[at]] or "unknown"
        if side.count[at] >= 0:
            said += f" of {int(side.count[at]):,} {words[side.dtype[at]]}".rstrip()
        return said + (f" with {int(side.peer[at])}" if side.peer[at] >= 0 else "")

    calls, ops = outcome.calls, outcome.ops
    return f"call {int(calls.row[call])} is {text(calls, call)}, op {op} at its place is {text(ops, op)}"


def dump_clock(dump: Dump, shift: Shift | None, op: I32, call: I32, ops: OpSide) -> NcclClock:
    """Return the clock of a dump from its shift against the trace, else from its pairs (``call`` with ``op``), and
    check kernel starts.
    """
    offset_ns, residual_ns = (None, 0) if shift is None else (shift.offset_ns, shift.residual_ns)
    timed = (dump.calls.start_ns[call] > 0) & (ops.issued_ns[op] > 0)
    if shift is None and timed.any():
        apart = ops.issued_ns[op[timed]] - dump.calls.start_ns[call[timed]]
        offset_ns = middle(apart)
        residual_ns = int(np.median(np.abs(apart - offset_ns)))
    begun_ns, gpu_offset_ns, inside = gpu_starts(dump)[call], None, np.zeros(0, np.bool_)
    if begun_ns.any():
        gpu_offset_ns = middle((ops.trace.start_ns[op] - begun_ns)[begun_ns > 0])
        of_block = _ops_of(dump, op, call)[dump.kernels.call]
        timed = (of_block != NOWHERE) & (dump.kernels.gpu_start_ns > 0)
        of_block, shown_ns = of_block[timed], dump.kernels.gpu_start_ns[timed] + gpu_offset_ns
        inside = (shown_ns >= ops.trace.start_ns[of_block] - SLACK_NS) & (shown_ns <= ops.trace.end_ns[of_block])
    return NcclClock(
        offset_ns=offset_ns,
        residual_ns=residual_ns,
        gpu_offset_ns=gpu_offset_ns,
        inside=int(inside.sum()),
        checked=len(inside),
    )


def _ops_of(dump: Dump, op: I32, call: I32) -> I64:
    """Return the op of each call of a dump, and one more NOWHERE at the end, for what belongs to no call."""
    return spread(len(dump.calls.rank) + 1, call, op.astype(np.int64))


def split_ops(ops: CommOps, dumps: Sequence[Dump], clocks: Sequence[NcclClock], op: I32, dump: I32, call: I32) -> Split:
    """Divide the time of ops with proxy steps among the pairs (``call`` of ``dump`` is ``op``). Of several dumps the
    first counts.

    Each moment of an op belongs in equal parts to the steps that are in progress then. O(n log n) in steps.
    """
    nothing = EMPTY
    parts = [(nothing, nothing, nothing, nothing)]
    taken = nothing
    for k, (file, clock) in enumerate(zip(dumps, clocks, strict=True)):
        if clock.offset_ns is None:
            continue
        own_pairs, steps = dump == k, file.steps
        of_step = _ops_of(file, op[own_pairs], call[own_pairs])[file.proxies.call[steps.proxy]]
        kept = (of_step != NOWHERE) & ~np.isin(of_step, taken)
        shifted = (column[kept] + clock.offset_ns for column in (steps.start_ns, steps.end_ns))
        parts.append((of_step[kept], steps.state[kept], *shifted))
        taken = np.union1d(taken, of_step[kept])
    own, state, start_ns, end_ns = (np.concatenate(part) for part in zip(*parts, strict=True))
    every, at = numbered_values(own)
    low, high = ops.start_ns[own], ops.end_ns[own]
    spent = shares(at, state, np.clip(start_ns, low, high), np.clip(end_ns, low, high), len(every))
    other_ns = ops.end_ns[every] - ops.start_ns[every] - spent.sum(axis=1)
    columns = np.column_stack([every, spent, other_ns]).T  # those of Split: times in the order of State
    return Split(columns[0].astype(np.int32), *columns[1:])


def shares(own: I64, state: NDArray[np.integer], start_ns: I64, end_ns: I64, count: int) -> I64:
    """Return the time of each state of ``count`` ops, (count, states). ``own``: the op of each step.

    One sweep over the begins and ends of all steps. Between two of them the time is cut at rounded shares, so that the
    parts make the whole.
    """
    steps = len(own)
    ns = np.concatenate([start_ns, end_ns])
    of = np.concatenate([own, own])
    order = np.lexsort((ns, of))
    change = np.zeros((2 * steps, len(State)), np.int64)
    change[np.arange(2 * steps), np.concatenate([state, state])] = np.repeat([1, -1], steps)
    active = np.cumsum(change[order], axis=0)  # all steps of an op have ended before the next op's begin
    length = np.append(np.diff(ns[order]), 0)
    length[np.flatnonzero(np.diff(of[order]) != 0)] = 0
    upto = np.cumsum(active, axis=1)
    total = np.maximum(upto[:, -1:], 1)
    cuts = (2 * length[:, None] * upto + total) // (2 * total)
    parts = np.diff(cuts, axis=1, prepend=0)
    return np.stack([sums(count, of[order], of_state) for of_state in parts.T], axis=1)
