"""What was logged beside the recording, as ``summary.json`` has it under ``logs`` (docs/logs.md). No line of a log is repeated."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from graphlink.records import Short


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over the samples that have it; ``absent``: samples that say that it cannot be had."""

    mean: float | None  # None: absent in all samples
    max: float | None
    samples: int
    absent: int


class GpuLog(Short, msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of a host, or a MIG device of it. A figure that the log has no column for is None; times are local, without zone.

    ``gpu``: its index; where the log has none, its place among the GPUs as they come. ``mig``: GPU instance, compute instance and device.
    """

    host: str
    gpu: int
    mig: str | UnsetType = UNSET
    name: str | None
    samples: int
    from_time: str | None
    to_time: str | None
    utilisation_percent: Figure | None
    memory_used_mib: Figure | None
    memory_total_mib: float | None
    power_w: Figure | None
    temperature_c: Figure | None


class SmiLog(msgspec.Struct, frozen=True, kw_only=True):
    """A log of nvidia-smi. ``form``: csv, or screen. ``told_apart``: False where no column says which GPU a row is of.

    ``unread``: lines and cells that were not read, by reason.
    """

    path: str
    form: str
    told_apart: bool
    gpus: list[GpuLog]
    unread: dict[str, int]


class Timer(msgspec.Struct, frozen=True, kw_only=True):
    """A timer of Megatron in ms, each figure a mean over the ``samples`` that have it.

    ``mean_ms``: of lines with one value; ``min_ms`` and ``max_ms``: of the least and the largest rank, where ranks are compared.
    ``recorded_ms``: what the ranges of this name take in a step of a rank, the median over steps and ranks; absent without ranges.
    """

    samples: int
    mean_ms: float | None
    min_ms: float | None
    max_ms: float | None
    recorded_ms: float | UnsetType = UNSET


class RankMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The largest figures of a rank's memory lines (Megatron's MB are MiB)."""

    rank: int
    lines: int
    allocated_mib: float | None
    max_allocated_mib: float | None
    reserved_mib: float | None
    max_reserved_mib: float | None


class MegatronLog(Short, msgspec.Struct, frozen=True, kw_only=True):
    """A log of Megatron. ``intervals``: lines with a step time, each the mean of its iterations; mean and median are over these lines.

    ``profiling_ratio``: the median recorded step over the median logged one: what profiling cost.
    """

    path: str
    first_iteration: int | None
    last_iteration: int | None
    of_iterations: int | None
    intervals: int
    step_mean_ms: float | None
    step_median_ms: float | None
    from_time: str | None
    to_time: str | None
    recorded_step_ms: float | UnsetType = UNSET
    profiling_ratio: float | UnsetType = UNSET
    timers: dict[str, Timer]
    memory: list[RankMemory]
    unread: dict[str, int]


class Logs(Short, msgspec.Struct, frozen=True, kw_only=True):
    """What was logged beside the recording. Times in logs have no zone, so nothing is joined by time: it stands beside."""

    nvidia_smi: list[SmiLog]
    megatron: list[MegatronLog]
