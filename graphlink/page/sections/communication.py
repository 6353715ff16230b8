"""Communication over ranks: waiting, transfer and bandwidth by group, stragglers, what found no partner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import UNSET

from graphlink.page.found import Found
from graphlink.page.parts import Bar, Bars, Cell, Column, Heat, Part, Row, Section, Segment, Sentence, Table
from graphlink.page.words import count_cell, numbers_cell, share_cell, share_figure, time_cell, time_figure
from graphlink.ranks.summary import NOBODY, Collectives, Group, RankWait, Run, matched_lines
from graphlink.records import counted, shortened, size, time

MOST_BARS: Final = 16
MOST_ROWS: Final = 200


def communication(found: Found) -> Section:
    """Return the section; of a rank alone only how much of its communication is hidden."""
    title, run = "Communication", found.summary.run
    hidden = _hidden(found)
    if run is None:
        return Section("communication", title, [*_alone(found), *hidden])
    parts: list[Part] = []
    stands_out = run.straggler or run.suspect
    if run.groups:
        parts.append(Sentence([f"Stragglers: {stands_out.evidence if stands_out else NOBODY}."]))
    parts += [_waits(run.waits)] if any(one.wait_ns or one.transfer_ns for one in run.waits) else []
    parts += (
        [_groups(run.groups)]
        if run.groups
        else [Sentence(["No communication between the ranks was found."], note=True)]
    )
    parts += [*([_ranks(run)] if run.waits else []), *hidden]
    parts += [_apart(run)] if run.set_apart else []
    return Section("communication", title, [*parts, *(Sentence([line], note=True) for line in matched_lines(run))])


def _alone(found: Found) -> list[Part]:
    devices = [one for rank in found.ranks for one in rank.gpu]
    comm = sum(one.comm_ns for one in devices)
    parts: list[Part] = []
    if comm:
        hidden = share_figure(comm - sum(one.exposed_comm_ns for one in devices), comm, "exposed_communication")
        parts.append(
            Sentence(
                [
                    "Communication took ",
                    time_figure(comm, "exposed_communication"),
                    " on the GPUs, ",
                    hidden,
                    " of it hidden.",
                ]
            )
        )
    why = "A rank alone does not show who waited for whom: link the recordings of all ranks."
    if all(rank.world_size == 1 for rank in found.ranks):
        why = "The run has one rank, which waits for no other." if found.ranks else "The log has none."
    return [*parts, Sentence([why], note=True)]


def _waits(waits: Sequence[RankWait]) -> Part:
    """Return what each rank waited and transferred: bars of few ranks, a heat map of many."""
    if len(waits) > MOST_BARS:
        values: list[list[int | float | None]] = [[one.wait_ns for one in waits], [one.transfer_ns for one in waits]]
        says = (
            "Each column is a rank: its time in communication until the last rank came, and after that. The "
            "darker, "
            "the longer."
        )
        return Heat(
            "waits-heat",
            "Waiting and transfer by rank",
            says,
            ["waited", "transfer"],
            [str(w.rank) for w in waits],
            "rank",
            values,
        )
    bars = [
        Bar(
            f"rank {one.rank}",
            [Segment("wait", one.wait_ns), Segment("transfer", one.transfer_ns)],
            time(one.wait_ns + one.transfer_ns),
        )
        for one in waits
    ]
    return Bars(
        "waits-bars",
        "Time in communication by rank",
        "Until the last rank came (waited), and after that (transfer).",
        bars,
    )


def _groups(groups: Sequence[Group]) -> Table:
    rows = [
        Row(_group(group, one), f"/{k}/collectives/{j}")
        for k, group in enumerate(groups)
        for j, one in enumerate(group.collectives)
    ]
    rows.sort(key=lambda row: -sum(cell.value or 0 for cell in row.cells[7:9]))
    columns = [
        *(
            Column("group"),
            Column("ranks", "number"),
            Column("operation", field="type"),
            Column("times", "number", field="count"),
        ),
        *(Column("bytes", "number", "bytes", "bytes"), Column("skew, median", "number", "skew", "skew_median_ns")),
        *(Column("skew, 95 %", "number", "skew", "skew_p95_ns"), Column("waited", "number", "wait", "wait_ns")),
        *(
            Column("transfer", "number", "transfer", "transfer_ns"),
            Column("bus bandwidth", "number", "bandwidth", "bus_bytes_per_s"),
        ),
        Column("set apart", "number", field="set_apart"),
    ]
    more = f"{counted(len(rows) - MOST_ROWS, 'more row')} in summary.json." if len(rows) > MOST_ROWS else ""
    caption = "Groups of ranks and their operations, most time first"
    return Table("groups", caption, columns, rows[:MOST_ROWS], "summary.json#/run/groups", more)


def _group(group: Group, one: Collectives) -> list[Cell]:
    name = f"{'-' if group.id is None else group.id}: {group.name or '(unnamed)'}"
    rate = one.bus_bytes_per_s
    return [
        Cell(shortened(name), group.id, whole=f"{name}, ranks {', '.join(map(str, group.ranks))}"),
        count_cell(len(group.ranks)),
        Cell(one.type),
        count_cell(one.count),
        Cell(size(one.bytes), one.bytes),
        time_cell(one.skew_median_ns),
        time_cell(one.skew_p95_ns),
        time_cell(one.wait_ns),
        time_cell(one.transfer_ns),
        Cell("") if rate is None else Cell(f"{size(rate)}/s", rate),
        count_cell(one.set_apart),
    ]


def _ranks(run: Run) -> Table:
    rows = [
        Row(
            [Cell(str(one.rank), one.rank), time_cell(one.wait_ns), time_cell(one.transfer_ns), count_cell(one.last)],
            f"/{k}",
        )
        for k, one in enumerate(run.waits)
    ]
    rows.sort(key=lambda row: -(row.cells[3].value or 0))
    columns = [
        *(Column("rank", "number", field="rank"), Column("waited", "number", "wait", "wait_ns")),
        *(Column("transfer", "number", "transfer", "transfer_ns"), Column("came last", "number", "last", "last")),
    ]
    return Table(
        "waits",
        "Ranks in communication, those that came last most often first",
        columns,
        rows,
        "summary.json#/run/waits",
    )


def _hidden(found: Found) -> list[Part]:
    """Return the communication of each GPU by group, with how much of it is hidden, the most exposed first."""
    rows = []
    for k, rank in enumerate(found.ranks):
        for j, gpu in enumerate(rank.gpu):
            for i, one in enumerate(gpu.by_group if gpu.by_group is not UNSET else ()):
                cells = [
                    Cell(str(rank.rank), rank.rank),
                    Cell(str(gpu.device), gpu.device),
                    Cell(shortened(one.name), whole=one.name),
                ]
                cells += [numbers_cell(one.ranks), time_cell(one.comm_ns), time_cell(one.exposed_ns)]
                rows.append(
                    Row([*cells, share_cell(one.comm_ns - one.exposed_ns, one.comm_ns)], f"/{k}/gpu/{j}/by_group/{i}")
                )
    rows.sort(key=lambda row: -(row.cells[5].value or 0))
    columns = [
        *(Column("rank", "number"), Column("GPU", "number"), Column("group"), Column("its ranks")),
        *(
            Column("communication", "number", "communication", "comm_ns"),
            Column("exposed", "number", "exposed_communication", "exposed_ns"),
        ),
        Column("hidden", "number", "hidden"),
    ]
    more = f"{counted(len(rows) - MOST_ROWS, 'more row')} in summary.json." if len(rows) > MOST_ROWS else ""
    caption = "Communication of each GPU by group, the most exposed first"
    return [Table("hidden", caption, columns, rows[:MOST_ROWS], "summary.json#/ranks", more)] if rows else []


def _apart(run: Run) -> Table:
    rows = [
        Row(
            [
                Cell(f"{one.type} {one.number}"),
                Cell(one.group),
                time_cell(one.skew_ns),
                Cell("") if one.late_rank is None else Cell(str(one.late_rank), one.late_rank),
                Cell(one.why),
            ],
            f"/{k}",
        )
        for k, one in enumerate(run.set_apart)
    ]
    columns = [
        Column("meeting"),
        Column("group"),
        Column("skew", "number", "skew", "skew_ns"),
        Column("last", "number"),
        Column("why"),
    ]
    return Table("apart", "Meetings that count in no sum", columns, rows, "summary.json#/run/set_apart")
