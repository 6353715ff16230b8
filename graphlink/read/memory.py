"""How much memory PyTorch's allocator held on each device: the largest of what its instant rows say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from graphlink.model import DeviceMemory
from graphlink.read.columns import MISSING, ints, to_int_or_none
from graphlink.read.kineto_rows import Event

MEMORY: Final = "[memory]"  # rows that profile_memory=True adds
_CPU: Final = 0  # a device type of c10


class MemoryRows:
    """Takes blocks of rows; what is kept are two numbers a device."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.allocated: dict[int, int] = {}
        self.reserved: dict[int, int] = {}

    def add(self, rows: Sequence[Event]) -> None:
        """Count rows of devices that say how much is allocated and reserved. Linear."""
        args = [
            row.args for row in rows if row.name == MEMORY and row.args is not None and row.args.allocated is not None
        ]
        if not args:
            return
        columns = np.stack(
            [ints([getattr(a, name) for a in args]) for name in ("device_id", "device_type", "allocated", "reserved")]
        )
        device, _, allocated, reserved = columns[
            :, (columns[0] >= 0) & (columns[1] != _CPU) & (columns[2:] >= 0).all(axis=0)
        ]
        for number in np.unique(device).tolist():
            mine = device == number
            self.rows[number] = self.rows.get(number, 0) + int(np.count_nonzero(mine))
            for most, column in ((self.allocated, allocated), (self.reserved, reserved)):
                most[number] = max(most.get(number, 0), int(column[mine].max(initial=MISSING)))

    def found(self, devices: object) -> tuple[DeviceMemory, ...]:
        """Return what was counted, by device; ``devices``: ``deviceProperties`` of Kineto, which has the total."""
        described = [one for one in devices if isinstance(one, dict)] if isinstance(devices, list) else []
        total: dict[Any, int | None] = {
            to_int_or_none(one.get("id")): to_int_or_none(one.get("totalGlobalMem")) for one in described
        }
        return tuple(
            DeviceMemory(
                device=number,
                rows=rows,
                allocated_bytes=self.allocated[number],
                reserved_bytes=self.reserved[number],
                total_bytes=has if (has := total.get(number)) and has > 0 else None,
            )
            for number, rows in sorted(self.rows.items())
        )
