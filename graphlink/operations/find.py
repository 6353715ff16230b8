"""Find the operations of a rank: which one each device op, host row and node is part of, and what each took."""

from __future__ import annotations

from operator import attrgetter, neg
from typing import Any, Final

import numpy as np
from msgspec import UNSET

from graphlink.graph.path_file import Explained
from graphlink.graph_model import OF_HOST_ROWS, Graph, NodeKind
from graphlink.linking.nest import stacks_at
from graphlink.model import I64, NOWHERE, Bool, Communication, DeviceKind, Gpu, Linked
from graphlink.operations.on_device import graph_replays, lanes_of, on_path_ns, sampled
from graphlink.operations.parts import parts_of, places
from graphlink.operations.paths import FoundOperations, HostPaths, host_paths
from graphlink.operations.records import (
    HostWait,
    Kernel,
    Kind,
    Operation,
    Operations,
    TensorCores,
    UseName,
)
from graphlink.operations.tensor_cores import Use, dtype_of, is_eligible, types_taken, use_of
from graphlink.read.commnames import short_name
from graphlink.spans import NEVER
from graphlink.steps import Steps, steps_of
from graphlink.tables import (
    among,
    codes,
    distinct,
    grouped,
    largest,
    marked,
    numbered_values,
    spread,
    sums,
    tuples,
    values_at,
)

_USES: Final[dict[Use, UseName]] = {
    Use.USED: "used",
    Use.NOT_USED: "not_used",
    Use.UNKNOWN: "unknown",
    Use.NONE: "none",
}
_SHAPES: Final = 3  # of an operation that are listed
NOT_RECORDED: Final = "launch not recorded"


def find_operations(graph: Graph, linked: Linked) -> FoundOperations:
    """Find the operation of each host row, device row and node. O(n log n) in rows."""
    host, device, calls = host_paths(linked), linked.trace.device, linked.trace.calls
    table, rows = host.table, linked.trace.host
    op = values_at(linked.call_op, linked.device_call)
    in_op = np.append(~rows.annotation | host.inside, False)[op]
    bare = np.flatnonzero(~in_op)
    alone = graph.nodes_of(NodeKind.HOST_CALL)
    # a kernel outside any op stands for itself, below its call and the ranges around that
    base = np.append(values_at(host.path, op[bare], 0), np.zeros(len(alone), np.int64))
    call_name = values_at(calls.name, linked.device_call[bare], int(table.named([NOT_RECORDED])[0]))
    under = table.below(base, np.append(call_name, calls.name[graph.row[alone]]))
    op = np.where(in_op, op, NOWHERE)
    of_device = values_at(host.operation, op, 0)
    of_device[bare] = table.below(under[: len(bare)], _short_names(linked, host)[device.name[bare]])
    of_node = np.zeros(len(graph.kind), np.int64)
    for mine, paths in (
        (np.flatnonzero(among(graph.kind, OF_HOST_ROWS)), host.operation),
        (graph.nodes_of(NodeKind.DEVICE_OP), of_device),
    ):
        of_node[mine] = paths[graph.row[mine]]
    of_node[alone] = under[len(bare) :]
    every = np.concatenate([of_node, host.operation, of_device, [0]])
    used, number = distinct(every), codes(every) - 1  # path 0 is none
    nodes, row_ops, device_ops = np.split(number[:-1], np.cumsum([len(of_node), len(host.operation)]))
    kind = _kinds(used[1:], host, rows.annotation)
    backward = np.append(host.backward, False)[op]
    return FoundOperations(host, used[1:], kind, row_ops, nodes.astype(np.int32), device_ops, backward, op)


def _short_names(linked: Linked, host: HostPaths) -> I64:
    """Return the number of the short name of each name of a device op that occurs."""
    strings, names = linked.trace.strings, distinct(linked.trace.device.name)
    return spread(len(strings), names, host.table.named([short_name(strings[k]) for k in names.tolist()]))


def _kinds(paths: I64, host: HostPaths, annotation: Bool) -> tuple[Kind, ...]:
    kinds: dict[int, Kind] = dict.fromkeys(host.operation[host.heads & annotation].tolist(), "range")
    kinds |= dict.fromkeys(host.operation[host.heads & ~annotation].tolist(), "op")
    return tuple("python" if path == host.python else kinds.get(path, "launch") for path in paths.tolist())


