"""nsys exports of a run: each is read once, whatever ranks it holds, and left for the processes that work on them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from graphlink.engine.engines import RunsOn, run_all
from graphlink.engine.memory import estimate_bytes, unpacked_bytes
from graphlink.errors import GraphlinkError, UsageError
from graphlink.read.nsys.places import Contents, number
from graphlink.read.nsys.report import read_report
from graphlink.run import job
from graphlink.run.ranks import Failed, good, naming_limits, naming_lost

_NUMBERS: Final = re.compile(r"([0-9]{1,18})")
_RANK: Final = re.compile(r"(?<![a-z])rank[_.-]?([0-9]{1,9})(?![0-9])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Task:
    export: Path
    stored: tuple[Path, str]  # folder, beginning of names


def ranks_of(exports: Sequence[Path], rank: int | None, folder: Path, runs_on: RunsOn) -> list[job.Inputs]:
    """The ranks that the exports of a run hold; their traces lie in ``folder``.

    ``rank``: that of the only one, from ``--rank``. Files count in the order of their names, numbers in them by value.

    Raises:
        InputError, SomeRanksFailed: all or some files cannot be read.
        UsageError: ``rank`` is given, and there are several.
    """
    exports = sorted(exports, key=_natural_order)
    tasks = [_Task(export, (folder, f"nsys.{k}")) for k, export in enumerate(exports)]
    if len(tasks) == 1:
        with naming_limits(str(exports[0])):
            files = [_store(tasks[0])]
    else:
        outcomes = run_all(_read, tasks, runs_on, [estimate_bytes(unpacked_bytes(e)) for e in exports], "files")
        files = good(naming_lost(outcomes, [str(e) for e in exports]), len(tasks), "files")
    if rank is not None and sum(len(contents.places) for contents in files) > 1:
        raise UsageError(
            f"--rank is for a single rank, and the nsys exports hold {sum(len(contents.places) for contents in files)}",
            path=exports[0],
            todo="leave it out: they are numbered by communicator, or by file, process and device",
        )
    out = []
    for k, (export, contents, numbering) in enumerate(
        zip(exports, files, number(files, [_named_rank(path) for path in exports]), strict=True)
    ):
        if rank is not None and not numbering.told:
            numbering = replace(numbering, ranks=(rank,))
        out += [
            job.Inputs(nsys=export, place=place, stored=_stored(tasks[k], place), numbering=numbering, rank=rank)
            for place in range(len(contents.places))
        ]
    return out


def _natural_order(path: Path) -> list[tuple[int, str]]:
    """run_2 before run_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBERS.split(str(path))]


def _named_rank(path: Path) -> int | None:
    found = _RANK.search(path.name)
    return int(found[1]) if found else None


def _read(task: _Task) -> Contents | Failed:
    try:
        with naming_limits(str(task.export)):
            return _store(task)
    except GraphlinkError as problem:
        return Failed(problem.text())


def _store(task: _Task) -> Contents:
    job.log.info("reading %s", task.export)
    report = read_report(task.export)
    for place, trace in enumerate(report.traces):
        job.store(trace, _stored(task, place))
    return report.contents


def _stored(task: _Task, place: int) -> Path:
    folder, name = task.stored
    return folder / f"{name}.{place}.columns"
