"""What ``graphlink ops`` prints and its ``--json`` holds: operations with most device time, use of tensor cores, waits
of the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from graphlink.figures import Column, column, columns, table
from graphlink.operations.records import (
    GraphNode,
    GraphReplays,
    HostWait,
    Kernel,
    Lane,
    Operation,
    Operations,
    Sampled,
    TensorCores,
)
from graphlink.read.commnames import short_name
from graphlink.records import Lines, Short, counted, ms, percent, short_path, shortened

FEW_GRAPHS: Final = 3  # that are told
_FEW_RANKS: Final = 2
_OVER: Final = (
    "a gain may exceed host and device time: pauses behind an op (below 20 us each), outside of all ops, go with it"
)


class RankOperations(Short, msgspec.Struct, frozen=True, kw_only=True):
    """A rank with its first operations, unknown names and waits; ``others``, ``others_device_ns``: how many more
    operations there are, and their time; ``other_waits``, ``other_waits_ns``: the same of waits. ``graphs``: each with
    the nodes that took most time.

    ``counters``: of the device, of steps, of the kernels that took most time, and without means of those that were too
    short for the samples. ``most_delayed``: the path of the operation whose device ops
    came late by most; empty where none did.
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
    lanes: list[Lane] | UnsetType = UNSET
    counters: list[Sampled] | UnsetType = UNSET


class OperationsReport(Short, msgspec.Struct, frozen=True, kw_only=True):
    ranks: list[RankOperations]


def top_of(file: Operations, top: int) -> RankOperations:
    """Return the first operations of a rank."""
    kernels = [one for one in file.counters or () if one.of == "kernel" and one.means]
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
            for one in file.graphs[:FEW_GRAPHS]
        ],
        lanes=file.lanes and file.lanes[:top],
        counters=file.counters and [one for one in file.counters if one not in kernels[top:]],
    )


def operations_table(report: OperationsReport, *, whole: bool = False) -> Lines:
    """Return the report for people: of few ranks all, of many a line each, and the operations of the one with most
    device time.
    """
    ranks, out = report.ranks, Lines()
    if len(ranks) > _FEW_RANKS:
        most = column("most by", "path", [rank.operations[0].path if rank.operations else None for rank in ranks])
        names: tuple[str, ...] = ("rank", "host_ns")
        if any(rank.device_ops for rank in ranks):
            names = ("rank", "device_ns", "device_ops", "tensor_cores.eligible_ns", "tensor_cores.eligible_used")
        out += [table(columns(RankOperations, ranks, *names, most), indent=0), ""]
        ranks = [max(ranks, key=lambda rank: (rank.device_ns, rank.host_ns, -rank.rank))]
    return [*out, *(part for rank in ranks for part in _rank(rank, whole))]


def _rank(rank: RankOperations, whole: bool) -> Lines:
    on = f" on {', '.join(rank.gpus)}" if rank.gpus else ""
    late = (
        f"; device delays {ms(rank.delay_ns)} ms, most before {short_path(rank.most_delayed)}" if rank.delay_ns else ""
    )
    device = f"{ms(rank.device_ns)} ms of device time in {counted(rank.device_ops, 'device op')}{on}; "
    took = f"{device if rank.device_ops else 'no device op; '}host {ms(rank.host_ns)} ms{late}"
    out: Lines = [f"rank {rank.rank}: {took}", *core_lines(rank.tensor_cores)]
    ops = rank.operations
    share = column("share", "part", [(op.device_ns, rank.device_ns) for op in ops])
    names: list[str | Column] = ["device_ns", share, "backward", "calls", "host_ns", "gain_ns"]
    names += ["tensor_cores.state", "dtypes", "path", "longest_kernel"]
    if not rank.device_ops:
        share = column("share", "part", [(op.host_ns, rank.host_ns) for op in ops])
        names = ["host_ns", share, "calls", "gain_ns", "path"]
    names += ["stack"] if any(op.stack for op in ops) else []
    out.append(table(columns(Operation, ops, *names), whole=whole))
    note = gain_note(ops)
    out += [f"  {note}"] if note else []
    if rank.others:
        time = f" with {ms(rank.others_device_ns)} ms of device time" if rank.device_ops else ""
        out.append(f"  {counted(rank.others, 'more operation')}{time}")
    if rank.unknown:
        unknown = columns(Kernel, rank.unknown, "ns", "count", column("", "kernel", rank.unknown))
        out += ["kernels whose names do not tell whether they use tensor cores", table(unknown, whole=whole)]
    if rank.other_unknown:
        out.append(f"  {counted(rank.other_unknown, 'more name')}")
    graphs = (part for graph in rank.graphs for part in _graph(graph, whole))
    return [*out, *_waits(rank, whole), *graphs, *_lanes(rank), *_counters(rank), ""]