def measured(
    found: FoundOperations, graph: Graph, linked: Linked, comm: Communication, explained: Explained, rank: int
) -> Operations:
    """Sum up what each operation took, and gains. O(n log n) in rows and operations."""
    gain_ns = explained.operation_gain_ns
    count, device = len(found.path), linked.trace.device
    length_ns = device.end_ns - device.start_ns
    columns = _times(found, graph, length_ns)
    use, cores = _tensor_cores(found, linked, comm, length_ns)
    of_cores, steps = tuples(*cores.values()), steps_of(linked)
    every: dict[str, list[Any]] = {
        **{name: column.tolist() for name, column in columns.items()},
        "path": found.host.table.texts(found.path),
        "kind": list(found.kind),
        "gain_ns": [None if gain == NOWHERE else gain for gain in gain_ns.tolist()] + [0] * (count - len(gain_ns)),
        "tensor_cores": [TensorCores(**dict(zip(cores, values, strict=True))) for values in of_cores],
        "dtypes": _dtypes(found, linked, length_ns),
        **_shapes(found, linked),
        "resized": _resized(found, linked, steps),
        "kernels": _kernels(found.of_device, linked, use, length_ns, count),
        "stack": _stacks(found, linked, length_ns),
    }
    operations = [Operation(**dict(zip(every, values, strict=True))) for values in zip(*every.values(), strict=True)]
    largest = attrgetter("device_ns", "host_ns", "device_ops")
    order = sorted(range(count), key=lambda k: (*map(neg, largest(operations[k])), operations[k].path))
    of_unknown = np.flatnonzero(use == Use.UNKNOWN)
    return Operations(
        rank=rank,
        gpus=sorted({gpu.name for gpu in _gpus(linked)} - {""}),
        device_ops=len(length_ns),
        device_ns=int(columns["device_ns"].sum()),
        host_ns=int(columns["host_ns"].sum()),
        delay_ns=int(columns["delay_ns"].sum()),
        tensor_cores=TensorCores(**{name: int(column.sum()) for name, column in cores.items()}),
        unknown=_kernels(np.zeros(len(of_unknown), np.int64), linked, use, length_ns, 1, of_unknown)[0],
        waits=_waits(found.host, graph, linked),
        operations=[operations[k] for k in order],
        of_node=places(order)[found.of_node].tolist(),
        steps=list(steps.names),
        parts=parts_of(found, graph, linked, comm, steps, order),
        graphs=graph_replays(linked, on_path_ns(graph, explained.path, len(length_ns))),
        lanes=lanes_of(linked) or UNSET,
        counters=sampled(linked, steps) or UNSET,
    )


def _times(found: FoundOperations, graph: Graph, length_ns: I64) -> dict[str, I64]:
    """Return calls, device ops and times of each operation, by the names of the fields of ``Operation``."""
    count = len(found.path)
    host_nodes = np.flatnonzero(among(graph.kind, (*OF_HOST_ROWS, NodeKind.HOST_CALL)) & (found.of_node != NOWHERE))
    of_host, host_ns = found.of_node[host_nodes], graph.self_ns[host_nodes]
    with_row = graph.kind[host_nodes] != NodeKind.HOST_CALL
    back = spread(len(host_nodes), with_row, found.host.backward[graph.row[host_nodes[with_row]]], 0)
    delays = graph.nodes_of(NodeKind.DEVICE_DELAY)
    heads = np.flatnonzero(found.host.heads)
    head_back = found.host.backward[heads]
    calls = sums(count, found.of_row[heads[~head_back]], 1)
    launches = np.array([kind == "launch" for kind in found.kind], np.bool_)
    device_ops = sums(count, found.of_device, 1)
    calls[launches] = (device_ops + sums(count, of_host[~with_row], 1))[launches]
    return {
        "calls": calls,
        "backward_calls": sums(count, found.of_row[heads[head_back]], 1),
        "device_ops": device_ops,
        "device_ns": sums(count, found.of_device, length_ns),
        "backward_device_ns": sums(count, found.of_device[found.backward], length_ns[found.backward]),
        "host_ns": sums(count, of_host, host_ns),
        "backward_host_ns": sums(count, of_host[back], host_ns[back]),
        "delay_ns": sums(count, found.of_device[graph.row[delays]], graph.duration_ns[delays]),
    }


def _gpus(linked: Linked) -> list[Gpu]:
    """Return the devices that ran anything; all that are described where a recording numbers them otherwise."""
    gpus, used = linked.trace.gpus, set(np.unique(linked.trace.device.device).tolist())
    return [gpu for gpu in gpus if gpu.device in used] or list(gpus)


