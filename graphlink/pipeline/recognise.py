"""Which schedule a run followed: the orders that its ranks ran, compared with generated ones. Exact, or unknown.

Compared are phase, chunk and microbatch of every action of every rank in every whole step, and the virtual stage where the recording
has it. Times are not, but for what overlaps (below), and communication is not.

Where several schedules order alike, the first in the contract's list is named (GPipe, 1F1B, interleaved, ZB-H1, ZB-H2, ZB-V,
interleaved-ZB, DualPipe): with one microbatch 1F1B is called GPipe; with two at most, or on one rank, ZB-H2 is ZB-H1; with one chunk
interleaved is 1F1B and interleaved-ZB is ZB-H1; on one rank interleaved-ZB of two chunks is ZB-V.

Full and split backwards: a run that records weight gradients is compared with all its backwards split, so a B is taken as the I and W
that some frameworks fuse where they follow each other; the schedules that split come first, then the others with W right after I. A run
without weight gradients is compared with GPipe, 1F1B and interleaved only: where its W ran cannot be seen.

Overlap: a backward and a forward that run at the same time are DualPipe's pair, whichever starts first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from graphlink.model import I64
from graphlink.pipeline.compare import Candidate, Comparison, Shape, candidates
from graphlink.pipeline.order import UNKNOWN, Order
from graphlink.pipeline.records import Ranges
from graphlink.pipeline.wholes import Steps, Whole, whole_steps


@dataclass(frozen=True, slots=True)
class Played:
    """A recognised step, one entry a rank: the rows of its ``Ranges`` in the order of the schedule, and what each is by the schedule.

    ``orders`` are parallel to ``rows``; their phases are as recorded (B where a split one is fused).
    """

    step: int
    microbatches: int
    rows: tuple[I64, ...]
    orders: tuple[Order, ...]


@dataclass(frozen=True, slots=True)
class Recognised:
    """``schedule``: a name of the contract, or "unknown"; then ``nearest`` is the one that differs in the fewest actions ("" where none
    exists for these numbers) and ``difference`` says where first, by step, rank and position (from 0).

    ``microbatches`` of a step, the most frequent number. ``steps``: those recognised; empty if unknown. ``left_out``: steps that are not
    whole, with the reason.
    """

    schedule: str
    stages: int
    microbatches: int
    chunks: int
    nearest: str
    difference: str
    steps: tuple[Played, ...]
    left_out: dict[int, str]


def recognise(ranges: Sequence[Ranges], ranks: Sequence[int] | None = None) -> Recognised:
    """``ranges`` by pipeline rank, 0 .. p - 1; ``ranks``: what messages call them. Only whole steps count (``wholes``).

    Of each rank either all chunks or all virtual stages should be known, and unknown ones ``NOWHERE``, not guessed: a stage is compared.
    Linear in the ranges, times the handful of schedules.
    """
    names = range(len(ranges)) if ranks is None else ranks
    steps = whole_steps(ranges, names)
    if not steps.whole:
        why = next(iter(steps.left_out.values()), "there are no forwards and backwards")
        return Recognised(UNKNOWN, len(ranges), 0, 1, "", f"no step is whole: {why}", (), steps.left_out)
    known: dict[Shape, list[Candidate]] = {}
    compared = []
    for step in steps.whole:
        shape = Shape.of(step)
        if shape not in known:
            known[shape] = list(candidates(shape))
        compared.append([Comparison.of(step, candidate) for candidate in known[shape]])
    return _verdict(steps, compared, names)


def _verdict(steps: Steps, compared: Sequence[Sequence[Comparison]], names: Sequence[int]) -> Recognised:
    """One schedule that every whole step followed, or the nearest of the first step that followed none (or not the others')."""
    stages, chunks = len(names), max(step.chunks for step in steps.whole)
    exact = [{one.candidate.schedule: one for one in reversed(step) if not one.distance} for step in compared]
    for schedule in _preference(compared):
        if all(schedule in step for step in exact):
            played = tuple(_played(step, matches[schedule]) for step, matches in zip(steps.whole, exact, strict=True))
            return Recognised(schedule, stages, _usual(played), chunks, "", "", played, steps.left_out)
    many = Counter(step.microbatches for step in steps.whole).most_common(1)[0][0]
    nearest, difference = _nearest(steps, compared, names)
    return Recognised(UNKNOWN, stages, many, chunks, nearest, difference, (), steps.left_out)


def _preference(compared: Sequence[Sequence[Comparison]]) -> list[str]:
    return list(dict.fromkeys(one.candidate.schedule for step in compared for one in step))


def _played(step: Whole, match: Comparison) -> Played:
    directions = 2 if match.candidate.schedule == "DualPipe" else 1
    return Played(step.step, directions * step.microbatches, tuple(rank.row for rank in match.ranks), match.orders())


def _usual(played: Sequence[Played]) -> int:
    return Counter(step.microbatches for step in played).most_common(1)[0][0]


def _nearest(steps: Steps, compared: Sequence[Sequence[Comparison]], names: Sequence[int]) -> tuple[str, str]:
    """Name and first difference of the candidate that differs least, in the first step that differs most."""
    best = [min(step, key=lambda one: one.distance, default=None) for step in compared]
    for step, one in zip(steps.whole, best, strict=True):
        if one is None:
            kind = "split" if step.split else "full"
            numbers = f"{len(names)} ranks, {step.chunks} chunk(s) a rank and {step.microbatches} microbatches"
            return "", f"step {step.step}: no schedule with {kind} backwards exists for {numbers}"
    there = [one for one in best if one is not None]
    worst = max(there, key=lambda one: one.distance)
    if worst.distance:
        return worst.candidate.schedule, worst.first_difference(names)
    return there[0].candidate.schedule, "steps differ: " + ", ".join(f"step {one.step} is {one.candidate.schedule}" for one in there[:4])
