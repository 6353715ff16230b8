"""Join the ranks of a run: communicators, collectives that meet, clocks, figures and the pipeline. Reads communication
rows only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import structs

from graphlink.errors import InputError, log
from graphlink.graph_model import Column
from graphlink.model import EMPTY, I64, NOWHERE, CommKind
from graphlink.perfetto.packets import ACROSS, KIND_OF_FLOW, NO_ARROWS, Arrows
from graphlink.ranks import summary
from graphlink.ranks.clocks import clocks, on_run
from graphlink.ranks.columns import column, offsets
from graphlink.ranks.figures import Figures, figures
from graphlink.ranks.group_ids import first_id
from graphlink.ranks.match import Matching, match
from graphlink.ranks.records import AlignedClock, AlignedClocks, Matches, RankComms
from graphlink.ranks.times import Apart
from graphlink.records import first_few
from graphlink.run.records import Aligned, Joined, RankRows
from graphlink.tables import how_many, parted, spread
from graphlink.wings import Parts, over_ranks


@dataclass(frozen=True, slots=True)
class JoinedRanks:
    """All that the ranks of a run have in common.

    ``ranks``: of each rank what its files are written with, by rank. ``silent``: ranks of whose communication nothing
    is known; ``matching``, ``clocks`` and ``figures`` are of the others. ``summary``: all but replay, comparisons and
    side files of NCCL.
    """

    ranks: dict[int, Joined]
    matching: Matching
    clocks: AlignedClocks
    figures: Figures
    parts: Parts
    summary: summary.Run
    silent: tuple[int, ...]
    warnings: tuple[str, ...]


def join(rows: Sequence[RankRows], *, keep_unmatched: bool) -> JoinedRanks:
    """Match, align and measure the ranks of a run, O(n log n) in communication ops.

    Raises:
        InputError: a collective differs over ranks, and ``keep_unmatched`` is not set.
    """
    every = sorted(rows, key=lambda r: r.comms.rank)
    rows = [row for row in every if len(row.comms.start_ns)] or every
    silent = [row for row in every if not len(row.comms.start_ns)] if len(rows) < len(every) else []
    quiet = tuple(row.comms.rank for row in silent)
    comms = [r.comms for r in rows]
    log.info("matching %d communication ops of %d ranks", sum(len(c.start_ns) for c in comms), len(comms))
    matching = match(comms, {r.comms.rank: r.groups for r in rows})
    if matching.conflicts and not keep_unmatched:
        more = f"; {len(matching.conflicts) - 1} more" if len(matching.conflicts) > 1 else ""
        raise InputError(
            f"a collective is not the same on all ranks: {matching.conflicts[0]}{more}",
            todo="give recordings of one run; --keep-unmatched writes every rank as it was recorded, which simulators "
            "hang on",
        )
    log.info("aligning clocks")
    aligned = clocks(comms, matching.matches)
    measured = figures(comms, matching.matches, aligned, matching.group_ids)
    log.info("looking for a pipeline over all ranks")
    position = {row.comms.rank: k for k, row in enumerate(rows)}
    parts = over_ranks(
        {row.comms.rank: row.parts for row in every},
        Aligned({row.comms.rank: row.comms for row in rows}, matching, aligned, position),
    )
    world_size = max(row.comms.world_size for row in every)
    hosts = len({row.comms.host for row in every} - {""})
    ranks = _by_rank(comms, matching, aligned, measured, quiet) | {rank: Joined({}, world_size) for rank in quiet}
    begin = first_id(comms, world_size)
    for rank, one in ranks.items():
        own, ids = parts.asked("of_rank", rank), matching.ids.get(rank, {})
        ranks[rank] = replace(one, ids=ids, world_size=world_size, first_id=begin, parts=own, hosts=hosts)
    return JoinedRanks(
        ranks=ranks,
        matching=matching,
        clocks=aligned,
        figures=measured,
        parts=parts,
        summary=_summary([row.comms for row in every], matching, aligned, measured),
        silent=quiet,
        warnings=(*_silence(quiet), *aligned.warnings),
    )


def _by_rank(
    comms: Sequence[RankComms], matching: Matching, aligned: AlignedClocks, measured: Figures, quiet: Sequence[int]
) -> dict[int, Joined]:
    """Return what the others say of the nodes of each rank."""
    matches = matching.matches
    first = offsets(comms)
    op = first[matches.rank] + matches.op  # of all ranks, one after the other
    largest = np.maximum(
        np.maximum.reduceat(column(comms, "bytes")[op], matches.first[:-1]), 0
    )  # simulators match collectives by size
    arrows = _arrows(comms, matches, op, aligned)
    waits = np.split(spread(sum(len(one.node) for one in comms), op, measured.times.wait_ns, 0), first[1:])
    excluded = np.append(measured.apart != Apart.NO, False)  # the last entry stands for no match
    ranks = {}
    for k, (one, clock, arrow) in enumerate(zip(comms, aligned.clocks, arrows, strict=True)):
        met = matches.of_op[k] != NOWHERE
        alike = np.flatnonzero(
            met & (one.kind == CommKind.COLLECTIVE) & one.uneven
        )  # whose sizes differ over ranks by right
        ranks[one.rank] = Joined(
            ids={},
            world_size=one.world_size,
            clock=clock if clock.known else None,
            unmatched=one.node[np.unique(np.concatenate([*matching.lacked.get(one.rank, ()), _with(quiet, one)]))],
            size_bytes=Column.of(one.node[alike], largest[matches.of_op[k][alike]]),
            wait_ns=Column.of(one.node, waits[k], waits[k] > 0),
            excluded_ns=Column.of(one.node, waits[k], excluded[matches.of_op[k]]),
            across=arrow,
        )
    return ranks


def _summary(every: Sequence[RankComms], matching: Matching, aligned: AlignedClocks, measured: Figures) -> summary.Run:
    """Make the summary. ``every``: the communication of all ranks, silent ones too. Lists of findings are cut at
    ``summary.LISTED``.
    """
    matches, unmatched = matching.matches, matching.unmatched
    collective = matches.kind == CommKind.COLLECTIVE
    host = {one.rank: one.host for one in every}
    return summary.Run(
        world_size=max(one.world_size for one in every),
        ranks=len(every),
        groups=measured.groups,
        matched=summary.Matched(
            collectives=how_many(collective),
            messages=how_many(~collective),
            complete=how_many(matches.complete),
            by_sequence=matching.by_sequence,
            alone=dict(sorted(matching.alone.items())),
            unmatched=sum(u.count for u in unmatched),
            listed=[structs.replace(u, lacking=u.lacking[: summary.LISTED]) for u in unmatched[: summary.LISTED]],
            conflicts=list(matching.conflicts[: summary.LISTED]),
        ),
        clocks=summary.Clocks(residual_ns=aligned.residual_ns, ranks=[_clock(c, host[c.rank]) for c in aligned.clocks]),
        waits=measured.waits,
        set_apart=measured.set_apart,
        straggler=measured.straggler,
        suspect=measured.suspect,
    )


def _clock(clock: AlignedClock, host: str) -> summary.RankClock:
    return summary.RankClock(
        rank=clock.rank,
        host=host,
        offset_ns=clock.offset_ns,
        drift_ppm=round(clock.drift * 1e6, 6),
        from_ns=clock.from_ns,
        residual_ns=clock.residual_ns,
        same_as=None if clock.shares == clock.rank else clock.shares,
        known=clock.known,
    )


def cut_short(run: JoinedRanks) -> tuple[str, ...]:
    """Name what the lists of ``run.summary`` leave out."""
    unmatched = run.matching.unmatched
    found = {
        "findings of unmatched communication": len(unmatched),
        "conflicts": len(run.matching.conflicts),
        "excluded collectives": how_many(run.figures.apart != Apart.NO),
        "ranks that lack the same communication": max((len(u.lacking) for u in unmatched), default=0),
    }
    return tuple(
        f"{summary.LISTED} of {n:,} {what} are listed in summary.json"
        for what, n in found.items()
        if n > summary.LISTED
    )


def _silence(ranks: Sequence[int]) -> list[str]:
    if not ranks:
        return []
    some = first_few(ranks, 8)
    return [
        f"of rank {some} no communication with a known group was recorded (is its execution trace missing?): the "
        "others are matched "
        "without it, and what they did with it is computation in the graphs"
    ]


def _with(quiet: Sequence[int], comms: RankComms) -> I64:
    """Return the ops of a rank with matches in which ranks take part whose own communication is not known."""
    if not quiet:
        return EMPTY
    among = [k for k, (members, _) in enumerate(comms.groups) if not set(members).isdisjoint(quiet)]
    collective = comms.kind == CommKind.COLLECTIVE
    return np.flatnonzero((collective & np.isin(comms.group, among)) | (~collective & np.isin(comms.peer, quiet)))


def _arrows(comms: Sequence[RankComms], matches: Matches, op: I64, aligned: AlignedClocks) -> list[Arrows]:
    """Return the arrows of each rank: from a node that waits to the one that came last. ``op``: of each member, as in
    ``column``.

    Of ops that start together the highest rank counts as the last: files of lower ranks stand first in a timeline.
    """
    if not len(matches.kind):
        return [NO_ARROWS for _ in comms]
    start, node = on_run(comms, aligned.clocks, "start_ns")[op], column(comms, "node")[op].astype(np.int64)
    which = np.repeat(np.arange(len(matches.kind)), np.diff(matches.first))
    last = np.lexsort((matches.rank, start, which))[matches.first[1:] - 1]
    begins = np.flatnonzero(last[which] != np.arange(len(which)))
    entry = np.append(begins, last[which[begins]])
    number, ends = np.append(begins, begins), np.arange(len(entry)) >= len(begins)
    parts = parted(matches.rank[entry], len(comms))
    return [Arrows(node[entry[part]], ACROSS * KIND_OF_FLOW + number[part], ends[part]) for part in parts]
