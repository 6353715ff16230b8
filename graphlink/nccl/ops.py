"""The communication of one rank, typed or not, in the form that calls of side files are joined with."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import numpy as np

from graphlink.link.askers import askers
from graphlink.link.coalesced import as_one
from graphlink.link.commtypes import CollectiveType, collective_type, kind_of
from graphlink.link.communication import CommRow, comm_rows
from graphlink.model import I32, I64, NOWHERE, Comm, CommKind, CommNode, Communication, Linked
from graphlink.nccl.records import Ops
from graphlink.read.columns import Strings

SEND: Final = "send"
RECV: Final = "recv"
BARRIER: Final = "barrier"
_NAMES: Final = {
    CollectiveType.ALL_REDUCE: "allreduce",
    CollectiveType.REDUCE: "reduce",
    CollectiveType.ALL_GATHER: "allgather",
    CollectiveType.GATHER: "gather",
    CollectiveType.SCATTER: "scatter",
    CollectiveType.BROADCAST: "broadcast",
    CollectiveType.ALL_TO_ALL: "alltoall",
    CollectiveType.REDUCE_SCATTER: "reducescatter",
    CollectiveType.REDUCE_SCATTER_BLOCK: "reducescatter",
    CollectiveType.BARRIER: BARRIER,
}
_KERNEL: Final = re.compile(r"[nr]ccl(?:(?:Dev)?Kernel_)?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce)(?:_|Ring|Tree)")
_UNKNOWN: Final = Comm("")


def function_of(name: str) -> str:
    """Return the function of a recorded name (``_allgather_base``, ``nccl:all_reduce``, ``gloo:send``); "" where it says none."""
    kind = kind_of(name)
    if kind is not CommKind.COLLECTIVE:
        return {CommKind.SEND: SEND, CommKind.RECV: RECV}.get(kind, "")
    type_ = collective_type(name)
    assert type_ is not None, name
    return _NAMES[type_]


def function_of_kernel(name: str) -> str:
    """Return the function of a kernel (``ncclDevKernel_AllReduce_Sum_f32_RING_LL``); "" for sends, receives and all made of them."""
    found = _KERNEL.match(name)
    return found[1].lower() if found else ""


def ops_of(linked: Linked, comm: Communication) -> Ops:
    """Return every communication kernel and host-side (gloo) row; ``comm`` is ``communication(linked)``. O(n log n) in rows.

    A kernel of several calls has the function and counts of one call that does the same, else none; so have further kernels of a call,
    which an earlier one stands for.
    """
    of_device, of_host = comm_rows(linked)
    recorded, nodes = (*of_device, *of_host), (*comm.device_node, *comm.host_node)
    device, host = linked.trace.device, linked.trace.host
    at, on = comm.device_row, comm.host_row
    on_host = np.repeat([False, True], [len(at), len(on)])
    row = np.concatenate([at, on]).astype(np.int32)
    start_ns = np.concatenate([device.start_ns[at], host.start_ns[on]])
    end_ns = np.concatenate([device.end_ns[at], host.end_ns[on]])
    launched_ns = np.append(linked.trace.calls.start_ns, np.int64(NOWHERE))[linked.device_call[at]]
    asker = askers(linked)[on]
    asked_ns = np.where(asker != NOWHERE, host.start_ns[asker], host.start_ns[on])
    until_ns = np.where(asker != NOWHERE, host.end_ns[asker], NOWHERE)
    order = np.lexsort((row, on_host, end_ns, start_ns))
    one_call = [_one_call(one) for one in recorded]
    groups = [comm.groups[node.group] if node.group is not None else None for node in nodes]
    names = [group.name if group else one.calls[0].pg_name or "" if one.calls else "" for one, group in zip(recorded, groups, strict=True)]
    ranks = [group.ranks if group else one.calls[0].ranks if one.calls else None for one, group in zip(recorded, groups, strict=True)]
    strings = Strings()

    def texts(values: Iterable[str]) -> I32:
        return strings.column(list(values))[order]

    def numbers(values: Iterable[int | None]) -> I64:
        return np.array([NOWHERE if value is None else value for value in values], np.int64)[order]

    function = texts(_function(one, call) for one, call in zip(recorded, one_call, strict=True))
    group_name = texts(names)
    dtype = texts(call.dtype for call in one_call)
    return Ops(
        strings=tuple(strings),
        on_host=on_host[order],
        row=row[order],
        function=function,
        group_name=group_name,
        ranks=tuple(ranks[i] for i in order.tolist()),
        in_nelems=numbers(call.in_nelems for call in one_call),
        out_nelems=numbers(call.out_nelems for call in one_call),
        dtype=dtype,
        seq=numbers(call.seq for call in one_call),
        peer=numbers(_peer(call, node) for call, node in zip(one_call, nodes, strict=True)).astype(np.int32),
        issued_ns=np.concatenate([launched_ns, asked_ns])[order],
        asked_until_ns=np.concatenate([np.full(len(at), NOWHERE), until_ns])[order].astype(np.int64),
        start_ns=start_ns[order],
        end_ns=end_ns[order],
    )


def _one_call(one: CommRow) -> Comm:
    """Return the call that a row stands for, or one that does what its calls do together."""
    if not one.calls or one.further:
        return _UNKNOWN
    return as_one(list(one.calls)) or _UNKNOWN


def _function(one: CommRow, call: Comm) -> str:
    return function_of(call.name) if one.calls else function_of(one.name) or function_of_kernel(one.name)


def _peer(call: Comm, node: CommNode) -> int | None:
    return {CommKind.SEND: node.dst, CommKind.RECV: node.src}.get(node.kind) if call.name else None
