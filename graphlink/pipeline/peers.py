"""Facts about a rank from other ranks: communication seen from all its sides, what each range needs from another stage,
and whether clocks agree.

Collectives match by group and order, sends and receives by group, pair of ranks, tag and order. Of kernels the transfer
took as long as the shortest of them ran: who came early waited for the rest (``docs/bubbles.md``). A gloo row lasts
until somebody waits for it, so there the transfer begins when the last side has begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I64, NOWHERE, U8, Bool, CommKind, GroupKey
from graphlink.pipeline.records import NO_TIME, Pass, StageRun
from graphlink.pipeline.stages import Pipes
from graphlink.tables import codes

TOLERANCE_NS: Final = 2_000  # of recordings in whole us


@dataclass(frozen=True, slots=True)
class PeerExchanges:
    """One entry per exchange of a rank. ``transfer_from_ns``: from then on it was transfer, before it was waiting for
    ``late_rank``.

    ``known`` where all sides were recorded; else ``transfer_from_ns`` is its start and ``late_rank`` ``NOWHERE``.
    ``late_from_ns``: when the last side began.
    """

    transfer_from_ns: I64
    late_rank: I64
    late_from_ns: I64
    known: Bool


def matched(runs: Sequence[StageRun]) -> tuple[PeerExchanges, ...]:
    """Match the exchanges of each run with those of the others. O(n log n) over all ranks."""
    tables = [run.exchanges for run in runs]
    groups = dict.fromkeys(group for table in tables for group in table.groups)
    key = np.concatenate([_keys(run, {group: k for k, group in enumerate(groups)}) for run in runs])
    start, end, on_host = (
        np.concatenate([getattr(table, name) for table in tables]) for name in ("start_ns", "end_ns", "on_host")
    )
    rank = np.repeat([run.rank for run in runs], [len(t.start_ns) for t in tables])
    sides = key[:, -1]
    usable = np.flatnonzero(sides > 0)
    order = usable[np.lexsort((start[usable], *key[usable].T[::-1]))]
    transfer, late, late_from, known = (
        start.copy(),
        np.full(len(start), NOWHERE),
        start.copy(),
        np.zeros(len(start), np.bool_),
    )
    if len(order):
        new = np.append(True, (key[order][1:] != key[order][:-1]).any(axis=1))
        first = np.flatnonzero(new)
        count = np.diff(np.append(first, len(order)))
        group = np.cumsum(new) - 1
        shortest = np.minimum.reduceat((end - start)[order], first)[group]
        last = order[first + count - 1][group]  # the latest start of each
        complete = (count == sides[order[first]])[group]
        begins = np.where(
            on_host[order], np.minimum(np.maximum(start[order], start[last]), end[order]), end[order] - shortest
        )
        full = order[complete]
        transfer[full], late[full], late_from[full], known[full] = (
            begins[complete],
            rank[last][complete],
            start[last][complete],
            True,
        )
    bounds = np.cumsum([len(t.start_ns) for t in tables])[:-1]
    return tuple(
        PeerExchanges(*columns)
        for columns in zip(*(np.split(c, bounds) for c in (transfer, late, late_from, known)), strict=True)
    )


def _keys(run: StageRun, codes: dict[GroupKey, int]) -> I64:
    """Return what is equal on all sides of an exchange, and how many sides it has (0: unknown): columns of one row per
    exchange.
    """
    rank, ex = run.rank, run.exchanges
    collective = (ex.kind == CommKind.COLLECTIVE) & (ex.group != NOWHERE)
    p2p = np.isin(ex.kind, (CommKind.SEND, CommKind.RECV)) & (ex.peer != NOWHERE)
    sends = ex.kind == CommKind.SEND
    code = np.array([*(codes[group] for group in ex.groups), NOWHERE], np.int64)  # the last for what has no group
    size = np.array([*(len(ranks) for ranks, _ in ex.groups), 0], np.int64)
    columns = (
        np.where(collective, -2, np.where(sends, rank, ex.peer)),
        np.where(collective, 0, np.where(sends, ex.peer, rank)),
        np.where(collective, 0, ex.tag),
        run.ordinal,
        code[ex.group],
        np.where(collective, size[ex.group], np.where(p2p, 2, 0)),
    )
    return np.stack(columns, axis=1)


@dataclass(frozen=True, slots=True)
class Producers:
    """One entry per range of a run. ``end_ns`` is ``NO_TIME`` where it needs no other stage, or that one is on the same
    rank.

    ``lag_ns``: the least time between such a producer's end and its consumer's start, over all of its pair of stages.
    """

    end_ns: I64
    lag_ns: I64
    rank: I64
    stage: I64
    phase: U8


def producers(pipes: Pipes) -> tuple[Producers, ...]:
    """Find for each range of each run what it needs. O(n log n) in the ranges of all ranks."""
    runs = pipes.runs
    sizes = [len(run.ranges.phase) for run in runs]
    phase, stage, microbatch, step, start, end = (
        np.concatenate([getattr(run.ranges, name) for run in runs]).astype(np.int64)
        for name in ("phase", "stage", "microbatch", "step", "start_ns", "end_ns")
    )
    rank = np.repeat([run.rank for run in runs], sizes)
    direction = np.where(phase == Pass.F, 1, np.where(np.isin(phase, (Pass.B, Pass.I)), -1, 0))
    have = np.stack([np.repeat(pipes.pipe, sizes), step, direction, stage, microbatch], axis=1)
    want = have.copy()
    want[:, 3] -= direction
    index = {tuple(row): k for k, row in enumerate(have.tolist()) if row[2]}
    source = np.array([index.get(tuple(row), NOWHERE) if row[2] else NOWHERE for row in want.tolist()], np.int64)
    other = (source != NOWHERE) & (rank[source] != rank)
    lag = np.zeros(len(rank), np.int64)
    if other.any():
        pair = codes(direction[other], stage[other])
        least = np.full(int(pair.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(least, pair, np.maximum(start[other] - end[source[other]], 0))
        lag[other] = least[pair]
    columns = (
        np.where(other, end[source], NO_TIME),
        lag,
        np.where(other, rank[source], NOWHERE),
        np.where(other, stage[source], NOWHERE),
        np.where(other, phase[source], 0).astype(np.uint8),
    )
    return tuple(Producers(*part) for part in zip(*(np.split(c, np.cumsum(sizes)[:-1]) for c in columns), strict=True))


def clock_warnings(pipes: Pipes, tolerance_ns: int) -> list[str]:
    """Return one warning with the number of contradictions and the largest, none where there is none.

    A receive cannot end before its send begins, nor work that needs another stage's begin before that has ended. Both
    on a device only: a host range may begin and wait, and a gloo send may have left milliseconds before its row begins
    where there are few cores. ``pipes`` with virtual stages. ``tolerance_ns``: how far the clocks are known to agree.
    """
    count, worst, between = 0, 0, ""
    for run, meeting, supply in zip(pipes.runs, matched(pipes.runs), producers(pipes), strict=True):
        ex = run.exchanges
        ahead = np.where((ex.kind == CommKind.RECV) & meeting.known & ~ex.on_host, meeting.late_from_ns - ex.end_ns, 0)
        made = supply.end_ns != NO_TIME
        early = np.where(
            made & run.sees_device, np.where(made, supply.end_ns, run.ranges.start_ns) - run.ranges.start_ns, 0
        )
        for amount, other in ((ahead, meeting.late_rank), (early, supply.rank)):
            wrong = amount > tolerance_ns
            count += int(np.count_nonzero(wrong))
            if wrong.any() and int(amount.max()) > worst:
                at = int(amount.argmax())
                worst, between = int(amount[at]), f"ranks {other[at]} and {run.rank}"
    if not count:
        return []
    return [
        f"the clocks of the ranks differ: {count} times something begins before what it needs has ended, by up to "
        f"{worst / 1e6:.3f} ms "
        f"({between}); causes between ranks, and theory, are wrong by as much"
    ]
