"""Why a device was idle: the causes, in the order in which they count, and what each means."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Literal, get_args


class Cause(IntEnum):
    """Why a device was idle. Of several that hold at one moment the first counts."""

    PROFILER_ARTEFACT = 0
    STRAGGLER_WAIT = 1  # the host waited for a collective that another rank came late to
    DEPENDENCY_STALL = 2  # what was to run waited for work of another device or rank
    MEMORY_MANAGEMENT = 3
    DATA_LOADING = 4
    HOST_BLOCKED = 5  # in a call that waits
    START_DELAY = 6  # launched, not begun
    HOST_WORK = 7  # the host was busy with ops
    PYTHON = 8  # between ops
    NO_WORK = 9  # before the first op of the thread that launched, and after the last launch
    UNKNOWN = 10


CauseName = Literal[
    "profiler_artefact",
    "straggler_wait",
    "dependency_stall",
    "memory_management",
    "data_loading",
    "host_blocked",
    "start_delay",
    "host_work",
    "python",
    "no_work",
    "unknown",
]
CAUSES: Final[tuple[CauseName, ...]] = get_args(CauseName)  # by ``Cause``
MEANING: Final[dict[CauseName, str]] = {
    "profiler_artefact": "the profiler worked",
    "straggler_wait": "the host waited for a rank that came late",
    "dependency_stall": "waited for work of another device or rank",
    "memory_management": "the host allocated or freed memory",
    "data_loading": "the host loaded data",
    "host_blocked": "the host was in a call that waits",
    "start_delay": "launched, not begun",
    "host_work": "the host was busy with ops",
    "python": "the host was between ops",
    "no_work": "nothing was asked for",
    "unknown": "the recording does not tell",
}
