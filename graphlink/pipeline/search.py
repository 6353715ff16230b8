"""Search the order of a pipeline step for given times under a limit of activation memory: ZB-1p, ZB-2p and what lies
between and beyond.

In the manner of Qi et al. 2023 (arXiv 2401.10241), section 5, where such schedules come from. What is shortened is the
longest own window of a rank. Three steps, of which each begins with the best orders of the one before:

  patterns  1F1B, and ZB-H1 to ZB-H2 with warm-ups and delays between theirs: those that fit. So the result is never worse than they are.
  greedy    Ranks decide in the order of time what to run next, by a policy: an input gradient that is there comes first; a forward, or
            else a weight gradient, fills the time until then, and may delay it by some share of its own time. Many
            policies are tried.
  moves     Actions on the path that makes the longest window longest are moved by one place, or a weight gradient out of the way, as
            long as that helps.

Memory: a forward stores what I and W need. Of this the part ``kept`` stays until W has ended, the rest until I has.
Every step is without chance, and its effort is counted in actions: the same times give the same order.
"""  # noqa: E501

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import numpy as np

from graphlink.model import I64
from graphlink.pipeline.records import Pass
from graphlink.pipeline.schedules import ActionTimes, Order, run_out
from graphlink.tables import nowhere, turns

F, I, W = int(Pass.F), int(Pass.I), int(Pass.W)
Row = bytearray  # the phases of a rank in its order; the k-th of a phase is of microbatch k
MOST_ACTIONS: Final = 1_000_000  # over all ranks; more would take minutes
_MOST_PLAYED: Final = 3_000_000  # actions, by policies and by moves each: some seconds
_FEWEST_POLICIES: Final = 12
_MOST_POLICIES: Final = 240
_ROUNDING: Final = 1e-9  # of activations, which are sums of fractions
_NEVER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class _Job:
    """Times, microbatches, the limit of each rank, and ``kept`` of what it stores, as in ``search``."""

    times: ActionTimes
    microbatches: int
    limits: Sequence[float]
    kept: float

    @property
    def ranks(self) -> int:
        return self.times.stages

    @property
    def actions(self) -> int:
        """Return how many there are over all ranks."""
        return 3 * self.ranks * self.microbatches


@dataclass(frozen=True, slots=True)
class _Policy:
    """What a rank runs where there is a choice. ``warm``, ``steady``: by which share of its own time a forward may
    delay the next input gradient, before the first one and after; ``fill``, ``drain``: the same for weight gradients,
    before the last forward and after.

    ``ahead``: a rank has at most 1 + ``ahead`` forwards per rank behind it that wait for their backward. ``turns``:
    forwards and input gradients take turns. ``kept``: as in ``search``, but no less.
    """

    warm: float = 0.0
    steady: float = 0.75
    fill: float = 0.75
    drain: float = 0.5
    ahead: float = 99.0
    turns: bool = False
    kept: float = 0.0


_CHOICES: Final[dict[str, tuple[Any, ...]]] = {
    "warm": (0.0, 0.5, 0.75, 0.25),
    "drain": (0.5, 0.1, 0.0, 0.75, 1.0),
    "fill": (0.75, 1.0, 0.5, 0.0),
    "steady": (0.75, 1.0, 0.5, 0.0),
    "kept": (0.0, 0.75, 1.0),
    "ahead": (99.0, 2.0, 1.5, 1.0),
}


@dataclass(frozen=True, slots=True)
class _Played:
    """An order as played. ``own_ns``: the own window of each rank. ``awaited``: by rank and action, whether it waited
    for another rank.

    ``made``: by phase (F, I) and rank, at which place of its row each microbatch is.
    """

    rows: list[Row]
    own_ns: list[int]
    awaited: list[bytearray]
    made: dict[int, list[list[int]]]

    @property
    def value(self) -> tuple[int, int]:
        """Return what is to be small: the longest own window, then all of them."""
        return max(self.own_ns), sum(self.own_ns)


