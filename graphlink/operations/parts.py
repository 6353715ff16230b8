"""What each operation took step by step: its device ops by name, its own host time, and its GPU calls by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, get_args

import numpy as np

from graphlink.graph_model import Graph, NodeKind
from graphlink.linking.call_roles import WAITS, roles
from graphlink.linking.nest import enclosing
from graphlink.model import I32, I64, NOWHERE, Bool, Communication, DeviceKind, Linked
from graphlink.operations.paths import FoundOperations
from graphlink.operations.records import OTHER_THREADS, Part, PartOf
from graphlink.steps import Steps, step_marks
from graphlink.tables import among, begins, codes, concat, most, spread, sums, tuples, values_at

_SORTS: Final[tuple[PartOf, ...]] = get_args(PartOf)
_KERNEL, _COPY, _COMM, _LATE, _HOST, _CALL, _WAITING = range(len(_SORTS))
_ASLEEP_NS: Final = 100_000
_Key: TypeAlias = I64 | I32 | Bool | int


@dataclass(frozen=True, slots=True)
class _Rows:
    """What is summed up. ``operation`` may be ``NOWHERE``; ``name``, ``op``: positions in the strings of the trace;
    ``step``: from 1 on, 0 for none; ``count``: how many rows were summed up."""

    operation: I64
    sort: I64
    name: I64
    op: I64
    backward: I64
    device: I64
    stream: I64
    step: I64
    count: I64
    ns: I64


def parts_of(
    found: FoundOperations, graph: Graph, linked: Linked, comm: Communication, steps: Steps, order: Sequence[int]
) -> list[Part]:
    """Return the parts of all operations, which are given in ``order``; O(n log n) in rows, and linear in parts x
    steps.
    """
    strings = (*linked.trace.strings, OTHER_THREADS)
    own = _host(found, graph, linked, steps, len(strings) - 1)
    rows = concat(*_device(found, graph, linked, comm, steps), *own, *_calls(found, linked, steps))
    return list(_parts(rows, places(order)[rows.operation], len(steps.names) + 1, strings))


def places(order: Sequence[int]) -> I64:
    """Return the place of each operation in ``order``; the last entry stands for none."""
    return np.append(spread(len(order), np.array(order, np.int64), np.arange(len(order))), NOWHERE)


def _parts(rows: _Rows, operation: I64, width: int, strings: tuple[str, ...]) -> Iterator[Part]:
    turn = np.argsort(
        np.argsort(np.array(strings, object), kind="stable"), kind="stable"
    )  # by text: numbers depend on the order of rows
    by = np.lexsort((rows.stream, rows.device, rows.backward, turn[rows.op], turn[rows.name], rows.sort, operation))
    columns = [column[by] for column in (operation, rows.sort, rows.name, rows.op, rows.backward)]
    opens = begins(*columns)
    first, number = np.flatnonzero(opens), np.cumsum(opens) - 1
    place = number * width + rows.step[by]
    count, ns = (sums(len(first) * width, place, of[by]).reshape(-1, width) for of in (rows.count, rows.ns))
    streams: list[list[tuple[int, int]]] = [[] for _ in range(len(first))]
    placed = np.flatnonzero(begins(number, rows.device[by], rows.stream[by]) & (columns[1] < _LATE))
    for k, device, stream in zip(
        *(column[placed].tolist() for column in (number, rows.device[by], rows.stream[by])), strict=True
    ):
        streams[k].append((device, stream))
    keys = tuples(*(column[first] for column in columns))
    for (of, sort, name, op, backward), placed_on, counts, times in zip(
        keys, streams, count.tolist(), ns.tolist(), strict=True
    ):
        yield Part(
            operation=None if of == NOWHERE else of,
            of=_SORTS[sort],
            name=strings[name],
            op=strings[op],
            backward=bool(backward),
            streams=placed_on,
            count=counts,
            ns=times,
        )


def _summed(operation: _Key, sort: _Key, name: _Key, steps: Steps, at_ns: I64, ns: I64, **more: _Key) -> _Rows:
    """Sum up rows that are equal in all but their time, which began at ``at_ns``; what is one number is that of all."""
    step = np.searchsorted(steps.start_ns, at_ns, side="right")
    within = step > 0
    within[within] = at_ns[within] < steps.end_ns[step[within] - 1]
    same = {"op": 0, "backward": 0, "device": 0, "stream": 0} | more
    columns = {"operation": operation, "sort": sort, "name": name, **same, "step": np.where(within, step, 0)}
    keys = {key: np.full(len(ns), column, np.int64) for key, column in columns.items()}
    code = codes(*keys.values())
    count = np.bincount(code)
    one = spread(len(count), code, np.arange(len(code)))
    return _Rows(**{key: column[one] for key, column in keys.items()}, count=count, ns=sums(len(count), code, ns))


def _device(found: FoundOperations, graph: Graph, linked: Linked, comm: Communication, steps: Steps) -> Iterator[_Rows]:
    device, host, calls = linked.trace.device, linked.trace.host, linked.trace.calls
    sort = np.where(device.kind == DeviceKind.MEMCPY, _COPY, _KERNEL)
    sort[comm.device_row] = _COMM
    call = linked.device_call
    at_ns = np.where(call == NOWHERE, device.start_ns, np.append(calls.start_ns, 0)[call])
    op = np.append(host.name, 0)[found.op]  # NOWHERE is the last: no name
    placed = {"op": op, "backward": found.backward, "device": device.device, "stream": device.stream}
    own = np.flatnonzero(device.kind != DeviceKind.HOST)
    own_ns, its = (device.end_ns - device.start_ns)[own], {key: column[own] for key, column in placed.items()}
    yield _summed(found.of_device[own], sort[own], device.name[own], steps, at_ns[own], own_ns, **its)
    node = graph.nodes_of(NodeKind.DEVICE_OP)
    delay = graph.nodes_of(NodeKind.DEVICE_DELAY)
    late_ns = sums(len(op), graph.row[node], graph.start_delay_ns[node]) + sums(
        len(op), graph.row[delay], graph.duration_ns[delay]
    )
    late = np.flatnonzero(late_ns > 0)
    yield _summed(found.of_device[late], _LATE, 0, steps, at_ns[late], late_ns[late])
    rows = comm.host_row  # gloo
    took_ns = host.end_ns[rows] - host.start_ns[rows]
    yield _summed(
        found.of_row[rows], _COMM, host.name[rows], steps, host.start_ns[rows], took_ns, device=NOWHERE, stream=NOWHERE
    )


def _host(found: FoundOperations, graph: Graph, linked: Linked, steps: Steps, other_threads: int) -> Iterator[_Rows]:
    """Yield the own time of each host row, without GPU calls and waits; and the time between ops, which is of no row.

    ``other_threads``: the name of long time between ops on others than the main thread. They may as well wait there for
    what was not recorded.
    """
    host, calls = linked.trace.host, linked.trace.calls
    count = len(host.start_ns)
    node = graph.nodes_of(NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_ASYNC)
    self_ns, wait_ns = (sums(count, graph.row[node], column[node]) for column in (graph.self_ns, graph.wait_ns))
    usable, until_ns = ~linked.crossing, np.maximum(calls.start_ns, calls.end_ns - 1)
    row = enclosing(host, linked.parent, usable, usable, calls.tid, calls.start_ns, until_ns)
    call_ns = sums(count + 1, row, calls.end_ns - calls.start_ns)[:count]  # the last is of calls outside any
    own_ns = np.maximum(self_ns - np.maximum(call_ns - wait_ns, 0), 0)
    yield _summed(found.of_row, _HOST, 0, steps, host.start_ns, own_ns)
    node = graph.nodes_of(NodeKind.HOST_GAP, NodeKind.HOST_OP, NodeKind.HOST_PART)
    gap = graph.kind[node] == NodeKind.HOST_GAP
    between_ns = np.where(gap, graph.duration_ns[node], graph.duration_ns[node] - graph.self_ns[node])
    main = graph.tid[node] == _main_thread(linked)
    python = np.flatnonzero(found.path == found.host.python)
    name = np.where(main | (between_ns < _ASLEEP_NS), 0, other_threads)
    yield _summed(
        int(python[0]) if len(python) else NOWHERE,
        _HOST,
        name,
        steps,
        graph.start_ns[node] + graph.epoch_ns,
        between_ns,
    )


def _main_thread(linked: Linked) -> int:
    """Return the thread with the marks of steps, without any the one whose ranges and ops take most time."""
    host = linked.trace.host
    if not len(host.tid):
        return 0
    marks = step_marks(linked.trace)
    outer = marks if marks.any() else linked.parent == NOWHERE
    return most(host.tid[outer], (host.end_ns - host.start_ns)[outer])[0]


def _calls(found: FoundOperations, linked: Linked, steps: Steps) -> Iterator[_Rows]:
    calls, strings = linked.trace.calls, linked.trace.strings
    operation = values_at(found.of_row, linked.call_op)
    sort = np.where(among(roles(calls, strings), WAITS), _WAITING, _CALL)
    yield _summed(operation, sort, calls.name, steps, calls.start_ns, calls.end_ns - calls.start_ns)
