"""What NCCL records with its NVTX ranges: communicator, size, peer, root; which kernels it launched for them; who is in a communicator.

The payload of a range is four u64 (domain, schema, size, offset) and a struct that NVTX_PAYLOAD_SCHEMA_ENTRIES describes, since NCCL
numbers its schemas differently in every version. Exported only with --include-blobs=true. Sizes are as NCCL passes them
(github.com/NVIDIA/nccl, src/collectives.cc): of one rank's part for all-gather, reduce-scatter, gather, scatter and all-to-all.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from graphlink.model import I64, Comm
from graphlink.read.comms import MAX_RANKS
from graphlink.read.nsys.file import Export

_HEADER: Final = struct.Struct("<QQQQ")
_NUMBER_BITS: Final = 0xFFFFFF  # of a schema id; what is above says only that it was registered
# nvToolsExtPayload.h, NVTX_PAYLOAD_ENTRY_TYPE_*: the integers
_TYPES: Final = {
    1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "q", 8: "Q", 9: "q", 10: "Q", 11: "b", 12: "B", 13: "h", 14: "H", 15: "i", 16: "I",
    17: "q", 18: "Q", 22: "Q", 23: "Q",
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
    rb"nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|AlltoAll|AllToAll|Gather|Scatter|Send|Recv)(?:Config|v)?"
)
_GROUP_START: Final = b"ncclGroupStart"
_GROUP_END: Final = b"ncclGroupEnd"


class Payload(NamedTuple):
    """The fields that a range recorded; None for those that its schema lacks."""

    communicator: int | None = None
    size_bytes: int | None = None
    peer: int | None = None
    root: int | None = None
    ranks: int | None = None
    rank: int | None = None
    device: int | None = None


class Member(NamedTuple):
    """``rank`` of ``size`` in a communicator is this device of this process (a globalPid)."""

    communicator: int
    size: int
    rank: int
    process: int
    device: int | None


@dataclass(frozen=True, slots=True)
class _Schema:
    size_bytes: int
    fields: tuple[tuple[str, str, int], ...]  # name in Payload, struct code, offset


def read_payloads(export: Export, table: str) -> dict[int, Payload]:
    """Read {row: payload of NCCL}, for the rows that have one. What cannot be resolved is counted."""
    schemas = _schemas(export)
    if not schemas:
        return {}
    out: dict[int, Payload] = {}
    place = unknown = 0
    for page in export.texts(table, "binaryData", kind="blob"):
        for row, data in enumerate(page, start=place):
            if data is None:
                continue
            one = _payload(data, schemas)
            if one is None:
                unknown += 1
            else:
                out[row] = one
        place += len(page)
    export.left_out["NVTX payload of another kind than NCCL's"] += unknown
    return out


def _schemas(export: Export) -> dict[tuple[int, int], _Schema]:
    """By domain and number. Schemas repeat once per process; where two of a number differ, neither is used."""
    entries: dict[tuple[int, int], dict[str, set[tuple[str, int]]]] = {}
    columns = ("domainId", "schemaId", "type", "name", "offset")
    for domain, schema, kind, name, offset in export.rows("NVTX_PAYLOAD_SCHEMA_ENTRIES", columns):
        field = _FIELDS.get(name) if isinstance(name, bytes) else None
        if field is None or not isinstance(domain, int) or not isinstance(schema, int):
            continue
        at = 0 if offset is None else offset  # of the first entry there is none
        if isinstance(at, int) and 0 <= at < 1 << 16 and kind in _TYPES:
            entries.setdefault((domain, schema & _NUMBER_BITS), {}).setdefault(field, set()).add((_TYPES[kind], at))
    clear = {key: fields for key, fields in entries.items() if all(len(places) == 1 for places in fields.values())}
    if len(clear) < len(entries):
        export.warnings.append(f"{len(entries) - len(clear)} NVTX payload schemas are described in two ways: not used")
    out = {}
    for key, fields in clear.items():
        parts = tuple((field, "<" + code, at) for field, places in fields.items() for code, at in places)
        out[key] = _Schema(max(at + struct.calcsize(code) for _, code, at in parts), parts)
    return out


def _payload(data: bytes, schemas: dict[tuple[int, int], _Schema]) -> Payload | None:
    if len(data) >= 2 * _HEADER.size and len(data) % 2 == 0 and re.fullmatch(rb"[0-9a-fA-F]+", data):
        data = bytes.fromhex(data.decode())  # of tools that keep blobs as text
    if len(data) < _HEADER.size:
        return None
    domain, number, size, offset = _HEADER.unpack_from(data)
    schema = schemas.get((domain, number & _NUMBER_BITS))
    start = offset if _HEADER.size <= offset and offset + size <= len(data) else _HEADER.size
    if schema is None or start + schema.size_bytes > len(data):
        return None
    return Payload(**{field: struct.unpack_from(code, data, start + at)[0] for field, code, at in schema.fields})


def bounds_group(name: bytes) -> bool:
    return name in (_GROUP_START, _GROUP_END)


def operation(name: bytes) -> str | None:
    """Return the communication call that a range of NCCL's domain is of, as PyTorch spells it: ``ncclAllReduce`` -> ``allreduce``."""
    found = _OPERATION.fullmatch(name)
    if found is None:
        return None
    word = found[1].decode().lower()
    return "broadcast" if word == "bcast" else word


