"""What both of two runs have, side by side: operations, what came and went, communication, pipeline, critical path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from graphlink.diff.records import Amount, DiffReport, GroupChange, NameChange, OperationChange, PipelineChange
from graphlink.diff.table import both, compared
from graphlink.figures import column, columns
from graphlink.page import parts
from graphlink.page.charts import LOOKS
from graphlink.page.parts import Bar, Bars, Cell, Part, Row, Section, Segment, Sentence, Table
from graphlink.page.words import entries, table
from graphlink.records import counted, share_word, time

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
    out: list[Part] = [*_alone(report.operations, device), _operations(report.operations, device)]
    for key, caption, names in (
        ("kernels", "Kernels, copies and GPU calls that came, went or are there more or less often", report.kernels),
        ("waits", "Calls that wait and came, went or are there more or less often", report.syncs),
    ):
        out += [_names(key, caption, names)] if names else []
    return Section("operations", title, out)


def _alone(found: Sequence[OperationChange], device: bool) -> Iterator[Part]:
    for side, field in (("A", "before"), ("B", "after")):
        of = [one for one in found if _in(one) == f"{side} alone"]
        if of:
            what = "device" if device else "host"
            ns = sum(getattr(one, f"{what}_{field}_ns") for one in of)
            yield Sentence([f"In {side} alone: {counted(len(of), 'operation')} with {time(ns)} of {what} time."])


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
    rows = found[:MOST_ROWS]
    times, where = [*(["device"] if device else []), "host"], [_in(row) for row in rows]
    shown = columns(
        OperationChange,
        rows,
        "path",
        *([column("in", "word", where, means="came")] if any(where) else []),
        *(of_kind for kind in times for of_kind in compared(rows, f"{kind}_{{}}_ns", kind, means=f"{kind}_time")),
        *both(rows, "calls_{}", "calls", unit="about", means="calls"),
    )
    left = len(found) - len(rows)
    more = f"{counted(left, 'more operation')} {_MORE}" if left else ""
    caption = f"Operations of both runs, largest change of {times[0]} time first"
    return table("ops", caption, shown, "diff#/operations", more)


def _names(key: str, caption: str, found: Sequence[NameChange]) -> Table:
    rows = found[:MOST_ROWS]
    where = [
        "B alone"
        if not row.count_before
        else "A alone"
        if not row.count_after
        else _often(row.count_before, row.count_after)
        for row in rows
    ]
    shown = columns(
        NameChange,
        rows,
        *(["name"] if any(row.name for row in found) else []),  # on other hardware kernels are not compared by name
        "path",
        column("in", "word", where, means="came"),
        *both(rows, "count_{}", "times", unit="about"),
        *compared(rows, "{}_ns", "time", means="of_a_step"),
    )
    left = len(found) - len(rows)
    at = f"diff#/{'kernels' if key == 'kernels' else 'syncs'}"
    return table(f"{key}-changed", caption, shown, at, f"{left:,} more {_MORE}" if left else "")


def communication(report: DiffReport) -> Section | None:
    """Return the communication between ranks side by side; None where there is none."""
    if not report.communication:
        return None
    order = sorted(entries(report.communication), key=lambda entry: -_moved(entry[1]))
    rows = [row for _, row in order[:MOST_ROWS]]
    shown = columns(
        GroupChange,
        rows,
        "group",
        "ranks",
        "type",
        *compared(rows, "transfer_{}_ns", "transfer", means="transfer"),
        *compared(rows, "wait_{}_ns", "waited", means="wait"),
        *both(rows, "count_{}", "times", unit="about"),
        *both(rows, "bytes_{}", "bytes", unit="bytes", means="bytes"),
    )
    left = len(order) - len(rows)
    more = f"{left:,} more {_MORE}" if left else ""
    caption = "Groups of ranks and their operations, largest change first"
    groups = table("groups", caption, shown, "diff#/communication", more, order[:MOST_ROWS])
    return Section("communication", "Communication", [groups])


def _moved(one: GroupChange) -> int:
    return abs(one.transfer_after_ns - one.transfer_before_ns) + abs(one.wait_after_ns - one.wait_before_ns)


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
    heads = [parts.Column(title) for title in ("what", "A", "B")]
    return Section("pipelines", "Pipeline", [Table("pipeline-of-both", "The pipelines", heads, rows), *_causes(found)])


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
    rows = _amounts(sorted(causes, key=lambda cause: -abs(other.get(cause, 0) - one.get(cause, 0))), one, other)
    keys = [Cell(row.what, key=row.what if row.what in LOOKS else "") for row in rows]
    shown = [column("cause", "word", keys), *compared(rows, "{}_ns", means="bubble")]
    says = "Idle time of all stages, by cause, over all that was recorded."
    by_cause = table("pipeline-causes", "Causes of idle time, largest change first", shown)
    return [Bars("bubbles-of-both", "Bubbles by cause", says, bars), by_cause] if causes else []


def _amounts(names: Sequence[str], one: dict[str, int], other: dict[str, int]) -> list[Amount]:
    sides = [(name, one.get(name, 0), other.get(name, 0)) for name in names]
    return [Amount(what=name, before_ns=a, after_ns=b, change_ns=b - a) for name, a, b in sides]


def path(report: DiffReport) -> Section | None:
    """Return what the critical paths are made of; None where there is none."""
    one, other = report.path_before_ns, report.path_after_ns
    names = [name for name in dict.fromkeys([*one, *other]) if one.get(name) or other.get(name)]
    if not names:
        return None
    sums = sum(one.values()), sum(other.values())
    rows = _amounts(names, one, other)
    keys = [Cell(share_word(name), key=name if name in LOOKS else "") for name in names]
    shown = [
        column("kind", "word", keys),
        *compared(rows, "{}_ns", means="on_path"),
        column("of A", "part", [(row.before_ns, sums[0]) for row in rows], means="on_path"),
        column("of B", "part", [(row.after_ns, sums[1]) for row in rows], means="on_path"),
    ]
    bars = [
        Bar(side, [Segment(name, of[name]) for name in names if of.get(name)], time(whole))
        for side, of, whole in (("A", one, sums[0]), ("B", other, sums[1]))
    ]
    says = (
        "What decided when the run ended, over all that was recorded: the first step is in it, so the times are no "
        "times of a step."
    )
    shares = table("path-shares", "Shares of the critical path", shown)
    return Section("path", "Critical path", [Bars("paths", "The critical paths", says, bars), shares])
