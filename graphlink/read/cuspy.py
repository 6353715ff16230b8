"""What PyTorch's recorder of CUDA (Cuspy) writes otherwise than Kineto, in Kineto's terms: names of copies, threads of
calls, launches of host calls in CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from graphlink.model import I64, NOWHERE, Bool, DeviceKind, GraphDeps
from graphlink.read.columns import Parts
from graphlink.tables import MOST, largest, last_before, numbered_rows, numbered_values, values_at

_COPY_KINDS: Final = ("", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")  # of CUPTI
_MEMORY_KINDS: Final = (
    "Unknown",
    "Pageable",
    "Pinned",
    "Device",
    "Array",
    "Managed",
    "Device Static",
    "Managed Static",
)
_BY_CHANCE: Final = 1e-3
NODE_FLOWS: Final = 1 << 40  # from this id on, flows are dependencies between nodes of a CUDA graph
EVENT_NODE: Final = len(DeviceKind)  # the sort of rows of nodes that record an event, which no table keeps
_WRITTEN: Final = 2  # times in the end of a row, start and length, each rounded to whole ns


def _kind(recorded: object, names: Sequence[str]) -> str:
    if isinstance(recorded, int) and 0 <= recorded < len(names):
        return names[recorded]
    return str(recorded)


def _memory(recorded: object) -> str:
    return _kind(recorded, _MEMORY_KINDS).replace("_", " ").title()


def copy_name(name: str, kind: object, source: object, target: object) -> str:
    """Return the name that Kineto gives a copy, ``Memcpy DtoH (Device -> Pinned)``, from its kind and those of its
    memory, each a text or CUPTI's number; ``name`` as it is where a kind is missing."""
    if None in (kind, source, target):
        return name
    return f"{name} {_kind(kind, _COPY_KINDS)} ({_memory(source)} -> {_memory(target)})"


def memset_name(name: str, memory: object) -> str:
    """Return the name that Kineto gives a memset, ``Memset (Device)``; ``name`` as it is where nothing tells more."""
    return name if memory is None else f"{name} ({_memory(memory)})"


def put_inside_ops(calls: Parts, host: Parts) -> int:
    """Put calls on the thread whose ops they lie in, in place, and return how many: of a thread that the profiler did
    not see begin, CUPTI knows nothing but its handle (``pthread_t``), and that is the number of its calls.

    No host row has such a number. It is that of the one thread without calls whose ops all of its calls lie in, none
    across the begin or end of an op, where that is no chance. Linear in rows for each such thread.
    """
    ops = ~host.seen("annotation").astype(np.bool_)
    tid, op_tid = calls.seen("tid"), host.seen("tid")
    unknown, silent = np.setdiff1d(tid, op_tid), np.setdiff1d(op_tid[ops], tid)
    bounds = {
        thread: (host.seen("start_ns")[ops & (op_tid == thread)], host.seen("end_ns")[ops & (op_tid == thread)])
        for thread in silent.tolist()
    }
    found: dict[int, list[int]] = {}
    for number in unknown.tolist():
        its = calls.seen("start_ns")[tid == number], calls.seen("end_ns")[tid == number]
        within = [thread for thread, spans in bounds.items() if _inside(*its, *spans)]
        if len(within) == 1:
            found.setdefault(within[0], []).append(number)
    moved = np.zeros(len(tid), np.bool_)
    for thread, numbers in found.items():
        if len(numbers) == 1:
            moved |= tid == numbers[0]
            tid[tid == numbers[0]] = thread
    return int(np.count_nonzero(moved))


def _inside(start_ns: I64, end_ns: I64, op_start_ns: I64, op_end_ns: I64) -> bool:
    """Tell whether calls lie in ops of a thread, and not by chance: as many at random moments would not."""
    opens, closes = np.sort(op_start_ns), np.sort(op_end_ns)
    open_ops = np.searchsorted(opens, start_ns, side="right") - np.searchsorted(closes, start_ns, side="right")
    marks = np.sort(np.append(opens, closes))
    crossed = np.searchsorted(marks, end_ns, side="left") > np.searchsorted(marks, start_ns, side="right")
    if (open_ops <= 0).any() or crossed.any():
        return False
    marks = np.clip(marks, int(start_ns.min()), int(end_ns.max()))
    is_open = np.searchsorted(opens, marks[:-1], side="right") > np.searchsorted(closes, marks[:-1], side="right")
    covered = float(np.diff(marks)[is_open].sum()) / max(int(end_ns.max() - start_ns.min()), 1)
    return covered ** len(start_ns) < _BY_CHANCE


