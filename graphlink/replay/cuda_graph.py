"""A part of a run as a CUDA graph, as a what-if: its ops are not run on the host, one launch call launches all of its
device work.

On the device the order of streams and events inside stays, and what comes after it waits for all as before. Device ops
that follow others of the part wait for those alone, no longer for a launch.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np

from graphlink.errors import UsageError
from graphlink.graph_model import EdgeKind, NodeType
from graphlink.model import I64, NOWHERE, Bool
from graphlink.patterns import GRAPH_LAUNCH, LOADER
from graphlink.records import shortened
from graphlink.replay.changes import GraphChange
from graphlink.replay.rewire import Restructured, outermost, rewired
from graphlink.replay.selection import Selection
from graphlink.replay.times import QUICKEST, launches
from graphlink.replay.workload import Work, Workload, names_found

# between device ops, where the recording shows none: 1.0 us in a HIP graph (sglang_decode_graph), 1.1 on an A100
# (resnet-ddp2-a100)
GAP_US: Final = 1.0
_ON_DEVICE: Final = (EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.COLLECTIVE)
_PAGEABLE: Final = re.compile(r"Pageable")


def as_graphs(work: Workload, selection: Selection, change: GraphChange) -> Restructured:
    """Return ``work`` where each op or range that is chosen is one launch of a CUDA graph. n log n.

    ``selection`` is of the recording, whose nodes ``work`` has.

    Raises:
        UsageError: none is chosen, it launches nothing, or has what no graph can hold.
    """
    head = selection.nodes(change) & (work.work == Work.HOST) & ~work.is_part
    if not head.any():
        raise UsageError(
            f"{change.title}: no such op or range",
            todo="graphlink replay DIR --list host prints the names that there are",
        )
    owner = outermost(work, head)
    inside = np.flatnonzero(owner != NOWHERE)
    launched = _launched(work, owner)
    if (launched == NOWHERE).all():
        raise UsageError(
            f"{change.title}: launches no device work",
            todo="choose an op or range around its launches, on their thread",
        )
    _refuse(work, change, owner, launched)
    launch_ns, why = (round(change.launch_us * 1000), "given") if change.launch_us is not None else _launch_ns(work)
    heads = np.unique(launched[launched != NOWHERE])
    cost = work.cost_ns.copy()
    cost[inside[np.isin(owner[inside], heads)]] = 0
    cost[heads] = launch_ns
    out = replace(work, cost_ns=cost, micros_ns=np.maximum(work.micros_ns + cost - work.cost_ns, 0))
    ops = int(np.count_nonzero((launched != NOWHERE) & (work.work != Work.DELAY)))
    what = f"{len(heads):,} launches of {ops:,} device ops, {launch_ns / 1000:g} us each ({why})"
    shown, out = _with_gaps(_launched_once(out, launched), launched, change.gap_us)
    what += (
        "" if shown else f"; {GAP_US if change.gap_us is None else change.gap_us:g} us from one device op to the next"
    )
    return Restructured(out, what, len(inside), int((cost - work.cost_ns).sum()))


def _launched(work: Workload, owner: I64) -> I64:
    """Return for every device node the part that launched it, ``NOWHERE`` for others."""
    out = np.full(len(work), NOWHERE)
    launch = np.flatnonzero(work.kind == EdgeKind.LAUNCH)
    out[work.target[launch]] = owner[work.source[launch]]
    return out


def _launched_once(work: Workload, launched: I64) -> Workload:
    """Return ``work`` where device ops wait for the launch of their part alone, and only those that follow no other one
    of it.
    """
    target, launch = work.target, work.kind == EdgeKind.LAUNCH
    same = (launched[target] != NOWHERE) & (launched[work.source] == launched[target]) & np.isin(work.kind, _ON_DEVICE)
    follows = np.zeros(len(work), np.bool_)
    follows[target[same]] = True
    mine = launch & (launched[target] != NOWHERE)
    source = np.where(mine, launched[target], work.source).astype(np.int32)
    return rewired(replace(work, source=source), mine & follows[target])


def _with_gaps(work: Workload, launched: I64, gap_us: float | None) -> tuple[bool, Workload]:
    """Let a device take ``gap_us`` from one op of a part to the next, unless the recording shows what it takes; tell
    whether it does.

    Ops that waited for their launch, one by one, show nothing of that.
    """
    target, lags = work.target, work.lags().copy()
    same = (launched[target] != NOWHERE) & (launched[work.source] == launched[target]) & (work.kind == EdgeKind.STREAM)
    if gap_us is None and (not same.any() or lags[same].any()):
        return True, work
    gap_ns = round(1000 * (GAP_US if gap_us is None else gap_us))
    lags[same] = np.maximum(gap_ns - work.fixed_ns[target[same]], 0)
    return False, replace(work, lag_ns=lags)


def _launch_ns(work: Workload) -> tuple[int, str]:
    """Estimate what the launch of a graph takes the host, and say from what."""
    graph = names_found(work, GRAPH_LAUNCH, families=False) & (work.work == Work.HOST) & (work.cost_ns > 0)
    if graph.any():
        return round(float(np.median(work.cost_ns[graph]))), "the median of those in the recording"
    count = launches(work)
    alone = work.cost_ns[(count == 1) & (work.work == Work.HOST) & (work.cost_ns > 0)]
    if not len(alone):
        alone = work.cost_ns[(count > 0) & (work.cost_ns > 0)]
    if not len(alone):
        return 0, "the recording does not show what a launch takes"
    return round(
        float(np.quantile(alone, QUICKEST))
    ), "as the quickest ops with one launch, the recording has no launch of a graph"


def _refuse(work: Workload, change: GraphChange, owner: I64, launched: I64) -> None:
    """Refuse a part that no graph can hold, naming what it is. Raises UsageError."""
    inner = (owner != NOWHERE) & (owner != np.arange(len(work)))
    for why, node in (
        ("waits for the device in", _first(inner[work.target] & (work.kind == EdgeKind.SYNC), work.target)),
        ("waits for another thread in", _first(inner[work.target] & (work.kind == EdgeKind.THREAD), work.target)),
        ("loads data in", _first_of((owner != NOWHERE) & names_found(work, LOADER))),
        ("communicates on the host in", _first_of((launched != NOWHERE) & _on_host(work))),
        (
            "copies from or to pageable memory, which blocks, in",
            _first_of((launched != NOWHERE) & names_found(work, _PAGEABLE)),
        ),
    ):
        if node is not None:
            part = launched[node] if launched[node] != NOWHERE else owner[node]
            raise UsageError(
                f"{change.title}: {shortened(work.name(int(part)))} cannot be a graph: it {why} "
                f"{shortened(work.name(node))} "
                f"(node {work.id(node)})",
                todo="choose parts before and after it, or take it out first, as --remove-sync does with waits",
            )


def _on_host(work: Workload) -> Bool:
    """Mark communication on the host (gloo)."""
    kind = np.isin(work.column("type"), (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV))
    out: Bool = kind & (work.column("device") == NOWHERE)
    return out


def _first(edges: Bool, target: I64) -> int | None:
    return int(target[np.flatnonzero(edges)[0]]) if edges.any() else None


def _first_of(nodes: Bool) -> int | None:
    return int(np.flatnonzero(nodes)[0]) if nodes.any() else None
