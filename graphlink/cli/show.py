"""``graphlink show``: an earlier run's summary, or one node of a graph."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from graphlink.errors import InputError, UsageError

MOST_EDGES: Final = 50  # of one direction that are listed


def show(arguments: argparse.Namespace) -> str:
    """The text to print.

    Raises:
        InputError: there is no such file, summary or node.
        UsageError: ``--node`` with a folder, or a graph without it.
    """
    path = Path(arguments.what)
    if path.is_dir():
        if arguments.node is not None:
            raise UsageError("--node is for a graph, and this is a folder", path=path, todo="name the .et file")
        return _summary(path)
    if not path.exists():
        raise InputError("there is no such file or folder", path=path)
    if arguments.node is None:
        raise UsageError("a graph is shown a node at a time", path=path, todo="add --node ID, or name the folder for its summary")
    return _node(path, arguments.node)


def _summary(folder: Path) -> str:
    from graphlink.emit import summary

    return summary.table(summary.load(folder / summary.NAME))


def _node(path: Path, wanted: int) -> str:
    from graphlink.emit.chakra import type_name
    from graphlink.emit.read_et import view

    seen = view(path, wanted)
    node = seen.node
    kind = type_name(node.type)
    lines = [f"node {node.id}  {plain(node.name)}", f"  {kind}, {node.duration_micros} us"]
    attributes = [(a.name, _value(a)) for a in node.attr if a.name != "dep_kinds"]
    for title, io in (("inputs", node.inputs), ("outputs", node.outputs)):
        attributes += [(f"{title} {part}", getattr(io, part)) for part in ("values", "shapes", "types") if getattr(io, part)]
    width = max((len(name) for name, _ in attributes), default=0)
    lines += [f"  {plain(name):<{width}}  {plain(value)}" for name, value in attributes]
    lines += _edges("waits for (data_deps)", seen.before)
    lines += _edges("called by (ctrl_deps)", seen.callers)
    lines += _edges("is waited for by", seen.after)
    return "\n".join(lines)


def _edges(title: str, edges: Sequence[Any]) -> list[str]:
    lines = [f"{title}: {len(edges) or 'none'}"]
    lines += [f"  {e.kind or '?':<10}  {e.id:>8}  {plain(e.name)}" for e in edges[:MOST_EDGES]]
    if len(edges) > MOST_EDGES:
        lines.append(f"  ... and {len(edges) - MOST_EDGES} more")
    return lines


def _value(attr: Any) -> str:
    kind = attr.WhichOneof("value")
    if kind is None:
        return ""
    value = getattr(attr, kind)
    return ", ".join(map(str, value.values)) if kind.endswith("_list") else str(value)


def plain(text: str) -> str:
    """Without what a terminal would act on."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
