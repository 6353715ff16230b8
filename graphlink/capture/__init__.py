"""Recording: execution trace and Kineto trace of the same steps, of all ranks, in one folder.

>>> with graphlink.capture("out/", steps=3) as capture:  # doctest: +SKIP
...     for batch in batches:
...         train(batch)
...         capture.step()

or, for the whole process, ``graphlink.capture.start("out/")``, ``.stop()`` and ``.dump()``. The only place where
PyTorch is imported, and only once something is recorded.
"""

from __future__ import annotations

import sys

from graphlink.capture.module import CaptureModule, dump, start, step, stop
from graphlink.capture.recording import Report
from graphlink.capture.schedule import Phase, Schedule
from graphlink.capture.session import Capture
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

sys.modules[__name__].__class__ = CaptureModule
