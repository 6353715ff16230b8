"""Whether the second run is better, the same or worse: a test over steps, with its margin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from graphlink.diff.facts import ENOUGH, Basis, RunFacts
from graphlink.diff.pairs import Matched
from graphlink.diff.records import Answer, Comparable, FailOn, Reason, Verdict
from graphlink.errors import InputError
from graphlink.model import F64
from graphlink.records import counted
from graphlink.student import Compared, goes_together, paired, welch

LEVEL: Final = 0.995  # of confidence: one of 200 pairs of equal runs is said to differ
_LEAST: Final = 1e-6  # a chance that is printed
SAME_WITHIN: Final = 5.0  # per cent: a margin that is wider cannot tell that nothing changed
LEAST: Final = 30  # of the score
_OPTIONS: Final = ("step", "sync", "target", "gap_us", "comm_time", "host", "keep_unmatched")
_CHANGES_FIGURES: Final = ("step", "gap_us", "comm_time", "host")


def verdict(before: RunFacts, after: RunFacts, basis: Basis, *, compare: bool = True) -> Verdict:
    """Compare the times of the steps that count: by Welch's test, and where steps of one place are alike, pair
    by pair. Where the runs do not ``compare``, there is no test.
    """
    steps = basis.steps(before), basis.steps(after)
    # whether all steps, and all operations, of both runs take the same time to the ns: two recordings never do
    identical = len(before.ranks) == len(after.ranks) and all(
        one.took_ns == other.took_ns
        and one.entry.replay.measured_ns == other.entry.replay.measured_ns
        and one.file.operations == other.file.operations
        and one.file.parts == other.file.parts
        for one, other in zip(before.ranks.values(), after.ranks.values(), strict=True)
    )
    means = [float(sample.mean()) for sample in steps]
    found, test = _tested(*steps, enough=basis.enough) if compare else (None, "")
    margin = None if found is None else 100 * found.margin(LEVEL) / means[0]
    change_pct = 100 * (means[1] / means[0] - 1) if means[0] else 0.0
    answer, why = _answer(basis, found, change_pct, margin, identical)
    if not (compare or identical):
        answer, why = "do not compare", f"too little of them is equal: the score is below {LEAST}"
    return Verdict(
        answer=answer,
        identical=identical,
        per=basis.per,
        steps_before=basis.before,
        steps_after=basis.after,
        before_ns=round(means[0]),
        after_ns=round(means[1]),
        change_ns=round(means[1]) - round(means[0]),
        change_pct=round(change_pct, 4),
        low_pct=None if margin is None else round(max(change_pct - margin, -100.0), 4),
        high_pct=None if margin is None else round(change_pct + margin, 4),
        p=None if found is None else float(f"{found.p:.3g}"),
        level=LEVEL,
        test=test,
        why=why,
    )


def _tested(before: F64, after: F64, *, enough: bool) -> tuple[Compared | None, str]:
    """Return a test of the steps, and its name; None where they are too few. Two on each side can tell no more than
    that runs differ.
    """
    if not enough:
        few = welch(before, after) if min(len(before), len(after)) > 1 else None
        return (few, "Welch") if few is not None and few.p < 1 - LEVEL else (None, "")
    if goes_together(before, after, 1 - LEVEL):
        return paired(before, after), "paired"
    return welch(before, after), "Welch"


def _answer(
    basis: Basis, found: Compared | None, change_pct: float, margin: float | None, identical: bool
) -> tuple[Answer, str]:
    if identical:
        return "the same", "the recordings are identical: every step and every operation takes exactly the same time"
    if found is None or margin is None:
        few = (
            f"A has {basis.before:,} and B has {basis.after:,} after the first, and these prove no difference"
            if basis.per == "step"
            else "not both runs have one after the first"
        )
        return "cannot tell", f"too few steps: {few}; 'the same' needs {ENOUGH} on each side"
    if found.p < 1 - LEVEL:
        return (
            "worse" if change_pct > 0 else "better"
        ), f"chance alone makes such a difference in {_percent(found.p)} of cases"
    if margin <= SAME_WITHIN:
        return (
            "the same",
            f"the difference is within what the steps vary; more than {abs(change_pct) + margin:.1f} % is ruled out",
        )
    return (
        "cannot tell",
        f"the steps vary too much: the margin reaches {margin:.1f} % to each side; 'the same' needs {SAME_WITHIN:g} % "
        "or less",
    )


def _percent(p: float) -> str:
    return f"{100 * p:.2g} %" if p >= _LEAST else f"less than {100 * _LEAST:.4f} %"


def fail_on(found: Verdict, limit_pct: float) -> FailOn:
    """Decide whether B is slower than A by more than ``limit_pct``: the difference is, and the test tells that B is
    slower; where there are too few steps for a test, the difference alone decides. Identical recordings never are."""
    beyond = not found.identical and found.change_pct > limit_pct
    exceeded = beyond and (found.p is None or found.answer == "worse")
    if not beyond:
        told = f" is not more than {limit_pct:g} %"
    elif found.p is None:
        told = f", by the difference alone: {found.why}"
    else:
        told = f", {'and the test tells' if exceeded else 'but the test does not tell'} that B is slower"
    return FailOn(limit_pct=limit_pct, exceeded=exceeded, why=f"{found.change_pct:+.2f} %{told}")


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
        about = {"work": f"only {found.alike_pct:.0f} % of the work is equal"}
        told = (f"{about.get(one.about, one.about)}: {one.before} before, {one.after} after" for one in worst[:3])
        raise InputError(
            f"cannot be compared with {before.folder}: score {found.score} of 100, {found.least} are needed",
            path=after.folder,
            where="; ".join(told),
            todo="compare two runs of one program; --anyway compares these all the same",
        )


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
