"""The dialects of Kineto files by era, and which row of a file is which part of an execution."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tests.simulator.execution import Execution
from tests.simulator.program import thread_tids

# Newer files count microseconds from a fixed date up to months before the run, not from its start.
BASE_NS = 1_735_632_360_000_000_000
EPOCH_NS = BASE_NS + 4_212_936_054_973_709  # of time 0 of an execution


class Clock(Enum):
    INT_US = "integer us since the epoch"
    FLOAT_US = "float us since the epoch: steps of 0.25 us"
    RELATIVE_US = "us with three decimals since baseTimeNanoseconds"


@dataclass(frozen=True, slots=True)
class DeviceClock:
    """What the clock of the devices shows at a true time: ahead of the host's by ``offset_ns``, more by ``drift_ppm``
    of the time since 0 and by each of ``steps``, (since when, by how much), whose time has come. An op keeps its
    length.
    """

    offset_ns: int = 0
    drift_ppm: float = 0.0
    steps: tuple[tuple[int, int], ...] = ()

    def at(self, ns: int) -> int:
        """What it shows at ``ns`` of an execution."""
        return (
            ns
            + self.offset_ns
            + round(ns * self.drift_ppm / 1e6)
            + sum(by_ns for since_ns, by_ns in self.steps if ns >= since_ns)
        )


class ExternalId(Enum):
    """What the external id of a call or device row is."""

    OP_LOWER_CASE = "the op, under the key 'external id', 0 without one"
    CORRELATION = "its own correlation"
    OP = "the op, else the correlation"
    OP_OR_MISSING = "the op, else no key"
    NONE = "no key"


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between Kineto writers (by content, not by version)."""

    name: str
    clock: Clock
    external_id: ExternalId
    index_key: str | None = "Ev Idx"
    record_function_id: bool = False
    comm_args: bool = False
    string_tids: bool = False
    category: tuple[tuple[str, str], ...] = ()  # today's category -> the one of then
    launch_flow: str = "ac2g"
    sync_rows: bool = True  # whether the writer could write cuda_sync rows at all
    no_stream: int = -1  # stream of Context and Event Sync rows
    sync_row_tids: bool = False  # Stream Sync rows on tid = stream + 1000000
    event_rows: bool = False
    hip: bool = False
    cuspy: bool = False  # as PyTorch's own recorder of CUDA writes device rows and waits

    def time_ns(self, ns: int) -> int:
        """Ns since the epoch that a careful reader gets for the start of a row at ``ns`` of an execution."""
        exact = EPOCH_NS + ns
        if self.clock is Clock.INT_US:
            return exact // 1000 * 1000
        if self.clock is Clock.FLOAT_US:
            return round(exact / 1000 * 1000)
        return exact

    @property
    def resolution_ns(self) -> int:
        return 1 if self.clock is Clock.RELATIVE_US else 1000


_OLD_CATEGORIES = (
    ("cpu_op", "Operator"), ("cuda_runtime", "Runtime"), ("cuda_driver", "Runtime"), ("kernel", "Kernel"),
    ("gpu_memcpy", "Memcpy"), ("gpu_memset", "Memset"),
)  # fmt: skip

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect(
            "2021", Clock.INT_US, ExternalId.OP_LOWER_CASE, index_key=None, string_tids=True,
            category=_OLD_CATEGORIES, launch_flow="async_gpu", sync_rows=False,
        ),
        Dialect(
            "2022", Clock.INT_US, ExternalId.CORRELATION, index_key="Profiler Event Index",
            launch_flow="async_cpu_to_gpu", sync_rows=False,
        ),
        Dialect("2023", Clock.INT_US, ExternalId.CORRELATION, no_stream=4294967295),
        Dialect("2024-spring", Clock.FLOAT_US, ExternalId.OP, record_function_id=True),
        Dialect("2024", Clock.RELATIVE_US, ExternalId.OP, record_function_id=True, comm_args=True),
        Dialect(
            "2026", Clock.RELATIVE_US, ExternalId.OP_OR_MISSING, record_function_id=True, comm_args=True,
            sync_row_tids=True, event_rows=True,
        ),
        Dialect(
            "cuspy", Clock.RELATIVE_US, ExternalId.NONE, record_function_id=True, comm_args=True, cuspy=True,
        ),
        Dialect(
            "rocm", Clock.RELATIVE_US, ExternalId.OP, record_function_id=True, comm_args=True, sync_rows=False, hip=True,
        ),
    )
}  # fmt: skip


