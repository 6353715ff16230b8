"""Join the ranks of a run: communicators, collectives that meet, clocks, figures and the pipeline. Reads communication rows only."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from graphlink.errors import InputError
from graphlink.model import I64, NOWHERE, Column, CommKind
from graphlink.perfetto.packets import ACROSS, KIND_OF_FLOW, NO_ARROWS, Arrows
from graphlink.pipeline.analyse import analyse, rank_pipeline
from graphlink.pipeline.peers import TOLERANCE_NS
from graphlink.pipeline.records import Pipeline, StageRun
from graphlink.pipeline.stagerun import counted_alike, on_run_clock
from graphlink.ranks import group_ids as groups
from graphlink.ranks import summary
from graphlink.ranks.clocks import clocks
from graphlink.ranks.figures import Figures, figures
from graphlink.ranks.match import match
from graphlink.ranks.records import Clock, Clocks, Conflict, GroupKey, Matching, Meetings, RankComms, Unmatched
from graphlink.ranks.times import Apart
from graphlink.run.job import Joined
from graphlink.run.state import RankRows

log: Final = logging.getLogger("graphlink")


@dataclass(frozen=True, slots=True)
class Run:
    """All that the ranks of a run have in common.

    ``ranks``: of each rank what its files are written with, by rank. ``silent``: ranks of whose communication nothing is known;
    ``matching``, ``clocks`` and ``figures`` are of the others. ``summary``: all but replay, comparisons and side files of NCCL.
    """

    ranks: dict[int, Joined]
    matching: Matching
    clocks: Clocks
    figures: Figures
    pipeline: Pipeline | None
    summary: summary.Run
    silent: tuple[int, ...]
    warnings: tuple[str, ...]


def join(rows: Sequence[RankRows], *, keep_unmatched: bool) -> Run:
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
    matching = match(comms)
    ids = groups.assign({r.comms.rank: r.groups for r in rows}, matching.shared)
    group_ids = {matching.shared[rank][key]: number for rank, of_rank in ids.items() for key, number in of_rank.items()}
    if matching.conflicts and not keep_unmatched:
        raise _differs(matching.conflicts, group_ids)
    log.info("aligning clocks")
    aligned = clocks(comms, matching.meetings)
    measured = figures(comms, matching.meetings, aligned, group_ids)
    log.info("looking for a pipeline over all ranks")
    runs = {row.comms.rank: _alike(row, matching, aligned, k) for k, row in enumerate(rows)} | {r.comms.rank: r.staged for r in silent}
    pipeline = analyse([runs[rank] for rank in sorted(runs)], max(TOLERANCE_NS, aligned.residual_ns))
    world_size = max(row.comms.world_size for row in every)
    ranks = _by_rank(comms, matching, aligned, measured, quiet) | {rank: Joined({}, world_size) for rank in quiet}
    for rank, one in ranks.items():
        ranks[rank] = replace(one, ids=ids.setdefault(rank, {}), world_size=world_size, pipeline=rank_pipeline(pipeline, rank))
    return Run(
        ranks=ranks,
        matching=matching,
        clocks=aligned,
        figures=measured,
        pipeline=pipeline,
        summary=_summary([row.comms for row in every], matching, aligned, measured, group_ids),
        silent=quiet,
        warnings=(*_silence(quiet), *aligned.warnings),
    )


def _by_rank(comms: Sequence[RankComms], matching: Matching, aligned: Clocks, measured: Figures, quiet: Sequence[int]) -> dict[int, Joined]:
    """Return what the others say of the nodes of each rank."""
    meetings = matching.meetings
    members = _members(len(comms), meetings)
    largest, arrows = _largest(comms, meetings), _arrows(comms, meetings, members, aligned)
    waits = _by_op(meetings, members, measured.times.wait_ns)
    lonely: dict[int, list[Any]] = defaultdict(list)  # ops that other recorded ranks lack; what is alone by right is none of them
    for left in matching.unmatched:
        lonely[left.rank].append(left.ops)
    ranks = {}
    for k, (one, clock, arrow) in enumerate(zip(comms, aligned.clocks, arrows, strict=True)):
        met = meetings.of_op[k] != NOWHERE
        alike = np.flatnonzero(met & (one.kind == CommKind.COLLECTIVE) & one.uneven)  # whose sizes differ over ranks by right
        ranks[one.rank] = Joined(
            ids={},
            world_size=one.world_size,
            clock=clock if clock.known else None,
            unmatched=one.node[np.unique(np.concatenate([*lonely[one.rank], _with(quiet, one)]))],
            size_bytes=Column.of(one.node[alike], largest[meetings.of_op[k][alike]]),
            wait_ns=Column.of(one.node, waits[k], waits[k] > 0),
            across=arrow,
        )
    return ranks


def _summary(
    every: Sequence[RankComms], matching: Matching, aligned: Clocks, measured: Figures, ids: Mapping[GroupKey, int]
) -> summary.Run:
    """Make the summary. ``every``: the communication of all ranks, silent ones too. Lists of findings are cut at ``summary.LISTED``."""
    meetings, unmatched = matching.meetings, matching.unmatched
    collective = meetings.kind == CommKind.COLLECTIVE
    host = {one.rank: one.host for one in every}
    return summary.Run(
        world_size=max(one.world_size for one in every),
        ranks=len(every),
        groups=measured.groups,
        matched=summary.Matched(
            collectives=int(np.count_nonzero(collective)),
            messages=int(np.count_nonzero(~collective)),
            complete=int(np.count_nonzero(meetings.complete)),
            by_sequence=matching.by_sequence,
            alone=dict(sorted(matching.alone.items())),
            unmatched=sum(u.count for u in unmatched),
            listed=[_listed(u, ids) for u in unmatched[: summary.LISTED]],
            conflicts=[_conflict(c, ids) for c in matching.conflicts[: summary.LISTED]],
        ),
        clocks=summary.Clocks(residual_ns=aligned.residual_ns, ranks=[_clock(c, host[c.rank]) for c in aligned.clocks]),
        waits=measured.waits,
        set_apart=measured.set_apart,
        straggler=measured.straggler,
        suspect=measured.suspect,
    )


def _listed(u: Unmatched, ids: Mapping[GroupKey, int]) -> summary.Unmatched:
    return summary.Unmatched(
        rank=u.rank,
        group=summary.group_name(u.group, ids),
        where=u.where,
        count=u.count,
        first=u.first,
        last=u.last,
        first_told=u.first_told,
        last_told=u.last_told,
        lacking=list(u.lacking[: summary.LISTED]),
    )


def _clock(clock: Clock, host: str) -> summary.RankClock:
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


def cut_short(run: Run) -> tuple[str, ...]:
    """Name what the lists of ``run.summary`` leave out."""
    unmatched = run.matching.unmatched
    found = {
        "findings of unmatched communication": len(unmatched),
        "conflicts": len(run.matching.conflicts),
        "meetings set apart": int(np.count_nonzero(run.figures.apart != Apart.NO)),
        "ranks that lack the same communication": max((len(u.lacking) for u in unmatched), default=0),
    }
    return tuple(f"{summary.LISTED} of {n:,} {what} are listed in summary.json" for what, n in found.items() if n > summary.LISTED)


def _silence(ranks: Sequence[int]) -> list[str]:
    if not ranks:
        return []
    some = ", ".join(map(str, ranks[:8])) + ", ..." * (len(ranks) > 8)
    return [
        f"of rank {some} no communication with a known group was recorded (is its execution trace missing?): the others are matched "
        "without it, and what they did with it is computation in the graphs"
    ]


def _with(quiet: Sequence[int], comms: RankComms) -> I64:
    """Return the ops of a rank with meetings in which ranks take part whose own communication is not known."""
    if not quiet:
        return np.zeros(0, np.int64)
    among = [k for k, (members, _) in enumerate(comms.groups) if not set(members).isdisjoint(quiet)]
    collective = comms.kind == CommKind.COLLECTIVE
    return np.flatnonzero((collective & np.isin(comms.group, among)) | (~collective & np.isin(comms.peer, quiet)))


def _differs(conflicts: Sequence[Conflict], ids: Mapping[GroupKey, int]) -> InputError:
    more = f"; {len(conflicts) - 1} more" if len(conflicts) > 1 else ""
    return InputError(
        f"a collective is not the same on all ranks: {_conflict(conflicts[0], ids)}{more}",
        todo="give recordings of one run; --keep-unmatched writes every rank as it was recorded, which simulators hang on",
    )


def _conflict(conflict: Conflict, ids: Mapping[GroupKey, int]) -> str:
    c = conflict
    where = f"group {ids.get(c.group, c.group[1])}"
    how = "differs" if c.why == "differs" else "comes in another order"
    other = f"rank {c.other_rank} has {c.other_told} (its number {c.other_index})"
    return f"number {c.index} of {where} {how}: rank {c.rank} has {c.told}, {other}"


def _alike(row: RankRows, matching: Matching, aligned: Clocks, position: int) -> StageRun | None:
    """Return a rank's part of a pipeline with the times and counts that all ranks share."""
    if row.staged is None:
        return None
    ordinal = counted_alike(row.staged, row.comms, matching.meetings, position)
    return on_run_clock(replace(row.staged, ordinal=ordinal), aligned.clocks[position])


