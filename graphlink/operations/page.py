"""The operations: where the device time goes, and whether tensor cores do the work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from graphlink.figures import column, columns
from graphlink.graph_model import Graph
from graphlink.model import NOWHERE
from graphlink.operations.records import Kernel, Operation, Operations
from graphlink.operations.table import FEW_GRAPHS, core_lines, counter_columns, gain_note, graph_lines
from graphlink.page.found import Found
from graphlink.page.parts import Cell, Folded, Part, Section, Sentence
from graphlink.page.words import table
from graphlink.read.commnames import short_name
from graphlink.records import counted, time

MOST_ROWS: Final = 300  # of a rank; of several ranks fewer each
_MOST: Final = 50  # rows of counters
_LOOKED_AT: Final = 32  # kernels of a name of which the op is looked at


def operations(found: Found) -> Section:
    """Return the section: the operations of each rank in detail."""
    title = "Operations"
    if not found.ranks:
        return Section("operations", title, [Sentence(["The recording names no operations."], note=True)])
    parts: list[Part] = []
    for k, (rank, why) in enumerate(found.told.items()):
        of = _rank(found, found.parts["operations"][rank], MOST_ROWS // max(len(found.told) - 1, 1))
        reason = f" ({why})" if why else ""
        parts += of if len(found.ranks) == 1 else [Folded(f"Rank {rank}{reason}", of, open=k == 0)]
    return Section("operations", title, parts)


def _rank(found: Found, file: Operations, most: int) -> list[Part]:
    cores = [Sentence([f"{sentence(line.strip())}."]) for line in core_lines(file.tensor_cores)]
    graph, shown = _graph(found, file.rank), file.operations[:most]
    share = column("of the rank", "part", [(op.device_ns, file.device_ns) for op in shown], means="device_share")
    on_device = ("device_ns", share, "backward") if file.device_ops else ()
    kernels = ("tensor_cores.state", "dtypes", "longest_kernel") if file.device_ops else ()
    places = [column("longest at", "place", _places(found, file.rank, graph, shown))] if kernels and graph else []
    stack = ["stack"] if any(op.stack for op in file.operations) else []
    names = ("path", "calls", *on_device, "host_ns", "gain_ns", *kernels, *places, *stack)
    left = file.operations[most:]
    took = f" with {time(sum(one.device_ns for one in left))} of device time" if file.device_ops else ""
    more = f"{counted(len(left), 'more operation')}{took} in ops.{file.rank}.json." if left else ""
    caption = f"Operations of rank {file.rank}, most {'device' if file.device_ops else 'host'} time first"
    at = f"ops.{file.rank}.json#/operations"
    note = gain_note(shown)
    ops = table(f"ops-{file.rank}", caption, columns(Operation, shown, *names), at, more)
    return [
        *cores,
        ops,
        *([Sentence([f"{sentence(note)}."], note=True)] if note else []),
        *_unknown(file),
        *(Sentence([f"{'. '.join(map(sentence, graph_lines(graph)))}."]) for graph in file.graphs[:FEW_GRAPHS]),
        *_counters(file),
    ]


def sentence(line: str) -> str:
    return f"{line[0].upper()}{line[1:]}"


def _graph(found: Found, rank: int) -> Graph | None:
    work = found.work
    return work.files[work.ranks.index(rank)] if work is not None and rank in work.ranks else None


def _places(found: Found, rank: int, graph: Graph, shown: Sequence[Operation]) -> Iterator[Cell]:
    """Yield of each operation where its longest kernel began."""
    names = {text: k for k, text in enumerate(graph.strings)}
    order = np.lexsort((-graph.duration_ns, graph.name))
    first = np.searchsorted(graph.name[order], np.arange(len(names) + 1))
    for one in shown:
        kernel, op = (
            names.get(one.kernels[0].whole_name) if one.kernels else None,
            names.get(one.path[-1] if one.path else ""),
        )
        at = None
        if kernel is not None and op is not None:
            nodes = order[first[kernel] : min(first[kernel + 1], first[kernel] + _LOOKED_AT)].tolist()
            at = next((int(graph.start_ns[node]) for node in nodes if _inside(graph, node, op)), None)
        yield Cell("") if at is None else found.place_cell(rank, at)


def _inside(graph: Graph, node: int, op: int) -> bool:
    """Tell whether a node of this name called a node, or called who did."""
    while (node := int(graph.caller[node])) != NOWHERE:
        if graph.name[node] == op:
            return True
    return False


def _unknown(file: Operations) -> Sequence[Part]:
    shown = file.unknown[:50]
    kernels = columns(Kernel, shown, "ns", "count", column("kernel", "kernel", shown))
    caption = f"Kernels of rank {file.rank} whose names do not tell whether they use tensor cores"
    return [table(f"unknown-{file.rank}", caption, kernels, f"ops.{file.rank}.json#/unknown")] if shown else []


def _counters(file: Operations) -> Iterator[Part]:
    """Yield the means of counters, first in words: of the devices, and of the kernel that took most time."""
    told = [one for one in file.counters or () if one.means]
    for one in (*(one for one in told if one.of == "device"), *[one for one in told if one.of == "kernel"][:1]):
        means = ", ".join(f"{name} {value:.3g}" for name, value in one.means.items())
        what = short_name(one.name) if one.name else f"GPU {one.device}"
        yield Sentence([f"Of the {time(one.ns)} of {what}, on average: {means}."])
    if told:
        rows = [one for sort in ("device", "step", "kernel") for one in told if one.of == sort][:_MOST]
        yield table(f"counters-{file.rank}", f"Counters of rank {file.rank}, on average", counter_columns(rows))
