"""The page of two runs compared, from the report of ``graphlink diff`` alone: verdict, what changed, where it shows."""

from __future__ import annotations

from graphlink.diff.changes import WORDS
from graphlink.diff.page_changes import causes, effects
from graphlink.diff.page_matched import communication, operations, path, pipeline
from graphlink.diff.page_split import split
from graphlink.diff.records import DiffReport, Reason, Side
from graphlink.diff.table import NOTHING_LEFT, PER, headline, one_end, side_line
from graphlink.figures import column, columns
from graphlink.page.parts import Cell, DotRow, Dots, Figure, Page, Part, Section, Sentence, Table, Words
from graphlink.page.words import entries, meanings, name, table, time_figure
from graphlink.records import counted, shortened, signed

MOST_STEPS = 2_000
_WHOSE = {"step": "A step takes ", "first step": "The first step takes ", "run": "All that was recorded takes "}


def diff_page(report: DiffReport) -> Page:
    """Return the page of a comparison."""
    lead = [Sentence(_verdict(report)), Sentence(_compares(report)), Sentence(_cause(report))]
    if report.fail_on is not None:
        limit, exceeded = report.fail_on.limit_pct, "exceeded" if report.fail_on.exceeded else "not exceeded"
        lead.append(Sentence([f"The limit of {limit:g} % (--fail-on) is {exceeded}: {report.fail_on.why}."]))
    made = [_comparable(report), causes(report), effects(report), split(report)]
    if not report.verdict.identical:
        made += [operations(report), communication(report), pipeline(report), path(report)]
    sections = [section for section in [*made, _steps(report)] if section is not None]
    about = f"A is {side_line(report.before)}. B is {side_line(report.after)}."
    return Page(
        title=headline(report.verdict), about=about, lead=lead, sections=sections, meanings=meanings(lead, sections)
    )


def _verdict(report: DiffReport) -> Words:
    found = report.verdict
    before, after = (
        time_figure(getattr(found, one), "of_a_step", f"diff#/verdict/{one}") for one in ("before_ns", "after_ns")
    )
    change = Figure(f"{found.change_pct:+.1f} %", found.change_pct, "change", "diff#/verdict/change_pct")
    told: Words = [_WHOSE[found.per], before, " in A and ", after, " in B: ", change, "."]
    if found.identical or found.low_pct is None or found.high_pct is None:
        return [*told, f" {found.why[0].upper()}{found.why[1:]}."]
    low = Figure(f"{found.low_pct:+.1f}", found.low_pct, "margin", "diff#/verdict/low_pct")
    one_sided = found.low_pct <= NOTHING_LEFT
    high = Figure(
        one_end(found.high_pct) if one_sided else f"{found.high_pct:+.1f} %",
        found.high_pct,
        "margin",
        "diff#/verdict/high_pct",
    )
    sure = (
        f" at {100 * found.level:g} % confidence ({found.test} test, {PER[found.per]}). "
        f"{found.why[0].upper()}{found.why[1:]}."
    )
    span: Words = [" is ", high] if one_sided else [" lies between ", low, " and ", high]
    return [*told, " The true change", *span, sure]


def _compares(report: DiffReport) -> Words:
    found = report.comparable
    score = Figure(f"{found.score} of 100", found.score, "score", "diff#/comparable/score")
    alike = Figure(f"{found.alike_pct:.0f} %", found.alike_pct, "score", "diff#/comparable/alike_pct")
    others = [one.about for one in found.reasons if not one.same]
    differ = f" They differ in {', '.join(others)}." if others else ""
    refused = f" That is below {found.least}: they were compared all the same." if found.score < found.least else ""
    return [
        "How far they compare: score ",
        score,
        "; ",
        alike,
        f" of the work is alike, matched by {found.matched_by}.{differ}{refused}",
    ]


def _cause(report: DiffReport) -> Words:
    first = next(((k, one) for k, one in enumerate(report.changes) if one.tier != "effect"), None)
    if first is None:
        return ["No cause was found beyond noise." if not report.verdict.identical else "Nothing changed."]
    k, one = first
    more = sum(other.tier != "effect" for other in report.changes) - 1
    size: Words = []
    if one.change_ns is not None:
        size = [
            " (",
            Figure(signed(one.change_ns), one.change_ns, "change", f"diff#/changes/{k}/change_ns"),
            f" {WORDS[report.verdict.per]})",
        ]
    others = f" {counted(more, 'more change')} below." if more else ""
    return ["What changed first of all: ", name(one.what), *size, f".{others}"]


def _comparable(report: DiffReport) -> Section:
    """Return whether the runs compare: each thing that was looked at, those that differ first."""
    every = entries(report.comparable.reasons)
    order = sorted(every, key=lambda entry: (entry[1].same, -entry[1].points))
    reasons = [reason for _, reason in order]
    shown = columns(
        Reason,
        reasons,
        "about",
        column("alike", "word", ["yes" if reason.same else "no" for reason in reasons]),
        column("A", "text", [Cell(shortened(reason.before, 160), whole=reason.before) for reason in reasons]),
        column("B", "text", [Cell(shortened(reason.after, 160), whole=reason.after) for reason in reasons]),
        column(
            "points off", "number", [Cell(f"{reason.points:g}", reason.points) for reason in reasons], name="points"
        ),
    )
    caption = "What tells the runs apart, and what they have in common"
    compared = table("reasons", caption, shown, "diff#/comparable/reasons", rows=order)
    notes = [Sentence([f"Note: {note}."], note=True) for note in report.notes]
    return Section("comparable", "Do they compare?", [compared, *notes])


def _steps(report: DiffReport) -> Section | None:
    """Return the times of the steps of both runs; None where neither has any."""
    sides = (("A", report.before), ("B", report.after))
    if not any(side.steps_ns for _, side in sides):
        return None
    apart = int(report.verdict.per == "step")
    means = (report.verdict.before_ns, report.verdict.after_ns) if apart else (None, None)
    dots = [DotRow(label, side.steps_ns, apart, mean) for (label, side), mean in zip(sides, means, strict=True)]
    first = "; the first one, pale, does not count" if apart else ""
    says = (
        f"Each dot is a step, the first on top{first}. The farther to the right, the longer it took. The scale "
        "does "
        "not begin at zero."
    )
    chart: Part = Dots("steps", "How long each step took", says, [row for row in dots if row.values])
    return Section("steps-of-both", "Step times", [chart, _step_table(report.before, report.after)])


def _step_table(one: Side, other: Side) -> Table:
    most = max(len(one.steps_ns), len(other.steps_ns))
    numbers = range(min(most, MOST_STEPS))
    sides = [[side.steps_ns[k] if k < len(side.steps_ns) else None for k in numbers] for side in (one, other)]
    shown = [
        column("no.", "number", [k + 1 for k in numbers]),
        column("A", "ns", sides[0], means="step"),
        column("B", "ns", sides[1], means="step"),
    ]
    keys = dict.fromkeys(f"{side.found_by} {side.step_key}".strip() for side in (one, other) if side.steps_ns)
    more = f"{most - MOST_STEPS:,} more steps are in the file of --json." if most > MOST_STEPS else ""
    caption = f"Steps of both runs, found by {shortened(' and '.join(keys), 100)}"
    return table("step-times", caption, shown, more=more)
