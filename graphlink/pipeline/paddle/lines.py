"""The lines of one Paddle worker log that matter, out of any amount of other text, in bounded memory.

A job is found by its marker anywhere in the text, so neither long lines nor several jobs on one line matter; no line is held as a whole.
Source of the format: ``standalone_executor.cc`` and ``profiler_helper_static.py`` of Paddle. Older versions write no ``micro_batch_id``.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from graphlink.errors import InputError
from graphlink.model import NOWHERE
from graphlink.read.source import Source, open_source

BLOCK_BYTES: Final = 1 << 20
MOST_BYTES: Final = 1024  # from a marker to the end of what is read behind it
MARKER: Final = b"Profiler Info: Job ("

_TIME: Final = rb"(\d{1,13})(?:\.(\d{1,30}))?(?![\d.]|[eE][+-]\d)"  # ms since the epoch: whole, fraction
_ENTRY: Final = re.compile(
    rb"Profiler (?:Info: Job \((?:\d+\), *type *= *([^, \r\n][^,\r\n]{0,199}?) *,(?: *micro_batch_id *= *(-?\d{1,18}) *,)?"
    rb" *job_start_time *= *" + _TIME + rb" *, *job_end_time *= *" + _TIME + rb")?"
    rb"|start at step (\d{1,18}) and end at step (\d{1,18}))"
)
_DIGITS: Final = 6  # of a ms: ns
_LATEST_NS: Final = (1 << 63) - 1


@dataclass(slots=True)
class JobLines:
    """The jobs of a log in the order of its lines; one entry a job in each column. ``type`` points into ``types``."""

    types: dict[bytes, int] = field(default_factory=dict)
    type: array[int] = field(default_factory=lambda: array("i"))
    microbatch: array[int] = field(default_factory=lambda: array("q"))  # NOWHERE where the line gives none
    start_ns: array[int] = field(default_factory=lambda: array("q"))
    end_ns: array[int] = field(default_factory=lambda: array("q"))
    line: array[int] = field(default_factory=lambda: array("q"))  # from 1
    steps: list[tuple[int, int]] = field(default_factory=list)  # what each "Schedule Profiler start at step" says
    lines: int = 0
    lines_with_jobs: int = 0
    cut_last_line: int = 0  # 1: the last line is a job whose end is missing


def read_job_lines(path: Path) -> JobLines:
    """Reads the log at ``path``, plain or packed. Memory: some MB, and 36 bytes a job.

    Raises:
        InputError: the file cannot be read, or what follows a marker are no numbers; only the end of the file may be cut.
    """
    with open_source(path) as source:
        return _Reader(source).read()


class _Reader:
    def __init__(self, source: Source):
        self._source = source
        self._out = JobLines()
        self._ended = 0  # lines that ended before what is looked at
        self._last_line = 0  # with a job

    def read(self) -> JobLines:
        text, last = b"", b""
        more = self._source.read(BLOCK_BYTES)
        while more:
            text, last = text + more, more[-1:]
            more = self._source.read(BLOCK_BYTES)
            text = text[self._entries(text, at_end=not more) :]
        self._out.lines = self._ended + (last not in (b"", b"\n"))
        return self._out

    def _entries(self, text: bytes, *, at_end: bool) -> int:
        """Takes the entries that begin in ``text`` and surely end in it; returns how much of it is done with."""
        limit = len(text) if at_end else max(len(text) - MOST_BYTES, 0)
        done = counted = 0
        for found in _ENTRY.finditer(text):
            if found.start() >= limit:
                break
            self._ended += text.count(b"\n", counted, found.start())
            counted, done = found.start(), found.end()
            *job, first, stop = found.groups()
            if first is not None:
                self._out.steps.append((int(first), int(stop)))
                continue
            line = self._ended + 1
            self._out.lines_with_jobs += line != self._last_line
            self._last_line = line
            if not self._job(*job, at_very_end=at_end and done == len(text)):
                self._refuse_unless_cut(text[found.start() :], at_end=at_end)
        done = max(done, limit)
        self._ended += text.count(b"\n", counted, done)
        return done

    def _job(
        self,
        name: bytes | None,
        microbatch: bytes | None,
        start: bytes | None,
        start_fraction: bytes | None,
        end: bytes | None,
        end_fraction: bytes | None,
        *,
        at_very_end: bool,
    ) -> bool:
        """Takes a job; False where what stands behind the marker is none."""
        # the writer prints six decimals, always: fewer at the very end of the file have been cut off
        if name is None or start is None or end is None or (at_very_end and len(end_fraction or b"") < _DIGITS):
            return False
        start_ns, end_ns = _ns(start, start_fraction), _ns(end, end_fraction)
        if start_ns > _LATEST_NS or end_ns > _LATEST_NS:
            return False
        out = self._out
        out.type.append(out.types.setdefault(name, len(out.types)))
        out.microbatch.append(NOWHERE if microbatch is None else max(int(microbatch), NOWHERE))
        out.start_ns.append(start_ns)
        out.end_ns.append(end_ns)
        out.line.append(self._last_line)
        return True

    def _refuse_unless_cut(self, rest: bytes, *, at_end: bool) -> None:
        if at_end and b"\n" not in rest and len(rest) <= MOST_BYTES:
            self._out.cut_last_line = 1
            return
        raise InputError(
            f"the numbers of a job cannot be read: {rest[:150].splitlines()[0].decode('utf-8', 'replace')!r}",
            path=self._source.path,
            where=f"line {self._last_line}",
            todo="take this line out, or record again",
        )


def _ns(whole: bytes, fraction: bytes | None) -> int:
    """ns of a decimal text of ms, rounded to the nearest where it has more than six decimals."""
    if fraction is None:
        return int(whole) * 10**_DIGITS
    if len(fraction) == _DIGITS:
        return int(whole + fraction)
    return int(whole + fraction[:_DIGITS].ljust(_DIGITS, b"0")) + (fraction[_DIGITS : _DIGITS + 1] >= b"5")
