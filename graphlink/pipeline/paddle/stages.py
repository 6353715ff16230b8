"""Find which workers share a stage, in which order the stages stand, and which workers form one pipeline.

The logs name no stage. But whatever the schedule, a microbatch that leaves a stage passes all later ones forwards and
backwards before it is back: the time it is away, from the end of its forward to the end of its backward, is longer than
on the next stage by the forward there and the backward here at least. This holds for each microbatch, on each machine's
own clock. So the time away orders the workers, and refutes a pipeline that is none: workers of one stage are away
equally long.

Clocks of several machines, aligned by what cannot have been otherwise.

A forward cannot start before the same microbatch's forward on the stage before has ended, nor a backward before that on
the stage behind. Across two machines the first bounds the difference of their clocks from one side, the second from the
other. All bounds together form a system of differences, which shortest paths solve; the middle of what they leave open
is taken, half of it is the uncertainty.

Machines that nothing passed between may still hold workers of one stage, in pipelines side by side. Those exchange
gradients: no optimizer ends before the last backward of the step on each of them has ended. These bounds are wide; they
serve where there are no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from graphlink.model import I64, NOWHERE, Bool
from graphlink.pipeline.paddle.jobs import TOLERANCE_NS, Jobs
from graphlink.pipeline.paddle.logs import MOST_NAMED, listed
from graphlink.pipeline.records import Pass
from graphlink.ranks.clock_bounds import OPEN, solved
from graphlink.tables import codes, concat, how_many, largest, marked, spread

MOST_CELLS: Final = 1 << 22  # of workers x chunks x microbatches that are compared
MOST_CHUNKS: Final = 64
MOST_SHORT: Final = 0.05  # of all microbatches and stages: what may be at odds with a pipeline before it counts as none
MOST_FREE: Final = 4  # ranks of a mesh for each that was logged
_Cell = tuple[int, int]  # of ``Passages``: worker, and position of the chunk in ``chunks``


@dataclass(frozen=True, slots=True)
class Passages:
    """The times at which microbatches passed: arrays of workers x chunks x (step, microbatch). Times only where
    ``forth`` or ``back`` holds."""

    chunks: tuple[int, ...]
    forth: Bool
    back: Bool
    forth_start_ns: I64
    forth_end_ns: I64
    back_start_ns: I64  # of B or I
    back_end_ns: I64


@dataclass(frozen=True, slots=True)
class Stages:
    """``position[w]`` of each worker in the pipeline, 0 .. ``count`` - 1; ``pipelines`` holds workers in stage order,
    one a stage.

    ``reversed_chunks``: those that run from the last position to the first (V-shaped schedules).
    """

    count: int
    position: I64
    pipelines: tuple[tuple[int, ...], ...]
    reversed_chunks: frozenset[int]
    warnings: tuple[str, ...]

    def stage(self, worker: int, chunk: I64) -> I64:
        """Return the virtual stages of chunks on a worker; that of chunk 0 where the chunk is unknown."""
        known = np.maximum(chunk, 0)
        at = int(self.position[worker])
        turned = np.isin(known, list(self.reversed_chunks))
        return known * self.count + np.where(turned, self.count - 1 - at, at)


def passages(workers: Sequence[Jobs]) -> Passages:
    """Return the first passage of each microbatch through each chunk of each worker, of as many microbatches as fit
    ``MOST_CELLS``.
    """
    worker = np.repeat(np.arange(len(workers)), [len(jobs.phase) for jobs in workers])
    every = concat(*workers)
    some = (every.chunk >= 0) & ((every.phase == Pass.F) | every.returns)
    names = np.unique(every.chunk[some])[:MOST_CHUNKS]
    most = max(MOST_CELLS // max(len(workers) * len(names), 1), 16)
    key = spread(len(worker), some, codes(every.step[some], every.microbatch[some]), most)
    some &= (key < most) & (every.chunk <= names.max(initial=-1))
    shape = (len(workers), len(names), int(key[some].max(initial=-1)) + 1)
    cell = (worker * shape[1] + np.searchsorted(names, every.chunk)) * shape[2] + key

    def first(where: Bool) -> tuple[Bool, I64, I64]:
        """Find the first start and the last end of each cell, and whether it has a job: jobs of a worker are sorted by
        start, so of several in a cell (parts) the first starts it and the last ends it."""
        rows, count = np.flatnonzero(where & some), int(np.prod(shape))
        starts = spread(count, cell[rows[::-1]], every.start_ns[rows[::-1]], 0)
        ends = spread(count, cell[rows], every.end_ns[rows], 0)
        return marked(count, cell[rows]).reshape(shape), starts.reshape(shape), ends.reshape(shape)

    forth, forth_start, forth_end = first(every.phase == Pass.F)
    back, back_start, back_end = first(every.returns)
    return Passages(tuple(names.tolist()), forth, back, forth_start, forth_end, back_start, back_end)


def stages_of(workers: Sequence[Jobs], seen: Passages) -> Stages:
    """Order the workers; ``workers`` by rank. O(workers x microbatches x layouts), of which there are few dozens."""
    rows, warnings = _rows(workers, seen)
    position = np.zeros(len(workers), np.int64)
    for at, column in enumerate(rows.T):
        position[column[column != NOWHERE]] = at
    whole = (rows != NOWHERE).all(axis=1)
    apart = np.sort(rows[~whole], axis=None)
    if len(apart):
        ranks = [workers[w].rank for w in apart.tolist() if w != NOWHERE]
        counts = ", ".join(str(n) for n in (rows != NOWHERE).sum(axis=0)[:MOST_NAMED])
        named = listed(ranks)
        warnings.append(
            f"stages have unequal numbers of workers ({counts}): ranks {named} are in no whole pipeline and are left "
            "out"
        )
    pipelines = tuple(tuple(row) for row in rows[whole].tolist())
    heads = [int(column[column != NOWHERE][0]) for column in rows.T]
    return Stages(rows.shape[1], position, pipelines, _reversed(seen, heads), tuple(warnings))


def _rows(workers: Sequence[Jobs], seen: Passages) -> tuple[I64, list[str]]:
    """Return pipelines x stages: the worker of each, ``NOWHERE`` where one is missing; and what is to be reported of
    it.
    """
    common: Bool = np.all((seen.forth & seen.back)[:, :1], axis=(0, 1)) if seen.chunks else np.zeros(0, np.bool_)
    if not common.any():
        return _side_by_side(_groups_by_start(seen)), _warn_of_starts(workers)
    times = _Away(seen, common)
    one = np.array([times.order(range(len(workers)))])
    if times.is_possible(one):
        return one, []
    for rows in _layouts([jobs.rank for jobs in workers]):
        column = [np.mean(times.mean_ns[c[c != NOWHERE]]) if (c != NOWHERE).any() else 0 for c in rows.T]
        ordered = rows[:, np.argsort(-np.array(column), kind="stable")]
        if (rows != NOWHERE).any(axis=0).all() and times.is_possible(ordered):
            return ordered, []
    groups = times.alike()
    said = "stages are known only from how long microbatches are away: which workers share one is a guess"
    return _side_by_side(groups), [said] if len(groups) > 1 else []


def _layouts(ranks: Sequence[int]) -> Iterator[I64]:
    """Yield the rows of every mesh that has a pipeline dimension and as many ranks as the highest says, longest
    pipelines first.

    Ranks stand in a mesh row by row, so those of one stage repeat with a stride: that of its dimension.
    """
    count = ranks[-1] + 1
    if count > MOST_FREE * len(ranks):
        return
    worker = spread(count, np.array(ranks), np.arange(len(ranks)))
    for p in (p for p in range(count // 2, 1, -1) if count % p == 0):
        for stride in (s for s in range(1, count // p + 1) if count // p % s == 0):
            yield worker.reshape(-1, p, stride).transpose(0, 2, 1).reshape(-1, p)


def _side_by_side(groups: Sequence[Sequence[int]]) -> I64:
    """Return rows in which the k-th workers of all groups are a pipeline."""
    rows = np.full((max(map(len, groups)), len(groups)), NOWHERE)
    for at, group in enumerate(groups):
        rows[: len(group), at] = sorted(group)
    return rows


class _Away:
    """Time away of the microbatches (columns) that every worker (rows) logged forwards and backwards through its first
    chunk.
    """

    def __init__(self, seen: Passages, common: Bool) -> None:
        self.ns: I64 = (seen.back_end_ns - seen.forth_end_ns)[:, 0, common]
        self.mean_ns: NDArray[np.float64] = self.ns.mean(axis=1)
        # the least of a worker, as later ones may hold waits
        self.forth_ns: I64 = (seen.forth_end_ns - seen.forth_start_ns)[:, 0, common].min(axis=1)
        self.back_ns: I64 = (seen.back_end_ns - seen.back_start_ns)[:, 0, common].min(axis=1)

    def order(self, workers: Iterable[int]) -> list[int]:
        return sorted(workers, key=lambda worker: (-self.mean_ns[worker], worker))

    def is_possible(self, rows: I64) -> bool:
        """Tell whether (nearly) every microbatch is away long enough on each stage to pass the next one, in every
        pipeline of ``rows``.
        """
        here, there = rows[:, :-1].ravel(), rows[:, 1:].ravel()
        both = (here != NOWHERE) & (there != NOWHERE)
        here, there = here[both], there[both]
        least = self.ns[there] + (self.forth_ns[there] + self.back_ns[here])[:, None]
        short = self.ns[here] < least - 2 * TOLERANCE_NS
        return bool(np.count_nonzero(short) <= MOST_SHORT * short.size)

    def alike(self) -> list[list[int]]:
        """Group workers whose mean differs by less than half of what lies between two stages."""
        mean_ns, forth_ns, back_ns = self.mean_ns, self.forth_ns, self.back_ns
        return _together(
            self.order(range(len(self.ns))),
            lambda head, worker: mean_ns[head] - mean_ns[worker] <= (forth_ns[worker] + back_ns[head]) / 2,
        )


def _groups_by_start(seen: Passages) -> list[list[int]]:
    """Group by the start of the first forward on each worker; who starts before the first of a group has ended its
    forward is in it.
    """
    far = np.iinfo(np.int64).max
    start = np.where(seen.forth, seen.forth_start_ns, far).min(axis=(1, 2), initial=far)
    end = np.where(seen.forth, seen.forth_end_ns, far).min(axis=(1, 2), initial=far)
    order = np.argsort(start, kind="stable").tolist()
    return _together(order, lambda head, worker: start[worker] < end[head] - TOLERANCE_NS)


def _together(workers: Iterable[int], belongs: Callable[[int, int], bool]) -> list[list[int]]:
    """Group workers in a row: each goes to the group before it where it ``belongs`` to the first one there."""
    groups: list[list[int]] = []
    for worker in workers:
        if groups and belongs(groups[-1][0], worker):
            groups[-1].append(worker)
        else:
            groups.append([worker])
    return groups


def _warn_of_starts(workers: Sequence[Jobs]) -> list[str]:
    if len(workers) < 2:
        return []
    said = (
        "no microbatch is logged forwards and backwards on every worker: stages are ordered by the start of their "
        "first forward"
    )
    if len({jobs.machine for jobs in workers}) > 1:
        said += ", and the clocks of machines are taken as they are"
    return [said]


def _reversed(seen: Passages, heads: Sequence[int]) -> frozenset[int]:
    """Find the chunks of which the last position is first: microbatches are away longest from there, or start there.
    ``heads``: one a stage."""
    out = set()
    for at, chunk in enumerate(seen.chunks):
        both: Bool = np.all((seen.forth & seen.back)[heads, at], axis=0)
        forth: Bool = np.all(seen.forth[heads, at], axis=0)
        if chunk == 0 or len(heads) < 2:
            continue
        if both.any():
            away = (seen.back_end_ns[:, at, both] - seen.forth_end_ns[:, at, both]).mean(axis=1)
            turned = away[heads[0]] < away[heads[-1]]
        else:
            starts = seen.forth_start_ns[:, at, forth].sum(axis=1, dtype=np.float64)
            turned = starts[heads[0]] > starts[heads[-1]]
        if turned:
            out.add(chunk)
    return frozenset(out)


def clocks_of(workers: Sequence[Jobs], seen: Passages, stages: Stages) -> tuple[I64, list[str]]:
    """Return what to add to each worker's times for the first machine's clock, and warnings. O(hops x microbatches +
    machines^3).
    """
    numbers = sorted({jobs.machine for jobs in workers})
    machine = np.array([numbers.index(jobs.machine) for jobs in workers])
    hops = _hops(seen, stages)
    bound = np.full((len(numbers), len(numbers)), OPEN)
    np.fill_diagonal(bound, 0)
    for cell, following in hops:
        here, there = int(machine[cell[0]]), int(machine[following[0]])
        if here != there:
            bound[there, here] = min(bound[there, here], _least(_forth_gap(seen, cell, following)))
            # as the clocks say, from the end of each backward of the next stage to the start of this one's
            gap = (seen.back_start_ns[cell] - seen.back_end_ns[following])[seen.back[cell] & seen.back[following]]
            bound[here, there] = min(bound[here, there], _least(gap))
    slack, closed = solved(bound)
    if (closed >= OPEN // 2).any():
        slack, closed = solved(
            np.where(closed < OPEN // 2, bound, np.minimum(bound, _bounds_of_exchange(workers, machine, stages)))
        )
    shift, warnings = _middle(closed, slack, numbers)
    if slack > TOLERANCE_NS:
        warnings.append(
            f"no shift of the machines' clocks fits all jobs: some would have to start up to {_ms(slack)} ms before "
            "what they need"
        )
    shifts = shift[machine]
    return shifts, [*warnings, *_early(workers, seen, hops, shifts)]


def _hops(seen: Passages, stages: Stages) -> list[tuple[_Cell, _Cell]]:
    """Return each virtual stage but the last, with the next one, of every pipeline."""
    out: list[tuple[_Cell, _Cell]] = []
    for pipeline in stages.pipelines:
        cells: list[_Cell] = []
        for at, chunk in enumerate(seen.chunks):
            row = reversed(pipeline) if chunk in stages.reversed_chunks else pipeline
            cells += [(worker, at) for worker in row]
        out += pairwise(cells)
    return out


def _forth_gap(seen: Passages, here: _Cell, there: _Cell) -> I64:
    """Return the time from the end of each forward to the start of the next stage's, as the clocks say."""
    return np.asarray((seen.forth_start_ns[there] - seen.forth_end_ns[here])[seen.forth[here] & seen.forth[there]])


