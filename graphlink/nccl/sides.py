"""The two sides of a join in one spelling: groups of the trace and lanes of the dumps, and which call may be which op.

Glossary
  lane   the calls of one member of one communicator in one dump.
  group  a process group of the trace, by name and members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphlink.model import I32, I64, NOWHERE, Bool
from graphlink.nccl.ops import BARRIER, RECV, SEND, OpSide, Side, sent_as
from graphlink.nccl.read.records import Dump
from graphlink.read.columns import Parts, Strings
from graphlink.read.kinds import DumpKind
from graphlink.tables import MOST, grouped, least, nowhere, numbered_rows, parted, tuples

_CLEARLY: Final = 3  # times the pairs of another communicator that claims the same

# why a call or op is left, where several places say so
NO_TIME: Final = "no time"
AMBIGUOUS: Final = "ambiguous"
SEVERAL: Final = "several calls in one kernel"

Reasons = NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class Lane:
    dump: int
    communicator: int
    member: int
    kind: DumpKind
    key: str
    pair: bool  # two members that only send and receive: PyTorch makes such for messages that are not batched


@dataclass(frozen=True, slots=True)
class CallSide(Side):
    """One entry per call of any dump. ``gpu_ns``: when the first block of its kernel began, on the GPU's clock. 0 = not
    recorded.
    """

    lanes: tuple[Lane, ...]
    of_lane: Sequence[I64]  # the calls of each, ascending
    may_be: Bool  # (lanes, groups): by name, size and place
    lane: I64
    row: I64
    ordinal: I64  # among the collectives of its communicator, from 0; NOWHERE where the dump does not tell
    host_ns: I64
    gpu_ns: I64


class Unit(NamedTuple):
    """A group that a lane is joined with, or for the lane of a pair its messages with one peer (a place in the
    group).
    """

    group: int
    peer: int  # NOWHERE = all ops of the group


class Outcome:
    """Pairs and reasons found so far. ``op``: of each call, or NOWHERE; ``why``: of calls and ops that are left, "" =
    by their place among those that met. ``rule``, ``unit``, ``mismatch`` (call, op): of lanes."""

    def __init__(self, calls: CallSide, ops: OpSide) -> None:
        self.calls, self.ops = calls, ops
        self.op = nowhere(len(calls.row))
        self.why: Reasons = np.full(len(calls.row), "", object)
        self.op_why: Reasons = np.where(ops.known, "", "no parameters").astype(object)
        self.rule: dict[int, str] = {}
        self.unit: dict[int, Unit] = {}
        self.mismatch: dict[int, tuple[int, int]] = {}

    def meet(self, call: I64, op: I64) -> None:
        self.op[call] = op
        self.why[call] = ""

    def leave(self, call: I64, why: str) -> None:
        self.why[call] = why

    def clash(self, call: I64, op: I64) -> None:
        """Leave calls whose ops at their place differ from them; the table shows the first of each lane."""
        self.leave(call, "differs")
        for k, i, j in tuples(self.calls.lane[call], call, op):
            self.mismatch[k] = min(self.mismatch.get(k, (i, j)), (i, j))

    def part_rivals(self) -> None:
        """Take back the pairs of lanes that claim what another has."""
        met = np.bincount(self.calls.lane[self.op != NOWHERE], minlength=len(self.calls.lanes))
        for k in rivals(self.calls.lanes, self.unit, met):
            self.op[self.calls.of_lane[k]] = NOWHERE
            self.leave(self.calls.of_lane[k], AMBIGUOUS)
            del self.unit[k]


def call_side(dumps: Sequence[Dump], ops: OpSide, rank: int, codes: Strings) -> CallSide:
    """Return the calls of all dumps, lanes in the order of dumps, communicators and members. O(n log n) in calls."""
    parts = Parts()
    lanes: list[Lane] = []
    for d, dump in enumerate(dumps):
        calls = dump.calls
        function = codes.column(dump.strings)[calls.function]
        message = np.isin(function, codes.column((SEND, RECV)))
        pairs, lane = numbered_rows(calls.communicator, calls.rank)
        for (communicator, member), own in zip(pairs.tolist(), parted(lane, len(pairs)), strict=True):
            known = dump.communicators[communicator] if communicator != NOWHERE else None
            alone = (
                known is not None
                and known.size in (2, None)
                and member in (0, 1)
                and dump.kind is not DumpKind.FLIGHT_RECORDER
            )
            pair = alone and bool((message[own] & (calls.peer[own] == 1 - member)).all())
            lanes.append(Lane(d, communicator, member, dump.kind, known.key if known else "", pair))
        barrier = function == codes[BARRIER]
        parts.add(
            lane=lane + len(lanes) - len(pairs),
            row=np.arange(len(lane)),
            function=np.where(barrier, codes["allreduce"], function),
            count=np.where(barrier, NOWHERE, calls.count),
            dtype=np.where(barrier, 0, sent_as(dump.strings, codes)[calls.dtype]),
            bytes=np.where(barrier | (dump.kind is DumpKind.PROXY), NOWHERE, calls.bytes),
            peer=calls.peer.astype(np.int64),
            seq=calls.seq,
            ordinal=_ordinals(lane, function, np.where(message, NOWHERE, calls.seq)),
            message=message,
            host_ns=calls.start_ns,
            gpu_ns=gpu_starts(dump),
        )
    columns = parts.columns()
    return CallSide(
        lanes=tuple(lanes),
        of_lane=parted(columns["lane"], len(lanes)),
        may_be=_may_be(dumps, lanes, ops, rank),
        **columns,
    )


def gpu_starts(dump: Dump) -> I64:
    """Return the first start of the blocks of each call, 0 where none is recorded."""
    start_ns = np.where(dump.kernels.gpu_start_ns > 0, dump.kernels.gpu_start_ns, MOST)
    # at the end: of blocks of no call that is known
    first = least(len(dump.calls.rank) + 1, dump.kernels.call, start_ns)
    return np.where(first == MOST, 0, first)[:-1]


def _ordinals(lane: I64, function: I32, seq: I64) -> I64:
    """Return the place of each call among the collectives of its lane, ``NOWHERE`` where it is not sure. O(n log n) in
    calls.

    NCCL counts by communicator and function from 0, so that the counts of all functions at one moment make the number
    of a call. It is not sure where calls are missing around it, and where a lane's counts begin later.
    """
    found = nowhere(len(seq))
    for calls in parted(lane, int(lane.max(initial=NOWHERE)) + 1):
        own = calls[seq[calls] >= 0]
        total, sure = np.zeros(len(own), np.int64), np.ones(len(own), np.bool_)
        for what in np.unique(function[own]).tolist():
            at = np.flatnonzero(function[own] == what)
            numbers = seq[own[at]]
            sure &= numbers[0] == 0 and bool((np.diff(numbers) > 0).all())
            place = np.searchsorted(at, np.arange(len(own)))
            low, high = np.append(NOWHERE, numbers)[place], np.append(numbers - 1, numbers[-1])[place]
            total += low + 1
            sure &= low == high
        found[own[sure]] = total[sure]
    return found


def _may_be(dumps: Sequence[Dump], lanes: Sequence[Lane], ops: OpSide, rank: int) -> Bool:
    table = np.zeros((len(lanes), len(ops.groups)), np.bool_)
    for k, lane in enumerate(lanes):
        if lane.communicator == NOWHERE:
            table[k] = True
            continue
        one = dumps[lane.dump].communicators[lane.communicator]
        recorder = lane.kind is DumpKind.FLIGHT_RECORDER
        size = one.size or (len(one.ranks) if one.ranks else None)
        named = [group.name in (one.key, one.name) and group.name != "" for group in ops.groups]
        for g, group in enumerate(ops.groups):
            own = rank if recorder else int(ops.member[g])  # a Flight Recorder has global ranks
            table[k, g] = (
                (NOWHERE in (lane.member, own) or lane.member == own)
                and (size is None or group.ranks is None or size == len(group.ranks))
                and (one.ranks is None or group.ranks is None or one.ranks == group.ranks)
                and (not recorder or named[g] or not any(named))
            )
    return table


def units(calls: CallSide, ops: OpSide, lane: int) -> list[Unit]:
    """Return all that a lane may be."""
    one = calls.lanes[lane]
    groups = [
        Unit(g, NOWHERE)
        for g in np.flatnonzero(calls.may_be[lane]).tolist()
        if not one.pair or ops.groups[g].ranks is None
    ]
    way = one.pair & ops.message & (ops.peer >= 0) & (ops.first == (one.member == 0))
    return groups + [
        Unit(*pair) for pair in np.unique(np.stack([ops.group[way], ops.peer[way]], axis=1), axis=0).tolist()
    ]


def of_unit(ops: OpSide, unit: Unit) -> Bool:
    """Return which ops are of a unit."""
    own: Bool = ops.group == unit.group
    if unit.peer != NOWHERE:
        own &= ops.message & (ops.peer == unit.peer)
    return own


def may_meet(calls: CallSide, ops: OpSide, call: I64, op: I64) -> Bool:
    """Return whether each call may be the op at its place: functions, elements, types and peers that both sides record
    are equal.
    """
    lane, group = calls.lane[call], ops.group[op]
    pair = np.array([one.pair for one in calls.lanes], np.bool_)[lane]
    member = np.array([one.member for one in calls.lanes], np.int64)[lane]
    recorder = np.array([one.kind is DumpKind.FLIGHT_RECORDER for one in calls.lanes], np.bool_)[
        lane
    ]  # counts of inputs or outputs
    of_pair = pair & ops.message[op] & (ops.peer[op] >= 0) & (ops.first[op] == (member == 0))
    of_group = calls.may_be[lane, group] & _agree(calls.peer[call], ops.peer[op])
    equal = ops.known[op] & (calls.function[call] == ops.function[op]) & (of_group | of_pair)
    count = calls.count[call]
    elements = _agree(count, ops.count[op]) | (recorder & (count == ops.other_count[op]))
    sizes = (count >= 0) | _agree(calls.bytes[call], ops.bytes[op])
    types = (calls.dtype[call] == ops.dtype[op]) | (calls.dtype[call] == 0) | (ops.dtype[op] == 0)
    return np.asarray(equal & elements & sizes & types)


def _agree(one: I64, other: I64) -> Bool:
    return np.asarray((one == other) | (one < 0) | (other < 0))


def of_several_ranks(lanes: Sequence[Lane]) -> frozenset[int]:
    """Return lanes of files in which a communicator has calls of several members: of one process that has several
    ranks.

    Its ranks call at nearly the same times, each in groups of its own at the same places, and nothing tells whose a
    communicator is. A Flight Recorder has global ranks.
    """
    members = grouped(
        ((lane.kind, lane.key), lane.member) for lane in lanes if lane.kind is not DumpKind.FLIGHT_RECORDER
    )
    kinds = {kind for (kind, _), of_key in members.items() if len(set(of_key)) > 1}
    return frozenset(k for k, lane in enumerate(lanes) if lane.kind in kinds)


def rivals(lanes: Sequence[Lane], unit: Mapping[int, Unit], met: I64) -> list[int]:
    """Return lanes that claim a unit which another communicator of their kind has clearly more pairs in; all of them
    where none has.
    """
    claims = grouped(((lanes[k].kind, claimed), k) for k, claimed in unit.items() if lanes[k].communicator != NOWHERE)
    out = []
    for claimants in claims.values():
        by_key = grouped((lanes[k].key, k) for k in claimants)
        counts = {key: int(met[of_key].sum()) for key, of_key in by_key.items()}
        most = max(counts, key=lambda key: counts[key])
        clear = all(_CLEARLY * count <= counts[most] for key, count in counts.items() if key != most)
        out += [k for key, of_key in by_key.items() if key != most or not clear for k in of_key]
    return out
