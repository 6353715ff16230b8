"""Columns of very many ranks, fast: what a joining of 1,024 ranks is measured on."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.simulator.cluster_records import (
    ALL_REDUCE,
    COLLECTIVE,
    I32,
    I64,
    NOWHERE,
    REDUCE_SCATTER,
    GroupKey,
    RankColumns,
    TrueClock,
)
from tests.simulator.dialects import EPOCH_NS

_TENSOR, _DATA, _WORLD = 0, 1, 2  # group, in the order of a rank's groups
_TENSOR_RANKS, _DATA_RANKS = 8, 16
_END_JITTER_NS = 1_500
_TRANSFER_NS = {_TENSOR: 40_000, _DATA: 120_000, _WORLD: 30_000}


def large_columns(ranks: int = 1_024, rows_per_rank: int = 10_000, seed: int = 0) -> tuple[RankColumns, ...]:
    """``ranks`` (a multiple of 8) with ``rows_per_rank`` collectives each, without faults.

    Tensor groups of 8 ranks in a row, data groups of up to 16 strided ones, and the world; 8 ranks a host, whose clock
    is up to 50 ms and 20 ppm off; members end within 1.5 us. All ranks share the columns in which they do not differ.
    One pass over rows with numpy over ranks.
    """
    if ranks % _TENSOR_RANKS or ranks < _TENSOR_RANKS or rows_per_rank < 1:
        raise ValueError(
            f"{ranks} ranks, {rows_per_rank} rows: ranks are a multiple of {_TENSOR_RANKS}, rows 1 or more"
        )
    rng = np.random.default_rng(seed)
    columns = ranks // _TENSOR_RANKS  # of ranks in data order
    data_ranks = next(n for n in range(min(_DATA_RANKS, columns), 0, -1) if columns % n == 0)
    row = np.arange(rows_per_rank)
    group = np.where(row % 64 == 63, _WORLD, np.where(row % 8 == 7, _DATA, _TENSOR)).astype(np.int32)
    turn = _turns(group)
    start_ns, end_ns, meeting = _times(rng, ranks, data_ranks, group)
    hosts = ranks // _TENSOR_RANKS
    offset_ns, drift = rng.integers(-50_000_000, 50_000_001, hosts), rng.uniform(-20e-6, 20e-6, hosts)
    same: dict[str, Any] = {
        "world_size": ranks,
        "kind": np.full(rows_per_rank, COLLECTIVE, np.uint8),
        "type": np.where((group == _TENSOR) & (row % 2 == 1), REDUCE_SCATTER, ALL_REDUCE).astype(np.int32),
        "bytes": np.where(group == _WORLD, 4, np.where(group == _DATA, 8 << 20, 4 << 20)).astype(np.int64),
        "group": group,
        "peer": np.full(rows_per_rank, NOWHERE, np.int32),
        "tag": np.zeros(rows_per_rank, np.int64),
        "seq": turn + 1,
        "stream": np.array([20, 24, 36], np.int32)[group],
        "uneven": np.zeros(rows_per_rank, np.bool_),
        "overhead_start_ns": np.zeros(0, np.int64),
        "overhead_end_ns": np.zeros(0, np.int64),
    }
    world = (tuple(range(ranks)), "0")
    found = []
    for rank in range(ranks):
        host = rank // _TENSOR_RANKS
        clock = TrueClock(int(offset_ns[host]), float(drift[host]), EPOCH_NS)
        own_start_ns, own_end_ns = clock.recorded(start_ns[rank]), clock.recorded(end_ns[rank])
        found.append(
            RankColumns(
                rank=rank, host=f"node{host}", began_ns=int(own_start_ns[0]) - 50_000, ended_ns=int(own_end_ns[-1]) + 50_000,
                groups=(*_own_groups(rank, data_ranks), world), start_ns=own_start_ns, end_ns=own_end_ns,
                true_start_ns=start_ns[rank], true_end_ns=end_ns[rank], meeting=meeting[rank], clock=clock, **same,
            )
        )  # fmt: skip
    return tuple(found)


def _own_groups(rank: int, data_ranks: int) -> tuple[GroupKey, GroupKey]:
    """A rank's tensor and data group."""
    column, at = divmod(rank, _TENSOR_RANKS)
    block = column // data_ranks
    tensor = tuple(range(column * _TENSOR_RANKS, (column + 1) * _TENSOR_RANKS))
    first = block * data_ranks * _TENSOR_RANKS + at
    data = tuple(range(first, first + data_ranks * _TENSOR_RANKS, _TENSOR_RANKS))
    return (tensor, f"t{column}"), (data, f"d{block * _TENSOR_RANKS + at}")


def _turns(group: I32) -> I64:
    """How many earlier rows are of the same group."""
    turn = np.zeros(len(group), np.int64)
    for of in (_TENSOR, _DATA, _WORLD):
        rows = np.flatnonzero(group == of)
        turn[rows] = np.arange(len(rows))
    return turn


def _times(rng: np.random.Generator, ranks: int, data_ranks: int, group: I32) -> tuple[I64, I64, I32]:
    """True start and end, and the meeting, of each rank (line) and row (column)."""
    axes = (ranks // _TENSOR_RANKS // data_ranks, data_ranks, _TENSOR_RANKS)  # block, data, tensor
    over = {_TENSOR: (2,), _DATA: (1,), _WORLD: (0, 1, 2)}
    ids = np.arange(ranks).reshape(axes)
    # of the group's ranks the first stands for all
    label = {of: np.broadcast_to(ids.min(axis=over[of], keepdims=True), axes).reshape(-1) for of in over}
    start_ns, end_ns = np.empty((len(group), ranks), np.int64), np.empty((len(group), ranks), np.int64)
    meeting = np.empty((len(group), ranks), np.int32)
    now_ns = np.full(ranks, EPOCH_NS + 100_000, np.int64)
    for k, of in enumerate(group.tolist()):
        start_ns[k] = now_ns + rng.integers(100_000, 130_000, ranks)
        last_ns = np.broadcast_to(start_ns[k].reshape(axes).max(axis=over[of], keepdims=True), axes).reshape(-1)
        now_ns = last_ns + _TRANSFER_NS[of] + rng.integers(0, _END_JITTER_NS, ranks, endpoint=True)
        end_ns[k] = now_ns
        meeting[k] = k * ranks + label[of]
    return np.ascontiguousarray(start_ns.T), np.ascontiguousarray(end_ns.T), np.ascontiguousarray(meeting.T)