def _bounds_of_exchange(workers: Sequence[Jobs], machine: I64, stages: Stages) -> I64:
    """Return bounds by workers of one stage, each with the next of its stage: as ``bound`` in ``clocks_of``."""
    out = np.full((int(machine.max()) + 1,) * 2, OPEN)
    ends = [_ends(jobs) for jobs in workers]
    for position in range(stages.count):
        for a, b in pairwise(np.flatnonzero(stages.position == position).tolist()):
            count = min(ends[a].shape[1], ends[b].shape[1])
            (work_a, optimizer_a), (work_b, optimizer_b) = ends[a][:, :count], ends[b][:, :count]
            both = (np.minimum(ends[a][:, :count], ends[b][:, :count]) > 0).all(axis=0)
            if both.any() and machine[a] != machine[b]:
                here, there = int(machine[a]), int(machine[b])
                out[here, there] = min(out[here, there], _least((optimizer_a - work_b)[both]))
                out[there, here] = min(out[there, here], _least((optimizer_b - work_a)[both]))
    return out


def _ends(jobs: Jobs) -> I64:
    """Return the last end of work and of the optimizer in each step, shape (2, steps); 0 where there is none."""
    count, sorts = int(jobs.step[-1]) + 1, (jobs.work, jobs.phase == Pass.OPT)
    return np.stack([largest(count, jobs.step[which], jobs.end_ns[which]) for which in sorts])


