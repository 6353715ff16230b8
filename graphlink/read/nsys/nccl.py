"""The data that NCCL records with its NVTX ranges: communicator, size, peer, root; which kernels it launched for them;
who is in a communicator.

The payload of a range is four u64 (domain, schema, size, offset) and a struct that NVTX_PAYLOAD_SCHEMA_ENTRIES
describes, since NCCL numbers its schemas differently in every version. Exported only with --include-blobs=true. Sizes
are as NCCL passes them (github.com/NVIDIA/nccl, src/collectives.cc): of one rank's part for all-gather, reduce-scatter,
gather, scatter and all-to-all.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from graphlink.model import I64, Comm
from graphlink.read.comms import MAX_RANKS, added
from graphlink.read.nsys.file import Export
from graphlink.tables import grouped, tuples

_HEADER: Final = struct.Struct("<QQQQ")
_NUMBER_BITS: Final = 0xFFFFFF  # of a schema id; what is above says only that it was registered
# nvToolsExtPayload.h, NVTX_PAYLOAD_ENTRY_TYPE_*: the integers
_TYPES: Final = {
    1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "q", 8: "Q", 9: "q", 10: "Q", 11: "b", 12: "B", 13: "h",
    14: "H", 15: "i", 16: "I", 17: "q", 18: "Q", 22: "Q", 23: "Q",
}  # fmt: skip
_FIELDS: Final = {
    b"NCCL communicator ID": "communicator",
    b"Message size [bytes]": "size_bytes",
    b"Bytes": "size_bytes",  # until NCCL 2.19
    b"Peer rank": "peer",
    b"Peer": "peer",
    b"Root": "root",
    b"No. of ranks": "ranks",
    b"Rank": "rank",
    b"CUDA device": "device",
}
_OPERATION: Final = re.compile(
    r"nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|AlltoAll|AllToAll|Gather|Scatter|Send|Recv)(?:Config|v)?"
)
GROUP_START: Final = "ncclGroupStart"
GROUP_END: Final = "ncclGroupEnd"


Payload = dict[str, int]  # by the names above what a range recorded, as far as its schema goes
_Schema = dict[str, tuple[str, int]]  # struct code and offset, by those names


class Member(NamedTuple):
    """``rank`` of ``size`` in a communicator is this device of this process (a globalPid)."""

    communicator: int
    size: int
    rank: int
    process: int
    device: int | None


def read_payloads(export: Export, table: str) -> dict[int, Payload]:
    """Read {row: payload of NCCL}, for the rows that have one. What cannot be resolved is counted."""
    schemas = _schemas(export)
    if not schemas:
        return {}
    out: dict[int, Payload] = {}
    for rows, blobs in export.texts(table, "binaryData", kind="blob"):
        found = {row: _payload(data, schemas) for row, data in zip(rows.tolist(), blobs, strict=True)}
        known = {row: payload for row, payload in found.items() if payload}
        export.left_out["NVTX payload of another kind than NCCL's"] += len(found) - len(known)
        out |= known
    return out


def _schemas(export: Export) -> dict[tuple[int, int], _Schema]:
    """Return the schemas by domain and number. Schemas repeat once per process; where two of a number differ, neither
    is used.
    """
    entries: dict[tuple[int, int], dict[str, set[tuple[str, int]]]] = {}
    columns = ("domainId", "schemaId", "type", "name", "offset")
    for domain, schema, kind, name, offset in export.rows("NVTX_PAYLOAD_SCHEMA_ENTRIES", columns):
        field = _FIELDS.get(name) if isinstance(name, bytes) else None
        if field is None or not isinstance(domain, int) or not isinstance(schema, int):
            continue
        at = 0 if offset is None else offset  # of the first entry there is none
        if isinstance(at, int) and 0 <= at < 1 << 16 and kind in _TYPES:
            entries.setdefault((domain, schema & _NUMBER_BITS), {}).setdefault(field, set()).add((_TYPES[kind], at))
    clear = {
        key: {field: place for field, (place,) in fields.items()}
        for key, fields in entries.items()
        if all(len(places) == 1 for places in fields.values())
    }
    if len(clear) < len(entries):
        export.warnings.append(f"{len(entries) - len(clear)} NVTX payload schemas are described in two ways: not used")
    return clear


def _payload(data: bytes, schemas: dict[tuple[int, int], _Schema]) -> Payload:
    """Read the fields of a payload; none of another kind than NCCL's."""
    if len(data) >= 2 * _HEADER.size and len(data) % 2 == 0 and re.fullmatch(rb"[0-9a-fA-F]+", data):
        data = bytes.fromhex(data.decode())  # of tools that keep blobs as text
    if len(data) < _HEADER.size:
        return {}
    domain, number, size, offset = _HEADER.unpack_from(data)
    start = offset if _HEADER.size <= offset and offset + size <= len(data) else _HEADER.size
    schema = schemas.get((domain, number & _NUMBER_BITS), {})
    try:
        return {field: struct.unpack_from(f"<{code}", data, start + at)[0] for field, (code, at) in schema.items()}
    except struct.error:  # it ends before
        return {}


def operation(name: str) -> str | None:
    """Return the communication call that a range of NCCL's domain is of, as PyTorch spells it: ``ncclAllReduce`` ->
    ``allreduce``.
    """
    found = _OPERATION.fullmatch(name)
    word = found[1].lower() if found else None
    return "broadcast" if word == "bcast" else word


