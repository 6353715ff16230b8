"""Paddle worker logs -> ``JobLog``: a folder of ``workerlog.N``, or of ``machineM/workerlog.N``.

What is in them and what is not: ``docs/paddle.md``. A job is found by its marker anywhere in the text, out of any
amount of other text, so neither long lines nor several jobs on one line matter; no line is kept as a whole, memory is
bounded. Source of the format: ``standalone_executor.cc`` and ``profiler_helper_static.py`` of Paddle. Older versions
write no ``micro_batch_id``.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from graphlink.errors import InputError
from graphlink.model import I32, I64, NOWHERE, TimedRows
from graphlink.read.kineto_rows import MAX_SPAN_NS
from graphlink.read.source import Source, open_source, reading
from graphlink.records import first_few
from graphlink.tables import begins, how_many

BLOCK_BYTES: Final = 1 << 20
MOST_BYTES: Final = 1024  # from a marker to the end of what is read behind it
MARKER: Final = b"Profiler Info: Job ("

_TIME: Final = rb"(\d{1,13})(?:\.(\d{1,30}))?(?![\d.]|[eE][+-]\d)"  # ms since the epoch: whole, fraction
_ENTRY: Final = re.compile(
    rb"Profiler (?:Info: Job \((?:\d+\), *type *= *([^, \r\n][^,\r\n]{0,199}?) *,"
    rb"(?: *micro_batch_id *= *(-?\d{1,18}) *,)?"
    rb" *job_start_time *= *" + _TIME + rb" *, *job_end_time *= *" + _TIME + rb")?"
    rb"|start at step (\d{1,18}) and end at step (\d{1,18}))"
)
_DIGITS: Final = 6  # of a ms: ns
_LATEST_NS: Final = (1 << 63) - 1
HEAD_BYTES: Final = 1 << 22  # of a file that is not named as a worker log, in which a job is looked for
_MACHINE: Final = re.compile(r"machine(\d{1,9})")
MOST_NAMED: Final = 8
_RECORD: Final = (
    "record with job_schedule_profiler_range(step, start, stop), or PaddleNLP's --job_schedule_profiler_start and _end"
)


@dataclass(frozen=True, slots=True)
class JobLog(TimedRows):
    """The jobs of one Paddle worker, sorted by start, then end; one entry per job in each column.

    ``type`` points into ``strings``; ``microbatch`` is ``NOWHERE`` where the line gives none.
    ``rank`` is global: workers of the machines before plus the worker's number. Times are ns since the epoch on the
    machine's own clock. What concerns the whole folder is in the warnings of its first log.
    """

    path: str
    rank: int
    machine: int  # 0 for a folder of one machine
    strings: tuple[str, ...]
    type: I32  # forward, backward, optimizer, lr, default, forward0, ...
    microbatch: I64
    first_step: int | None  # of "Schedule Profiler start at step N and end at step M"
    stop_step: int | None  # M: the first step that is not in the log
    left_out: dict[str, int]
    warnings: tuple[str, ...]


def read_paddle(folder: str | Path) -> tuple[JobLog, ...]:
    """Read the logs of all workers in ``folder``, by rank; of a worker without jobs an empty one. Plain, gzip or zstd,
    recognised by content.

    Machines and workers are ordered by their numbers. A missing worker leaves its rank free. Memory: some MB, and 64
    bytes a job.

    Raises:
        InputError: there is no such folder, no worker log with jobs in it, two logs of one worker, a file that cannot
            be read, or a job whose numbers cannot be read.
    """
    folder = Path(folder)
    machines = _machines(folder)
    logs = [_log(str(path), rank, machine, read_job_lines(path)) for rank, machine, path in _ranked(machines)]
    stray = _stray(folder, machines)
    if not any(len(log.start_ns) for log in logs):
        what = (
            f"none of its {len(logs)} worker logs holds a job" if logs else "has no workerlog.N or machineM/workerlog.N"
        )
        raise InputError("; ".join([what, *stray]), path=folder, todo=_RECORD)
    warnings = [*_unequal(machines), *stray]
    return (replace(logs[0], warnings=(*warnings, *logs[0].warnings)), *logs[1:])


def _machines(folder: Path) -> dict[int, dict[int, Path]]:
    """Return machine number -> worker number -> log. One machine: its number is 0."""
    here = _numbered(folder, WORKER, files=True)
    below = {
        number: _numbered(path, WORKER, files=True)
        for number, path in sorted(_numbered(folder, _MACHINE, files=False).items())
    }
    below = {number: workers for number, workers in below.items() if workers}
    if here and below:
        raise InputError(
            "holds both workerlog.N and machineM/workerlog.N",
            path=folder,
            todo="name the folder of one run: of one machine, or of all",
        )
    return below or {0: here}


def _numbered(folder: Path, name: re.Pattern[str], *, files: bool) -> dict[int, Path]:
    with reading(folder):
        if not folder.is_dir():
            what = "is a file, not a folder" if folder.exists() else "there is no such folder"
            raise InputError(what, path=folder, todo="name the folder that holds workerlog.0")
        paths = sorted(path for path in folder.iterdir() if (path.is_file() if files else path.is_dir()))
    out: dict[int, Path] = {}
    for path in paths:
        if found := name.fullmatch(path.name):
            number = int(found[1])
            if number in out:
                raise InputError(
                    f"has the number of {out[number].name} beside it", path=path, todo="leave one of them in the folder"
                )
            out[number] = path
    return out


def _ranked(machines: Mapping[int, Mapping[int, Path]]) -> list[tuple[int, int, Path]]:
    """Return rank, machine and log of every worker. The rank: workers of the machines before, missing ones counted, and
    its number.
    """
    usual = Counter(map(_size, machines.values())).most_common(1)[0][0]
    out: list[tuple[int, int, Path]] = []
    next_machine, next_rank = min(machines), 0
    for machine, workers in sorted(machines.items()):
        next_rank += (machine - next_machine) * usual
        out += [(next_rank + number, machine, path) for number, path in sorted(workers.items())]
        next_machine, next_rank = machine + 1, next_rank + _size(workers)
    return out


def _size(workers: Mapping[int, Path]) -> int:
    return max(workers, default=-1) + 1


def _unequal(machines: Mapping[int, Mapping[int, Path]]) -> list[str]:
    """Warn of workers and machines that are missing."""
    several = len(machines) > 1
    away = [
        f"machine{n}" for n in islice((n for n in range(min(machines), max(machines)) if n not in machines), MOST_NAMED)
    ]
    for machine, workers in sorted(machines.items()):
        gaps = islice((n for n in range(_size(workers)) if n not in workers), MOST_NAMED)
        away += [f"machine{machine}/workerlog.{n}" if several else f"workerlog.{n}" for n in gaps]
    out = [f"missing: {listed(away)}; their ranks are left free"] if away else []
    if len({_size(workers) for workers in machines.values()}) > 1:
        sizes = listed([f"machine{machine} {_size(workers)}" for machine, workers in sorted(machines.items())])
        out.append(
            f"machines have unequal numbers of workers ({sizes}): ranks count those of the machines before, and may be "
            "wrong"
        )
    return out


def listed(names: Sequence[object]) -> str:
    """List the first few."""
    return first_few(names, MOST_NAMED)


def _stray(folder: Path, machines: Mapping[int, Mapping[int, Path]]) -> list[str]:
    """Warn of files that hold jobs but are not named as worker logs."""
    taken = {path for workers in machines.values() for path in workers.values()}
    folders = sorted({folder, *(path.parent for path in taken)})
    others = [path for place in folders for path in sorted(place.iterdir()) if path.is_file() and path not in taken]
    found = [str(path.relative_to(folder)) for path in others if _begins_with_jobs(path)]
    return [f"not read, as their names say no worker (workerlog.N): {listed(found)}"] if found else []


def _begins_with_jobs(path: Path) -> bool:
    try:
        with open_source(path) as source:
            before = b""
            while source.position < HEAD_BYTES and (part := source.read(1 << 16)):
                if MARKER in before + part:
                    return True
                before = part[-len(MARKER) :]
    except InputError:  # not ours to judge
        return False
    return False


def _log(path: str, rank: int, machine: int, lines: JobLines) -> JobLog:
    kind, microbatch, start, end, line = np.frombuffer(lines.jobs, np.int64).reshape(-1, 5).T
    timed = (start > 0) & (end > 0)
    forward = end >= start
    order = np.lexsort((microbatch, kind, end, start))
    order = order[(timed & forward)[order]]
    columns = [column[order] for column in (start, end, kind, microbatch)]
    new = begins(*columns)
    start, end, kind, microbatch = (column[new] for column in columns)
    if len(start) and int(end.max()) - int(start.min()) >= MAX_SPAN_NS:
        raise InputError(
            "its jobs lie more than 104 days apart",
            path=path,
            todo="remove the lines with wrong times, or record again",
        )
    backward = line[timed & ~forward].tolist()
    steps = [*dict.fromkeys(f"{first} to {stop}" for first, stop in lines.steps)]
    said = ", ".join(steps[:MOST_NAMED])
    warnings = [
        *(f"{len(backward)} jobs end before they start, the first in line {first}" for first in backward[:1]),
        *([f"is cut off in its last line, {lines.lines}"] if lines.cut_last_line else []),
        *([f"holds several profiled ranges of steps ({said}): the first one numbers them"] if len(steps) > 1 else []),
        *([] if len(start) else ["holds no job"]),
    ]
    left_out = {
        "lines without a job": lines.lines - lines.lines_with_jobs,
        "jobs that ran nothing on the compute stream (time 0)": how_many(~timed),
        "jobs that end before they start": len(backward),
        "jobs logged twice": how_many(~new),
        "last line cut off": lines.cut_last_line,
    }
    first, stop = lines.steps[0] if lines.steps else (None, None)
    return JobLog(
        path=path,
        rank=rank,
        machine=machine,
        strings=("", *(text.decode("utf-8", "replace") for text in lines.types)),
        type=(kind + 1).astype(np.int32),
        microbatch=microbatch,
        start_ns=start,
        end_ns=end,
        first_step=first,
        stop_step=stop,
        left_out={reason: n for reason, n in left_out.items() if n},
        warnings=tuple(f"{path}: {text}" for text in warnings),
    )


@dataclass(slots=True)
class JobLines:
    """The jobs of a log in the order of its lines.

    ``jobs`` has five numbers a job, one behind the other: its type (points into ``types``), its microbatch (``NOWHERE``
    where the line gives none), start and end in ns, and its line, from 1.
    """

    types: dict[bytes, int] = field(default_factory=dict)
    jobs: array[int] = field(default_factory=lambda: array("q"))
    steps: list[tuple[int, int]] = field(default_factory=list)  # what each "Schedule Profiler start at step" says
    lines: int = 0  # that ended before what is looked at; in the end, all
    last_line: int = 0  # with a job
    lines_with_jobs: int = 0
    cut_last_line: int = 0  # 1: the last line is a job whose end is missing

    def read(self, source: Source) -> JobLines:
        """Take all jobs of ``source``."""
        text, last = b"", b""
        more = source.read(BLOCK_BYTES)
        while more:
            text, last = text + more, more[-1:]
            more = source.read(BLOCK_BYTES)
            text = text[self._entries(source, text, at_end=not more) :]
        self.lines += last not in (b"", b"\n")
        return self

    def _entries(self, source: Source, text: bytes, *, at_end: bool) -> int:
        """Take the entries that begin in ``text`` and surely end in it; returns how much of it is done with."""
        limit = len(text) if at_end else max(len(text) - MOST_BYTES, 0)
        done = counted = 0
        for found in _ENTRY.finditer(text):
            if found.start() >= limit:
                break
            self.lines += text.count(b"\n", counted, found.start())
            counted, done = found.start(), found.end()
            *job, first, stop = found.groups()
            if first is not None:
                self.steps.append((int(first), int(stop)))
                continue
            line = self.lines + 1
            self.lines_with_jobs += line != self.last_line
            self.last_line = line
            if not self._job(*job, at_very_end=at_end and done == len(text)):
                self._refuse_unless_cut(source, text[found.start() :], at_end=at_end)
        done = max(done, limit)
        self.lines += text.count(b"\n", counted, done)
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
        """Take a job; False where what stands behind the marker is none."""
        # the writer prints six decimals, always: fewer at the very end of the file have been cut off
        if name is None or start is None or end is None or (at_very_end and len(end_fraction or b"") < _DIGITS):
            return False
        start_ns, end_ns = _ns(start, start_fraction), _ns(end, end_fraction)
        if start_ns > _LATEST_NS or end_ns > _LATEST_NS:
            return False
        number = NOWHERE if microbatch is None else max(int(microbatch), NOWHERE)
        self.jobs.extend((self.types.setdefault(name, len(self.types)), number, start_ns, end_ns, self.last_line))
        return True

    def _refuse_unless_cut(self, source: Source, rest: bytes, *, at_end: bool) -> None:
        if at_end and b"\n" not in rest and len(rest) <= MOST_BYTES:
            self.cut_last_line = 1
            return
        raise InputError(
            f"the numbers of a job cannot be read: {rest[:150].splitlines()[0].decode('utf-8', 'replace')!r}",
            path=source.path,
            where=f"line {self.last_line}",
            todo="take this line out, or record again",
        )


def read_job_lines(path: Path) -> JobLines:
    """Read the log at ``path``, plain or packed. Memory: some MB, and 40 bytes a job.

    Raises:
        InputError: the file cannot be read, or what follows a marker are no numbers; only the end of the file may be
            cut.
    """
    with open_source(path) as source:
        return JobLines().read(source)


def _ns(whole: bytes, fraction: bytes | None) -> int:
    """Return ns of a decimal text of ms, rounded to the nearest where it has more than six decimals."""
    if fraction is None:
        return int(whole) * 10**_DIGITS
    if len(fraction) == _DIGITS:
        return int(whole + fraction)
    return int(whole + fraction[:_DIGITS].ljust(_DIGITS, b"0")) + (fraction[_DIGITS : _DIGITS + 1] >= b"5")


WORKER: Final = re.compile(r"workerlog\.(\d{1,9})(?:\.(?:gz|zst|log|txt))*")