def _least(gap: I64) -> int:
    return int(np.clip(gap, -OPEN // 4, OPEN // 4).min(initial=OPEN))


def _middle(closed: I64, slack_ns: int, numbers: Sequence[int]) -> tuple[I64, list[str]]:
    """Return shifts against the first machine. The highest shifts that all bounds allow fit together, and so do the
    lowest, thus their mean."""
    high, low = closed[0], -closed[:, 0]
    bounded, least = high < OPEN // 2, low > -OPEN // 2
    shift = np.where(bounded & least, low + (high - low) // 2, np.where(bounded, high, np.where(least, low, 0)))
    said, unknown = [], []
    for at in range(1, len(numbers)):
        if bounded[at] and least[at]:
            said.append(
                f"machine{numbers[at]} {shift[at] / 1e6:+.3f} ms (within "
                f"{_ms((high[at] - low[at] + 1) // 2 + slack_ns)} ms)"
            )
        elif bounded[at] or least[at]:
            said.append(f"machine{numbers[at]} {shift[at] / 1e6:+.3f} ms (bounded on one side only)")
        else:
            unknown.append(f"machine{numbers[at]}")
    out = [f"clocks are shifted onto that of machine{numbers[0]}: {listed(said)}"] if said else []
    if unknown:
        out.append(
            f"the clocks of {listed(unknown)} are taken as they are: nothing passed between them and "
            f"machine{numbers[0]}"
        )
    return shift, out


def _early(workers: Sequence[Jobs], seen: Passages, hops: Sequence[tuple[_Cell, _Cell]], shift_ns: I64) -> list[str]:
    """Warn of forwards that began before those they follow had ended: waits inside a job, or stages in a wrong
    order.
    """
    count = every = worst = 0
    example = ""
    for here, there in hops:
        gap = _forth_gap(seen, here, there) + int(shift_ns[there[0]] - shift_ns[here[0]])
        count += how_many(gap < -TOLERANCE_NS)
        every += len(gap)
        if len(gap) and -gap.min() > max(worst, TOLERANCE_NS):
            worst = int(-gap.min())
            example = f"rank {workers[there[0]].rank} after rank {workers[here[0]].rank}"
    if not count:
        return []
    return [
        f"{count} of {every} forwards began before the same microbatch had left the stage before, by up to "
        f"{_ms(worst)} ms ({example}): "
        "either they waited inside their jobs, which counts as work, or the stages are not in this order"
    ]


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3f}"