def members(payloads: Sequence[tuple[int, Payload]]) -> tuple[Member, ...]:
    """Return the members of communicators, from ranges that create or destroy one: (process, payload) each."""
    found = set()
    for process, payload in payloads:
        communicator, size, rank = (payload.get(field) for field in ("communicator", "ranks", "rank"))
        if communicator is not None and size is not None and rank is not None and 0 <= rank < size <= MAX_RANKS:
            found.add(Member(communicator, size, rank, process, payload.get("device")))
    return tuple(sorted(found, key=lambda m: (m.communicator, m.rank, m.process, -1 if m.device is None else m.device)))


def comm_of(name: str, payload: Payload, sizes: dict[int, int]) -> Comm:
    """Return the call as a record. ``sizes``: ranks by communicator. Elements are bytes, since NCCL tells no type."""
    communicator, size, peer = payload.get("communicator"), payload.get("size_bytes"), payload.get("peer")
    group_size = None if communicator is None else sizes.get(communicator)
    sent = received = size
    if name in ("allgather", "gather"):
        received = None
    elif name in ("reducescatter", "scatter", "recv"):
        sent = None
    elif name == "alltoall":
        sent = received = size * group_size if size is not None and group_size is not None else None
    return Comm(
        name=name,
        in_nelems=sent,
        out_nelems=received,
        elem_bytes=1 if size is not None else None,
        pg_name=None if communicator is None else str(communicator),
        group_size=group_size,
        rank=payload.get("root"),
        src_rank=peer if name == "recv" else None,
        dst_rank=peer if name == "send" else None,
    )


def kernel_comms(
    thread: I64,
    start_ns: I64,
    end_ns: I64,
    names: Sequence[str],
    comms: dict[int, Comm],
    launches: Iterable[tuple[int, int, int]],
) -> dict[int, Comm]:
    """Return {kernel: the call that it stands for}. One entry per range of a call or of a group's begin and end, in any
    order.

    ``launches``: thread and time of the launch, kernel. A kernel launched inside the range of a call is of that call,
    the first one where there are several. What is called inside a group is launched by the ``ncclGroupEnd`` that closes
    it: its first kernel stands for all calls of the group where one record can say what they do: one call, collectives
    of one kind and communicator (their sizes add up), sends and receives between all (an all-to-all).
    """
    ranges = ((tid, (ns, False, k)) for k, (tid, ns) in enumerate(tuples(thread, start_ns)))
    events = grouped(chain(ranges, ((tid, (launch_ns, True, kernel)) for tid, launch_ns, kernel in launches)))
    ends_ns = end_ns.tolist()
    return {kernel: comm for mine in events.values() for kernel, comm in _launched(sorted(mine), ends_ns, names, comms)}


def _launched(
    events: list[tuple[int, bool, int]], ends_ns: list[int], names: Sequence[str], comms: dict[int, Comm]
) -> Iterator[tuple[int, Comm]]:
    """Yield kernels of one thread with their calls. ``events``: time, whether it is the launch of a kernel, kernel or
    range.
    """
    depth, until_ns = 0, 0
    waiting: list[Comm] = []  # have launched nothing yet
    due: list[Comm] = []  # of these what the next kernel stands for
    for time_ns, is_launch, k in events:
        if is_launch:
            comm = _as_one(due) if time_ns < until_ns else None
            if comm is not None:
                yield k, comm
                del waiting[-len(due) :]
                due = []
            continue
        until_ns, due = ends_ns[k], []
        if names[k] == GROUP_START:
            waiting = waiting if depth else []
            depth += 1
        elif names[k] == GROUP_END:
            depth = max(0, depth - 1)
            if not depth:
                due, waiting = waiting, []
        elif k in comms:
            waiting.append(comms[k])
            due = [] if depth else waiting[-1:]


def _as_one(calls: list[Comm]) -> Comm | None:
    """Return the one call that does the same as these together; where nothing does, only their names, as of coalesced
    calls in other recordings."""
    if len(calls) < 2:
        return calls[0] if calls else None
    first = calls[0]
    if all(
        (c.name, c.pg_name, c.elem_bytes, c.rank) == (first.name, first.pg_name, first.elem_bytes, first.rank)
        for c in calls
    ):
        one = first.name
    elif _is_all_to_all(calls):
        one = "alltoall"
    else:
        one = "send"
    if one in ("send", "recv"):
        return Comm("coalesced " + ", ".join(c.name.upper() for c in calls), pg_name=first.pg_name)
    sent, received = (
        added([c.in_nelems for c in calls if c.name != "recv"]),
        added([c.out_nelems for c in calls if c.name != "send"]),
    )
    return msgspec.structs.replace(first, name=one, in_nelems=sent, out_nelems=received, src_rank=None, dst_rank=None)


def _is_all_to_all(calls: list[Comm]) -> bool:
    """Tell whether the calls are a send to and a receive from every rank of one communicator, itself included: how
    frameworks make an all-to-all of NCCL."""
    size = calls[0].group_size
    to, origin = [c.dst_rank for c in calls if c.name == "send"], [c.src_rank for c in calls if c.name == "recv"]
    whole = (
        size is not None and len(to) == len(origin) == size and len({*to} - {None}) == len({*origin} - {None}) == size
    )
    return whole and len(calls) == len(to) + len(origin) and len({c.pg_name for c in calls}) == 1
