"""``graphlink show``: an earlier run's summary, or one node of a graph."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from graphlink import output_names
from graphlink.choices import Option, VerbOptions
from graphlink.cli.arguments import count, flag
from graphlink.cli.out import tell
from graphlink.errors import InputError, UsageError
from graphlink.records import Lines, Table
from graphlink.wings import each

if TYPE_CHECKING:
    from graphlink.graph.node_view import Edge, NodeView
MOST_EDGES: Final = 50  # of one direction that are listed


SHOW_OPTIONS: Final = VerbOptions(
    (
        Option("what", metavar="DIR|FILE.et", help="output folder of an earlier run, or a graph"),
        Option("--node", type=count, metavar="ID", help="the node of FILE.et to print, with its edges"),
        flag("-v", "--verbose", help="of a folder: with all that was counted"),
    ),
)


def show(arguments: argparse.Namespace) -> int:
    """Print a summary, or a node; 0.

    Raises:
        InputError: there is no such file, summary or node.
        UsageError: ``--node`` with a folder, or a graph without it.
    """
    path = Path(arguments.what)
    if path.is_dir():
        if arguments.node is not None:
            raise UsageError("--node is for a graph, and this is a folder", path=path, todo="name the .et file")
        from graphlink.report import summary

        for made in (hooks.shown(path, arguments.what) for _, hooks in each()):
            if made is not None:
                tell(arguments.json, made.data, functools.partial(list, made.lines))
                return 0
        whole = summary.load(path / output_names.SUMMARY)
        tell(
            arguments.json,
            whole,
            lambda: summary.table(whole, verbose=arguments.verbose, folder=arguments.what),
            most=summary.WIDE,
        )
        return 0
    if not path.exists():
        raise InputError(
            "there is no such file or folder", path=path, todo="name the folder that an earlier run wrote with --out"
        )
    if arguments.node is None:
        raise UsageError(
            "a graph is shown a node at a time", path=path, todo="add --node ID, or name the folder for its summary"
        )
    from graphlink.graph.node_view import view

    seen = view(path, arguments.node)
    tell(arguments.json, seen, lambda: _node(seen))
    return 0


def _node(seen: NodeView) -> Lines:
    texts = [
        (name, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for name, value in seen.attributes.items()
    ]
    return [
        f"node {seen.id}  {seen.name}",
        f"  {seen.type}, {seen.duration_micros} us",
        *([Table(texts)] if texts else []),
        *_edges("waits for (data_deps)", seen.data_deps),
        *_edges("called by (ctrl_deps)", seen.ctrl_deps),
        *_edges("is waited for by", seen.awaited_by),
    ]


def _edges(title: str, edges: Sequence[Edge]) -> Lines:
    if not edges:
        return [f"{title}: none"]
    listed = Table([(e.kind or "?", f"{e.id}", e.name) for e in edges[:MOST_EDGES]], align="<>")
    more = [f"  ... and {len(edges) - MOST_EDGES} more"] if len(edges) > MOST_EDGES else []
    return [f"{title}: {len(edges)}", listed, *more]