def members(payloads: Sequence[tuple[int, Payload]]) -> tuple[Member, ...]:
    """Return the members of communicators, from ranges that create or destroy one: (process, payload) each."""
    found = (
        Member(p.communicator, p.ranks, p.rank, process, p.device)
        for process, p in payloads
        if p.communicator is not None and p.ranks is not None and p.rank is not None and 0 <= p.rank < p.ranks <= MAX_RANKS
    )
    return tuple(sorted(set(found), key=lambda m: (m.communicator, m.rank, m.process, -1 if m.device is None else m.device)))


def comm_of(name: str, payload: Payload | None, sizes: dict[int, int]) -> Comm:
    """Return the call as a record. ``sizes``: ranks by communicator. Elements are bytes, since NCCL tells no type."""
    p = payload or Payload()
    group_size = None if p.communicator is None else sizes.get(p.communicator)
    size = p.size_bytes
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
        pg_name=None if p.communicator is None else str(p.communicator),
        group_size=group_size,
        rank=p.root,
        src_rank=p.peer if name == "recv" else None,
        dst_rank=p.peer if name == "send" else None,
    )


class Launch(NamedTuple):
    """A communication kernel: where it was launched from, and its row."""

    thread: int
    start_ns: int
    row: int


def kernel_comms(
    thread: I64, start_ns: I64, end_ns: I64, names: Sequence[bytes], comms: dict[int, Comm], launches: Sequence[Launch]
) -> dict[int, Comm]:
    """Return {launch row: the call that the kernel stands for}. One entry a range of a call or of a group's begin and end; any order.

    A kernel launched inside the range of a call is of that call, the first one where there are several. What is called inside a group
    is launched by the ``ncclGroupEnd`` that closes it: its first kernel stands for all calls of the group where one record can say
    what they do: one call, collectives of one kind and communicator (their sizes add up), sends and receives between all (an all-to-all).
    """
    events = [(int(t), int(s), 0, k) for k, (t, s) in enumerate(zip(thread.tolist(), start_ns.tolist(), strict=True))]
    events += [(launch.thread, launch.start_ns, 1, k) for k, launch in enumerate(launches)]
    out: dict[int, Comm] = {}
    group = _Group()
    current, at_thread = -1, None
    ends = end_ns.tolist()
    for tid, time_ns, is_launch, k in sorted(events):
        if tid != at_thread:
            at_thread, group, current = tid, _Group(), -1
        if not is_launch:
            current = k
            group.enter(names[k], comms.get(k))
        elif current >= 0 and time_ns < ends[current]:
            comm = group.launched()
            if comm is not None:
                out[launches[k].row] = comm
    return out


class _Group:
    """The calls of a thread that have launched nothing yet."""

    def __init__(self) -> None:
        self.depth = 0
        self.waiting: list[Comm] = []
        self.due: list[Comm] = []
        self.own = False  # is the call that is due the last of ``waiting``?

    def enter(self, name: bytes, comm: Comm | None) -> None:
        self.due, self.own = [], False
        if name == _GROUP_START:
            if not self.depth:
                self.waiting = []
            self.depth += 1
        elif name == _GROUP_END:
            self.depth = max(0, self.depth - 1)
            if not self.depth:
                self.due, self.waiting = self.waiting, []
        elif comm is not None:
            self.waiting.append(comm)
            if not self.depth:
                self.due, self.own = [comm], True

    def launched(self) -> Comm | None:
        """Return the call of the kernel that is launched now; None for further kernels of the same range."""
        calls, self.due = self.due, []
        if self.own:
            self.own = False
            self.waiting.pop()
        return _as_one(calls)


def _as_one(calls: list[Comm]) -> Comm | None:
    """What does the same as these calls together; where nothing does, only their names, as of coalesced calls in other recordings."""
    if len(calls) < 2:
        return calls[0] if calls else None
    first = calls[0]
    if all((c.name, c.pg_name, c.elem_bytes, c.rank) == (first.name, first.pg_name, first.elem_bytes, first.rank) for c in calls):
        one = first.name
    elif _is_all_to_all(calls):
        one = "alltoall"
    else:
        one = "send"
    if one in ("send", "recv"):
        return Comm("coalesced " + ", ".join(c.name.upper() for c in calls), pg_name=first.pg_name)
    sent, received = _added([c.in_nelems for c in calls if c.name != "recv"]), _added([c.out_nelems for c in calls if c.name != "send"])
    return msgspec.structs.replace(first, name=one, in_nelems=sent, out_nelems=received, src_rank=None, dst_rank=None)


def _is_all_to_all(calls: list[Comm]) -> bool:
    """A send to and a receive from every rank of one communicator, itself included: how frameworks make an all-to-all of NCCL."""
    size = calls[0].group_size
    to, origin = [c.dst_rank for c in calls if c.name == "send"], [c.src_rank for c in calls if c.name == "recv"]
    whole = size is not None and len(to) == len(origin) == size and len({*to} - {None}) == len({*origin} - {None}) == size
    return whole and len(calls) == len(to) + len(origin) and len({c.pg_name for c in calls}) == 1


def _added(counts: list[int | None]) -> int | None:
    known = [n for n in counts if n is not None]
    return sum(known) if known and len(known) == len(counts) else None
