"""The latency of launches runs beside all else that a device op waits for (CONTRACT, "Clocks of host and device").

Recorded, an op begins at R + D: R is when the last of its dependencies had ended, D its delay. Where the launch came last, D holds the
latency of the launch; where the work before it on its stream did, it does not, though the latency ran as well. So with ``L`` the end of
the launching node and ``l`` the latency, the delay is split: what lies before L + l is explained, the rest stays. Then the op begins at
the later of L + l and the other dependencies, plus the rest: as recorded with all as recorded, and right with other costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.annotate.blocks import Block
from graphlink.model import I32, I64, U8, EdgeKind, Graph, NodeKind


@dataclass(frozen=True, slots=True)
class Lags:
    """How long after the end of its source a dependency lets its target begin: over ``launch`` edges ``launch_ns`` of the target, over
    ``sync`` edges ``sync_ns``, over others nothing. ``kind``: of all edges.
    """

    kind: U8
    launch_ns: I64
    sync_ns: I64

    def of(self, block: Block) -> I64:
        """Of the edges of a block."""
        return self.at(block.target, np.arange(block.edges.start, block.edges.stop))

    def at(self, target: I64, edge: I64) -> I64:
        """Of some edges, with the nodes that they enter."""
        kind = self.kind[edge]
        return np.where(kind == EdgeKind.LAUNCH, self.launch_ns[target], np.where(kind == EdgeKind.SYNC, self.sync_ns[target], 0))


@dataclass(frozen=True, slots=True)
class Delayed:
    """Of each node: its latency (``latency_ns``) as far as its delay leaves room for it, and what of the delay that explains."""

    latency_ns: I64
    explained_ns: I64


@dataclass(frozen=True, slots=True)
class Costs:
    """What each node costs from when it may begin, and the lags of its dependencies."""

    cost_ns: I64
    lags: Lags


def delayed(first: I64, source: I32, kind: U8, latency_ns: I64, launched_ns: I64, begin_ns: I64, delay_ns: I64) -> Delayed:
    """Splits delays: each begins at ``begin_ns`` and lasts ``delay_ns``; a node that launches has done so at its ``launched_ns``.

    One entry a node each; ``first``, ``source``, ``kind``: the dependencies, CSR by target. Linear.
    """
    launch = np.flatnonzero(kind == EdgeKind.LAUNCH)
    target = np.searchsorted(first, launch, side="right") - 1
    launch, target = launch[latency_ns[target] > 0], target[latency_ns[target] > 0]
    after_ns = np.full(len(latency_ns), np.iinfo(np.int64).min)
    np.maximum.at(after_ns, target, launched_ns[source[launch]])
    some = np.unique(target)
    latency, explained = np.zeros_like(latency_ns), np.zeros_like(latency_ns)
    latency[some] = np.clip(latency_ns[some], 0, np.maximum(begin_ns[some] + delay_ns[some] - after_ns[some], 0))
    explained[some] = np.clip(after_ns[some] + latency[some] - begin_ns[some], 0, delay_ns[some])
    return Delayed(latency, explained)


def costs(graph: Graph, end_ns: I64, cost_ns: I64) -> Costs:
    """Costs and lags with which every node ends as in a replay (``end_ns``) in which delays ran after all else. Linear."""
    delay = np.where(graph.kind == NodeKind.DEVICE_DELAY, graph.duration_ns, graph.start_delay_ns)
    split = delayed(graph.first, graph.source, graph.edge_kind, graph.launch_latency_ns, end_ns, end_ns - cost_ns, delay)
    return Costs(cost_ns - split.explained_ns, Lags(graph.edge_kind, split.latency_ns, np.zeros_like(split.latency_ns)))
