"""Advice for a run: what may be worth a change, with the gain that a replay of the changed graphs tells."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from graphlink import output_names
from graphlink.advice.kinds import Outputs, candidates
from graphlink.advice.records import Advice, AdviceReport, Candidate
from graphlink.errors import UsageError
from graphlink.operations import file as operations_file
from graphlink.replay.assumptions import cannot
from graphlink.replay.band import band, recorded
from graphlink.replay.changes import Changes
from graphlink.replay.folder import load, load_groups
from graphlink.replay.machines import play, usual_machine
from graphlink.replay.path import critical_path
from graphlink.replay.played import Played
from graphlink.replay.whatif import fit
from graphlink.replay.workload import workload

if TYPE_CHECKING:
    from pathlib import Path

    from graphlink.page.found import Reading
    from graphlink.run.library import Run

Groups = Mapping[int, Sequence[int]]
_DIR: Final = re.compile(r"(?<= )DIR\b")
_NO_LINES: Final = (
    "no Python stacks were recorded: profile(with_stack=True) shows which line waits, launches and computes"
)
_STUCK: Final = "ranks wait for each other for ever in the replay: see graphlink replay --machine coupled"


def advice_of(run: Run, files: Mapping[int, Path]) -> AdviceReport:
    """Return advice for the ranks of a run whose graphs are in ``files``.

    Raises:
        InputError: a file of the run cannot be read.
    """
    operations = {number: operations_file.load(run.folder / output_names.operations(number)) for number in files}
    outputs = Outputs(run.summary, tuple(files), workload(load(files)), operations)
    return advise(outputs, load_groups(run.folder), str(run.folder), whole=len(files) == len(run.ranks))


def of_page(reading: Reading) -> AdviceReport | None:
    """Return advice for the ranks of a run that are replayed for its page; None where none is."""
    if reading.work is None:
        return None
    operations = {rank: reading.parts["operations"][rank] for rank in reading.graphs}
    outputs = Outputs(reading.summary, tuple(reading.graphs), reading.work, operations)
    whole = len(reading.graphs) == len(reading.summary.ranks)
    return advise(outputs, reading.groups, str(reading.folder), whole=whole)


def advise(run: Outputs, groups: Groups, folder: str, *, whole: bool) -> AdviceReport:
    """Return advice for a run, the largest gain first; what gains nothing is left out. A replay for each candidate.

    ``groups`` is ``comm_group.json``; ``folder`` stands in commands; ``whole``: ``run`` has all ranks that the folder
    has.
    """
    machine = usual_machine(len(run.ranks))
    before = play(run.work, groups)
    prefix = [
        "graphlink",
        "replay",
        folder,
        *([] if whole else [part for rank in run.ranks for part in ("--rank", str(rank))]),
    ]
    found = [_advice(one, run, groups, before, prefix) for one in candidates(run)]
    told = [one for one in found if one.gain_ns is None or one.gain_ns > 0]
    files = dict(zip(run.ranks, run.work.files, strict=True))
    return AdviceReport(
        ranks=list(run.ranks),
        machine=machine,
        replayed_ns=before.total_ns,
        advice=sorted(told, key=lambda one: -1 if one.gain_ns is None else one.gain_ns, reverse=True),
        notes=[*cannot(files, machine, Changes()), *_no_lines(run, told)],
    )


def _no_lines(run: Outputs, told: Sequence[Advice]) -> list[str]:
    """Note that the lines of Python that wait are not known."""
    lines = any(one.stack for file in run.operations.values() for one in file.operations)
    return [] if lines or not any(one.kind == "blocking_sync" for one in told) else [_NO_LINES]


def _advice(one: Candidate, run: Outputs, groups: Groups, before: Played, prefix: list[str]) -> Advice:
    work = run.work
    todo, why_not = (_DIR.sub(lambda _: shlex.quote(prefix[2]), text) for text in (one.todo, one.why_not))
    told = Advice(kind=one.kind, what=one.what, evidence=one.evidence, todo=todo, why_not=why_not)
    if one.changes is None:
        return told
    try:
        changed = fit(work, one.changes, groups)
    except UsageError as problem:
        return _without_gain(told, problem.what)
    if changed.refused:
        return _without_gain(told, next(iter(changed.refused.values())).what)
    after = play(changed.work, groups)
    if not (before.ran.all() and after.ran.all()):
        return _without_gain(told, _STUCK)
    gain_ns = before.total_ns - after.total_ns
    return Advice(
        kind=told.kind,
        what=told.what,
        evidence=told.evidence,
        todo=told.todo,
        gain_ns=gain_ns,
        gain_pct=round(100 * gain_ns / before.total_ns, 6) if before.total_ns else 0.0,
        band=band(
            work, changed.work, before.total_ns, after, critical_path(changed.work, after), recorded(run.summary.ranks)
        )
        if gain_ns > 0
        else None,
        supposed=one.supposed,
        command=shlex.join([*prefix, *one.arguments]),
    )


def _without_gain(told: Advice, why: str) -> Advice:
    return Advice(kind=told.kind, what=told.what, evidence=told.evidence, todo=told.todo, why_not=why)
