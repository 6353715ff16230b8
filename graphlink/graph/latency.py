"""Parts of a device op's delay that overlap (CONTRACT, "Clocks of host and device").

Recorded, an op begins a delay after the last of its dependencies has ended. Launch latency runs from the launch, in
parallel with the work before on the stream; a stream takes its time from one op to the next, in parallel with the
launch. Of the two only that shows which ended last. So the delay is split by what is usual: what both explain, as far
as there is room for it, and a rest. The op then begins when the lags of all its dependencies are over, and the rest
later: as recorded where all is as recorded, and right with other costs.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from graphlink.choices import LATENCY_NS
from graphlink.graph.order import blocks
from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.model import I32, I64, U8, Bool

FEW: Final = 10  # ops that came after their stream, below which they do not say what is usual
_NEVER: Final = np.iinfo(np.int64).min // 2
_DEVICE: Final = np.isin(np.arange(256), (EdgeKind.STREAM, EdgeKind.EVENT, EdgeKind.COLLECTIVE))


class Delayed(msgspec.Struct, frozen=True):
    """The delay of each node: how long after its launch and after the device ops that it waits for it may begin, and
    what of its delay is thereby explained."""

    launch_ns: I64
    stream_ns: I64
    explained_ns: I64


def delayed(first: I64, source: I32, kind: U8, latency_ns: I64, end_ns: I64, begin_ns: I64, delay_ns: I64) -> Delayed:
    """Split delays, which begin at ``begin_ns`` and last ``delay_ns``; ``end_ns`` is when each node has ended, or
    launched.

    One entry per node; ``first``, ``source``, ``kind``: the dependencies, CSR by target. Only nodes with a latency have
    lags; that of their stream is the median of those that came after their stream. Linear.
    """
    launched_ns, free_ns = _last_ns(first, source, kind, latency_ns > 0, end_ns)
    until_ns, has = begin_ns + delay_ns, launched_ns != _NEVER
    launch_ns = np.where(has, np.clip(latency_ns, 0, np.maximum(until_ns - launched_ns, 0)), 0)
    short = (delay_ns > 0) & (delay_ns <= LATENCY_NS)
    shown = has & (launched_ns + launch_ns <= free_ns) & (free_ns == begin_ns) & short
    usual = int(np.median(delay_ns[shown])) if np.count_nonzero(shown) >= FEW else 0
    stream_ns = np.where(has & (free_ns != _NEVER), np.clip(usual, 0, np.maximum(until_ns - free_ns, 0)), 0)
    explained = np.maximum(launched_ns + launch_ns, free_ns + stream_ns) - begin_ns
    return Delayed(launch_ns, stream_ns, np.where(has, np.clip(explained, 0, delay_ns), 0))


def _last_ns(first: I64, source: I32, kind: U8, wanted: Bool, end_ns: I64) -> tuple[I64, I64]:
    """Return when the last launch of each wanted node had ended, and the last of the device ops that it comes after;
    ``_NEVER`` without one."""
    launched, free = np.full(len(end_ns), _NEVER), np.full(len(end_ns), _NEVER)
    for block in blocks(first):
        of, target = kind[block.edges], block.target
        mine = np.flatnonzero(wanted[target])
        of, target, ends = of[mine], target[mine], end_ns[source[block.edges][mine]]
        for chosen, out in ((of == EdgeKind.LAUNCH, launched), (_DEVICE[of], free)):
            np.maximum.at(out, target[chosen], ends[chosen])
    return launched, free


def lag_ns(target: I64, kind: U8, launch_ns: I64, stream_ns: I64, sync_ns: I64) -> I64:
    """Return for each edge how long after the end of its source its target may begin: ``launch_ns`` of the target over
    ``launch`` edges, ``stream_ns`` over ``stream``, ``event`` and ``collective`` edges, ``sync_ns`` over ``sync``
    edges."""
    out = np.zeros(len(kind), np.int64)
    of_launch, of_sync = (kind == code for code in (EdgeKind.LAUNCH, EdgeKind.SYNC))
    for which, ns in ((of_launch, launch_ns), (_DEVICE[kind], stream_ns), (of_sync, sync_ns)):
        edge = np.flatnonzero(which)
        out[edge] = ns[target[edge]]
    return out


def costs(graph: Graph, end_ns: I64, cost_ns: I64) -> tuple[I64, I64]:
    """Return costs from when nodes may begin, and lags of edges, with which all ends as in a replay in which delays ran
    after all else.

    ``end_ns``: of each node in that replay. Linear.
    """
    delay = np.where(graph.kind == NodeKind.DEVICE_DELAY, graph.duration_ns, graph.start_delay_ns)
    split = delayed(
        graph.first, graph.source, graph.edge_kind, graph.launch_latency_ns, end_ns, end_ns - cost_ns, delay
    )
    none = np.zeros_like(cost_ns)
    return cost_ns - split.explained_ns, lag_ns(graph.target, graph.edge_kind, split.launch_ns, split.stream_ns, none)
