"""The communication of one rank, typed or not, in the spelling of NCCL, that calls of side files are joined with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.linking.commtypes import as_one, element_bytes
from graphlink.linking.communication import CommRow, comm_rows
from graphlink.linking.nest import askers
from graphlink.model import I32, I64, NOWHERE, Bool, Comm, CommOps, Communication, Linked, ProcessGroup
from graphlink.nccl.read import names
from graphlink.nccl.read.names import batched
from graphlink.read.columns import Strings
from graphlink.tables import numbered_texts, spread, tuples, values_at

SEND: Final = "send"
RECV: Final = "recv"
BARRIER: Final = "barrier"
_KERNEL: Final = re.compile(
    r"[nr]ccl(?:(?:Dev)?Kernel_)?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce)(?:_|Ring|Tree)"
)
_UNKNOWN: Final = Comm("")
# Kineto's type -> what NCCL is called with, and how many of those an element is
_SENT_AS: Final = {
    "Bool": ("Byte", 1),
    "ComplexHalf": ("Half", 2),
    "ComplexFloat": ("Float", 2),
    "ComplexDouble": ("Double", 2),
}
_BYTES_ALONE: Final = "Float8"  # sent as bytes by some versions
_GETS: Final = (
    "reducescatter",
    "scatter",
    RECV,
)  # NCCL is called with the elements that a rank gets, else with those that it gives
_EVEN: Final = ("allreduce", "broadcast", "reduce", SEND, RECV)  # as many elements in as out
_OF_MESSAGES: Final = ("alltoall", "gather", "scatter")  # NCCL makes them of sends and receives


@dataclass(frozen=True, slots=True)
class Side:
    """Columns in which ops and calls are compared. ``function``, ``dtype``: codes that both share; ``peer``: in the
    group.
    """

    function: I32
    count: I64
    dtype: I32
    bytes: I64
    peer: I64
    message: Bool
    seq: I64  # as recorded, NOWHERE where it was not


@dataclass(frozen=True, slots=True)
class OpSide(Side):
    """The ops that calls are compared with, one entry per op. ``first``: whether the own rank stands before the
    peer in the group.
    """

    trace: CommOps
    groups: tuple[ProcessGroup, ...]
    member: I64  # the own rank's place in each group, NOWHERE where unknown
    group: I64
    known: Bool  # what it does is known
    other_count: I64
    several: Bool  # its kernel stands for several calls of NCCL, or may
    first: Bool
    issued_ns: (
        I64  # when the host asked for it: start of the launching call, of a host row that of the op that asked for it
    )
    asked_until_ns: I64  # end of the op that asked for a host row which another thread ran; NOWHERE else


def function_of(name: str) -> str:
    """Return the function of a recorded name (``_allgather_base``, ``nccl:all_reduce``, ``gloo:send``); "" where it
    says none.
    """
    function = names.function_of(name)
    return function if function in names.FUNCTIONS else ""


def function_of_kernel(name: str) -> str:
    """Return the function of a kernel (``ncclDevKernel_AllReduce_Sum_f32_RING_LL``); "" for sends, receives and all
    made of them.
    """
    found = _KERNEL.match(name)
    return found[1].lower() if found else ""


def op_side(linked: Linked, comm: Communication, rank: int, codes: Strings) -> OpSide:
    """Return the communication of a rank in the spelling of NCCL; ``comm`` is ``communication(linked)``. O(n log n) in
    rows.

    A kernel of several calls has the function and counts of one call that does the same, else none; so have further
    kernels of a call, which an earlier one stands for.
    """
    ops, by_row = comm.ops, [{one.row: one for one in rows} for rows in comm_rows(linked)]
    recorded = [by_row[on_host][row] for on_host, row in tuples(ops.on_host, ops.row)]
    calls, functions = zip(*map(_one_call, recorded), strict=True) if recorded else ((), ())
    of_group, keys = numbered_texts(_group(ops, k, row) for k, row in enumerate(recorded))
    group = of_group.astype(np.int64)
    members = [ranks or () for ranks, _ in keys]
    member = np.array([_place(ranks, rank) for ranks in members], np.int64)
    peer = np.array([_place(members[g], peer) for g, peer in tuples(group, ops.peer)], np.int64)
    function = codes.column([*functions])
    given, got = _numbers(call.in_nelems for call in calls), _numbers(call.out_nelems for call in calls)
    gets = np.isin(function, codes.column(_GETS))
    count, other = np.where(gets, got, given), np.where(gets, given, got)
    count = np.where((count < 0) & np.isin(function, codes.column(_EVEN)), other, count)
    types = Strings()
    type_ = types.column([call.dtype for call in calls])
    factor = np.array([_SENT_AS.get(text, (text, 1))[1] for text in types], np.int64)[type_]
    size = np.array([element_bytes(text) or NOWHERE for text in types], np.int64)[type_]
    barrier = function == codes[BARRIER]
    count = np.where((count < 0) | barrier, NOWHERE, count * factor)
    issued_ns, asked_until_ns = _asked(linked, ops)
    return OpSide(
        trace=ops,
        groups=tuple(ProcessGroup(name, ranks=ranks) for ranks, name in keys),
        member=member,
        group=group,
        known=function != 0,
        function=np.where(barrier, codes["allreduce"], function),
        count=count,
        other_count=np.where((other < 0) | barrier, NOWHERE, other * factor),
        dtype=np.where(barrier, 0, sent_as(list(types), codes)[type_]),
        bytes=np.where((count < 0) | (size < 0), NOWHERE, count * size // factor),
        peer=peer,
        message=np.isin(function, codes.column((SEND, RECV))),
        several=(function == 0) | np.isin(function, codes.column(_OF_MESSAGES)),
        first=member[group] < peer,
        seq=_numbers(call.seq for call in calls),
        issued_ns=issued_ns,
        asked_until_ns=asked_until_ns,
    )


def _one_call(row: CommRow) -> tuple[Comm, str]:
    """Return the call that a row stands for, or one that does what its calls do together; and its function."""
    if not row.calls:
        return _UNKNOWN, function_of(row.name) or function_of_kernel(row.name)
    if row.further:
        return _UNKNOWN, ""
    call = as_one(list(row.calls))
    return (call, function_of(call.name)) if call else _batch(row.calls)


def _batch(calls: Sequence[Comm]) -> tuple[Comm, str]:
    """Return one call for messages with known peers that share a kernel, with the elements of all."""
    ways = [function_of(call.name) for call in calls]
    peers = [call.dst_rank if way == SEND else call.src_rank for call, way in zip(calls, ways, strict=True)]
    if not {*ways} <= {SEND, RECV} or None in peers:
        return _UNKNOWN, ""
    sizes = [call.in_nelems if way == SEND else call.out_nelems for call, way in zip(calls, ways, strict=True)]
    known = [size for size in sizes if size is not None]
    same = len({call.dtype for call in calls}) == 1
    whole = Comm("", calls[0].dtype if same else "", sum(known) if len(known) == len(sizes) else None)
    return whole, batched((way, peer) for way, peer in zip(ways, peers, strict=True) if peer is not None)


def _group(ops: CommOps, op: int, one: CommRow) -> tuple[tuple[int, ...] | None, str]:
    """Return members and name of the group of an op, or what its call tells of them."""
    if ops.group[op] != NOWHERE:
        return ops.groups[ops.group[op]]
    return (one.calls[0].ranks, one.calls[0].pg_name or "") if one.calls else (None, "")


def _numbers(values: Iterable[int | None]) -> I64:
    return np.array([NOWHERE if value is None else value for value in values], np.int64)


def _asked(linked: Linked, ops: CommOps) -> tuple[I64, I64]:
    """Return when the host asked for each op, and until when it did."""
    host, device, on_host = linked.trace.host, ~ops.on_host, ops.on_host
    from_ns = ops.start_ns.copy()
    from_ns[device] = np.append(linked.trace.calls.start_ns, np.int64(NOWHERE))[linked.device_call[ops.row[device]]]
    asker = askers(linked)[ops.row[on_host]]
    from_ns[on_host] = np.where(asker != NOWHERE, host.start_ns[asker], from_ns[on_host])
    return from_ns, spread(len(ops.row), on_host, values_at(host.end_ns, asker))


def sent_as(strings: Sequence[str], codes: Strings) -> I32:
    """Return the code of the type that each recorded type is sent as."""
    return codes.column(["" if text.startswith(_BYTES_ALONE) else _SENT_AS.get(text, (text, 1))[0] for text in strings])


def _place(ranks: tuple[int, ...], rank: int) -> int:
    return ranks.index(rank) if rank in ranks else NOWHERE
