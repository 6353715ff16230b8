"""What ran behind the launches of CUDA graphs, on which lanes work was shown, and what the counters of a device said
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from graphlink.graph.critical import CriticalChain
from graphlink.graph_model import Column, Graph, NodeKind
from graphlink.linking.launch import behind_graphs
from graphlink.model import F64, I64, NOWHERE, Bool, DeviceKind, DeviceRows, Linked
from graphlink.operations.records import Between, GraphNode, GraphReplays, Lane, Sampled, SampledOf
from graphlink.perfetto.packets import Rows, Track
from graphlink.perfetto.slices import flat, lanes
from graphlink.read.commnames import short_name
from graphlink.spans import Spans, overlap_ns, overlaps, union
from graphlink.steps import Steps
from graphlink.tables import (
    MOST,
    begins,
    codes,
    distinct,
    how_many,
    in_order,
    largest,
    marked,
    nowhere,
    numbered_rows,
    numbered_texts,
    numbered_values,
    parted,
    successive,
    sums,
    take,
    turns,
)

_Samples: TypeAlias = tuple[int, str, I64, F64]  # device and name of a counter, when it was sampled, and as what


def on_path_ns(graph: Graph, path: CriticalChain, count: int) -> I64:
    """Return for how long each of ``count`` device rows is on the critical path, without what came before its work."""
    device = graph.kind[path.node] == NodeKind.DEVICE_OP
    return sums(count, graph.row[path.node[device]], (path.cost_ns - path.late_ns)[device])


def graph_replays(linked: Linked, on_path_ns: I64 | None = None) -> list[GraphReplays]:
    """Return the graphs that were launched, most device time first, with their nodes in the order in which they run.
    O(n log n) in device rows. ``on_path_ns``: of each row on the critical path; None where that is not known.

    Where ids are not recorded, launches with as many ops of the same names are of one graph, and the k-th op of a name
    is one node.
    """
    rows = np.flatnonzero(_behind_graphs(linked))
    rows = in_order(rows, linked.trace.device.correlation, linked.trace.device.start_ns)
    device = take(linked.trace.device, rows)
    path_ns = np.zeros(len(rows), np.int64) if on_path_ns is None else on_path_ns[rows]
    first = np.flatnonzero(begins(device.correlation))
    launch = np.cumsum(begins(device.correlation)) - 1
    graph = _graphs(device, first)
    # the nodes as (graph, id, name, which one of this name), and the node of each row; rows are by launch, then by
    # start
    turn = turns(launch, device.name)
    turn[device.graph_node > 0] = 0
    nodes, node = numbered_rows(graph[launch], device.graph_node, device.name, turn)
    length_ns, after_ns = device.end_ns - device.start_ns, device.start_ns - device.start_ns[first[launch]]
    spans_ns, between = _replays(linked, rows, device, first, launch)
    members = parted(node, len(nodes))
    found: list[GraphReplays] = []
    for of in range(int(graph.max(initial=NOWHERE)) + 1):
        mine = np.flatnonzero(nodes[:, 0] == of)
        inner = [members[k] for k in mine.tolist()]
        inner.sort(key=lambda ops: float(after_ns[ops].mean()))
        launches = np.flatnonzero(graph == of)
        took_ns = spans_ns[launches]
        found.append(
            GraphReplays(
                graph=int(device.graph[first[launches]].max()) or None,
                call=_call(linked, rows[first[launches]]),
                replays=len(launches),
                device_ops=sum(map(len, inner)),
                device_ns=sum(int(length_ns[ops].sum()) for ops in inner),
                mean_ns=round(float(took_ns.mean())),
                spread_ns=round(float(took_ns.std())),
                longest_ns=int(took_ns.max()),
                on_path_ns=sum(int(path_ns[ops].sum()) for ops in inner),
                between=between(launches),
                nodes=[_node(linked, device, ops, length_ns[ops], path_ns[ops]) for ops in inner],
            )
        )
    return sorted(found, key=lambda one: (-one.device_ns, one.graph or 0))


def _replays(
    linked: Linked, rows: I64, device: DeviceRows, first: I64, launch: I64
) -> tuple[I64, Callable[[I64], Between | None]]:
    """Return how long each replay took, from its first op to its last one, and what tells of some replays what lay
    between each and the next one on its device."""
    count, every = len(first), linked.trace.device
    begin_ns, end_ns = device.start_ns[first], largest(len(first), launch, device.end_ns)
    order = np.lexsort((begin_ns, device.device[first]))
    before, after = successive(order, device.device[first])
    since_ns, until_ns = np.zeros(count, np.int64), nowhere(count)
    since_ns[before], until_ns[before] = end_ns[before], np.maximum(begin_ns[after], end_ns[before])
    others = np.flatnonzero((every.kind != DeviceKind.HOST) & ~marked(len(every.name), rows))

    def between(replays: I64) -> Between | None:
        some = replays[until_ns[replays] != NOWHERE]
        if not len(some):
            return None
        some = some[device.device[first[some]] == device.device[first[some[0]]]]  # of several devices that of the first
        some = in_order(some, since_ns)
        gaps = Spans(since_ns[some], until_ns[some])
        own = others[every.device[others] == device.device[first[some[0]]]]
        row, _, ns = overlaps(gaps, every.start_ns[own], every.end_ns[own])
        spent = sums(len(linked.trace.strings), every.name[own[row]], ns)
        busy_ns = overlap_ns(union(every.start_ns[own], every.end_ns[own]), gaps.start_ns, gaps.end_ns).sum()
        return Between(
            count=len(some),
            ns=int((gaps.end_ns - gaps.start_ns).sum()),
            busy_ns=int(busy_ns),
            most=short_name(linked.trace.strings[int(spent.argmax())]) if spent.any() else "",
        )

    return end_ns - begin_ns, between


def _behind_graphs(linked: Linked) -> Bool:
    """Mark device rows that a graph launch launched: by its call, by what the rows say, or as several share a launch
    that was not recorded."""
    device = linked.trace.device
    launch = codes(device.correlation)
    together = (linked.device_call == NOWHERE) & (np.bincount(launch)[launch] > 1)
    told = (device.graph > 0) | (device.graph_node > 0) | behind_graphs(linked)
    return np.asarray((told | together) & (device.correlation > 0))


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


def _node(linked: Linked, device: DeviceRows, ops: I64, length_ns: I64, path_ns: I64) -> GraphNode:
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
        critical=how_many(path_ns),
    )


def _call(linked: Linked, rows: I64) -> str:
    """Return the name of the first recorded call that launched one of ``rows``; "" for none."""
    call = linked.device_call[rows]
    return next((linked.trace.strings[code] for code in linked.trace.calls.name[call[call != NOWHERE]].tolist()), "")


# lanes: lines that a recorder shows work of graphs on, by layer or group


def lanes_of(linked: Linked) -> list[Lane]:
    """Return the lanes, most device time first. O(n log n) in device rows, and lanes x names."""
    device, text, found = linked.trace.device, linked.trace.strings, list[Lane]()
    for code in distinct(device.lane[device.lane > 0]).tolist():
        row = np.flatnonzero(device.lane == code)
        spent = sums(len(text), device.name[row], device.end_ns[row] - device.start_ns[row])
        most = short_name(text[int(spent.argmax())])
        found.append(Lane(name=text[code], device_ops=len(row), device_ns=int(spent.sum()), most=most))
    return sorted(found, key=lambda one: (-one.device_ns, one.name))


def lane_column(graph: Graph, linked: Linked) -> Mapping[str, Column]:
    """Return the lane of each device op as a column of the graph; nothing where there are none."""
    row = graph.row[op := graph.nodes_of(NodeKind.DEVICE_OP)]
    lane = linked.trace.device.lane
    return {"lane": Column.of(op, lane[row], lane[row] > 0, linked.trace.strings)} if lane.any() else {}


def device_rows(graph: Graph, linked: Linked) -> Rows:
    """Return a row of the timeline for each lane, as many as it needs where its work overlaps, and the counters."""
    device, row = linked.trace.device, np.flatnonzero(linked.trace.device.lane)
    lane = device.lane[row].astype(np.int64)
    start_ns, end_ns = (column[row] - graph.epoch_ns for column in (device.start_ns, device.end_ns))
    shown, track = numbered_rows(lane, lanes(start_ns, end_ns, lane))
    names, name = numbered_values(device.name[row])
    text = linked.trace.strings
    tracks = tuple(Track(0, f"lane {text[k]}") for k in shown[:, 0].tolist())
    slices = flat(track.astype(np.int32), start_ns, end_ns, name.astype(np.int32))
    counters = tuple(
        (f"GPU {device} {name}", ns - graph.epoch_ns, value) for device, name, ns, value in _samples(linked)
    )
    return Rows(tracks, slices, tuple(text[k] for k in names.tolist()), (), counters)


# counters of devices


def _samples(linked: Linked) -> list[_Samples]:
    counters, text = linked.trace.counters, linked.trace.strings
    if counters is None:
        return []
    pairs, which = numbered_rows(counters.device, counters.name)
    return [
        (device, text[name], np.maximum.accumulate(counters.ns[own]), counters.value[own])
        for (device, name), own in zip(pairs.tolist(), parted(which, len(pairs)), strict=True)
    ]


def sampled(linked: Linked, steps: Steps) -> list[Sampled]:
    """Return the means of counters: of each device, of each step, of the kernels of each name, most time first. O(n log
    n) in samples and device rows.

    A value holds until the next one; the last, and one before a gap of more than twice that, as long as most do. Of
    kernels a counter is given where they fill at least half of the samples that they ran in: it tells nothing of what
    is shorter than that.
    """
    device, samples, found = linked.trace.device, _samples(linked), list[Sampled]()
    for number in sorted({one[0] for one in samples} & {*distinct(device.device).tolist()}):
        rows = np.flatnonzero((device.device == number) & (device.kind != DeviceKind.HOST))
        start_ns, end_ns = device.start_ns[rows], device.end_ns[rows]
        names, of = numbered_values(device.name[rows])
        kernels, all_ns = [linked.trace.strings[k] for k in names.tolist()], end_ns.max(keepdims=True, initial=0)
        every = np.zeros(1, np.int64)
        found += _means("device", ("",), (every, start_ns.min(keepdims=True, initial=MOST), all_ns), number, samples)
        found += _means(
            "step", steps.names, (np.arange(len(steps.names)), steps.start_ns, steps.end_ns), number, samples
        )
        found += _means("kernel", kernels, (of, start_ns, end_ns), number, samples)
    return found


def _means(
    sort: SampledOf, texts: Sequence[str], spans: tuple[I64, I64, I64], device: int, samples: Sequence[_Samples]
) -> list[Sampled]:
    """Return the means of counters of one sort of ``spans``: the text of each, where it begins and ends."""
    of, low_ns, high_ns = spans
    means: list[dict[str, float]] = [{} for _ in texts]
    for own, name, ns, value in samples:
        steps_ns = np.diff(np.unique(ns))
        if own != device or not len(steps_ns):  # one sample says nothing of how long it holds
            continue
        usual_ns, next_ns = int(np.median(steps_ns)), np.append(ns[1:], MOST)
        until_ns = np.where(next_ns - ns > 2 * usual_ns, ns + usual_ns, next_ns)
        at_ns, edges = np.stack([low_ns, high_ns]) - ns[0], np.stack([ns, until_ns], axis=1).ravel() - ns[0]
        known, whole = (
            np.bincount(of, np.diff(np.interp(at_ns, edges, passed), axis=0)[0], len(texts))
            for held in (until_ns - ns, value * (until_ns - ns))
            for passed in [np.repeat(np.append(0.0, np.cumsum(held)), 2)[1:-1]]
        )
        enough = known > 0
        if sort == "kernel":
            span, sample, _ = overlaps(Spans(ns, until_ns), low_ns, high_ns)
            pairs = numbered_rows(of[span], sample)[0]
            enough &= 2 * known >= sums(len(texts), pairs[:, 0], (until_ns - ns)[pairs[:, 1]])
        for k in np.flatnonzero(enough).tolist():
            means[k][name] = float(f"{whole[k] / known[k]:.6g}")
    spent = sums(len(texts), of, high_ns - low_ns).tolist()
    found = [
        Sampled(of=sort, name=text, device=device, ns=ns, means=mean)
        for text, ns, mean in zip(texts, spent, means, strict=True)
    ]
    return sorted(found, key=lambda one: -one.ns) if sort == "kernel" else found
