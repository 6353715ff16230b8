"""What a recording samples beside its rows: memory that PyTorch's allocator held, counters of GPUs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from graphlink.model import CounterRows, DeviceMemory
from graphlink.read.columns import MISSING, Parts, Strings, ints, is_time, ns_of_us, to_int_or_none
from graphlink.read.kineto_rows import Event
from graphlink.tables import how_many

MEMORY: Final = "[memory]"  # rows that profile_memory=True adds
_CPU: Final = 0  # a device type of c10
_MOST: Final = 1e18  # of a counter: sums of it over time stay finite
_COUNTERS: Final = re.compile(r"(?:\[[^\]]{0,80}\] )?GPU (\d{1,9}) Counters")  # the process that they stand in


def add_counters(table: Parts, rows: Sequence[Event], strings: Strings) -> None:
    """Take samples of the counters of GPUs, as Cuspy writes them: a number without a name, in a process of theirs."""
    samples = [
        (row.name or "", int(of[1]), row.ts, float(row.args.value))
        for row in rows
        if row.ph == "C" and isinstance(row.pid, str) and (of := _COUNTERS.fullmatch(row.pid)) and row.args is not None
        if type(row.args.value) in (int, float) and abs(row.args.value) < _MOST and is_time(row.ts)
    ]
    if samples:
        name, device, when, value = zip(*samples, strict=True)
        ns = ns_of_us([*when])
        there = ns != MISSING
        table.add(
            ns=ns[there],
            device=np.array(device, np.int64)[there],
            name=strings.column(name)[there],
            value=np.array(value, np.float64)[there],
        )


def counter_rows(table: Parts) -> CounterRows | None:
    """Return what was sampled, by time; None where nothing was."""
    return table.table(CounterRows, table.seen("ns").argsort(kind="stable")) if table.count else None


class MemoryRows:
    """Take how much memory PyTorch's allocator held on each device: the largest of what its instant rows say."""

    def __init__(self) -> None:
        self.most: dict[int, tuple[int, ...]] = {}  # by device: rows, allocated and reserved bytes

    def add(self, rows: Sequence[Event]) -> None:
        """Count rows of devices that say how much is allocated and reserved. Linear."""
        args = [
            row.args for row in rows if row.name == MEMORY and row.args is not None and row.args.allocated is not None
        ]
        columns = np.stack(
            [ints([getattr(a, name) for a in args]) for name in ("device_id", "device_type", "allocated", "reserved")]
        )
        device, _, allocated, reserved = columns[
            :, (columns[0] >= 0) & (columns[1] != _CPU) & (columns[2:] >= 0).all(axis=0)
        ]
        for number in np.unique(device).tolist():
            on_device, (count, *before) = device == number, self.most.get(number, (0, 0, 0))
            most = [int(column[on_device].max(initial=0)) for column in (allocated, reserved)]
            self.most[number] = count + how_many(on_device), *map(max, before, most)

    def found(self, devices: object) -> tuple[DeviceMemory, ...]:
        """Return what was counted, by device; ``devices``: ``deviceProperties`` of Kineto, which has the total."""
        described = [entry for entry in devices if isinstance(entry, dict)] if isinstance(devices, list) else []
        total: dict[Any, int | None] = {
            to_int_or_none(entry.get("id")): to_int_or_none(entry.get("totalGlobalMem")) for entry in described
        }
        return tuple(
            DeviceMemory(
                device=number,
                rows=rows,
                allocated_bytes=allocated,
                reserved_bytes=reserved,
                total_bytes=has if (has := total.get(number)) and has > 0 else None,
            )
            for number, (rows, allocated, reserved) in sorted(self.most.items())
        )
