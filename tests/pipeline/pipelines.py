"""Pipelines by hand: orders of phases played in time, and the records that analysis would make of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import structs

from graphlink.causes import Cause
from graphlink.model import NOWHERE
from graphlink.pipeline.records import (
    Delays,
    Idle,
    KeyedSpans,
    PartsNs,
    Pass,
    Ranges,
    Rates,
    RunPipeline,
    Spans,
    StageRun,
    StepEntry,
    Theory,
)
from tests.comm_ops import comm_ops

EPOCH_NS = 1_700_000_000_000_000_000
NONE = np.zeros(0, np.int64)
BYTES, CODES = NONE.astype(np.uint8), NONE.astype(np.int32)


@dataclass(frozen=True)
class Box:
    """A range of one rank."""

    phase: Pass
    stage: int
    microbatch: int
    start_ns: int
    end_ns: int
    step: int = 0
    chunk: int = 0
    rule: int = 0


@dataclass(frozen=True)
class Gap:
    start_ns: int
    end_ns: int
    cause: Cause
    evidence: str = ""
    step: int = 0


Todo = tuple[Pass, int, int]  # phase, virtual stage, microbatch


def one_f_one_b(p: int, m: int) -> list[list[Todo]]:
    orders = []
    for r in range(p):
        warm = min(m, p - 1 - r)
        order = [(Pass.F, r, k) for k in range(warm)]
        for k in range(m - warm):
            order += [(Pass.F, r, warm + k), (Pass.B, r, k)]
        orders.append([*order, *((Pass.B, r, k) for k in range(m - warm, m))])
    return orders


def split(p: int, m: int) -> list[list[Todo]]:
    """1F1B with I and W apart, W right behind I."""
    out: list[list[Todo]] = []
    for order in one_f_one_b(p, m):
        out.append([])
        for phase, stage, k in order:
            out[-1] += [(Pass.F, stage, k)] if phase == Pass.F else [(Pass.I, stage, k), (Pass.W, stage, k)]
    return out


def interleaved(p: int, m: int, v: int) -> list[list[Todo]]:
    """Megatron's order: chunks in groups of p microbatches; m a multiple of p."""
    orders = []
    for r in range(p):

        def virtual(k: int, back: bool, r: int = r) -> tuple[int, int]:
            chunk = k % (p * v) // p
            return (v - 1 - chunk if back else chunk) * p + r, k // (p * v) * p + k % p

        n = m * v
        warm = min(n, 2 * (p - r - 1) + (v - 1) * p)
        order: list[Todo] = [(Pass.F, *virtual(k, False)) for k in range(warm)]
        for k in range(n - warm):
            order += [(Pass.F, *virtual(warm + k, False)), (Pass.B, *virtual(k, True))]
        orders.append([*order, *((Pass.B, *virtual(k, True)) for k in range(n - warm, n))])
    return orders


