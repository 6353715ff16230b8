"""Forwards and backwards of a pipeline that names none, from the messages between its stages: for graphs without
pipeline ranges.

Computation that waits for a message from the stage before begins a forward, for one from the stage after a backward;
computation that a message leaves after ends one. On the first and the last stage nothing tells where a backward ends
and a forward begins, or the reverse: there the number of ops of those that stand alone does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from graphlink.errors import InputError
from graphlink.graph_model import Graph, NodeType
from graphlink.model import I64, NOWHERE
from graphlink.pipeline.records import Pass, Ranges
from graphlink.replay.workload import Work, works_of
from graphlink.scale.layout import Axis, step_of
from graphlink.tables import numbered_values, turns

RULE: Final = "messages between stages"
_TODO: Final = "record with ranges around forward and backward of each microbatch (docs/bubbles.md), and link again"
_Label = Pass | None


@dataclass(frozen=True, slots=True)
class _Unit:
    """Ops ``low`` to ``high`` of a rank's computation between two messages, and what the messages at its begin and end
    say it is.
    """

    low: int
    high: int
    begins: _Label
    ends: _Label


def stage_ranges(
    graphs: Mapping[int, Graph], skew_ns: Mapping[int, int], axis: Axis, ranks: tuple[int, ...]
) -> tuple[Ranges, ...]:
    """Return the forwards and backwards of the stages ``ranks`` of one pipeline, in their order; times since the first
    start of all.

    Raises:
        InputError: the messages do not tell them.
    """
    return tuple(_ranges(graphs[rank], skew_ns[rank], axis, place, rank) for place, rank in enumerate(ranks))


def message_bytes(graphs: Mapping[int, Graph], axis: Axis, actions: int) -> tuple[int, int] | None:
    """Return the bytes that go from stage to stage with a forward and with a backward, on average; None where no sizes
    were recorded.

    ``actions``: forwards, or backwards, of all recorded steps of a stage.
    """
    sums, boundaries = [0, 0], (axis.size - 1) * (len(graphs) // axis.size)
    for rank, graph in graphs.items():
        sent = np.flatnonzero(graph.type == NodeType.COMM_SEND)
        for to, size in zip(graph.comm_dst[sent].tolist(), graph.comm_size[sent].tolist(), strict=True):
            step = axis.of(to) - axis.of(rank)
            if abs(step) == 1:
                sums[step < 0] += size
    forward, backward = (round(total / max(actions * boundaries, 1)) for total in sums)
    return (forward, backward) if forward > 0 and backward > 0 else None


def _ranges(graph: Graph, skew_ns: int, axis: Axis, place: int, rank: int) -> Ranges:
    op = _computation(graph)
    units = list(_units(graph, op, axis, place))
    parts = _split(units, place == 0, place == axis.size - 1)
    if not parts:
        raise InputError(
            f"rank {rank}: its messages do not tell which computation is a forward and which a backward", todo=_TODO
        )
    low, high = (np.array(column, np.int64) for column in list(zip(*parts, strict=True))[:2])
    phase = np.array([part[2] for part in parts], np.uint8)
    start, end = graph.start_ns[op[low]] - graph.start_delay_ns[op[low]], graph.end_ns[op[high - 1]]
    step = step_of(graph)[np.maximum(graph.caller[op[low]], 0)]
    count = len(parts)
    return Ranges(
        phase=phase,
        step=step,
        stage=np.full(count, place),
        chunk=np.zeros(count, np.int64),
        microbatch=turns(phase, step),
        start_ns=start + skew_ns,
        end_ns=end + skew_ns,
        busy_ns=end - start,
        device_ops=high - low,
        rule=np.zeros(count, np.int32),
        rules=(RULE,),
    )


def _computation(graph: Graph) -> I64:
    """Return the ops of the stream that computes most, in the order in which they ran."""
    kernel = np.flatnonzero(np.isin(works_of(graph), (Work.KERNEL, Work.COPY)))
    if not len(kernel):
        raise InputError("no device computes in these graphs, so nothing tells a forward from a backward", todo=_TODO)
    stream, which = numbered_values(graph.stream[kernel])
    busiest = int(np.bincount(which, weights=graph.duration_ns[kernel]).argmax())
    mine = kernel[graph.stream[kernel] == stream[busiest]]
    ordered: I64 = mine[np.argsort(graph.start_ns[mine], kind="stable")]
    return ordered


def _units(graph: Graph, op: I64, axis: Axis, place: int) -> Iterator[_Unit]:
    at = np.full(len(graph.name), NOWHERE)
    at[op] = np.arange(len(op))
    target, source = graph.target, graph.source
    begins: dict[int, Pass] = {}
    ends: dict[int, Pass] = {}
    received = np.flatnonzero((graph.type[source] == NodeType.COMM_RECV) & (at[target] != NOWHERE))
    for k in received.tolist():
        begins[int(at[target[k]])] = Pass.F if axis.of(int(graph.comm_src[source[k]])) == place - 1 else Pass.B
    sent = np.flatnonzero((graph.type[target] == NodeType.COMM_SEND) & (at[source] != NOWHERE))
    for k in sent.tolist():
        ends[int(at[source[k]]) + 1] = Pass.F if axis.of(int(graph.comm_dst[target[k]])) == place + 1 else Pass.B
    cuts = sorted({0, len(op), *begins, *ends})
    for low, high in pairwise(cuts):
        yield _Unit(low, high, begins.get(low), ends.get(high))


def _split(units: list[_Unit], first: bool, last: bool) -> list[tuple[int, int, Pass]]:
    """Return begin, end and phase of each forward and backward; none where that is not told."""
    if first:
        alone = {unit.high - unit.low for unit in units if (unit.begins, unit.ends) == (None, Pass.F)}
        both = {unit.high - unit.low for unit in units if (unit.begins, unit.ends) == (Pass.B, Pass.F)}
        back = {unit.high - unit.low for unit in units if (unit.begins, unit.ends) == (Pass.B, None)}
    else:
        alone = {unit.high - unit.low for unit in units if (unit.begins, unit.ends) == (Pass.F, None)}
        both, back = set[int](), set[int]()
    # what has more is a forward or backward beside the rest of a step: the least is one alone
    forward = min(alone, default=0)
    backward = min(back | {size - forward for size in both if forward}, default=0)
    out: list[tuple[int, int, Pass]] = []
    for unit in units:
        what, size = (unit.begins, unit.ends), unit.high - unit.low
        if first and what == (None, Pass.F):
            out.append((unit.high - forward, unit.high, Pass.F))
        elif first and what[0] is Pass.B:
            cut = unit.low + min(backward, size)
            out.append((unit.low, cut, Pass.B))
            if what[1] is Pass.F:
                out.append((unit.high - forward, unit.high, Pass.F))
        elif last and what == (Pass.F, Pass.B):
            cut = unit.low + (forward or max(size // 3, 1))
            out += [(unit.low, cut, Pass.F), (cut, unit.high, Pass.B)]
        elif last and what in ((Pass.F, None), (None, Pass.B)):
            out.append((unit.low, unit.high, Pass.F if what[0] is Pass.F else Pass.B))
        elif not first and not last and what[0] is not None and what[0] is what[1]:
            out.append((unit.low, unit.high, what[0]))
        elif what != (None, None):
            return []
    return [] if any(low >= high for low, high, _ in out) else out
