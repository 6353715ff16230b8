"""Choose the training steps to record."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from graphlink.errors import UsageError

NEVER = sys.maxsize


class Phase(IntEnum):
    """The phase of a step. Values are those of ``torch.profiler.ProfilerAction``."""

    OFF = 0
    WARMUP = 1  # the profiler is made ready, so that the first recorded step does not pay for it
    RECORD = 2
    LAST = 3  # recorded, and written at its end


@dataclass(frozen=True, slots=True)
class Schedule:
    """Choose steps: ``wait`` off, ``warmup`` while the profiler is made ready, ``active`` recorded; ``repeat`` times, 0
    = for ever.

    Examples:
        >>> [Schedule(wait=1, warmup=1, active=2)(step).name for step in range(5)]
        ['OFF', 'WARMUP', 'RECORD', 'LAST', 'OFF']
    """

    wait: int = 1
    warmup: int = 1
    active: int = 3
    repeat: int = 1

    def __post_init__(self) -> None:
        if self.active < 1 or min(self.wait, self.warmup, self.repeat) < 0:
            raise UsageError(f"{self} is no schedule", todo="give active=1 or more, and no negative number")

    def __call__(self, step: int) -> Phase:
        length = self.wait + self.warmup + self.active
        cycle, at = divmod(step, length)
        if (self.repeat and cycle >= self.repeat) or at < self.wait:
            return Phase.OFF
        if at < self.wait + self.warmup:
            return Phase.WARMUP
        return Phase.LAST if at == length - 1 else Phase.RECORD

    def next_busy(self, step: int) -> int:
        """Return the first step from this one on that is not off; ``NEVER`` where none is."""
        length = self.wait + self.warmup + self.active
        cycle, at = divmod(step, length)
        if self.repeat and cycle >= self.repeat:
            return NEVER
        return max(step, cycle * length + self.wait) if at < self.wait else step


def schedule_of(steps: int | None, schedule: Callable[[int], Any] | None) -> Callable[[int], Phase]:
    """Return a schedule. ``steps``: as many after one that is left out and one of warm-up; ``schedule``: ours, or of
    ``torch.profiler.schedule``."""
    if steps is not None and schedule is not None:
        raise UsageError("steps and schedule both say what to record", todo="give one of them")
    if steps is not None:
        return Schedule(active=steps)
    if schedule is None:
        return Schedule(wait=0, warmup=0, active=NEVER)  # every step, until capture is stopped
    if isinstance(schedule, Schedule):
        return schedule
    return lambda step: Phase(min(int(getattr(action := schedule(step), "value", action)), Phase.LAST))
