"""In which order each rank of a pipeline runs its forwards and backwards, by schedule. Communication is not in it.

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
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I64, U8, Bool
from graphlink.pipeline.records import Pass
from graphlink.tables import turns

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
