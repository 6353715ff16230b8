"""The operations: where the device time goes, and whether tensor cores do the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from graphlink.graph_model import Graph
from graphlink.model import NOWHERE
from graphlink.operations.records import Operation, Operations
from graphlink.operations.table import core_lines, core_state, gain_note, short_path
from graphlink.page.found import Found
from graphlink.page.parts import Cell, Column, Folded, Part, Row, Section, Sentence, Table
from graphlink.page.sections.gpu_time import place_cell
from graphlink.page.words import count_cell, share_cell, time_cell
from graphlink.records import counted, shortened, time

MOST_ROWS: Final = 300  # of a rank; of several ranks fewer each
_LOOKED_AT: Final = 32  # kernels of a name of which the op is looked at


def operations(found: Found) -> Section:
    """Return the section: the operations of each rank in detail."""
    title = "Operations"
    if not found.ranks:
        return Section("operations", title, [Sentence(["The recording names no operations."], note=True)])
    parts: list[Part] = []
    for k, (rank, why) in enumerate(found.told.items()):
        of = _rank(found, found.operations[rank], MOST_ROWS // max(len(found.told) - 1, 1))
        reason = f" ({why})" if why else ""
        parts += of if len(found.ranks) == 1 else [Folded(f"Rank {rank}{reason}", of, open=k == 0)]
    return Section("operations", title, parts)


def _rank(found: Found, file: Operations, most: int) -> list[Part]:
    cores = [Sentence([f"{line.strip()[0].upper()}{line.strip()[1:]}."]) for line in core_lines(file.tensor_cores)]
    graph, shown = _graph(found, file.rank), file.operations[:most]
    columns: list[tuple[Column, list[Cell]]] = [
        (Column("operation"), [Cell(short_path(one.path), whole="/".join(one.path)) for one in shown]),
        (Column("calls", "number", "calls", "calls"), [count_cell(one.calls) for one in shown]),
    ]
    columns += _on_device(file, shown) if file.device_ops else []
    columns += [
        (Column("host", "number", "host_time", "host_ns"), [time_cell(one.host_ns) for one in shown]),
        (Column("gain", "number", "gain", "gain_ns"), [time_cell(one.gain_ns) for one in shown]),
    ]
    columns += _by_kernel(found, file, graph, shown) if file.device_ops else []
    if any(one.stack for one in file.operations):
        lines = [Cell(shortened(one.stack[-1]) if one.stack else "", whole=" > ".join(one.stack)) for one in shown]
        columns.append((Column("line", means="line"), lines))
    rows = [Row([cells[k] for _, cells in columns], f"/{k}") for k in range(len(shown))]
    left = file.operations[most:]
    took = f" with {time(sum(one.device_ns for one in left))} of device time" if file.device_ops else ""
    more = f"{counted(len(left), 'more operation')}{took} in ops.{file.rank}.json." if left else ""
    caption = f"Operations of rank {file.rank}, most {'device' if file.device_ops else 'host'} time first"
    at = f"ops.{file.rank}.json#/operations"
    table = Table(f"ops-{file.rank}", caption, [column for column, _ in columns], rows, at, more)
    note = gain_note(shown)
    return [*cores, table, *([Sentence([f"{note[0].upper()}{note[1:]}."], note=True)] if note else []), *_unknown(file)]


def _on_device(file: Operations, shown: Sequence[Operation]) -> list[tuple[Column, list[Cell]]]:
    backward = [
        share_cell(one.backward_device_ns, one.device_ns) if one.backward_device_ns else Cell("") for one in shown
    ]
    return [
        (Column("device", "number", "device_time", "device_ns"), [time_cell(one.device_ns) for one in shown]),
        (Column("of the rank", "number", "device_share"), [share_cell(one.device_ns, file.device_ns) for one in shown]),
        (Column("backward", "number", "backward"), backward),
    ]


def _by_kernel(
    found: Found, file: Operations, graph: Graph | None, shown: Sequence[Operation]
) -> list[tuple[Column, list[Cell]]]:
    longest = [one.kernels[0] if one.kernels else None for one in shown]
    kernels = [Cell("") if one is None else Cell(shortened(one.name, 48), whole=one.whole_name) for one in longest]
    places = (
        [] if graph is None else [(Column("longest at", "place", "place"), _places(found, file.rank, graph, shown))]
    )
    return [
        (Column("tensor cores", means="tensor_cores"), [Cell(core_state(one.tensor_cores)) for one in shown]),
        (
            Column("type", means="types"),
            [Cell(", ".join(one.dtypes[:3]), whole=", ".join(one.dtypes)) for one in shown],
        ),
        (Column("longest kernel"), kernels),
        *places,
    ]


def _graph(found: Found, rank: int) -> Graph | None:
    work = found.work
    return work.files[work.ranks.index(rank)] if work is not None and rank in work.ranks else None


def _places(found: Found, rank: int, graph: Graph, shown: Sequence[Operation]) -> list[Cell]:
    """Return of each operation where its longest kernel began."""
    names = {text: k for k, text in enumerate(graph.strings)}
    order = np.lexsort((-graph.duration_ns, graph.name))
    first = np.searchsorted(graph.name[order], np.arange(len(names) + 1))
    cells = []
    for one in shown:
        kernel, op = (
            names.get(one.kernels[0].whole_name) if one.kernels else None,
            names.get(one.path[-1] if one.path else ""),
        )
        at = None
        if kernel is not None and op is not None:
            nodes = order[first[kernel] : min(first[kernel + 1], first[kernel] + _LOOKED_AT)].tolist()
            at = next((int(graph.start_ns[node]) for node in nodes if _inside(graph, node, op)), None)
        cells.append(Cell("") if at is None else place_cell(found, rank, at))
    return cells


def _inside(graph: Graph, node: int, op: int) -> bool:
    """Tell whether a node of this name called a node, or called who did."""
    while (node := int(graph.caller[node])) != NOWHERE:
        if graph.name[node] == op:
            return True
    return False


def _unknown(file: Operations) -> Sequence[Part]:
    if not file.unknown:
        return []
    rows = [
        Row([time_cell(one.ns), count_cell(one.count), Cell(shortened(one.name), whole=one.whole_name)], f"/{k}")
        for k, one in enumerate(file.unknown[:50])
    ]
    columns = [
        Column("device", "number", "device_time", "ns"),
        Column("count", "number", field="count"),
        Column("kernel"),
    ]
    caption = f"Kernels of rank {file.rank} whose names do not tell whether they use tensor cores"
    return [Table(f"unknown-{file.rank}", caption, columns, rows, f"ops.{file.rank}.json#/unknown")]
