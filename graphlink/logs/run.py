"""The logs that lie beside a run: read before its ranks are linked, and set against their steps after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from graphlink.logs.against import against, matched, timers_of
from graphlink.logs.clock import Window, moment
from graphlink.logs.megatron import logged_steps, read_megatron
from graphlink.logs.nvidia_smi import hosts_of, joined_by_time, read_nvidia_smi
from graphlink.logs.records import Logs, MegatronLog
from graphlink.report.summary import Rank
from graphlink.run.options import Recordings, refuse_other_bytes
from graphlink.run.records import RunResult
from graphlink.steps import mark_number

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
    found = matched(steps_ns, *logged_steps(Path(log.path))) if steps_ns and log.intervals else None
    return log if found is None else msgspec.structs.replace(log, matched=found)


def _window(ranks: Sequence[Rank]) -> Window | None:
    """Return the time that all ranks together recorded; None where one has no time of day."""
    began, ended = [rank.inputs.began_ns for rank in ranks], [rank.inputs.ended_ns for rank in ranks]
    if not ranks or None in began or None in ended:
        return None
    noted = [
        at.ns - rank.inputs.began_ns
        for rank in ranks
        if rank.inputs.began_ns is not None
        and (at := moment(rank.inputs.recorded_at or "")) is not None
        and not at.zoned
    ]
    return Window(min(filter(None, began)), max(filter(None, ended)), min(noted, key=abs, default=None))
