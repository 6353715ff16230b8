"""The two sides of a join in one spelling: groups of the trace and lanes of the dumps, and which call may be which op.

Glossary
  lane   the calls of one member of one communicator in one dump.
  group  a process group of the trace, by name and members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from graphlink.link.commtypes import element_bytes
from graphlink.model import I32, I64, NOWHERE, Bool
from graphlink.nccl.functions import BARRIER, GETS, OF_MESSAGES, RECV, SEND
from graphlink.nccl.read.records import Dump
from graphlink.nccl.records import Ops
from graphlink.read.nccl_kinds import DumpKind

# Kineto's type -> what NCCL is called with, and how many of those an element is
_SENT_AS: Final = {
    "Bool": ("Byte", 1),
    "ComplexHalf": ("Half", 2),
    "ComplexFloat": ("Float", 2),
    "ComplexDouble": ("Double", 2),
}
_BYTES_ALONE: Final = "Float8"  # sent as bytes by some versions


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    ranks: tuple[int, ...] | None
    member: int  # the own rank's place, NOWHERE where unknown


@dataclass(frozen=True, slots=True)
class OpSide:
    """One entry an op. ``function``, ``dtype``: codes shared with ``CallSide``; ``peer``: in the group; ``first``: whether the own rank
    stands before the peer in it."""

    groups: tuple[Group, ...]
    group: I64
    known: Bool  # what it does is known
    function: I64
    count: I64
    other_count: I64
    dtype: I64
    bytes: I64
    peer: I64
    seq: I64
    message: Bool
    several: Bool  # its kernel stands for several calls of NCCL, or may
    first: Bool
    issued_ns: I64  # NOWHERE = not recorded
    asked_until_ns: I64
    start_ns: I64
    end_ns: I64


@dataclass(frozen=True, slots=True)
class Lane:
    dump: int
    communicator: int
    member: int
    kind: DumpKind
    key: str
    pair: bool  # two members that only send and receive: PyTorch makes such for messages that are not batched


@dataclass(frozen=True, slots=True)
class CallSide:
    """One entry a call of any dump. ``gpu_ns``: when the first block of its kernel began, on the GPU's clock. 0 = not recorded."""

    lanes: tuple[Lane, ...]
    of_lane: tuple[I64, ...]  # the calls of each, ascending
    may_be: Bool  # (lanes, groups): by name, size and place
    lane: I64
    row: I64
    function: I64
    count: I64
    dtype: I64
    bytes: I64
    peer: I64
    seq: I64
    ordinal: I64  # among the collectives of its communicator, from 0; NOWHERE where the dump does not tell
    message: Bool
    host_ns: I64
    gpu_ns: I64
    exec_ns: I64


