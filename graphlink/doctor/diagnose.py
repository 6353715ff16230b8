"""All ranks of a run: what each lacks, and what they lack together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from graphlink.doctor.examine import Examined, examine, examine_alone
from graphlink.doctor.nccl import ALONE, dump_lacking
from graphlink.doctor.ranks import LEFT_ASIDE, ranks_lacking
from graphlink.doctor.records import Finding, merged
from graphlink.engine.engines import RunsOn, run_all
from graphlink.engine.memory import estimate_bytes, unpacked_bytes
from graphlink.errors import GraphlinkError, InputError
from graphlink.nccl.job import read_dumps
from graphlink.report.diagnosis import Diagnosis, Told
from graphlink.run.job import Inputs
from graphlink.run.ranks import Failed, naming_limits, naming_lost


@dataclass(frozen=True, slots=True)
class Given:
    """What there is of a run. ``bare``: execution traces that no recording can belong to; ``dumps``: side files of NCCL, of which
    ``found`` were found in folders, not named; ``passed_over``: what pairing had to say.
    """

    ranks: tuple[Inputs, ...] = ()
    bare: tuple[Path, ...] = ()
    dumps: tuple[Path, ...] = ()
    found: frozenset[Path] = frozenset()
    passed_over: tuple[str, ...] = ()


def diagnose(given: Given) -> tuple[list[int], list[Finding]]:
    """Ranks and findings of a run.

    Each rank is read in a process of its own, as many at a time as memory allows.

    Raises:
        InputError: a file cannot be read, or two recordings are of one rank.
    """
    inputs = given.ranks
    estimates = [estimate_bytes(sum(unpacked_bytes(path) for path in (one.recording, one.et) if path is not None)) for one in inputs]
    outcomes = naming_lost(run_all(_examine, inputs, RunsOn(None), estimates), [one.name for one in inputs])
    examined = []
    for outcome in outcomes:
        if isinstance(outcome, Failed):
            raise InputError(outcome.text)
        examined.append(outcome)
    first: dict[int, str] = {}
    for one, recording in zip(examined, inputs, strict=True):
        other = first.setdefault(one.rank, recording.name)
        if other != recording.name:
            raise InputError(f"is of rank {one.rank}, as is {other}", path=recording.name, todo="look at one run at a time")
    return sorted(first), findings_of(examined, given)


def findings_of(examined: Sequence[Examined], given: Given) -> list[Finding]:
    """All findings of a run of which each rank was examined, what costs most first.

    Raises:
        InputError: an execution trace or side file cannot be read.
    """
    findings = [finding for one in examined for finding in one.findings]
    rows = [one.rows for one in examined if one.rows is not None]
    if rows:
        findings += ranks_lacking(rows)
    findings += map(examine_alone, given.bare)
    passed_over = list(given.passed_over)
    for path in given.dumps:
        with naming_limits(str(path)):
            dumps, unread = read_dumps({path: str(path)}, given.found)
        passed_over += unread
        for dump in dumps:
            findings += dump_lacking(dump)
            if not examined:
                findings.append(Finding(ALONE, figures={"calls": len(dump.calls.seq)}, files=(dump.path,)))
    if passed_over:
        findings.append(Finding(LEFT_ASIDE, 0.0, told=tuple(passed_over)))
    return merged(findings)


def _examine(inputs: Inputs) -> Examined | Failed:
    try:
        with naming_limits(inputs.name):
            return examine(inputs)
    except GraphlinkError as problem:
        return Failed(problem.text())


def as_file(subject: Sequence[str], ranks: Sequence[int], findings: Sequence[Finding]) -> Diagnosis:
    """As ``--json`` prints it."""
    told = [
        Told(
            name=f.kind.name,
            level=f.kind.level.name.lower(),
            lacks=f.lacks,
            costs=f.costs,
            record=f.record,
            by_capture=f.kind.by_capture,
            share=round(f.share, 6),
            figures=f.figures,
            parts=f.parts,
            told=list(f.told),
            ranks=list(f.ranks),
            files=list(f.files),
        )
        for f in findings
    ]
    return Diagnosis(subject=list(subject), ranks=list(ranks), findings=told)
