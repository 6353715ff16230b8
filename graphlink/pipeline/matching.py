"""The same communication seen from its ranks: who came last, and how long it took once all were there.

Collectives match by group and order, sends and receives by group, pair of ranks, tag and order. Of kernels the transfer took as long as the
shortest of them ran: who came early waited for the rest (``docs/bubbles.md``). A gloo row lasts until somebody waits for it, so there the
transfer begins when the last side has begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphlink.model import I32, I64, NOWHERE, Bool, CommKind
from graphlink.pipeline.records import Exchanges, StageRun


@dataclass(frozen=True, slots=True)
class Matched:
    """One entry an exchange of a rank. ``transfer_from_ns``: from then on it was transfer, before it was waiting for ``late_rank``.

    ``known`` where all sides were recorded; else ``transfer_from_ns`` is its start and ``late_rank`` ``NOWHERE``. ``late_from_ns``: when
    the last side began.
    """

    transfer_from_ns: I64
    late_rank: I64
    late_from_ns: I64
    known: Bool


def matched(runs: Sequence[StageRun]) -> tuple[Matched, ...]:
    """Of each run its exchanges. O(n log n) over all ranks."""
    tables = [run.exchanges for run in runs]
    key = np.concatenate([_keys(run.rank, run.exchanges, groups) for groups in [_group_codes(tables)] for run in runs])
    start = np.concatenate([t.start_ns for t in tables])
    end = np.concatenate([t.end_ns for t in tables])
    on_host = np.concatenate([t.on_host for t in tables])
    rank = np.repeat([run.rank for run in runs], [len(t.start_ns) for t in tables])
    wanted = key[:, -1]
    usable = np.flatnonzero(wanted > 0)
    order = usable[np.lexsort((start[usable], *key[usable].T[::-1]))]
    transfer, late, late_from, known = start.copy(), np.full(len(start), NOWHERE), start.copy(), np.zeros(len(start), np.bool_)
    if len(order):
        sorted_key = key[order]
        new = np.append(True, (sorted_key[1:] != sorted_key[:-1]).any(axis=1))
        first = np.flatnonzero(new)
        count = np.diff(np.append(first, len(order)))
        group = np.cumsum(new) - 1
        shortest = np.minimum.reduceat((end - start)[order], first)[group]
        last = order[np.append(first[1:] - 1, len(order) - 1)][group]  # the latest start of each
        complete = (count == wanted[order[first]])[group]
        begins = np.where(on_host[order], np.minimum(np.maximum(start[order], start[last]), end[order]), end[order] - shortest)
        full = order[complete]
        transfer[full], late[full], late_from[full], known[full] = begins[complete], rank[last][complete], start[last][complete], True
    bounds = np.cumsum([len(t.start_ns) for t in tables])[:-1]
    return tuple(Matched(*columns) for columns in zip(*(np.split(c, bounds) for c in (transfer, late, late_from, known)), strict=True))


def _group_codes(tables: Sequence[Exchanges]) -> dict[tuple[str, tuple[int, ...]], int]:
    codes: dict[tuple[str, tuple[int, ...]], int] = {}
    for table in tables:
        for group in table.groups:
            codes.setdefault(group, len(codes))
    return codes


def _keys(rank: int, ex: Exchanges, codes: dict[tuple[str, tuple[int, ...]], int]) -> I64:
    """What is equal on all sides of an exchange, and how many sides it has (0: unknown): columns of one row an exchange."""
    code = np.array([codes[g] for g in ex.groups], np.int64)
    size = np.array([len(ranks) for _, ranks in ex.groups], np.int64)
    collective = (ex.kind == CommKind.COLLECTIVE) & (ex.group != NOWHERE)
    p2p = np.isin(ex.kind, (CommKind.SEND, CommKind.RECV)) & (ex.peer != NOWHERE)
    sends = ex.kind == CommKind.SEND
    out = np.zeros((len(ex.kind), 6), np.int64)
    out[:, 4] = _codes(code, ex.group)
    out[:, 0] = np.where(sends, rank, ex.peer)
    out[:, 1] = np.where(sends, ex.peer, rank)
    out[:, 2] = ex.tag
    out[:, 3] = ex.ordinal
    out[:, 5] = np.where(p2p, 2, 0)
    if collective.any():
        out[collective, 0] = -2
        out[collective, 1:3] = 0
        out[collective, 5] = size[ex.group[collective]]
    return out


def _codes(code: I64, group: I32) -> I64:
    out = np.full(len(group), NOWHERE)
    out[group != NOWHERE] = code[group[group != NOWHERE]]
    return out