def search(times: ActionTimes, microbatches: int, limits: Sequence[float], kept: float) -> tuple[Order, ...]:
    """Return an order of F, I and W for each rank, one virtual stage a rank, that fits into memory.

    Args:
        times: of every phase on every rank, and of transfers.
        microbatches: of the step.
        limits: the activations that each rank may store at a time, in those of one microbatch.
        kept: the share of them that the weight gradient still needs once the input gradient has ended (0 to 1).

    Raises ValueError where a rank may not even store one microbatch, or there are more than ``MOST_ACTIONS``.
    """
    job = _Job(times, microbatches, limits, kept)
    if job.actions > MOST_ACTIONS:
        raise ValueError(
            f"{microbatches:,} microbatches on {len(limits):,} stages are {job.actions:,} actions, at most "
            f"{MOST_ACTIONS:,}"
        )
    if min(limits) < 1:
        raise ValueError(f"a rank stores at least the activations of one microbatch, not of {min(limits):g}")
    found: dict[tuple[int, int], list[Row]] = {}
    for one in chain(_patterns(job), _by_policies(job)):
        found.setdefault(one.value, one.rows)
    best, left = min(found), _MOST_PLAYED // job.actions
    rows = found[best]
    for value in sorted(found):
        if not left:
            break
        moved, left = _moved(job, found[value], left)
        if moved.value < best:
            best, rows = moved.value, moved.rows
    return tuple(_order(rank, row) for rank, row in enumerate(rows))


def _order(rank: int, row: Row) -> Order:
    phase = np.frombuffer(bytes(row), np.uint8)
    return Order(phase, np.full(len(row), rank, np.int64), turns(phase), np.zeros(len(row), np.bool_))


def fits(row: Row, limit: float, kept: float) -> bool:
    """Tell whether each microbatch of a rank has its F, I and W in this order, and its activations never exceed
    ``limit``.
    """
    forwards, inputs, weights = (np.cumsum(np.frombuffer(row, np.uint8) == phase) for phase in (F, I, W))
    stored = forwards - inputs + kept * (inputs - weights)
    return bool(((stored <= limit + _ROUNDING) & (inputs <= forwards) & (weights <= inputs)).all())


def _patterns(job: _Job) -> Iterator[_Played]:
    """Play the orders that are made by a rule and fit."""
    for hops, delays in ((1.0, False), (1.0, True), (1.25, True), (1.5, True), (1.75, True), (2.0, True)):
        rows = [_pattern(job, rank, hops, delays) for rank in range(job.ranks)]
        if all(fits(row, limit, job.kept) for row, limit in zip(rows, job.limits, strict=True)):
            played = _play(job, rows)
            if played is not None:
                yield played


def _pattern(job: _Job, rank: int, hops: float, delays: bool) -> Row:
    """Order a rank as ``schedules`` does: ``hops`` forwards more at first for each rank behind it, W later by as much
    for each before it.

    1 hop without delays is 1F1B with split backwards, with them ZB-H1; 2 hops with delays are ZB-H2.
    """
    each: I64 = np.arange(job.microbatches)
    warmup = min(job.microbatches, int(hops * (job.ranks - 1 - rank)))
    turn = np.concatenate([3 * (each - warmup), 3 * each + 1, 3 * (each + int(hops * rank) * delays) + 2])
    phases = np.repeat(np.array([F, I, W], np.uint8), job.microbatches)
    return bytearray(phases[np.argsort(turn, kind="stable")])


