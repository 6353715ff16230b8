"""Kernels of coalesced calls: ``batch_isend_irecv`` and coalescing managers record each call, and launch one kernel
after the last.

That launch (``ncclGroupEnd``) is outside of every ``record_param_comms``, so the kernel has no parameters of its own.
It stands for the calls of its thread that launched nothing themselves, since the last such kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from graphlink.linking.commtypes import kind_of, size_bytes
from graphlink.model import I32, NOWHERE, Comm, CommKind, Linked

RECORD_OP = "record_param_comms"


def waiting_calls(linked: Linked, calls: Mapping[int, Comm], op: I32, kernels: list[int]) -> dict[int, list[Comm]]:
    """Map each kernel (device row) to the recorded calls that it stands for, in their order; kernels that stand for
    none are left out.

    ``op`` is the host row that launched each device row, ``kernels`` the device rows without parameters. O(n log n) in
    calls.
    """
    trace = linked.trace
    busy = set(op[op != NOWHERE].tolist())
    host, names = trace.host, trace.strings
    events = [
        (int(host.tid[row]), int(host.start_ns[row]), 0, row)
        for row in calls
        if row not in busy and names[host.name[row]] == RECORD_OP  # and not the c10d op around it
    ]
    for kernel in kernels:
        call = int(linked.device_call[kernel])
        if call != NOWHERE:
            events.append((int(trace.calls.tid[call]), int(trace.calls.start_ns[call]), 1, kernel))
    found: dict[int, list[Comm]] = {}
    pending: list[int] = []
    thread = None
    for tid, _, is_kernel, row in sorted(events):
        if tid != thread:
            thread, pending = tid, []
        if not is_kernel:
            pending.append(row)
        elif pending:
            found[row] = [calls[p] for p in pending]
            pending = []
    return found


def as_one(comms: list[Comm]) -> Comm | None:
    """Return the call that does what these do together: the only one, or collectives of one type and group with their
    elements added.
    """
    first = comms[0]
    if len(comms) == 1:
        return first
    alike = all(
        (c.name, c.dtype, c.elem_bytes, c.pg_name, c.ranks, c.group_size)
        == (first.name, first.dtype, first.elem_bytes, first.pg_name, first.ranks, first.group_size)
        for c in comms
    )
    if (
        not alike
        or kind_of(first.name) is not CommKind.COLLECTIVE
        or None in [size_bytes(c, c.group_size) for c in comms]
    ):
        return None
    return msgspec.structs.replace(
        first, in_nelems=_added([c.in_nelems for c in comms]), out_nelems=_added([c.out_nelems for c in comms])
    )


def _added(counts: list[int | None]) -> int | None:
    known = [n for n in counts if n is not None]
    return sum(known) if len(known) == len(counts) else None
