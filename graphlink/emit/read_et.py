"""Reads a ``.et`` back: its frames, and one node with the edges around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chakra.schema.protobuf import et_def_pb2 as pb
from google.protobuf.message import DecodeError

from graphlink.errors import InputError

_NO_ET = "name a .et file of graphlink or Chakra"


@dataclass(frozen=True, slots=True)
class Edge:
    """A dependency seen from one of its ends: ``id`` and ``name`` of the other; ``kind`` is "" where the file has no ``dep_kinds``."""

    id: int
    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node, what it waits for, and what waits for it."""

    node: Any  # pb.Node
    before: tuple[Edge, ...]
    after: tuple[Edge, ...]
    callers: tuple[Edge, ...]


def frames(path: Path) -> Iterator[bytes]:
    """The messages of a ``.et``.

    Raises:
        InputError: it cannot be read, or a length does not fit, with the byte where.
    """
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise InputError(f"cannot be read: {problem.strerror}", path=path) from None
    at = 0
    while at < len(data):
        start, size, shift = at, 0, 0
        while True:
            if at >= len(data) or shift > 35:
                raise InputError("is no Chakra graph: a message has no proper length", path=path, where=f"byte {start}", todo=_NO_ET)
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if at + size > len(data):
            raise InputError(
                f"is cut off, or no Chakra graph: a message of {size} bytes, {len(data) - at} left",
                path=path,
                where=f"byte {start}",
                todo=_NO_ET,
            )
        yield data[at : at + size]
        at += size


def view(path: Path, wanted: int) -> NodeView:
    """Node ``wanted`` of the graph at ``path``. One pass over the file.

    Raises:
        InputError: it is no ``.et``, or has no such node.
    """
    found: Any = None
    names: dict[int, str] = {}
    after: list[Edge] = []
    for number, message in enumerate(frames(path)):
        if number == 0:
            continue
        node = _node(path, number, message)
        names[node.id] = node.name
        if node.id == wanted:
            found = node
        if wanted in node.data_deps:
            kinds = dep_kinds(node)
            at = list(node.data_deps).index(wanted)
            after.append(Edge(node.id, node.name, kinds[at] if at < len(kinds) else ""))
    if found is None:
        last = f": its ids run from {min(names)} to {max(names)}" if names else ""
        raise InputError(f"has no node {wanted}{last}", path=path, todo="choose another --node")
    kinds = dep_kinds(found)
    before = tuple(Edge(d, names.get(d, "?"), kinds[i] if i < len(kinds) else "") for i, d in enumerate(found.data_deps))
    callers = tuple(Edge(d, names.get(d, "?"), "caller") for d in found.ctrl_deps)
    return NodeView(found, before, tuple(after), callers)


def dep_kinds(node: Any) -> list[str]:
    for attr in node.attr:
        if attr.name == "dep_kinds":
            return list(attr.string_list.values)
    return []


def _node(path: Path, number: int, message: bytes) -> Any:
    try:
        return pb.Node.FromString(message)
    except DecodeError:
        raise InputError("is no Chakra graph: a message is no node", path=path, where=f"message {number}", todo=_NO_ET) from None
