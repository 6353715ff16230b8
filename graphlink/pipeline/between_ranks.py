"""What only several ranks tell: which exchange on one rank is which on another, what each range needs from another
stage, and whether clocks agree.

Collectives match by group and order, sends and receives by group, pair of ranks, tag and order. Of kernels the transfer
took as long as the shortest of them ran: who came early waited for the rest (``docs/bubbles.md``). A gloo row lasts
until somebody waits for it, so there the transfer begins when the last side has begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I32, I64, NOWHERE, U8, Bool, CommKind, CommOps, GroupKey
from graphlink.pipeline.records import NO_TIME, Pass, StageRun
from graphlink.pipeline.stages import Pipes
from graphlink.ranks.records import Matches, RankComms
from graphlink.tables import (
    MOST,
    TableT,
    begins,
    codes,
    how_many,
    largest,
    least,
    marked,
    spread,
    take,
    turns,
    values_at,
)

TOLERANCE_NS: Final = 2_000  # of recordings in whole us


def of_rows(ops: CommOps, count: int, *, on_host: bool) -> I32:
    """Return the op of each of ``count`` device rows, or host rows; ``NOWHERE`` for what is none."""
    op = np.flatnonzero(ops.on_host == on_host).astype(np.int32)
    return spread(count, ops.row[op], op)


def ordinals(ops: CommOps) -> I64:
    """Count the collectives of each group, and the sends to, or receives from, each peer with the same tag; ``NOWHERE``
    for all else. O(n log n).
    """
    collective = ops.kind == CommKind.COLLECTIVE
    ordinal = turns(ops.kind, ops.group, np.where(collective, 0, ops.peer), np.where(collective, 0, ops.tag))
    ordinal[(ops.kind == CommKind.UNKNOWN) | (collective & (ops.group == NOWHERE))] = NOWHERE
    return ordinal


def aligned_ordinals(run: StageRun, comms: RankComms, matches: Matches, position: int) -> I64:
    """Return the ordinals of a rank's matches, so that recordings which begin at different times count the same
    operation equally.

    ``position``: of the rank in ``matches.of_op``. What met nobody has an ordinal that no other rank has.
    """
    exchanges = run.exchanges
    known = np.flatnonzero((exchanges.kind != CommKind.UNKNOWN) & (exchanges.group != NOWHERE))
    if len(known) != len(comms.start_ns) or not np.array_equal(exchanges.start_ns[known], comms.start_ns):
        return run.ordinal  # rows that begin later than they were asked for: each rank's own count is the best there is
    matched = matches.of_op[position].astype(np.int64)
    alone = -2 - ((position << 40) + np.arange(len(matched)))
    ordinal = run.ordinal.copy()
    ordinal[known] = np.where(matched == NOWHERE, alone, values_at(matches.turn, matched))
    return ordinal


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
    sizes = [len(table.start_ns) for table in tables]
    number = {group: k for k, group in enumerate(dict.fromkeys(group for table in tables for group in table.groups))}
    key = np.concatenate([_keys(run, number) for run in runs])
    start, end, on_host = (
        np.concatenate([getattr(table, name) for table in tables]) for name in ("start_ns", "end_ns", "on_host")
    )
    sides = key[:, -1]
    usable = np.flatnonzero(sides > 0)
    order = usable[np.lexsort((start[usable], *key[usable].T[::-1]))]  # the sides of each exchange, by their start
    new = begins(*key[order].T)
    first, exchange = np.flatnonzero(new), np.cumsum(new) - 1
    count = np.diff(np.append(first, len(order)))
    complete = np.flatnonzero((count == sides[order[first]])[exchange])
    side, exchange = order[complete], exchange[complete]
    last = order[first + count - 1][exchange]
    shortest = least(len(first), exchange, (end - start)[side])[exchange]
    late_rank = np.repeat([run.rank for run in runs], sizes)[last]
    transfer, late_from = start.copy(), start.copy()
    transfer[side] = np.where(on_host[side], np.clip(start[last], start[side], end[side]), end[side] - shortest)
    late_from[side] = start[last]
    known = marked(len(start), side)
    return _by_run(PeerExchanges(transfer, spread(len(start), side, late_rank), late_from, known), sizes)


def _by_run(table: TableT, sizes: Sequence[int]) -> tuple[TableT, ...]:
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return tuple(take(table, of_run) for of_run in rows)


def _keys(run: StageRun, number: dict[GroupKey, int]) -> I64:
    """Return what is equal on all sides of an exchange, and how many sides it has (0: unknown): columns of one row per
    exchange.
    """
    exchanges = run.exchanges
    collective = (exchanges.kind == CommKind.COLLECTIVE) & (exchanges.group != NOWHERE)
    p2p = np.isin(exchanges.kind, (CommKind.SEND, CommKind.RECV)) & (exchanges.peer != NOWHERE)
    sends = exchanges.kind == CommKind.SEND
    # the last for what has no group
    group = np.array([*(number[group] for group in exchanges.groups), NOWHERE], np.int64)[exchanges.group]
    size = np.array([*(len(ranks) for ranks, _ in exchanges.groups), 0], np.int64)[exchanges.group]
    columns = (
        np.where(collective, -2, np.where(sends, run.rank, exchanges.peer)),
        np.where(collective, 0, np.where(sends, exchanges.peer, run.rank)),
        np.where(collective, 0, exchanges.tag),
        run.ordinal,
        group,
        np.where(collective, size, np.where(p2p, 2, 0)),
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
    sizes = [len(run.ranges.phase) for run in pipes.runs]
    phase, stage, microbatch, step, start, end = (
        np.concatenate([getattr(run.ranges, name) for run in pipes.runs]).astype(np.int64)
        for name in ("phase", "stage", "microbatch", "step", "start_ns", "end_ns")
    )
    count = len(phase)
    together = codes(np.repeat(np.arange(len(sizes)), sizes), np.concatenate(pipes.together))
    end = largest(count, together, end, -MOST)[together]
    rank = np.repeat([run.rank for run in pipes.runs], sizes)
    direction = np.where(phase == Pass.F, 1, np.where(np.isin(phase, (Pass.B, Pass.I)), -1, 0))
    moving = np.flatnonzero(direction)
    have = (np.repeat(pipes.pipe, sizes), step, direction, stage, microbatch)
    want = (*have[:3], stage - direction, microbatch)
    code = codes(*(np.concatenate(pair) for pair in zip(have, want, strict=True)))
    maker = spread(2 * count, code[moving], moving)[code[count:]]
    needs = np.flatnonzero((direction != 0) & (maker != NOWHERE) & (rank[maker] != rank))
    source = spread(count, needs, maker[needs])
    pair = codes(direction[needs], stage[needs])
    lag = least(len(needs), pair, np.maximum(start[needs] - end[source[needs]], 0))[pair]
    columns = (values_at(end, source, NO_TIME), spread(count, needs, lag, 0), values_at(rank, source))
    phase_of = values_at(phase, source, 0).astype(np.uint8)
    return _by_run(Producers(*columns, values_at(stage, source), phase_of), sizes)


def clock_warnings(pipes: Pipes, tolerance_ns: int, *, placed: bool) -> list[str]:
    """Return one warning with the number of contradictions and the largest, none where there is none.

    A receive cannot end before its send begins, nor work that needs another stage's begin before that has ended. Both
    on a device only: a host range may begin and wait, and a gloo send may have left milliseconds before its row begins
    where there are few cores. ``pipes`` with virtual stages, ``placed`` where they are no guess. ``tolerance_ns``: how
    far the clocks are known to agree.
    """
    count, worst_ns, between = 0, 0, ""
    for run, peers, needs in zip(pipes.runs, matched(pipes.runs), producers(pipes), strict=True):
        exchanges = run.exchanges
        receives = (exchanges.kind == CommKind.RECV) & peers.known & ~exchanges.on_host
        works = (needs.end_ns != NO_TIME) & run.sees_device & placed
        for ahead_ns, other in (
            (np.where(receives, peers.late_from_ns - exchanges.end_ns, 0), peers.late_rank),
            (np.where(works, needs.end_ns, run.ranges.start_ns) - run.ranges.start_ns, needs.rank),
        ):
            count += how_many(ahead_ns > tolerance_ns)
            if ahead_ns.max(initial=0) > max(worst_ns, tolerance_ns):
                at = int(ahead_ns.argmax())
                worst_ns, between = int(ahead_ns[at]), f"ranks {other[at]} and {run.rank}"
    if not count:
        return []
    return [
        f"the clocks of the ranks differ: {count} times something begins before what it needs has ended, by up to "
        f"{worst_ns / 1e6:.3f} ms ({between}); causes between ranks, and theory, are wrong by as much"
    ]
