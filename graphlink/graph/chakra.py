"""Reads a Chakra ``.et``, ours or others', into columns.

In: a file of length-prefixed messages of ``chakra.schema.protobuf.et_def_pb2``: one ``GlobalMetadata``, then ``Node``s; plain, gzip
or zstd. Out: ``ChakraFile``. Nothing is repaired: dependencies that lead nowhere, stand twice or lead to their own node are kept
aside in ``faults``, attributes of another kind than readers expect in ``odd``.

Linear in nodes and edges; some MB of messages at a time are in memory, and the columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
from chakra.schema.protobuf import et_def_pb2 as pb
from google.protobuf.message import DecodeError

from graphlink.errors import InputError
from graphlink.graph.chakra_columns import (
    BAD_GROUP,
    COLUMNS,
    EXPECTED,
    MOST_MICROS,
    NO_GROUP,
    SEEN,
    TEMPLATE,
    TWICE,
    U32,
    U64,
    UNKNOWN_DEP,
    ChakraFile,
    CommType,
    Deps,
    Fault,
    Faults,
    Has,
    Metadata,
    NodeBlock,
    NodeRow,
    NodeType,
    OddAttribute,
    assemble,
    group_of,
)
from graphlink.graph.chakra_wire import PADDING, Texts, decode
from graphlink.model import EdgeKind
from graphlink.read.source import Source, open_source

__all__ = [
    "BAD_GROUP",
    "NO_GROUP",
    "TWICE",
    "U32",
    "U64",
    "UNKNOWN_DEP",
    "ChakraFile",
    "CommType",
    "Deps",
    "Fault",
    "Faults",
    "Has",
    "Metadata",
    "NodeType",
    "OddAttribute",
    "frames",
    "read_chakra",
]

_READ: Final = 1 << 21  # its columns stay in the processor's cache
_LONGEST: Final = 1 << 31  # of a message, as in protobuf
_INT64: Final = (1 << 63) - 1
_TODO: Final = "name a .et file of graphlink or of Chakra"
_KIND_CODE: Final = {k.name.lower(): int(k) for k in EdgeKind}


def read_chakra(path: str | Path) -> ChakraFile:
    """The graph at ``path``.

    Raises:
        InputError: the file cannot be read, is cut off, is no ``.et``, or does not begin with a ``GlobalMetadata``; with the byte.
    """
    path = Path(path)
    with open_source(path) as source:
        blocks = _blocks(source)
        head = next(blocks, None)
        if head is None:
            raise InputError("is empty", path=path, todo=_TODO)
        metadata = _metadata(path, head.data[head.starts[0] : head.ends[0]])
        nodes = _Nodes(path)
        return assemble(str(path), metadata, nodes.names, map(nodes.decoded, chain([head.without_first()], blocks)))


def frames(source: Source) -> Iterator[tuple[int, bytes]]:
    """The messages of a ``.et`` with the byte at which each begins (its length before it).

    Raises:
        InputError: a length does not fit, with the byte.
    """
    for block in _blocks(source):
        for i, (start, end) in enumerate(zip(block.starts, block.ends, strict=True)):
            yield block.offset(i), block.data[start:end]


@dataclass(frozen=True, slots=True)
class _Frames:
    """Whole messages ``data[starts[i]:ends[i]]``; ``data`` begins at byte ``base`` of the file, the length of the first at ``begin``."""

    base: int
    data: bytes
    starts: list[int]
    ends: list[int]
    begin: int = 0

    def offset(self, i: int) -> int:
        """The byte of the file at which the length of message ``i`` stands."""
        return self.base + (self.ends[i - 1] if i else self.begin)

    def without_first(self) -> _Frames:
        return _Frames(self.base, self.data, self.starts[1:], self.ends[1:], self.ends[0])


def _blocks(source: Source) -> Iterator[_Frames]:
    data, base = b"", 0
    wanted = _READ
    while True:
        part = source.read(wanted)
        data += part
        block = _whole(source, data, base)
        at = block.ends[-1] if block.ends else 0
        if block.ends:
            yield block
        data, base = data[at:], base + at
        if not part:
            break
        wanted = max(_READ, len(data))  # doubles until a long message fits
    if data:
        raise InputError(
            f"is cut off, or no Chakra graph: the last message is not complete, {len(data)} bytes are left",
            path=source.path,
            where=source.where(base),
            todo=_TODO,
        )


def _whole(source: Source, data: bytes, base: int) -> _Frames:
    """The messages that ``data`` holds whole."""
    starts: list[int] = []
    ends: list[int] = []
    at, length = 0, len(data)
    while at < length:
        size, head, shift = 0, at, 0
        while head < length:
            byte = data[head]
            head += 1
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 35:
                break
        else:
            break
        if shift > 35 or size >= _LONGEST:
            raise InputError(
                "is no Chakra graph: a message has no proper length", path=source.path, where=source.where(base + at), todo=_TODO
            )
        end = head + size
        if end > length:
            break
        starts.append(head)
        ends.append(end)
        at = end
    return _Frames(base, data, starts, ends)


def _metadata(path: Path, first: bytes) -> Metadata:
    # a Node in its place begins with its id (08), or with a name that is no attribute
    try:
        head = pb.GlobalMetadata.FromString(first)
    except DecodeError:
        head = None
    if head is None or first[:1] not in (b"", b"\x0a", b"\x12"):
        raise InputError(
            "does not begin with a GlobalMetadata message: readers swallow what stands there", path=path, where="byte 0", todo=_TODO
        )
    ints = {a.name: int(a.int64_val) for a in head.attr if a.WhichOneof("value") == "int64_val"}
    texts = {a.name: a.string_val for a in head.attr if a.WhichOneof("value") == "string_val"}
    return Metadata(
        version=head.version,
        graphlink=texts.get("graphlink"),
        epoch_ns=ints.get("epoch_ns"),
        rank=ints.get("rank"),
        world_size=ints.get("world_size"),
        host=texts.get("host"),
        clock_offset_ns=ints.get("clock_offset_ns", 0),
        clock_drift_ppb=ints.get("clock_drift_ppb", 0),
    )


class _Nodes:
    """What is known from the nodes before: how many there are, and the names (in the order of their codes)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.names: dict[str, int] = {}
        self._texts = Texts({}, {}, self._code, {name.encode(): code for name, code in _KIND_CODE.items()})
        self._count = 0

    def _code(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def decoded(self, block: _Frames) -> NodeBlock:
        position = self._count
        self._count += len(block.starts)

        def slow(i: int) -> NodeRow:
            return node_row(self._path, block.offset(i), block.data[block.starts[i] : block.ends[i]], position + i, self.names)

        starts, ends = np.array(block.starts, np.int64), np.array(block.ends, np.int64)
        return decode(block.data + bytes(PADDING), starts, ends, position, self._texts, slow)


def node_row(path: Path, offset: int, message: bytes, position: int, codes: dict[str, int]) -> NodeRow:
    """One ``Node`` through protobuf: the reference of ``chakra_wire``, and what decides where it does not.

    Raises:
        InputError: the message is no node.
    """
    try:
        node = pb.Node.FromString(message)
    except DecodeError:
        raise InputError("is no Chakra graph: a message is no node", path=path, where=f"byte {offset}", todo=_TODO) from None
    values = dict(zip(COLUMNS, TEMPLATE, strict=True))
    values["name"] = codes.setdefault(node.name, len(codes))
    values["type"] = node.type
    values["start_micros"] = min(node.start_time_micros, MOST_MICROS)
    values["duration_micros"] = min(node.duration_micros, MOST_MICROS)
    values["data_deps"], values["ctrl_deps"] = len(node.data_deps), len(node.ctrl_deps)
    kinds, sync_call, has = None, (), 0
    odd: list[OddAttribute] = []
    seen: dict[str, str] = {}
    for a in node.attr:
        if a.name in EXPECTED:
            _, kind, bit = EXPECTED[a.name]
            has |= bit
            value = _value(a)
            before = seen.setdefault(a.name, value)
            if before != value:
                odd.append(OddAttribute(position, a.name, TWICE, f"{before}, then {value}"))
            values[a.name] = _integer(a, kind, position, odd)
        elif a.name == "dep_kinds":
            has |= Has.DEP_KINDS
            kinds = bytes(_KIND_CODE.get(w, UNKNOWN_DEP) for w in a.string_list.values)
            if len(kinds) != len(node.data_deps):
                odd.append(OddAttribute(position, a.name, a.WhichOneof("value") or "", f"{len(kinds)} entries"))
                kinds = None
        elif a.name == "sync_call":
            sync_call = tuple(a.string_list.values) or (a.string_val,)
        has |= SEEN.get(a.name, 0)
    values["has"] = int(has)
    return NodeRow(list(values.values()), node.id, list(node.data_deps), kinds, list(node.ctrl_deps), odd, sync_call)


def _value(attribute: Any) -> str:
    kind = attribute.WhichOneof("value")
    return str(getattr(attribute, kind)).strip()[:80] if kind else ""


def _integer(attribute: Any, expected: str, position: int, odd: list[OddAttribute]) -> int:
    """The integer in an attribute of any kind; what is not of the expected kind, or no number in a text, is noted in ``odd``."""
    kind = attribute.WhichOneof("value") or ""
    value: Any = getattr(attribute, kind) if kind else None
    if kind == expected:
        number = group_of(value.encode()) if kind == "string_val" else int(value)
        if kind != "string_val" or number != BAD_GROUP:
            return number
    odd.append(OddAttribute(position, attribute.name, kind, _value(attribute)))
    if isinstance(value, int):
        return min(int(value), _INT64)
    return BAD_GROUP if expected == "string_val" else 0
