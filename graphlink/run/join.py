"""Joining the ranks of a run: communicators, collectives that meet, clocks, figures and the pipeline. Reads communication rows only."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from graphlink.errors import InputError
from graphlink.model import I32, I64, NOWHERE, Bool, CommKind
from graphlink.pipeline.analyse import analyse, rank_pipeline
from graphlink.pipeline.peers import TOLERANCE_NS
from graphlink.pipeline.records import Pipeline, StageRun
from graphlink.pipeline.stagerun import counted_alike, on_run_clock
from graphlink.ranks import group_ids as groups
from graphlink.ranks.clocks.align import clocks, onto_run
from graphlink.ranks.figures.measure import Figures, figures
from graphlink.ranks.matching.match import match
from graphlink.ranks.records import Clocks, Conflict, GroupKey, Matching, Meetings, RankComms
from graphlink.run.job import Joined
from graphlink.run.state import RankRows

log: Final = logging.getLogger("graphlink")
_NONE: Final = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Run:
    """What the ranks of a run have in common. ``ranks``: of each rank what its files are written with, by rank.

    ``group_ids``: of the groups that graphs name, as all ranks know them, the id. ``host_groups``: positions in the groups of the meetings
    of those that communicate on the host. ``silent``: ranks of whose communication nothing is known; ``matching``, ``clocks`` and
    ``figures`` are of the others.
    """

    ranks: dict[int, Joined]
    ids: dict[int, groups.GroupIds]
    world_size: int
    matching: Matching
    clocks: Clocks
    figures: Figures
    pipeline: Pipeline | None
    group_ids: dict[GroupKey, int]
    host_groups: frozenset[int]
    silent: tuple[int, ...]
    hosts: dict[int, str]
    nodes: int
    warnings: tuple[str, ...]


def join(rows: Sequence[RankRows], *, keep_unmatched: bool) -> Run:
    """All of it, O(n log n) in communication ops.

    Raises:
        InputError: a collective differs over ranks, and ``keep_unmatched`` is not set.
    """
    every = sorted(rows, key=lambda r: r.comms.rank)
    rows = [row for row in every if len(row.comms.start_ns)] or every
    silent = [row for row in every if not len(row.comms.start_ns)] if len(rows) < len(every) else []
    comms = [r.comms for r in rows]
    log.info("matching %d communication ops of %d ranks", sum(len(c.start_ns) for c in comms), len(comms))
    matching = match(comms)
    ids = groups.assign({r.comms.rank: r.groups for r in rows}, matching.shared)
    group_ids = {matching.shared[rank][key]: number for rank, of_rank in ids.items() for key, number in of_rank.items()}
    if matching.conflicts and not keep_unmatched:
        raise _differs(matching.conflicts, group_ids)
    log.info("aligning clocks")
    aligned = clocks(comms, matching.meetings)
    measured = figures(comms, matching.meetings, aligned)
    log.info("looking for a pipeline over all ranks")
    runs = {row.comms.rank: _alike(row, matching, aligned, k) for k, row in enumerate(rows)} | {r.comms.rank: r.staged for r in silent}
    pipeline = analyse([runs[rank] for rank in sorted(runs)], max(TOLERANCE_NS, aligned.residual_ns))
    world_size = max(row.comms.world_size for row in every)
    quiet = [row.comms.rank for row in silent]
    members = _members(len(comms), matching.meetings)
    largest, arrows = _largest(comms, matching.meetings), _arrows(comms, matching.meetings, members, aligned)
    waits = _by_op(matching.meetings, members, measured.times.wait_ns)
    ranks = {}
    for k, (row, one, clock) in enumerate(zip(rows, comms, aligned.clocks, strict=True)):
        waited, alike = np.flatnonzero(waits[k] > 0), _uneven(one, matching.meetings.of_op[k])
        ranks[one.rank] = Joined(
            ids=ids[one.rank],
            world_size=world_size,
            clock=clock if clock.known else None,
            unmatched=one.node[np.union1d(_lonely(matching, one.rank), _with(quiet, one))],
            resized=one.node[alike],
            size_bytes=largest[matching.meetings.of_op[k][alike]],
            waiting=one.node[waited],
            wait_ns=waits[k][waited],
            arrow=one.node[arrows[k].op],
            arrow_id=arrows[k].id,
            arrow_ends=arrows[k].ends,
            pipeline=rank_pipeline(pipeline, row.comms.rank),
        )
    for row in silent:
        ids[row.comms.rank] = {}
        ranks[row.comms.rank] = Joined({}, world_size, pipeline=rank_pipeline(pipeline, row.comms.rank))
    return Run(
        ranks=ranks,
        ids=ids,
        world_size=world_size,
        matching=matching,
        clocks=aligned,
        figures=measured,
        pipeline=pipeline,
        group_ids=group_ids,
        host_groups=_host_groups(comms, matching.meetings),
        silent=tuple(quiet),
        hosts={row.comms.rank: row.comms.host for row in every},
        nodes=sum(row.nodes for row in every),
        warnings=(*_said_silent(quiet), *aligned.warnings),
    )


def _said_silent(ranks: Sequence[int]) -> list[str]:
    if not ranks:
        return []
    told = ", ".join(map(str, ranks[:8])) + ", ..." * (len(ranks) > 8)
    return [
        f"of rank {told} no communication with a known group was recorded (is its execution trace missing?): the others are matched "
        "without it, and what they did with it is computation in the graphs"
    ]


def _with(quiet: Sequence[int], comms: RankComms) -> I64:
    """Ops of a rank in which ranks take part whose own communication is not known."""
    if not quiet:
        return _NONE
    among = [k for k, (members, _) in enumerate(comms.groups) if not set(members).isdisjoint(quiet)]
    collective = comms.kind == CommKind.COLLECTIVE
    return np.flatnonzero((collective & np.isin(comms.group, among)) | (~collective & np.isin(comms.peer, quiet)))


def _host_groups(comms: Sequence[RankComms], meetings: Meetings) -> frozenset[int]:
    """Groups whose communication is rows of the host, as the first op of each says."""
    numbers, first = np.unique(meetings.group, return_index=True)
    member = meetings.first[first]
    pairs = zip(numbers.tolist(), meetings.rank[member].tolist(), meetings.op[member].tolist(), strict=True)
    return frozenset(number for number, rank, op in pairs if comms[rank].on_host[op])


def _differs(conflicts: Sequence[Conflict], ids: groups.GroupIds) -> InputError:
    more = f"; {len(conflicts) - 1} more" if len(conflicts) > 1 else ""
    return InputError(
        f"a collective is not the same on all ranks: {told_conflict(conflicts[0], ids)}{more}",
        todo="give recordings of one run; --keep-unmatched writes every rank as it was recorded, which simulators hang on",
    )


def told_conflict(conflict: Conflict, ids: groups.GroupIds) -> str:
    """In words, with both sides."""
    c = conflict
    where = f"group {ids.get(c.group, c.group[1])}"
    how = "differs" if c.why == "differs" else "comes in another order"
    other = f"rank {c.other_rank} has {c.other_told} (its number {c.other_index})"
    return f"number {c.index} of {where} {how}: rank {c.rank} has {c.told}, {other}"


def _alike(row: RankRows, matching: Matching, aligned: Clocks, position: int) -> StageRun | None:
    """A rank's part of a pipeline with the times and counts that all ranks share."""
    if row.staged is None:
        return None
    exchanges = counted_alike(row.staged.exchanges, row.comms, matching.meetings, position)
    return on_run_clock(replace(row.staged, exchanges=exchanges), aligned.clocks[position])


