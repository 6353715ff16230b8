"""Synchronisations: which calls made the host wait, for what, and from which line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from graphlink.figures import column, columns, figure
from graphlink.page.found import Found
from graphlink.page.parts import Cell, Section, Sentence
from graphlink.page.words import table
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
    bare = "The recording has no Python stacks, so the lines are not known (profile with with_stack=True)."
    every = table("syncs-all", caption, shown, more=more)
    return Section("syncs", title, [Sentence([head]), every, *([] if lines else [Sentence([bare], note=True)])])


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


def _line(found: Found, op: str) -> Cell:
    """Return the Python lines that waited longest in ops of this name."""
    lines = waiting_lines(found.parts.get("operations", {}), op)
    first = [line for line, _ in lines.most_common(_LINES)]
    more = f" and {len(lines) - _LINES} more" if len(lines) > _LINES else ""
    return Cell(", ".join(map(shortened, first)) + more, whole=", ".join(lines))
