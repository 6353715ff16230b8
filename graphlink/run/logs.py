"""The logs that lie beside a run: read before its ranks are linked, and set against their steps after."""

from __future__ import annotations

from pathlib import Path

import msgspec

from graphlink.errors import InputError
from graphlink.logs.against import against, timers_of
from graphlink.logs.megatron import read_megatron
from graphlink.logs.nvidia_smi import read_nvidia_smi
from graphlink.logs.records import Logs
from graphlink.run.job import RunResult
from graphlink.run.options import Recordings


def read_logs(recordings: Recordings) -> Logs | None:
    """Read the logs that are named; None if there are none.

    Raises:
        InputError: one cannot be read as what its option says.
    """
    if not recordings.nvidia_smi and not recordings.megatron_log:
        return None
    for name in (*recordings.nvidia_smi, *recordings.megatron_log):
        if any("\ud800" <= character <= "\udfff" for character in name):  # how Python holds other bytes
            raise InputError("its name is not UTF-8, which summary.json could not hold", path=ascii(name), todo="rename it")
    smi = read_nvidia_smi([Path(name) for name in recordings.nvidia_smi])
    return Logs(nvidia_smi=smi, megatron=read_megatron([Path(name) for name in recordings.megatron_log]))


def against_recorded(logs: Logs, result: RunResult) -> Logs:
    """Set logged step times against the recorded steps of all ranks, and timers against pipeline ranges."""
    steps_ns = [step.end_ns - step.start_ns for rank in result.ranks for step in rank.steps]
    ranges_ns = timers_of([run.ranges for run in result.pipeline.runs]) if result.pipeline is not None else {}
    return msgspec.structs.replace(logs, megatron=[against(log, steps_ns, ranges_ns) for log in logs.megatron])
