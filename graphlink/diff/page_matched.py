"""What both of two runs have, side by side: operations, what came and went, communication, pipeline, critical path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from graphlink.diff.records import DiffReport, GroupChange, NameChange, OperationChange, PipelineChange
from graphlink.page.look import LOOKS
from graphlink.page.parts import Bar, Bars, Cell, Column, Part, Row, Section, Segment, Sentence, Table
from graphlink.page.words import factor_cell, share_cell, signed_cell, time_cell
from graphlink.records import counted, share_word, short_path, shortened, size, time

MOST_ROWS: Final = 500
_MORE: Final = "in the file of --json."


def operations(report: DiffReport) -> Section:
    """Return all operations side by side, the largest change first, and kernels and waiting calls that came, went or
    changed in number.
    """
    title = "Operations"
    if not report.operations:
        return Section("operations", title, [Sentence(["The recordings name no operations."], note=True)])
    device = any(one.device_before_ns or one.device_after_ns for one in report.operations)
    parts: list[Part] = [*_alone(report.operations, device), _operations(report.operations, device)]
    for key, caption, names in (
        ("kernels", "Kernels, copies and GPU calls that came, went or are there more or less often", report.kernels),
        ("waits", "Calls that wait and came, went or are there more or less often", report.syncs),
    ):
        parts += [_names(key, caption, names)] if names else []
    return Section("operations", title, parts)


def _alone(found: Sequence[OperationChange], device: bool) -> list[Part]:
    out: list[Part] = []
    for side, field in (("A", "before"), ("B", "after")):
        of = [one for one in found if _in(one) == f"{side} alone"]
        if of:
            what = "device" if device else "host"
            ns = sum(getattr(one, f"{what}_{field}_ns") for one in of)
            out.append(Sentence([f"In {side} alone: {counted(len(of), 'operation')} with {time(ns)} of {what} time."]))
    return out


def _in(one: OperationChange) -> str:
    """Return which run has an operation; "" where both have it as often."""
    before = one.calls_before or one.device_before_ns or one.host_before_ns
    after = one.calls_after or one.device_after_ns or one.host_after_ns
    if not before or not after:
        return "A alone" if before else "B alone"
    return _often(one.calls_before, one.calls_after)


def _often(before: float, after: float) -> str:
    return "" if before == after else "more often" if after > before else "less often"


def _operations(found: Sequence[OperationChange], device: bool) -> Table:
    rows = [Row(_operation(one, device), f"/{k}") for k, one in enumerate(found[:MOST_ROWS])]
    times = [*(["device"] if device else []), "host"]
    some = any(row.cells[1].text for row in rows)  # else both runs have all, as often
    rows = rows if some else [Row([row.cells[0], *row.cells[2:]], row.at) for row in rows]
    columns = [Column("operation"), *([Column("in", means="came")] if some else [])]
    for what in times:
        means = f"{what}_time"
        columns += [
            Column(f"{what}, A", "number", means, f"{what}_before_ns"),
            Column("B", "number", means, f"{what}_after_ns"),
        ]
        columns += [Column("change", "number", "change"), Column("factor", "number", "factor")]
    columns += [Column("calls, A", "number", "calls", "calls_before"), Column("B", "number", "calls", "calls_after")]
    left = len(found) - len(rows)
    more = f"{counted(left, 'more operation')} {_MORE}" if left else ""
    return Table(
        "ops",
        f"Operations of both runs, largest change of {times[0]} time first",
        columns,
        rows,
        "diff#/operations",
        more,
    )


def _operation(one: OperationChange, device: bool) -> list[Cell]:
    cells = [Cell(short_path(one.path), whole="/".join(one.path)), Cell(_in(one))]
    pairs = [(one.host_before_ns, one.host_after_ns)]
    for before, after in [(one.device_before_ns, one.device_after_ns), *pairs] if device else pairs:
        cells += _side_by_side(before, after)
    return [*cells, _number(one.calls_before), _number(one.calls_after)]


def _side_by_side(before: int, after: int) -> list[Cell]:
    return [time_cell(before), time_cell(after), signed_cell(after - before), factor_cell(before, after)]


def _number(value: float) -> Cell:
    return Cell(f"{value:,.4g}", value)


def _names(key: str, caption: str, found: Sequence[NameChange]) -> Table:
    rows, named = [], any(one.name for one in found)  # on other hardware kernels are not compared by name
    for k, one in enumerate(found[:MOST_ROWS]):
        where = (
            "B alone"
            if not one.count_before
            else "A alone"
            if not one.count_after
            else _often(one.count_before, one.count_after)
        )
        cells = [Cell(shortened(one.name), whole=one.name)] if named else []
        cells += [Cell(short_path(one.path), whole="/".join(one.path)), Cell(where)]
        cells += [_number(one.count_before), _number(one.count_after), *_side_by_side(one.before_ns, one.after_ns)]
        rows.append(Row(cells, f"/{k}"))
    columns = [
        *([Column("name")] if named else []),
        *(Column("operation"), Column("in", means="came")),
        *(Column("times, A", "number", field="count_before"), Column("B", "number", field="count_after")),
        *(Column("time, A", "number", "of_a_step", "before_ns"), Column("B", "number", "of_a_step", "after_ns")),
        *(Column("change", "number", "change"), Column("factor", "number", "factor")),
    ]
    left = len(found) - len(rows)
    at = f"diff#/{'kernels' if key == 'kernels' else 'syncs'}"
    return Table(f"{key}-changed", caption, columns, rows, at, f"{left:,} more {_MORE}" if left else "")


def communication(report: DiffReport) -> Section | None:
    """Return the communication between ranks side by side; None where there is none."""
    if not report.communication:
        return None
    order = sorted(enumerate(report.communication), key=lambda item: -_moved(item[1]))
    rows = [Row(_group(one), f"/{k}") for k, one in order[:MOST_ROWS]]
    columns = [Column("group"), Column("ranks", "number", field="ranks"), Column("operation", field="type")]
    for what, means in (("transfer", "transfer"), ("wait", "wait")):
        title = "waited" if what == "wait" else what
        columns += [
            Column(f"{title}, A", "number", means, f"{what}_before_ns"),
            Column("B", "number", means, f"{what}_after_ns"),
        ]
        columns += [Column("change", "number", "change"), Column("factor", "number", "factor")]
    columns += [Column("times, A", "number", field="count_before"), Column("B", "number", field="count_after")]
    columns += [Column("bytes, A", "number", "bytes", "bytes_before"), Column("B", "number", "bytes", "bytes_after")]
    left = len(order) - len(rows)
    caption = "Groups of ranks and their operations, largest change first"
    table = Table("groups", caption, columns, rows, "diff#/communication", f"{left:,} more {_MORE}" if left else "")
    return Section("communication", "Communication", [table])


def _moved(one: GroupChange) -> int:
    return abs(one.transfer_after_ns - one.transfer_before_ns) + abs(one.wait_after_ns - one.wait_before_ns)


def _group(one: GroupChange) -> list[Cell]:
    cells = [Cell(shortened(one.group), whole=one.group), _number(one.ranks), Cell(one.type)]
    cells += _side_by_side(one.transfer_before_ns, one.transfer_after_ns) + _side_by_side(
        one.wait_before_ns, one.wait_after_ns
    )
    sizes = [Cell(size(value), value) for value in (one.bytes_before, one.bytes_after)]
    return [*cells, _number(one.count_before), _number(one.count_after), *sizes]


def pipeline(report: DiffReport) -> Section | None:
    """Return the pipelines side by side; None where neither run has one."""
    found = report.pipeline
    if found is None:
        return None
    names = ("schedule", "stages", "microbatches", "chunks", "bubble_rate")
    rows = [
        Row([Cell(key.replace("_", " ")), *(_known(getattr(found, f"{key}_{side}")) for side in ("before", "after"))])
        for key in names
    ]
    table = Table("pipeline-of-both", "The pipelines", [Column("what"), Column("A"), Column("B")], rows)
    return Section("pipelines", "Pipeline", [table, *_causes(found)])


def _known(value: str | float | None) -> Cell:
    if isinstance(value, float):
        return Cell(f"{value:.4f}", value)
    return Cell("" if value is None else str(value), value if isinstance(value, int) else None)


def _causes(found: PipelineChange) -> list[Part]:
    one, other = found.causes_before_ns, found.causes_after_ns
    causes = [cause for cause in dict.fromkeys([*one, *other]) if one.get(cause) or other.get(cause)]
    bars = [
        Bar(
            side,
            [Segment(cause, ns) for cause, ns in of.items() if cause in LOOKS],
            time(sum(ns for cause, ns in of.items() if cause in LOOKS)),
        )
        for side, of in (("A", one), ("B", other))
    ]
    rows = [
        Row([Cell(cause, key=cause if cause in LOOKS else ""), *_side_by_side(one.get(cause, 0), other.get(cause, 0))])
        for cause in sorted(causes, key=lambda cause: -abs(other.get(cause, 0) - one.get(cause, 0)))
    ]
    columns = [Column("cause"), Column("A", "number", "bubble"), Column("B", "number", "bubble")]
    columns += [Column("change", "number", "change"), Column("factor", "number", "factor")]
    says = "Idle time of all stages, by cause, over all that was recorded."
    table = Table("pipeline-causes", "Causes of idle time, largest change first", columns, rows)
    return [Bars("bubbles-of-both", "Bubbles by cause", says, bars), table] if causes else []


def path(report: DiffReport) -> Section | None:
    """Return what the critical paths are made of; None where there is none."""
    one, other = report.path_before_ns, report.path_after_ns
    names = [name for name in dict.fromkeys([*one, *other]) if one.get(name) or other.get(name)]
    if not names:
        return None
    sums = sum(one.values()), sum(other.values())
    rows = []
    for name in names:
        before, after = one.get(name, 0), other.get(name, 0)
        shares = [share_cell(before, sums[0]), share_cell(after, sums[1])]
        rows.append(
            Row([Cell(share_word(name), key=name if name in LOOKS else ""), *_side_by_side(before, after), *shares])
        )
    columns = [
        Column("kind"),
        Column("A", "number", "on_path"),
        Column("B", "number", "on_path"),
        Column("change", "number", "change"),
    ]
    columns += [
        Column("factor", "number", "factor"),
        Column("of A", "number", "on_path"),
        Column("of B", "number", "on_path"),
    ]
    bars = [
        Bar(side, [Segment(name, of[name]) for name in names if of.get(name)], time(whole))
        for side, of, whole in (("A", one, sums[0]), ("B", other, sums[1]))
    ]
    says = (
        "What the end of the run hung on, over all that was recorded: the first step is in it, so the times are no "
        "times of a step."
    )
    table = Table("path-shares", "Shares of the critical path", columns, rows)
    return Section("path", "Critical path", [Bars("paths", "The critical paths", says, bars), table])
