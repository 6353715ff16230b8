"""What a schedule is here: its name, which rank holds which virtual stage, and the order of a rank's actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I64, U8, Bool

SCHEDULES: Final = ("GPipe", "1F1B", "interleaved", "ZB-H1", "ZB-H2", "ZB-V", "interleaved-ZB", "DualPipe")  # names of the contract
UNKNOWN: Final = "unknown"
V_SHAPED: Final = ("ZB-V", "DualPipe")
SPLIT: Final = ("ZB-H1", "ZB-H2", "ZB-V", "interleaved-ZB", "DualPipe")  # run I and W apart (DualPipe: some)
ONE_CHUNK: Final = ("GPipe", "1F1B", "ZB-H1", "ZB-H2")


@dataclass(frozen=True, slots=True)
class Order:
    """What one rank runs in a step, one entry an action, in execution order. ``stage`` is the virtual stage.

    ``paired``: this forward and the backward after it run at the same time (DualPipe): both inputs are there when the pair starts, both
    outputs leave when it ends.
    """

    phase: U8  # Phase
    stage: I64
    microbatch: I64
    paired: Bool

    def __len__(self) -> int:
        return len(self.phase)


def named(schedule: str) -> str:
    """The contract's name of a schedule, in whatever case it is given. Raises ValueError for others."""
    for name in SCHEDULES:
        if name.lower() == schedule.strip().lower():
            return name
    raise ValueError(f"there is no schedule {schedule!r}; there are {', '.join(SCHEDULES)}")


def stage_of(schedule: str, rank: int, chunk: int, stages: int) -> int:
    """Virtual stage that ``rank`` of ``stages`` runs as its ``chunk``: chunk * stages + rank, and there and back where V-shaped.

    ZB-V: chunk 1 goes from the last rank to the first, so the loss is on rank 0. DualPipe: two pipelines that have nothing to do with
    each other, of which the second (virtual stages ``stages`` and up, chunk 1) begins on the last rank and ends on the first; its
    virtual stage ``stages + k`` has the same layers as stage k.
    """
    return chunk * stages + (stages - 1 - rank if schedule in V_SHAPED and chunk % 2 else rank)


def counted(kind: I64) -> I64:
    """How many of its kind come before each entry; kinds are 0 and up."""
    order = np.argsort(kind, kind="stable")
    new = np.diff(kind[order], prepend=-1) != 0
    at = np.arange(len(kind))
    count = np.empty_like(at)
    count[order] = at - np.maximum.accumulate(np.where(new, at, 0))
    return count
