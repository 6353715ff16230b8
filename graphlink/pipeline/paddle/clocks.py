"""Clocks of several machines, aligned by what cannot have been otherwise.

A forward cannot start before the same microbatch's forward on the stage before has ended, nor a backward before that on the stage
behind. Across two machines the first bounds the difference of their clocks from one side, the second from the other. All bounds together
form a system of differences, which shortest paths solve; the middle of what they leave open is taken, half of it is the uncertainty.

Machines that nothing passed between may still hold workers of one stage, in pipelines side by side. Those exchange gradients: no
optimizer ends before the last backward of the step on each of them has ended. These bounds are wide; they serve where there are no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from graphlink.graph.bounds import OPEN, solved
from graphlink.model import I64
from graphlink.pipeline.paddle.jobs import TOLERANCE_NS, Jobs
from graphlink.pipeline.paddle.logs import some
from graphlink.pipeline.paddle.stages import Passages, Stages
from graphlink.pipeline.records import Phase


@dataclass(frozen=True, slots=True)
class Clocks:
    """``shift_ns[w]`` is added to the times of a worker. ``uncertainty_ns``: of the shift between any two machines, where bounded."""

    shift_ns: I64
    uncertainty_ns: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Hop:
    """Worker and chunk (as a position in ``Passages.chunks``) of a virtual stage, and those of the next."""

    worker: int
    chunk: int
    next_worker: int
    next_chunk: int


def clocks_of(workers: Sequence[Jobs], seen: Passages, stages: Stages) -> Clocks:
    """Shifts onto the clock of the first machine. O(hops x microbatches + machines^3)."""
    numbers = sorted({jobs.log.machine for jobs in workers})
    machine = np.array([numbers.index(jobs.log.machine) for jobs in workers])
    hops = _hops(seen, stages)
    bound = np.full((len(numbers), len(numbers)), OPEN)
    np.fill_diagonal(bound, 0)
    for hop in hops:
        here, there = int(machine[hop.worker]), int(machine[hop.next_worker])
        if here != there:
            bound[there, here] = min(bound[there, here], _least(_forth_gap(seen, hop)))
            bound[here, there] = min(bound[here, there], _least(_back_gap(seen, hop)))
    slack, closed = solved(bound)
    if (closed >= OPEN // 2).any():
        slack, closed = solved(np.where(closed < OPEN // 2, bound, np.minimum(bound, _bounds_of_exchange(workers, machine, stages))))
    shift, warnings = _middle(closed, slack, numbers)
    if slack > TOLERANCE_NS:
        warnings.append(
            f"no shift of the machines' clocks fits all jobs: some would have to start up to {_ms(slack)} ms before what they need"
        )
    shifts = shift[machine]
    warnings += _early(workers, seen, hops, shifts)
    width = (closed + closed.T)[closed + closed.T < OPEN // 2]
    return Clocks(shifts, int(width.max(initial=0)) // 2 + slack, tuple(warnings))


def _hops(seen: Passages, stages: Stages) -> list[_Hop]:
    """From each virtual stage to the next, of every pipeline."""
    out = []
    for pipeline in stages.pipelines:
        holders = []
        for at, chunk in enumerate(seen.chunks):
            row = reversed(pipeline) if chunk in stages.reversed_chunks else pipeline
            holders += [(worker, at) for worker in row]
        out += [_Hop(*here, *there) for here, there in pairwise(holders)]
    return out


def _forth_gap(seen: Passages, hop: _Hop) -> I64:
    """From the end of each forward to the start of the next stage's, as the clocks say."""
    both = seen.forth[hop.worker, hop.chunk] & seen.forth[hop.next_worker, hop.next_chunk]
    gap: I64 = (seen.forth_start_ns[hop.next_worker, hop.next_chunk] - seen.forth_end_ns[hop.worker, hop.chunk])[both]
    return gap


def _back_gap(seen: Passages, hop: _Hop) -> I64:
    both = seen.back[hop.worker, hop.chunk] & seen.back[hop.next_worker, hop.next_chunk]
    gap: I64 = (seen.back_start_ns[hop.worker, hop.chunk] - seen.back_end_ns[hop.next_worker, hop.next_chunk])[both]
    return gap


