"""Orders of the schedules in which a rank's second chunk runs from the last rank to the first.

Sources
  ZB-V      Qi et al. 2023 (arXiv 2401.10241), section 6, for F = I = W; the handcrafted order of
            github.com/sail-sg/zero-bubble-pipeline-parallelism, which ``torch.distributed.pipelining.ScheduleZBVZeroBubble`` runs too.
            For other times that project searches an order, which is not this one.
  DualPipe  DeepSeek-AI 2024 (arXiv 2412.19437), section 3.2.1, as github.com/deepseek-ai/DualPipe (``dualpipe/dualpipe.py``) steps
            through it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from graphlink.model import I64
from graphlink.pipeline.order import Order, counted, stage_of
from graphlink.pipeline.records import Phase

F, B, I, W = Phase.F, Phase.B, Phase.I, Phase.W  # noqa: E741

_Step = tuple[Phase, int]  # phase and chunk


def zb_v(rank: int, stages: int, microbatches: int) -> Order:
    """Zero-bubble V: no more activations than 1F1B, no idle time inside a rank's own window if F = I = W and m >= 2p - 1.

    With fewer microbatches it is the order for 2p - 1 less those that do not exist.
    """
    behind, many = stages - rank, max(microbatches, 2 * stages - 1)
    down, up = [(F, 0), (I, 0), (W, 0)], [(F, 1), (I, 1), (W, 1)]
    steps = [(F, 0)] * (2 * behind - 1) + [(F, 1), (F, 0)] * rank + up * behind
    steps += (down + up) * (many - 2 * stages + rank + 1) + (down[1:] + up) * (behind - 1)
    steps += [(I, 0), (I, 1)] * rank + [(I, 0), (W, 0)] * behind + [(W, 1)] * rank + [(W, 0)] * rank
    phase, chunk = _columns(steps)
    microbatch = counted(4 * chunk + phase)
    there = microbatch < microbatches
    stage = _stages("ZB-V", rank, stages)[chunk]
    return Order(phase[there].astype(np.uint8), stage[there], microbatch[there], np.zeros(np.count_nonzero(there), np.bool_))


def dualpipe(rank: int, stages: int, microbatches: int) -> Order:
    """DualPipe: each rank has a stage of two pipelines that run towards each other, ``microbatches`` / 2 through each.

    In an order the forward of a pair stands before its backward.
    """
    half, each = stages // 2, microbatches // 2
    inward = min(rank, stages - 1 - rank)
    out = half - 1 - inward
    near = int(rank >= half)  # the pipeline that begins on this side
    far = 1 - near
    steps = [(F, near)] * (2 * out) + [(F, near), (F, far)] * (inward + 1) + [(I, far), (W, far), (F, far)] * out
    alone = len(steps)
    steps += [(F, near), (B, far), (F, far), (B, near)] * (each - stages + inward + 1) + [(B, far), (F, far), (B, near)] * out
    pairs_end = len(steps)
    last = [far, near] * (inward + 1)  # backwards in turn, of which the second half leave their weight gradients for later
    steps += [(B, chunk) for chunk in last[: inward + 1]] + [(I, chunk) for chunk in last[inward + 1 :]]
    steps += [(W, near), (I, near)] * out + [(W, near)] * (inward + 1)
    phase, chunk = _columns(steps)
    backward = (phase == B) | (phase == I)
    microbatch = np.zeros_like(chunk)
    microbatch[phase == F] = counted(chunk[phase == F])
    microbatch[backward] = counted(chunk[backward])
    # Weight gradients wait in one queue for both pipelines.
    chunk[phase == W], microbatch[phase == W] = chunk[phase == I], microbatch[phase == I]
    at = np.arange(len(phase))
    # The two ranks in the middle leave their first pair apart, which shortens the bubble.
    paired = (phase == F) & (at >= alone + (out == 0)) & (at < pairs_end)
    return Order(phase.astype(np.uint8), _stages("DualPipe", rank, stages)[chunk], microbatch + each * chunk, paired)


def _columns(steps: list[_Step]) -> tuple[I64, I64]:
    table: NDArray[np.int64] = np.array(steps, np.int64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()


def _stages(schedule: str, rank: int, stages: int) -> I64:
    return np.array([stage_of(schedule, rank, chunk, stages) for chunk in (0, 1)], np.int64)
