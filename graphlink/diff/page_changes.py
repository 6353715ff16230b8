"""What is other in the second of two runs, causes before what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from graphlink.diff.records import Change, DiffReport
from graphlink.figures import column, columns
from graphlink.page.parts import Bar, Bars, Cell, Part, Section, Segment, Sentence
from graphlink.page.words import cell, entries, table
from graphlink.records import shortened, signed, time

MOST_BARS: Final = 12
MOST_ROWS: Final = 300


def causes(report: DiffReport) -> Section:
    """Return what was changed."""
    found = [entry for entry in entries(report.changes) if entry[1].tier != "effect"]
    title, why = "What changed, causes first", "A cause is what the recordings show to be other, no proof."
    if not found:
        return Section("changes", title, [Sentence([_nothing(report)])])
    says = "How much longer (right) or shorter (left) each takes in B."
    return Section("changes", title, [Sentence([why], note=True), *_listed("causes", "Causes", says, found)])


def _nothing(report: DiffReport) -> str:
    if report.verdict.identical:
        return "Nothing changed."
    return "No cause was found beyond noise." if report.changes else "Nothing changed beyond noise."


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
    if value is None:
        return Cell("")
    return Cell(time(value) if unit.startswith("ns") else f"{value:,.4g}", value)
