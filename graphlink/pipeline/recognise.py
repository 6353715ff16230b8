"""Recognise the schedule that a run followed: the orders that its ranks ran, compared with generated ones. Exact, or
unknown.

Compared are phase, chunk and microbatch of every action of every rank in every complete step, and the virtual stage
where the recording has it. Times are not, but for what overlaps (below), and communication is not. Where nothing names
chunks or microbatches, and no schedule of one chunk fits, phases alone are compared: their order on all ranks tells the
rest.

Where several schedules order alike, the first in the contract's list is named (GPipe, 1F1B, interleaved, ZB-H1, ZB-H2,
ZB-V, interleaved-ZB, DualPipe): with one microbatch 1F1B is called GPipe; with two at most, or on one rank, ZB-H2 is
ZB-H1; with one chunk interleaved is 1F1B and interleaved-ZB is ZB-H1; on one rank interleaved-ZB of two chunks is ZB-V.

Full and split backwards: a run that records weight gradients is compared with all its backwards split, so a B is taken
as the I and W that some frameworks fuse where they follow each other; the schedules that split come first, then the
others with W right after I. A run without weight gradients is compared with GPipe, 1F1B and interleaved only: where its
W ran cannot be seen.

Overlap: a backward and a forward that run at the same time are DualPipe's pair, whichever starts first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TypeVar

import numpy as np

from graphlink.model import I64, NOWHERE, U8, Bool
from graphlink.pipeline.records import Pass, Ranges
from graphlink.pipeline.schedules import SCHEDULES, SPLIT, UNKNOWN, Order, stage_of, variants
from graphlink.tables import how_many, in_order, numbered_rows, take, turns

_Played = TypeVar("_Played")


@dataclass(frozen=True, slots=True)
class Recorded(Ranges):
    """What one rank ran in one step, one entry an action, by start; of those that start together, F first, then B, I,
    W.

    ``row`` is the row in the rank's ``Ranges``. ``microbatch`` counts from 0 without gaps within a chunk, whatever the
    recording calls it (``label``; the same number where it says nothing: then counted in order).
    """

    row: I64
    label: I64

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True)
class CompleteStep:
    """A step in which every rank ran each of the ``microbatches`` once through each of its ``chunks``, forward and
    backward.

    ``split``: some backwards are split into input and weight gradient. ``called``: its number in the recording.
    """

    step: int
    called: int
    ranks: tuple[Recorded, ...]
    microbatches: int
    chunks: int
    split: bool


def complete_steps(
    ranges: Sequence[Ranges], names: Sequence[int], called: Sequence[int] = ()
) -> tuple[list[CompleteStep], dict[int, str]]:
    """Return the complete steps of a run, and why others are not, by number (``NOWHERE``: ranges of no step). Linear
    but for sorting.

    A step that the recording cuts at its begin or end lacks forwards of backwards that are there, or the other way
    round, or ranks differ in their microbatches: it is left out. Ranges of no step count as a step only where no range
    has one.

    Args:
        ranges: by pipeline rank.
        names: what messages call the ranks.
        called: what they call the steps, which are counted from 0 then.
    """
    chunks = [_chunks(rank) for rank in ranges]
    numbers = sorted({int(step) for rank in ranges for step in np.unique(rank.step)})
    complete, left_out = [], {}
    for step in numbers:
        if step == NOWHERE and len(numbers) > 1:
            left_out[step] = "ranges of no step"
            continue
        recorded = tuple(_recorded(rank, chunk, step) for rank, chunk in zip(ranges, chunks, strict=True))
        if any(map(len, recorded)):
            why, number = _cut(recorded, names), called[step] if called else step
            if why:
                left_out[number] = why
            else:
                many, pieces = (int(column.max()) + 1 for column in (recorded[0].microbatch, recorded[0].chunk))
                complete.append(
                    CompleteStep(
                        step, number, recorded, many, pieces, any((rank.phase == Pass.W).any() for rank in recorded)
                    )
                )
    return complete, left_out


def _chunks(ranges: Ranges) -> I64:
    """Return which of its chunks each range of a rank is, from 0: by its chunk, else by its virtual stage, where all
    ranges have one.
    """
    counted = ranges.phase <= Pass.W
    for column in (ranges.chunk, ranges.stage):
        if counted.any() and column[counted].min() > NOWHERE:
            return np.searchsorted(np.unique(column[counted]), column)
    return np.zeros(len(ranges.phase), np.int64)


def _recorded(ranges: Ranges, chunks: I64, step: int) -> Recorded:
    low, high = np.searchsorted(ranges.step, [step, step + 1])
    row = low + np.flatnonzero(ranges.phase[low:high] <= Pass.W)
    row = in_order(row, ranges.start_ns, ranges.phase)
    own = take(ranges, row)
    chunk, label = chunks[row], own.microbatch
    if (label == NOWHERE).any():
        label = _by_order(own.phase, chunk)
    columns = {field.name: getattr(own, field.name) for field in fields(own)}
    pairs, code = numbered_rows(chunk, label)
    microbatch = code - np.searchsorted(pairs[:, 0], chunk)
    return Recorded(**columns | {"chunk": chunk, "microbatch": microbatch}, row=row, label=label)


def _by_order(phase: U8, chunk: I64) -> I64:
    """Number the microbatches of a rank by the order in each chunk: forwards, backwards (B or I), and weight gradients
    as their I.
    """
    label = turns(3 * chunk + np.array([0, 1, 1, 2])[phase])
    for k in range(int(chunk.max(initial=-1)) + 1):
        inputs, weights = (np.flatnonzero((phase == which) & (chunk == k)) for which in (Pass.I, Pass.W))
        label[weights[: len(inputs)]] = label[inputs[: len(weights)]]
    return label


def _cut(ranks: Sequence[Recorded], names: Sequence[int]) -> str:
    """Return why a step is not complete; empty if it is."""
    shapes = []
    for rank, name in zip(ranks, names, strict=True):
        if not len(rank):
            return f"rank {name} has no range"
        chunks, many = int(rank.chunk.max()) + 1, int(rank.microbatch.max()) + 1
        if chunks * many > len(rank) or not _once(rank, chunks, many):
            F, B, I, W = (how_many(rank.phase == phase) for phase in (Pass.F, Pass.B, Pass.I, Pass.W))
            return (
                f"rank {name} has {F} F, {B} B, {I} I and {W} W: not each microbatch (of {many}) once in {chunks} "
                "chunk(s)"
            )
        shapes.append((chunks, many))
    for shape, name in zip(shapes, names, strict=True):
        if shape != shapes[0]:
            return (
                f"rank {names[0]} has {shapes[0][1]} microbatches in {shapes[0][0]} chunk(s), rank {name} "
                f"{shape[1]} in {shape[0]}"
            )
    return ""


def _once(rank: Recorded, chunks: int, many: int) -> bool:
    """Return whether each microbatch went through each chunk once, forward and backward?"""
    unit = rank.chunk * many + rank.microbatch
    forward, full, inputs, weights = (
        np.bincount(unit[rank.phase == phase], minlength=chunks * many) for phase in (Pass.F, Pass.B, Pass.I, Pass.W)
    )
    return bool(((forward == 1) & (full + inputs == 1) & (weights == inputs)).all())


@dataclass(frozen=True, slots=True)
class RecognisedStep:
    """A recognised step, one entry per rank: the rows of its ``Ranges`` in the order of the schedule, and what each is
    by the schedule.

    ``orders`` are parallel to ``rows``; their phases are as recorded (B where a split one is fused).
    """

    step: int
    microbatches: int
    rows: tuple[I64, ...]
    orders: tuple[Order, ...]


def of_each(steps: Sequence[RecognisedStep], play: Callable[[Sequence[Order]], _Played]) -> list[_Played]:
    """Return what ``play`` makes of the orders of each step; those of equal orders share what is made of one."""
    keys = [
        tuple(getattr(order, field.name).tobytes() for order in step.orders for field in fields(order))
        for step in steps
    ]
    made = {key: play(step.orders) for key, step in dict(zip(keys, steps, strict=True)).items()}
    return [made[key] for key in keys]


@dataclass(frozen=True, slots=True)
class Recognised:
    """``schedule``: a name of the contract, or "unknown"; then ``nearest`` is the one that differs in the fewest
    actions ("" where none exists for these numbers) and ``difference`` says where first, by step, rank and position
    (from 0).

    ``microbatches`` of a step, the most frequent number. ``steps``: those recognised; empty if unknown. ``left_out``:
    steps that are not complete, with the reason.
    """

    schedule: str
    stages: int
    microbatches: int
    chunks: int
    nearest: str
    difference: str
    steps: tuple[RecognisedStep, ...]
    left_out: dict[int, str]


def recognise(ranges: Sequence[Ranges], ranks: Sequence[int] | None = None, numbers: Sequence[int] = ()) -> Recognised:
    """Name the schedule that a run followed. Linear in the ranges, times the handful of schedules.

    Only complete steps count (``complete_microbatches``). Of each rank either all chunks or all virtual stages should
    be known, and unknown ones ``NOWHERE``, not guessed: a stage is compared.

    Args:
        ranges: by pipeline rank, 0 .. p - 1.
        ranks: what messages call the ranks.
        numbers: what they call the steps, which are counted from 0 then.
    """
    names = range(len(ranges)) if ranks is None else ranks
    steps, left_out = complete_steps(ranges, names, numbers)
    if not steps:
        why = next(iter(left_out.values()), "there are no forwards and backwards")
        return Recognised(UNKNOWN, len(ranges), 0, 1, "", f"no step is whole: {why}", (), left_out)

    @cache
    def possible(microbatches: int, chunks: int, split: bool) -> list[Candidate]:
        return list(candidates(replace(steps[0], microbatches=microbatches, chunks=chunks, split=split)))

    compared = [
        [compare(step, candidate) for candidate in possible(step.microbatches, step.chunks, step.split)]
        for step in steps
    ]
    chunks = max(step.chunks for step in steps)
    followed = _followed(compared)
    if not followed and chunks == 1 < len(ranges) and all(map(_unnamed, ranges)):
        followed = _followed([list(_by_phases(step, possible)) for step in steps])
    if followed:
        played, first = tuple(match.played() for match in followed), followed[0]
        schedule, chunks = first.candidate.schedule, first.step.chunks
        return Recognised(schedule, len(ranges), _usual(played), chunks, "", "", played, left_out)
    return Recognised(UNKNOWN, len(ranges), _usual(steps), chunks, *_nearest(steps, compared, names), (), left_out)


def _followed(compared: Sequence[Sequence[Comparison]]) -> list[Comparison]:
    """Return of each step how it compares with the first schedule that all steps followed; none where none is."""
    exact = [
        {(one.candidate.schedule, one.step.chunks): one for one in reversed(step) if not one.distance}
        for step in compared
    ]
    return next(([step[key] for step in exact] for key in reversed(exact[0]) if all(key in step for step in exact)), [])


def _unnamed(ranges: Ranges) -> bool:
    """Tell whether nothing numbers the passes of a rank but their order."""
    rules = np.unique(ranges.rule[ranges.phase <= Pass.W])
    return all(ranges.rules[rule].startswith("inferred:") for rule in rules.tolist())


def _by_phases(step: CompleteStep, possible: Callable[[int, int, bool], Sequence[Candidate]]) -> Iterator[Comparison]:
    """Yield the schedules of several chunks that run the phases of a step in its order on all ranks: they tell chunk
    and microbatch of each pass.
    """
    for chunks in range(2, step.microbatches + 1):
        if step.microbatches % chunks:
            continue
        shaped = replace(step, microbatches=step.microbatches // chunks, chunks=chunks)
        for candidate in possible(shaped.microbatches, chunks, step.split):
            pairs = candidate.schedule == "DualPipe"
            ranks = tuple(
                named
                for rank, codes in zip(step.ranks, candidate.codes, strict=True)
                for named in _named(shaped, _forward_first(rank) if pairs else rank, codes)
            )
            if len(ranks) == len(step.ranks):
                yield compare(replace(shaped, ranks=ranks), candidate)


def _named(step: CompleteStep, rank: Recorded, codes: I64) -> Iterator[Recorded]:
    """Yield the passes of a rank with the chunks and microbatches of ``codes``, if phases are those."""
    phases, origin = _coded(step, rank.phase, 0 * rank.chunk, 0 * rank.chunk)
    if len(phases) == len(codes) and not ((codes - phases) // (step.chunks * step.microbatches)).any():
        unit = (codes - phases)[np.flatnonzero(np.diff(origin, prepend=-1))]
        yield replace(rank, chunk=unit // step.microbatches, microbatch=unit % step.microbatches)


def _usual(steps: Sequence[RecognisedStep | CompleteStep]) -> int:
    return Counter(step.microbatches for step in steps).most_common(1)[0][0]


def _nearest(
    steps: Sequence[CompleteStep], compared: Sequence[Sequence[Comparison]], names: Sequence[int]
) -> tuple[str, str]:
    """Return name and first difference of the candidate that differs least, in the first step that differs most."""
    there = []
    for step, comparisons in zip(steps, compared, strict=True):
        if not comparisons:
            kind = "split" if step.split else "full"
            numbers = f"{len(names)} ranks, {step.chunks} chunk(s) a rank and {step.microbatches} microbatches"
            return "", f"step {step.called}: no schedule with {kind} backwards exists for {numbers}"
        there.append(min(comparisons, key=lambda one: one.distance))
    worst = max(there, key=lambda one: one.distance)
    if worst.distance:
        return worst.candidate.schedule, worst.first_difference(names)
    named = ", ".join(f"step {one.step.called} is {one.candidate.schedule}" for one in there[:4])
    return there[0].candidate.schedule, f"steps differ: {named}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """Generated orders in the form in which they are compared: ``codes`` of the actions, ``origins`` their places in
    ``orders``.
    """

    schedule: str
    orders: tuple[Order, ...]
    codes: tuple[I64, ...]
    origins: tuple[I64, ...]


def candidates(step: CompleteStep) -> Iterator[Candidate]:
    """Yield them in the order of preference: if some backwards are split the schedules that split first, else only
    those that do not.
    """
    stages = len(step.ranks)
    names = [name for name in SCHEDULES if name in SPLIT] if step.split else []
    for schedule in names + [name for name in SCHEDULES if name not in SPLIT]:
        directions = 2 if schedule == "DualPipe" else 1
        for orders in variants(schedule, stages, step.microbatches * directions, step.chunks):
            chunks = [order.stage // stages for order in orders]
            coded = [
                _coded(step, order.phase, chunk, order.microbatch - (directions - 1) * step.microbatches * chunk)
                for order, chunk in zip(orders, chunks, strict=True)
            ]
            codes, origins = zip(*coded, strict=True)
            yield Candidate(schedule, orders, codes, origins)


def _coded(step: CompleteStep, phase: U8, chunk: I64, microbatch: I64) -> tuple[I64, I64]:
    """Return one number per action, and where each comes from: in a step with split backwards a B is taken as an I and
    a W.
    """
    full = np.asarray(phase == Pass.B) & step.split
    origin = np.repeat(np.arange(len(phase)), 1 + full)
    out = phase[origin].astype(np.int64)
    out[full[origin]] = Pass.I
    out[np.diff(origin, prepend=-1) == 0] = Pass.W
    return (out * step.chunks + chunk[origin]) * step.microbatches + microbatch[origin], origin


@dataclass(frozen=True, slots=True)
class Comparison:
    """One step against one candidate: ``ranks`` as they were compared, and by rank the ``origins`` of what was recorded
    and whether it ``differs``; ``distance``: how many actions do."""

    step: CompleteStep
    candidate: Candidate
    ranks: tuple[Recorded, ...]
    origins: tuple[I64, ...]
    differs: tuple[Bool, ...]
    distance: int

    def played(self) -> RecognisedStep:
        """Return what each recorded action is by the candidate, if nothing differs; phases as recorded."""
        orders = []
        for rank, recorded in enumerate(self.ranks):
            first = np.flatnonzero(np.diff(self.origins[rank], prepend=-1))
            order = take(self.candidate.orders[rank], self.candidate.origins[rank][first])
            orders.append(replace(order, phase=recorded.phase))
        directions = 2 if self.candidate.schedule == "DualPipe" else 1
        return RecognisedStep(
            self.step.step, directions * self.step.microbatches, tuple(rank.row for rank in self.ranks), tuple(orders)
        )

    def first_difference(self, names: Sequence[int]) -> str:
        """Describe the first difference with the recording's own microbatch numbers; positions count the actions of a
        rank from 0.
        """
        rank = next(k for k, differs in enumerate(self.differs) if differs.any())
        at = int(np.argmax(self.differs[rank]))
        recorded, order = self.ranks[rank], self.candidate.orders[rank]
        found, meant = int(self.origins[rank][at]), int(self.candidate.origins[rank][at])
        codes, _ = _coded(self.step, recorded.phase, recorded.chunk, recorded.microbatch)
        ran = int(np.argmax(codes == self.candidate.codes[rank][at]))  # where the expected one ran
        label = recorded.label[self.origins[rank][ran]]
        stage = recorded.stage[found]
        if stage == NOWHERE:
            stage = stage_of(self.candidate.schedule, rank, int(recorded.chunk[found]), len(self.ranks))
        return (
            f"step {self.step.called}, rank {names[rank]}, position {found} of {len(recorded)}:"
            f" expected {Pass(order.phase[meant]).name} of stage {order.stage[meant]}, microbatch {label},"
            f" found {Pass(recorded.phase[found]).name} of stage {stage}, microbatch {recorded.label[found]}"
        )


def compare(step: CompleteStep, candidate: Candidate) -> Comparison:
    """Compare a recorded step with generated orders, action by action."""
    stages, dual = len(step.ranks), candidate.schedule == "DualPipe"
    ranks = tuple(_directed(recorded, rank, stages) for rank, recorded in enumerate(step.ranks)) if dual else step.ranks
    origins, differs = [], []
    for rank, recorded in enumerate(ranks):
        code, origin = _coded(step, recorded.phase, recorded.chunk, recorded.microbatch)
        expected = np.array([stage_of(candidate.schedule, rank, chunk, stages) for chunk in range(step.chunks)])
        off = recorded.stage - expected[recorded.chunk]
        if dual:  # its second pipeline has the layers of the first, and may be numbered like it
            off %= stages
        elsewhere = (recorded.stage != NOWHERE) & (off != 0)
        origins.append(origin)
        differs.append((code != candidate.codes[rank]) | elsewhere[origin])
    distance = sum(how_many(rank) for rank in differs)
    return Comparison(step, candidate, ranks, tuple(origins), tuple(differs), distance)


def _directed(recorded: Recorded, rank: int, stages: int) -> Recorded:
    """Let the chunk of a range be its direction, which its layer tells: the second begins on the last rank."""
    known = recorded.stage != NOWHERE
    chunk = np.where(known, recorded.stage % stages != rank, recorded.chunk)
    return _forward_first(replace(recorded, chunk=chunk))


def _forward_first(recorded: Recorded) -> Recorded:
    """Put the forward first where a forward and a backward overlap, the backward starting first."""
    backward = (recorded.phase == Pass.B) | (recorded.phase == Pass.I)
    swap = backward[:-1] & (recorded.phase[1:] == Pass.F) & (recorded.start_ns[1:] < recorded.end_ns[:-1])
    order = np.arange(len(recorded))
    at = np.flatnonzero(swap)  # never two in a row: a backward is no forward
    order[at], order[at + 1] = at + 1, at
    return take(recorded, order)
