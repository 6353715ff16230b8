"""The two recordings of a rank beside each other: differences in what they say of the run they are from, and names in
one numbering, so that they compare as integers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Final

import msgspec
import numpy as np

from graphlink.model import EMPTY, I64, Bool, Comm, HostTrace, ProcessGroup, Trace
from graphlink.patterns import fits
from graphlink.tables import marked

MIN_EPOCH_NS = 1_400_000_000 * 10**9  # older (2014) than any recording: times since boot, which are no date
MAX_HOURS_APART = (
    24 + 14
)  # the ET's date is local time without a zone, up to 14 h off, noted before the recording began
# ranges that end when somebody waits for the work, even where they happen to nest
_GLOO: Final = re.compile("(?i)gloo:.*", re.DOTALL)
_ANY_BACKEND: Final = re.compile(
    r"(?i)[a-z]\w*:_?(?:(?:all_?(?:reduce|gather|to_?all)|reduce_?scatter|reduce|gather|scatter|broadcast|\w*barrier)\w*"
    r"|(?:i?send|i?recv)(?:_any_?source)?)(?: ?\d*->\d*)?"
)

_ROOT: Final = re.compile(r"\[pytorch\|profiler\|.*")  # the node of the process, or of a thread


def is_op(et: HostTrace) -> Bool:
    """Mark the nodes of an ET that are ops: all but roots."""
    return ~fits(_ROOT, et.strings)[et.name]


def asynchronous_form(trace: Trace) -> re.Pattern[str]:
    """Return the form of names of communication that the host makes: of gloo, and where no device did anything, of any
    backend (``ucc:all_reduce``, ``mpi:send 0->1``), whose device rows would else be the communication."""
    return _GLOO if len(trace.device.start_ns) else _ANY_BACKEND


def differences(trace: Trace, et: HostTrace) -> tuple[str, ...]:
    """Return the process id, date and sizes of process groups in which an ET and a Kineto trace differ, in words.

    What one side does not record is no difference.
    """
    found = []
    if et.pid is not None and trace.pid is not None and et.pid != trace.pid:
        found.append(f"pid (ET {et.pid}, Kineto {trace.pid})")
    dates = _dates_apart(trace, et)
    if dates:
        found.append(dates)
    et_sizes = _group_sizes(et.process_groups, et.comm.comms)
    kineto_sizes = _group_sizes(trace.process_groups, (*trace.host.comm.comms, *trace.device.comm.comms))
    found += [
        f"size of process group {name!r} (ET {et_sizes[name]}, Kineto {kineto_sizes[name]})"
        for name in sorted(et_sizes.keys() & kineto_sizes.keys())
        if et_sizes[name] != kineto_sizes[name]
    ]
    return tuple(found)


def _dates_apart(trace: Trace, et: HostTrace) -> str | None:
    starts = [int(rows.start_ns[0]) for rows in (trace.host, trace.calls, trace.device) if len(rows.start_ns)]
    if et.recorded_at is None or not starts or min(starts) < MIN_EPOCH_NS:
        return None
    try:
        noted = datetime.fromisoformat(et.recorded_at.strip()).replace(tzinfo=timezone.utc)
    except ValueError:  # another writer's date format: nothing to compare
        return None
    began = datetime.fromtimestamp(min(starts) // 10**9, timezone.utc)
    if abs((began - noted).total_seconds()) <= MAX_HOURS_APART * 3600:
        return None
    return f"date (ET {noted:%Y-%m-%d}, Kineto {began:%Y-%m-%d})"


def _group_sizes(groups: Iterable[ProcessGroup], comms: Iterable[Comm]) -> dict[str, int]:
    sizes = {
        comm.pg_name: comm.group_size
        for comm in comms
        if comm.pg_name and comm.group_size is not None and comm.name != "wait"
    }
    sizes.update({group.name: group.size for group in groups if group.size is not None})
    return sizes


class HostNames(msgspec.Struct, frozen=True):
    """``kineto`` and ``et`` have a code per row; ``text[code]`` is the spelling, the same for both sides."""

    kineto: I64
    et: I64
    text: tuple[str, ...]

    def count(self, codes: I64) -> dict[str, int]:
        """Count how often each name occurs, the most frequent first."""
        return {self.text[code]: n for code, n in Counter(codes.tolist()).most_common()}

    def present(self, codes: I64) -> Bool:
        """Mark the codes of the table that occur in ``codes``."""
        return marked(len(self.text), codes)


def common_names(trace: Trace, et: HostTrace | None) -> HostNames:
    """Number the host names of both sides alike; ``et`` is empty where there is none."""
    codes: dict[str, int] = {}

    def numbered(strings: tuple[str, ...]) -> I64:
        # as the newest Kineto writer spells names: backslashes turned into slashes, no newlines
        spelled = (text.replace("\\", "/").replace("\n", "").replace("\r", "") for text in strings)
        return np.array([codes.setdefault(text, len(codes)) for text in spelled], np.int64)

    kineto = numbered(trace.strings)[trace.host.name]
    other = numbered(et.strings)[et.name] if et is not None else EMPTY
    return HostNames(kineto, other, tuple(codes))
