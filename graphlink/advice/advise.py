"""Advice for a run: what may be worth a change, with the gain that a replay of the changed graphs tells."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from graphlink import output_names
from graphlink.advice.kinds import candidates
from graphlink.advice.outputs import Outputs
from graphlink.advice.records import Advice, AdviceReport
from graphlink.errors import UsageError
from graphlink.operations import records as operation_records
from graphlink.replay.assumptions import cannot
from graphlink.replay.band import band, recorded, step_ns
from graphlink.replay.changes import Changes
from graphlink.replay.folder import load, load_groups
from graphlink.replay.machines import gain_pct, play, usual_machine
from graphlink.replay.path import critical_path
from graphlink.replay.played import Played
from graphlink.replay.whatif import fit
from graphlink.replay.workload import workload

if TYPE_CHECKING:
    from graphlink.page.found import Reading
    from graphlink.report.summary import Summary
    from graphlink.run.library import Run

Groups = Mapping[int, Sequence[int]]
_DIR: Final = re.compile(r"(?<= )DIR\b")
_NO_LINES: Final = (
    "no Python stacks were recorded: profile(with_stack=True) shows which functions wait, launch and compute"
)
_ET: Final = (
    "an execution trace was recorded, too: PyTorch writes it while ops run, so recorded steps may take several times "
    "what they take without it, and the GPU may wait for launches that else come in time; compare with a recording "
    "without it (execution_trace=False)"
)
_STUCK: Final = "ranks wait for each other for ever in the replay: see graphlink replay --machine coupled"


def advice_of(run: Run, files: Mapping[int, Path]) -> AdviceReport:
    """Return advice for the ranks of a run whose graphs are in ``files``.

    Raises:
        InputError: a file of the run cannot be read.
    """
    return _advice(run.summary, run.folder, files, str(run.folder))


def advice_in(summary: Summary, folder: str) -> AdviceReport:
    """Return advice for all ranks of a run whose files lie in ``folder``.

    Raises:
        InputError: a file of the run cannot be read.
    """
    where = Path(folder)
    files = {rank.rank: where / output_names.graph(summary.options.name, rank.rank) for rank in summary.ranks}
    return _advice(summary, where, files, folder)


def _advice(summary: Summary, folder: Path, files: Mapping[int, Path], name: str) -> AdviceReport:
    operations = {number: operation_records.load(folder / output_names.operations(number)) for number in files}
    outputs = Outputs(summary, tuple(files), workload(load(files)), operations)
    return advise(outputs, load_groups(folder), name, whole=len(files) == len(summary.ranks))


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
    path_ns = critical_path(run.work, before).length_ns
    prefix = [
        "graphlink",
        "replay",
        folder,
        *([] if whole else [part for rank in run.ranks for part in ("--rank", str(rank))]),
    ]
    advice = [_with_gain(*candidate, run, groups, before, path_ns, prefix) for candidate in candidates(run)]
    gaining = [one for one in _one_of_launches(advice) if one.gain_ns is None or one.gain_ns > 0]
    files = dict(zip(run.ranks, run.work.files, strict=True))
    return AdviceReport(
        ranks=list(run.ranks),
        machine=machine,
        replayed_ns=before.total_ns,
        path_ns=path_ns,
        advice=_in_order(gaining),
        notes=[*cannot(files, machine, Changes()), *_of_recorder(run, gaining)],
    )


def _in_order(advice: Sequence[Advice]) -> list[Advice]:
    """Return the advice by its gain of a step, else of the run, then what came once, then what has no gain; but what
    came once first, where nothing gains a hundredth."""

    def gain(one: Advice) -> float:
        return next((share for share in (one.gain_step_pct, one.gain_pct) if share is not None), -inf)

    once = 0 if max(map(gain, advice), default=0) >= 1 else inf
    return sorted(advice, key=lambda one: once if one.kind == "once" else gain(one), reverse=True)


def _one_of_launches(advice: Sequence[Advice]) -> list[Advice]:
    """Return the advice with one alone against what launches cost, the one that gains most; if that is without CUDA
    graphs because no graph can hold the work, it says so."""
    of_launches = [one for one in advice if one.kind == "launch_bound"]
    best = max(of_launches, key=lambda one: -1 if one.gain_ns is None else one.gain_ns, default=None)
    kept = [one for one in advice if one is best or one.kind != "launch_bound"]
    refused = next((one.why_not for one in of_launches if one is not best and one.why_not), "")
    if best is None or best.gain_ns is None or not refused:
        return kept
    return [replace(one, evidence=f"{one.evidence}; {refused}") if one is best else one for one in kept]


def _of_recorder(run: Outputs, told: Sequence[Advice]) -> list[str]:
    """Note that the lines of Python that wait are not known, and that the execution trace slows the host down, where
    advice is about these."""
    kinds, by_rank = {one.kind for one in told}, {rank.rank: rank for rank in run.summary.ranks}
    lines = any(one.stack for file in run.operations.values() for one in file.operations)
    slowed = any(by_rank[rank].inputs.et is not None and by_rank[rank].gpu for rank in run.ranks)
    notes = (("blocking_sync", not lines, _NO_LINES), ("launch_bound", slowed, _ET))
    return [note for kind, holds, note in notes if kind in kinds and holds]


def _with_gain(
    advice: Advice,
    changes: Changes | None,
    run: Outputs,
    groups: Groups,
    before: Played,
    path_ns: int,
    prefix: list[str],
) -> Advice:
    work = run.work
    todo, why_not = (_DIR.sub(lambda _: shlex.quote(prefix[2]), text) for text in (advice.todo, advice.why_not))
    without = replace(advice, todo=todo, why_not=why_not, supposed="")
    if changes is None:
        return without
    try:
        changed = fit(
            work, changes, groups, operation_records.of_files(run.operations) if changes.of_operations else None
        )
    except UsageError as problem:
        return replace(without, why_not=problem.what)
    if changed.refused:
        return replace(without, why_not=next(iter(changed.refused.values())).what)
    after = play(changed.work, groups)
    if not (before.ran.all() and after.ran.all()):
        return replace(without, why_not=_STUCK)
    gain_ns, records = before.total_ns - after.total_ns, recorded(run.summary.ranks)
    steps_ns = [step_ns(*replayed, records) for replayed in ((work, before), (changed.work, after))]
    options = [part for change in changes.each() for part in change.title.split(" ", 1)]
    return replace(
        without,
        gain_ns=gain_ns,
        gain_pct=gain_pct(gain_ns, path_ns),
        gain_step_pct=round(100 - 100 * steps_ns[1] / steps_ns[0], 6)
        if steps_ns[0] and steps_ns[1] is not None
        else None,
        band=band(changes, work, changed.work, before.total_ns, after, critical_path(changed.work, after), records)
        if gain_ns > 0
        else None,
        supposed=advice.supposed,
        command=shlex.join([*prefix, *options]),
    )
