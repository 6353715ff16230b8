"""The communication of one rank, typed or not, as side files of NCCL are laid beside it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphlink.link.askers import askers
from graphlink.link.coalesced import as_one
from graphlink.link.commtypes import element_bytes
from graphlink.link.communication import CommRow, comm_rows
from graphlink.model import I32, I64, NOWHERE, Comm, CommKind, CommNode, Communication, Linked, ProcessGroup
from graphlink.nccl.functions import function_of, function_of_kernel
from graphlink.nccl.records import Ops


class _Told(NamedTuple):
    """What is known of one op."""

    function: str = ""
    group_name: str = ""
    ranks: tuple[int, ...] | None = None
    in_nelems: int = NOWHERE
    out_nelems: int = NOWHERE
    dtype: str = ""
    bytes: int = NOWHERE
    seq: int = NOWHERE
    peer: int = NOWHERE


def ops_of(linked: Linked, comm: Communication) -> Ops:
    """Every communication kernel and host-side (gloo) row; ``comm`` is what ``communication`` made of ``linked``. O(n log n) in rows.

    A kernel of several calls has the function and counts of one call that does the same, else none; so have further kernels of a call,
    which an earlier one stands for.
    """
    of_device, of_host = comm_rows(linked)
    told = [_told(one, node, comm.groups) for one, node in zip(of_device, comm.device_node, strict=True)]
    told += [_told(one, node, comm.groups) for one, node in zip(of_host, comm.host_node, strict=True)]
    device, host = linked.trace.device, linked.trace.host
    at, on = comm.device_row, comm.host_row
    on_host = np.repeat([False, True], [len(at), len(on)])
    row = np.concatenate([at, on]).astype(np.int32)
    start_ns = np.concatenate([device.start_ns[at], host.start_ns[on]])
    end_ns = np.concatenate([device.end_ns[at], host.end_ns[on]])
    asked_ns, until_ns = _asked(linked, on)
    order = np.lexsort((row, on_host, end_ns, start_ns))
    strings: dict[str, int] = {"": 0}

    def numbers(field: str) -> I64:
        return np.array([getattr(one, field) for one in told], np.int64)[order]

    def texts(field: str) -> I32:
        return np.array([strings.setdefault(getattr(one, field), len(strings)) for one in told], np.int32)[order]

    function, group_name, dtype = texts("function"), texts("group_name"), texts("dtype")
    return Ops(
        strings=tuple(strings),
        on_host=on_host[order],
        row=row[order],
        function=function,
        group_name=group_name,
        ranks=tuple(told[i].ranks for i in order.tolist()),
        in_nelems=numbers("in_nelems"),
        out_nelems=numbers("out_nelems"),
        dtype=dtype,
        bytes=numbers("bytes"),
        seq=numbers("seq"),
        peer=numbers("peer").astype(np.int32),
        stream=np.concatenate([device.stream[at], np.full(len(on), NOWHERE)])[order].astype(np.int64),
        issued_ns=np.concatenate([_launched(linked, at), asked_ns])[order],
        asked_until_ns=np.concatenate([np.full(len(at), NOWHERE), until_ns])[order].astype(np.int64),
        start_ns=start_ns[order],
        end_ns=end_ns[order],
    )


def _launched(linked: Linked, rows: I32) -> I64:
    starts = np.append(linked.trace.calls.start_ns, np.int64(NOWHERE))
    launched: I64 = starts[linked.device_call[rows]]
    return launched


def _asked(linked: Linked, rows: I32) -> tuple[I64, I64]:
    """Of each host row when it was asked for, and the end of the op that did; itself and ``NOWHERE`` where no other thread ran it."""
    host, asker = linked.trace.host, askers(linked)[rows]
    told = asker != NOWHERE
    return np.where(told, host.start_ns[asker], host.start_ns[rows]), np.where(told, host.end_ns[asker], NOWHERE)


def _told(one: CommRow, node: CommNode, groups: tuple[ProcessGroup, ...]) -> _Told:
    if not one.calls:
        return _Told(function_of(one.name) or function_of_kernel(one.name))
    comm = as_one(list(one.calls))
    ranks = groups[node.group].ranks if node.group is not None else one.calls[0].ranks
    name = groups[node.group].name if node.group is not None else one.calls[0].pg_name or ""
    if comm is None or one.further:
        return _Told(group_name=name, ranks=ranks)
    function = function_of(comm.name)
    peer = {CommKind.SEND: node.dst, CommKind.RECV: node.src}.get(node.kind)
    return _Told(
        function,
        name,
        ranks,
        _known(comm.in_nelems),
        _known(comm.out_nelems),
        comm.dtype,
        _bytes(comm),
        _known(comm.seq),
        _known(peer),
    )


def _bytes(comm: Comm) -> int:
    size = element_bytes(comm.dtype) or comm.elem_bytes
    elements = max(_known(comm.in_nelems), _known(comm.out_nelems))
    return elements * size if size is not None and elements >= 0 else NOWHERE


def _known(value: int | None) -> int:
    return NOWHERE if value is None else value
