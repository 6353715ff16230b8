"""Sections of the page of a run: communication over ranks, what the host waited for, and the recording itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

from msgspec import UNSET

from graphlink.figures import column, columns, figure
from graphlink.model import DeviceMemory
from graphlink.page.found import Found
from graphlink.page.parts import (
    Bar,
    Bars,
    Cell,
    Column,
    Heat,
    Part,
    Proposal,
    Proposals,
    Row,
    Section,
    Segment,
    Sentence,
    Table,
)
from graphlink.page.words import entries, share_figure, table, time_figure
from graphlink.ranks.summary import NOBODY, Collectives, Group, RankWait, Run, SetApart, matched_lines
from graphlink.records import NOTE, counted, first_few, in_function, shortened, time
from graphlink.records import Table as TextTable
from graphlink.replay.syncs import awaited, blocked_ns, sync_waits, waiting_lines, waiting_ops
from graphlink.replay.workload import Workload
from graphlink.report.summary import Rank, alike, lost, machine_line
from graphlink.tables import grouped
from graphlink.wings import declarations, each, imported

MOST_BARS: Final = 16
MOST_GROUPS: Final = 200


def _of_wings(section: str, found: Found) -> list[Part]:
    """Return what wings add to a section."""
    return [part for name, text in declarations("parts_of") if name == section for part in imported(text)(found)]


def communication(found: Found) -> Section:
    """Return the section; of a rank alone only how much of its communication is hidden."""
    title, run = "Communication", found.summary.run
    hidden = _of_wings("communication", found)
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
        else [Sentence(["No communication between the ranks was recorded with its group."], note=True)]
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
    some = every[:MOST_GROUPS]
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
    return f"{counted(count - MOST_GROUPS, 'more row')} in summary.json." if count > MOST_GROUPS else ""


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
    return table("apart", "Collectives that count in no sum", shown, "summary.json#/run/set_apart")


_LINES: Final = 2
_ON_DEVICE: Final = "A wait is harmless where the GPU had enough to do meanwhile: look at its gain."
_ON_RANKS: Final = "Without a wait for another rank the next one is often longer: look at its gain."


@dataclass(slots=True)
class _Waits:
    """Waits of one op in one call for work of one name. ``longest``: rank, and when the device op began that the
    longest waited for: a wait itself need not be a slice of the timeline."""

    count: Annotated[int, figure("waits")] = 0
    ns: Annotated[int, figure("waited", means="waited_host")] = 0
    longest_ns: Annotated[int, figure(means="waited_host")] = -1
    longest: tuple[int, int] = (0, 0)
    gain_ns: Annotated[int | None, figure("largest gain of one")] = None
    ranks: set[int] = field(default_factory=set)


def syncs(found: Found) -> Section:
    """Return the section: waits of the host by op, call and what was waited for."""
    title, work = "Synchronisations: what the host waited for", found.work
    if work is None:
        return Section("syncs", title, [Sentence(["Without a graph no synchronisation is known."], note=True)])
    waits = {key: one for key, one in _grouped(found, work).items() if one.ns or one.gain_ns}
    if not waits:
        return Section(
            "syncs", title, [Sentence(["The host waits for nothing on a device in this recording."], note=True)]
        )
    order = sorted(waits.items(), key=lambda item: (-item[1].ns, item[0]))
    some = order[:MOST_ROWS]
    rows = [wait for _, wait in some]
    calls = any(call for (_, call, _), _ in order)  # gloo's waits are in no call of a runtime
    ops = [op for (op, _, _), _ in some]
    lines = any(wait.stack for file in found.parts.get("operations", {}).values() for wait in file.waits)
    shown = columns(
        _Waits,
        rows,
        column("op that waits", "text", ops),
        *([column("call", "word", [call for (_, call, _), _ in some])] if calls else []),
        column("waits for", "text", [source for (_, _, source), _ in some]),
        "count",
        "ns",
        "gain_ns",
        "longest_ns",
        column("its op began", "place", [found.place_cell(*wait.longest) for wait in rows]),
        *([column("ranks", "count", [len(wait.ranks) for wait in rows])] if len(work.ranks) > 1 else []),
        *([column("line", "text", [_line(found, op) for op in ops])] if lines else []),
    )
    left = order[MOST_ROWS:]
    more = (
        f"{counted(len(left), 'more row')}, {time(sum(one.ns for _, one in left))} in all: graphlink critical-path has "
        "them."
        if left
        else ""
    )
    some_ranks = f", of {counted(len(work.ranks), 'rank')}" if len(work.ranks) < len(found.ranks) else ""
    caption = f"Waits of host threads for {'device work' if calls else 'other ranks'}{some_ranks}"
    head = _ON_DEVICE if calls else _ON_RANKS
    bare = (
        "The recording has no Python stacks, so the functions that waited are not known (profile with with_stack=True)."
    )
    every = table("syncs-all", caption, shown, more=more)
    return Section("syncs", title, [Sentence([head]), every, *([] if lines else [Sentence([bare], note=True)])])


def _grouped(found: Found, work: Workload) -> dict[tuple[str, str, str], _Waits]:
    blocked, start = blocked_ns(work), work.column("start_ns")
    gain = {(rank, one.id): one.gain_ns for rank, file in found.paths.items() for one in file.gains.sync_points}
    out: dict[tuple[str, str, str], _Waits] = {}
    waits = sync_waits(work)
    for wait, source in zip(waits, awaited(work, waits), strict=True):
        op = waiting_ops(wait)[:1]
        target, rank = wait.targets[0], work.rank(wait.targets[0])
        of = out.setdefault((op[0] if op else "", ", ".join(sorted(wait.names - {*op})), work.name(source)), _Waits())
        ns = int(blocked[target])
        of.count += 1
        of.ns += ns
        of.ranks.add(rank)
        if ns > of.longest_ns:
            of.longest_ns, of.longest = ns, (rank, int(start[source]))
        gained = [gain[key] for key in ((rank, work.id(one)) for one in wait.targets) if key in gain]
        of.gain_ns = max([*gained, *([] if of.gain_ns is None else [of.gain_ns])], default=None)
    return out


def _line(found: Found, op: str) -> Cell:
    """Return the Python lines that waited longest in ops of this name."""
    lines = waiting_lines(found.parts.get("operations", {}), op)
    first = [line for line, _ in lines.most_common(_LINES)]
    more = f" and {len(lines) - _LINES} more" if len(lines) > _LINES else ""
    return Cell(", ".join(shortened(in_function(line)) for line in first) + more, whole=", ".join(lines))


MOST_ROWS: Final = 100


def recording(found: Found) -> Section:
    """Return the section."""
    parts: list[Part] = []
    if found.ranks:
        parts += [_system(found), *_memory(found)]
        parts += _of_wings("recording", found)
    parts += _warnings(found)
    for wing, hooks in each():
        parts += _of_text(hooks.blocks(found.summary).ahead, wing)
    lacks = Proposal(
        ["What the recording lacks, what that costs, and the line that records it"],
        [],
        f"graphlink doctor {found.folder}",
    )
    again = Proposal(["All figures of this page, and more, as text"], [], f"graphlink show {found.folder} -v")
    return Section("recording", "The recording", [*parts, Proposals([lacks, again])])


def _system(found: Found) -> Table:
    ranks = found.ranks[:MOST_ROWS]
    machines = ["" if rank.machine is UNSET else machine_line(rank.machine) for rank in ranks]
    shown = columns(
        Rank,
        ranks,
        "rank",
        column("machine", "word", machines),
        column("recording", "word", [rank.inputs.nsys or rank.inputs.kineto or "" for rank in ranks]),
        column("execution trace", "word", [rank.inputs.et or "none" for rank in ranks]),
        column("recorded at", "word", [rank.inputs.recorded_at or "" for rank in ranks]),
        "replay.measured_ns",
        column("not linked", "word", [lost(rank) or "all linked" for rank in ranks]),
    )
    rows = [(f"/{found.at[rank.rank]}",) for rank in ranks]
    left = len(found.ranks) - len(rows)
    more = f"{counted(left, 'more rank')} in summary.json." if left > 0 else ""
    return table("system", "System and recordings", shown, "summary.json#/ranks", more, rows)


def _memory(found: Found) -> list[Part]:
    """Return the memory of each GPU, where the allocator was recorded, the fullest first."""
    every = entries(found.ranks, "memory")
    every.sort(key=lambda entry: -entry[-1].reserved_bytes)
    some = every[:MOST_ROWS]
    ranks = column("rank", "number", [rank.rank for _, rank, _ in some])
    names = ("device", "allocated_bytes", "reserved_bytes", "total_bytes", "reserved")
    shown = columns(DeviceMemory, [memory for *_, memory in some], ranks, *names)
    return [table("memory", "Memory at its fullest", shown, "summary.json#/ranks", rows=some)] if some else []


def _warnings(found: Found) -> list[Part]:
    ranks_of = grouped((text, rank.rank) for rank in found.ranks for text in dict.fromkeys(rank.warnings))
    told = [(text, count, _whose(ranks_of[text], count)) for text, count in alike(ranks_of)]
    told += [(text, count, "the run") for text, count in alike(found.summary.warnings)]
    if not told:
        return [Sentence(["There are no warnings."])]
    parts: list[Part] = []
    for name, caption, notes in (
        ("warnings", "Warnings: what of the recording changes figures", False),
        ("notes", "Notes on the recording: they change no figure", True),
    ):
        some = [row for row in told if row[0].startswith(NOTE) == notes][:MOST_ROWS]
        if some:
            texts, counts, whose = zip(*some, strict=True)
            words = column(name.removesuffix("s"), "word", [text.removeprefix(NOTE) for text in texts])
            shown = [words, column("of", "word", whose), column("alike", "count", counts)]
            parts.append(table(name, caption, shown))
    return parts


def _whose(ranks: Sequence[int], count: int) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {first_few(ranks, 4)}" + (" and others" if count > 1 else "")


def _of_text(blocks: Sequence[str | TextTable], name: str) -> list[Part]:
    """Turn lines and tables of the text into parts."""
    out: list[Part] = []
    heading = ""
    for k, block in enumerate(blocks):
        if isinstance(block, str):
            heading = block.strip()
            out.append(Sentence([heading]))
            continue
        columns = [
            Column(title, "number" if side == ">" else "text")
            for title, side in zip(block.head, block.align.ljust(len(block.head), "<"), strict=True)
        ]
        rows = [Row([Cell(shortened(text), whole=text) for text in row]) for row in block.rows]
        out.append(Table(f"{name}-{k}", shortened(heading, 90), columns, rows))
    return out
