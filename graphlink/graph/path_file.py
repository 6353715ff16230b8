"""``critical_path.<rank>.json``: the critical path of the replay node by node, the slack of every node, and the largest
gains.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from graphlink.errors import InputError
from graphlink.graph.critical import SHARES, CriticalChain, ShareNs, path_by_lags, shares
from graphlink.graph.gains import Gains, top_gains
from graphlink.graph.slack import slack, without_queues
from graphlink.graph.write_et import KINDS
from graphlink.graph_model import Graph
from graphlink.model import I32, I64, Communication, Linked
from graphlink.read import document
from graphlink.read.document import AGAIN
from graphlink.records import Short
from graphlink.tables import numbered_values

_WHAT: Final = "critical path of this version of graphlink"


class PathNodes(Short, msgspec.Struct, frozen=True, kw_only=True):
    """The path, first node first: columns with one entry per node (a data frame as it stands).

    A node was delayed by the one before it, by a dependency of kind ``held_by`` (None at the start of the path), and
    starts in the replay when that one ends: at the sum of ``cost_ns`` before it. ``name``, ``share`` and ``held_by``
    are positions in ``names``, ``shares`` and ``edge_kinds``.
    """

    id: list[int]
    name: list[int]
    share: list[int]
    held_by: list[int | None]
    start_ns: list[int]  # as recorded
    cost_ns: list[int]  # with what is before its work, which is idle
    start_delay_ns: list[int]  # and launch latency, where the launch delayed the node


class PathFile(Short, msgspec.Struct, frozen=True, kw_only=True):
    """``slack_ns`` has one entry per node of the graph, in the order of ids: how much later it could end without
    anything ending later.

    ``notes``: what to know of the graph before reading names.
    """

    rank: int
    length_ns: int
    share_ns: ShareNs
    gains: Gains
    shares: list[str]
    edge_kinds: list[str]
    names: list[str]
    nodes: PathNodes
    slack_ns: list[int]
    notes: list[str] = []


class Explained(msgspec.Struct, frozen=True):
    """The critical path of a replay, the slack of each node (``slack_ns``), the largest gains, and that of each
    operation, ``NOWHERE`` where it is none of the largest.
    """

    path: CriticalChain
    slack_ns: I64
    gains: Gains
    operation_gain_ns: I64


def explain(
    graph: Graph,
    linked: Linked,
    comm: Communication,
    end_ns: I64,
    cost_ns: I64,
    top: int = 100,
    operation: I32 | None = None,
) -> Explained:
    """Find critical path, slack and the ``top`` largest gains from one replay (``end_ns``, ``cost_ns``: one entry per
    node). O(n log n).

    ``operation``: which operation each node is part of, ``NOWHERE`` for none.
    """
    share = shares(graph, linked, comm)
    late = slack(graph, end_ns, cost_ns)
    path = path_by_lags(graph, end_ns, late.lag_ns, share)
    slacks = late, without_queues(graph, late, cost_ns)
    gains, operation_gain_ns = top_gains(graph, linked, slacks, path, share, top, operation)
    return Explained(path, late.node_ns, gains, operation_gain_ns)


def encode(rank: int, graph: Graph, found: Explained, notes: Sequence[str] = ()) -> bytes:
    """Return the file's bytes."""
    path = found.path
    at = path.node
    used, name = numbered_values(graph.name[at])
    edges: list[int | None] = path.edge.tolist()
    if edges:
        edges[0] = None
    whole = PathFile(
        rank=rank,
        length_ns=path.length_ns,
        share_ns=ShareNs(**path.share_ns),
        gains=found.gains,
        shares=list(SHARES),
        edge_kinds=list(KINDS),
        names=[graph.strings[k] for k in used.tolist()],
        nodes=PathNodes(
            id=graph.id[at].tolist(),
            name=name.tolist(),
            share=path.share.tolist(),
            held_by=edges,
            start_ns=graph.start_ns[at].tolist(),
            cost_ns=path.cost_ns.tolist(),
            start_delay_ns=path.late_ns.tolist(),
        ),
        slack_ns=found.slack_ns.tolist(),
        notes=list(notes),
    )
    return msgspec.json.encode(whole) + b"\n"


def load(path: Path) -> PathFile:
    """Read a file of an earlier run.

    Raises:
        InputError: it cannot be read, or is none of ours.
    """
    file = document.load(path, PathFile, _WHAT, AGAIN)
    kinds = [edge for edge in file.nodes.held_by if edge is not None]
    refuse_broken(path, file, ("name", file.nodes.name, file.names), ("held_by", kinds, file.edge_kinds))
    return file


def refuse_broken(path: Path, file: Any, *coded: tuple[str, list[int], list[str]]) -> None:
    """Refuse ``nodes`` of a file whose columns have different lengths, or hold codes that no entry of their table has:
    shares, and what is ``coded`` (name, codes, table).

    Raises:
        InputError: it is so.
    """
    columns = {name: len(getattr(file.nodes, name)) for name in file.nodes.__struct_fields__}
    if len(set(columns.values())) > 1:
        lengths = ", ".join(f"{name} {length:,}" for name, length in columns.items())
        raise InputError("its columns are not of one length", path=path, where=f"nodes: {lengths}", todo=AGAIN)
    for name, codes, table in (*coded, ("share", file.nodes.share, file.shares)):
        if codes and not 0 <= min(codes) <= max(codes) < len(table):
            raise InputError(f"{name} names an entry that is not there", path=path, where=f"nodes.{name}", todo=AGAIN)


class _Length(msgspec.Struct):
    length_ns: int


def length_ns(path: Path) -> int:
    """Read the length of the critical path in a file, without reading the rest into memory.

    Raises:
        InputError: as ``load``.
    """
    return document.load(path, _Length, _WHAT, AGAIN).length_ns
