"""A pipeline of more stages or microbatches, played on the recorded times of forwards and backwards.

The first and the last stage keep their role. Stages between them are copies of those that were recorded there, in
turns. Each forward and backward takes what one of its stage was recorded to take, drawn by a seed (exact copies: the
one of the same turn). A transfer takes what was recorded at the same boundary: the first, the last, or one between.

Where no ranges name forwards and backwards, the messages between stages tell them. Computation that waits for a message
from the stage before begins a forward, for one from the stage after a backward; computation that a message leaves after
ends one. On the first and the last stage nothing tells where a backward ends and a forward begins, or the reverse:
there the number of ops of those that stand alone does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from graphlink.errors import InputError, UsageError
from graphlink.graph_model import Graph, NodeType
from graphlink.model import I64, NOWHERE
from graphlink.pipeline.recognise import Recognised, recognise
from graphlink.pipeline.records import Pass, Ranges
from graphlink.pipeline.schedules import ONE_CHUNK, ActionTimes, Order, Timed, orders, simulate
from graphlink.pipeline.theory import Measured, measure
from graphlink.replay.workload import Work, works_of
from graphlink.scale.layout import Axis, step_of
from graphlink.tables import in_order, most, places, turns

MOST_ACTIONS: Final = 10_000_000
RULE: Final = "messages between stages"
_TODO: Final = "record with ranges around forward and backward of each microbatch (docs/bubbles.md), and link again"


@dataclass(frozen=True, slots=True)
class Longer:
    """A pipeline that was played. ``source``: the recorded stage of each stage.

    ``recorded_makespan_ns``: the mean of the recorded steps; ``played_makespan_ns``: the same of those steps played in
    this way, each action with its own time, which shows how much of a step such playing leaves out. ``recorded_steps``:
    how many they are.
    """

    schedule: str
    microbatches: int
    recorded_microbatches: int
    source: tuple[int, ...]
    orders: tuple[Order, ...]
    times: ActionTimes
    timed: Timed
    recorded_makespan_ns: int
    played_makespan_ns: int
    recorded_steps: int


def longer(
    ranges: Sequence[Ranges], stages: int | None, microbatches: int | None, seed: int | None, *, waits_inside: bool
) -> Longer:
    """Play the pipeline of ``ranges`` (by stage) with other numbers; None: as recorded. Linear in the actions.

    Raises:
        InputError: its schedule is unknown or of chunks, or no stage between the first and the last was recorded.
        UsageError: the schedule does not exist for these numbers, or has too many actions.
    """
    seen = recognise(ranges)
    count, many = stages or len(ranges), microbatches or seen.microbatches
    source = _sources(seen, len(ranges), count, many)
    try:
        made = orders(seen.schedule, count, many)
    except ValueError as problem:
        raise UsageError(f"{count} stages, {many} microbatches: {problem}", todo="name other numbers") from None
    measured = measure(ranges, seen, waits_inside=waits_inside)
    times = _times(measured, source)
    pools = _pools(ranges, measured, waits_inside=waits_inside)
    missing = {
        (source[rank], int(phase)) for rank, order in enumerate(made) for phase in np.unique(order.phase)
    } - pools.keys()
    if missing:
        stage, phase = min(missing)
        raise InputError(
            f"no {Pass(phase).name} of stage {stage} was recorded, which {seen.schedule} has",
            todo="record with ranges around all passes of each microbatch (docs/bubbles.md)",
        )
    timed = simulate(made, times, [_drawn(order, source[rank], pools, rank, seed) for rank, order in enumerate(made)])
    recorded_ns, played_ns = _makespans_ns(ranges, measured, waits_inside=waits_inside)
    return Longer(
        schedule=seen.schedule,
        microbatches=many,
        recorded_microbatches=seen.microbatches,
        source=source,
        orders=made,
        times=times,
        timed=timed,
        recorded_makespan_ns=recorded_ns,
        played_makespan_ns=played_ns,
        recorded_steps=len(seen.steps),
    )


def _sources(seen: Recognised, recorded: int, count: int, many: int) -> tuple[int, ...]:
    """Return the recorded stage of each of ``count`` stages; ``many``: microbatches.

    Raises:
        InputError: the schedule is unknown or of chunks, or no stage between the first and the last was recorded.
        UsageError: fewer stages than were recorded, or too many actions.
    """
    if seen.schedule not in ONE_CHUNK:
        raise InputError(
            f"the pipeline's schedule is {seen.schedule}: "
            f"{seen.difference or 'only ' + ', '.join(ONE_CHUNK) + ' are made longer'}",
            todo="graphlink bubbles DIR --schedule NAME simulates another schedule on the measured times",
        )
    if count < recorded:
        raise UsageError(f"--pipeline {count:,}: {recorded:,} stages were recorded", todo=f"name {recorded:,} or more")
    if count > recorded and recorded < 3:
        raise InputError(
            f"{recorded} stages were recorded, and none between the first and the last, of which a longer pipeline has "
            "more",
            todo="record three stages or more",
        )
    if count * many * 3 > MOST_ACTIONS:
        raise UsageError(f"{count:,} stages with {many:,} microbatches are too many", todo="name fewer")
    if recorded < 3:
        return tuple(range(recorded))
    return 0, *(1 + k % (recorded - 2) for k in range(count - 2)), recorded - 1


def _times(measured: Measured, source: Sequence[int]) -> ActionTimes:
    """Return median times of the stages, and the transfers between them."""
    boundaries, last = len(source) - 1, measured.recognised.stages - 2  # the recorded one that is last
    between = np.arange(boundaries)
    recorded = np.minimum(1 + (between - 1) % max(last - 1, 1), last)
    recorded[(between == boundaries - 1)] = last
    recorded[between == 0] = 0
    times = measured.times
    return ActionTimes(times.duration_ns[:, np.array(source)], times.forward_ns[recorded], times.backward_ns[recorded])


def _pools(ranges: Sequence[Ranges], measured: Measured, *, waits_inside: bool) -> dict[tuple[int, int], I64]:
    """Return what the actions of each stage and phase were recorded to take, in the order in which they ran."""
    out: dict[tuple[int, int], I64] = {}
    for stage, own in enumerate(ranges):
        rows = np.concatenate([step.rows[stage] for step in measured.recognised.steps])
        took, phases = _took_ns(own, waits_inside=waits_inside)[rows], own.phase[rows]
        out |= {(stage, phase): took[phases == phase] for phase in np.unique(phases).tolist()}
    return out


def _drawn(order: Order, source: int, pools: dict[tuple[int, int], I64], rank: int, seed: int | None) -> I64:
    out = np.zeros(len(order), np.int64)
    for phase in np.unique(order.phase).tolist():
        actions, pool = np.flatnonzero(order.phase == phase), pools[source, phase]
        which = np.arange(len(actions)) % len(pool)
        if seed is not None:
            which = np.random.default_rng([seed, rank, phase]).integers(0, len(pool), len(actions))
        out[actions] = pool[which]
    return out


def _took_ns(ranges: Ranges, *, waits_inside: bool) -> I64:
    return ranges.busy_ns if waits_inside else ranges.end_ns - ranges.start_ns


def _makespans_ns(ranges: Sequence[Ranges], measured: Measured, *, waits_inside: bool) -> tuple[int, int]:
    """Return the mean makespan of the recorded steps, and of the same played with their own times."""
    recorded, played = [], []
    for step in measured.recognised.steps:
        rows = list(zip(ranges, step.rows, strict=True))
        first = min(int(own.start_ns[of_step].min()) for own, of_step in rows)
        recorded.append(max(int(own.end_ns[of_step].max()) for own, of_step in rows) - first)
        took = [_took_ns(own, waits_inside=waits_inside)[of_step] for own, of_step in rows]
        played.append(simulate(step.orders, measured.times, took).makespan_ns)
    return round(sum(recorded) / len(recorded)), round(sum(played) / len(played))


@dataclass(frozen=True, slots=True)
class _Unit:
    """Ops ``low`` to ``high`` of a rank's computation between two messages, and what the messages at its begin and end
    say it is.
    """

    low: int
    high: int
    begins: Pass | None
    ends: Pass | None


def message_bytes(graphs: Mapping[int, Graph], axis: Axis, actions: int) -> tuple[int, int] | None:
    """Return the bytes that go from stage to stage with a forward and with a backward, on average; None where no sizes
    were recorded.

    ``actions``: forwards, or backwards, of all recorded steps of a stage.
    """
    sums, boundaries = np.zeros(2, np.int64), (axis.size - 1) * (len(graphs) // axis.size)
    for rank, graph in graphs.items():
        sent = graph.type == NodeType.COMM_SEND
        step = axis.of(graph.comm_dst) - axis.of(rank)
        sums += [graph.comm_size[sent & (step == by)].sum() for by in (1, -1)]
    forward, backward = (round(total / max(actions * boundaries, 1)) for total in sums.tolist())
    return (forward, backward) if forward > 0 and backward > 0 else None


def stage_ranges(graph: Graph, skew_ns: int, axis: Axis, place: int, rank: int) -> Ranges:
    """Return the forwards and backwards of the stage ``place`` of a pipeline, that of ``rank``; times since the first
    start of all ranks.

    Raises:
        InputError: the messages do not tell them.
    """
    op = _computation(graph)
    units = list(_units(graph, op, axis, place))
    parts = _split(units, place == 0, place == axis.size - 1)
    if not parts:
        raise InputError(
            f"rank {rank}: its messages do not tell which computation is a forward and which a backward", todo=_TODO
        )
    low, high, phase = np.array(parts, np.int64).T
    start, end = graph.start_ns[op[low]] - graph.start_delay_ns[op[low]], graph.end_ns[op[high - 1]]
    step = step_of(graph)[np.maximum(graph.caller[op[low]], 0)]
    count = len(parts)
    return Ranges(
        phase=phase.astype(np.uint8),
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
    busiest, _ = most(graph.stream[kernel], graph.duration_ns[kernel])
    return in_order(kernel[graph.stream[kernel] == busiest], graph.start_ns)


def _units(graph: Graph, op: I64, axis: Axis, place: int) -> Iterator[_Unit]:
    place_of = places(op, len(graph.name))
    before, after = place_of[graph.source], place_of[graph.target]
    begins: dict[int, Pass] = {}
    ends: dict[int, Pass] = {}
    for k in np.flatnonzero((graph.type[graph.source] == NodeType.COMM_RECV) & (after != NOWHERE)).tolist():
        begins[int(after[k])] = Pass.F if axis.of(int(graph.comm_src[graph.source[k]])) == place - 1 else Pass.B
    for k in np.flatnonzero((graph.type[graph.target] == NodeType.COMM_SEND) & (before != NOWHERE)).tolist():
        ends[int(before[k]) + 1] = Pass.F if axis.of(int(graph.comm_dst[graph.target[k]])) == place + 1 else Pass.B
    for low, high in pairwise(sorted({0, len(op), *begins, *ends})):
        yield _Unit(low, high, begins.get(low), ends.get(high))


def _split(units: list[_Unit], first: bool, last: bool) -> list[tuple[int, int, Pass]]:
    """Return begin, end and phase of each forward and backward; none where that is not told."""
    sizes = defaultdict[tuple[Pass | None, Pass | None], list[int]](list)
    for unit in units:
        sizes[unit.begins, unit.ends].append(unit.high - unit.low)
    # what has more is a forward or backward beside the rest of a step: the least is one alone
    forward = min(sizes[(None, Pass.F) if first else (Pass.F, None)], default=0)
    both = (size - forward for size in sizes[Pass.B, Pass.F] if forward)
    backward = min([*sizes[Pass.B, None], *both], default=0)  # of the first stage
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
