"""Simulated pipelines as Paddle runs them, for tests: orders of phases per rank, and the jobs that come of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.simulator.paddle import Job

TYPES = {"F": "forward", "B": "backward", "I": "backward_b", "W": "backward_w"}
US = 1_000
OPTIMIZER_NS = 500 * US
BETWEEN_STEPS_NS = 50 * US  # shorter than most bubbles


class Op(NamedTuple):
    phase: str
    chunk: int
    microbatch: int


Orders = list[list[Op]]


def gpipe(p: int, m: int) -> Orders:
    return [[Op(phase, 0, k) for phase in "FB" for k in range(m)] for _ in range(p)]


def one_f_one_b(p: int, m: int) -> Orders:
    out = []
    for r in range(p):
        warm = min(m, p - 1 - r)
        steady = [Op(phase, 0, k + warm * (phase == "F")) for k in range(m - warm) for phase in "FB"]
        out.append([Op("F", 0, k) for k in range(warm)] + steady + [Op("B", 0, k) for k in range(m - warm, m)])
    return out


def zb_h1(p: int, m: int) -> Orders:
    """As Paddle's ZBH1 has it: backwards are split only as far as they fill the bubble."""
    out = []
    for r in range(p):
        ops = [Op("F", 0, k) for k in range(p - r)]
        for k in range(r):
            ops += [Op("I", 0, k), Op("F", 0, p - r + k)]
        for k in range(m - p):
            ops += [Op("B", 0, r + k), Op("F", 0, p + k)]
        ops += [Op("B", 0, m - p + r + k) for k in range(p - r - 1)]
        ops += [Op("I", 0, m - 1), Op("W", 0, m - 1)] if r else [Op("B", 0, m - 1)]
        out.append(ops + [Op("W", 0, k) for k in range(r)])
    return out


def interleaved(p: int, m: int, v: int) -> Orders:
    """Megatron's and Paddle's VPP; m a multiple of p."""
    turn = p * v

    def op(phase: str, k: int) -> Op:
        chunk = k % turn // p
        return Op(phase, chunk if phase == "F" else v - 1 - chunk, k // turn * p + k % p)

    out = []
    for r in range(p):
        every = m * v
        warm = every if m == p else min(every, 2 * (p - r - 1) + (v - 1) * p)
        ops = [op("F", k) for k in range(warm)]
        ops += [op(phase, k + warm * (phase == "F")) for k in range(every - warm) for phase in "FB"]
        out.append(ops + [op("B", k) for k in range(every - warm, every)])
    return out


def v_shaped(p: int, m: int) -> Orders:
    """Two chunks a rank, the second from the last rank back to the first; all forwards, then all backwards."""
    steps = (("F", 0), ("F", 1), ("B", 1), ("B", 0))
    return [[Op(phase, chunk, k) for phase, chunk in steps for k in range(m)] for _ in range(p)]


def simulate(
    orders: Orders,
    duration_ns: Callable[[int, Op], int],
    *,
    transfer_ns: int = 0,
    steps: int = 1,
    typed_chunks: bool | None = None,
    v: bool = False,
    optimizer: bool = True,
    lr: bool = False,
) -> list[list[Job]]:
    """Jobs by rank, in the order in which each rank runs them; every job starts as soon as its rank and its input are
    there.
    """
    p, chunks = len(orders), 1 + max(op.chunk for ops in orders for op in ops)
    typed = chunks > 1 if typed_chunks is None else typed_chunks
    out: list[list[Job]] = [[] for _ in orders]
    begin = 0
    for _ in range(steps):
        if lr:
            for jobs in out:
                jobs.append(Job("lr", 0, begin, begin + 10 * US))
            begin += 10 * US
        ended = _step(
            orders, duration_ns, transfer_ns, begin, lambda r, c: c * p + (p - 1 - r if v and c % 2 else r), p * chunks
        )
        for r, ops in enumerate(orders):
            out[r] += [Job(TYPES[op.phase], op.microbatch, *ended[r, op], op.chunk if typed else None) for op in ops]
        end = max(end for _, end in ended.values())
        if optimizer:
            for jobs in out:
                jobs.append(Job("optimizer", 0, end + 20 * US, end + 20 * US + OPTIMIZER_NS))
            end += 20 * US + OPTIMIZER_NS
        begin = end + BETWEEN_STEPS_NS
    return out


def _step(
    orders: Orders,
    duration_ns: Callable[[int, Op], int],
    transfer_ns: int,
    begin: int,
    stage: Callable[[int, int], int],
    stages: int,
) -> dict[tuple[int, Op], tuple[int, int]]:
    done: dict[tuple[str, int, int], int] = {}  # phase, stage, microbatch -> end
    out: dict[tuple[int, Op], tuple[int, int]] = {}
    free, at = [begin] * len(orders), [0] * len(orders)
    while len(out) < sum(map(len, orders)):
        before = len(out)
        for r, ops in enumerate(orders):
            while (
                at[r] < len(ops)
                and (ready := _ready(ops[at[r]], stage(r, ops[at[r]].chunk), stages, done, transfer_ns)) is not None
            ):
                op = ops[at[r]]
                start = max(free[r], ready)
                free[r] = start + duration_ns(r, op)
                out[r, op] = (start, free[r])
                done["B" if op.phase == "I" else op.phase, stage(r, op.chunk), op.microbatch] = free[r]
                at[r] += 1
        assert len(out) > before, "the orders wait for each other"
    return out


def _ready(op: Op, stage: int, stages: int, done: dict[tuple[str, int, int], int], transfer_ns: int) -> int | None:
    """When its input is there; None if not yet known."""
    if op.phase == "F":
        return 0 if stage == 0 else _plus(done.get(("F", stage - 1, op.microbatch)), transfer_ns)
    if op.phase == "W":
        return done.get(("B", stage, op.microbatch))
    if stage == stages - 1:
        return done.get(("F", stage, op.microbatch))
    return _plus(done.get(("B", stage + 1, op.microbatch)), transfer_ns)


def _plus(ns: int | None, more: int) -> int | None:
    return None if ns is None else ns + more


def equal_times(forward_us: int = 1000, backward_us: int = 2000) -> Callable[[int, Op], int]:
    """Every forward and every full backward alike; its halves where it is split."""
    length = {"F": forward_us, "B": backward_us, "I": backward_us // 2, "W": backward_us // 2}
    return lambda _, op: length[op.phase] * US


def copies(
    jobs: Sequence[Sequence[Job]], times: int, late_ns: Callable[[int, int], int] = lambda w, k: 0
) -> list[list[Job]]:
    """Each worker ``times`` times, one after the other; the k-th copy of worker w later by ``late_ns(w, k)``."""
    out = []
    for worker, mine in enumerate(jobs):
        for k in range(times):
            late = late_ns(worker, k)
            out.append([Job(j.type, j.microbatch, j.start_ns + late, j.end_ns + late, j.chunk) for j in mine])
    return out
