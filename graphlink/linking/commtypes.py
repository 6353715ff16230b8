"""Type and size of a communication call, from the names and element counts that PyTorch records; and coalesced calls.

Counts are as ``torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp`` passes them to ``record_param_comms``: elements of
this rank's input and output, where the side that holds all ranks' parts (output of a gather, input of a scatter) is
multiplied by the group size. Sizes are as ASTRA-sim counts them: the input shard for ALL_GATHER, else the whole buffer
of a rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np

from graphlink.model import F64, I32, I64, NOWHERE, Comm, CommKind, Linked
from graphlink.read.comms import RECORD_OP, added


class CollectiveType(IntEnum):
    """``CollectiveCommType`` of Chakra's ``et_def.proto``."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


# Beginnings of a name in lower case without "_" and prefixes, the longer ones first: allreduce, _allgather_base,
# all_to_allv, allgather_into_tensor_coalesced, reduce_scatter_tensor, _broadcast_oop, monitored_barrier,
# recv_any_source, ...
_TYPES = (
    ("reducescatterblock", CollectiveType.REDUCE_SCATTER_BLOCK),
    ("reducescatter", CollectiveType.REDUCE_SCATTER),
    ("allreduce", CollectiveType.ALL_REDUCE),
    ("allgather", CollectiveType.ALL_GATHER),
    ("alltoall", CollectiveType.ALL_TO_ALL),
    ("broadcast", CollectiveType.BROADCAST),
    ("monitoredbarrier", CollectiveType.BARRIER),
    ("barrier", CollectiveType.BARRIER),
    ("scatter", CollectiveType.SCATTER),
    ("gather", CollectiveType.GATHER),
    ("reduce", CollectiveType.REDUCE),
)

_BYTES = {
    1: "byte char bool uint8 int8 unsignedchar signedchar float8 quint8 qint8",
    2: "short half bfloat16 int16 uint16 shortint unsignedshort float16",
    4: "int float int32 uint32 float32 unsignedint qint32 complexhalf",
    8: "long double int64 uint64 float64 longint unsignedlong unsignedlonglong longlong longlongint complexfloat",
    16: "complexdouble",
}
SHARDS: Final = (CollectiveType.ALL_GATHER, CollectiveType.GATHER, CollectiveType.SCATTER)  # sized as a rank's part
# of the whole buffer a rank's own part does not travel
_PARTLY: Final = (
    *SHARDS,
    CollectiveType.REDUCE_SCATTER,
    CollectiveType.REDUCE_SCATTER_BLOCK,
    CollectiveType.ALL_TO_ALL,
)
MOST_BYTES = (1 << 63) - 1
_ELEM_BYTES = {name: size for size, names in _BYTES.items() for name in names.split()}


def _bare(name: str) -> str:
    """Strip a name to its core: ``c10d::_allgather_base_`` -> ``allgatherbase``, ``nccl:send 0->1`` -> ``send0->1``."""
    return name.rsplit(":", 1)[-1].lower().replace("_", "").replace(" ", "")


def kind_of(name: str) -> CommKind:
    """Return the kind of a recorded name; UNKNOWN for all but collectives, sends and receives (``wait``,
    ``coalesced``).
    """
    bare = _bare(name)
    if bare.startswith(("send", "isend")):
        return CommKind.SEND
    if bare.startswith(("recv", "irecv")):
        return CommKind.RECV
    return CommKind.COLLECTIVE if collective_type(name) is not None else CommKind.UNKNOWN


def collective_type(name: str) -> CollectiveType | None:
    """Return the type of a recorded collective (``allreduce``, ``nccl:_all_gather_base``, ``c10d::alltoall_base_``,
    ...).
    """
    bare = _bare(name)
    return next((kind for start, kind in _TYPES if bare.startswith(start)), None)


