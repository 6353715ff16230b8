"""What ran behind launches of CUDA and HIP graphs: each node of a graph over its replays."""

from __future__ import annotations

import numpy as np

from graphlink.model import I64, NOWHERE, Bool, DeviceRows, Linked
from graphlink.operations.records import GraphNode, GraphReplays
from graphlink.patterns import GRAPH_LAUNCH, fits
from graphlink.read.commnames import short_name
from graphlink.tables import begins, codes, numbered_rows, numbered_texts, take, turns


def graph_replays(linked: Linked) -> list[GraphReplays]:
    """Return the graphs that were launched, most device time first, with their nodes in the order in which they run.
    O(n log n) in device rows.

    Where ids are not recorded, launches with as many ops of the same names are of one graph, and the k-th op of a name
    is one node.
    """
    rows = np.flatnonzero(_behind_graphs(linked))
    rows = rows[np.lexsort((linked.trace.device.start_ns[rows], linked.trace.device.correlation[rows]))]
    device = take(linked.trace.device, rows)
    first = np.flatnonzero(begins(device.correlation)) if len(rows) else rows
    launch = np.cumsum(begins(device.correlation)) - 1 if len(rows) else rows
    graph = _graphs(device, first)
    nodes, node = _nodes(graph[launch], device, launch)
    length_ns, after_ns = device.end_ns - device.start_ns, device.start_ns - device.start_ns[first[launch]]
    members = np.split(np.argsort(node, kind="stable"), np.cumsum(np.bincount(node, minlength=len(nodes)))[:-1])
    found: list[GraphReplays] = []
    for of in range(int(graph.max(initial=NOWHERE)) + 1):
        mine = np.flatnonzero(nodes[:, 0] == of)
        inner = [members[k] for k in mine.tolist()]
        inner.sort(key=lambda ops: float(after_ns[ops].mean()))
        launches = np.flatnonzero(graph == of)
        found.append(
            GraphReplays(
                graph=int(device.graph[first[launches]].max()) or None,
                call=_call(linked, rows[first[launches]]),
                replays=len(launches),
                device_ops=sum(map(len, inner)),
                device_ns=sum(int(length_ns[ops].sum()) for ops in inner),
                nodes=[_node(linked, device, ops, length_ns[ops]) for ops in inner],
            )
        )
    return sorted(found, key=lambda one: (-one.device_ns, one.graph or 0))


def _behind_graphs(linked: Linked) -> Bool:
    """Mark device rows that a graph launch launched: by its call, by what the rows say, or as several share a launch
    that was not recorded."""
    device, call = linked.trace.device, linked.device_call
    by_graph = fits(GRAPH_LAUNCH, linked.trace.strings)
    known = call != NOWHERE
    out = (device.graph > 0) | (device.graph_node > 0)
    out[known] |= by_graph[linked.trace.calls.name[call[known]]]
    launch = codes(device.correlation)
    out |= ~known & (np.bincount(launch)[launch] > 1)
    return out & (device.correlation > 0)


def _graphs(device: DeviceRows, first: I64) -> I64:
    """Return the graph of each launch, by number: that of equal recorded ids, else of equal names; ``first``: the first
    row of each.
    """
    names = np.split(device.name, first[1:])
    keys = (
        (graph, b"" if graph else np.sort(name).tobytes())
        for graph, name in zip(
            np.maximum.reduceat(device.graph, first).tolist() if len(first) else [], names, strict=False
        )
    )
    return numbered_texts(keys)[0].astype(np.int64)


def _nodes(graph: I64, device: DeviceRows, launch: I64) -> tuple[I64, I64]:
    """Return the nodes as (graph, id, name, which one of this name), and the node of each row; rows are by launch, then
    by start.
    """
    turn = turns(launch, device.name)
    turn[device.graph_node > 0] = 0
    return numbered_rows(graph, device.graph_node, device.name, turn)


def _node(linked: Linked, device: DeviceRows, ops: I64, length_ns: I64) -> GraphNode:
    whole = linked.trace.strings[device.name[ops[0]]]
    return GraphNode(
        node=int(device.graph_node[ops[0]]) or None,
        name=short_name(whole),
        whole_name=whole,
        replays=len(ops),
        ns=int(length_ns.sum()),
        mean_ns=round(float(length_ns.mean())),
        spread_ns=round(float(length_ns.std())),
        longest_ns=int(length_ns.max()),
    )


def _call(linked: Linked, rows: I64) -> str:
    """Return the name of the first recorded call that launched one of ``rows``; "" for none."""
    call = linked.device_call[rows]
    return next((linked.trace.strings[code] for code in linked.trace.calls.name[call[call != NOWHERE]].tolist()), "")
