"""One capture for the whole process, for programs whose loop is not at hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from graphlink.capture.report import Report
from graphlink.capture.session import Capture

_captures: list[Capture] = []  # the last one that was started


def start(
    folder: str | os.PathLike[str],
    *,
    steps: int | None = None,
    schedule: Callable[[int], Any] | None = None,
    execution_trace: bool = True,
    sync: bool = True,
    sync_timeout_s: float = 60.0,
    hooks: Sequence[str] | None = None,
) -> Capture:
    """Begin to record into ``folder``. An earlier recording is ended and written first."""
    dump()
    capture = Capture(
        folder,
        steps=steps,
        schedule=schedule,
        execution_trace=execution_trace,
        sync=sync,
        sync_timeout_s=sync_timeout_s,
        hooks=hooks,
    )
    _captures[:] = [capture]
    return capture.start()


def step() -> None:
    """A training step is over; nothing happens where nothing was started."""
    for capture in _captures:
        capture.step()


def stop() -> None:
    """End the recording, and write nothing yet."""
    for capture in _captures:
        capture.stop()


def dump() -> list[Report]:
    """Write what was recorded, and end the recording if it is on. Returns the reports of the windows since the last ``start``."""
    return [report for capture in _captures for report in capture.dump()]
