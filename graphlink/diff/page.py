"""The page of two runs compared, from the report of ``graphlink diff`` alone: verdict, what changed, where it shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from graphlink.causes import CAUSES
from graphlink.diff.changes import WORDS
from graphlink.diff.page_matched import communication, operations, path, pipeline
from graphlink.diff.records import Change, DiffReport, RankChange, Reason, Side, Split
from graphlink.diff.split import BUSY, HOST, IDLE
from graphlink.diff.table import NOTHING_LEFT, PER, both, compared, headline, one_end, side_line
from graphlink.figures import column, columns
from graphlink.page.parts import (
    Bar,
    Bars,
    Cell,
    Figure,
    Page,
    Part,
    Section,
    Segment,
    Sentence,
    Table,
    Words,
)
from graphlink.page.words import cell, entries, meanings, name, table, time_figure
from graphlink.records import amount, counted, shortened, signed, time

MOST_STEPS = 2_000
_WHOSE = {"step": "A step takes ", "first step": "The first step takes ", "run": "All that was recorded takes "}
MOST_BARS: Final = 12
MOST_ROWS: Final = 300
MOST_RANKS: Final = 8  # as bars
MOST_RANK_ROWS: Final = 300
KEYS: Final = {
    **dict(zip(BUSY, ("compute", "exposed_communication", "exposed_copy"), strict=True)),
    **dict(zip(IDLE, CAUSES, strict=True)),
    HOST: "host",
}


def diff_page(report: DiffReport) -> Page:
    """Return the page of a comparison."""
    lead = [Sentence(_verdict(report)), Sentence(_compares(report)), Sentence(_cause(report))]
    if report.fail_on is not None:
        limit, exceeded = report.fail_on.limit_pct, "exceeded" if report.fail_on.exceeded else "not exceeded"
        lead.append(Sentence([f"The limit of {limit:g} % (--fail-on) is {exceeded}: {report.fail_on.why}."]))
    made = [_comparable(report), causes(report), effects(report), split(report)]
    if not report.verdict.identical:
        made += [operations(report), communication(report), pipeline(report), path(report)]
    sections = [section for section in [*made, _steps(report.before, report.after)] if section is not None]
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
        f" of the work is equal, matched by {found.matched_by}.{differ}{refused}",
    ]


def _cause(report: DiffReport) -> Words:
    first = next(((k, one) for k, one in enumerate(report.changes) if one.tier != "effect"), None)
    if first is None:
        return ["No cause was found beyond noise." if not report.verdict.identical else "Nothing changed."]
    k, one = first
    more = sum(other.tier != "effect" for other in report.changes) - 1
    size: Words = (
        []
        if one.change_ns is None
        else [
            " (",
            Figure(signed(one.change_ns), one.change_ns, "change", f"diff#/changes/{k}/change_ns"),
            f" {WORDS[report.verdict.per]})",
        ]
    )
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
    caption = "How the runs differ, and what they have in common"
    compared = table("reasons", caption, shown, "diff#/comparable/reasons", rows=order)
    notes = [Sentence([f"Note: {note}."], note=True) for note in report.notes]
    return Section("comparable", "Do they compare?", [compared, *notes])


def _steps(before: Side, after: Side) -> Section | None:
    """Return the times of the steps of both runs; None where neither has any."""
    most = max(len(before.steps_ns), len(after.steps_ns))
    if not most:
        return None
    numbers = range(min(most, MOST_STEPS))
    sides = [[side.steps_ns[k] if k < len(side.steps_ns) else None for k in numbers] for side in (before, after)]
    shown = [
        column("no.", "number", [k + 1 for k in numbers]),
        column("A", "ns", sides[0], means="step"),
        column("B", "ns", sides[1], means="step"),
    ]
    keys = dict.fromkeys(f"{side.found_by} {side.step_key}".strip() for side in (before, after) if side.steps_ns)
    more = f"{most - MOST_STEPS:,} more steps are in the file of --json." if most > MOST_STEPS else ""
    caption = f"Steps of both runs, found by {shortened(' and '.join(keys), 100)}"
    return Section("steps-of-both", "Step times", [table("step-times", caption, shown, more=more)])


def causes(report: DiffReport) -> Section:
    """Return what was changed."""
    found = [entry for entry in entries(report.changes) if entry[1].tier != "effect"]
    title, why = "What changed, causes first", "A cause is what the recordings show to be other, no proof."
    if not found:
        noise = "No cause was found beyond noise." if report.changes else "Nothing changed beyond noise."
        return Section("changes", title, [Sentence(["Nothing changed." if report.verdict.identical else noise])])
    says = "How much longer (right) or shorter (left) each takes in B."
    return Section("changes", title, [Sentence([why], note=True), *_listed("causes", "Causes", says, found)])


def effects(report: DiffReport) -> Section | None:
    """Return where the changes show; None where they do not."""
    found = [entry for entry in entries(report.changes) if entry[1].tier == "effect"]
    says = "How much longer (right) or shorter (left) the GPU is idle, or something waits, in B."
    return (
        Section("effects", "Where it shows", _listed("effects-of", "Idle time and waits that follow", says, found))
        if found
        else None
    )


def _listed(key: str, title: str, says: str, found: Sequence[tuple[str, Change]]) -> list[Part]:
    shown = [one for _, one in found[:MOST_ROWS]]
    bars = [
        Bar(f"{n}. {one.what}", [Segment("change", one.change_ns)], signed(one.change_ns))
        for n, one in enumerate(shown, 1)
        if one.change_ns
    ]
    amounts = [[_amount(value, one.unit) for value in (one.before, one.after)] for one in shown]
    listed = columns(
        Change,
        shown,
        column("no.", "number", range(1, len(shown) + 1)),
        "change_ns",
        "change_pct",
        column("what", "word", [one.what for one in shown]),
        column("evidence", "text", [Cell(shortened(one.evidence, 160), whole=one.evidence) for one in shown]),
        "ranks",
        *(
            column(title, "about", [sides[k] for sides in amounts], name=field)
            for k, (title, field) in enumerate((("A", "before"), ("B", "after")))
        ),
        column("unit", "word", [one.unit.removeprefix("ns ") for one in shown]),  # its times have theirs
        "factor",
    )
    listed = [shown for shown in listed if any(cell(shown.unit, value).text for value in shown.values)]
    more = f"{len(found) - MOST_ROWS:,} more are in the file of --json." if len(found) > MOST_ROWS else ""
    every = table(key, f"{title}, in this order", listed, "diff#/changes", more, found[:MOST_ROWS])
    return [Bars(f"{key}-bars", f"{title}: the difference of each", says, bars[:MOST_BARS]), every] if bars else [every]


def _amount(value: float | None, unit: str) -> Cell:
    return Cell("") if value is None else Cell(time(value) if unit.startswith("ns") else amount(value), value)


def split(report: DiffReport) -> Section:
    """Return the section: A beside B, and the differences."""
    whose = "Mean over ranks, of each its busiest GPU. " if len(report.ranks) > 1 else ""
    host = all(part.what == HOST for part in report.split.parts)
    did = "" if host else " by what the GPU did"
    says = (
        "No device ops were recorded."
        if host
        else f"{whose}After compute, communication and copies: why the GPU was idle. The parts of the table add up to "
        "the step exactly."
    )
    parts: list[Part] = [
        Bars("split", f"Time {WORDS[report.verdict.per]}{did}", says, _pair("", report.split)),
        *_differences(report.split),
        _table(report.split),
        *(_ranks(report) if len(report.ranks) > 1 or len(report.splits) > 1 else []),
    ]
    return Section("time", "Where the time goes", parts)


def _pair(whose: str, of: Split) -> list[Bar]:
    """Return a bar for A and one for B; what is less than nothing cannot be drawn, and stands in the table."""
    return [
        Bar(
            f"{whose}{side}",
            [
                Segment(KEYS.get(part.what, "other"), getattr(part, field))
                for part in of.parts
                if getattr(part, field) > 0
            ],
            told,
        )
        for side, field, told in (("A", "before_ns", time(of.before_ns)), ("B", "after_ns", time(of.after_ns)))
    ]


def _differences(of: Split) -> list[Part]:
    changed = sorted((part for part in of.parts if part.change_ns), key=lambda part: -abs(part.change_ns))
    if not changed:
        return [Sentence(["Every part takes as long in B as in A."])]
    bars = [
        Bar(part.what, [Segment(KEYS.get(part.what, "other"), part.change_ns)], signed(part.change_ns))
        for part in changed
    ]
    says = (
        "What of the difference is in which part, the largest first: right takes longer in B, left takes less. "
        "They "
        "add up to the whole."
    )
    return [Bars("split-change", f"The difference of {signed(of.change_ns)}, by part", says, bars)]


def _table(of: Split) -> Table:
    before, after, change, factor = compared(of.with_sum, "{}_ns", means="of_a_step")
    shown = [
        column("part", "word", [*(Cell(part.what, key=KEYS.get(part.what, "other")) for part in of.parts), "sum"]),
        before,
        after,
        change._replace(name="change_ns"),
        factor,
        column("of B", "part", [*((part.after_ns, of.after_ns) for part in of.parts), None], means="of_a_step"),
    ]
    places = [*((f"/parts/{k}",) for k in range(len(of.parts))), ("",)]
    return table("parts", "Parts of the time", shown, "diff#/split", rows=places)


def _ranks(report: DiffReport) -> list[Part]:
    """Return all ranks in a table, and those that changed most as bars; who stands out."""
    order = sorted(entries(report.ranks), key=lambda entry: -abs(entry[1].after_ns - entry[1].before_ns))
    chosen = sorted(one.rank for _, one in order[:MOST_RANKS])
    several = {
        one.rank
        for k, one in enumerate(report.splits)
        if any(other.rank == one.rank for other in report.splits[k + 1 :])
    }
    shown = [one for one in report.splits if one.rank in chosen][: 2 * MOST_RANKS]
    bars = [
        bar
        for one in shown
        for bar in _pair(f"rank {one.rank}{f', GPU {one.device}' if one.rank in several else ''}, ", one)
    ]
    some = f", the {len(chosen)} of {len(report.ranks)} that changed most" if len(chosen) < len(report.ranks) else ""
    stragglers = [
        Sentence([f"Straggler in {name}: {evidence}."])
        for name, evidence in (("A", report.straggler_before), ("B", report.straggler_after))
        if evidence
    ]
    return [
        *stragglers,
        Bars("split-ranks", f"Each rank{some}: A above B", "The chart of the run, for each GPU.", bars),
        _rank_table(report, order[:MOST_RANK_ROWS]),
    ]


def _rank_table(report: DiffReport, order: Sequence[tuple[str, RankChange]]) -> Table:
    parts: dict[int | None, str] = {}
    for device in report.splits:
        most = max(device.parts, key=lambda part: abs(part.change_ns), default=None)
        if most is not None and most.change_ns:
            parts.setdefault(device.rank, f"{most.what} {signed(most.change_ns)}")
    rows = [rank for _, rank in order]
    shown = columns(
        RankChange,
        rows,
        "rank",
        *compared(rows, "{}_ns", means="of_a_step"),
        *both(rows, "wait_{}_ns", "waited for ranks", means="wait"),
        column("most by", "word", [parts.get(rank.rank, "") for rank in rows]),
    )
    left = len(report.ranks) - len(rows)
    more = f"{counted(left, 'more rank')} in the file of --json." if left else ""
    return table("ranks", "Ranks, the largest change first", shown, "diff#/ranks", more, order)
