"""Synchronisations: which calls made the host wait, for what, and from which line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from graphlink.page.found import Found
from graphlink.page.parts import Cell, Column, Row, Section, Sentence, Table
from graphlink.page.words import count_cell, time_cell
from graphlink.records import counted, shortened, time
from graphlink.replay.syncs import awaited, blocked_ns, sync_waits, waiting_lines, waiting_ops
from graphlink.replay.workload import Workload

MOST_ROWS: Final = 100
_LINES: Final = 2
_ON_DEVICE: Final = "A wait is harmless where the GPU had enough to do meanwhile: look at its gain."
_ON_RANKS: Final = "Without a wait for another rank the next one is often longer: look at its gain."


@dataclass(slots=True)
class _Waits:
    """Waits of one op in one call for work of one name. ``longest``: rank, and when the device op began that the
    longest waited for: a wait itself need not be a slice of the timeline."""

    count: int = 0
    ns: int = 0
    longest_ns: int = -1
    longest: tuple[int, int] = (0, 0)
    gain_ns: int | None = None
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
    rows = [_row(found, *key, one) for key, one in order[:MOST_ROWS]]
    calls = any(call for (_, call, _), _ in order)  # gloo's waits are in no call of a runtime
    if not calls:
        rows = [Row([row.cells[0], *row.cells[2:]]) for row in rows]
    columns = [
        *(
            Column("op that waits"),
            *([Column("call")] if calls else []),
            Column("waits for"),
            Column("waits", "number"),
            Column("waited", "number", "waited_host"),
        ),
        *(
            Column("largest gain of one", "number", "gain"),
            Column("longest", "number", "waited_host"),
            Column("its op began", "place", "place"),
        ),
        *([Column("ranks", "number")] if len(work.ranks) > 1 else []),
    ]
    lines = _with_lines(found)
    columns += [Column("line", means="line")] if lines else []
    left = order[MOST_ROWS:]
    more = (
        f"{counted(len(left), 'more row')}, {time(sum(one.ns for _, one in left))} in all: graphlink critical-path has "
        "them."
        if left
        else ""
    )
    some = f", of {counted(len(work.ranks), 'rank')}" if len(work.ranks) < len(found.ranks) else ""
    table = Table(
        "syncs-all",
        f"Waits of host threads for {'device work' if calls else 'other ranks'}{some}",
        columns,
        rows,
        more=more,
    )
    head = _ON_DEVICE if calls else _ON_RANKS
    bare = "The recording has no Python stacks, so the lines are not known (profile with with_stack=True)."
    return Section("syncs", title, [Sentence([head]), table, *([] if lines else [Sentence([bare], note=True)])])


def _grouped(found: Found, work: Workload) -> dict[tuple[str, str, str], _Waits]:
    blocked, start = blocked_ns(work), work.column("start_ns")
    gain = {(rank, one.id): one.gain_ns for rank, file in found.paths.items() for one in file.gains.sync_points}
    out: dict[tuple[str, str, str], _Waits] = {}
    for wait in sync_waits(work):
        op = waiting_ops(wait)[:1]
        target, rank = wait.targets[0], work.rank(wait.targets[0])
        source = awaited(work, wait)
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


def _row(found: Found, op: str, call: str, source: str, one: _Waits) -> Row:
    rank, at = one.longest
    cells = [
        Cell(shortened(op), whole=op),
        Cell(call),
        Cell(shortened(source), whole=source),
        count_cell(one.count),
        time_cell(one.ns),
    ]
    cells += [time_cell(one.gain_ns), time_cell(one.longest_ns), found.place_cell(rank, at)]
    cells += [count_cell(len(one.ranks))] if found.work is not None and len(found.work.ranks) > 1 else []
    if _with_lines(found):
        cells.append(_line(found, op))
    return Row(cells)


def _with_lines(found: Found) -> bool:
    return any(one.stack for file in found.parts.get("operations", {}).values() for one in file.waits)


def _line(found: Found, op: str) -> Cell:
    """Return the Python lines that waited longest in ops of this name."""
    lines = waiting_lines(found.parts.get("operations", {}), op)
    first = [line for line, _ in lines.most_common(_LINES)]
    more = f" and {len(lines) - _LINES} more" if len(lines) > _LINES else ""
    return Cell(", ".join(map(shortened, first)) + more, whole=", ".join(lines))
