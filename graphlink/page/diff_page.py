"""The page of ``graphlink diff``: two runs compared, from the report alone."""

from __future__ import annotations

from typing import Final

from graphlink.diff.records import Change, DiffReport, NameChange
from graphlink.diff.split import BUSY
from graphlink.diff.table import margin_rows, pipeline_rows, side_line, verdict_line
from graphlink.operations.table import short_path
from graphlink.page.parts import Bar, Bars, Cell, Column, Figure, Meaning, Page, Part, Row, Section, Segment, Sentence, Table
from graphlink.page.words import MEANINGS, size, time, time_cell
from graphlink.records import counted, share_word

_MOST: Final = 300  # rows of a table
_STEPS: Final = 40
_KEYS: Final = dict(zip(BUSY, ("compute", "exposed_communication", "exposed_copy"), strict=True))
_SIDES: Final = (("A", "before"), ("B", "after"))


def diff_page(report: DiffReport) -> Page:
    """Return the page of a comparison: the verdict, what changed, where the time went, and the figures behind them."""
    made = (_changes(report), _time(report), _operations(report), _names(report), _communication(report), _path(report), _runs(report))
    sections = [one for one in made if one is not None]
    used = {column.means for one in sections for part in one.parts if isinstance(part, Table) for column in part.columns} - {""}
    meanings = [Meaning(key, *MEANINGS[key]) for key in MEANINGS if key in {*used, "change"}]
    about = "; ".join(f"{name}: {side_line(report, which)}" for name, which in _SIDES)
    return Page(title="Two runs compared", about=about, lead=_lead(report), sections=sections, meanings=meanings)


def _lead(report: DiffReport) -> list[Sentence]:
    found = report.verdict
    sure = ". ".join(f"{name.capitalize()}: {text}" for name, text in margin_rows(found))
    first = next((one for one in report.changes if one.tier != "effect"), None)
    change = Figure(f"{found.change_pct:+.1f} %", found.change_pct, "change", "diff#/verdict/change_pct")
    lines = (
        [Sentence([f"{verdict_line(found)} (", change, ")."])]
        if found.answer in ("better", "worse")
        else [Sentence([f"{verdict_line(found)}."])]
    )
    lines.append(Sentence([f"{sure}."]))
    if first is not None:
        lines.append(Sentence(["What changed first of all: ", Figure(first.what), "."]))
    if report.fail_on is not None:
        lines.append(Sentence([f"Limit of {report.fail_on.limit_pct:g} %: {'' if report.fail_on.exceeded else 'not '}exceeded."]))
    return lines


def _changes(report: DiffReport) -> Section:
    parts: list[Part] = []
    for name, caption, wanted in (("causes", "Causes, the first of all first", False), ("effects", "Where it shows", True)):
        rows = [(k, one) for k, one in enumerate(report.changes) if (one.tier == "effect") == wanted]
        if rows:
            columns = [
                *(Column("what", field="what"), Column("change a step", "number", "change", "change_ns"), Column("of the step", "number")),
                *(Column("A", "number"), Column("B", "number"), Column("ranks"), Column("evidence", field="evidence")),
            ]
            made = [Row(_change_cells(one), f"/{k}") for k, one in rows[:_MOST]]
            parts.append(Table(f"changes-{name}", caption, columns, made, "diff#/changes", _left(len(rows))))
    if not parts:
        parts = [Sentence(["Nothing changed beyond noise."], note=True)]
    return Section("changes", "What changed", parts)


def _change_cells(one: Change) -> list[Cell]:
    values = [Cell("") if value is None else Cell(_in_unit(value, one.unit), value) for value in (one.before, one.after)]
    share = Cell("") if one.change_pct is None else Cell(f"{one.change_pct:+.1f} %", one.change_pct)
    return [Cell(one.what), _signed(one.change_ns), share, *values, Cell(", ".join(map(str, one.ranks)) or "all"), Cell(one.evidence)]


def _in_unit(value: float, unit: str) -> str:
    return time(value) if unit.startswith("ns") else f"{value:,.4g} {unit}".rstrip()


