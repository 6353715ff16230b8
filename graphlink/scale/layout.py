"""The axes on which the ranks of a run lie: which of them repeat each other's work on other data, and which divide work
between them.

A communicator of every n-th rank is an axis. What it is used for tells which: members that send each other messages are
stages of a pipeline; sums that computation waits for, again and again in a step, divide the work of a layer (tensor
parallel); sums that only the end of the step waits for are of gradients (data parallel).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from graphlink.errors import InputError, UsageError
from graphlink.graph_model import NO_GROUP, Graph, Groups, NodeType
from graphlink.linking.commtypes import CollectiveType
from graphlink.model import I64
from graphlink.patterns import fits
from graphlink.replay.workload import Work, works_of
from graphlink.steps import STEP_MARK

RankT = TypeVar("RankT", int, I64)
AXES: Final = ("data", "tensor", "pipeline")
_SUMS: Final = (CollectiveType.ALL_REDUCE, CollectiveType.REDUCE_SCATTER)
_CHAINED: Final = (
    0.5  # share of the sums of a step that wait for an earlier one through computation, above which they divide a layer
)
_STATE: Final = "say how ranks are numbered, the axis of neighbouring ranks first: --layout tensor=2,data=4, say"


@dataclass(frozen=True, slots=True)
class Axis:
    """``size`` ranks that are ``stride`` apart lie on one line of it. ``why``: what tells."""

    size: int
    stride: int
    why: str = ""

    def of(self, rank: RankT) -> RankT:
        """Return the place of a rank on its line."""
        return rank // self.stride % self.size

    def moved(self, rank: int, place: int, size: int) -> int:
        """Return the number that the rank at ``place`` of the line of ``rank`` has where lines have ``size`` ranks."""
        return rank % self.stride + self.stride * (place + size * (rank // (self.stride * self.size)))


def stated(text: str, world: int) -> dict[str, Axis]:
    """Parse ``--layout tensor=2,data=4``: the axes by name, that of neighbouring ranks first.

    Raises:
        UsageError: it is none, or is not of ``world`` ranks.
    """
    axes: dict[str, Axis] = {}
    stride = 1
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        if (
            name not in AXES
            or name in axes
            or not (number.isascii() and number.isdecimal() and 0 < int(number) <= world)
        ):
            raise UsageError(
                f"--layout {text!r}: {part!r} is none of {', '.join(f'{axis}=N' for axis in AXES)}", todo=_STATE
            )
        axes[name] = Axis(int(number), stride, "as given with --layout")
        stride *= int(number)
    if stride != world:
        raise UsageError(f"--layout {text!r}: is of {stride:,} ranks, and {world:,} were recorded", todo=_STATE)
    return axes


def found(graphs: Mapping[int, Graph], groups: Groups) -> dict[str, Axis]:
    """Find the axes of a run by what its communicators are used for. Linear in the nodes of a rank for each axis.

    Of several that only gradients are summed over, that of the smallest communicators is the data axis.
    """
    world, axes = len(graphs), dict[str, Axis]()
    for (size, stride), ids in sorted(_lines(graphs, groups, world).items()):
        line = Axis(size, stride)
        if any(line.of(rank) != line.of(other) for rank, other in sends(graphs)):
            name, why = "pipeline", "its ranks send each other messages"
        elif (chained := max(_chained(graphs[0], group) for group in ids)) > _CHAINED:
            name, why = "tensor", f"computation waits for {100 * chained:.0f} % of its sums before the next one"
        elif not (np.isin(graphs[0].group, ids) & np.isin(graphs[0].comm_type, _SUMS)).any():
            continue
        else:
            name, why = "data", "computation does not go on between its sums: they are of gradients"
        if name not in axes:
            axes[name] = Axis(size, stride, f"communicators of {size:,} ranks, {stride:,} apart: {why}")
    return axes


def required(axes: Mapping[str, Axis], name: str) -> Axis:
    """Return the axis of that name.

    Raises:
        InputError: there is none.
    """
    if name in axes:
        return axes[name]
    there = (
        "; ".join(f"{other}: {axis.why}" for other, axis in axes.items())
        or "no communicator of regularly spaced ranks sums anything"
    )
    raise InputError(
        f"has no {name} parallel ranks that could be recognised by their communication ({there})", todo=_STATE
    )


def _lines(graphs: Mapping[int, Graph], groups: Groups, world: int) -> dict[tuple[int, int], list[int]]:
    """Return the ids of the communicators of rank 0 that are lines of an axis, by size and stride: all of that size
    fill the world.
    """
    used = sorted(set(np.unique(graphs[0].group).tolist()) - {NO_GROUP})
    everyone = tuple(range(world))
    members = {g: ranks for g in used if len(ranks := tuple(sorted(groups.get(g, everyone)))) > 1}
    all_sets = {tuple(sorted(ranks)) for ranks in groups.values()} | {everyone}
    out: dict[tuple[int, int], list[int]] = defaultdict(list)
    for g, ranks in members.items():
        line = Axis(len(ranks), ranks[1] - ranks[0])
        sets = {tuple(line.moved(rank, place, line.size) for place in range(line.size)) for rank in range(world)}
        if world % (line.size * line.stride) == 0 and ranks in sets and sets <= all_sets:
            out[line.size, line.stride].append(g)
    if NO_GROUP in np.unique(graphs[0].group[graphs[0].type == NodeType.COMM_COLL]):
        out[world, 1].append(NO_GROUP)
    return out


def sends(graphs: Mapping[int, Graph]) -> Iterator[tuple[int, int]]:
    """Yield each rank with each rank that it sends messages to."""
    for rank, graph in graphs.items():
        for other in np.unique(graph.comm_dst[graph.type == NodeType.COMM_SEND]).tolist():
            yield rank, other


def step_of(graph: Graph) -> I64:
    """Return the step of each node: how many marks of steps begin no later, less one; 0 where there are no marks."""
    marks = fits(STEP_MARK, graph.strings)
    starts = np.sort(graph.start_ns[marks[graph.name] & graph.host])
    return np.asarray(np.maximum(np.searchsorted(starts, graph.start_ns, "right") - 1, 0))


def _chained(graph: Graph, group: int) -> float:
    """Return which share of the sums of a group, but for the first of each step, wait for an earlier one of the step
    through computation.

    Linear: each node takes from its dependencies the last step whose sums it comes after, and the same through
    computation.
    """
    sums = (graph.group == group) & np.isin(graph.comm_type, _SUMS)
    if np.count_nonzero(sums) < 2:
        return 0.0
    step = step_of(graph).tolist()
    kernel = (works_of(graph) == Work.KERNEL).tolist()
    first, source, is_sum = graph.first.tolist(), graph.source.tolist(), sums.tolist()
    after, through = [-1] * len(step), [-1] * len(step)
    chained, later, last = 0, 0, -1
    for node in range(len(step)):
        here = source[first[node] : first[node + 1]]
        after[node] = max((after[s] for s in here), default=-1)
        through[node] = max((through[s] for s in here), default=-1)
        if kernel[node]:
            through[node] = max(through[node], after[node])
        if is_sum[node]:
            later += last == step[node]
            chained += last == step[node] == through[node]
            after[node] = last = step[node]
    return chained / later if later else 0.0
