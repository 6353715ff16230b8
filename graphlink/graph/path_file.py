"""``critical_path.<rank>.json``: the critical path of the replay node by node, the slack of every node, and the largest gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from graphlink.errors import InputError
from graphlink.graph import gains as find
from graphlink.graph.critical import CriticalPath, Share, ShareNs, path_by_lags, shares
from graphlink.graph.names import Names, names
from graphlink.graph.slack import slack, spans
from graphlink.graph.syncpoints import SyncGain, calls_of, sync_gains, sync_points
from graphlink.model import I64, Communication, EdgeKind, Graph, Linked
from graphlink.read import document
from graphlink.records import Short

SHARES: Final = tuple(s.name.lower() for s in Share)
_WHAT: Final = "critical path of this version of graphlink"
_TODO: Final = "run graphlink again with --force"
EDGE_KINDS: Final = tuple(k.name.lower() for k in EdgeKind)


class PathNodes(Short, msgspec.Struct, frozen=True, kw_only=True):
    """The path, first node first: columns with one entry a node (a data frame as it stands).

    A node was held back by the one before it, by a dependency of kind ``held_by`` (None at the start of the path), and starts in the
    replay when that one ends: at the sum of ``cost_ns`` before it. ``name``, ``share`` and ``held_by`` are positions in ``names``,
    ``shares`` and ``edge_kinds``.
    """

    id: list[int]
    name: list[int]
    share: list[int]
    held_by: list[int | None]
    start_ns: list[int]  # as recorded
    cost_ns: list[int]  # with what is before its work, which is idle
    start_delay_ns: list[int]  # and launch latency, where the launch held the node back


class OpGain(msgspec.Struct, frozen=True, kw_only=True):
    """An op: ``nodes`` are itself (``id``) and its ``(cont.)`` parts, as far as they cost anything."""

    gain_ns: int
    on_path_ns: int  # of its work, what is on the critical path
    work_ns: int
    share: str
    id: int
    name: str
    nodes: list[int]


class FamilyGain(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes of one name; ``count`` of them cost anything."""

    gain_ns: int
    on_path_ns: int
    work_ns: int
    share: str
    name: str
    count: int


class SyncPointGain(msgspec.Struct, frozen=True, kw_only=True):
    """A synchronisation call: without ``edges`` ([source, target] each) the rank would end ``gain_ns`` earlier.

    ``id`` is the first node behind the wait, ``waited_for`` the device op that the critical path came from. ``call`` is "" where the
    recording does not show which call it was.
    """

    gain_ns: int
    id: int
    name: str
    call: str
    waited_for: int
    waited_for_name: str
    edges: list[list[int]]


class Gains(Short, msgspec.Struct, frozen=True, kw_only=True):
    """How much earlier the rank would end if a thing took no time: each recomputed, none to be added to another.

    The largest of each sort, largest first; what is not listed gains at most ``..._others_at_most_ns``. Work takes no time, start
    delays stay (they are ``idle``).
    """

    shares: ShareNs
    ops: list[OpGain]
    ops_others_at_most_ns: int
    families: list[FamilyGain]
    families_others_at_most_ns: int
    sync_points: list[SyncPointGain]
    sync_points_others_at_most_ns: int


