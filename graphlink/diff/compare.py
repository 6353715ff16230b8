"""Two runs compared: the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from graphlink.diff import facts
from graphlink.diff.changes import changes
from graphlink.diff.facts import Basis, RankFacts, RankPair, RunFacts
from graphlink.diff.pairs import DEVICE, Both, Matched, in_loader, matching, paired_parts
from graphlink.diff.records import Comparable, DiffReport, NameChange, OperationChange, RankChange
from graphlink.diff.run_level import communication, pipeline_change
from graphlink.diff.split import rank_splits, run_split
from graphlink.diff.verdict import comparable, fail_on, refuse, verdict
from graphlink.errors import InputError
from graphlink.gpu.table import replay_words
from graphlink.records import first_few

_SAME: Final = 0.0005  # of a count


def compare(before: Path, after: Path, *, anyway: bool = False, limit_pct: float | None = None) -> DiffReport:
    """Compare the runs in two output folders; ``limit_pct``: what ``--fail-on`` names.

    Raises:
        InputError: a file is missing or broken, or the runs do not compare and ``anyway`` is not set.
    """
    one, other = facts.load(before), facts.load(after)
    pairs = facts.rank_pairs(one, other)
    if not pairs:
        raise InputError(
            f"has no rank that {before} has: {_some(one)} before, {_some(other)} after",
            path=after,
            todo="link the same ranks of both runs",
        )
    basis = facts.basis(one, other)
    by_name = one.gpus == other.gpus or not one.gpus or not other.gpus
    matched = matching(pairs, basis, by_name)
    scored = comparable(one, other, matched, basis)
    if not anyway:
        refuse(scored, one, other)
    both = Both(one, other, pairs, basis, matched, [paired_parts(pair, basis, matched) for pair in pairs])
    return _report(both, limit_pct, scored)


def _some(run: RunFacts) -> str:
    return f"ranks {first_few(list(run.ranks), 8)}"


def _report(both: Both, limit_pct: float | None, scored: Comparable) -> DiffReport:
    one, other, basis = both.before, both.after, both.basis
    found = verdict(one, other, basis, compare=scored.score >= scored.least)
    groups, pipeline = [*communication(one, other, basis)], pipeline_change(one, other)
    return DiffReport(
        before=one.side(),
        after=other.side(),
        comparable=scored,
        verdict=found,
        changes=[] if found.identical else changes(both, found, groups, pipeline),
        split=run_split(one, other, both.ranks, basis),
        splits=[*rank_splits(both.ranks, basis)],
        ranks=[_rank(pair, both) for pair in both.ranks],
        operations=_operations(both),
        kernels=_names(both, DEVICE),
        syncs=_names(both, ("waiting_call",)),
        communication=groups,
        pipeline=pipeline,
        path_before_ns=_run_path(one),
        path_after_ns=_run_path(other),
        straggler_before=both.stragglers[0],
        straggler_after=both.stragglers[1],
        fail_on=None if limit_pct is None else fail_on(found, limit_pct),
        notes=_notes(both),
    )


def _run_path(run: RunFacts) -> dict[str, int]:
    together = run.summary.run
    if together is not None and together.replay is not None:
        return dict(together.replay.path_share_ns)
    return msgspec.structs.asdict(next(iter(run.ranks.values())).entry.critical_path.share_ns)


def _rank(pair: RankPair, both: Both) -> RankChange:
    basis = both.basis
    waits = [
        sum(wait.wait_ns for wait in (run.summary.run.waits if run.summary.run else ()) if wait.rank == rank.entry.rank)
        / (len(rank.entry.steps) if basis.per != "run" else 1)
        for run, rank in ((both.before, pair.before), (both.after, pair.after))
    ]
    return RankChange(
        rank=pair.rank,
        rank_after=pair.after.entry.rank,
        before_ns=round(float(basis.steps(pair.before).mean())),
        after_ns=round(float(basis.steps(pair.after).mean())),
        wait_before_ns=round(waits[0]),
        wait_after_ns=round(waits[1]),
        path_before_ns=msgspec.structs.asdict(pair.before.entry.critical_path.share_ns),
        path_after_ns=msgspec.structs.asdict(pair.after.entry.critical_path.share_ns),
    )


def _operations(both: Both) -> list[OperationChange]:
    """Return every operation, the largest change of device time first, then of host time."""
    times: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0] * 4)
    for pair in (pair for mine in both.parts for pair in mine):
        sums, at = times[pair.path], 0 if pair.of in DEVICE else 2
        if pair.of != "late":
            sums[at] += pair.mean_ns[0] / len(both.parts)
            sums[at + 1] += pair.mean_ns[1] / len(both.parts)
    sides = ([pair.before for pair in both.ranks], [pair.after for pair in both.ranks])
    calls, calls_after = (_calls(side, both.basis, both.matched) for side in sides)
    changes = [
        OperationChange(
            path=list(path),
            calls_before=round(calls.get(path, 0.0), 4),
            calls_after=round(calls_after.get(path, 0.0), 4),
            device_before_ns=round(device),
            device_after_ns=round(device_after),
            host_before_ns=round(host),
            host_after_ns=round(host_after),
        )
        for path, (device, device_after, host, host_after) in times.items()
        if path
    ]
    return sorted(
        changes,
        key=lambda one: (
            -abs(one.device_after_ns - one.device_before_ns),
            -abs(one.host_after_ns - one.host_before_ns),
            one.path,
        ),
    )


def _calls(ranks: Sequence[RankFacts], basis: Basis, matched: Matched) -> dict[tuple[str, ...], float]:
    """Return, of the ranks of a side by the path they are matched at, how often each operation is called forward, a
    step of the recording, mean over ranks.
    """
    calls = defaultdict[tuple[str, ...], float](float)
    for rank in ranks:
        steps = 1 if basis.per == "run" else max(len(rank.entry.steps), 1)
        for operation in rank.file.operations:
            own = tuple(operation.path)
            path = matched.path(own, operation.kind == "launch")
            if not in_loader(path, own):
                calls[path] += operation.calls / steps / len(ranks)
    return calls


def _names(both: Both, of: Sequence[str]) -> list[NameChange]:
    """Return what came, went, or is there more or less often, the most time first."""
    sums: dict[tuple[tuple[str, ...], str], list[float]] = defaultdict(lambda: [0.0] * 4)
    for pair in (pair for mine in both.parts for pair in mine if pair.of in of):
        for k, value in enumerate((*pair.counts, *pair.mean_ns)):
            sums[pair.path, pair.name][k] += value / len(both.parts)
    found = [
        NameChange(
            path=list(path),
            name=name,
            count_before=round(one, 6),
            count_after=round(other, 6),
            before_ns=round(ns),
            after_ns=round(ns_after),
        )
        for (path, name), (one, other, ns, ns_after) in sums.items()
        if abs(one * both.matched.repeats - other) > _SAME * max(one, other)
    ]
    return sorted(found, key=lambda one: (-abs(one.after_ns - one.before_ns), one.path, one.name))


def _notes(both: Both) -> list[str]:
    """Return what the reader should know of what was compared."""
    one, other, pairs = both.before, both.after, both.ranks
    recorded = [replay_words(*(gpu for rank in run.ranks.values() for gpu in rank.entry.gpu)) for run in (one, other)]
    notes = (
        (
            both.basis.per == "first step",
            "a run has one step only: the first steps are compared, which may include what is done only once",
        ),
        (
            both.basis.per == "run",
            "not both runs have steps, or they were found by other names: all that was recorded is compared",
        ),
        (
            len(pairs) < max(len(one.ranks), len(other.ranks)),
            f"{len(pairs):,} of {len(one.ranks):,} and {len(other.ranks):,} ranks are in both runs; the others are in "
            "no figure but the steps",
        ),
        (
            any(pair.rank != pair.after.entry.rank for pair in pairs),
            f"rank {pairs[0].rank} is compared with rank {pairs[0].after.entry.rank}: each run has only this one",
        ),
        (
            not all(run.has_device for run in (one, other)),
            "device ops are not recorded on both sides: host time alone is compared",
        ),
        *(
            (bool(words), f"{which} {words[2:]} of CUDA graphs: what the others ran counts as idle time")
            for which, words in zip("AB", recorded, strict=True)
        ),
    )
    return [text for holds, text in notes if holds]
