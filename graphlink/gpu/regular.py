"""Late starts that end idle time of one length again and again, as where a GPU is shared in time slices
(docs/idle.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from graphlink.choices import LATENCY_NS
from graphlink.gpu.file import IdleEntry

_FEWEST: Final = 10
_TIMES_USUAL: Final = 10  # start delays of a device, beyond which one is late
_WITHIN: Final = 0.05  # of the median, on either side
_SHARE: Final = 0.75  # of all late starts


class LateStarts(msgspec.Struct, frozen=True, kw_only=True):
    """Late starts on a device: ``count`` of them, ``alike`` of which end idle time of ``gap_ns`` (the median), within 5
    %.

    ``late_ns``: what those waited after their launch calls had returned; ``other_ns``: the rest of the same idle time,
    before.
    """

    count: int
    alike: int
    gap_ns: int
    late_ns: int
    other_ns: int


def late_starts(entries: Sequence[IdleEntry]) -> LateStarts | None:
    """Return the regular late starts among the idle intervals of a device, ascending; None where there are none.
    Linear, and a sort.

    Late is what exceeds ten times the usual start delay of the device, so that a slow launch is not. Regular are ten
    and three quarters.
    """
    start, end = (np.array([getattr(entry, name) for entry in entries], np.int64) for name in ("start_ns", "end_ns"))
    delays = np.array([entry.cause == "start_delay" for entry in entries], np.bool_)
    if not delays.any():
        return None
    gap = np.cumsum(np.append(True, start[1:] != end[:-1])) - 1
    took_ns = end - start
    whole_ns, delay_ns = (
        np.bincount(gap, ns).astype(np.int64) for ns in (took_ns, np.where(delays, took_ns, 0))
    )  # exact below 2**53
    late = np.flatnonzero(delay_ns > max(LATENCY_NS, _TIMES_USUAL * float(np.median(delay_ns[delay_ns > 0]))))
    if len(late) < _FEWEST:
        return None
    usual = float(np.median(whole_ns[late]))
    alike = late[np.abs(whole_ns[late] - usual) <= _WITHIN * usual]
    if len(alike) < max(_FEWEST, _SHARE * len(late)):
        return None
    late_ns = int(delay_ns[alike].sum())
    return LateStarts(
        count=len(late),
        alike=len(alike),
        gap_ns=round(usual),
        late_ns=late_ns,
        other_ns=int(whole_ns[alike].sum()) - late_ns,
    )
