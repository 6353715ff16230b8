"""The time that a run had to lose by its schedule, what unequal stages, transfers and the rest added, and what another
schedule would give.

The orders of a run are played (a) with all stages at the mean of their medians, (b) with each stage at its own, (c)
with the transfers too; (d) is the run as measured. The bubble (p x makespan - work) of (a) is the schedule's, (b) - (a)
the imbalance of the stages, (c) - (b) communication, (d) - (c) the rest: jitter, host, collectives. The parts add up to
the measured bubble, to the ns; a negative one stays as it is.

For another number of stages the model is cut where a layer ends, into parts that have equally many layers, which need
not take equally long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from msgspec import UNSET, UnsetType, structs

from graphlink.model import F64, I64, NOWHERE, Bool
from graphlink.pipeline.recognise import Recognised, of_each
from graphlink.pipeline.records import (
    IdleParts,
    Layers,
    Other,
    PartsNs,
    Pass,
    Ranges,
    Rates,
    Searched,
    StepEntry,
    Theory,
)
from graphlink.pipeline.schedules import (
    PHASES,
    SEARCHED,
    UNKNOWN,
    V_SHAPED,
    ActionTimes,
    Order,
    Timed,
    default_chunks,
    named,
    orders,
    peak_activations,
    simulate,
    splits,
)
from graphlink.pipeline.search import search
from graphlink.records import counted
from graphlink.tables import MOST, codes, concat, least, lookup, medians, spread, take

# of a transformer layer 32 / (34 + 5 s/d), for a sequence of s tokens and heads of d: .43 for 1,024 and 128; where
# attention stores no s x s matrix (FlashAttention) 32 / 34
KEPT: Final = 0.5
ByPhase = Mapping[int, tuple[int, ...]]  # by phase, ``Layers.mean_ns`` of a stage; nothing where it is not known


def theory(recognised: Recognised, measured: Measured, steps: Sequence[StepEntry]) -> Theory | None:
    """Return the rates of (a) and the split, over the recognised steps that ``steps`` has; None without a schedule or
    such a step.

    Three simulations for each kind of step (microbatches, fused backwards), so linear in the actions of a step, not of
    the run.
    """
    bounds = {step.number: step for step in steps}
    there = [played for played in recognised.steps if played.step in bounds]
    if recognised.schedule == UNKNOWN or not there:
        return None
    none = np.zeros_like(measured.times.forward_ns)
    cases = (
        equal_stages(measured),
        replace(measured.times, forward_ns=none, backward_ns=none),
        measured.times,
    )  # (a), (b), (c)
    rebuilt = of_each(there, lambda orders: [simulate(orders, times) for times in cases])
    equal, own, moved = (sum(one.bubble_ns for one in timed) for timed in zip(*rebuilt, strict=True))
    ran = [bounds[played.step] for played in there]
    bubble = sum(len(step.work_ns) * (step.end_ns - step.start_ns) - sum(step.work_ns) for step in ran)
    parts = PartsNs(
        schedule=equal, imbalance=own - equal, communication=moved - own, rest=bubble - moved, measured=bubble
    )
    return Theory(**structs.asdict(rates_of([one[0] for one in rebuilt])), parts_ns=parts)


def equal_stages(measured: Measured) -> ActionTimes:
    """Let every virtual stage take the mean of the medians of those that ran the phase, rounded to ns; transfers take
    none.
    """
    medians, seen = measured.times.duration_ns, measured.seen
    mean = np.rint(np.where(seen, medians, 0).sum(axis=1) / np.maximum(seen.sum(axis=1), 1)).astype(np.int64)
    none = np.zeros_like(measured.times.forward_ns)
    return ActionTimes(np.repeat(mean[:, None], medians.shape[1], axis=1), none, none)


def rates_of(timed: Sequence[Timed]) -> Rates:
    """Return the rates of simulated steps. ``bubble_ratio_ideal`` is bubble time / ideal time as simulated: on equal
    stages without transfers (p - 1) / (v m) for GPipe, 1F1B and interleaved, for which Megatron gives that form, and
    true for the others too."""
    work = sum(sum(one.work_ns) for one in timed)
    ratio = sum(one.bubble_ns for one in timed) / work if work else UNSET
    return rates(
        [one.makespan_ns for one in timed], [one.work_ns for one in timed], [one.own_ns for one in timed], ratio
    )


def rates(
    makespans_ns: Sequence[int],
    work_ns: Sequence[Sequence[int]],
    own_ns: Sequence[Sequence[int]],
    ratio: float | UnsetType,
) -> Rates:
    """Return the rates of ``docs/bubbles.md`` over steps: their times are added up first, so longer steps weigh more.

    The zero-bubble definition compares the longest own window (cost) with the work of a stage; where stages differ,
    with their mean.

    Args:
        makespans_ns: one a step.
        work_ns, own_ns: by step, then rank: time at work, and the own window (end of the last work less start of the
            first).
        ratio: bubble time / ideal time, as it is known.
    """
    work = sum(map(sum, work_ns))
    room = sum(makespan * len(ranks) for makespan, ranks in zip(makespans_ns, work_ns, strict=True))
    cost = sum(max(ranks, default=0) * len(ranks) for ranks in own_ns)
    return Rates(1 - work / room if room else UNSET, 1 - work / cost if cost else UNSET, ratio)


@dataclass(frozen=True, slots=True)
class Measured:
    """Median times of a run as it was ``recognised``.

    ``times``: medians; 0 where nothing was seen. ``seen``: shape (4, virtual stages), whether the phase ran there.
    ``home``: the rank of each virtual stage, ``NOWHERE`` if none. ``played``: by rank, the ranges that count, as what
    the schedule takes them for. ``layers``: by rank, what the layers of its chunks take, where they are known.
    """

    recognised: Recognised
    times: ActionTimes
    seen: Bool
    home: I64
    played: tuple[Ranges, ...]
    layers: tuple[tuple[Layers, ...], ...] = ()


def measure(ranges: Sequence[Ranges], recognised: Recognised, *, waits_inside: bool = False) -> Measured:
    """Measure medians of ``busy_ns`` over all steps that were recognised, and transfers.

    ``waits_inside``: ranges are those of the host and begin before their input is there, so an action starts
    ``busy_ns`` before its end.

    Time in which n ranges of a rank ran at once counts to each of them as its n-th part, so that a pair of DualPipe
    takes what it took. A transfer takes the least time from a producer's end to its consumer's start, over all
    microbatches and steps; 0 where clocks put the start before the end. It is an upper bound: nobody may ever have
    waited for it.

    If no schedule was recognised all ranges count, with the virtual stages of the recording (chunk * p + rank where it
    has none).
    """
    played = [_played(rank, ranges, recognised, waits_inside) for rank in range(len(ranges))]
    seen = concat(*played)
    count = max(recognised.chunks * recognised.stages, int(seen.stage.max(initial=-1)) + 1)
    home = spread(count, seen.stage, np.repeat(np.arange(len(played)), [len(one.stage) for one in played]))
    medians, there = _medians(seen, count)
    times = ActionTimes(medians, _least_lags(seen, home, forward=True), _least_lags(seen, home, forward=False))
    return Measured(recognised, times, there, home, tuple(played))


def _played(rank: int, ranges: Sequence[Ranges], recognised: Recognised, waits_inside: bool) -> Ranges:
    """Return the ranges of a rank that count, as what the schedule takes them for; a pair starts and ends as one
    (``Order.paired``).
    """
    one = ranges[rank]
    one = replace(one, start_ns=one.end_ns - one.busy_ns if waits_inside else one.start_ns, busy_ns=_shares(one))
    if recognised.schedule == UNKNOWN:
        stage = np.where(one.stage == NOWHERE, np.maximum(one.chunk, 0) * len(ranges) + rank, one.stage)
        return take(replace(one, stage=stage), one.phase <= Pass.W)
    one = take(one, np.concatenate([step.rows[rank] for step in recognised.steps]))
    order = concat(*(step.orders[rank] for step in recognised.steps))
    at = np.flatnonzero(order.paired)
    one.start_ns[at] = one.start_ns[at + 1] = np.minimum(one.start_ns[at], one.start_ns[at + 1])
    one.end_ns[at] = one.end_ns[at + 1] = np.maximum(one.end_ns[at], one.end_ns[at + 1])
    return replace(one, phase=order.phase, stage=order.stage, microbatch=order.microbatch)


def _shares(ranges: Ranges) -> I64:
    """Return ``busy_ns``, of which time that n ranges share counts as its n-th part."""
    row = np.flatnonzero((ranges.phase <= Pass.W) & (ranges.end_ns > ranges.start_ns))
    start, end = ranges.start_ns[row], ranges.end_ns[row]
    points = np.unique(np.concatenate([start, end]))
    low, high = np.searchsorted(points, start), np.searchsorted(points, end)
    running = np.cumsum(np.bincount(low, minlength=len(points)) - np.bincount(high, minlength=len(points)))[:-1]
    shared = np.append(0.0, np.cumsum(np.diff(points) / np.maximum(running, 1)))
    out = ranges.busy_ns.copy()
    out[row] = np.rint(ranges.busy_ns[row] * (shared[high] - shared[low]) / (end - start))
    return out


def _medians(seen: Ranges, count: int) -> tuple[I64, Bool]:
    """Return by phase and virtual stage the median time, rounded up from a half, and whether there is any."""
    unit = seen.phase.astype(np.int64) * count + seen.stage
    median = medians(seen.busy_ns, unit, PHASES * count).reshape(PHASES, count)
    return np.floor(np.nan_to_num(median) + 0.5).astype(np.int64), ~np.isnan(median)


def _least_lags(seen: Ranges, home: I64, forward: bool) -> I64:
    """Return, between virtual stages k and k + 1, by k, the least time from the end of the one's to the start of the
    other's action.
    """
    kind = [Pass.F] if forward else [Pass.B, Pass.I]
    row = np.flatnonzero(np.isin(seen.phase, kind) & (seen.microbatch != NOWHERE))
    many = int(seen.microbatch[row].max(initial=0)) + 1
    # one stage more than there is: k + 1 is no k of the next step
    unit = codes(seen.step[row]) * (len(home) + 1) + seen.stage[row]
    key = unit * many + seen.microbatch[row] + 1
    after = lookup(key, key + many)
    low, high = row[after != NOWHERE], row[after[after != NOWHERE]]
    lag = seen.start_ns[high] - seen.end_ns[low] if forward else seen.start_ns[low] - seen.end_ns[high]
    transfer = least(max(len(home) - 1, 0), seen.stage[low], lag)
    transfer[(transfer == MOST) | (home[1:] == home[:-1]) | (transfer < 0)] = 0
    return transfer


class PlayedSchedule(NamedTuple):
    """What a schedule gives on measured times, and its step: the orders, when each action ran, and the times it was
    made of.
    """

    other: Other
    orders: tuple[Order, ...]
    timed: Timed
    times: ActionTimes


def what_if(
    schedule: str,
    microbatches: int,
    measured: Measured,
    chunks: int | None = None,
    input_share: float | None = None,
    memory: float | None = None,
    kept: float = KEPT,
) -> PlayedSchedule:
    """Play one step of ``schedule`` (named in any case) with ``microbatches`` of the measured size.

    Args:
        chunks: a rank; unless given what the schedule has, for the interleaved ones as measured but at least 2.
        input_share: of a full backward, what the input gradient takes (0 to 1); asked for if the schedule splits
            backwards and the run did so nowhere. If it did on some stages, their share is taken for the others.
        memory: of activations that a schedule that is searched may take, in multiples of what 1F1B takes at most;
            unless given what its name says.
        kept: of a microbatch's activations, what the weight gradient then still needs once the input gradient has
            ended.

    The model is cut anew where the number of virtual stages is another: each measured stage has equally many of
    its layers, which take what ``measured.layers`` says, or else equally long. Then, or where stages move between
    ranks, every transfer takes the mean of the measured ones.

    Raises ValueError, in words for the user, where the schedule does not exist for these numbers, or the share is
    missing or none.
    """
    name = named(schedule)
    ranks = measured.recognised.stages
    pieces = default_chunks(name, measured.recognised.chunks) if chunks is None else chunks
    if name in SEARCHED and pieces != 1:
        raise ValueError(f"{name} has one chunk a rank, not {pieces}")
    # what a searched one is compared with is 1F1B
    made = orders("1F1B" if name in SEARCHED else name, ranks, microbatches, pieces)
    assumed = [f"microbatches are of the measured size; a step has {microbatches}"]
    durations = _split(*_by_layers(measured), name, input_share, assumed)
    times = _placed(durations, measured, name, ranks * pieces, ranks, assumed)
    searched: Searched | UnsetType = UNSET
    if name in SEARCHED:
        made, searched = _searched(made, times, SEARCHED[name] if memory is None else memory, kept, assumed)
    timed = simulate(made, times)
    part = 1 if name == "DualPipe" else pieces
    other = Other(
        schedule=name,
        stages=ranks,
        microbatches=microbatches,
        chunks=pieces,
        makespan_ns=timed.makespan_ns,
        activations=tuple(peak / part for peak in peak_activations(made, 1.0 if searched is UNSET else kept)),
        searched=searched,
        assumed=tuple(assumed),
        **structs.asdict(rates_of([timed])),
    )
    return PlayedSchedule(other, made, timed, times)


def _searched(
    usual: tuple[Order, ...], times: ActionTimes, memory: float, kept: float, assumed: list[str]
) -> tuple[tuple[Order, ...], Searched]:
    """Search an order, and compare it with ``usual``, which is 1F1B."""
    most, microbatches = max(peak_activations(usual)), len(usual[0]) // 2  # a forward and a backward of each
    made = search(times, microbatches, (memory * most,) * len(usual), kept)
    assumed.append(
        f"an input gradient frees {1 - kept:.0%} of a microbatch's activations, its weight gradient the rest "
        "(--weight-memory)"
    )
    assumed.append("the order is searched for these very times: where others vary, it loses more")
    found = Searched(
        memory=memory,
        kept=kept,
        peak=tuple(peak / most for peak in peak_activations(made, kept)),
        idle=_idle_parts(made, simulate(made, times)),
        idle_1f1b=_idle_parts(usual, simulate(usual, times)),
    )
    return made, found


def _idle_parts(made: Sequence[Order], timed: Timed) -> IdleParts:
    """Divide the idle time of each rank between its first and last action."""
    parts = np.zeros((3, len(made)), np.int64)
    for rank, (order, start, end) in enumerate(zip(made, timed.start_ns, timed.end_ns, strict=True)):
        forward = order.phase == Pass.F
        first = int(np.argmax(~forward))
        last = max(first, int(np.flatnonzero(forward)[-1]))
        idle = np.append(0, start[1:] - end[:-1])
        parts[:, rank] = idle[: first + 1].sum(), idle[first + 1 : last + 1].sum(), idle[last + 1 :].sum()
    until, between, after = (tuple(part.tolist()) for part in parts)
    return IdleParts(until_backward_ns=until, between_ns=between, after_forward_ns=after)


def _by_layers(measured: Measured) -> tuple[I64, Bool]:
    """Return times by phase of consecutive equal parts of the model, and whether each was measured; shape (4, parts).

    Virtual stages are the parts; DualPipe runs each part twice, its times are the mean.
    """
    durations, seen = measured.times.duration_ns, measured.seen
    if measured.recognised.schedule == "DualPipe":
        durations, twice = (column.reshape(len(column), 2, -1) for column in (durations, seen.astype(np.int64)))
        many = twice.sum(axis=1)
        return np.rint((durations * twice).sum(axis=1) / np.maximum(many, 1)).astype(np.int64), many > 0
    return durations, seen


def _split(durations: I64, seen: Bool, schedule: str, input_share: float | None, assumed: list[str]) -> I64:
    """Return times with all four phases known, as far as ``schedule`` needs them."""
    durations, lacking = durations.copy(), ~seen.any(axis=0)
    if lacking.any() and not lacking.all():
        mean = np.rint((durations * seen).sum(axis=1) / np.maximum(seen.sum(axis=1), 1)).astype(np.int64)
        durations[:, lacking], seen = mean[:, None], seen | np.outer(seen.any(axis=1), lacking)
        stages = map(str, np.flatnonzero(lacking)[:8].tolist())
        assumed.append(f"of some stages nothing was measured ({', '.join(stages)}): they take the mean of the others")
    _, B, I, W = durations
    apart = seen[Pass.I] & seen[Pass.W]
    B[:] = np.where(seen[Pass.B], B, I + W)
    if not seen[Pass.F].all() or not (seen[Pass.B] | apart).all():
        raise ValueError("not every stage has both forwards and backwards that were measured")
    if splits(schedule) and not apart.all():
        if apart.any():
            share = float(I[apart].sum() / max(int((I + W)[apart].sum()), 1))
            assumed.append(
                f"where backwards were not split, the input gradient takes {share:.1%} of them, as where they were"
            )
        elif input_share is None:
            raise ValueError(
                f"{schedule} splits backwards, the run did not: say what share of a backward its input gradient takes "
                "(--input-share)"
            )
        elif not 0 <= input_share <= 1:
            raise ValueError(f"the input gradient's share of a backward lies between 0 and 1, not at {input_share}")
        else:
            share = input_share
            assumed.append(f"the input gradient takes {share:.1%} of a backward (given)")
        I[:] = np.where(apart, I, np.rint(share * B))
        W[:] = np.where(apart, W, B - I)
    return durations


def _placed(
    durations: I64, measured: Measured, schedule: str, virtual: int, ranks: int, assumed: list[str]
) -> ActionTimes:
    """Cut times into the parts of ``schedule``, with transfers."""
    parts = ranks if schedule == "DualPipe" else virtual
    had = durations.shape[1]
    if parts != had:
        layers = _layers_of_stages(measured)
        durations = np.stack(
            [cut(one, parts, [shares(phase, of) for of in layers]) for phase, one in enumerate(durations)]
        )
        assumed.append(f"the model, measured in {had} parts, is cut into {parts}; {told(layers)}")
    if schedule == "DualPipe":
        durations = np.concatenate([durations, durations], axis=1)
        assumed.append("a pair takes as long as its forward and its backward one after the other")
    times = measured.times
    same = virtual == times.stages and (schedule in V_SHAPED) == (measured.recognised.schedule in V_SHAPED)
    home = np.stack([measured.home[1:], measured.home[:-1]])
    unknown = (home == NOWHERE).any(axis=0)
    moved = (home[0] != home[1]) & ~unknown
    lags = times.forward_ns, times.backward_ns
    forward, backward = (round(float(lag[moved].mean())) if moved.any() else 0 for lag in lags)
    if same and (schedule == "DualPipe") == (measured.recognised.schedule == "DualPipe"):
        return ActionTimes(durations, np.where(unknown, forward, lags[0]), np.where(unknown, backward, lags[1]))
    assumed.append("each transfer between ranks takes the mean of the measured ones")
    return ActionTimes(durations, *(np.full(virtual - 1, mean) for mean in (forward, backward)))


def _layers_of_stages(measured: Measured) -> list[ByPhase]:
    """Return what is known of the layers of each part that ``_by_layers`` returns."""
    if measured.recognised.schedule == "DualPipe":
        return [{}] * (len(measured.home) // 2)
    out: list[ByPhase] = [{} for _ in measured.home]
    for rank, known in enumerate(measured.layers):
        for chunk, stage in enumerate(np.flatnonzero(measured.home == rank).tolist()):
            out[stage] = {one.phase: one.mean_ns for one in known if one.chunk == chunk}
    return out


def cut(durations: I64, parts: int, shares: Sequence[F64]) -> I64:
    """Return times of ``parts`` equal parts of what the given stages cover; the sum stays. ``shares``: of each
    stage.
    """
    whole, left = np.divmod(np.arange(parts + 1) * len(durations), parts)
    until = np.append(0, np.cumsum(durations)).astype(np.float64)[whole]
    for at in np.flatnonzero(left).tolist():
        of = shares[whole[at]]
        until[at] += durations[whole[at]] * np.interp(left[at] / parts, np.linspace(0, 1, len(of)), of)
    at_ns = np.rint(until).astype(np.int64)
    return at_ns[1:] - at_ns[:-1]


def shares(phase: int, layers: ByPhase) -> F64:
    """Return after which part of a pass each layer begins, and the last one ends. Of input or weight gradients that the
    run does not have apart: after which part of the backward."""
    there = layers.get(phase) or (layers.get(Pass.B) if phase in (Pass.I, Pass.W) else None) or (0, 1, 0)
    until = np.cumsum(np.array(there, np.float64))
    return np.asarray(until[:-1] / until[-1])


def told(layers: Sequence[ByPhase]) -> str:
    """Tell how the time of a stage was divided."""
    shown = sum({Pass.F, Pass.B} <= one.keys() or {Pass.F, Pass.I, Pass.W} <= one.keys() for one in layers)
    if not shown:
        return "the recording does not show layers, so a part's time is spread evenly over them"
    left = counted(len(layers) - shown, "part")
    others = f"; it shows none for {left}, whose time is spread evenly" if shown < len(layers) else ""
    return f"a layer takes what the recording shows{others}"