def _lonely(matching: Matching, rank: int) -> I64:
    """Ops of a rank that other recorded ranks lack; what is alone by right is none of them."""
    return np.concatenate([_NONE, *(left.ops.astype(np.int64) for left in matching.unmatched if left.rank == rank)])


def _uneven(comms: RankComms, meeting: I32) -> I64:
    """Collectives whose sizes differ over ranks by right."""
    return np.flatnonzero((meeting != NOWHERE) & (comms.kind == CommKind.COLLECTIVE) & comms.uneven)


def _largest(comms: Sequence[RankComms], meetings: Meetings) -> I64:
    """Of each meeting the size on the rank where it is largest: simulators match collectives by size."""
    out = np.zeros(len(meetings.kind), np.int64)
    for one, meeting in zip(comms, meetings.of_op, strict=True):
        met = meeting != NOWHERE
        np.maximum.at(out, meeting[met], one.bytes[met])
    return out


def _members(count: int, meetings: Meetings) -> list[I64]:
    """Of each of ``count`` ranks its entries among the members of all meetings."""
    order = np.argsort(meetings.rank, kind="stable")
    return np.split(order, np.searchsorted(meetings.rank[order], np.arange(1, count)))


def _by_op(meetings: Meetings, members: Sequence[I64], value: I64) -> list[I64]:
    """What stands by member of meetings, by op of each rank; 0 for ops without a meeting."""
    out = [np.zeros(len(of_op), np.int64) for of_op in meetings.of_op]
    for column, mine in zip(out, members, strict=True):
        column[meetings.op[mine]] = value[mine]
    return out


@dataclass(frozen=True, slots=True)
class _Arrows:
    """Where arrows of a rank begin or end, one entry each. An arrow leads from an op that waits to the one that came last."""

    op: I64
    id: I64
    ends: Bool


def _arrows(comms: Sequence[RankComms], meetings: Meetings, members: Sequence[I64], aligned: Clocks) -> list[_Arrows]:
    """Of each rank. Of ops that start together the highest rank counts as the last: files of lower ranks stand first in a timeline."""
    if not len(meetings.kind):
        return [_Arrows(_NONE, _NONE, np.zeros(0, np.bool_)) for _ in comms]
    start = np.zeros(len(meetings.rank), np.int64)
    for one, clock, mine in zip(comms, aligned.clocks, members, strict=True):
        start[mine] = onto_run(clock, one.start_ns)[meetings.op[mine]]
    meeting = np.repeat(np.arange(len(meetings.kind)), np.diff(meetings.first))
    last = np.lexsort((meetings.rank, start, meeting))[meetings.first[1:] - 1]
    begins = np.flatnonzero(last[meeting] != np.arange(len(meeting)))
    entry = np.append(begins, last[meeting[begins]])
    number, ends = np.append(begins, begins), np.arange(len(entry)) >= len(begins)
    order = np.argsort(meetings.rank[entry], kind="stable")
    parts = np.split(order, np.searchsorted(meetings.rank[entry][order], np.arange(1, len(comms))))
    return [_Arrows(meetings.op[entry[part]].astype(np.int64), number[part], ends[part]) for part in parts]
