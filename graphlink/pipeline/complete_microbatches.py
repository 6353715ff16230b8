"""Complete steps of a recording, from their first forward to their last backward, as the orders in which the ranks ran
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from graphlink.model import I64, NOWHERE, U8
from graphlink.pairs import numbered_pairs
from graphlink.pipeline.records import Pass, Ranges
from graphlink.tables import take, turns


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

    ``split``: some backwards are split into input and weight gradient.
    """

    step: int
    ranks: tuple[Recorded, ...]
    microbatches: int
    chunks: int
    split: bool


def complete_steps(ranges: Sequence[Ranges], names: Sequence[int]) -> tuple[list[CompleteStep], dict[int, str]]:
    """Return the complete steps of a run, and why others are not, by number (``NOWHERE``: ranges of no step). Linear
    but for sorting.

    A step that the recording cuts at its begin or end lacks forwards of backwards that are there, or the other way
    round, or ranks differ in their microbatches: it is left out. Ranges of no step count as a step only where no range
    has one.

    Args:
        ranges: by pipeline rank.
        names: what messages call the ranks.
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
            why = _cut(recorded, names)
            if why:
                left_out[step] = why
            else:
                many, pieces = (int(column.max()) + 1 for column in (recorded[0].microbatch, recorded[0].chunk))
                complete.append(
                    CompleteStep(step, recorded, many, pieces, any((rank.phase == Pass.W).any() for rank in recorded))
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
    row = row[np.lexsort((ranges.phase[row], ranges.start_ns[row]))]
    own = take(ranges, row)
    chunk, label = chunks[row], own.microbatch
    if (label == NOWHERE).any():
        label = _by_order(own.phase, chunk)
    columns = {field.name: getattr(own, field.name) for field in fields(own)}
    return Recorded(**columns | {"chunk": chunk, "microbatch": _without_gaps(chunk, label)}, row=row, label=label)


def _without_gaps(chunk: I64, label: I64) -> I64:
    """Number the labels of each chunk from 0, in their order."""
    pairs, code = numbered_pairs(chunk, label)
    first = np.searchsorted([chunk for chunk, _ in pairs], chunk)
    return code - first


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
            F, B, I, W = (int(np.count_nonzero(rank.phase == phase)) for phase in (Pass.F, Pass.B, Pass.I, Pass.W))
            return (
                f"rank {name} has {F} F, {B} B, {I} I and {W} W: not each of {many} microbatches once in {chunks} "
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