def _largest(comms: Sequence[RankComms], meetings: Meetings) -> I64:
    """Return for each meeting the size on the rank where it is largest: simulators match collectives by size."""
    out = np.zeros(len(meetings.kind), np.int64)
    for one, meeting in zip(comms, meetings.of_op, strict=True):
        met = meeting != NOWHERE
        np.maximum.at(out, meeting[met], one.bytes[met])
    return out


def _members(count: int, meetings: Meetings) -> list[I64]:
    """Return for each of ``count`` ranks its entries among the members of all meetings."""
    order = np.argsort(meetings.rank, kind="stable")
    return np.split(order, np.searchsorted(meetings.rank[order], np.arange(1, count)))


def _by_op(meetings: Meetings, members: Sequence[I64], value: I64) -> list[I64]:
    """Return by op of each rank what stands by member of meetings; 0 for ops without a meeting."""
    out = [np.zeros(len(of_op), np.int64) for of_op in meetings.of_op]
    for column, mine in zip(out, members, strict=True):
        column[meetings.op[mine]] = value[mine]
    return out


def _arrows(comms: Sequence[RankComms], meetings: Meetings, members: Sequence[I64], aligned: Clocks) -> list[Arrows]:
    """Return the arrows of each rank: from a node that waits to the one that came last.

    Of ops that start together the highest rank counts as the last: files of lower ranks stand first in a timeline.
    """
    if not len(meetings.kind):
        return [NO_ARROWS for _ in comms]
    start = np.zeros(len(meetings.rank), np.int64)
    for one, clock, mine in zip(comms, aligned.clocks, members, strict=True):
        start[mine] = clock.of(one.start_ns)[meetings.op[mine]]
    meeting = np.repeat(np.arange(len(meetings.kind)), np.diff(meetings.first))
    last = np.lexsort((meetings.rank, start, meeting))[meetings.first[1:] - 1]
    begins = np.flatnonzero(last[meeting] != np.arange(len(meeting)))
    entry = np.append(begins, last[meeting[begins]])
    number, ends = np.append(begins, begins), np.arange(len(entry)) >= len(begins)
    order = np.argsort(meetings.rank[entry], kind="stable")
    parts = np.split(order, np.searchsorted(meetings.rank[entry][order], np.arange(1, len(comms))))
    nodes = (one.node[meetings.op[entry[part]]].astype(np.int64) for one, part in zip(comms, parts, strict=True))
    return [Arrows(of_rank, ACROSS * KIND_OF_FLOW + number[part], ends[part]) for of_rank, part in zip(nodes, parts, strict=True)]
