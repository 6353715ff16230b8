"""What was logged against what was recorded: step times, and the timers of forward, backward and optimizer against their ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

import msgspec
import numpy as np

from graphlink.logs.records import MegatronLog
from graphlink.model import NOWHERE
from graphlink.pipeline.grouped import codes
from graphlink.pipeline.records import Pass, Ranges

_PHASES: Final = {"forward-compute": (Pass.F,), "backward-compute": (Pass.B, Pass.I, Pass.W), "optimizer": (Pass.OPT,)}


def against(log: MegatronLog, steps_ns: Sequence[int], ranges_ns: Mapping[str, float]) -> MegatronLog:
    """Add what recorded steps took, and how much longer that is than what was logged, and the ranges of timers, where both are known."""
    timers = {
        name: msgspec.structs.replace(timer, recorded_ms=round(ranges_ns[name] / 1e6, 6)) if name in ranges_ns else timer
        for name, timer in log.timers.items()
    }
    log = msgspec.structs.replace(log, timers=timers)
    if not steps_ns or log.step_median_ms is None:
        return log
    recorded_ms = median(steps_ns) / 1e6
    ratio = recorded_ms / log.step_median_ms
    return msgspec.structs.replace(log, recorded_step_ms=round(recorded_ms, 6), profiling_ratio=round(ratio, 6))


def timers_of(ranks: Sequence[Ranges]) -> dict[str, float]:
    """Return by timer the sum of its ranges in a step of a rank, in ns: the median over steps and ranks. O(n log n) in ranges.

    Ranges whose step is unknown count for none.
    """
    sums: dict[str, list[int]] = {}
    for ranges in ranks:
        for name, phases in _PHASES.items():
            rows = np.flatnonzero(np.isin(ranges.phase, phases) & (ranges.step != NOWHERE))
            if len(rows):
                of_step = codes(ranges.step[rows])
                spent = np.zeros(int(of_step.max()) + 1, np.int64)
                np.add.at(spent, of_step, (ranges.end_ns - ranges.start_ns)[rows])
                sums.setdefault(name, []).extend(spent.tolist())
    return {name: median(spent) for name, spent in sums.items()}