def _tensor_cores(
    found: FoundOperations, linked: Linked, comm: Communication, length_ns: I64
) -> tuple[I64, dict[str, I64]]:
    """Return the ``Use`` of each device row, and the fields of ``TensorCores`` for each operation."""
    device, strings, count = linked.trace.device, linked.trace.strings, len(found.path)
    names = distinct(device.name)
    use = spread(len(strings), names, np.array([use_of(strings[k]) for k in names.tolist()], np.int64))[device.name]
    use[device.kind != DeviceKind.KERNEL] = Use.NONE
    use[comm.device_row] = Use.NONE
    computes, in_op = use != Use.NONE, found.op != NOWHERE
    op_names = linked.trace.host.name
    fit = [k for k in distinct(op_names[found.op[in_op]]).tolist() if is_eligible(strings[k])]
    eligible = computes & np.append(np.isin(op_names, fit), False)[found.op]
    taken = types_taken(_gpus(linked))
    other = np.zeros_like(eligible)
    if taken is not None:
        eligible &= bool(taken)  # a device without tensor cores takes none
        codes, dtypes = _types(linked)
        unfit = np.array([bool(dtype) and dtype not in taken for dtype in dtypes], np.bool_)
        other = eligible & np.append(unfit[codes], False)[found.op]
    masks = {
        "kernels_ns": computes,
        "used_ns": use == Use.USED,
        "not_used_ns": use == Use.NOT_USED,
        "unknown_ns": use == Use.UNKNOWN,
        "eligible_ns": eligible,
        "eligible_used_ns": eligible & (use == Use.USED),
        "eligible_unknown_ns": eligible & (use == Use.UNKNOWN),
        "other_type_ns": other,
        "without_op_ns": computes & ~in_op,
    }
    return use, {name: sums(count, found.of_device[mask], length_ns[mask]) for name, mask in masks.items()}


def _recorded(linked: Linked, column: str) -> tuple[I64, tuple[str, ...]]:
    """Return a column of texts of host rows, as Kineto has it or else the execution trace: a position among texts."""
    strings, codes = linked.trace.strings, getattr(linked.trace.host, column).astype(np.int64)
    if linked.et is None:
        return codes, strings
    bare = (codes == 0) & (linked.match.et != NOWHERE)
    codes[bare] = getattr(linked.et, column)[linked.match.et[bare]] + len(strings)
    return codes, (*strings, *linked.et.strings)


def _types(linked: Linked) -> tuple[I64, list[str]]:
    """Return the type that each host row computes in, a position in a list."""
    code, texts = _recorded(linked, "input_types")
    return codes(code), [dtype_of(texts[k]) for k in distinct(code).tolist()]