def _time(report: DiffReport) -> Section:
    split = report.split
    bars = [
        Bar(
            f"{name}, a step",
            [Segment(_key(part.what), getattr(part, f"{which}_ns")) for part in split.parts],
            time(getattr(split, f"{which}_ns")),
        )
        for name, which in _SIDES
    ]
    says = "Time of a step of both runs, by what the GPU did; hatched: idle, by cause."
    rows = [
        Row([Cell(one.what, key=_key(one.what)), *_three(one.before_ns, one.after_ns, one.change_ns)], f"/{k}")
        for k, one in enumerate(split.parts)
        if one.before_ns or one.after_ns
    ]
    parts: list[Part] = [Bars("split", "Time of a step, A and B", says, [one for one in bars if any(s.value > 0 for s in one.segments)])]
    parts.append(Table("split-parts", "Its parts add up to the step", _columns("part", "change"), rows, "diff#/split/parts"))
    if max(len(report.before.steps_ns), len(report.after.steps_ns)) > 1:
        parts.append(_steps(report))
    if len(report.ranks) > 1:
        columns = [
            Column("rank", "number", field="rank"),
            Column("A", "number", "step", "before_ns"),
            Column("B", "number", "step", "after_ns"),
        ]
        columns += [Column("change", "number", "change"), Column("waited in A", "number", "wait", "wait_before_ns")]
        columns.append(Column("waited in B", "number", "wait", "wait_after_ns"))
        made = [
            Row(
                [
                    *(Cell(str(one.rank), one.rank), *_three(one.before_ns, one.after_ns, one.after_ns - one.before_ns)),
                    *(time_cell(one.wait_before_ns), time_cell(one.wait_after_ns)),
                ],
                f"/{k}",
            )
            for k, one in enumerate(report.ranks[:_MOST])
        ]
        parts.append(Table("ranks", "Ranks of both runs", columns, made, "diff#/ranks", _left(len(report.ranks))))
    return Section("time", "Where the time of a step goes", parts)


def _steps(report: DiffReport) -> Bars:
    bars = [
        Bar(f"{name}, step {k + 1:,}", [Segment("host", ns)], time(ns))
        for name, which in _SIDES
        for k, ns in enumerate(getattr(report, which).steps_ns[:_STEPS])
    ]
    left = max(len(getattr(report, which).steps_ns) for _, which in _SIDES) - _STEPS
    more = f" Of each run the first {_STEPS} are shown." if left > 0 else ""
    return Bars("steps", "Steps of both runs", f"How long each step took; the first of each run is set aside.{more}", bars)


def _operations(report: DiffReport) -> Section | None:
    rows = [
        Row(
            [
                Cell(short_path(one.path), whole="/".join(one.path)),
                *(_calls(one.calls_before), _calls(one.calls_after)),
                *_three(one.device_before_ns, one.device_after_ns, one.device_after_ns - one.device_before_ns),
                *_three(one.host_before_ns, one.host_after_ns, one.host_after_ns - one.host_before_ns),
            ],
            f"/{k}",
        )
        for k, one in enumerate(report.operations[:_MOST])
    ]
    columns = [
        Column("operation"),
        Column("calls A", "number", "calls", "calls_before"),
        Column("calls B", "number", "calls", "calls_after"),
    ]
    for what, means in (("device", "device_time"), ("host", "host_time")):
        columns += [Column(f"{what} {name}", "number", means, f"{what}_{which}_ns") for name, which in _SIDES]
        columns.append(Column(f"{what} change", "number", "change"))
    table = Table(
        "operations-both",
        "Operations of both runs, a step, mean over ranks",
        columns,
        rows,
        "diff#/operations",
        _left(len(report.operations)),
    )
    return Section("operations", "Operations", [table]) if rows else None


def _names(report: DiffReport) -> Section | None:
    parts: list[Part] = [
        Table(
            f"names-{name}",
            caption,
            _name_columns(),
            [_name(one, f"/{k}") for k, one in enumerate(of[:_MOST])],
            at=f"diff#/{name}",
            more=_left(len(of)),
        )
        for name, caption, of in (
            ("kernels", "Kernels and copies that came or went", report.kernels),
            ("syncs", "Synchronisation calls that came or went", report.syncs),
        )
        if of
    ]
    return Section("names", "What came and went", parts) if parts else None


def _name_columns() -> list[Column]:
    return [
        *(
            Column("name", field="name"),
            Column("operation"),
            Column("A", "number", "", "count_before"),
            Column("B", "number", "", "count_after"),
        ),
        *(Column("time A", "number", "", "before_ns"), Column("time B", "number", "", "after_ns"), Column("change", "number", "change")),
    ]


