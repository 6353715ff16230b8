"""Recording: execution trace and Kineto trace of the same steps, of all ranks, in one folder.

>>> with graphlink.capture("out/", steps=3) as capture:  # doctest: +SKIP
...     for batch in batches:
...         train(batch)
...         capture.step()

or, for the whole process, ``graphlink.capture.start("out/")``, ``.stop()`` and ``.dump()``. The only place where
PyTorch is imported, and only once something is recorded.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import ParamSpec

from graphlink.capture.recording import Report
from graphlink.capture.session import Capture, Phase, Schedule
from graphlink.capture.support import Feature, Support, support

__all__ = [
    "Capture",
    "CaptureModule",
    "Feature",
    "Phase",
    "Report",
    "Schedule",
    "Support",
    "dump",
    "start",
    "step",
    "stop",
    "support",
]

_captures: list[Capture] = []  # the last one that was started
_Given = ParamSpec("_Given")


def _starting(make: Callable[_Given, Capture]) -> Callable[_Given, Capture]:
    """Return ``start``, which takes what ``Capture`` takes."""

    @functools.wraps(make, assigned=())
    def start(*arguments: _Given.args, **options: _Given.kwargs) -> Capture:
        """Begin to record into ``folder``, with the arguments of ``Capture``. An earlier recording is ended and written
        first.
        """
        dump()
        _captures[:] = [make(*arguments, **options)]
        return _captures[0].start()

    return start


def step() -> None:
    """Tell graphlink that a training step is over; nothing happens where nothing was started."""
    for capture in _captures:
        capture.step()


def stop() -> None:
    """End the recording, and write nothing yet."""
    for capture in _captures:
        capture.stop()


def dump() -> list[Report]:
    """Write what was recorded, and end the recording if it is on. Return the reports of the windows since the last
    ``start``.
    """
    return [report for capture in _captures for report in capture.dump()]


start = _starting(Capture)


class CaptureModule(ModuleType):
    """Make a ``Capture`` when this module, ``graphlink.capture``, is called; start the one of the process, for programs
    whose loop is not at hand, by its ``start``."""

    Capture = Capture
    Schedule = Schedule
    start = staticmethod(start)
    step = staticmethod(step)
    stop = staticmethod(stop)
    dump = staticmethod(dump)
    support = staticmethod(support)
    __call__ = staticmethod(Capture)
    __signature__ = inspect.signature(Capture)


sys.modules[__name__].__class__ = CaptureModule
