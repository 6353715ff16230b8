"""In which order each rank of a pipeline runs its forwards and backwards, by schedule. Communication is not in it.

Seven of the eight are one pattern. A rank has a sequence of forwards and one of backwards; it warms up with some forwards, then takes
one forward and one backward by turns until the forwards are used up, then the rest of the backwards. Where the backward is split, the
weight gradient of a backward comes ``delay`` backwards later. They differ in the sequences (chunks), in the warm-up and in the delay.
The V-shaped ones (ZB-V, DualPipe) are in ``vshaped``.

Sources
  GPipe, 1F1B    Huang et al. 2019 (arXiv 1811.06965); Narayanan et al. 2021 (arXiv 2104.04473), as Megatron-LM orders them.
  interleaved    arXiv 2104.04473, section 2.2; Megatron-LM ``forward_backward_pipelining_with_interleaving``.
  ZB-H1, ZB-H2   Qi et al. 2023 (arXiv 2401.10241), section 3, handcrafted.
  interleaved-ZB ``torch.distributed.pipelining.ScheduleInterleavedZeroBubble``: ZB-H1 over chunks. With one chunk it is ZB-H1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from graphlink.model import I64
from graphlink.pipeline.order import ONE_CHUNK, SCHEDULES, SPLIT, UNKNOWN, V_SHAPED, Order, named, stage_of
from graphlink.pipeline.records import Phase
from graphlink.pipeline.vshaped import dualpipe, zb_v

__all__ = ["ONE_CHUNK", "SCHEDULES", "SPLIT", "UNKNOWN", "V_SHAPED", "Order", "default_chunks", "named", "orders", "stage_of", "variants"]


def default_chunks(schedule: str, chunks: int = 1) -> int:
    """How many chunks ``schedule`` runs a rank, if there is no choice; else ``chunks``, but at least 2."""
    if schedule in ONE_CHUNK:
        return 1
    return 2 if schedule in V_SHAPED else max(chunks, 2)


def orders(schedule: str, stages: int, microbatches: int, chunks: int = 1) -> tuple[Order, ...]:
    """One order a rank, 0 .. ``stages`` - 1. Linear in the actions, numpy where it counts.

    ``schedule`` is a name of the contract (exactly so written); ``stages`` counts pipeline ranks, ``microbatches`` those of a step
    (DualPipe: of both directions; 0 .. m/2 - 1 enter on the first rank, the others on the last).

    Raises ValueError, in words for the user, where the schedule does not exist for these numbers.
    """
    _check(schedule, stages, microbatches, chunks)
    if schedule in V_SHAPED:
        make = zb_v if schedule == "ZB-V" else dualpipe
        return tuple(make(rank, stages, microbatches) for rank in range(stages))
    return tuple(_Turns(schedule, stages, microbatches, chunks).order(rank) for rank in range(stages))


def variants(schedule: str, stages: int, microbatches: int, chunks: int) -> Iterator[tuple[Order, ...]]:
    """Every order that is run under a schedule's name, ``orders`` first; none where the schedule does not exist for these numbers.

    GPipe: backwards last microbatch first (as its paper draws it). interleaved: all forwards first where microbatches = stages
    (Megatron-LM until 2024); groups of more than ``stages`` microbatches where these are no multiple (torch, which asks that the
    number of whole groups divides them).
    """
    try:
        yield orders(schedule, stages, microbatches, chunks)
    except ValueError:
        if schedule == "interleaved" and chunks > 1 and _group(stages, microbatches):
            turns = _Turns(schedule, stages, microbatches, chunks, group=_group(stages, microbatches))
            yield tuple(turns.order(rank) for rank in range(stages))
        return
    last_first = _Turns(schedule, stages, microbatches, chunks, last_first=True)
    all_first = _Turns(schedule, stages, microbatches, chunks, all_first=True)
    if schedule == "GPipe":
        yield tuple(last_first.order(rank) for rank in range(stages))
    if schedule == "interleaved" and microbatches == stages:
        yield tuple(all_first.order(rank) for rank in range(stages))


def _group(stages: int, microbatches: int) -> int:
    """Microbatches that a chunk runs before the next one takes over (torch's rounds); 0 where they do not come out even."""
    rounds = max(1, microbatches // stages)
    return 0 if microbatches % rounds else microbatches // rounds


def _check(schedule: str, stages: int, microbatches: int, chunks: int) -> None:
    if schedule not in SCHEDULES:
        raise ValueError(f"there is no schedule {schedule!r}; there are {', '.join(SCHEDULES)}")
    if min(stages, microbatches, chunks) < 1:
        raise ValueError(f"{schedule} needs at least one stage, microbatch and chunk, not {stages}, {microbatches} and {chunks}")
    if schedule in ONE_CHUNK and chunks != 1:
        raise ValueError(f"{schedule} has one chunk a rank, not {chunks}")
    if schedule in V_SHAPED and chunks != 2:
        raise ValueError(f"{schedule} has two chunks a rank, not {chunks}")
    if schedule == "interleaved" and chunks > 1 and microbatches % stages:
        raise ValueError(f"interleaved needs a multiple of its {stages} stages as microbatches, not {microbatches}")
    if schedule == "interleaved-ZB" and not _group(stages, microbatches):
        rounds = max(1, microbatches // stages)
        raise ValueError(f"interleaved-ZB on {stages} stages makes {rounds} rounds, which do not divide {microbatches} microbatches")
    if schedule == "DualPipe" and (stages % 2 or microbatches % 2 or microbatches < 2 * stages):
        raise ValueError(
            f"DualPipe needs an even number of stages, and an even number of microbatches that is at least twice that,"
            f" not {stages} and {microbatches}"
        )


@dataclass(frozen=True, slots=True)
class _Turns:
    """Warm-up, one forward and one backward by turns, the rest of the backwards."""

    schedule: str
    stages: int
    microbatches: int
    chunks: int
    group: int = 0
    last_first: bool = False
    all_first: bool = False

    def order(self, rank: int) -> Order:
        each = np.arange(self.microbatches * self.chunks)
        warmup, delay = self._warmup(rank), self._delay(rank)
        chunk, microbatch = self._sequence(each)
        back_chunk, back = self.chunks - 1 - chunk, microbatch
        if self.last_first:
            back_chunk, back = back_chunk[::-1], back[::-1]
        turn = [each - warmup, each]  # in turn 0, 1, ... a rank runs a forward, a backward, a weight gradient, those that there are
        phases = [Phase.F, Phase.B]
        if self.schedule in SPLIT:
            turn.append(each + delay)
            phases = [Phase.F, Phase.I, Phase.W]
        order = np.argsort(np.concatenate([3 * at + k for k, at in enumerate(turn)]), kind="stable")
        stage = [rank + self.stages * chunk] + [rank + self.stages * back_chunk] * (len(phases) - 1)
        return Order(
            phase=np.repeat(np.array(phases, np.uint8), len(each))[order],
            stage=np.concatenate(stage)[order],
            microbatch=np.concatenate([microbatch] + [back] * (len(phases) - 1))[order],
            paired=np.zeros(len(order), np.bool_),
        )

    def _sequence(self, each: I64) -> tuple[I64, I64]:
        """Chunk and microbatch of each forward: a group of microbatches through all chunks, then the next group."""
        if self.chunks == 1:
            return np.zeros_like(each), each
        group = self._microbatch_group()
        return each // group % self.chunks, each // (group * self.chunks) * group + each % group

    def _microbatch_group(self) -> int:
        return self.group or (_group(self.stages, self.microbatches) if self.schedule == "interleaved-ZB" else self.stages)

    def _warmup(self, rank: int) -> int:
        """Forwards before the first pair."""
        behind, most = self.stages - 1 - rank, self.microbatches * self.chunks
        if self.schedule == "GPipe" or self.all_first:
            return most
        hops = 2 if self.schedule == "ZB-H2" or (self.schedule == "interleaved" and self.chunks > 1) else 1
        rounds = (self.chunks - 1) * self._microbatch_group()
        return min(most, hops * behind + rounds)

    def _delay(self, rank: int) -> int:
        """Input gradients that are ahead of a weight gradient, beside its own."""
        return 2 * rank if self.schedule == "ZB-H2" else rank
