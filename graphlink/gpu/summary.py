"""The lines on GPU time and steps in the printed summary of a rank, and how ranks compare by their idle time."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, median_low
from typing import Any, Final

from msgspec import UNSET

from graphlink.gpu.records import DeviceTime
from graphlink.records import ms, percent, shortened
from graphlink.wings import Telling

_FEW: Final = 3  # causes on a line
_DEVIATION: Final = 1.4826  # of a normal distribution: standard deviation in median absolute deviations


def gpu_line(one: DeviceTime) -> str:
    """Return what a device was busy with and why it was idle, on a line: ``idle 97.8 % of 61.265 ms (start_delay 88.3
    %, ...); ...``.
    """
    whole = one.whole_ns
    causes = sorted(one.idle_by_cause_ns.items(), key=lambda item: -item[1])[:_FEW]
    why = ", ".join(f"{cause} {percent(ns, one.idle_ns)}" for cause, ns in causes)
    return f"idle {percent(one.idle_ns, whole)} of {ms(whole)} ms{f' ({why})' if why else ''}; {busy_words(one)}"


def busy_words(one: DeviceTime) -> str:
    parts = {
        "compute": one.compute_ns,
        "exposed communication": one.exposed_comm_ns,
        "exposed copies": one.exposed_copy_ns,
    }
    return ", ".join(f"{name} {percent(ns, one.whole_ns)}" for name, ns in parts.items() if ns) or "no work"


def steps_line(rank: Any) -> str:
    """Format the steps: ``4: the first 30.000 ms, the others 10.000 ms +- 0.100 on average; slowest: 12.000 ms (step
    3), ...``.
    """
    told = rank.iterations
    if told is UNSET:
        return ""
    if told.mean_ns is None or told.slowest is None:
        return f"{told.count:,} of {ms(told.first_ns)} ms ({rank.steps[0].name})"
    key = "" if told.found_by == "mark" else f", found by {shortened(told.key)}"
    slowest = ""
    if told.count > 2:
        why = "".join(f", {ms(one.ns)} ms more {one.what}" for one in told.why[:1])
        slowest = f"; slowest: {ms(told.longest_ns or 0)} ms ({shortened(rank.steps[told.slowest].name)}{why})"
    others = (
        f"the others {ms(told.mean_ns)} ms +- {ms(told.spread_ns or 0)} on average"
        if told.count > 2
        else f"the other {ms(told.mean_ns)} ms"
    )
    return f"{told.count:,}{key}: the first {ms(told.first_ns)} ms, {others}{slowest}"


def idle_percent(rank: Any) -> float:
    """Return the idle share of all GPUs of a rank, in per cent; 0 without any."""
    return _share(rank.gpu, "idle_ns")


def exposed_percent(rank: Any) -> float:
    """Return the share of exposed communication in the time of all GPUs of a rank, in per cent; 0 without any."""
    return _share(rank.gpu, "exposed_comm_ns")


def _share(devices: Sequence[DeviceTime], part: str) -> float:
    part_ns = sum(int(getattr(device, part)) for device in devices)
    return 100 * part_ns / (sum(device.whole_ns for device in devices) or 1)


def far_from_usual(ranks: Sequence[Any]) -> tuple[float, list[Any]]:
    """Return the usual idle share of ranks in per cent, and those that are far from it, the most idle first."""
    idle = {one.rank: idle_percent(one) for one in ranks}
    usual = median(idle.values())
    far = 3 * _DEVIATION * median(abs(value - usual) for value in idle.values())
    order = sorted(ranks, key=lambda one: (-idle[one.rank], one.rank))
    return usual, [one for one in order if abs(idle[one.rank] - usual) > far > 0]


def telling(ranks: Sequence[Any]) -> Telling:
    """Choose the most idle rank, the median one and the one with most exposed communication, and those that are far
    from the usual.
    """
    idle = {rank.rank: idle_percent(rank) for rank in ranks}
    first = dict[int, str]()
    if any(rank.gpu for rank in ranks):
        first[max(ranks, key=lambda rank: (idle[rank.rank], -rank.rank)).rank] = "most idle"
        usual = median_low(idle.values())
        first.setdefault(next(rank for rank, share in idle.items() if share == usual), "median idle time")
        exposed = {rank.rank: exposed_percent(rank) for rank in ranks}
        most = max(exposed, key=lambda rank: (exposed[rank], -rank))
        if exposed[most] > idle[most]:
            first.setdefault(most, "most exposed communication")
    return Telling(first, {rank.rank: "far from the usual idle time" for rank in far_from_usual(ranks)[1]})