def sizes_may_differ(comm: Comm) -> bool:
    """Tell whether the members of a group may rightly call this collective with different sizes (all_to_allv,
    allgatherv, splits).
    """
    bare = _bare(comm.name)
    return bool(comm.in_split or comm.out_split) or bare.endswith("v") or "coalesced" in bare


@lru_cache(1024)
def element_bytes(dtype: str) -> int | None:
    """Return the bytes of an element of a recorded type: ``Float``, ``c10::BFloat16``, ``Tensor(long int)``,
    ``GenericList[Tensor(float)]``."""
    inner = re.search(r"Tensor\(([^()]*)\)", dtype)
    bare = (inner.group(1) if inner else dtype).rsplit(":", 1)[-1].lower().replace(" ", "")
    generic = {"c10::complex<float>": 8, "c10::complex<double>": 16, "c10::complex<c10::half>": 4}
    if dtype.lower() in generic:
        return generic[dtype.lower()]
    return _ELEM_BYTES.get(bare.split("_", 1)[0])


def size_bytes(comm: Comm, group_size: int | None) -> int | None:
    """Return the bytes of a call as ASTRA-sim counts them; None where counts or element size are not recorded, or make
    no int64.

    ALL_GATHER and GATHER count the input shard, SCATTER the output shard, all others the whole input of a rank. For a
    side that is not recorded the other one stands in, multiplied or divided by the group size where they differ by
    that.
    """
    kind, type_ = kind_of(comm.name), collective_type(comm.name)
    if type_ is CollectiveType.BARRIER:
        return 0
    elem_bytes = element_bytes(comm.dtype) or comm.elem_bytes
    if elem_bytes is None:
        return None
    sent, got = comm.in_nelems, comm.out_nelems
    if kind is CommKind.RECV or type_ is CollectiveType.SCATTER:
        elems = got if got is not None else sent
        if got is None and sent is not None and type_ is CollectiveType.SCATTER:
            elems = sent // group_size if group_size else None
    elif sent is not None or got is None:
        elems = sent
    elif type_ in (CollectiveType.ALL_GATHER, CollectiveType.GATHER):
        elems = got // group_size if group_size else None
    elif type_ in (CollectiveType.REDUCE_SCATTER, CollectiveType.REDUCE_SCATTER_BLOCK):
        elems = got * group_size if group_size else None
    else:
        elems = got
    if elems is None or not 0 <= elems * elem_bytes <= MOST_BYTES:
        return None
    return elems * elem_bytes


def bus_factors(comm_type: I64 | I32, members: F64) -> F64:
    """Return the bytes that a rank sends over its link, per byte of the whole buffer, for ring algorithms: bus
    bandwidth over algorithm bandwidth, as nccl-tests has it (doc/PERFORMANCE.md). ``NOWHERE`` is a message between two
    ranks.
    """
    n = np.maximum(members, 1)
    part = (n - 1) / n
    out = np.where(np.isin(comm_type, _PARTLY), part, 1.0)
    return np.where(comm_type == CollectiveType.ALL_REDUCE, 2 * part, out)


def wire_share(comm_type: I64, members: F64) -> F64:
    """Return the same per byte of ``comm_size``, which is the whole buffer, of ALL_GATHER the rank's own shard."""
    return np.where(comm_type == CollectiveType.ALL_GATHER, np.maximum(members, 1) - 1, bus_factors(comm_type, members))


def waiting_calls(linked: Linked, calls: Mapping[int, Comm], op: I32, kernels: list[int]) -> dict[int, list[Comm]]:
    """Map each kernel (device row) to the recorded calls that it stands for, in their order; kernels that stand for
    none are left out.

    ``batch_isend_irecv`` and coalescing managers record each call, and launch one kernel after the last. That launch
    (``ncclGroupEnd``) is outside of every ``record_param_comms``, so the kernel has no parameters of its own. It stands
    for the calls of its thread that launched nothing themselves, since the last such kernel.

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
        first, in_nelems=added([c.in_nelems for c in comms]), out_nelems=added([c.out_nelems for c in comms])
    )