def _dtypes(found: FoundOperations, linked: Linked, length_ns: I64) -> list[list[str]]:
    """Return the types of each operation, most device time first."""
    codes, dtypes = _types(linked)
    names = sorted({*dtypes, ""})
    place = np.array([names.index(dtype) for dtype in dtypes], np.int64)
    rows = np.flatnonzero(found.op != NOWHERE)
    spent = sums(
        len(found.path) * len(names),
        found.of_device[rows] * len(names) + place[codes[found.op[rows]]],
        np.maximum(length_ns[rows], 1),
    )
    out: list[list[str]] = [[] for _ in range(len(found.path))]
    filled = np.flatnonzero(spent)
    for key in filled[np.lexsort((filled, -spent[filled]))].tolist():
        if names[key % len(names)]:
            out[key // len(names)].append(names[key % len(names)])
    return out


def _shapes(found: FoundOperations, linked: Linked) -> dict[str, list[Any]]:
    """Return the most frequent input shapes of the forward calls of each operation, as recorded, and how many others
    there are.
    """
    codes, texts = _recorded(linked, "input_shapes")
    rows = np.flatnonzero(found.host.heads & ~found.host.backward & (found.of_row != NOWHERE))
    key, count = np.unique(found.of_row[rows] * len(texts) + codes[rows], return_counts=True)
    by_operation: list[list[tuple[int, str]]] = [[] for _ in range(len(found.path))]
    for one, times in tuples(key, count):
        operation, text = divmod(one, len(texts))
        if texts[text] not in ("", "[]"):
            by_operation[operation].append((-times, texts[text]))
    first = [[text for _, text in sorted(shapes)[:_SHAPES]] for shapes in by_operation]
    return {
        "shapes": first,
        "other_shapes": [len(shapes) - len(some) for shapes, some in zip(by_operation, first, strict=True)],
    }


def _resized(found: FoundOperations, linked: Linked, steps: Steps) -> list[bool]:
    """Return which operations have, in some steps, inputs of other sizes than in others with as many rows of theirs."""
    text, texts = _recorded(linked, "input_shapes")
    sized = np.array([bool(one.strip("[], ")) for one in texts], np.bool_)
    start_ns, count = linked.trace.host.start_ns, len(steps.names)
    step = np.searchsorted(steps.start_ns, start_ns, side="right") - 1
    rows = np.flatnonzero(sized[text] & (found.of_row != NOWHERE) & (step >= 0))
    rows = rows[start_ns[rows] < steps.end_ns[step[rows]]]
    place = found.of_row[rows] * count + step[rows]
    mixed = (text[rows] + 1) ** 2 * np.int64(0x9E3779B97F4A7C1)  # equal sums of it: the same sizes, as often
    sizes, of_step = (sums(len(found.path) * count, place, of_row) for of_row in (mixed, 1))
    some = np.flatnonzero(of_step)
    different = np.unique(np.stack([some // max(count, 1), of_step[some], sizes[some]]), axis=1)
    operation, with_rows = different[0], different[:2]
    return [*marked(len(found.path), operation[1:][(with_rows[:, 1:] == with_rows[:, :-1]).all(axis=0)]).tolist()]


def _kernels(
    of: I64, linked: Linked, use: I64, length_ns: I64, count: int, rows: I64 | None = None
) -> list[list[Kernel]]:
    """Return the kernels of each of ``count`` groups, most time first; ``of``: the group of each of ``rows``, which are
    all without any.
    """
    device, strings = linked.trace.device, linked.trace.strings
    rows = np.arange(len(device.name)) if rows is None else rows
    key, which, counts = np.unique(
        (of * len(strings) + device.name[rows]) * len(Use) + use[rows], return_inverse=True, return_counts=True
    )
    spent, moved = (sums(len(key), which.reshape(-1), each[rows]) for each in (length_ns, device.bytes))
    out: list[list[Kernel]] = [[] for _ in range(count)]
    for one, times, ns, size in tuples(key, counts, spent, moved):
        group, code = divmod(one // len(Use), len(strings))
        whole = strings[code]
        out[group].append(
            Kernel(
                name=short_name(whole),
                whole_name=whole,
                count=times,
                ns=ns,
                tensor_cores=_USES[Use(one % len(Use))],
                bytes=size or UNSET,
            )
        )
    for kernels in out:
        kernels.sort(key=lambda kernel: (-kernel.ns, -kernel.count, kernel.whole_name))
    return out


def _stacks(found: FoundOperations, linked: Linked, length_ns: I64) -> list[list[str]]:
    """Return the Python frames around the launch of the longest device op of each operation, or around the longest call
    of one without any; a forward one where there is any, as autograd's threads have no stack."""
    device, calls, host = linked.trace.device, linked.trace.calls, linked.trace.host
    launched = np.flatnonzero(linked.device_call != NOWHERE)
    call = linked.device_call[launched]
    heads = np.flatnonzero(found.host.heads & (found.of_row != NOWHERE))
    on_host = np.repeat([False, True], [len(launched), len(heads)])
    operation, backward, took_ns, began_ns = (
        np.append(of_device[launched], of_host[heads])
        for of_device, of_host in (
            (found.of_device, found.of_row),
            (found.backward, found.host.backward),
            (length_ns, host.end_ns - host.start_ns),
            (device.start_ns, host.start_ns),
        )
    )
    tid = np.append(calls.tid[call], host.tid[heads])
    at_ns = np.append(calls.start_ns[call], host.start_ns[heads])
    order = np.lexsort((began_ns, -took_ns, backward, on_host, operation))
    one, first = np.unique(operation[order], return_index=True)
    out: list[list[str]] = [[] for _ in range(len(found.path))]
    for number, stack in zip(one.tolist(), stacks_at(linked, tid[order[first]], at_ns[order[first]]), strict=True):
        out[number] = stack
    return out


def _waits(host: HostPaths, graph: Graph, linked: Linked) -> list[HostWait]:
    """Return the calls in which the host waited for what an edge names, longest first. O(n log n) in ``sync`` edges,
    and ``stacks_at``.
    """
    kept, calls = graph.sync_calls, linked.trace.calls
    call, which = numbered_values(kept.call)
    ended_ns = largest(len(call), which, graph.end_ns[kept.source] + graph.epoch_ns, NEVER)
    waited_ns = np.minimum(ended_ns, calls.end_ns[call]) - calls.start_ns[call]
    blocked = np.flatnonzero(waited_ns > 0)
    call, waited_ns = call[blocked], waited_ns[blocked]
    used, place = numbered_values(values_at(host.path, linked.call_op[call], 0))
    texts = host.table.texts(used)
    stacks = map(tuple, stacks_at(linked, calls.tid[call], calls.start_ns[call]))
    found = grouped(
        zip(zip(calls.name[call].tolist(), place.tolist(), stacks, strict=True), waited_ns.tolist(), strict=True)
    )
    waits = [
        HostWait(call=linked.trace.strings[row], path=texts[at], count=len(ns), ns=sum(ns), stack=[*stack])
        for (row, at, stack), ns in found.items()
    ]
    return sorted(waits, key=lambda one: (-one.ns, -one.count, one.call, one.path, one.stack))
