"""``idle.<rank>.json``: every interval in which a device was idle, with its cause and evidence, and the time of devices
and steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType

from graphlink.causes import NAMES, CauseName
from graphlink.figures import figure
from graphlink.gpu.records import DeviceTime, StepTime
from graphlink.gpu.time import GpuTime
from graphlink.model import NOWHERE, Trace
from graphlink.read import document
from graphlink.records import Short
from graphlink.version import __version__

FORMAT: Final = 1


class IdleEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An interval of one cause, since the start of the graph, on the device's own clock.

    ``op`` and ``stream`` are absent where nothing more began.
    """

    device: int
    start_ns: Annotated[int, figure("at", head="at ms", unit="place")]
    end_ns: int
    cause: CauseName
    evidence: Annotated[str, figure(means="evidence")]
    op: Annotated[str | UnsetType, figure("until this began", "the op that ended it", head="until", spare=2)] = UNSET
    stream: Annotated[int | UnsetType, figure(text="of the op that ended it", spare=1)] = UNSET

    @property
    def duration_ns(self) -> Annotated[int, figure(means="idle")]:
        return self.end_ns - self.start_ns


class IdleFile(Short, msgspec.Struct, frozen=True, kw_only=True):
    """The file. ``gpu`` and ``steps`` as in ``summary.json``; ``idle`` by device, then time."""

    graphlink: str = __version__
    format: int = FORMAT
    rank: int
    gpu: list[DeviceTime]
    steps: list[StepTime]
    idle: list[IdleEntry]


def blocks(rank: int, found: GpuTime, trace: Trace) -> Iterator[bytes]:
    """Yield the file, an interval a line. ``trace``: the recording, which names the ops."""
    head = msgspec.json.encode(IdleFile(rank=rank, gpu=list(found.gpu), steps=list(found.steps), idle=[]))
    yield head.removesuffix(b"]}")
    encode, before = msgspec.json.Encoder().encode, b"\n"
    for device, idle in found.idle:
        columns = (column.tolist() for column in (idle.start_ns, idle.end_ns, idle.cause, idle.evidence, idle.row))
        for start, end, cause, text, row in zip(*columns, strict=True):
            entry = IdleEntry(
                device=device,
                start_ns=start,
                end_ns=end,
                cause=NAMES[cause],
                evidence=idle.texts[text],
                op=UNSET if row == NOWHERE else trace.strings[trace.device.name[row]],
                stream=UNSET if row == NOWHERE else int(trace.device.stream[row]),
            )
            yield before + encode(entry)
            before = b",\n"
    yield b"]}\n"


def load(path: Path) -> IdleFile:
    """Read a file of an earlier run.

    Raises:
        InputError: it is none.
    """
    return document.load(path, IdleFile, "idle time of this version of graphlink")
