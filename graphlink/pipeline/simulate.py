"""When each action of a pipeline starts and ends, if each rank keeps its order and waits for nothing but its inputs. Exact, in ns.

What an action waits for, beside the one before it on its rank:
  F      the F of the virtual stage before, same microbatch, and its transfer
  B, I   the B or I of the virtual stage after, same microbatch, and its transfer; its own F
  W      its own I
An action that is in no order is waited for by none: so the microbatches of DualPipe's second direction enter at virtual stage p.
Two that are paired (``Order.paired``) wait together and are done together.
A transfer takes time between two ranks and occupies neither; between two virtual stages of one rank it takes none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphlink.model import I64, NOWHERE, Bool
from graphlink.pipeline.records import Phase
from graphlink.pipeline.schedules import Order

PHASES = 4  # F, B, I, W


@dataclass(frozen=True, slots=True)
class Times:
    """What actions and transfers take.

    ``duration_ns``: shape (4, virtual stages), by ``Phase``. ``forward_ns``, ``backward_ns``: shape (virtual stages - 1,), the
    transfer between virtual stages k and k + 1, of activations and of their gradients.
    """

    duration_ns: I64
    forward_ns: I64
    backward_ns: I64

    @property
    def stages(self) -> int:
        """Return the number of virtual stages."""
        return int(self.duration_ns.shape[1])


def even_times(stages: int, forward_ns: int, input_ns: int, weight_ns: int, transfer_ns: int = 0) -> Times:
    """Return the same times on all virtual stages (``stages`` of them) and boundaries; B takes I and W together."""
    durations = np.array([forward_ns, input_ns + weight_ns, input_ns, weight_ns], np.int64)
    transfer = np.full(max(stages - 1, 0), transfer_ns, np.int64)
    return Times(np.repeat(durations[:, None], stages, axis=1), transfer, transfer)


@dataclass(frozen=True, slots=True)
class Timed:
    """Start and end of each action, from 0, parallel to the orders. One array a rank."""

    start_ns: tuple[I64, ...]
    end_ns: tuple[I64, ...]

    @property
    def makespan_ns(self) -> int:
        """Return first start to last end over all ranks."""
        return max(self._last(), default=0) - min(self._first(), default=0)

    @property
    def work_ns(self) -> tuple[int, ...]:
        """Return the sum of the actions of each rank."""
        return tuple(int((end - start).sum()) for start, end in zip(self.start_ns, self.end_ns, strict=True))

    @property
    def own_ns(self) -> tuple[int, ...]:
        """Return the own window of each rank: end of its last action less start of its first."""
        return tuple(int(end[-1] - start[0]) if len(end) else 0 for start, end in zip(self.start_ns, self.end_ns, strict=True))

    @property
    def bubble_ns(self) -> int:
        """Return all idle time inside the makespan, over all ranks."""
        return len(self.start_ns) * self.makespan_ns - sum(self.work_ns)

    def _first(self) -> list[int]:
        return [int(start[0]) for start in self.start_ns if len(start)]

    def _last(self) -> list[int]:
        return [int(end[-1]) for end in self.end_ns if len(end)]


def simulate(orders: Sequence[Order], times: Times, each_ns: Sequence[I64] | None = None) -> Timed:
    """Play ``orders`` (one a rank), all ranks from 0.

    Args:
        orders: each action at most once; every virtual stage on one rank.
        times: of every phase on every virtual stage that occurs.
        each_ns: what each action takes, parallel to ``orders``, instead of ``times.duration_ns``.

    Linear in the actions. Raises ValueError, naming the action, where the orders cannot be played: an action twice, before its own
    forward, or never as ranks wait for each other.
    """
    plan = _Plan.of(orders, times)
    cost = np.concatenate(each_ns) if each_ns is not None else times.duration_ns[plan.phase, plan.stage]
    end = _played(plan, cost)
    bounds = plan.first[1:-1]
    return Timed(tuple(np.split(end - cost, bounds)), tuple(np.split(end, bounds)))


def peak_activations(orders: Sequence[Order]) -> tuple[int, ...]:
    """Return the most activations that each rank keeps at a time, in activations of one virtual stage for one microbatch.

    A forward adds one. It stays until the backward (B) has ended or, where the backward is split, the weight gradient (W): what an
    input gradient frees of it is not counted.
    """
    return tuple(int(np.cumsum(_HELD[order.phase]).max(initial=0)) for order in orders)


_HELD = np.array([1, -1, 0, -1], np.int64)  # by phase


def spoken(order: Order, at: int) -> str:
    """Name an action."""
    return f"{Phase(order.phase[at]).name} of stage {order.stage[at]}, microbatch {order.microbatch[at]}"


@dataclass(frozen=True, slots=True)
class _Plan:
    """All actions one after the other, rank by rank; ``first`` has where each rank begins, and the end."""

    orders: Sequence[Order]
    first: I64
    phase: I64
    stage: I64
    producer: I64  # the action of another virtual stage that is waited for, NOWHERE for none
    lag_ns: I64  # after its end

    @staticmethod
    def of(orders: Sequence[Order], times: Times) -> _Plan:
        first = np.cumsum([0, *map(len, orders)])
        rank = np.repeat(np.arange(len(orders)), np.diff(first))
        phase = np.concatenate([order.phase for order in orders]).astype(np.int64)
        stage = np.concatenate([order.stage for order in orders])
        microbatch = np.concatenate([order.microbatch for order in orders])
        stages = max(int(stage.max(initial=-1)) + 1, times.stages)
        many = int(microbatch.max(initial=-1)) + 1
        kind = np.array([0, 1, 1, 2])[phase]  # forward, backward, weight gradient
        where = np.full((3, stages + 2, many), NOWHERE)  # a row of nothing before the first stage and after the last
        at = np.arange(len(phase))
        where[kind, stage + 1, microbatch] = at
        plan = _Plan(orders, first, phase, stage, np.full(len(at), NOWHERE), np.zeros(len(at), np.int64))
        plan._refuse(where[kind, stage + 1, microbatch] != at, "twice")
        own = np.where(kind == 2, where[1, stage + 1, microbatch], where[0, stage + 1, microbatch])
        late = (kind > 0) & ((own == NOWHERE) | (own > at) | (rank[own] != rank))
        plan._refuse(late, "before what it needs on its own rank")
        for k, step, transfer in ((0, -1, times.forward_ns), (1, 1, times.backward_ns)):
            mine = np.flatnonzero(kind == k)
            producer = where[k, stage[mine] + 1 + step, microbatch[mine]]
            plan.producer[mine] = producer
            apart = mine[(producer != NOWHERE) & (rank[producer] != rank[mine])]
            plan.lag_ns[apart] = transfer[stage[apart] + min(step, 0)]
        return plan

    def _refuse(self, wrong: Bool, why: str) -> None:
        if wrong.any():
            raise ValueError(f"{self.named(int(np.argmax(wrong)))} is {why}")

    def named(self, action: int) -> str:
        rank = int(np.searchsorted(self.first, action, side="right")) - 1
        position = action - int(self.first[rank])
        return f"rank {rank}, action {position}: {spoken(self.orders[rank], position)}"


@dataclass(frozen=True, slots=True)
class _Steps:
    """The actions of a plan as played: before each pair a gate that takes no time and waits for what its backward needs."""

    first: I64
    action: I64  # of the plan; of a gate, the backward
    producer: I64  # a step
    lag_ns: I64
    cost_ns: I64

    @staticmethod
    def of(plan: _Plan, cost_ns: I64) -> _Steps:
        paired = np.concatenate([order.paired for order in plan.orders])
        pairs = np.flatnonzero(paired)
        longer = np.zeros(len(cost_ns), np.int64)  # what comes of a pair's forward leaves with its backward
        longer[pairs] = cost_ns[pairs + 1]
        waits = plan.producer != NOWHERE
        lag = plan.lag_ns + np.where(waits, longer[plan.producer], 0)
        moved = np.arange(len(cost_ns)) + np.cumsum(paired)
        producer = np.where(waits, moved[plan.producer], NOWHERE)
        gate_producer, gate_lag = producer[pairs + 1], lag[pairs + 1]
        producer[pairs + 1] = NOWHERE
        return _Steps(
            first=plan.first + np.searchsorted(pairs, plan.first),
            action=np.insert(np.arange(len(cost_ns)), pairs, pairs + 1),
            producer=np.insert(producer, pairs, gate_producer),
            lag_ns=np.insert(lag, pairs, gate_lag),
            cost_ns=np.insert(cost_ns, pairs, 0),
        )

    def ends(self, ends: list[int], count: int) -> I64:
        """Return the ends of the plan's actions: a gate stands before its backward, which overwrites it."""
        out = np.empty(count, np.int64)
        out[self.action] = ends
        return out


