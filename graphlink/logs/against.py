"""What was logged against what was recorded: step times, and the timers of forward, backward and optimizer against
their ranges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from graphlink.logs.records import Matched, MegatronLog
from graphlink.model import NOWHERE
from graphlink.tables import codes

if TYPE_CHECKING:
    from graphlink.pipeline.records import Ranges


def against(log: MegatronLog, steps_ns: Sequence[int], ranges_ns: Mapping[str, float]) -> MegatronLog:
    """Add what recorded steps took, and how much longer that is than what was logged, and the ranges of timers, where
    both are known.
    """
    timers = {
        name: msgspec.structs.replace(timer, recorded_ms=round(ranges_ns[name] / 1e6, 6))
        if name in ranges_ns
        else timer
        for name, timer in log.timers.items()
    }
    log = msgspec.structs.replace(log, timers=timers)
    if not steps_ns or log.step_median_ms is None:
        return log
    recorded_ms = median(steps_ns) / 1e6
    ratio = recorded_ms / log.step_median_ms
    return msgspec.structs.replace(log, recorded_step_ms=round(recorded_ms, 6), profiling_ratio=round(ratio, 6))


def matched(steps_ns: Mapping[int, Sequence[int]], numbers: Sequence[int], steps_ms: Sequence[float]) -> Matched | None:
    """Find the recorded steps, by number, in a log's lines, each of the iterations since the line before; None if one
    is in none.

    ``steps_ns``: what the step of a number took on each rank; ``numbers``, ``steps_ms``: iteration and time of each
    line. O(n log n).
    """
    if not steps_ns or not numbers:
        return None
    order = np.argsort(np.array(numbers), kind="stable")
    last, ms = np.array(numbers)[order], np.array(steps_ms)[order]
    usual = int(np.median(np.diff(last)[np.diff(last) > 0])) if (np.diff(last) > 0).any() else 1
    first = np.maximum(np.append(last[0] - usual, last[:-1]), last - usual) + 1
    wanted = np.array(sorted(steps_ns))
    line = np.searchsorted(last, wanted)
    if line[-1] >= len(last) or (wanted < first[line]).any():
        return None
    used = np.zeros(len(last), np.bool_)
    used[line] = True
    took_ns = [ns for of_step in steps_ns.values() for ns in of_step]
    return Matched(
        first=int(wanted[0]),
        last=int(wanted[-1]),
        logged_ms=round(float(np.median(ms[used])), 6),
        recorded_ms=round(median(took_ns) / 1e6, 6),
        others_ms=None if used.all() else round(float(np.median(ms[~used])), 6),
    )


def timers_of(ranks: Sequence[Ranges]) -> dict[str, float]:
    """Return by timer the sum of its ranges in a step of a rank, in ns: the median over steps and ranks. O(n log n) in
    ranges.

    Ranges whose step is unknown count for none.
    """
    from graphlink.pipeline.records import Pass  # whoever has ranges has that wing

    timers = {"forward-compute": (Pass.F,), "backward-compute": (Pass.B, Pass.I, Pass.W), "optimizer": (Pass.OPT,)}
    sums: dict[str, list[int]] = {}
    for ranges in ranks:
        for name, phases in timers.items():
            rows = np.flatnonzero(np.isin(ranges.phase, phases) & (ranges.step != NOWHERE))
            if len(rows):
                of_step = codes(ranges.step[rows])
                spent = np.zeros(int(of_step.max()) + 1, np.int64)
                np.add.at(spent, of_step, (ranges.end_ns - ranges.start_ns)[rows])
                sums.setdefault(name, []).extend(spent.tolist())
    return {name: median(spent) for name, spent in sums.items()}
