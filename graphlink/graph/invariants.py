"""Check that a graph keeps its promises, before a byte of it is written. Nothing is changed or repaired here."""

from __future__ import annotations

import msgspec
import numpy as np

from graphlink.graph_model import EdgeKind, Graph, NodeKind
from graphlink.model import I64, NOWHERE, Bool
from graphlink.tables import how_many

# kind -> (source is a host node, target is a host node)
_ENDS = {
    EdgeKind.HOST: (True, True),
    EdgeKind.THREAD: (True, True),
    EdgeKind.LAUNCH: (True, False),
    EdgeKind.STREAM: (False, False),
    EdgeKind.EVENT: (False, False),
    EdgeKind.COLLECTIVE: (False, False),
    EdgeKind.SYNC: (False, True),
}


class Violation(msgspec.Struct, frozen=True):
    """One rule that does not hold: ``count`` places, ``example`` is the first. Nothing may be written then."""

    rule: str
    count: int
    example: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.count}, e.g. {self.example}"


def check(graph: Graph, slack_ns: int = 0) -> tuple[Violation, ...]:
    """Check every rule over the whole graph, vectorised; empty if none is broken.

    ``slack_ns``: by how many ns rounding of the recording may break causality.

    ids: edges run from lower to higher nodes, so the graph has no cycle and no self edge, and no id dangles. Causality:
    a device source has ended when its target starts, a host source has started. Ends: each kind of edge joins what it
    says. Callers come earlier on the chain of dependencies. Times are not negative.
    """
    target = graph.target
    source = graph.source.astype(np.int64)
    host = graph.host
    out: list[Violation] = []

    def rule(name: str, broken: Bool, nodes: I64) -> None:
        if broken.any():
            at = int(np.flatnonzero(broken)[0])
            out.append(Violation(name, how_many(broken), _describe(graph, int(nodes[at]))))

    n = len(graph.kind)
    outside = (source < 0) | (source >= n)
    rule("dependency on a node that is not there", outside, target)
    if outside.any():
        return tuple(out)
    rule("edge that does not run forward", source >= target, target)
    rule("the same dependency twice", (source[1:] == source[:-1]) & (target[1:] == target[:-1]), target)
    rule("node that starts before a lower id", np.diff(graph.start_ns) < 0, np.arange(1, n))
    for name in ("duration_ns", "self_ns", "wait_ns", "wake_ns", "start_delay_ns", "launch_latency_ns", "overlap_ns"):
        rule(f"negative {name}", getattr(graph, name) < 0, np.arange(n))
    rule("wake_ns above duration_ns", graph.wake_ns > graph.duration_ns, np.arange(n))
    known_at = np.where(host[source], graph.start_ns[source], graph.start_ns[source] + graph.duration_ns[source])
    rule("edge from something later than its target", known_at > graph.start_ns[target] + slack_ns, target)
    for kind, (from_host, to_host) in _ENDS.items():
        of = graph.edge_kind == kind
        rule(
            f"{kind.name.lower()} edge with wrong ends",
            of & ((host[source] != from_host) | (host[target] != to_host)),
            target,
        )
    stream = graph.edge_kind == EdgeKind.STREAM
    apart = (graph.device[source] != graph.device[target]) | (graph.stream[source] != graph.stream[target])
    rule("stream edge between two streams", stream & apart, target)
    rule(
        "host edge between two threads",
        (graph.edge_kind == EdgeKind.HOST) & (graph.tid[source] != graph.tid[target]),
        target,
    )
    called = np.flatnonzero(graph.caller != NOWHERE)
    rule("caller with a higher id", graph.caller[called] >= called, called)
    return tuple(out)


def _describe(graph: Graph, node: int) -> str:
    kind = NodeKind(int(graph.kind[node])).name.lower().replace("_", " ")
    where = (
        f"thread {graph.tid[node]}" if graph.tid[node] else f"device {graph.device[node]} stream {graph.stream[node]}"
    )
    return f"node {node} ({kind}, {where}, {graph.start_ns[node] / 1000:.3f} us after the start)"