def give_launches(device: Parts) -> int:
    """Give calls of the host in CUDA graphs the correlation of their replay, in place, and return how many: one that
    was queued behind another replay has none (CUPTI writes 0).

    The replays of a graph follow each other, so that the k-th run of its node is that of the k-th replay. Where their
    numbers differ, the rows stay as they are. O(n log n).
    """
    graph, correlation, start_ns = (device.seen(name) for name in ("graph", "correlation", "start_ns"))
    host = (device.seen("kind") == DeviceKind.HOST) & (graph > 0)
    if not (host & (correlation == 0)).any():
        return 0
    nodes, node = numbered_rows(graph[host], device.seen("graph_node")[host])
    place = np.flatnonzero(host)
    given = 0
    for number, (its_graph, _) in enumerate(nodes.tolist()):
        rows = place[node == number]
        rows = rows[np.argsort(start_ns[rows], kind="stable")]
        launches = _in_order(correlation, start_ns, (graph == its_graph) & (correlation > 0))
        if len(rows) == len(launches) and (correlation[rows] == 0).any():
            given += int(np.count_nonzero(correlation[rows] == 0))
            correlation[rows] = launches
    return given


def _in_order(correlation: I64, start_ns: I64, which: Bool) -> I64:
    """Return the correlations of rows by their first start."""
    rows = np.flatnonzero(which)
    rows = rows[np.argsort(start_ns[rows], kind="stable")]
    _, first = np.unique(correlation[rows], return_index=True)
    return correlation[rows[np.sort(first)]]


def graph_deps(flows: Parts, device: Parts, rounding_ns: int) -> GraphDeps | None:
    """Return the dependencies inside CUDA graphs; None where no flow tells any.

    A flow joins the end of one node to the start of another of the same replay, both named by process, thread and time
    (to ``rounding_ns``). It is the dependency of these nodes where at least half of the replays that have both show it:
    two rows of a lane may touch. The launch has flows to the nodes without predecessors alone; a node without either
    has some that have no rows (graphs in the graph, allocations), and is not told. Nor is a node beyond those with
    dependencies: it may be of a graph in the graph. What records an event gives what it waits for to what waits for it.
    O(n log n).
    """
    ident, end = flows.seen("ident"), flows.seen("end")
    between = ident >= NODE_FLOWS
    if not between.any():
        return None
    row = np.flatnonzero((device.seen("graph") > 0) & (device.seen("correlation") > 0))
    start_ns, end_ns, correlation, pid, tid, graph, number = (
        device.seen(name)[row] for name in ("start_ns", "end_ns", "correlation", "pid", "tid", "graph", "graph_node")
    )
    nodes, node = numbered_rows(graph, number)
    _, starts, ends = np.intersect1d(
        np.where(between & ~end, ident, -1), np.where(between & end, ident, -2), return_indices=True
    )
    launched = np.flatnonzero(~between & end)
    slack_ns = _WRITTEN + 2 * rounding_ns
    at = pid, tid
    target = _near(at, start_ns, [flows.seen(name)[ends] for name in ("pid", "tid")], flows.seen("ns")[ends], slack_ns)
    of = [*(flows.seen(name)[starts] for name in ("pid", "tid")), values_at(correlation, target)]
    source = _near((*at, correlation), end_ns, of, flows.seen("ns")[starts], slack_ns)
    of = [flows.seen(name)[launched] for name in ("pid", "tid", "ident")]
    roots = _near((*at, correlation), start_ns, of, flows.seen("ns")[launched], slack_ns)
    joined = (target != NOWHERE) & (source != NOWHERE)
    joined[joined] = (graph[source[joined]] == graph[target[joined]]) & (node[source[joined]] != node[target[joined]])
    pairs, which = numbered_rows(node[target[joined]], node[source[joined]])
    replays = np.bincount(node, minlength=len(nodes))
    shown = 2 * np.bincount(which, minlength=len(pairs)) >= replays[pairs].min(axis=1, initial=len(node))
    after, before = pairs[shown].T
    graphs, of_graph = numbered_values(nodes[:, 0])
    last = largest(len(graphs), of_graph[after], np.maximum(nodes[after, 1], nodes[before, 1]))
    root = np.setdiff1d(node[roots[roots != NOWHERE]], after)
    root = root[np.isin(root, before) | (nodes[root, 1] < last[of_graph[root]])]
    after, before = np.append(after, root), np.append(before, np.full(len(root), NOWHERE))
    events = np.unique(node[device.seen("kind")[row] == EVENT_NODE])
    for event in events.tolist():
        behind, its = before == event, before[after == event]
        kept = ~behind & (after != event)
        more = np.repeat(after[behind], max(len(its), 1))
        before = np.append(before[kept], np.tile(its, int(behind.sum())) if len(its) else np.full(len(more), NOWHERE))
        after = np.append(after[kept], more)
    (after, before), _ = np.unique(np.stack([after, before]), axis=1, return_index=True)
    return GraphDeps(nodes[after, 0], nodes[after, 1], np.where(before == NOWHERE, NOWHERE, nodes[before, 1]))


def _near(keys: Sequence[I64], ns: I64, asked: Sequence[I64], asked_ns: I64, slack_ns: int) -> I64:
    """Return for each asked time the row with these keys whose time is nearest; NOWHERE without one within
    ``slack_ns``."""
    found = [last_before(tuple(keys), way * ns, tuple(asked), way * asked_ns + 1) for way in (1, -1)]
    off = [np.where(row == NOWHERE, MOST, np.abs(np.append(ns, 0)[row] - asked_ns)) for row in found]
    return np.where(np.minimum(*off) > slack_ns, NOWHERE, np.where(off[0] <= off[1], *found))