COPY = re.compile(r"Memcpy (\w+) \((.+) -> (.+)\)")  # as Kineto writes the name of one


def cuspy_kinds(name: str) -> tuple[str, dict[str, Any]]:
    """The name and kinds that Cuspy writes of a copy or memset, from the name that Kineto writes."""
    copied = COPY.fullmatch(name)
    if copied is None:
        return name.split(" ")[0], {"memory kind": 3}
    kind, source, target = copied.groups()
    memory = [text.lower().replace(" ", "_") for text in (source, target)]
    return "Memcpy", {"copy kind": kind, "src kind": memory[0], "dst kind": memory[1]}


@dataclass(frozen=True, slots=True)
class RowIds:
    """The ids that an execution's parts have in its files, by index of ``Execution.host``, ``.calls`` and ``.device``.

    Device ops of one graph launch share a correlation; they differ in start. Start times are ns of the execution:
    ``Dialect.time_ns`` says what a reader gets. (tid, start, name) is a host op's key where no record-function id is
    written.
    """

    host_tid: tuple[int, ...]
    host_rf_id: tuple[int, ...]  # Record function id, rf_id of the ET
    host_external_id: tuple[int, ...]
    host_index: tuple[int, ...]  # Ev Idx
    call_tid: tuple[int, ...]
    call_correlation: tuple[int, ...]
    device_correlation: tuple[int, ...]
    et_id: tuple[int, ...]  # of the host ops
    et_thread_root: tuple[int, ...]  # ET id of each thread's root


_LAST: list[tuple[Execution, RowIds]] = []


def row_ids(execution: Execution) -> RowIds:
    """The ids of an execution; the same in every dialect."""
    if not _LAST or _LAST[0][0] is not execution:  # what writes a file asks several times
        _LAST[:] = [(execution, _ids_of(execution))]
    return _LAST[0][1]


def _ids_of(execution: Execution) -> RowIds:
    program = execution.program
    tids = thread_tids(program)
    rng = random.Random(program.seed + 77)
    correlations: list[int] = []
    correlation = 1000 + rng.randrange(20_000)
    for _ in execution.calls:
        correlation += rng.randrange(1, 4)  # calls that the profiler does not show take ids too
        correlations.append(correlation)
    external: list[int] = []
    next_external: dict[int, int] = {}
    blocks = 0
    for op in execution.host:  # PyTorch deals external ids to threads in blocks
        at = next_external.get(op.thread, 0)
        if at % 1024 == 0:
            at = blocks * 1024
            blocks += 1
        next_external[op.thread] = at + 1
        external.append(at + 1)
    index = [0] * len(execution.host)
    by_thread = sorted(range(len(index)), key=lambda i: (-execution.host[i].thread, i))
    for position, i in enumerate(by_thread):
        index[i] = position
    first_rf_id = 2 if program.groups else 1  # the process-group record takes the first
    et_ids, roots, next_id = [], [0] * len(program.threads), 2
    for op in execution.host:
        if not roots[op.thread]:
            roots[op.thread] = next_id
            next_id += 2 if program.groups and not any(r for r in roots if r != next_id) else 1
        et_ids.append(next_id)
        next_id += rng.choice((1, 1, 2, 3))  # tensors take ids too
    return RowIds(
        host_tid=tuple(tids[op.thread] for op in execution.host),
        host_rf_id=tuple(range(first_rf_id, first_rf_id + len(execution.host))),
        host_external_id=tuple(external),
        host_index=tuple(index),
        call_tid=tuple(tids[call.thread] for call in execution.calls),
        call_correlation=tuple(correlations),
        device_correlation=tuple(correlations[op.call] for op in execution.device),
        et_id=tuple(et_ids),
        et_thread_root=tuple(roots),
    )
