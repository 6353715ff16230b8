"""Reads one node of a ``.et`` back, with the edges around it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chakra.schema.protobuf import et_def_pb2 as pb
from google.protobuf.message import DecodeError

from graphlink.errors import InputError
from graphlink.read.chakra import frames
from graphlink.read.source import open_source

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


def view(path: Path, wanted: int) -> NodeView:
    """Node ``wanted`` of the graph at ``path`` (plain, gzip or zstd). One pass over the file.

    Raises:
        InputError: it is no ``.et``, or has no such node.
    """
    found: Any = None
    names: dict[int, str] = {}
    after: list[Edge] = []
    with open_source(path) as source:
        messages = frames(source)
        next(messages, None)  # GlobalMetadata
        for at, message in messages:
            node = _node(path, source.where(at), message)
            names[node.id] = node.name
            if node.id == wanted:
                found = node
            if wanted in node.data_deps:
                kinds = dep_kinds(node)
                place = list(node.data_deps).index(wanted)
                after.append(Edge(node.id, node.name, kinds[place] if place < len(kinds) else ""))
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


def _node(path: Path, where: str, message: bytes) -> Any:
    try:
        return pb.Node.FromString(message)
    except DecodeError:
        raise InputError("is no Chakra graph: a message is no node", path=path, where=where, todo=_NO_ET) from None
