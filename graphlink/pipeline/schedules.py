"""In which order each rank of a pipeline runs its forwards and backwards, by schedule, and when, if it waits for nothing
but its inputs. Communication is in no order.

Six of the eight are one pattern. A rank has a sequence of forwards and one of backwards; it warms up with some
forwards, then takes one forward and one backward by turns until the forwards are used up, then the rest of the
backwards. Where the backward is split, the weight gradient of a backward comes ``delay`` backwards later. They differ
in the sequences (chunks), in the warm-up and in the delay. In the V-shaped ones (ZB-V, DualPipe) a rank's second chunk
runs from the last rank to the first.

Sources
  GPipe, 1F1B    Huang et al. 2019 (arXiv 1811.06965); Narayanan et al. 2021 (arXiv 2104.04473), as Megatron-LM orders them.
  interleaved    arXiv 2104.04473, section 2.2; Megatron-LM ``forward_backward_pipelining_with_interleaving``.
  ZB-H1, ZB-H2   Qi et al. 2023 (arXiv 2401.10241), section 3, handcrafted.
  interleaved-ZB ``torch.distributed.pipelining.ScheduleInterleavedZeroBubble``: ZB-H1 over chunks. With one chunk it is
  ZB-H1. ZB-V           arXiv 2401.10241, section 6, for F = I = W; the handcrafted order of
                 github.com/sail-sg/zero-bubble-pipeline-parallelism, which
                 ``torch.distributed.pipelining.ScheduleZBVZeroBubble`` runs too. For other times that project searches
                 an order, which is not this one.
  DualPipe       DeepSeek-AI 2024 (arXiv 2412.19437), section 3.2.1, as github.com/deepseek-ai/DualPipe (``dualpipe/dualpipe.py``)
                 steps through it.

A step is simulated exactly, in ns. What an action waits for, besides the one before it on its rank:
  F      the F of the virtual stage before, same microbatch, and its transfer
  B, I   the B or I of the virtual stage after, same microbatch, and its transfer; its own F
  W      its own I
An action that is in no order is waited for by none: so the microbatches of DualPipe's second direction enter at virtual
stage p. Two that are paired (``Order.paired``) wait together and are done together. A transfer takes time between two
ranks and occupies neither; between two virtual stages of one rank it takes none.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I64, NOWHERE, U8, Bool
from graphlink.pipeline.records import Pass
from graphlink.tables import concat, nowhere, spread, turns

SCHEDULES: Final = (
    "GPipe",
    "1F1B",
    "interleaved",
    "ZB-H1",
    "ZB-H2",
    "ZB-V",
    "interleaved-ZB",
    "DualPipe",
)  # names of the contract
UNKNOWN: Final = "unknown"
V_SHAPED: Final = ("ZB-V", "DualPipe")
SPLIT: Final = ("ZB-H1", "ZB-H2", "ZB-V", "interleaved-ZB", "DualPipe")  # run I and W apart (DualPipe: some)
ONE_CHUNK: Final = ("GPipe", "1F1B", "ZB-H1", "ZB-H2")
AUTO: Final = "auto"
# searched for given times (``search``), so that no recording is recognised as one: the memory of activations of each,
# of 1F1B's most
SEARCHED: Final = {"ZB-1p": 1.0, "ZB-2p": 2.0, AUTO: 1.0}
F, B, I, W = Pass.F, Pass.B, Pass.I, Pass.W


@dataclass(frozen=True, slots=True)
class Order:
    """The actions of one rank in a step, one entry per action, in execution order. ``stage`` is the virtual stage.

    ``paired``: this forward and the backward after it run at the same time (DualPipe): both inputs are there when the
    pair starts, both outputs leave when it ends.
    """

    phase: U8  # Pass
    stage: I64
    microbatch: I64
    paired: Bool

    def __len__(self) -> int:
        return len(self.phase)


def named(schedule: str) -> str:
    """Return the contract's name of a schedule, or one of ``SEARCHED``, in whatever case it is given. Raises ValueError
    for others.
    """
    for name in (*SCHEDULES, *SEARCHED):
        if name.lower() == schedule.strip().lower():
            return name
    raise ValueError(f"there is no schedule {schedule!r}; there are {', '.join((*SCHEDULES, *SEARCHED))}")


def splits(schedule: str) -> bool:
    """Tell whether a schedule runs I and W apart."""
    return schedule in SPLIT or schedule in SEARCHED


def stage_of(schedule: str, rank: int, chunk: int, stages: int) -> int:
    """Return the virtual stage that ``rank`` of ``stages`` runs as its ``chunk``: chunk * stages + rank, and there and
    back where V-shaped.

    ZB-V: chunk 1 goes from the last rank to the first, so the loss is on rank 0. DualPipe: two pipelines that have
    nothing to do with each other, of which the second (virtual stages ``stages`` and up, chunk 1) begins on the last
    rank and ends on the first; its virtual stage ``stages + k`` has the same layers as stage k.
    """
    return chunk * stages + (stages - 1 - rank if schedule in V_SHAPED and chunk % 2 else rank)


def default_chunks(schedule: str, chunks: int) -> int:
    """Return how many chunks ``schedule`` runs a rank, if there is no choice; else ``chunks``, but at least 2."""
    if schedule in ONE_CHUNK or schedule in SEARCHED:
        return 1
    return 2 if schedule in V_SHAPED else max(chunks, 2)


def orders(schedule: str, stages: int, microbatches: int, chunks: int = 1) -> tuple[Order, ...]:
    """Return one order per rank, 0 .. ``stages`` - 1. Linear in the actions, numpy where it counts.

    ``schedule`` is a name of the contract (exactly so written); ``stages`` counts pipeline ranks, ``microbatches``
    those of a step (DualPipe: of both directions; 0 .. m/2 - 1 enter on the first rank, the others on the last).

    Raises ValueError, in words for the user, where the schedule does not exist for these numbers.
    """
    _check(schedule, stages, microbatches, chunks)
    if schedule in V_SHAPED:
        make = _zb_v if schedule == "ZB-V" else _dualpipe
        return tuple(make(rank, stages, microbatches) for rank in range(stages))
    return _turns(schedule, stages, microbatches, chunks)


def variants(schedule: str, stages: int, microbatches: int, chunks: int) -> Iterator[tuple[Order, ...]]:
    """Yield every order that is run under a schedule's name, ``orders`` first; none where the schedule does not exist
    for these numbers.

    GPipe: backwards last microbatch first (as its paper draws it). interleaved: all forwards first where microbatches =
    stages (Megatron-LM until 2024); groups of more than ``stages`` microbatches where these are no multiple (torch,
    which asks that the number of whole groups divides them).
    """
    try:
        yield orders(schedule, stages, microbatches, chunks)
    except ValueError:
        if schedule == "interleaved" and chunks > 1 and _group(stages, microbatches):
            yield _turns(schedule, stages, microbatches, chunks, group=_group(stages, microbatches))
        return
    if schedule == "GPipe":
        yield _turns(schedule, stages, microbatches, chunks, last_first=True)
    if schedule == "interleaved" and microbatches == stages:
        yield _turns(schedule, stages, microbatches, chunks, all_first=True)


def _group(stages: int, microbatches: int) -> int:
    """Return the microbatches that a chunk runs before the next one takes over (torch's rounds); 0 where they do not
    come out even.
    """
    rounds = max(1, microbatches // stages)
    return 0 if microbatches % rounds else microbatches // rounds


def _check(schedule: str, stages: int, microbatches: int, chunks: int) -> None:
    if schedule not in SCHEDULES:
        raise ValueError(f"there is no schedule {schedule!r}; there are {', '.join(SCHEDULES)}")
    if min(stages, microbatches, chunks) < 1:
        raise ValueError(
            f"{schedule} needs at least one stage, microbatch and chunk, not {stages}, {microbatches} and {chunks}"
        )
    if schedule in ONE_CHUNK and chunks != 1:
        raise ValueError(f"{schedule} has one chunk a rank, not {chunks}")
    if schedule in V_SHAPED and chunks != 2:
        raise ValueError(f"{schedule} has two chunks a rank, not {chunks}")
    if schedule == "interleaved" and chunks > 1 and microbatches % stages:
        raise ValueError(f"interleaved needs a multiple of its {stages} stages as microbatches, not {microbatches}")
    if schedule == "interleaved-ZB" and not _group(stages, microbatches):
        rounds = max(1, microbatches // stages)
        raise ValueError(
            f"interleaved-ZB on {stages} stages makes {rounds} rounds, which do not divide {microbatches} microbatches"
        )
    if schedule == "DualPipe" and (stages % 2 or microbatches % 2 or microbatches < 2 * stages):
        raise ValueError(
            f"DualPipe needs an even number of stages, and an even number of microbatches that is at least twice that,"
            f" not {stages} and {microbatches}"
        )


def _turns(
    schedule: str,
    stages: int,
    microbatches: int,
    chunks: int,
    *,
    group: int = 0,
    last_first: bool = False,
    all_first: bool = False,
) -> tuple[Order, ...]:
    """Order all ranks: warm-up, one forward and one backward by turns, the rest of the backwards.

    ``group``: so many microbatches go through all chunks, then the next ones.
    """
    group = group or (_group(stages, microbatches) if schedule == "interleaved-ZB" else stages)
    each = np.arange(microbatches * chunks)
    chunk, microbatch = each // group % chunks, each // (group * chunks) * group + each % group
    back_chunk, back = chunks - 1 - chunk, microbatch
    if last_first:
        back_chunk, back = back_chunk[::-1], back[::-1]
    phases = [Pass.F, Pass.I, Pass.W] if schedule in SPLIT else [Pass.F, Pass.B]
    hops = 2 if schedule == "ZB-H2" or (schedule == "interleaved" and chunks > 1) else 1
    out = []
    for rank in range(stages):
        warmup = min(len(each), hops * (stages - 1 - rank) + (chunks - 1) * group)  # forwards before the first pair
        if schedule == "GPipe" or all_first:
            warmup = len(each)
        delay = 2 * rank if schedule == "ZB-H2" else rank  # input gradients ahead of a weight gradient, besides its own
        turn = [each - warmup, each, each + delay][
            : len(phases)
        ]  # in turn 0, 1, ... a rank runs one of each, those that there are
        order = np.argsort(np.concatenate([3 * at + k for k, at in enumerate(turn)]), kind="stable")
        made = Order(
            phase=np.repeat(np.array(phases, np.uint8), len(each))[order],
            stage=np.concatenate([rank + stages * chunk, *[rank + stages * back_chunk] * (len(phases) - 1)])[order],
            microbatch=np.concatenate([microbatch, *[back] * (len(phases) - 1)])[order],
            paired=np.zeros(len(order), np.bool_),
        )
        out.append(made)
    return tuple(out)


def _zb_v(rank: int, stages: int, microbatches: int) -> Order:
    """Order a rank by zero-bubble V: no more activations than 1F1B, no idle time inside a rank's own window if F = I =
    W and m >= 2p - 1.

    With fewer microbatches it is the order for 2p - 1 less those that do not exist.
    """
    behind, many = stages - rank, max(microbatches, 2 * stages - 1)
    down, up = [(F, 0), (I, 0), (W, 0)], [(F, 1), (I, 1), (W, 1)]
    steps = [(F, 0)] * (2 * behind - 1) + [(F, 1), (F, 0)] * rank + up * behind
    steps += (down + up) * (many - 2 * stages + rank + 1) + (down[1:] + up) * (behind - 1)
    steps += [(I, 0), (I, 1)] * rank + [(I, 0), (W, 0)] * behind + [(W, 1)] * rank + [(W, 0)] * rank
    phase, chunk = _columns(steps)
    microbatch = turns(chunk, phase)
    there = microbatch < microbatches
    stage = _stages("ZB-V", rank, stages)[chunk]
    return Order(
        phase[there].astype(np.uint8), stage[there], microbatch[there], np.zeros(np.count_nonzero(there), np.bool_)
    )


def _dualpipe(rank: int, stages: int, microbatches: int) -> Order:
    """Order a rank by DualPipe: each rank has a stage of two pipelines that run towards each other, ``microbatches`` /
    2 through each.

    In an order the forward of a pair stands before its backward.
    """
    half, each = stages // 2, microbatches // 2
    inward = min(rank, stages - 1 - rank)
    out = half - 1 - inward
    near = int(rank >= half)  # the pipeline that begins on this side
    far = 1 - near
    steps = [(F, near)] * (2 * out) + [(F, near), (F, far)] * (inward + 1) + [(I, far), (W, far), (F, far)] * out
    alone = len(steps)
    steps += [(F, near), (B, far), (F, far), (B, near)] * (each - stages + inward + 1) + [
        (B, far),
        (F, far),
        (B, near),
    ] * out
    pairs_end = len(steps)
    last = [far, near] * (
        inward + 1
    )  # backwards in turn, of which the second half leave their weight gradients for later
    steps += [(B, chunk) for chunk in last[: inward + 1]] + [(I, chunk) for chunk in last[inward + 1 :]]
    steps += [(W, near), (I, near)] * out + [(W, near)] * (inward + 1)
    phase, chunk = _columns(steps)
    backward = (phase == B) | (phase == I)
    microbatch = np.zeros_like(chunk)
    microbatch[phase == F] = turns(chunk[phase == F])
    microbatch[backward] = turns(chunk[backward])
    # Weight gradients wait in one queue for both pipelines.
    chunk[phase == W], microbatch[phase == W] = chunk[phase == I], microbatch[phase == I]
    at = np.arange(len(phase))
    # The two ranks in the middle leave their first pair apart, which shortens the bubble.
    paired = (phase == F) & (at >= alone + (out == 0)) & (at < pairs_end)
    return Order(phase.astype(np.uint8), _stages("DualPipe", rank, stages)[chunk], microbatch + each * chunk, paired)


def _columns(steps: list[tuple[Pass, int]]) -> tuple[I64, I64]:
    """Return phases and chunks."""
    phase, chunk = np.array(steps, np.int64).reshape(-1, 2).T.copy()
    return phase, chunk


def _stages(schedule: str, rank: int, stages: int) -> I64:
    return np.array([stage_of(schedule, rank, chunk, stages) for chunk in (0, 1)], np.int64)


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
    # what is stored once an action has begun (F) or ended (the others)
    counts = (np.cumsum(order.phase == np.arange(PHASES)[:, None], axis=1) for order in orders)
    return tuple(float((f - b - i + kept * (i - w)).max(initial=0)) for f, b, i, w in counts)


def inputs(orders: Sequence[Order], first: I64, times: ActionTimes) -> tuple[I64, I64]:
    """Return the action of another virtual stage that each action waits for, ``NOWHERE`` for none, and for how long
    after its end.

    Actions are counted over all ranks; ``first`` has where each rank begins, and the end.
    """
    rank = np.repeat(np.arange(len(orders)), np.diff(first))
    actions = concat(*orders)
    stage, microbatch = actions.stage, actions.microbatch
    stages = max(int(stage.max(initial=-1)) + 1, times.stages)
    kind = np.array([0, 1, 1, 2])[actions.phase]  # forward, backward, weight gradient
    # nothing before the first stage and after the last
    where = np.full((3, stages + 2, int(microbatch.max(initial=-1)) + 1), NOWHERE)
    at = np.arange(len(kind))
    where[kind, stage + 1, microbatch] = at
    _refuse(orders, where[kind, stage + 1, microbatch] != at, "twice")
    own = where[(kind == 2).astype(np.int64), stage + 1, microbatch]
    _refuse(
        orders,
        (kind > 0) & ((own == NOWHERE) | (own > at) | (rank[own] != rank)),
        "before what it needs on its own rank",
    )
    producer, lag = nowhere(len(at)), np.zeros(len(at), np.int64)
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
    """Return the end of each action; each is waited for by one at most.

    Before each pair stands a gate that takes no time and waits for what its backward needs.
    """
    paired = concat(*orders).paired
    pairs = np.flatnonzero(paired)
    # what comes of a pair's forward leaves with its backward
    longer = spread(len(cost_ns), pairs, cost_ns[pairs + 1], 0)
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
    end = run_out(at, stop, source, lag, cost, gap)
    for i, to in zip(at, stop, strict=True):
        if i < to:
            late, missing = (_named(orders, int(action[k])) for k in (i, source[i]))
            raise ValueError(f"deadlock: {late} waits for {missing}, which does not run before it")
    out = np.empty(len(cost_ns), np.int64)
    out[action] = end  # a gate stands before its backward, which overwrites it
    return out


def run_out(
    at: list[int], stop: list[int], source: list[int], lag: list[int], cost: list[int], gap: list[int]
) -> list[int]:
    """Return the end of each action, -1 of one that never runs. A rank runs from ``at`` on until an input (``source``)
    is missing, at most to ``stop``; who makes that wakes it. ``at`` becomes where each rank got to.
    """
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
    return end