def _by_policies(job: _Job) -> Iterator[_Played]:
    """Play what policies make: from each beginning one choice after the other is changed to the best, as long as that
    helps.
    """
    left = max(_FEWEST_POLICIES, min(_MOST_POLICIES, _MOST_PLAYED // job.actions))
    for by_turns, ahead in ((False, 99.0), (True, 99.0), (True, 1.0), (False, 1.0)):
        best, known = _Policy(turns=by_turns, ahead=ahead), set()
        value, before = None, None
        while before is None or best != before:
            before = best
            for name, values in _CHOICES.items():
                for choice in values:
                    policy = replace(best, **{name: choice})
                    if policy in known or not left:
                        continue
                    left -= 1
                    played = _play(job, _Greedy(job, policy).rows())
                    assert played is not None
                    yield played
                    known.add(policy)
                    if value is None or played.value < value:
                        best, value = policy, played.value


class _Greedy:
    """Ranks that decide one after the other in the order of time; of several at a moment the last rank first."""

    def __init__(self, job: _Job, policy: _Policy):
        p, many = job.ranks, job.microbatches
        self._job, self._turns, self._kept = job, policy.turns, max(policy.kept, job.kept)
        self._most = [min(many, int(1 + policy.ahead * (p - 1 - rank))) for rank in range(p)]
        self._cost, self._down, self._up = (
            column.tolist() for column in (job.times.duration_ns, job.times.forward_ns, job.times.backward_ns)
        )
        self._late = [
            ((policy.warm * f, policy.steady * f), (policy.fill * w, policy.drain * w))
            for f, w in zip(self._cost[F], self._cost[W], strict=True)
        ]
        self._done = [[0] * 4 for _ in range(p)]  # by rank and phase
        self._there: dict[int, list[list[int]]] = {
            F: [[0] * many, *([] for _ in range(p - 1))],
            I: [[] for _ in range(p)],
        }
        self._last = [F] * p
        self._rows = [bytearray() for _ in range(p)]

    def rows(self) -> list[Row]:
        """Return the order of each rank."""
        p, rows = self._job.ranks, self._rows
        clock = [0] * p
        awake = [(0, -rank) for rank in range(p - 1, -1, -1)]
        heapq.heapify(awake)
        while awake:
            now, at = heapq.heappop(awake)
            rank = -at
            if now < clock[rank] or self._done[rank][W] == self._job.microbatches:
                continue
            phase, later = self._next(rank, now)
            if phase < 0:
                if now < later < _NEVER:
                    heapq.heappush(awake, (later, at))
                continue
            rows[rank].append(phase)
            clock[rank] = now + self._cost[phase][rank]
            self._done[rank][phase] += 1
            heapq.heappush(awake, (clock[rank], at))
            if phase != W:
                self._last[rank] = phase
                self._deliver(rank, phase, clock[rank], awake)
        return rows

    def _deliver(self, rank: int, phase: int, end: int, awake: list[tuple[int, int]]) -> None:
        """Note when what has been computed is where it is needed, and wake that rank then."""
        to = rank + 1 if phase == F else rank - 1
        if phase == F and to == self._job.ranks:
            self._there[I][rank].append(end)
        elif to >= 0:
            end += self._down[rank] if phase == F else self._up[to]
            self._there[phase][to].append(end)
            heapq.heappush(awake, (end, -to))

    def _next(self, rank: int, now: int) -> tuple[int, int]:
        """Return the phase to run now; or -1, and when to ask again."""
        forwards, _, inputs, weights = self._done[rank]
        job, pending, flying = self._job, inputs > weights, forwards - inputs
        more = forwards < job.microbatches
        stored = flying + self._kept * (inputs - weights) + 1
        room = more and flying < self._most[rank] and stored <= job.limits[rank] + _ROUNDING
        came = self._there[F][rank]
        forward = came[forwards] if more and forwards < len(came) else _NEVER
        came = self._there[I][rank]
        back = came[inputs] if flying and inputs < len(came) else _NEVER
        if self._turns and inputs and more and flying:
            if self._last[rank] == F:
                room = False
            elif room and forward < _NEVER:
                back = _NEVER
        late, filled = self._late[rank]
        if back <= now:
            return I, now
        if room and forward <= now and now + self._cost[F][rank] <= back + late[inputs > 0]:
            return F, now
        until = min(back, forward) if room else back
        end = now + self._cost[W][rank] - filled[not more]
        if pending and end <= (back if forward <= now and not room else until):
            return W, now
        return -1, until


def _play(job: _Job, rows: list[Row]) -> _Played | None:
    """Play rows as ``simulate`` does; None where ranks wait for each other for ever. Linear in the actions."""
    p, many = job.ranks, 3 * job.microbatches
    phases, of_rank = np.frombuffer(b"".join(rows), np.uint8).reshape(p, many), np.arange(p)[:, None]
    source, lag_ns, cost_ns = nowhere(p * many), np.zeros(p * many, np.int64), job.times.duration_ns[phases, of_rank]
    made = {phase: np.flatnonzero(phases == phase).reshape(p, -1) for phase in (F, I)}
    for phase, to, by, transfer_ns in (
        (F, slice(1, None), slice(-1), job.times.forward_ns),
        (I, slice(-1), slice(1, None), job.times.backward_ns),
    ):
        source[made[phase][to]], lag_ns[made[phase][to]] = made[phase][by], transfer_ns[:, None]
    at, stop = list(range(0, p * many, many)), list(range(many, p * many + 1, many))
    end = run_out(at, stop, source.tolist(), lag_ns.tolist(), cost_ns.ravel().tolist(), [0] * len(source))
    if at != stop:
        return None
    end_ns = np.array(end).reshape(p, many)
    start_ns = end_ns - cost_ns
    awaited = start_ns > np.append(0 * of_rank, end_ns[:, :-1], axis=1)
    return _Played(
        rows,
        (end_ns[:, -1] - start_ns[:, 0]).tolist(),
        [bytearray(row.tobytes()) for row in awaited],
        {phase: (places - many * of_rank).tolist() for phase, places in made.items()},
    )


def _moved(job: _Job, rows: list[Row], plays: int) -> tuple[_Played, int]:
    """Move actions of the longest window's path as long as that helps, and ``plays`` are left; return how many are
    left.
    """
    played, better = None, _play(job, rows)
    while better is not None:
        played, better = better, None
        for rank, take, put in _moves(played):
            row = played.rows[rank].copy()
            row.insert(put, row.pop(take))
            if not plays or not fits(row, job.limits[rank], job.kept):
                continue
            plays -= 1
            tried = _play(job, [*played.rows[:rank], row, *played.rows[rank + 1 :]])
            if tried is not None and tried.value < played.value:
                better = tried
                break
    assert played is not None
    return played, plays


def _moves(played: _Played) -> list[tuple[int, int, int]]:
    """Return what may shorten the longest window: which action of which rank to take out, and where to put it.

    The window is as long as a path of actions that wait for nothing but each other. It goes from rank to rank; on each
    it is a block of actions one after the other, whose first one waited for another rank, and whose last one another
    rank waited for.
    """
    out: dict[tuple[int, int, int], None] = {}
    for rank, low, high in _blocks(played):
        row = played.rows[rank]
        for i in (high - 1, low, low - 1, high):
            if 0 <= i < len(row) - 1 and row[i] != row[i + 1]:
                out[rank, i, i + 1] = None
        if row[high] != W:
            out |= {(rank, i, high): None for i in range(high - 1, low - 1, -1) if row[i] == W}
        later = next((i for i in range(low + 1, len(row)) if row[i] == W), None)
        if later is not None:
            out[rank, later, low] = None
    return list(out)


def _blocks(played: _Played) -> Iterator[tuple[int, int, int]]:
    """Yield the blocks of the longest window's path, last first: rank, first and last place."""
    rank = played.own_ns.index(max(played.own_ns))
    high = len(played.rows[rank]) - 1
    while True:
        low = max(played.awaited[rank].rfind(1, 0, high + 1), 0)
        yield rank, low, high
        if not played.awaited[rank][low]:
            return
        phase = played.rows[rank][low]
        microbatch = played.made[phase][rank].index(low)
        rank += -1 if phase == F else 1
        high = played.made[phase][rank][microbatch]