def played(
    orders: Sequence[Sequence[Todo]], ns: dict[Pass, int], transfer_ns: int = 0, start_ns: int = 0, step: int = 0
) -> list[list[Box]]:
    """Each rank works through its order as soon as what it needs is there."""
    p = len(orders)
    last = max(stage for order in orders for _, stage, _ in order)
    ends: dict[Todo, int] = {}
    at, now, out = [0] * p, [start_ns] * p, [list[Box]() for _ in orders]

    def ready(todo: Todo) -> int | None:
        phase, stage, k = todo
        if phase == Pass.F:
            needs = [((Pass.F, stage - 1, k), transfer_ns)] if stage else []
        elif phase == Pass.W:
            needs = [((Pass.I, stage, k), 0)]
        else:
            needs = [((Pass.F, stage, k), 0), *([((phase, stage + 1, k), transfer_ns)] if stage < last else [])]
        if any(need not in ends for need, _ in needs):
            return None
        return max((ends[need] + delay for need, delay in needs), default=start_ns)

    moved = True
    while moved:
        moved = False
        for r, order in enumerate(orders):
            while at[r] < len(order) and (earliest := ready(order[at[r]])) is not None:
                phase, stage, k = todo = order[at[r]]
                start = max(now[r], earliest)
                now[r] = ends[todo] = start + ns[phase]
                out[r].append(Box(phase, stage, k, start, now[r], step, stage // p))
                at[r], moved = at[r] + 1, True
    assert all(at[r] == len(order) for r, order in enumerate(orders)), "this order cannot be played"
    return out


def ranges_of(boxes: Iterable[Box], rules: tuple[str, ...] = ("by hand",)) -> Ranges:
    given = sorted(boxes, key=lambda b: (b.step, b.start_ns))

    def i64(name: str) -> np.ndarray:
        return np.array([getattr(b, name) for b in given], np.int64)

    length = i64("end_ns") - i64("start_ns")
    return Ranges(
        phase=np.array([b.phase for b in given], np.uint8),
        step=i64("step"),
        stage=i64("stage"),
        chunk=i64("chunk"),
        microbatch=i64("microbatch"),
        start_ns=i64("start_ns"),
        end_ns=i64("end_ns"),
        busy_ns=length,
        device_ops=np.full(len(given), 3, np.int64),
        rule=np.array([b.rule for b in given], np.int32),
        rules=rules,
    )


def idle_of(gaps: Sequence[Sequence[Gap]]) -> Idle:
    """Of each rank its gaps."""
    flat = [(rank, g) for rank, mine in enumerate(gaps) for g in sorted(mine, key=lambda g: g.start_ns)]
    texts = tuple(dict.fromkeys(g.evidence for _, g in flat))
    rank = np.array([r for r, _ in flat], np.int64)
    return Idle(
        rank=rank,
        step=np.array([g.step for _, g in flat], np.int64),
        start_ns=np.array([g.start_ns for _, g in flat], np.int64),
        end_ns=np.array([g.end_ns for _, g in flat], np.int64),
        cause=np.array([g.cause for _, g in flat], np.uint8),
        evidence=np.array([texts.index(g.evidence) for _, g in flat], np.int32),
        texts=texts,
    )


def gaps_of(boxes: Sequence[Sequence[Box]]) -> list[list[Gap]]:
    """What the boxes of each step leave free, by position."""
    out: list[list[Gap]] = []
    for r, mine in enumerate(boxes):
        out.append([])
        for step in sorted({b.step for b in mine if b.phase != Pass.OPT}):
            every = [b for rank in boxes for b in rank if b.step == step and b.phase != Pass.OPT]
            at, end = min(b.start_ns for b in every), max(b.end_ns for b in every)
            work = sorted((b for b in mine if b.step == step and b.phase != Pass.OPT), key=lambda b: b.start_ns)
            cause, evidence = (
                Cause.WARMUP,
                f"waits for {work[0].phase.name}{work[0].microbatch} of stage {work[0].stage - 1}",
            )
            for b in work:
                if b.start_ns > at:
                    out[r].append(Gap(at, b.start_ns, cause, evidence, step))
                at, cause, evidence = b.end_ns, Cause.DEPENDENCY_STALL, f"rank {(r + 1) % len(boxes)} ends later"
            if end > at:
                out[r].append(Gap(at, end, Cause.COOLDOWN, f"after {work[-1].phase.name}{work[-1].microbatch}", step))
    return out


def pipeline(
    boxes: Sequence[Sequence[Box]],
    gaps: Sequence[Sequence[Gap]] | None = None,
    *,
    schedule: str = "1F1B",
    rules: tuple[str, ...] = ("by hand",),
    sees_device: bool = True,
    sees_causes: bool = True,
) -> RunPipeline:
    """The record of it; rates from their definitions."""
    gaps = gaps_of(boxes) if gaps is None else gaps
    p = len(boxes)
    phases = [b for mine in boxes for b in mine if b.phase != Pass.OPT]
    microbatches = len({b.microbatch for b in phases})
    chunks = max((b.chunk for b in phases), default=0) + 1
    steps = []
    for number in sorted({b.step for b in phases}):
        mine = [[b for b in rank if b.step == number and b.phase != Pass.OPT] for rank in boxes]
        start, end = min(b.start_ns for m in mine for b in m), max(b.end_ns for m in mine for b in m)
        inside = [
            sum(g.end_ns - g.start_ns for g in rank if g.step == number and g.cause != Cause.OPTIMIZER_SYNC)
            for rank in gaps
        ]
        own = tuple(max(b.end_ns for b in m) - min(b.start_ns for b in m) for m in mine)
        steps.append(
            StepEntry(
                number=number,
                start_ns=start,
                end_ns=end,
                work_ns=tuple(end - start - idle for idle in inside),
                own_ns=own,
            )
        )
    whole = sum(p * (s.end_ns - s.start_ns) for s in steps)
    work = sum(sum(s.work_ns) for s in steps)
    cost = sum(p * max(s.own_ns) for s in steps)
    rates = Rates(1 - work / whole, 1 - work / cost, (p - 1) / (microbatches * chunks))
    runs = [
        StageRun(
            rank=rank,
            previous=rank - 1,
            recorded_from_ns=0,
            ranges=ranges_of(mine, rules),
            work=KeyedSpans(NONE, NONE, NONE),
            optimizer=Spans(NONE, NONE),
            exchanges=comm_ops([]),
            ordinal=NONE,
            delays=Delays(NONE, NONE, BYTES, CODES, CODES, ("",)),
            sees_device=sees_device,
            sees_causes=sees_causes,
            left_out={"ranges without device work": 2} if rank == 0 else {},
            warnings=(),
        )
        for rank, mine in enumerate(boxes)
    ]
    known = schedule != "unknown"
    parts = PartsNs(schedule=whole - work, imbalance=0, communication=0, rest=0, measured=whole - work)
    return RunPipeline(
        runs=tuple(runs),
        recorded=tuple(np.arange(len(run.ranges.phase)) for run in runs),
        pipe=(0,) * p,
        steps=tuple(steps),
        stages=p,
        microbatches=microbatches,
        chunks=chunks,
        schedule=schedule,
        nearest="" if known else "1F1B; rank 1 runs B0 where 1F1B runs F2",
        idle=idle_of(gaps),
        rates=rates,
        theory=Theory(**structs.asdict(rates), parts_ns=parts) if known else None,
        warnings=() if known else ("schedule not recognised",),
    )


EQUAL = {Pass.F: 1_000_000, Pass.B: 2_000_000, Pass.I: 1_000_000, Pass.W: 1_000_000}


def with_optimizer(
    boxes: Sequence[Sequence[Box]], ns: int = 1_500_000, sync_ns: int = 500_000
) -> tuple[list[list[Box]], list[list[Gap]]]:
    """An optimizer after a wait on every rank, behind each step; the gaps of both."""
    gaps = gaps_of(boxes)
    out = [list(mine) for mine in boxes]
    for step in sorted({b.step for mine in boxes for b in mine}):
        end = max(b.end_ns for mine in boxes for b in mine if b.step == step)
        for r in range(len(boxes)):
            gaps[r].append(
                Gap(end, end + sync_ns, Cause.OPTIMIZER_SYNC, "ncclDevKernel_AllReduce of the gradient norm", step)
            )
            out[r].append(Box(Pass.OPT, NOWHERE, NOWHERE, end + sync_ns, end + sync_ns + ns, step, NOWHERE))
    return out, gaps


def simple(
    p: int = 4, m: int = 8, *, steps: int = 1, transfer_ns: int = 0, chunks: int = 1, split_backward: bool = False
) -> RunPipeline:
    """1F1B (or interleaved) of equal stages with an optimizer."""
    orders = interleaved(p, m, chunks) if chunks > 1 else split(p, m) if split_backward else one_f_one_b(p, m)
    boxes: list[list[Box]] = [[] for _ in range(p)]
    at = EPOCH_NS
    for step in range(steps):
        for r, mine in enumerate(played(orders, EQUAL, transfer_ns, at, step)):
            boxes[r] += mine
        at = max(b.end_ns for mine in boxes for b in mine) + 4_000_000
    return pipeline(*with_optimizer(boxes), schedule="interleaved" if chunks > 1 else "1F1B")
