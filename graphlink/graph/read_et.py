"""Reads a Chakra ``.et``, ours or others', into a ``Graph``.

In: a file of length-prefixed messages of ``chakra.schema.protobuf.et_def_pb2``: one ``GlobalMetadata``, then ``Node``s;
plain, gzip or zstd. Out: ``Graph``. Nothing is repaired: dependencies that lead nowhere, stand twice or lead to their
own node are kept in ``Graph.file.faults``, attributes of another kind than readers expect in ``odd``.

Linear in nodes and edges; some MB of messages at a time are in memory, and the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from chakra.schema.protobuf import et_def_pb2 as pb
from google.protobuf.message import DecodeError

from graphlink.errors import InputError
from graphlink.graph.et_columns import NodeBlock, assemble
from graphlink.graph.et_nodes import TODO, Forms, decoded
from graphlink.graph_model import Graph, Metadata
from graphlink.read.source import Source, open_source

_READ: Final = 1 << 21  # bytes
_LONGEST: Final = 1 << 31  # of a message, as in protobuf


def read_et(path: str | Path, forms: Forms | None = None) -> Graph:
    """Read the graph at ``path``; ``forms``: those of nodes that were read before, of files of the same run.

    Raises:
        InputError: the file cannot be read, is cut off, is no ``.et``, or does not begin with a ``GlobalMetadata``;
            with the byte.
    """
    path = Path(path)
    with open_source(path) as source:
        blocks = _blocks(source)
        head = next(blocks, None)
        if head is None:
            raise InputError("is empty", path=path, todo=TODO)
        metadata = _metadata(path, head[0][1])
        names: dict[str, int] = {}
        nodes = _decoded(path, names, forms or Forms(), chain([head[1:]], blocks))
        return assemble(str(path), metadata, names, nodes)


def read_metadata(path: Path) -> Metadata:
    """Read what the graph at ``path`` says of itself, and nothing of its nodes.

    Raises:
        InputError: as ``read_et``.
    """
    with open_source(path) as source:
        first = next(frames(source), None)
    if first is None:
        raise InputError("is empty", path=path, todo=TODO)
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
            todo=TODO,
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
                todo=TODO,
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
            todo=TODO,
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
    path: Path, names: dict[str, int], forms: Forms, blocks: Iterable[list[tuple[int, bytes]]]
) -> Iterator[NodeBlock]:
    first = 0
    for block in blocks:
        if block:
            yield decoded(path, names, forms, first, block)
        first += len(block)
