"""What PyTorch's recorder of CUDA (Cuspy) writes otherwise than Kineto, in Kineto's terms: names of copies, threads of
calls."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

import numpy as np

from graphlink.model import I64, NOWHERE, DeviceKind, GraphDeps
from graphlink.read.columns import Parts, Strings, to_int
from graphlink.records import NOTE, first_few, shortened
from graphlink.tables import (
    MOST,
    largest,
    last_before,
    numbered_rows,
    numbered_values,
    values_at,
)

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
_NOT_READ: Final = frozenset({  # of Kineto and Cuspy
    "Comms Id", "autograd_phase", "channel", "channel_type", "context", "cuda event", "est. achieved occupancy %",
    "flags", "host fn", "host fn addr", "host process", "host thread", "kind", "memory bandwidth (GB/s)", "occupancy",
    "priority", "queued", "registers per thread", "shared memory", "value", "warps per SM",
})  # fmt: skip
_OWN: Final = frozenset({"queued", "copy kind", "memory kind", "host fn", "cuda event"})  # without Kineto's External id
_ROW: Final = re.compile(
    rb'"cat": ?"(?:kernel|gpu_mem(?:cpy|set)|graph_\w{1,40})",.{1,4000}?"args": ?(?=\{)', re.DOTALL
)
_FEW: Final = 8  # arguments that are named
_DECODER: Final = json.JSONDecoder()
_LOOKS, _REACH = 16, 1 << 14  # rows of a text that are looked at, and how far they are looked for
_BY_CHANCE: Final = 1e-3
NODE_FLOWS: Final = 1 << 40  # from this id on, flows are dependencies between nodes of a CUDA graph
EVENT_NODE: Final = len(DeviceKind)  # the sort of rows of nodes that record an event, which no table keeps
_WRITTEN: Final = 2  # times in the end of a row, start and length, each rounded to whole ns


def _word(recorded: object, names: Sequence[str]) -> str:
    number = to_int(recorded)
    return names[number] if 0 <= number < len(names) else str(recorded)


def gpu_name(name: str, kind: object, source: object, target: object, memory: object) -> str:
    """Return the name that Kineto gives a copy, ``Memcpy DtoH (Device -> Pinned)``, from its kind and those of its
    memory, or a memset, ``Memset (Device)``, each a text or CUPTI's number; ``name`` as it is where they are missing.
    """
    if kind is None and memory is None:
        return name
    memory, source, target = (_word(of, _MEMORY_KINDS).replace("_", " ").title() for of in (memory, source, target))
    return f"{name} ({memory})" if kind is None else f"{name} {_word(kind, _COPY_KINDS)} ({source} -> {target})"


def bare_copies(device: Parts, strings: Strings) -> list[str]:
    """Warn of copies whose name says nothing of their memory."""
    copies = np.count_nonzero(device.seen("name") == strings.get("Memcpy", NOWHERE))
    said = (
        f"copies ({copies}) do not say which memory they are between, as in a .pftrace: that a call waited for one of "
        "pageable memory is told where it was behind other work; PyTorch's JSON of the same recording says it of all"
    )
    return [said] if copies else []


def foreign_args(text: bytes, known: Collection[str]) -> set[str]:
    """Return the arguments of rows of a GPU, of Cuspy's, that are not known: of some rows of a text, wherever they
    are."""
    found: set[str] = set()
    for start in range(0, len(text), len(text) // _LOOKS + 1):
        row = _ROW.search(text, start, start + _REACH)
        if row is None or text.find(b'"External id":', row.end(), text.find(b"}", row.end())) >= 0:
            continue  # a row of Kineto's, as most are, is not decoded
        with suppress(ValueError, RecursionError):
            args = _DECODER.raw_decode(text[row.end() : row.end() + _REACH].decode("utf-8", "replace"))[0]
            found |= args.keys() - known - _NOT_READ if args.keys() & _OWN and "External id" not in args else set()
    return found


def unread(args: Collection[str]) -> list[str]:
    """Return a note of arguments that are not known."""
    names = first_few(sorted(map(shortened, args)), _FEW)
    return [f"{NOTE}rows of a GPU have arguments that are not known, and not read: {names}"] if args else []


def put_inside_ops(calls: Parts, host: Parts) -> None:
    """Put calls on the thread whose ops they lie in, in place: of a thread that the profiler did not see begin, CUPTI
    knows nothing but its handle (``pthread_t``), and that is the number of its calls.

    No host row has such a number. It is that of the one thread without calls whose ops all of its calls lie in, none
    across the begin or end of an op, where that is no chance. Linear in rows for each such thread.
    """
    tid, ops = calls.seen("tid"), ~host.seen("annotation").astype(np.bool_)
    start_ns, end_ns, op_tid = (host.seen(name)[ops] for name in ("start_ns", "end_ns", "tid"))
    pairs = [
        (number, thread)
        for thread in np.setdiff1d(op_tid, tid).tolist()
        for number in np.setdiff1d(tid, host.seen("tid")).tolist()
        if _inside(
            *(calls.seen(name)[tid == number] for name in ("start_ns", "end_ns")),
            *(column[op_tid == thread] for column in (start_ns, end_ns)),
        )
    ]
    times = Counter(side for number, thread in pairs for side in (("call", number), ("op", thread)))
    for number, thread in pairs:
        if times["call", number] == times["op", thread] == 1:
            tid[tid == number] = thread


def _inside(start_ns: I64, end_ns: I64, opens: I64, closes: I64) -> bool:
    """Tell whether calls lie in ops of a thread, and not by chance: as many at random moments would not."""
    marks = np.sort(np.append(opens, closes))
    is_open = np.searchsorted(np.sort(opens), marks, side="right") > np.searchsorted(np.sort(closes), marks, "right")
    at, span_ns = np.searchsorted(marks, start_ns, side="right"), int(end_ns.max() - start_ns.min())
    if not np.append(is_open, False)[at - 1].all() or (np.searchsorted(marks, end_ns) > at).any():
        return False
    covered_ns = np.diff(np.clip(marks, start_ns.min(), end_ns.max()))[is_open[:-1]].sum()
    return float(covered_ns / max(span_ns, 1)) ** len(start_ns) < _BY_CHANCE


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
    target = near(at, start_ns, [flows.seen(name)[ends] for name in ("pid", "tid")], flows.seen("ns")[ends], slack_ns)
    of = [*(flows.seen(name)[starts] for name in ("pid", "tid")), values_at(correlation, target)]
    source = near((*at, correlation), end_ns, of, flows.seen("ns")[starts], slack_ns)
    of = [flows.seen(name)[launched] for name in ("pid", "tid", "ident")]
    roots = near((*at, correlation), start_ns, of, flows.seen("ns")[launched], slack_ns)
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


def near(keys: Sequence[I64], ns: I64, asked: Sequence[I64], asked_ns: I64, slack_ns: int) -> I64:
    """Return for each asked time the row with these keys whose time is nearest; NOWHERE without one within
    ``slack_ns``."""
    found = [last_before(tuple(keys), way * ns, tuple(asked), way * asked_ns + 1) for way in (1, -1)]
    off = [np.where(row == NOWHERE, MOST, np.abs(np.append(ns, 0)[row] - asked_ns)) for row in found]
    return np.where(np.minimum(*off) > slack_ns, NOWHERE, np.where(off[0] <= off[1], *found))
