"""The comparison of two runs for people: the verdict, what changed, where it shows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from graphlink.diff.changes import WORDS
from graphlink.diff.records import Change, DiffReport, OperationChange, RankChange, Side, Split, Verdict
from graphlink.figures import Column, column, columns, table
from graphlink.records import Lines, Table, amount, counted, ms, percent, plain, share_word, shortened

PER: Final = {
    "step": "mean of the steps without the first",
    "first step": "the first step",
    "run": "all that was recorded",
}
_ANSWER: Final = {
    "better": "B is better",
    "worse": "B is worse",
    "the same": "B is the same as A",
    "cannot tell": "Cannot tell",
    "do not compare": "The runs do not compare",
}
NOTHING_LEFT: Final = -100.0  # per cent
_FEW: Final = 3
_MARKDOWN: Final = re.compile(r"[\\`*_{}\[\]<>#!|~@&$]|:(?=//)|(?<=www)\.", re.IGNORECASE)


def diff_table(report: DiffReport, top: int) -> Lines:
    """Return the report for people, with the ``top`` first of each list."""
    found = report.verdict
    out: Lines = [
        _verdict(found),
        Table([("A", side_line(report.before)), ("B", side_line(report.after)), *_margin(found), *_compares(report)]),
    ]
    if report.fail_on:
        out.append(
            f"--fail-on {report.fail_on.limit_pct:g}%: {'exceeded' if report.fail_on.exceeded else 'not exceeded'}: "
            f"{report.fail_on.why}"
        )
    if not found.identical:
        out += ["", *_changes(report, top)]
    out += ["", *_split(report.split)]
    if len(report.ranks) > 1 or len(report.splits) > 1:
        out += ["", *_ranks(report, top)]
    if not found.identical:
        out += [
            part
            for block in (_operations(report, top), _path(report), _pipeline(report))
            for part in ("", *block)
            if block
        ]
    return [*out, *([""] if report.notes else []), *(f"note: {text}" for text in report.notes)]


def diff_markdown(report: DiffReport, top: int) -> Lines:
    """Return the report for a pull request: the verdict, and a table of the ``top`` changes that are causes, and of
    those where they show. Names of recordings are written so that nothing in them is Markdown, or
    becomes a link.
    """
    causes = [one for one in report.changes if one.tier != "effect"]
    shows = [one for one in report.changes if one.tier == "effect"]
    told = [*(("cause", one) for one in causes[:top]), *(("shows", one) for one in shows[:top])]
    rows = [(sort, _size(one), one.what, one.evidence) for sort, one in told]
    rows += [("", "", name, text) for name, text in (*_margin(report.verdict), *_compares(report))]
    head = [f"| | {WORDS[report.verdict.per]} | what | evidence |", "| --- | --: | --- | --- |"]
    table_rows = (f"| {' | '.join(map(_inert, row))} |" for row in rows)
    return [f"**{_inert(_verdict(report.verdict))}**", "", *head, *table_rows]


def _inert(text: str) -> str:
    return _MARKDOWN.sub(lambda sign: f"&#{ord(sign[0])};", plain(text))


def _verdict(found: Verdict) -> str:
    if found.identical:
        return f"{headline(found)}, every figure is equal"
    return f"{headline(found)}, {ms(found.before_ns)} -> {ms(found.after_ns)} ms {WORDS[found.per]}"


def headline(found: Verdict) -> str:
    """Return the answer in a few words: ``B is worse: 18.7 % slower``."""
    answer = _ANSWER[found.answer]
    if found.identical:
        return f"{answer}: the recordings are identical"
    if found.answer in ("better", "worse"):
        return f"{answer}: {abs(found.change_pct):.1f} % {'more' if found.change_pct > 0 else 'less'} time"
    return f"{answer}: {found.change_pct:+.1f} %"


def _margin(found: Verdict) -> list[tuple[str, str]]:
    if found.low_pct is None or found.high_pct is None or found.identical:
        return [("margin", found.why)]
    # a change below -100 % there is none: a margin that reaches it has one end
    span = (
        one_end(found.high_pct) if found.low_pct <= NOTHING_LEFT else f"{found.low_pct:+.1f} to {found.high_pct:+.1f} %"
    )
    return [
        ("margin", f"{span} at {100 * found.level:g} % confidence ({found.test} test, {PER[found.per]})"),
        ("sure", found.why),
    ]


def one_end(high_pct: float) -> str:
    """Return a margin that reaches ``NOTHING_LEFT``, in words."""
    return f"at least {-high_pct:.1f} % less time" if high_pct < 0 else f"at most {high_pct:.1f} % more time"


def side_line(side: Side) -> str:
    """Return what a run is: its folder, ranks, steps and GPUs."""
    steps = counted(len(side.steps_ns), "step") if side.steps_ns else "no steps"
    on = f", {', '.join(side.gpus)}" if side.gpus else ""
    return f"{side.folder}: {counted(len(side.ranks), 'rank')} of {side.world_size:,}, {steps}{on}"


def _compares(report: DiffReport) -> list[tuple[str, str]]:
    found = report.comparable
    others = [f"{one.about} {one.before} / {one.after}" for one in found.reasons if not one.same]
    told = f"score {found.score} of 100: {found.alike_pct:.0f} % of the work is equal, matched by {found.matched_by}"
    return [("compares", told), *([("differs", "; ".join(others))] if others else [])]


def moved_most(report: DiffReport) -> str:
    """Return the operation whose device or host time changed most in the direction of the step, where what was found to
    be a cause adds up to less than half of that; "" elsewhere, and where no change is proved."""
    verdict = report.verdict
    whole_ns = verdict.after_ns - verdict.before_ns
    causes_ns = [change.change_ns or 0 for change in report.changes if change.tier != "effect"]
    if verdict.answer not in ("better", "worse") or 2 * sum(causes_ns) * (1 if whole_ns > 0 else -1) >= abs(whole_ns):
        return ""
    moved = [
        (after_ns - before_ns, sort, operation.path)
        for operation in report.operations
        for sort, before_ns, after_ns in (
            ("device", operation.device_before_ns, operation.device_after_ns),
            ("host", operation.host_before_ns, operation.host_after_ns),
        )
        if (after_ns - before_ns) * whole_ns > 0
    ]
    if not moved:
        return ""
    ns, sort, path = max(moved, key=lambda row: abs(row[0]))
    inside = f" in {shortened(path[-2], 40)}" if len(path) > 1 else ""
    return (
        f"causes explain {sum(causes_ns) / 1e6:+,.3f} of {whole_ns / 1e6:+,.3f} ms; what moved most: "
        f"{shortened(path[-1], 40)}{inside}, {ns / 1e6:+,.3f} ms of {sort} time"
    )


def _changes(report: DiffReport, top: int) -> Lines:
    changes, most = report.changes, moved_most(report)
    causes = [one for one in changes if one.tier != "effect"]
    effects = [one for one in changes if one.tier == "effect"]
    if not changes:
        return ["what changed: nothing beyond noise", *([f"  {most}"] if most else [])]
    out: Lines = ["what changed, causes first", *([f"  {most}"] if most else [])]
    for title, some in (("", causes), ("where it shows", effects)):
        if some:
            out += [title] if title else []
            rows = [
                row
                for k, one in enumerate(some[:top], 1)
                for row in ((f"{k}.", _size(one), one.what), ("", "", f"  {one.evidence}"))
                if row[0] or (one.evidence and not title)
            ]
            out.append(Table(rows, align="<><"))
        if len(some) > top:
            out.append(f"  {len(some) - top:,} more with a larger --top")
    if not causes:
        out.insert(1, "  no cause was found beyond noise")
    return out


def _size(one: Change) -> str:
    if one.change_ns is None:
        return ""
    share = f" ({one.change_pct:+.1f} %)" if one.change_pct is not None else ""
    return f"{one.change_ns / 1e6:+,.3f} ms{share}"


def _split(split: Split) -> Lines:
    rows = split.with_sum
    return [
        "where the time goes",
        table([column("", "word", [row.what for row in rows]), *compared(rows, "{}_ns")[:3]]),
    ]


def both(rows: Sequence[Any], name: str, title: str = "", *, unit: str = "ns", means: str = "") -> list[Column]:
    """Return a figure of A and of B; ``name``: of its fields, with ``{}`` for ``before`` and ``after``."""
    heads = {f"{title}, A".removeprefix(", "): name.format("before"), "B": name.format("after")}
    sides = [column(head, unit, map(attrgetter(field), rows), means=means, name=field) for head, field in heads.items()]
    return [side._replace(head=side.head.replace(",", "")) for side in sides]


def compared(rows: Sequence[Any], name: str, title: str = "", *, means: str = "") -> list[Column]:
    """Return a time of A and of B, its change and by how many times it is longer."""
    sides = both(rows, name, title, means=means)
    pairs = [*zip(*(side.values for side in sides), strict=True)]
    changes = column("change", "signed", [after - before for before, after in pairs])
    factors = [after / before if before > 0 and after > 0 else None for before, after in pairs]
    return [*sides, changes, column("factor", "factor", factors)]


def _ranks(report: DiffReport, top: int) -> Lines:
    parts = {split.rank: split.parts for split in reversed(report.splits)}  # of the first device of a rank
    rows = sorted(report.ranks, key=lambda one: -abs(one.after_ns - one.before_ns))[: max(top, 8)]
    largest = [sorted(parts.get(rank.rank, []), key=lambda part: -abs(part.change_ns))[:_FEW] for rank in rows]
    most = [", ".join(f"{part.what} {part.change_ns / 1e6:+,.3f}" for part in few if part.change_ns) for few in largest]
    waits = [f"{ms(rank.wait_before_ns)} -> {ms(rank.wait_after_ns)}" for rank in rows]
    shown = columns(
        RankChange,
        rows,
        "rank",
        *compared(rows, "{}_ns")[:3],
        column("waits for ranks that arrive late", "number", waits),
        column("most by", "word", most),
    )
    stragglers = (("A", report.straggler_before), ("B", report.straggler_after))
    told = [f"  straggler in {name}: {evidence}" for name, evidence in stragglers if evidence]
    return ["ranks", table(shown), *told]


def _operations(report: DiffReport, top: int) -> Lines:
    changed = [
        one
        for one in report.operations
        if one.device_before_ns != one.device_after_ns or one.host_before_ns != one.host_after_ns
    ]
    if not changed:
        return []
    device = any(one.device_before_ns or one.device_after_ns for one in report.operations)
    rows, what = changed[:top], "device" if device else "host"
    host = column("host change", "signed", [row.host_after_ns - row.host_before_ns for row in rows])
    numbers = [
        amount(row.calls_before) + (f" -> {amount(row.calls_after)}" if row.calls_after != row.calls_before else "")
        for row in rows
    ]
    calls = column("calls", "number", numbers)
    sides = compared(rows, f"{what}_{{}}_ns", what)[:3]
    shown = columns(OperationChange, rows, *sides, *([host] if device else []), calls, "path")
    out: Lines = [f"operations, largest change of {what} time first", table(shown)]
    gone = [
        one
        for one in report.operations
        if not (one.device_before_ns and one.device_after_ns) and one.device_before_ns != one.device_after_ns
    ]
    for name, field in (("A", "device_before_ns"), ("B", "device_after_ns")):
        alone = [one for one in gone if getattr(one, field)]
        if alone:
            named = ", ".join(f"{shortened(one.path[-1], 40)} {ms(getattr(one, field))} ms" for one in alone[:_FEW])
            time = f"{ms(sum(getattr(one, field) for one in alone))} ms of device time"
            out.append(f"  in {name} alone: {time} in {counted(len(alone), 'operation')}: {named}")
    return out


def _path(report: DiffReport) -> Lines:
    one, other = report.path_before_ns, report.path_after_ns
    sums = sum(one.values()), sum(other.values())
    rows = [
        (share_word(name), percent(one.get(name, 0), sums[0]), percent(other.get(name, 0), sums[1]))
        for name in dict.fromkeys([*one, *other])
        if one.get(name) or other.get(name)
    ]
    return ["critical path", Table(rows, ("", "A", "B"), "<>>")] if rows else []


def _pipeline(report: DiffReport) -> Lines:
    found = report.pipeline
    if found is None:
        return []
    rows = [
        (
            name,
            *("" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value) for value in values),
        )
        for name, *values in (
            ("schedule", found.schedule_before, found.schedule_after),
            ("stages", found.stages_before, found.stages_after),
            ("microbatches", found.microbatches_before, found.microbatches_after),
            ("chunks", found.chunks_before, found.chunks_after),
            ("bubble rate", found.bubble_rate_before, found.bubble_rate_after),
        )
    ]
    return ["pipeline", Table(rows, ("", "A", "B"), "<>>")]
