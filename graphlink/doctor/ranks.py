"""Gaps of the ranks of a run together: ranks, sequence numbers, a common beginning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np

from graphlink.doctor.records import Finding, if_any
from graphlink.ranks.times import Apart
from graphlink.records import first_few
from graphlink.run.join import JoinedRanks, join
from graphlink.run.records import RankRows
from graphlink.wings import wing

_LISTED: Final = 8  # ranks, groups or conflicts that a text names


def ranks_lacking(rows: Sequence[RankRows]) -> Iterator[Finding]:
    """Report what the ranks lack. ``rows``: of each rank what joining reads. O(n log n) in communication ops."""
    there, world = {r.comms.rank for r in rows}, max((r.comms.world_size for r in rows), default=0)
    missing = world - sum(rank < world for rank in there)
    listed = first_few([*islice((rank for rank in range(world) if rank not in there), _LISTED + 1)], _LISTED)
    yield from if_any("missing-ranks", {"missing": missing, "world": world}, world, told=(f"rank {listed}",))
    run = join(rows, keep_unmatched=True)
    if len(rows) > 1:
        yield from _together(run, [r for r in rows if r.comms.rank not in run.silent])
    for name, part in run.parts.items():
        yield from wing(name).run_lacks(part, len(rows))


def _together(run: JoinedRanks, rows: Sequence[RankRows]) -> Iterator[Finding]:
    yield from if_any("silent-ranks", {"silent": len(run.silent)}, len(run.ranks), ranks=run.silent)
    matching = run.matching
    meetings = len(matching.meetings.kind)
    guessed = meetings - matching.by_sequence
    yield from if_any("no-seq", {"guessed": guessed, "meetings": meetings}, meetings)
    ops = sum(left.count for left in matching.unmatched)
    ranks = tuple(sorted({left.rank for left in matching.unmatched}))
    yield from if_any("unmatched-communication", {"ops": ops}, sum(len(r.comms.start_ns) for r in rows), ranks=ranks)
    yield from if_any(
        "collectives-differ",
        {"conflicts": len(matching.conflicts)},
        told=tuple(run.summary.matched.conflicts[:_LISTED]),
    )
    yield from _clocks(run, rows)
    apart, late = (int(np.count_nonzero(run.figures.apart == why)) for why in (Apart.BEGAN_APART, Apart.FIRST))
    if apart:
        yield Finding("began-apart", apart / meetings, {"meetings": apart, "spread_ns": _spread(run, rows)})
    yield from if_any("first-meeting-late", {"meetings": late}, meetings)


def _spread(run: JoinedRanks, rows: Sequence[RankRows]) -> int:
    """Return the time between the first and the last rank's first row, on the run's clock."""
    began = [
        int(clock.of(np.array([row.comms.began_ns]))[0])
        for row, clock in zip(rows, run.clocks.clocks, strict=True)
        if clock.known
    ]
    return max(began) - min(began)


def _clocks(run: JoinedRanks, rows: Sequence[RankRows]) -> Iterator[Finding]:
    lost = tuple(clock.rank for clock in run.clocks.clocks if not clock.known)
    any_comm = any(len(row.comms.start_ns) for row in rows)
    if lost and any_comm:
        yield Finding(
            "clocks-untied", len(lost) / len(rows), {"ranks": len(lost)}, told=run.clocks.warnings, ranks=lost
        )
    elif run.clocks.warnings:
        yield Finding("clocks-doubtful", 0.0, told=run.clocks.warnings)
