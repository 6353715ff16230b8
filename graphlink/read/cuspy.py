"""What PyTorch's recorder of CUDA (Cuspy) writes otherwise than Kineto, in Kineto's terms: names of copies, threads of
calls, launches of host calls in CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from graphlink.model import I64, Bool, DeviceKind
from graphlink.read.columns import Parts
from graphlink.tables import numbered_rows

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
