"""A module that can be called: ``graphlink.capture("out/")`` makes a capture, ``graphlink.capture.start("out/")`` starts one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from graphlink.capture import process, schedule, session
from graphlink.capture.support import support


class CaptureModule(ModuleType):
    """The type of ``graphlink.capture``."""

    Capture = session.Capture
    Schedule = schedule.Schedule
    start = staticmethod(process.start)
    step = staticmethod(process.step)
    stop = staticmethod(process.stop)
    dump = staticmethod(process.dump)
    support = staticmethod(support)

    def __call__(
        self,
        folder: str | os.PathLike[str],
        *,
        steps: int | None = None,
        schedule: Callable[[int], Any] | None = None,
        execution_trace: bool = True,
        sync: bool = True,
        sync_timeout_s: float = 60.0,
        hooks: Sequence[str] | None = None,
    ) -> session.Capture:
        """A ``Capture``, which see for the arguments."""
        return session.Capture(
            folder,
            steps=steps,
            schedule=schedule,
            execution_trace=execution_trace,
            sync=sync,
            sync_timeout_s=sync_timeout_s,
            hooks=hooks,
        )