def _bounds_of_exchange(workers: Sequence[Jobs], machine: I64, stages: Stages) -> I64:
    """From workers of one stage, each with the next of its stage: as ``bound`` in ``clocks_of``."""
    out = np.full((int(machine.max()) + 1,) * 2, OPEN)
    ends = [_ends(jobs) for jobs in workers]
    for position in range(stages.count):
        for a, b in pairwise(np.flatnonzero(stages.position == position).tolist()):
            steps, in_a, in_b = np.intersect1d(ends[a].step, ends[b].step, assume_unique=True, return_indices=True)
            if len(steps) and machine[a] != machine[b]:
                here, there = int(machine[a]), int(machine[b])
                out[here, there] = min(out[here, there], _least(ends[a].optimizer_ns[in_a] - ends[b].work_ns[in_b]))
                out[there, here] = min(out[there, here], _least(ends[b].optimizer_ns[in_b] - ends[a].work_ns[in_a]))
    return out


@dataclass(frozen=True, slots=True)
class _Ends:
    """Of each step with an optimizer: the last end of its work, and of its optimizer."""

    step: I64
    work_ns: I64
    optimizer_ns: I64


def _ends(jobs: Jobs) -> _Ends:
    last = []
    for which in (jobs.work, jobs.phase == Phase.OPT):
        ends = np.zeros(int(jobs.step[-1]) + 1, np.int64)
        np.maximum.at(ends, jobs.step[which], jobs.log.end_ns[which])
        last.append(ends)
    work, optimizer = last
    steps = np.flatnonzero((work > 0) & (optimizer > 0))
    return _Ends(steps, work[steps], optimizer[steps])


def _least(gap: I64) -> int:
    return int(np.clip(gap, -OPEN // 4, OPEN // 4).min(initial=OPEN))


def _middle(closed: I64, slack_ns: int, numbers: Sequence[int]) -> tuple[I64, list[str]]:
    """Shifts against the first machine. The highest shifts that all bounds allow fit together, and so do the lowest, thus their mean."""
    high, low = closed[0], -closed[:, 0]
    bounded, least = high < OPEN // 2, low > -OPEN // 2
    shift = np.where(bounded & least, low + (high - low) // 2, np.where(bounded, high, np.where(least, low, 0)))
    said, unknown = [], []
    for at in range(1, len(numbers)):
        if bounded[at] and least[at]:
            said.append(f"machine{numbers[at]} {shift[at] / 1e6:+.3f} ms (within {_ms((high[at] - low[at] + 1) // 2 + slack_ns)} ms)")
        elif bounded[at] or least[at]:
            said.append(f"machine{numbers[at]} {shift[at] / 1e6:+.3f} ms (bounded on one side only)")
        else:
            unknown.append(f"machine{numbers[at]}")
    out = [f"clocks are shifted onto that of machine{numbers[0]}: {some(said)}"] if said else []
    if unknown:
        out.append(f"the clocks of {some(unknown)} are taken as they are: nothing passed between them and machine{numbers[0]}")
    return shift, out


def _early(workers: Sequence[Jobs], seen: Passages, hops: Sequence[_Hop], shift_ns: I64) -> list[str]:
    """Forwards that began before those they follow had ended: waits inside a job, or stages in a wrong order."""
    count = every = worst = 0
    example = ""
    for hop in hops:
        gap = _forth_gap(seen, hop) + int(shift_ns[hop.next_worker] - shift_ns[hop.worker])
        count += int(np.count_nonzero(gap < -TOLERANCE_NS))
        every += len(gap)
        if len(gap) and -gap.min() > max(worst, TOLERANCE_NS):
            worst = int(-gap.min())
            example = f"rank {workers[hop.next_worker].log.rank} after rank {workers[hop.worker].log.rank}"
    if not count:
        return []
    return [
        f"{count} of {every} forwards began before the same microbatch had left the stage before, by up to {_ms(worst)} ms ({example}): "
        "either they waited inside their jobs, which counts as work, or the stages are not in this order"
    ]


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3f}"