class PathFile(Short, msgspec.Struct, frozen=True, kw_only=True):
    """``slack_ns`` has one entry a node of the graph, by id: how much later it could end without anything ending later.

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


@dataclass(frozen=True, slots=True)
class Explained:
    """``slack_ns`` has one entry a node. ``syncs`` are the ``top`` sync points that gain most, ``calls`` the names of their calls."""

    path: CriticalPath
    slack_ns: I64
    names: Names
    gains: find.Gains
    syncs: tuple[SyncGain, ...]
    calls: tuple[str, ...]
    syncs_others_at_most_ns: int


def explain(graph: Graph, linked: Linked, comm: Communication, end_ns: I64, cost_ns: I64, top: int = 100) -> Explained:
    """Find critical path, slack and the ``top`` largest gains from one replay (``end_ns``, ``cost_ns``: one entry a node). O(n log n)."""
    share = shares(graph, linked, comm)
    late = slack(graph, end_ns, cost_ns)
    path = path_by_lags(graph, end_ns, late.lag_ns, share)
    ways = spans(graph, late)
    named = names(graph, linked)
    gains = find.top_gains(find.Replayed(graph, late, ways, path, share, named.code), top)
    syncs = sync_gains(graph, sync_points(graph), late, ways, path)
    listed = syncs[:top]
    others = max((s.gain_ns for s in syncs[top : top + 1]), default=0)
    return Explained(path, late.node_ns, named, gains, listed, calls_of(graph, linked, listed), others)


def encode(rank: int, graph: Graph, found: Explained, notes: Sequence[str] = ()) -> bytes:
    """The file's bytes."""
    path, code = found.path, found.names.code
    at = path.node
    used, name = np.unique(code[at], return_inverse=True)
    edges: list[int | None] = path.edge.tolist()
    if edges:
        edges[0] = None
    whole = PathFile(
        rank=rank,
        length_ns=path.length_ns,
        share_ns=ShareNs(**path.share_ns),
        gains=_gains(graph, found),
        shares=list(SHARES),
        edge_kinds=list(EDGE_KINDS),
        names=[found.names.texts[k] for k in used.tolist()],
        nodes=PathNodes(
            id=at.tolist(),
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


def _gains(graph: Graph, found: Explained) -> Gains:
    ops, families, texts, code = found.gains.ops, found.gains.families, found.names.texts, found.names.code

    def common(gain: find.Gain) -> dict[str, int]:
        return {"gain_ns": gain.gain_ns, "on_path_ns": gain.path_ns, "work_ns": gain.work_ns}

    def ends(edge: int) -> list[int]:
        return [int(graph.source[edge]), int(np.searchsorted(graph.first, edge, side="right")) - 1]

    return Gains(
        shares=ShareNs(**found.gains.share_ns),
        ops=[OpGain(**common(g), share=SHARES[g.share], id=g.label, name=texts[code[g.label]], nodes=list(g.nodes)) for g in ops.gains],
        ops_others_at_most_ns=ops.others_at_most_ns,
        families=[FamilyGain(**common(g), share=SHARES[g.share], name=texts[g.label], count=g.count) for g in families.gains],
        families_others_at_most_ns=families.others_at_most_ns,
        sync_points=[
            SyncPointGain(
                gain_ns=s.gain_ns,
                id=s.point.target,
                name=texts[code[s.point.target]],
                call=call,
                waited_for=s.source,
                waited_for_name=texts[code[s.source]],
                edges=[ends(e) for e in s.point.edge],
            )
            for s, call in zip(found.syncs, found.calls, strict=True)
        ],
        sync_points_others_at_most_ns=found.syncs_others_at_most_ns,
    )


def load(path: Path) -> PathFile:
    """A file of an earlier run.

    Raises:
        InputError: it cannot be read, or is none of ours.
    """
    file = document.load(path, PathFile, _WHAT, _TODO)
    nodes = file.nodes
    columns = {name: len(getattr(nodes, name)) for name in nodes.__struct_fields__}
    if len(set(columns.values())) > 1:
        lengths = ", ".join(f"{name} {length:,}" for name, length in columns.items())
        raise InputError("its columns are not of one length", path=path, where=f"nodes: {lengths}", todo=_TODO)
    kinds = [edge for edge in nodes.held_by if edge is not None]
    for name, codes, table in (("name", nodes.name, file.names), ("share", nodes.share, file.shares), ("held_by", kinds, file.edge_kinds)):
        if codes and not 0 <= min(codes) <= max(codes) < len(table):
            raise InputError(f"{name} names an entry that is not there", path=path, where=f"nodes.{name}", todo=_TODO)
    return file


class _Length(msgspec.Struct):
    length_ns: int


def length_ns(path: Path) -> int:
    """The length of the critical path in a file, without reading the rest into memory.

    Raises:
        InputError: as ``load``.
    """
    return document.load(path, _Length, _WHAT, _TODO).length_ns
