"""Reads a Chakra ``.et``, ours or others', into a ``Graph``.

In: a file of length-prefixed messages of ``chakra.schema.protobuf.et_def_pb2``: one ``GlobalMetadata``, then ``Node``s;
plain, gzip or zstd. Out: ``Graph``. Nothing is repaired: dependencies that lead nowhere, stand twice or lead to their
own node are kept in ``Graph.file.faults``, attributes of another kind than readers expect in ``odd``.

Linear in nodes and edges; some MB of messages at a time are in memory, and the columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

from chakra.schema.protobuf import et_def_pb2 as pb
from google.protobuf.message import DecodeError

from graphlink.errors import InputError
from graphlink.graph.et_columns import ABSENT, EXPECTED, MOST_MICROS, TWICE, NodeBlock, assemble
from graphlink.graph_model import BAD_GROUP, HAS, NO_GROUP, UNKNOWN_DEP, EdgeKind, Graph, Metadata, OddAttribute
from graphlink.read.source import Source, open_source

_READ: Final = 1 << 21  # bytes
_LONGEST: Final = 1 << 31  # of a message, as in protobuf
_INT64: Final = (1 << 63) - 1
_TODO: Final = "name a .et file of graphlink or of Chakra"
_GROUP: Final = EXPECTED["pg_name"][0]
_KIND_CODE: Final = {k.name.lower(): int(k) for k in EdgeKind}


def read_et(path: str | Path) -> Graph:
    """Read the graph at ``path``.

    Raises:
        InputError: the file cannot be read, is cut off, is no ``.et``, or does not begin with a ``GlobalMetadata``;
            with the byte.
    """
    path = Path(path)
    with open_source(path) as source:
        blocks = _blocks(source)
        head = next(blocks, None)
        if head is None:
            raise InputError("is empty", path=path, todo=_TODO)
        metadata = _metadata(path, head[0][1])
        names: dict[str, int] = {}
        decoded = map(partial(_decoded, path, names, count()), chain([head[1:]], blocks))
        return assemble(str(path), metadata, names, decoded)


def read_metadata(path: Path) -> Metadata:
    """Read what the graph at ``path`` says of itself, and nothing of its nodes.

    Raises:
        InputError: as ``read_et``.
    """
    with open_source(path) as source:
        first = next(frames(source), None)
    if first is None:
        raise InputError("is empty", path=path, todo=_TODO)
    return _metadata(path, first[1])


def frames(source: Source) -> Iterator[tuple[int, bytes]]:
    """Yield the messages of a ``.et`` with the byte at which each begins (its length before it).

    Raises:
        InputError: a length does not fit, with the byte.
    """
    return chain.from_iterable(_blocks(source))


def _blocks(source: Source) -> Iterator[list[tuple[int, bytes]]]:
    """Yield the complete messages of some MB at a time, as ``frames``."""
    data, base = b"", 0
    while part := source.read(max(_READ, len(data))):  # doubles until a long message fits
        data += part
        block, end = _complete(source, data, base)
        if block:
            yield block
        data, base = data[end:], base + end
    if data:
        raise InputError(
            f"is cut off, or no Chakra graph: the last message is not complete, {len(data)} bytes are left",
            path=source.path,
            where=source.where(base),
            todo=_TODO,
        )


def _complete(source: Source, data: bytes, base: int) -> tuple[list[tuple[int, bytes]], int]:
    """Return the complete messages in ``data``, which begins at byte ``base`` of the file, and where the last
    one ends.
    """
    block: list[tuple[int, bytes]] = []
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
                "is no Chakra graph: a message has no proper length",
                path=source.path,
                where=source.where(base + at),
                todo=_TODO,
            )
        end = head + size
        if end > length:
            break
        block.append((base + at, data[head:end]))
        at = end
    return block, at


def _metadata(path: Path, first: bytes) -> Metadata:
    # a Node in its place begins with its id (08), or with a name that is no attribute
    try:
        head = pb.GlobalMetadata.FromString(first)
    except DecodeError:
        head = None
    if head is None or first[:1] not in (b"", b"\x0a", b"\x12"):
        raise InputError(
            "does not begin with a GlobalMetadata message: readers swallow what stands there",
            path=path,
            where="byte 0",
            todo=_TODO,
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
        made=texts.get("made"),
    )


def _decoded(
    path: Path, names: dict[str, int], positions: Iterator[int], messages: list[tuple[int, bytes]]
) -> NodeBlock:
    """Decode the messages of one block, which follow those of the blocks before; ``names``: codes of names, in order of
    appearance.

    Raises:
        InputError: a message is no node.
    """
    block = NodeBlock()
    for (offset, message), position in zip(messages, positions, strict=False):
        try:
            node = pb.Node.FromString(message)
        except DecodeError:
            raise InputError(
                "is no Chakra graph: a message is no node", path=path, where=f"byte {offset}", todo=_TODO
            ) from None
        _add(block, node, position, names)
    return block


def _add(block: NodeBlock, node: Any, position: int, names: dict[str, int]) -> None:
    """Append what is read of a node. An attribute that stands there again overrules the one before."""
    data_deps, ctrl_deps = node.data_deps, node.ctrl_deps
    has, kinds, scalars, description = 0, None, ABSENT.copy(), ""
    first: dict[str, str] = {}  # values of attributes, made where one stands there again
    for attribute in node.attr:
        name = attribute.name
        expected = EXPECTED.get(name)
        if expected is not None:
            index, kind, bit, number = expected
            if has & bit:
                first = first or {a.name: _value(a) for a in reversed(list(node.attr))}
                if first[name] != _value(attribute):
                    again = f"{first[name]}, then {_value(attribute)}"
                    block.odd.append(OddAttribute(position, name, TWICE, again))
            has |= bit
            value = getattr(attribute, kind)
            # most are such integers: each call here takes half a second a million nodes
            known = number and (value or attribute.HasField(kind))
            scalars[index] = value if known else _integer(attribute, kind, position, block.odd)
        elif name == "dep_kinds":
            has |= HAS[name]
            kinds = bytes([_KIND_CODE.get(word, UNKNOWN_DEP) for word in attribute.string_list.values])
            if len(kinds) != len(data_deps):
                entries = f"{len(kinds)} entries"
                block.odd.append(OddAttribute(position, name, attribute.WhichOneof("value") or "", entries))
                kinds = None
        elif name == "sync_call":
            block.sync_call[position] = tuple(attribute.string_list.values) or (attribute.string_val,)
        elif name == "pg_desc":
            description = attribute.string_val
        elif name in HAS:
            has |= HAS[name]
    if description:
        block.group_names[scalars[_GROUP]] = description
    micros = min(node.start_time_micros, MOST_MICROS), min(node.duration_micros, MOST_MICROS)
    code = names.setdefault(node.name, len(names))
    block.rows.extend((code, node.type, *micros, has, len(data_deps), len(ctrl_deps), *scalars))
    block.id.append(node.id)
    block.data.extend(data_deps)
    block.data_kind += bytes([UNKNOWN_DEP]) * len(data_deps) if kinds is None else kinds
    block.ctrl.extend(ctrl_deps)


def _value(attribute: Any) -> str:
    kind = attribute.WhichOneof("value")
    return str(getattr(attribute, kind)).strip()[:80] if kind else ""


def _group(text: str) -> int:
    """Return a ``pg_name`` as a number: ``NO_GROUP`` for none, ``BAD_GROUP`` for what is none."""
    if not text:
        return NO_GROUP
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else BAD_GROUP


def _integer(attribute: Any, expected: str, position: int, odd: list[OddAttribute]) -> int:
    """Return the integer in an attribute of any kind; what is not of the expected kind, or no number in a text, is
    noted in ``odd``.
    """
    kind = attribute.WhichOneof("value") or ""
    value: Any = getattr(attribute, kind) if kind else None
    if kind == expected:
        number = _group(value) if kind == "string_val" else int(value)
        if kind != "string_val" or number != BAD_GROUP:
            return number
    odd.append(OddAttribute(position, attribute.name, kind, _value(attribute)))
    if isinstance(value, int):
        return min(int(value), _INT64)
    return BAD_GROUP if expected == "string_val" else 0
