"""What was logged beside the recording, as ``summary.json`` has it under ``logs`` (docs/logs.md). No line of a log is
repeated.
"""

from __future__ import annotations

from typing import Literal

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
    """A GPU of a host, or a MIG device of it. A figure that the log has no column for is None; times are local, without
    zone.

    ``gpu``: its index; where the log has none, its place among the GPUs as they come. ``mig``: GPU instance, compute
    instance and device.
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


class InRecording(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of a log that lie in the recorded time: ``gpus`` has figures over these alone, [] where none does.

    ``zone_minutes``: how far the log's local time is ahead of UTC; ``zone_by``: ``log`` (its times say it), ``execution
    trace`` (its local time does), ``cover`` (the only zone in which the log covers the recording). ``recorded_ns``: how
    long that was.
    """

    zone_minutes: int
    zone_by: Literal["log", "execution trace", "cover"]
    recorded_ns: int
    gpus: list[GpuLog]


class SmiLog(msgspec.Struct, frozen=True, kw_only=True):
    """A log of nvidia-smi. ``form``: csv, or screen. ``told_apart``: False where no column says which GPU a row is of.

    ``unread``: lines and cells that were not read, by reason. ``in_recording``: where it could be joined by time, else
    ``not_joined`` says why not.
    """

    path: str
    form: str
    told_apart: bool
    gpus: list[GpuLog]
    unread: dict[str, int]
    in_recording: InRecording | UnsetType = UNSET
    not_joined: str | UnsetType = UNSET


class Timer(msgspec.Struct, frozen=True, kw_only=True):
    """A timer of Megatron in ms, each figure a mean over the ``samples`` that have it.

    ``mean_ms``: of lines with one value; ``min_ms`` and ``max_ms``: of the least and the largest rank, where ranks are
    compared. ``recorded_ms``: what the ranges of this name take in a step of a rank, the median over steps and ranks;
    absent without ranges.
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


class Matched(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded steps ``first`` to ``last`` as iterations of the log, by number. ``logged_ms``: the median of the lines
    that they lie in; ``recorded_ms``: of the recorded steps; ``others_ms``: of all other lines, None where there are
    none.
    """

    first: int
    last: int
    logged_ms: float
    recorded_ms: float
    others_ms: float | None


class MegatronLog(Short, msgspec.Struct, frozen=True, kw_only=True):
    """A log of Megatron. ``intervals``: lines with a step time, each the mean of its iterations; mean and median are
    over these lines.

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
    matched: Matched | UnsetType = UNSET  # absent where numbers of steps are not recorded, or are not in the log
    timers: dict[str, Timer]
    memory: list[RankMemory]
    unread: dict[str, int]


class Logs(Short, msgspec.Struct, frozen=True, kw_only=True):
    """What was logged beside the recording, joined with it by time or number where these tell."""

    nvidia_smi: list[SmiLog]
    megatron: list[MegatronLog]
