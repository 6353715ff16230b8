"""Reads one node of a ``.et`` back, with the edges around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from chakra.schema.protobuf import et_def_pb2 as pb
from google.protobuf.message import DecodeError

from graphlink.errors import InputError
from graphlink.graph.read_et import frames
from graphlink.graph.write_et import type_name
from graphlink.read.source import open_source

_NO_ET = "name a .et file of graphlink or Chakra"


Value = int | float | bool | str | list[int | float | bool | str]


class Edge(msgspec.Struct, frozen=True):
    """A dependency seen from one of its ends: ``id`` and ``name`` of the other; ``kind`` is "" where the file has no
    ``dep_kinds``.
    """

    id: int
    name: str
    kind: str


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node, what it waits for, and what waits for it.

    ``attributes``: with its inputs and outputs, without ``dep_kinds``, which the edges have.
    """

    id: int
    name: str
    type: str
    duration_micros: int
    attributes: dict[str, Value]
    data_deps: list[Edge]
    ctrl_deps: list[Edge]
    awaited_by: list[Edge]


def view(path: Path, wanted: int) -> NodeView:
    """Read node ``wanted`` of the graph at ``path`` (plain, gzip or zstd). One pass over the file.

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
                after.append(Edge(node.id, node.name, dep_kinds(node)[list(node.data_deps).index(wanted)]))
    if found is None:
        last = f": its ids run from {min(names)} to {max(names)}" if names else ""
        raise InputError(f"has no node {wanted}{last}", path=path, todo="choose another --node")
    return NodeView(
        id=found.id,
        name=found.name,
        type=type_name(found.type),
        duration_micros=found.duration_micros,
        attributes=_attributes(found),
        data_deps=[
            Edge(d, names.get(d, "?"), kind) for d, kind in zip(found.data_deps, dep_kinds(found), strict=False)
        ],
        ctrl_deps=[Edge(d, names.get(d, "?"), "caller") for d in found.ctrl_deps],
        awaited_by=after,
    )


def _attributes(node: Any) -> dict[str, Value]:
    out: dict[str, Value] = {}
    for attr in node.attr:
        kind = attr.WhichOneof("value")
        value: Any = "" if kind is None else getattr(attr, kind)
        if attr.name != "dep_kinds":
            name = attr.name if attr.name not in out else f"{attr.name} (again)"
            listed = kind is not None and kind.endswith("_list")
            out[name] = [_shown(one) for one in value.values] if listed else _shown(value)
    for title, io in (("inputs", node.inputs), ("outputs", node.outputs)):
        out |= {
            f"{title} {part}": str(getattr(io, part)) for part in ("values", "shapes", "types") if getattr(io, part)
        }
    return out


def _shown(value: Any) -> Any:
    return str(value) if isinstance(value, bytes) else value


def dep_kinds(node: Any) -> list[str]:
    """Return the kind of each dependency; "" where the node does not say it."""
    told = next((list(attr.string_list.values) for attr in node.attr if attr.name == "dep_kinds"), [])
    return told + [""] * (len(node.data_deps) - len(told))


def _node(path: Path, where: str, message: bytes) -> Any:
    try:
        return pb.Node.FromString(message)
    except DecodeError:
        raise InputError("is no Chakra graph: a message is no node", path=path, where=where, todo=_NO_ET) from None
