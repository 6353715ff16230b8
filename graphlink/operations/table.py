"""What ``graphlink ops`` prints and its ``--json`` holds: operations with most device time, use of tensor cores, waits
of the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from graphlink.operations.records import GraphReplays, HostWait, Kernel, Operation, Operations, TensorCores
from graphlink.records import Short, Table, counted, first_few, ms, percent, shortened

_PATH: Final = 76  # characters of a path, where it is not printed in full
_END: Final = 34  # of its first and of its last name
_FEW: Final = 3
_FEW_RANKS: Final = 2
_OVER: Final = (
    "a gain may exceed host and device time: short times (below 20 us each) in which the ops around it end, and pauses "
    "behind it, "
    "belong to its nodes"
)


class RankOperations(Short, msgspec.Struct, frozen=True, kw_only=True):
    """A rank with its first operations, unknown names and waits; ``others``, ``others_device_ns``: how many more
    operations there are, and their time; ``other_waits``, ``other_waits_ns``: the same of waits. ``graphs``: each with
    the nodes that took most time.

    ``most_delayed``: the path of the operation whose device ops came late by most; empty where none did.
    """

    rank: int
    gpus: list[str]
    device_ops: int
    device_ns: int
    host_ns: int
    delay_ns: int
    most_delayed: list[str]
    tensor_cores: TensorCores
    unknown: list[Kernel]
    other_unknown: int
    operations: list[Operation]
    others: int
    others_device_ns: int
    waits: list[HostWait]
    other_waits: int
    other_waits_ns: int
    graphs: list[GraphReplays] = []


class OperationsReport(Short, msgspec.Struct, frozen=True, kw_only=True):
    ranks: list[RankOperations]


def top_of(file: Operations, top: int) -> RankOperations:
    """Return the first operations of a rank."""
    latest = max(file.operations, key=lambda one: one.delay_ns, default=None)
    return RankOperations(
        **{
            name: getattr(file, name)
            for name in ("rank", "gpus", "device_ops", "device_ns", "host_ns", "delay_ns", "tensor_cores")
        },
        most_delayed=latest.path if latest and latest.delay_ns else [],
        unknown=file.unknown[:top],
        other_unknown=len(file.unknown[top:]),
        operations=file.operations[:top],
        others=len(file.operations[top:]),
        others_device_ns=sum(one.device_ns for one in file.operations[top:]),
        waits=file.waits[:top],
        other_waits=len(file.waits[top:]),
        other_waits_ns=sum(one.ns for one in file.waits[top:]),
        graphs=[
            msgspec.structs.replace(one, nodes=sorted(one.nodes, key=lambda node: -node.ns)[:top])
            for one in file.graphs[:_FEW]
        ],
    )


def operations_table(report: OperationsReport, *, whole: bool = False) -> list[str | Table]:
    """Return the report for people: of few ranks all, of many a line each, and the operations of the one with most
    device time.
    """
    ranks, out = report.ranks, list[str | Table]()
    if len(ranks) > _FEW_RANKS:
        out += [_ranks(ranks), ""]
        ranks = [max(ranks, key=lambda rank: (rank.device_ns, -rank.rank))]
    return [*out, *(part for rank in ranks for part in _rank(rank, whole))]


def _ranks(ranks: Sequence[RankOperations]) -> Table:
    head = ("rank", "device ms", "device ops", "eligible ms", "on tensor cores", "most by")
    rows = [
        (
            str(rank.rank),
            ms(rank.device_ns),
            f"{rank.device_ops:,}",
            ms(rank.tensor_cores.eligible_ns),
            percent(rank.tensor_cores.eligible_used_ns, rank.tensor_cores.eligible_ns),
            short_path(rank.operations[0].path) if rank.operations else "",
        )
        for rank in ranks
    ]
    return Table(rows, head, ">>>>><", indent=0)


def _rank(rank: RankOperations, whole: bool) -> list[str | Table]:
    on = f" on {', '.join(rank.gpus)}" if rank.gpus else ""
    late = (
        f"; device delays {ms(rank.delay_ns)} ms, most before {short_path(rank.most_delayed)}" if rank.delay_ns else ""
    )
    took = (
        f"{ms(rank.device_ns)} ms of device time in {counted(rank.device_ops, 'device op')}{on}; host "
        f"{ms(rank.host_ns)} ms{late}"
    )
    out: list[str | Table] = [f"rank {rank.rank}: {took}", *core_lines(rank.tensor_cores)]
    head = [
        "device ms",
        "share",
        "backward",
        "calls",
        "host ms",
        "gain ms",
        "tensor cores",
        "type",
        "operation",
        "longest kernel",
    ]
    rows = [_row(one, rank.device_ns, whole) for one in rank.operations]
    called = any(one.stack for one in rank.operations)
    if called:
        head.append("from")
        rows = [(*row, _from(one.stack, whole)) for row, one in zip(rows, rank.operations, strict=True)]
    out.append(Table(rows, head, ">>>>>>", spare=("backward", "host ms", "longest kernel", "type")))
    note = gain_note(rank.operations)
    out += [f"  {note}"] if note else []
    if rank.others:
        out.append(f"  {counted(rank.others, 'more operation')} with {ms(rank.others_device_ns)} ms of device time")
    if rank.unknown:
        names = [
            (ms(one.ns), f"{one.count:,}", one.whole_name if whole else shortened(one.name)) for one in rank.unknown
        ]
        out += [
            "kernels whose names do not tell whether they use tensor cores",
            Table(names, ("ms", "count", ""), ">><"),
        ]
    if rank.other_unknown:
        out.append(f"  {counted(rank.other_unknown, 'more name')}")
    return [*out, *_waits(rank, whole), *(part for one in rank.graphs for part in _graph(one, whole)), ""]


def _waits(rank: RankOperations, whole: bool) -> list[str | Table]:
    """Return where the host waited for a device."""
    if not rank.waits:
        return []
    head = ["ms", "calls", "call", "in"]
    rows: list[tuple[str, ...]] = [
        (ms(one.ns), f"{one.count:,}", one.call, "/".join(one.path) if whole else short_path(one.path))
        for one in rank.waits
    ]
    if any(one.stack for one in rank.waits):
        head.append("from")
        rows = [(*row, _from(one.stack, whole)) for row, one in zip(rows, rank.waits, strict=True)]
    more = f"  {counted(rank.other_waits, 'more place')} with {ms(rank.other_waits_ns)} ms"
    return ["where the host waited for a device", Table(rows, head, ">>"), *([more] if rank.other_waits else [])]


def _graph(graph: GraphReplays, whole: bool) -> list[str | Table]:
    """Return what ran behind the launches of a graph, most time first."""
    which = "a graph, its nodes told by name and turn" if graph.graph is None else f"graph {graph.graph}"
    by = graph.call or "launch not recorded"
    times = f"{graph.replays:,} launch{'es' * (graph.replays != 1)}"
    head = f"behind {times} of {which} ({by}): {ms(graph.device_ns)} ms in {counted(graph.device_ops, 'device op')}"
    rows = [
        (
            ms(one.ns),
            percent(one.ns, graph.device_ns),
            f"{one.replays:,}",
            *(f"{ns / 1e3:,.1f}" for ns in (one.mean_ns, one.spread_ns, one.longest_ns)),
            "" if one.node is None else f"{one.node}",
            one.whole_name if whole else shortened(one.name),
        )
        for one in graph.nodes
    ]
    columns = ("ms", "share", "replays", "mean us", "spread us", "longest us", "node", "kernel")
    return [head, Table(rows, columns, ">>>>>>>")]


def gain_note(shown: Sequence[Operation]) -> str:
    """Return why gains exceed the time of their operation, "" where none does."""
    over = any(0 < one.host_ns + one.device_ns + one.delay_ns < (one.gain_ns or 0) for one in shown)
    return _OVER if over else ""


def core_lines(of: TensorCores) -> list[str]:
    """Return how far tensor cores are used, in a line or two."""
    if not of.kernels_ns:
        return []
    bare = f"; {percent(of.without_op_ns, of.kernels_ns)} without a recorded op" if of.without_op_ns else ""
    states = _states(of.used_ns, of.unknown_ns, of.kernels_ns)
    out = [f"  tensor cores, of {ms(of.kernels_ns)} ms of compute kernels: {states}{bare}"]
    if of.eligible_ns:
        other = (
            f"; {percent(of.other_type_ns, of.eligible_ns)} in types that they do not take" if of.other_type_ns else ""
        )
        states = _states(of.eligible_used_ns, of.eligible_unknown_ns, of.eligible_ns)
        out.append(
            f"  of {ms(of.eligible_ns)} ms in ops that could use them, all their kernels counted: {states}{other}"
        )
    return out


def _states(used_ns: int, unknown_ns: int, whole_ns: int) -> str:
    states = {"used": used_ns, "not used": whole_ns - used_ns - unknown_ns, "unknown": unknown_ns}
    return ", ".join(f"{word} {percent(ns, whole_ns)}" for word, ns in states.items())


def _row(one: Operation, whole_ns: int, whole: bool) -> tuple[str, ...]:
    kernel = one.kernels[0] if one.kernels else None
    return (
        ms(one.device_ns),
        percent(one.device_ns, whole_ns),
        percent(one.backward_device_ns, one.device_ns) if one.backward_device_ns else "",
        f"{one.calls:,}",
        ms(one.host_ns),
        "" if one.gain_ns is None else ms(one.gain_ns),
        core_state(one.tensor_cores),
        first_few(one.dtypes, _FEW),
        "/".join(one.path) if whole else short_path(one.path),
        "" if kernel is None else kernel.whole_name if whole else shortened(kernel.name, 48),
    )


def _from(stack: Sequence[str], whole: bool) -> str:
    return " > ".join(stack) if whole else shortened(stack[-1]) if stack else ""


def core_state(of: TensorCores) -> str:
    """Return whether an operation uses tensor cores: a share of its kernels' time, or why there is none; "" where it
    could not.
    """
    if of.used_ns:
        return f"used {percent(of.used_ns, of.kernels_ns)}"
    if of.unknown_ns:
        return "unknown"
    if not of.eligible_ns:
        return ""
    return "not used: type" if of.other_type_ns else "not used"


def short_path(path: Sequence[str]) -> str:
    """Return a path with its first and its last names, as many as fit: ``VGG/.../aten::conv2d/aten::convolution``."""
    whole = "/".join(path)
    if len(whole) <= _PATH or len(path) < 2:
        return shortened(whole, _PATH)
    first, inner, kept = shortened(path[0], _END), path[1:-1], [shortened(path[-1], _END)]
    while inner and len("/".join((first, "...", inner[-1], *kept))) <= _PATH:
        inner, kept = inner[:-1], [inner[-1], *kept]
    return "/".join([first, *(["..."] if inner else []), *kept])
