"""What each device of a rank was busy with. All of it is algebra of time spans, so that the parts add up to the ns."""

from __future__ import annotations

import msgspec
import numpy as np

from graphlink import spans
from graphlink.model import F64, I64, Communication, DeviceKind, Linked
from graphlink.spans import Spans


class Busy(msgspec.Struct, frozen=True):
    """The unions of a device's work, times since the epoch on its own clock. ``rows``: its device rows, by start.

    ``working``: compute and communication; ``any``: all. ``kernels``: compute without memsets; ``launched``: kernels
    and communication.
    """

    device: int
    rows: I64
    start_ns: I64
    end_ns: I64
    sm_share: F64
    compute: Spans
    comm: Spans
    copies: Spans
    working: Spans
    any: Spans
    kernels: Spans
    launched: Spans

    @property
    def idle(self) -> Spans:
        """Return idle time from the first start to the last end."""
        return spans.complement(self.any, int(self.start_ns[0]), int(self.end_ns.max()))


def own_clock_ns(linked: Linked) -> I64:
    """Return what turns each device row's time on the host's clock into its device's own; shape (device rows,)."""
    clocks = linked.trace.clocks
    return np.zeros(len(linked.trace.device.start_ns), np.int64) if clocks is None else clocks.offset_ns


def busy(linked: Linked, comm: Communication) -> list[Busy]:
    """Return one entry a device that ran anything, by number; O(n log n) in device rows."""
    device, offset_ns = linked.trace.device, own_clock_ns(linked)
    is_comm = np.zeros(len(device.start_ns), np.bool_)
    is_comm[comm.device_row] = True
    is_copy = (device.kind == DeviceKind.MEMCPY) & ~is_comm
    start_ns, end_ns = device.start_ns + offset_ns, device.end_ns + offset_ns
    out = []
    for number in np.unique(device.device).tolist():
        rows = np.flatnonzero(device.device == number)
        rows = rows[np.argsort(start_ns[rows], kind="stable")]
        start, end = start_ns[rows], end_ns[rows]
        copies, communicates = is_copy[rows], is_comm[rows]
        computes, sets = ~copies & ~communicates, device.kind[rows] == DeviceKind.MEMSET
        unions = [
            spans.union(start[which], end[which])
            for which in (computes, communicates, copies, ~copies, np.ones_like(copies))
        ]
        others = (
            [spans.union(start[which & ~sets], end[which & ~sets]) for which in (computes, ~copies)]
            if communicates.any() and sets.any()
            else (unions[0], unions[3])
        )
        out.append(Busy(number, rows, start, end, device.sm_share[rows], *unions, *others))
    return out
