"""Where the time of a step goes, before and after: by what the GPU did, of the run and of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from graphlink.causes import CAUSES
from graphlink.diff.changes import WORDS
from graphlink.diff.records import DiffReport, RankChange, Split
from graphlink.diff.split import BUSY, HOST, IDLE
from graphlink.diff.table import both, compared
from graphlink.figures import column, columns
from graphlink.page.parts import Bar, Bars, Cell, Part, Section, Segment, Sentence, Table
from graphlink.page.words import entries, table
from graphlink.records import counted, signed, time

MOST_RANKS: Final = 8  # as bars
MOST_ROWS: Final = 300
KEYS: Final = {
    **dict(zip(BUSY, ("compute", "exposed_communication", "exposed_copy"), strict=True)),
    **dict(zip(IDLE, CAUSES, strict=True)),
    HOST: "host",
}


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
    per = WORDS[report.verdict.per]
    parts: list[Part] = [Bars("split", f"Time {per}{did}", says, _pair("", report.split)), *_differences(report.split)]
    parts.append(_table(report.split))
    if len(report.ranks) > 1 or len(report.splits) > 1:
        parts += _ranks(report)
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
    bars = [bar for one in shown for bar in _pair(_whose(one, one.rank in several), one)]
    some = f", the {len(chosen)} of {len(report.ranks)} that changed most" if len(chosen) < len(report.ranks) else ""
    stragglers = [
        Sentence([f"Straggler in {name}: {evidence}."])
        for name, evidence in (("A", report.straggler_before), ("B", report.straggler_after))
        if evidence
    ]
    return [
        *stragglers,
        Bars("split-ranks", f"Each rank{some}: A above B", "As the chart of the run, of each GPU.", bars),
        _rank_table(report, order[:MOST_ROWS]),
    ]


def _whose(one: Split, several: bool) -> str:
    return f"rank {one.rank}{f', GPU {one.device}' if several else ''}, "


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
