"""Whether two runs compare: how much of their work is the same, and in what else they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from graphlink.diff.facts import Basis, RunFacts
from graphlink.diff.pairs import Matched
from graphlink.diff.records import Comparable, Reason
from graphlink.errors import InputError
from graphlink.records import counted

LEAST: Final = 30  # of the score
_OPTIONS: Final = ("step", "sync", "target", "gap_us", "comm_time", "host", "keep_unmatched")
_CHANGES_FIGURES: Final = ("step", "gap_us", "comm_time", "host")


def comparable(before: RunFacts, after: RunFacts, matched: Matched, basis: Basis) -> Comparable:
    """Estimate how far two runs compare, as a score: 100 x the share of their work that is alike, less points for other
    differences.
    """
    alike = 100 * matched.alike
    reasons = [
        _reason("work", *matched.has, matched.alike > 0.95, 100 - alike),
        *_differences(before, after, basis),
    ]
    score = max(0, round(100 - sum(reason.points for reason in reasons)))
    return Comparable(
        score=min(score, 100),
        least=LEAST,
        alike_pct=round(alike, 2),
        matched_by=matched.level,
        other_hardware=not matched.by_name,
        reasons=reasons,
    )


def refuse(found: Comparable, before: RunFacts, after: RunFacts) -> None:
    """Refuse runs that do not compare.

    Raises:
        InputError: the score is too low.
    """
    if found.score < found.least:
        worst = sorted((one for one in found.reasons if one.points), key=lambda one: -one.points)
        told = "; ".join(_told(one, found) for one in worst[:3])
        raise InputError(
            f"does not compare with {before.folder}: score {found.score} of 100, {found.least} are needed",
            path=after.folder,
            where=told,
            todo="compare two runs of one program; --anyway compares these all the same",
        )


def _told(one: Reason, found: Comparable) -> str:
    if one.about == "work":
        return f"only {found.alike_pct:.0f} % of the work is alike: {one.before} before, {one.after} after"
    return f"{one.about}: {one.before} before, {one.after} after"


def _reason(about: str, before: str, after: str, same: bool, points: float) -> Reason:
    return Reason(about=about, before=before, after=after, same=same, points=0.0 if same else round(points, 2))


def _differences(before: RunFacts, after: RunFacts, basis: Basis) -> list[Reason]:
    pairs: list[tuple[str, Sequence[Any], float]] = [
        ("ranks", [f"{counted(len(run.ranks), 'rank')} of {run.side().world_size:,}" for run in (before, after)], 5),
        ("GPUs", [", ".join(run.gpus) or "not recorded" for run in (before, after)], 0),
        ("device ops", ["recorded" if run.has_device else "none" for run in (before, after)], 75),
        ("steps", [_steps(run) for run in (before, after)], 0 if basis.per == "step" else 5),
        *((about, [_word(run, what) for run in (before, after)], points) for about, what, points in _RECORDED),
    ]
    for name in _OPTIONS:
        values = [str(getattr(run.summary.options, name)) for run in (before, after)]
        if values[0] != values[1]:
            pairs.append((f"option --{name.replace('_', '-')}", values, 5 if name in _CHANGES_FIGURES else 0))
    return [_reason(about, str(one), str(other), one == other, points) for about, (one, other), points in pairs]


_RECORDED: Final = (
    ("recorded by", "source", 10.0),
    ("execution trace", "et", 3.0),
    ("cuda_sync rows", "rows", 3.0),
    ("shapes", "shapes", 0.0),
    ("stacks", "stacks", 0.0),
)


def _steps(run: RunFacts) -> str:
    side = run.side()
    return f"{len(side.steps_ns):,} by {side.found_by} {side.step_key}".strip() if side.steps_ns else "none"


def _word(run: RunFacts, what: str) -> str:
    """Return how the run was recorded, in a word."""
    ranks = list(run.ranks.values())
    if what == "source":
        return "nsys" if any(one.entry.inputs.nsys for one in ranks) else "Kineto"
    there = {
        "et": any(one.entry.inputs.et for one in ranks),
        "rows": any(one.entry.sync.by_source.get("cuda_sync") for one in ranks),
        "shapes": any(operation.shapes for one in ranks for operation in one.file.operations),
        "stacks": any(operation.stack for one in ranks for operation in one.file.operations),
    }
    return "yes" if there[what] else "no"