def _name(one: NameChange, at: str) -> Row:
    times = _three(one.before_ns, one.after_ns, one.after_ns - one.before_ns)
    return Row(
        [Cell(one.name), Cell(short_path(one.path), whole="/".join(one.path)), _calls(one.count_before), _calls(one.count_after), *times],
        at,
    )


def _communication(report: DiffReport) -> Section | None:
    rows = [
        Row(
            [
                *(Cell(one.group), Cell(one.type), _calls(one.count_before), _calls(one.count_after)),
                *(Cell(size(one.bytes_before), one.bytes_before), Cell(size(one.bytes_after), one.bytes_after)),
                *(
                    time_cell(one.transfer_before_ns),
                    time_cell(one.transfer_after_ns),
                    time_cell(one.wait_before_ns),
                    time_cell(one.wait_after_ns),
                ),
            ],
            f"/{k}",
        )
        for k, one in enumerate(report.communication[:_MOST])
    ]
    columns = [Column("group", field="group"), Column("type", field="type")]
    for what, means, field in (
        ("count", "", "count_{}"),
        ("bytes", "bytes", "bytes_{}"),
        ("transfer", "transfer", "transfer_{}_ns"),
        ("waited", "wait", "wait_{}_ns"),
    ):
        columns += [Column(f"{what} {name}", "number", means, field.format(which)) for name, which in _SIDES]
    table = Table("groups", "Communication by group, a step", columns, rows, "diff#/communication", _left(len(report.communication)))
    late = [
        Sentence([f"{name}: ", Figure(text), "."]) for name, text in (("A", report.straggler_before), ("B", report.straggler_after)) if text
    ]
    return Section("communication", "Communication", [table, *late]) if rows or late else None


def _path(report: DiffReport) -> Section | None:
    names = dict.fromkeys([*report.path_before_ns, *report.path_after_ns])
    rows = [
        Row([Cell(share_word(one)), *_three(before, after, after - before)])
        for one in names
        for before, after in [(report.path_before_ns.get(one, 0), report.path_after_ns.get(one, 0))]
        if before or after
    ]
    parts: list[Part] = [Table("path", "Critical path by share", _columns("share", "on_path"), rows)] if rows else []
    if report.pipeline is not None:
        made = [Row([Cell(one) for one in row]) for row in pipeline_rows(report.pipeline)]
        parts.append(Table("pipeline", "Pipeline", [Column("figure"), Column("A"), Column("B")], made))
    return Section("path", "Critical path and pipeline", parts) if parts else None


def _runs(report: DiffReport) -> Section:
    found = report.comparable
    told = f"Score {found.score} of 100, {found.least} are needed: {found.alike_pct:.0f} % of the work is alike, by {found.matched_by}."
    rows = [
        Row(
            [
                Cell(one.about),
                Cell(one.before),
                Cell(one.after),
                Cell("same" if one.same else "differs"),
                Cell(f"{one.points:g}", one.points),
            ],
            f"/{k}",
        )
        for k, one in enumerate(found.reasons)
    ]
    columns = [Column("about", field="about"), Column("A", field="before"), Column("B", field="after"), Column("alike")]
    table = Table(
        "compares", "What tells them apart", [*columns, Column("off the score", "number", "", "points")], rows, "diff#/comparable/reasons"
    )
    return Section(
        "runs", "Whether they compare", [Sentence([told]), table, *(Sentence([f"Note: {text}."], note=True) for text in report.notes)]
    )


def _columns(first: str, means: str) -> list[Column]:
    return [
        *(Column(first), Column("A", "number", "", "before_ns"), Column("B", "number", "", "after_ns")),
        Column("change", "number", means, "change_ns" if means == "change" else ""),
    ]


def _three(before_ns: int, after_ns: int, change_ns: int) -> list[Cell]:
    return [time_cell(before_ns), time_cell(after_ns), _signed(change_ns)]


def _signed(ns: int | None) -> Cell:
    return Cell("") if ns is None else Cell(f"{'+' if ns > 0 else ''}{time(ns)}", ns)


def _calls(count: float) -> Cell:
    return Cell(f"{count:,.4g}", count)


def _key(what: str) -> str:
    return _KEYS.get(what, what.removeprefix("idle: ") if what.startswith("idle: ") else "host")


def _left(count: int) -> str:
    return f"{counted(count - _MOST, 'more row')}: graphlink diff --json has them." if count > _MOST else ""
