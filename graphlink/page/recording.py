"""The recording: the system, how far the graph explains it, what it lacks and how to record that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import UNSET

from graphlink.figures import column, columns
from graphlink.model import DeviceMemory
from graphlink.page.found import Found
from graphlink.page.parts import Cell, Column, Part, Proposal, Proposals, Row, Section, Sentence, Table
from graphlink.page.words import entries, table
from graphlink.records import Table as TextTable
from graphlink.records import counted, first_few, shortened
from graphlink.report.summary import Rank, alike, lost, machine_line
from graphlink.wings import each

MOST_ROWS: Final = 100


def recording(found: Found) -> Section:
    """Return the section."""
    parts: list[Part] = []
    if found.ranks:
        parts += [_system(found), *_memory(found)]
        parts += [part for _, hooks in each() for part in hooks.parts_of("recording", found)]
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
    ranks_of: dict[str, list[int]] = {}
    for rank in found.ranks:
        for text in dict.fromkeys(rank.warnings):
            ranks_of.setdefault(text, []).append(rank.rank)
    told = [(text, count, _whose(ranks_of[text], count)) for text, count in alike(ranks_of)]
    told += [(text, count, "the run") for text, count in alike(found.summary.warnings)]
    if not told:
        world = max((rank.world_size for rank in found.ranks), default=0)
        verb = "was" if len(found.ranks) == 1 else "were"
        missing = (
            f"Only {len(found.ranks):,} of {counted(world, 'rank')} {verb} linked. " if len(found.ranks) < world else ""
        )
        return [Sentence([f"{missing}There are no {'other ' if missing else ''}warnings."])]
    texts, counts, whose = zip(*told[:MOST_ROWS], strict=True)
    shown = [column("warning", "word", texts), column("of", "word", whose), column("alike", "count", counts)]
    return [table("warnings", "Warnings: what the recording lacks, and what was left out", shown)]


def _whose(ranks: Sequence[int], count: int) -> str:
    some = first_few(ranks, 4)
    return f"rank{'s' * (len(ranks) > 1)} {some}" + (" and others" if count > 1 else "")


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
