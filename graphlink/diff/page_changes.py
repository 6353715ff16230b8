"""What is other in the second of two runs, causes before what follows from them."""

from __future__ import annotations

from typing import Final

from graphlink.diff.records import Change, DiffReport
from graphlink.page.parts import Bar, Bars, Cell, Column, Part, Row, Section, Segment, Sentence, Table
from graphlink.page.words import numbers_cell, signed, signed_cell
from graphlink.records import shortened, time, times

MOST_BARS: Final = 12
MOST_ROWS: Final = 300


def causes(report: DiffReport) -> Section:
    """Return what was changed."""
    found = [(k, one) for k, one in enumerate(report.changes) if one.tier != "effect"]
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
    found = [(k, one) for k, one in enumerate(report.changes) if one.tier == "effect"]
    says = "How much longer (right) or shorter (left) the GPU is idle, or something waits, in B."
    return (
        Section("effects", "Where it shows", _listed("effects-of", "Idle time and waits that follow", says, found))
        if found
        else None
    )


def _listed(key: str, title: str, says: str, found: list[tuple[int, Change]]) -> list[Part]:
    shown = [one for _, one in found[:MOST_ROWS]]
    bars = [
        Bar(f"{n}. {one.what}", [Segment("change", one.change_ns)], signed(one.change_ns))
        for n, one in enumerate(shown, 1)
        if one.change_ns
    ]
    columns: list[tuple[Column, list[Cell]]] = [
        (Column("no.", "number"), [Cell(str(n), n) for n in range(1, len(shown) + 1)]),
        (Column("change", "number", "change", "change_ns"), [signed_cell(one.change_ns) for one in shown]),
        (Column("of the step", "number", "of_step", "change_pct"), [_per_cent(one.change_pct) for one in shown]),
        (Column("what"), [Cell(one.what) for one in shown]),
        (Column("evidence"), [Cell(shortened(one.evidence, 160), whole=one.evidence) for one in shown]),
        (Column("ranks"), [numbers_cell(one.ranks) for one in shown]),
        (Column("A", "number", field="before"), [_amount(one.before, one.unit) for one in shown]),
        (Column("B", "number", field="after"), [_amount(one.after, one.unit) for one in shown]),
        (Column("unit"), [Cell(one.unit.removeprefix("ns ")) for one in shown]),  # its times have theirs
        (Column("factor", "number", "factor", "factor"), [_factor(one.factor) for one in shown]),
    ]
    columns = [(column, cells) for column, cells in columns if any(cell.text for cell in cells)]
    rows = [Row([cells[n] for _, cells in columns], f"/{k}") for n, (k, _) in enumerate(found[:MOST_ROWS])]
    more = f"{len(found) - MOST_ROWS:,} more are in the file of --json." if len(found) > MOST_ROWS else ""
    table = Table(key, f"{title}, in this order", [column for column, _ in columns], rows, "diff#/changes", more)
    return [Bars(f"{key}-bars", f"{title}: the difference of each", says, bars[:MOST_BARS]), table] if bars else [table]


def _per_cent(share: float | None) -> Cell:
    return Cell("") if share is None else Cell(f"{share:+.1f} %", share)


def _factor(factor: float | None) -> Cell:
    return Cell("") if factor is None else Cell(times(factor), factor)


def _amount(value: float | None, unit: str) -> Cell:
    if value is None:
        return Cell("")
    return Cell(time(value) if unit.startswith("ns") else f"{value:,.4g}", value)