class Codes:
    """Numbers for text, the same on both sides; 0 is ""."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {"": 0}

    def of(self, text: str) -> int:
        return self._of.setdefault(text, len(self._of))

    def text(self, code: int) -> str:
        return list(self._of)[code]

    def column(self, strings: Sequence[str], at: I32) -> I64:
        table = np.array([self.of(text) for text in strings], np.int64)
        return table[at]


def op_side(ops: Ops, rank: int, codes: Codes) -> OpSide:
    """Linear in ops."""
    keys: dict[tuple[str, tuple[int, ...] | None], int] = {}
    names = [ops.strings[i] for i in ops.group_name.tolist()]
    group = np.array([keys.setdefault(key, len(keys)) for key in zip(names, ops.ranks, strict=True)], np.int64)
    groups = tuple(Group(name, ranks, _place(ranks, rank)) for name, ranks in keys)
    function = codes.column(ops.strings, ops.function)
    gets = np.isin(function, [codes.of(name) for name in GETS])
    even = np.isin(function, [codes.of(name) for name in ("allreduce", "broadcast", "reduce", SEND, RECV)])
    count, other = np.where(gets, ops.out_nelems, ops.in_nelems), np.where(gets, ops.in_nelems, ops.out_nelems)
    count = np.where((count < 0) & even, other, count)
    sent_as = [_SENT_AS.get(text, (text, 1)) for text in ops.strings]
    factor = np.array([n for _, n in sent_as], np.int64)[ops.dtype]
    dtype = np.array([codes.of("" if text.startswith(_BYTES_ALONE) else text) for text, _ in sent_as], np.int64)[ops.dtype]
    size = np.array([element_bytes(text) or NOWHERE for text in ops.strings], np.int64)[ops.dtype]
    barrier = function == codes.of(BARRIER)
    count = np.where((count < 0) | barrier, NOWHERE, count * factor)
    places = [
        (groups[g].ranks or ()).index(peer) if peer in (groups[g].ranks or ()) else NOWHERE
        for g, peer in zip(group.tolist(), ops.peer.tolist(), strict=True)
    ]
    peer = np.array(places, np.int64)
    member = np.array([one.member for one in groups], np.int64)[group] if groups else group
    return OpSide(
        groups=groups,
        group=group,
        known=function != 0,
        function=np.where(barrier, codes.of("allreduce"), function),
        count=count,
        other_count=np.where((other < 0) | barrier, NOWHERE, other * factor),
        dtype=np.where(barrier, 0, dtype),
        bytes=np.where((count < 0) | (size < 0), NOWHERE, count * size // factor),
        peer=peer,
        seq=ops.seq,
        message=np.isin(function, [codes.of(SEND), codes.of(RECV)]),
        several=(function == 0) | np.isin(function, [codes.of(name) for name in OF_MESSAGES]),
        first=member < peer,
        issued_ns=ops.issued_ns,
        asked_until_ns=ops.asked_until_ns,
        start_ns=ops.start_ns,
        end_ns=ops.end_ns,
    )


def _place(ranks: tuple[int, ...] | None, rank: int) -> int:
    return ranks.index(rank) if ranks and rank in ranks else NOWHERE


def call_side(dumps: Sequence[Dump], groups: Sequence[Group], rank: int, codes: Codes) -> CallSide:
    """n log n in calls. Lanes in the order of dumps, communicators and members."""
    parts: list[dict[str, NDArray[Any]]] = []
    lanes: list[Lane] = []
    sends = (codes.of(SEND), codes.of(RECV))
    for d, dump in enumerate(dumps):
        calls = dump.calls
        function = codes.column(dump.strings, calls.function)
        message = np.isin(function, sends)
        pairs, lane = np.unique(np.stack([calls.communicator, calls.rank], axis=1), axis=0, return_inverse=True)
        lane = lane.reshape(-1)
        for (communicator, member), own in zip(pairs.tolist(), _parted(lane, len(pairs)), strict=True):
            known = dump.communicators[communicator] if communicator != NOWHERE else None
            alone = known is not None and known.size in (2, None) and member in (0, 1) and dump.kind is not DumpKind.FLIGHT_RECORDER
            pair = alone and bool((message[own] & (calls.peer[own] == 1 - member)).all())
            lanes.append(Lane(d, communicator, member, dump.kind, known.key if known else "", pair))
        barrier = function == codes.of(BARRIER)
        dtype = np.array(
            [codes.of("" if text.startswith(_BYTES_ALONE) else _SENT_AS.get(text, (text, 1))[0]) for text in dump.strings], np.int64
        )[calls.dtype]
        parts.append({
            "lane": lane + len(lanes) - len(pairs),
            "row": np.arange(len(lane)),
            "function": np.where(barrier, codes.of("allreduce"), function),
            "count": np.where(barrier, NOWHERE, calls.count),
            "dtype": np.where(barrier, 0, dtype),
            "bytes": np.where(barrier | (dump.kind is DumpKind.PROXY), NOWHERE, calls.bytes),
            "peer": calls.peer.astype(np.int64),
            "seq": calls.seq,
            "ordinal": _ordinals(lane, function, np.where(message, NOWHERE, calls.seq)),
            "message": message,
            "host_ns": calls.start_ns,
            "gpu_ns": _gpu_starts(dump),
            "exec_ns": calls.exec_ns,
        })  # fmt: skip
    none: dict[str, NDArray[Any]] = {
        name: np.zeros(0, np.bool_ if name == "message" else np.int64) for name in CallSide.__dataclass_fields__
    }
    columns = {
        name: np.concatenate([none[name], *(part[name] for part in parts)]) for name in none if name not in ("lanes", "of_lane", "may_be")
    }
    return CallSide(tuple(lanes), _parted(columns["lane"], len(lanes)), _may_be(dumps, lanes, groups, rank), **columns)


def _parted(lane: I64, count: int) -> tuple[I64, ...]:
    """The rows of each of ``count`` lanes, ascending. One sort."""
    order = np.argsort(lane, kind="stable")
    return tuple(np.split(order, np.searchsorted(lane[order], np.arange(1, count)))) if count else ()


def _gpu_starts(dump: Dump) -> I64:
    """Of each call the first start of its blocks, 0 where none is recorded."""
    kernels = dump.kernels
    never = np.iinfo(np.int64).max
    first = np.full(len(dump.calls.rank), never, np.int64)
    told = (kernels.call != NOWHERE) & (kernels.gpu_start_ns > 0)
    np.minimum.at(first, kernels.call[told], kernels.gpu_start_ns[told])
    return np.where(first == never, 0, first)


def _ordinals(lane: I64, function: I64, seq: I64) -> I64:
    """NCCL counts by communicator and function from 0, so that the counts of all functions at one moment make the number of a call.

    It is not sure where calls are missing around it, and where a lane's counts begin later. n log n in calls.
    """
    found = np.full(len(seq), NOWHERE, np.int64)
    for calls in _parted(lane, int(lane.max(initial=NOWHERE)) + 1):
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


def _may_be(dumps: Sequence[Dump], lanes: Sequence[Lane], groups: Sequence[Group], rank: int) -> Bool:
    table = np.zeros((len(lanes), len(groups)), np.bool_)
    for k, lane in enumerate(lanes):
        if lane.communicator == NOWHERE:
            table[k] = True
            continue
        one = dumps[lane.dump].communicators[lane.communicator]
        recorder = lane.kind is DumpKind.FLIGHT_RECORDER
        named = [group.name in (one.key, one.name) and group.name != "" for group in groups]
        for g, group in enumerate(groups):
            size = one.size or (len(one.ranks) if one.ranks else None)
            own = rank if recorder else group.member  # a Flight Recorder has global ranks
            right = NOWHERE in (lane.member, own) or lane.member == own
            fits = right and (size is None or group.ranks is None or size == len(group.ranks))
            fits = fits and (one.ranks is None or group.ranks is None or one.ranks == group.ranks)
            table[k, g] = fits and (not recorder or named[g] or not any(named))
    return table
