"""What each range needs from another stage: the forward of the stage before, or the backward of the stage after, of its microbatch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I64, NOWHERE, U8
from graphlink.pipeline.records import Phase
from graphlink.pipeline.stages import Pipes

_NEVER: Final = np.iinfo(np.int64).min
_BACKWARD: Final = (Phase.B, Phase.I)


@dataclass(frozen=True, slots=True)
class Producers:
    """One entry a range of a run. ``end_ns`` is the least int64 where it needs no other stage, or that one is on the same rank.

    ``lag_ns``: the least time between such a producer's end and its consumer's start, over all of its pair of stages.
    """

    end_ns: I64
    lag_ns: I64
    rank: I64
    stage: I64
    phase: U8


def producers(pipes: Pipes) -> tuple[Producers, ...]:
    """Of each run. O(n log n) in the ranges of all ranks."""
    runs = pipes.runs
    sizes = [len(run.ranges.phase) for run in runs]
    total = sum(sizes)
    phase, stage, microbatch, step, start, end = (
        np.concatenate([getattr(run.ranges, name) for run in runs]).astype(np.int64)
        for name in ("phase", "stage", "microbatch", "step", "start_ns", "end_ns")
    )
    rank = np.repeat([run.rank for run in runs], sizes)
    pipe = np.repeat(pipes.pipe, sizes)
    direction = np.where(phase == Phase.F, 1, np.where(np.isin(phase, _BACKWARD), -1, 0))
    have = np.stack([pipe, step, direction, stage, microbatch], axis=1)
    want = have.copy()
    want[:, 3] -= direction
    index = {tuple(row): k for k, row in enumerate(have.tolist()) if row[2]}
    source = np.array([index.get(tuple(row), NOWHERE) if row[2] else NOWHERE for row in want.tolist()], np.int64)
    at = np.maximum(source, 0)
    other = (source != NOWHERE) & (rank[at] != rank)
    lag = np.zeros(total, np.int64)
    if other.any():
        pair = np.stack([direction[other], stage[other]], axis=1)
        _, which = np.unique(pair, axis=0, return_inverse=True)
        least = np.full(int(which.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(least, which.ravel(), np.maximum(start[other] - end[at[other]], 0))
        lag[other] = least[which.ravel()]
    columns = (
        np.where(other, end[at], _NEVER),
        lag,
        np.where(other, rank[at], NOWHERE),
        np.where(other, stage[at], NOWHERE),
        np.where(other, phase[at], 0).astype(np.uint8),
    )
    bounds = np.cumsum(sizes)[:-1]
    return tuple(Producers(*part) for part in zip(*(np.split(c, bounds) for c in columns), strict=True))
