"""Do the ranks of a pipeline share a clock? What cannot be, if they did, is told."""

from __future__ import annotations

from typing import Final

import numpy as np

from graphlink.model import CommKind
from graphlink.pipeline.matching import matched
from graphlink.pipeline.producers import producers
from graphlink.pipeline.stages import Pipes

TOLERANCE_NS: Final = 2_000  # of recordings in whole us
_NEVER: Final = np.iinfo(np.int64).min


def clock_warnings(pipes: Pipes, tolerance_ns: int) -> list[str]:
    """One warning with the number of contradictions and the largest, none where there is none.

    A receive cannot end before its send begins, nor work that needs another stage's begin before that has ended. Both on a device only: a
    host range may begin and wait, and a gloo send may have left milliseconds before its row begins where there are few cores. ``pipes``
    with virtual stages. ``tolerance_ns``: how far the clocks are known to agree.
    """
    count, worst, between = 0, 0, ""
    for run, meeting, supply in zip(pipes.runs, matched(pipes.runs), producers(pipes), strict=True):
        ex = run.exchanges
        ahead = np.where((ex.kind == CommKind.RECV) & meeting.known & ~ex.on_host, meeting.late_from_ns - ex.end_ns, 0)
        made = supply.end_ns != _NEVER
        early = np.where(made & run.sees_device, np.where(made, supply.end_ns, run.ranges.start_ns) - run.ranges.start_ns, 0)
        for amount, other in ((ahead, meeting.late_rank), (early, supply.rank)):
            wrong = amount > tolerance_ns
            count += int(np.count_nonzero(wrong))
            if wrong.any() and int(amount.max()) > worst:
                at = int(amount.argmax())
                worst, between = int(amount[at]), f"ranks {other[at]} and {run.rank}"
    if not count:
        return []
    return [
        f"the clocks of the ranks differ: {count} times something begins before what it needs has ended, by up to {worst / 1e6:.3f} ms "
        f"({between}); causes between ranks, and theory, are wrong by as much"
    ]
