"""Simulate when each action of a pipeline starts and ends, if each rank keeps its order and waits for nothing but its
inputs. Exact, in ns.

What an action waits for, besides the one before it on its rank:
  F      the F of the virtual stage before, same microbatch, and its transfer
  B, I   the B or I of the virtual stage after, same microbatch, and its transfer; its own F
  W      its own I
An action that is in no order is waited for by none: so the microbatches of DualPipe's second direction enter at virtual
stage p. Two that are paired (``Order.paired``) wait together and are done together. A transfer takes time between two
ranks and occupies neither; between two virtual stages of one rank it takes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphlink.model import I64, NOWHERE, U8, Bool
from graphlink.pipeline.records import Pass
from graphlink.pipeline.schedules import Order
from graphlink.tables import spread

PHASES = 4  # F, B, I, W


@dataclass(frozen=True, slots=True)
class ActionTimes:
    """The durations of actions and transfers.

    ``duration_ns``: shape (4, virtual stages), by ``Pass``. ``forward_ns``, ``backward_ns``: shape (virtual stages -
    1,), the transfer between virtual stages k and k + 1, of activations and of their gradients.
    """

    duration_ns: I64
    forward_ns: I64
    backward_ns: I64

    @property
    def stages(self) -> int:
        """Return the number of virtual stages."""
        return int(self.duration_ns.shape[1])


@dataclass(frozen=True, slots=True)
class Timed:
    """Start and end of each action, from 0, parallel to the orders. One array a rank."""

    start_ns: tuple[I64, ...]
    end_ns: tuple[I64, ...]

    @property
    def makespan_ns(self) -> int:
        """Return first start to last end over all ranks."""
        first, last = (
            [int(one[at]) for one in column if len(one)] for column, at in ((self.start_ns, 0), (self.end_ns, -1))
        )
        return max(last, default=0) - min(first, default=0)

    @property
    def work_ns(self) -> tuple[int, ...]:
        """Return the sum of the actions of each rank."""
        return tuple(int((end - start).sum()) for start, end in zip(self.start_ns, self.end_ns, strict=True))

    @property
    def own_ns(self) -> tuple[int, ...]:
        """Return the own window of each rank: end of its last action less start of its first."""
        return tuple(
            int(end[-1] - start[0]) if len(end) else 0 for start, end in zip(self.start_ns, self.end_ns, strict=True)
        )

    @property
    def bubble_ns(self) -> int:
        """Return all idle time inside the makespan, over all ranks."""
        return len(self.start_ns) * self.makespan_ns - sum(self.work_ns)


def simulate(
    orders: Sequence[Order],
    times: ActionTimes,
    each_ns: Sequence[I64] | None = None,
    gaps_ns: Sequence[I64] | None = None,
) -> Timed:
    """Play ``orders`` (one a rank), all ranks from 0.

    Args:
        orders: each action at most once; every virtual stage on one rank.
        times: of every phase on every virtual stage that occurs.
        each_ns: what each action takes, parallel to ``orders``, instead of ``times.duration_ns``.
        gaps_ns: how long after each action its rank is not ready for the next one, parallel to ``orders``; not at all
            unless given. Between the two of a pair it counts as 0.

    Linear in the actions. Raises ValueError, naming the action, where the orders cannot be played: an action twice,
    before its own forward, or never as ranks wait for each other.
    """
    first = np.cumsum([0, *map(len, orders)])
    cost = np.concatenate(
        each_ns if each_ns is not None else [times.duration_ns[order.phase, order.stage] for order in orders]
    )
    gap = np.zeros_like(cost) if gaps_ns is None else np.concatenate(gaps_ns)
    end = _played(orders, first, *inputs(orders, first, times), cost, gap)
    return Timed(tuple(np.split(end - cost, first[1:-1])), tuple(np.split(end, first[1:-1])))


def peak_activations(orders: Sequence[Order], kept: float = 1.0) -> tuple[float, ...]:
    """Return the most activations that each rank keeps at a time, in activations of one virtual stage for one
    microbatch.

    A forward adds one. It stays until the backward (B) has ended. Where the backward is split, ``kept`` of it stay
    until the weight gradient (W) has ended, the rest until the input gradient (I) has; unless given, all of it.
    """
    return tuple(_peak(order.phase, kept) for order in orders)


def _peak(phase: U8, kept: float) -> float:
    """Return the most that is stored once an action has begun (F) or ended (the others)."""
    forward, full, back, weight = np.cumsum(phase == np.arange(PHASES)[:, None], axis=1)
    return float((forward - full - back + kept * (back - weight)).max(initial=0))


def inputs(orders: Sequence[Order], first: I64, times: ActionTimes) -> tuple[I64, I64]:
    """Return the action of another virtual stage that each action waits for, ``NOWHERE`` for none, and for how long
    after its end.

    Actions are counted over all ranks; ``first`` has where each rank begins, and the end.
    """
    rank = np.repeat(np.arange(len(orders)), np.diff(first))
    phase = np.concatenate([order.phase for order in orders])
    stage = np.concatenate([order.stage for order in orders])
    microbatch = np.concatenate([order.microbatch for order in orders])
    stages = max(int(stage.max(initial=-1)) + 1, times.stages)
    kind = np.array([0, 1, 1, 2])[phase]  # forward, backward, weight gradient
    where = np.full(
        (3, stages + 2, int(microbatch.max(initial=-1)) + 1), NOWHERE
    )  # nothing before the first stage and after the last
    at = np.arange(len(phase))
    where[kind, stage + 1, microbatch] = at
    _refuse(orders, where[kind, stage + 1, microbatch] != at, "twice")
    own = np.where(kind == 2, where[1, stage + 1, microbatch], where[0, stage + 1, microbatch])
    _refuse(
        orders,
        (kind > 0) & ((own == NOWHERE) | (own > at) | (rank[own] != rank)),
        "before what it needs on its own rank",
    )
    producer, lag = np.full(len(at), NOWHERE), np.zeros(len(at), np.int64)
    for k, step, transfer in ((0, -1, times.forward_ns), (1, 1, times.backward_ns)):
        mine = np.flatnonzero(kind == k)
        producer[mine] = where[k, stage[mine] + 1 + step, microbatch[mine]]
        apart = mine[(producer[mine] != NOWHERE) & (rank[producer[mine]] != rank[mine])]
        lag[apart] = transfer[stage[apart] + min(step, 0)]
    return producer, lag


def _refuse(orders: Sequence[Order], wrong: Bool, why: str) -> None:
    if wrong.any():
        raise ValueError(f"{_named(orders, int(np.argmax(wrong)))} is {why}")


def _named(orders: Sequence[Order], action: int) -> str:
    first = np.cumsum([0, *map(len, orders)])
    rank = int(np.searchsorted(first, action, side="right")) - 1
    at, order = action - int(first[rank]), orders[rank]
    return (
        f"rank {rank}, action {at}: {Pass(order.phase[at]).name} of stage {order.stage[at]}, microbatch "
        f"{order.microbatch[at]}"
    )


def _played(orders: Sequence[Order], first: I64, producer: I64, lag_ns: I64, cost_ns: I64, gap_ns: I64) -> I64:
    """Return the end of each action. A rank runs on until an input is missing; who makes that wakes it. Each is waited
    for by one at most.

    Before each pair stands a gate that takes no time and waits for what its backward needs.
    """
    paired = np.concatenate([order.paired for order in orders])
    pairs = np.flatnonzero(paired)
    longer = spread(len(cost_ns), pairs, cost_ns[pairs + 1], 0)  # what a pair's forward makes leaves with its backward
    waits = producer != NOWHERE
    lag_ns = lag_ns + np.where(waits, longer[producer], 0)
    moved = np.where(waits, (np.arange(len(cost_ns)) + np.cumsum(paired))[producer], NOWHERE)
    gates = moved[pairs + 1]
    moved[pairs + 1] = NOWHERE
    action = np.insert(np.arange(len(cost_ns)), pairs, pairs + 1)  # of a gate, the backward
    source, lag = np.insert(moved, pairs, gates).tolist(), np.insert(lag_ns, pairs, lag_ns[pairs + 1]).tolist()
    cost, gap = (np.insert(column, pairs, 0).tolist() for column in (cost_ns, np.where(paired, 0, gap_ns)))
    bounds = first + np.searchsorted(pairs, first)
    at, stop = bounds[:-1].tolist(), bounds[1:].tolist()
    end, clock = [-1] * len(cost), [0] * len(at)
    waiter: dict[int, int] = {}
    awake = list(range(len(at)))[::-1]
    while awake:
        rank = awake.pop()
        now = clock[rank]
        for i in range(at[rank], stop[rank]):
            if source[i] >= 0:
                came = end[source[i]]
                if came < 0:
                    waiter[source[i]] = rank
                    at[rank] = i
                    break
                if came + lag[i] > now:
                    now = came + lag[i]
            now += cost[i]
            end[i] = now
            now += gap[i]
            if i in waiter:
                awake.append(waiter.pop(i))
        else:
            at[rank] = stop[rank]
        clock[rank] = now
    for i, to in zip(at, stop, strict=True):
        if i < to:
            late, missing = (_named(orders, int(action[k])) for k in (i, source[i]))
            raise ValueError(f"deadlock: {late} waits for {missing}, which does not run before it")
    out = np.empty(len(cost_ns), np.int64)
    out[action] = end  # a gate stands before its backward, which overwrites it
    return out