def _played(plan: _Plan, cost_ns: I64) -> I64:
    """End of each action. A rank runs on until an input is missing; who makes that wakes it. Each is waited for by one at most."""
    steps = _Steps.of(plan, cost_ns)
    producer, lag, cost = steps.producer.tolist(), steps.lag_ns.tolist(), steps.cost_ns.tolist()
    at, stop = steps.first[:-1].tolist(), steps.first[1:].tolist()
    end = [-1] * len(cost)
    clock = [0] * len(at)
    waiter: dict[int, int] = {}
    awake = list(range(len(at)))[::-1]
    while awake:
        rank = awake.pop()
        now = clock[rank]
        for i in range(at[rank], stop[rank]):
            source = producer[i]
            if source >= 0:
                came = end[source]
                if came < 0:
                    waiter[source] = rank
                    at[rank] = i
                    break
                came += lag[i]
                if came > now:
                    now = came
            now += cost[i]
            end[i] = now
            if i in waiter:
                awake.append(waiter.pop(i))
        else:
            at[rank] = stop[rank]
        clock[rank] = now
    for i, to in zip(at, stop, strict=True):
        if i < to:
            waits, source = (plan.named(int(steps.action[k])) for k in (i, producer[i]))
            raise ValueError(f"deadlock: {waits} waits for {source}, which does not run before it")
    return steps.ends(end, len(cost_ns))
