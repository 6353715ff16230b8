"""Where the host waited for a device: by call, path and Python line."""

from __future__ import annotations

import numpy as np

from graphlink.graph_model import Graph
from graphlink.link.stacks import stacks_at
from graphlink.model import NOWHERE, Linked
from graphlink.operations.paths import HostPaths
from graphlink.operations.records import HostWait


def host_waits(host: HostPaths, graph: Graph, linked: Linked) -> list[HostWait]:
    """Return the calls in which the host waited for what an edge names, longest first. O(n log n) in ``sync`` edges, and ``stacks_at``."""
    kept, calls = graph.sync_calls, linked.trace.calls
    call, which = np.unique(kept.call, return_inverse=True)
    ended_ns = calls.start_ns[call].copy()
    np.maximum.at(ended_ns, which.reshape(-1), graph.end_ns[kept.source] + graph.epoch_ns)
    waited_ns = np.minimum(ended_ns, calls.end_ns[call]) - calls.start_ns[call]
    blocked = np.flatnonzero(waited_ns > 0)
    call, waited_ns = call[blocked], waited_ns[blocked]
    op = linked.call_op[call]
    path = np.where(op == NOWHERE, 0, np.append(host.path, 0)[op])
    used, place = np.unique(path, return_inverse=True)
    texts = host.table.texts(used)
    found: dict[tuple[int, int, tuple[str, ...]], list[int]] = {}
    for row, at, stack, ns in zip(
        calls.name[call].tolist(),
        place.reshape(-1).tolist(),
        stacks_at(linked, calls.tid[call], calls.start_ns[call]),
        waited_ns.tolist(),
        strict=True,
    ):
        found.setdefault((row, at, tuple(stack)), []).append(ns)
    waits = [
        HostWait(call=linked.trace.strings[row], path=texts[at], count=len(ns), ns=sum(ns), stack=[*stack])
        for (row, at, stack), ns in found.items()
    ]
    return sorted(waits, key=lambda one: (-one.ns, -one.count, one.call, one.path, one.stack))
