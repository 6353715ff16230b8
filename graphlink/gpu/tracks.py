"""A row of the timeline for each device: when it was idle, with the cause as the name and the evidence as a detail
(docs/idle.md).
"""

from __future__ import annotations

import numpy as np

from graphlink.causes import CAUSES, OF_DEVICES, Cause
from graphlink.gpu.time import GpuTime
from graphlink.model import I64
from graphlink.perfetto.packets import SUMMARY, Arg, Rows, Track
from graphlink.perfetto.slices import flat
from graphlink.tables import spread

_NONE = np.zeros(0, np.int64)


def idle_rows(found: GpuTime) -> Rows:
    """Return the idle intervals of all devices, on the host's clock like all else of the timeline. Linear."""
    idle = [one for _, one in found.idle]

    def column(name: str) -> I64:
        return np.concatenate([_NONE, *(getattr(one, name) for one in idle)])

    track = np.repeat(np.arange(len(idle), dtype=np.int32), [len(one.start_ns) for one in idle])
    shift, name = column("shift_ns"), spread(len(Cause), np.array(OF_DEVICES), np.arange(len(CAUSES), dtype=np.int32))
    # texts grow from device to device, those of the last are all
    said = [] if not idle else [Arg("evidence", np.arange(len(track)), column("evidence"), idle[-1].texts)]
    return Rows(
        tuple(Track(0, f"GPU {device} idle", order=SUMMARY) for device, _ in found.idle),
        flat(track, column("start_ns") - shift, column("end_ns") - shift, name[column("cause")]),
        CAUSES,
        tuple(said),
    )
