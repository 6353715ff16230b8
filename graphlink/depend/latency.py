"""Launch latency: the time from a launch call to the start of its device op where nothing else delays it, taken from
the recording itself.

It runs from the **end** of the call, to which it is steadier than to its start: half of the launches on idle streams
lie within 0.2 to 1.0 us of each other, measured from the start of the call within 0.8 to 6 (docs/edges.md). And it
overlaps the earlier work of the stream, not after it: the device fetches a launch while it still works on the one
before.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from graphlink.choices import LATENCY_NS
from graphlink.model import I64, NOWHERE, Bool, DeviceRows

FEW: Final = 10  # launches on idle streams, below which they do not say what is usual
DEFAULT_NS: Final = 2_000  # 1 to 3 us on eight of the eleven recordings that show theirs
NEAR_NS: Final = 10_000  # how far from the mode a latency may be
MOST_NS: Final = 100_000  # what takes longer is no latency: something delayed all of these ops


def launch_latency_ns(device: DeviceRows, returned_ns: I64, busy_until_ns: I64) -> I64:
    """Estimate for each device row how long after its launch call returned it begins at the earliest; shape (device
    rows,).

    The mode of the launches on idle streams, of each device and kind of op (kernel, copy, memset); where these are few,
    of all kinds of the device; else ``DEFAULT_NS``. Never below 0, and 0 where ``returned_ns`` is NOWHERE. A stream was
    idle if nothing that the op waits for (``busy_until_ns``: when its stream and its events were done) ran in the last
    ``LATENCY_NS`` before its start. The clock of the device alone tells that, so rows that are moved change this by as
    much as they are moved, and nothing else. O(n log n).
    """
    launched = returned_ns != NOWHERE
    after_ns = device.start_ns - returned_ns
    idle = launched & (device.start_ns - busy_until_ns > LATENCY_NS)
    out = np.where(launched, DEFAULT_NS, 0)
    for mine in _by_kind(device):
        usual = _usual_ns(after_ns[idle & mine])
        if usual is not None:
            out[launched & mine] = usual
    return out


def _by_kind(device: DeviceRows) -> list[Bool]:
    """Group device rows: those of each device, then those of each of its kinds."""
    numbers = np.unique(device.device).tolist()
    of_device = [device.device == number for number in numbers]
    return [
        *of_device,
        *(mine & (device.kind == kind) for mine in of_device for kind in np.unique(device.kind[mine]).tolist()),
    ]


def _usual_ns(after_ns: I64) -> int | None:
    """Return the median of the latencies around their mode; None where they are too few, or no latencies."""
    if len(after_ns) < FEW:
        return None
    around = after_ns[np.abs(after_ns - _mode(np.sort(after_ns))) <= NEAR_NS]
    if not len(around):  # the last three that the mode came to lie far apart
        return None
    usual = int(np.median(around))
    return max(usual, 0) if usual <= MOST_NS else None


def _mode(ascending: I64) -> int:
    """Estimate the half-sample mode: the shortest interval that holds half of the values, and in it again, until three
    are left or all are equal.

    (Robertson and Cryer 1974.) Up to half of the values may be anything, which a mean does not bear; ops that start
    long after their launch for a reason that is not recorded are many in some recordings. Cost: O(n).
    """
    while len(ascending) > 3 and ascending[0] != ascending[-1]:
        half = (len(ascending) + 1) // 2
        width = ascending[half - 1 :] - ascending[: len(ascending) - half + 1]
        low = np.flatnonzero(width == width.min())
        low = low[len(low) // 2]
        ascending = ascending[low : low + half]
    return int(np.median(ascending))
