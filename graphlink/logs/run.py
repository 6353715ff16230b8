"""The logs that lie beside a run: read before its ranks are linked, and set against what was recorded after: step
times, and the timers of forward, backward and optimizer against their ranges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from graphlink.logs.lines import Window, moment
from graphlink.logs.megatron import logged_steps, read_megatron
from graphlink.logs.nvidia_smi import hosts_of, joined_by_time, read_nvidia_smi
from graphlink.logs.records import Logs, Matched, MegatronLog
from graphlink.model import NOWHERE
from graphlink.report.summary import Rank
from graphlink.run.options import Recordings, refuse_other_bytes
from graphlink.run.records import RunResult
from graphlink.steps import mark_number
from graphlink.tables import marked, numbered_values, sums

if TYPE_CHECKING:
    from graphlink.pipeline.records import Ranges

NO_TIME: Final = "the recording has no time of day"


def read_logs(recordings: Recordings) -> Logs:
    """Read the logs that are named.

    Raises:
        InputError: one cannot be read as what its option says.
    """
    refuse_other_bytes((*recordings.nvidia_smi, *recordings.megatron_log))
    smi = read_nvidia_smi([Path(name) for name in recordings.nvidia_smi])
    return Logs(nvidia_smi=smi, megatron=read_megatron([Path(name) for name in recordings.megatron_log]))


def against_recorded(logs: Logs, result: RunResult) -> Logs:
    """Set logged step times against the recorded steps of all ranks, and timers against pipeline ranges; join logs by
    time and number.

    Raises:
        InputError: a log cannot be read a second time.
    """
    steps_ns = [step.end_ns - step.start_ns for rank in result.ranks for step in rank.steps]
    pipeline = result.parts.get("pipeline")
    ranges_ns = timers_of([run.ranges for run in pipeline.runs]) if pipeline is not None else {}
    megatron = [_matched(against(log, steps_ns, ranges_ns), result.ranks) for log in logs.megatron]
    window = _window(result.ranks)
    hosts = hosts_of([Path(log.path) for log in logs.nvidia_smi])
    smi = [
        msgspec.structs.replace(log, not_joined=NO_TIME) if window is None else joined_by_time(log, host, window)
        for log, host in zip(logs.nvidia_smi, hosts, strict=True)
    ]
    return msgspec.structs.replace(logs, megatron=megatron, nvidia_smi=smi)


def _matched(log: MegatronLog, ranks: Sequence[Rank]) -> MegatronLog:
    """Add the recorded steps whose numbers the log has, where it has all of them."""
    steps_ns: dict[int, list[int]] = {}
    for step in (step for rank in ranks for step in rank.steps):
        number = mark_number(step.name)
        if number is None:
            return log
        steps_ns.setdefault(number, []).append(step.end_ns - step.start_ns)
    steps = matched(steps_ns, *logged_steps(Path(log.path))) if steps_ns and log.intervals else None
    return log if steps is None else msgspec.structs.replace(log, matched=steps)


def _window(ranks: Sequence[Rank]) -> Window | None:
    """Return the time that all ranks together recorded; None where one has no time of day."""
    began, ended = [rank.inputs.began_ns for rank in ranks], [rank.inputs.ended_ns for rank in ranks]
    if not ranks or None in began or None in ended:
        return None
    noted = [
        local.ns - rank.inputs.began_ns
        for rank in ranks
        if rank.inputs.began_ns is not None
        and (local := moment(rank.inputs.recorded_at or "")) is not None
        and not local.zoned
    ]
    return Window(min(filter(None, began)), max(filter(None, ended)), min(noted, key=abs, default=None))


def against(log: MegatronLog, steps_ns: Sequence[int], ranges_ns: Mapping[str, float]) -> MegatronLog:
    """Add what recorded steps took, and how much longer that is than what was logged, and the ranges of timers, where
    both are known.
    """
    timers = {
        name: msgspec.structs.replace(timer, recorded_ms=round(ranges_ns[name] / 1e6, 6))
        if name in ranges_ns
        else timer
        for name, timer in log.timers.items()
    }
    log = msgspec.structs.replace(log, timers=timers)
    if not steps_ns or log.step_median_ms is None:
        return log
    recorded_ms = median(steps_ns) / 1e6
    ratio = recorded_ms / log.step_median_ms
    return msgspec.structs.replace(log, recorded_step_ms=round(recorded_ms, 6), profiling_ratio=round(ratio, 6))


def matched(steps_ns: Mapping[int, Sequence[int]], numbers: Sequence[int], steps_ms: Sequence[float]) -> Matched | None:
    """Find the recorded steps, by number, in a log's lines, each of the iterations since the line before; None if one
    is in none.

    ``steps_ns``: what the step of a number took on each rank; ``numbers``, ``steps_ms``: iteration and time of each
    line. O(n log n).
    """
    if not steps_ns or not numbers:
        return None
    order = np.argsort(np.array(numbers), kind="stable")
    last, ms = np.array(numbers)[order], np.array(steps_ms)[order]
    usual = int(np.median(np.diff(last)[np.diff(last) > 0])) if (np.diff(last) > 0).any() else 1
    first = np.maximum(np.append(last[0] - usual, last[:-1]), last - usual) + 1
    wanted = np.array(sorted(steps_ns))
    line = np.searchsorted(last, wanted)
    if line[-1] >= len(last) or (wanted < first[line]).any():
        return None
    used = marked(len(last), line)
    took_ns = [ns for of_step in steps_ns.values() for ns in of_step]
    return Matched(
        first=int(wanted[0]),
        last=int(wanted[-1]),
        logged_ms=round(float(np.median(ms[used])), 6),
        recorded_ms=round(median(took_ns) / 1e6, 6),
        others_ms=None if used.all() else round(float(np.median(ms[~used])), 6),
    )


def timers_of(ranks: Sequence[Ranges]) -> dict[str, float]:
    """Return by timer the sum of its ranges in a step of a rank, in ns: the median over steps and ranks. O(n log n) in
    ranges.

    Ranges whose step is unknown count for none.
    """
    from graphlink.pipeline.records import Pass  # whoever has ranges has that wing

    timers = {"forward-compute": (Pass.F,), "backward-compute": (Pass.B, Pass.I, Pass.W), "optimizer": (Pass.OPT,)}
    spent_ns: dict[str, list[int]] = {}
    for ranges in ranks:
        for name, phases in timers.items():
            rows = np.flatnonzero(np.isin(ranges.phase, phases) & (ranges.step != NOWHERE))
            steps, of_step = numbered_values(ranges.step[rows])
            in_step_ns = sums(len(steps), of_step, (ranges.end_ns - ranges.start_ns)[rows])
            spent_ns.setdefault(name, []).extend(in_step_ns.tolist())
    return {name: median(spent) for name, spent in spent_ns.items() if spent}
