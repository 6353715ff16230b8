"""In which order the ranks of a pipeline work, one list of slots a rank.

GPipe: Huang et al. 2019; 1F1B: PipeDream-flush, Narayanan et al. 2021; interleaved:
``forward_backward_pipelining_with_interleaving`` of Megatron-LM; ZB-H1 and ZB-H2: the handcrafted schedules of Qi et
al. 2024, weight gradients as late as memory allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

SCHEDULES = ("GPipe", "1F1B", "interleaved", "ZB-H1", "ZB-H2")
SPLIT = ("ZB-H1", "ZB-H2")  # schedules whose backward is I and W apart


class Slot(NamedTuple):
    """One range of a rank. ``phase``: F, B (full backward), I (input gradient) or W (weight gradient)."""

    phase: str
    chunk: int
    microbatch: int


def order(schedule: str, stages: int, microbatches: int, chunks: int, rank: int) -> tuple[Slot, ...]:
    """The slots of one rank in one step. ``chunks`` > 1 only with "interleaved", whose microbatches are a multiple of
    ``stages``.

    Raises ValueError for a schedule that is not in ``SCHEDULES`` and for numbers that it does not allow.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"no schedule is called {schedule!r}: {', '.join(SCHEDULES)}")
    if stages < 2 or microbatches < 1 or chunks < 1:
        raise ValueError("a pipeline has 2 or more stages, 1 or more microbatches and chunks")
    if schedule == "interleaved":
        if microbatches % stages:
            raise ValueError(f"interleaved: {microbatches} microbatches are no multiple of {stages} stages")
        return tuple(_interleaved(stages, microbatches, chunks, rank))
    if chunks > 1:
        raise ValueError(f"{schedule} has 1 chunk a rank, not {chunks}")
    if schedule == "GPipe":
        return tuple(_one_forward_one_backward(microbatches, microbatches))
    to_come = stages - 1 - rank
    if schedule == "1F1B":
        return tuple(_one_forward_one_backward(microbatches, to_come))
    if schedule == "ZB-H1":
        return tuple(_split(microbatches, to_come, rank))
    return tuple(_split(microbatches, 2 * to_come, 2 * rank))


def _one_forward_one_backward(microbatches: int, warmup: int) -> Iterator[Slot]:
    warmup = min(microbatches, warmup)
    for i in range(microbatches + warmup):
        if i < microbatches:
            yield Slot("F", 0, i)
        if i >= warmup:
            yield Slot("B", 0, i - warmup)


def _split(microbatches: int, warmup: int, delay: int) -> Iterator[Slot]:
    """W of a microbatch as soon as more than ``delay`` input gradients are ahead of it, and at the end."""
    done = 0
    for slot in _one_forward_one_backward(microbatches, warmup):
        if slot.phase == "F":
            yield slot
            continue
        yield slot._replace(phase="I")
        if slot.microbatch + 1 - done > delay:
            yield Slot("W", 0, done)
            done += 1
    for microbatch in range(done, microbatches):
        yield Slot("W", 0, microbatch)


def _interleaved(stages: int, microbatches: int, chunks: int, rank: int) -> Iterator[Slot]:
    """The chunks take turns in groups of ``stages`` microbatches, backward from the last chunk."""

    def slot(phase: str, turn: int) -> Slot:
        group, within = divmod(turn, stages * chunks)
        chunk, microbatch = divmod(within, stages)
        return Slot(phase, chunk if phase == "F" else chunks - 1 - chunk, group * stages + microbatch)

    turns = microbatches * chunks
    warmup = min(turns, 2 * (stages - rank - 1) + (chunks - 1) * stages)
    for turn in range(turns + warmup):
        if turn < turns:
            yield slot("F", turn)
        if turn >= warmup:
            yield slot("B", turn - warmup)
