"""What was logged beside the recording, as ``summary.json`` has it under ``logs`` (docs/logs.md), and what
``graphlink link`` and ``show`` print of it. No line of a log is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from graphlink.logs.lines import zone_name
from graphlink.records import Lines, Short, Table, counted, ms
from graphlink.wings import Field

MOST_GPUS: Final = 64
MOST_TIMERS: Final = 12


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over the samples that have it; ``absent``: samples that say that it cannot be had."""

    mean: float | None  # None: absent in all samples
    max: float | None
    samples: int
    absent: int


class GpuLog(Short, msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of a host. A figure that the log has no column for is None; times are local, without zone.

    ``gpu``: its index; where the log has none, its place among the GPUs as they come.
    """

    host: str
    gpu: int
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


def logs_table(logs: Logs) -> Lines:
    """Return the block for people: the GPUs of each log, then iterations, timers and memory of each log of Megatron."""
    return [
        *(part for log in logs.nvidia_smi for part in _smi(log)),
        *(part for log in logs.megatron for part in _megatron(log)),
    ]


def _smi(log: SmiLog) -> Lines:
    head = ("host", "GPU", "samples", "utilisation %", "of memory MiB", "used MiB", "power W", "temperature C")
    rows = [_gpu(one) for one in log.gpus[:MOST_GPUS]]
    more = [f"  ... and {len(log.gpus) - MOST_GPUS:,} more GPUs in summary.json"] if len(log.gpus) > MOST_GPUS else []
    apart = (
        []
        if log.told_apart
        else ["  no column says which GPU a row belongs to: all rows of a host stand as one (add index to the query)"]
    )
    times = [time for gpu in log.gpus for time in (gpu.from_time, gpu.to_time) if time]
    when = f", {times[0]} to {times[-1]} local time" if times else ""
    return [
        f"nvidia-smi {Path(log.path).name}: mean and largest{when}{_not_joined(log)}",
        Table(rows, head, "<" + ">" * (len(head) - 1)),
        *more,
        *(_inside(log.in_recording, head) if log.in_recording is not UNSET else ()),
        *apart,
        *_unread(log.unread),
    ]


def _not_joined(log: SmiLog) -> str:
    return (
        ""
        if log.in_recording is not UNSET
        else f"; not joined by time: {'unknown why' if log.not_joined is UNSET else log.not_joined}"
    )


def _inside(joined: InRecording, head: tuple[str, ...]) -> Lines:
    """Return the samples that lie in the recorded time."""
    by = {
        "log": "as its times say",
        "execution trace": "as the execution trace notes it",
        "cover": "the only zone in which the log covers the recording",
    }[joined.zone_by]
    which = f"the recorded {ms(joined.recorded_ns)} ms (local time is {zone_name(joined.zone_minutes)}, {by})"
    if not joined.gpus:
        return [f"  no sample lies in {which}"]
    rows = [_gpu(one) for one in joined.gpus[:MOST_GPUS]]
    return [f"  of it, in {which}:", Table(rows, head, "<" + ">" * (len(head) - 1), indent=4)]


def _gpu(one: GpuLog) -> tuple[str, ...]:
    figures = (one.utilisation_percent, one.memory_used_mib, one.power_w, one.temperature_c)
    utilisation, used, power, temperature = map(_figure, figures)
    total = "" if one.memory_total_mib is None else f"{one.memory_total_mib:,.0f}"
    return (one.host, f"{one.gpu}", f"{one.samples:,}", utilisation, total, used, power, temperature)


def _figure(figure: Figure | None) -> str:
    """Return ``98.2, 100.0``; nothing where there is no column, ``absent`` where no sample has the figure."""
    if figure is None:
        return ""
    return "absent" if figure.mean is None or figure.max is None else f"{figure.mean:,.1f}, {figure.max:,.1f}"


def _megatron(log: MegatronLog) -> Lines:
    ratio, step_ms = log.profiling_ratio, log.recorded_step_ms
    cost = (
        [f"  recorded step {step_ms:,.3f} ms, {ratio:.3f} times the logged median: the cost of profiling"]
        if ratio is not UNSET and step_ms is not UNSET
        else []
    )
    timers = sorted(log.timers.items(), key=lambda item: -_longest(item[1]))
    head = ("timer", "samples", "mean ms", "least rank", "largest rank", "recorded ms")
    more = len(timers) - MOST_TIMERS
    most = [one.max_allocated_mib for one in log.memory if one.max_allocated_mib is not None]
    ranks = counted(len(log.memory), "rank")
    return [
        f"Megatron {Path(log.path).name}: {_iterations(log)}",
        *cost,
        *([] if log.matched is UNSET else [f"  {_matched(log.matched)}"]),
        *([Table([_timer(name, one) for name, one in timers[:MOST_TIMERS]], head, "<>>>>>")] if timers else []),
        *([f"  ... and {more:,} more timers in summary.json"] if more > 0 else []),
        *([f"  memory of {ranks}: at most {max(most):,.1f} MiB allocated"] if most else []),
        *_unread({reason: count for reason, count in log.unread.items() if reason != "other text"}),
    ]


def _matched(one: Matched) -> str:
    which = f"iteration {one.first:,} is" if one.first == one.last else f"iterations {one.first:,} to {one.last:,} are"
    others = "" if one.others_ms is None else f", in all other lines {one.others_ms:,.3f} ms"
    return f"{which} recorded, by number: logged {one.logged_ms:,.3f} ms, recorded {one.recorded_ms:,.3f} ms{others}"


def _timer(name: str, one: Timer) -> tuple[str, ...]:
    recorded = None if one.recorded_ms is UNSET else one.recorded_ms
    return (name, f"{one.samples:,}", *(_ms(value) for value in (one.mean_ms, one.min_ms, one.max_ms, recorded)))


def _iterations(log: MegatronLog) -> str:
    if log.step_mean_ms is None or log.step_median_ms is None:
        return "no step time"
    which = f"iterations {log.first_iteration:,} to {log.last_iteration:,} of {log.of_iterations:,}"
    return (
        f"{which}, step {log.step_mean_ms:,.3f} ms mean, {log.step_median_ms:,.3f} ms median of "
        f"{counted(log.intervals, 'line')}"
    )


def _longest(timer: Timer) -> float:
    return max(ms or 0.0 for ms in (timer.mean_ms, timer.max_ms, timer.min_ms))


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:,.3f}"


def _unread(unread: dict[str, int]) -> Sequence[str]:
    return [f"  not read: {', '.join(f'{reason} {count:,}' for reason, count in unread.items())}"] if unread else []


FIELDS: Final = (Field("run", "logs", Logs | UnsetType, UNSET),)  # absent where no log was given beside the recordings