def _lanes(rank: RankOperations) -> Lines:
    share = column("share", "part", [(lane.device_ns, rank.device_ns) for lane in rank.lanes or ()])
    shown = columns(Lane, rank.lanes or (), "device_ns", share, "device_ops", "name", "most")
    return ["lanes: lines that work of graphs is shown on", table(shown)] if rank.lanes else []


def _counters(rank: RankOperations) -> Lines:
    rows, bare = [[one for one in rank.counters or () if bool(one.means) is told] for told in (True, False)]
    time_ms = ms(sum(one.ns for one in bare))
    more = f"  {counted(len(bare), 'more name')} ({time_ms} ms) filled less than half of the samples: no figure"
    return ["counters, on average", table(counter_columns(rows)), *([more] if bare else [])] if rows else []


def counter_columns(rows: Sequence[Sampled]) -> list[Column]:
    """Return the means of counters as columns, and what they are of."""
    names = dict.fromkeys(name for one in rows for name in one.means)
    means = [column(name, "mean", [one.means.get(name) for one in rows]) for name in names]
    texts = [short_name(one.name) if one.name else f"GPU {one.device}" for one in rows]
    return [*columns(Sampled, rows, "ns", "of"), *means, column("what", "text", texts)]


def _waits(rank: RankOperations, whole: bool) -> Lines:
    """Return where the host waited for a device."""
    if not rank.waits:
        return []
    stack = ["stack"] if any(wait.stack for wait in rank.waits) else []
    shown = columns(HostWait, rank.waits, "ns", "count", "call", "path", *stack)
    more = f"  {counted(rank.other_waits, 'more place')} with {ms(rank.other_waits_ns)} ms"
    return ["where the host waited for a device", table(shown, whole=whole), *([more] if rank.other_waits else [])]


def graph_lines(graph: GraphReplays) -> list[str]:
    """Return what ran behind the launches of a graph, how long a replay takes, and what lies between two, a line
    each."""
    which = "a graph, its nodes known by name and order" if graph.graph is None else f"graph {graph.graph}"
    by = graph.call or "launch not recorded"
    times = f"{graph.replays:,} launch{'es' * (graph.replays != 1)}"
    longest = f", the longest {ms(graph.longest_ns)}" if graph.replays > 1 else ""
    path = f"; {ms(graph.on_path_ns)} ms of the critical path" if graph.on_path_ns else ""
    lines = [
        f"behind {times} of {which} ({by}): {ms(graph.device_ns)} ms in {counted(graph.device_ops, 'device op')}",
        f"a replay takes {ms(graph.mean_ns)} ms (spread {ms(graph.spread_ns)}{longest}){path}",
    ]
    if (gap := graph.between) is not None:
        most = f", mostly {shortened(gap.most)}" if gap.most else ""
        works = f"the device works in {percent(gap.busy_ns, gap.ns)} of it{most}"
        lines.append(f"{ms(gap.ns // gap.count)} ms lie between one and the next (mean); {works}")
    return lines


def _graph(graph: GraphReplays, whole: bool) -> Lines:
    """Return what ran behind the launches of a graph, most time first."""
    head, *lines = graph_lines(graph)
    share = column("share", "part", [(node.ns, graph.device_ns) for node in graph.nodes])
    critical = ["critical"] if any(node.critical for node in graph.nodes) else []
    names = ("replays", *critical, "mean_ns", "spread_ns", "longest_ns", "node")
    kernels = column("kernel", "kernel", graph.nodes)
    nodes = table(columns(GraphNode, graph.nodes, "ns", share, *names, kernels), whole=whole)
    return [head, *(f"  {line}" for line in lines), nodes]


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
