"""Communication over ranks: waiting, transfer and bandwidth by group, stragglers, what found no partner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from graphlink.figures import column, columns
from graphlink.page.found import Found
from graphlink.page.parts import Bar, Bars, Cell, Heat, Part, Section, Segment, Sentence, Table
from graphlink.page.words import entries, share_figure, table, time_figure
from graphlink.ranks.summary import NOBODY, Collectives, Group, RankWait, Run, SetApart, matched_lines
from graphlink.records import counted, shortened, time
from graphlink.wings import each

MOST_BARS: Final = 16
MOST_ROWS: Final = 200


def communication(found: Found) -> Section:
    """Return the section; of a rank alone only how much of its communication is hidden."""
    title, run = "Communication", found.summary.run
    hidden = [part for _, hooks in each() for part in hooks.parts_of("communication", found)]
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
    devices = [one for rank in found.ranks for one in getattr(rank, "gpu", ())]
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
    every = entries(groups, "collectives")
    every.sort(key=lambda entry: -(entry[-1].wait_ns + entry[-1].transfer_ns))
    some = every[:MOST_ROWS]
    names = ("type", "count", "bytes", "skew_median_ns", "skew_p95_ns", "wait_ns", "transfer_ns", "bus_bytes_per_s")
    shown = columns(
        Collectives,
        [one for *_, one in some],
        column("group", "text", [_group(group) for _, group, _ in some]),
        column("ranks", "count", [len(group.ranks) for _, group, _ in some]),
        *names,
        "set_apart",
    )
    caption = "Groups of ranks and their operations, most time first"
    return table("groups", caption, shown, "summary.json#/run/groups", more_groups(len(every)), some)


def more_groups(count: int) -> str:
    """Return how many groups are left out of a table."""
    return f"{counted(count - MOST_ROWS, 'more row')} in summary.json." if count > MOST_ROWS else ""


def _group(group: Group) -> Cell:
    name = f"{'-' if group.id is None else group.id}: {group.name or '(unnamed)'}"
    return Cell(shortened(name), group.id, whole=f"{name}, ranks {', '.join(map(str, group.ranks))}")


def _ranks(run: Run) -> Table:
    order = sorted(entries(run.waits), key=lambda entry: -entry[1].last)
    shown = columns(RankWait, [wait for _, wait in order], "rank", "wait_ns", "transfer_ns", "last")
    caption = "Ranks in communication, those that came last most often first"
    return table("waits", caption, shown, "summary.json#/run/waits", rows=order)


def _apart(run: Run) -> Table:
    apart = run.set_apart
    shown = columns(
        SetApart,
        apart,
        column("meeting", "word", [f"{meeting.type} {meeting.number}" for meeting in apart]),
        column("group", "word", [meeting.group for meeting in apart]),
        "skew_ns",
        column("last", "number", [meeting.late_rank for meeting in apart]),
        column("why", "word", [meeting.why for meeting in apart]),
    )
    return table("apart", "Meetings that count in no sum", shown, "summary.json#/run/set_apart")
