"""Why a device, or a stage of a pipeline, stood still: the causes, and what the rows of a recording say of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Literal, get_args

import numpy as np

from graphlink.model import I32, I64, U8, Trace
from graphlink.patterns import ALLOCATOR, LOADER, fits
from graphlink.spans import Spans


class Cause(IntEnum):
    """Why a stage was idle, in the order of the contract of pipelines, then what only devices have."""

    WARMUP = 0
    COOLDOWN = 1
    DEPENDENCY_STALL = 2  # what was to run waited for work of another device or rank
    EXPOSED_COMMUNICATION = 3
    STRAGGLER_WAIT = 4  # waited for a communication that another rank came late to
    OPTIMIZER_SYNC = 5
    LAUNCH_STARVED = 6
    HOST_SYNC = 7
    DATA_LOADING = 8
    MEMORY_MANAGEMENT = 9
    PROFILER_ARTEFACT = 10
    UNKNOWN = 11
    HOST_BLOCKED = 12  # in a call that waits
    START_DELAY = 13  # launched, not begun
    HOST_WORK = 14  # the host was busy with ops
    PYTHON = 15  # between ops
    NO_WORK = 16  # before the first op of the thread that launched, and after the last launch


NAMES: Final[tuple[Any, ...]] = tuple(cause.name.lower() for cause in Cause)  # by ``Cause``
OF_STAGES: Final = tuple(Cause)[: Cause.UNKNOWN + 1]
# of devices, in the order in which they count: of several that hold at one moment the first
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
CAUSES: Final[tuple[CauseName, ...]] = get_args(CauseName)
OF_DEVICES: Final = tuple(Cause[name.upper()] for name in CAUSES)
MEANING: Final[dict[str, str]] = {
    "profiler_artefact": "the profiler worked",
    "straggler_wait": "the host waited for a rank that arrived late",
    "dependency_stall": "it waited for work of another device or rank",
    "memory_management": "the host allocated or freed memory",
    "data_loading": "the host loaded data",
    "host_blocked": "the host was in a call that waits",
    "start_delay": "work was launched and had not begun",
    "host_work": "the host was busy with ops",
    "python": "the host was between ops",
    "no_work": "the host asked for no work",
    "unknown": "the recording does not tell",
}
OF_STAGE: Final = MEANING | {  # what causes mean of a stage of a pipeline
    "warmup": "its first microbatch had not come",
    "cooldown": "its last microbatch was done",
    "exposed_communication": "it waited for messages that were under way",
    "optimizer_sync": "ranks waited for each other behind the last microbatch",
    "launch_starved": "the host was late with its next work",
    "host_sync": "the host was in a call that waits for the device",
}


@dataclass(frozen=True, slots=True, repr=False)
class Reasons(Spans):
    """Spans of time with a cause each. ``evidence``: numbers of texts; 0 is none."""

    cause: U8
    evidence: I32


def recorded_causes(trace: Trace) -> Iterator[tuple[Cause, Any, I64]]:
    """Yield the causes that rows of the host name, with the table and its rows: calls that manage memory, and ranges
    that load data.
    """
    for cause, table, pattern in (
        (Cause.MEMORY_MANAGEMENT, trace.calls, ALLOCATOR),
        (Cause.DATA_LOADING, trace.host, LOADER),
    ):
        yield cause, table, np.flatnonzero(fits(pattern, trace.strings)[table.name])
