"""Simulated runs of many ranks with known truth about their communication: who met whom, on which clocks, and what is missing.

run = cluster_run(ClusterTraining(data=2, tensor=2, pipeline=2, drift_ppm=20.0), [LateStart(1, share=0.2)])
run.ranks[1].start_ns, run.ranks[1].meeting  # columns, as recorded and as it was
run.expected.unmatched                       # what a perfect matching leaves
run.write("traces", seq=False)               # kineto_0.json, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphlink.testing.cluster_et import et_text
from graphlink.testing.cluster_faults import Fault, Recorded, check_faults, held_up, profiler_starts, recorded
from graphlink.testing.cluster_kineto import kineto_text, usable_dialect, write_text
from graphlink.testing.cluster_machine import Meeting, RankTimes, find_meetings, simulate
from graphlink.testing.cluster_program import ClusterGroup, Op, cluster_groups, rank_ops
from graphlink.testing.cluster_records import (
    COLLECTIVE,
    NOWHERE,
    ClusterTraining,
    GroupKey,
    RankColumns,
    TrueClock,
    TrueMeetings,
)
from graphlink.testing.cluster_rows import rank_rows
from graphlink.testing.cluster_truth import Expected, expected
from graphlink.testing.dialects import EPOCH_NS

AFTER_NS = 20_000  # a recording goes on after the last step
_ROWS_A_KERNEL, _ROWS_A_COMM = 3, 9


@dataclass(frozen=True)
class ClusterRun:
    """What happened and what was recorded of it. True times are ns since the epoch on the run's clock, which began at ``EPOCH_NS``.

    ``ranks``: the recorded ones; ``own_groups[r][k]`` is the position in ``groups`` of ``ranks[r].groups[k]``. ``times`` and
    ``records`` hold for each rank what it issued, in that order (ns since the run began). ``profiler_start_ns``: when each rank's
    profiler was done starting. ``kernels``: small kernels of a forward layer.
    """

    training: ClusterTraining
    faults: tuple[Fault, ...]
    groups: tuple[ClusterGroup, ...]
    ranks: dict[int, RankColumns]
    own_groups: dict[int, tuple[int, ...]]
    meetings: TrueMeetings
    expected: Expected
    profiler_start_ns: tuple[int, ...]
    kernels: int
    times: tuple[RankTimes, ...]
    records: dict[int, Recorded]

    def write(
        self,
        folder: str | Path,
        *,
        dialect: str = "2024",
        seq: bool = True,
        comm_args: bool = True,
        cuda_sync: bool = True,
        et: bool = False,
        suffix: str = ".json",
    ) -> tuple[Path, ...]:
        """Write ``kineto_R`` of each recorded rank, with ``et`` also ``et_R``, into a folder; returns the Kineto files.

        ``seq``: the sequence numbers; ``comm_args``: Kineto says what a communication is (dialects before 2024 never do, and then
        only the ET tells); ``cuda_sync``: rows that say what waited for what. ``suffix`` may end in .gz. Raises KeyError for an unknown
        dialect, ValueError for 2021 and rocm.
        """
        usable_dialect(dialect)
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for rank in self.ranks:
            rows = rank_rows(self, rank)
            text = kineto_text(self, rows, dialect=dialect, seq=seq, comm_args=comm_args, cuda_sync=cuda_sync)
            paths.append(folder / f"kineto_{rank}{suffix}")
            write_text(text, paths[-1])
            if et:
                write_text(et_text(self, rows), folder / f"et_{rank}{suffix}")
        return tuple(paths)


def cluster_run(training: ClusterTraining, faults: Sequence[Fault] = ()) -> ClusterRun:
    """Simulate a training and its recording; deterministic by seed. Linear in ops but for sorting.

    Raises ValueError for a fault that does not fit the training.
    """
    check_faults(training, faults)
    groups = cluster_groups(training)
    ops = [rank_ops(training, groups, rank) for rank in range(training.world)]
    meetings = find_meetings(ops)
    starts, kernels = profiler_starts(training, faults), _kernels(training, ops[0])
    times = simulate(training, ops, meetings, kernels, starts, held_up(faults))
    clocks = host_clocks(training)
    ranks, records, altered = {}, {}, {}
    for rank in range(training.world):
        window_ns = (starts[rank], times[rank].steps[-1].end_ns + AFTER_NS)
        record = recorded(rank, ops[rank], times[rank], groups, faults, window_ns)
        if record is None:
            continue
        host = rank // training.ranks_per_host
        ranks[rank], shown = _columns(training, groups, rank, record, times[rank], clocks[host])
        records[rank] = record
        altered[rank] = {at: record.altered[i] for at, i in enumerate(shown) if i in record.altered}
    truth = _truth(meetings, times)
    own_groups = {rank: tuple(k for k, group in enumerate(groups) if rank in group.members) for rank in ranks}
    return ClusterRun(
        training=training,
        faults=tuple(faults),
        groups=groups,
        ranks=ranks,
        own_groups=own_groups,
        meetings=truth,
        expected=expected(truth, ranks, altered),
        profiler_start_ns=tuple(EPOCH_NS + ns for ns in starts),
        kernels=kernels,
        times=times,
        records=records,
    )


def host_clocks(training: ClusterTraining) -> tuple[TrueClock, ...]:
    """One a host."""
    rng = np.random.default_rng([training.seed, 3])
    either_way = rng.uniform(-1, 1, (2, training.hosts))
    offset, drift = training.host_clock_offset_ns, training.drift_ppm
    offsets = offset if isinstance(offset, tuple) else [round(float(share) * offset) for share in either_way[0]]
    drifts = drift if isinstance(drift, tuple) else [float(share) * drift for share in either_way[1]]
    return tuple(TrueClock(ns, ppm * 1e-6, EPOCH_NS) for ns, ppm in zip(offsets, drifts, strict=True))


def _kernels(training: ClusterTraining, ops: Sequence[Op]) -> int:
    """So many a forward layer that a rank has as many rows as asked for."""
    comms = sum(op.group != NOWHERE for op in ops)
    left = training.events_per_rank - comms * _ROWS_A_COMM
    return max(1, round(left / (_ROWS_A_KERNEL * sum(op.weight for op in ops))))


def _named(training: ClusterTraining, groups: Sequence[ClusterGroup], rank: int) -> list[tuple[int, GroupKey]]:
    """(index, key as the rank records it) of the groups that a rank is in."""
    mine = [(index, group) for index, group in enumerate(groups) if rank in group.members]
    if not training.address_names:
        return [(index, (group.members, group.name)) for index, group in mine]
    base = 94_000_000_000_000 + int(np.random.default_rng([training.seed, 4, rank]).integers(1 << 30)) * 16
    return [(index, (group.members, str(base + 1_024 * k))) for k, (index, group) in enumerate(mine)]


def _columns(
    training: ClusterTraining, groups: Sequence[ClusterGroup], rank: int, record: Recorded, times: RankTimes, clock: TrueClock
) -> tuple[RankColumns, list[int]]:
    """The columns, and for each entry which of the rank's ops it is."""
    named = _named(training, groups, rank)
    place = {index: k for k, (index, _) in enumerate(named)}
    kept = np.flatnonzero(record.kept & (times.meeting != NOWHERE))
    true_start_ns, true_end_ns = times.start_ns[kept] + EPOCH_NS, times.end_ns[kept] + EPOCH_NS
    start_ns, end_ns = clock.recorded(true_start_ns), clock.recorded(true_end_ns)
    order = np.lexsort((end_ns, start_ns))
    shown = kept[order].tolist()
    ops = [record.ops[i] for i in shown]
    held = clock.recorded(
        np.array([ns for ns in times.held_ns if ns[0] >= record.began_ns and ns[1] <= record.ended_ns], np.int64).reshape(-1, 2) + EPOCH_NS
    )
    window_ns = clock.recorded(np.array([record.began_ns, record.ended_ns], np.int64) + EPOCH_NS).tolist()
    return RankColumns(
        rank=rank,
        world_size=training.world,
        host=host_name(training, rank),
        began_ns=window_ns[0],
        ended_ns=window_ns[1],
        groups=tuple(key for _, key in named),
        kind=np.array([op.kind for op in ops], np.uint8),
        type=np.array([op.type for op in ops], np.int32),
        bytes=np.array([op.bytes for op in ops], np.int64),
        group=np.array([place[op.group] for op in ops], np.int32),
        peer=np.array([op.peer for op in ops], np.int32),
        tag=np.zeros(len(ops), np.int64),
        seq=np.array([op.seq for op in ops], np.int64),
        stream=np.array([op.stream for op in ops], np.int32),
        uneven=np.array([bool(op.splits[0]) for op in ops], np.bool_),
        start_ns=start_ns[order],
        end_ns=end_ns[order],
        true_start_ns=true_start_ns[order],
        true_end_ns=true_end_ns[order],
        meeting=times.meeting[kept][order],
        overhead_start_ns=held[:, 0],
        overhead_end_ns=held[:, 1],
        clock=clock,
    ), shown


def host_name(training: ClusterTraining, rank: int) -> str:
    return f"node{rank // training.ranks_per_host}"


def _truth(meetings: Sequence[Meeting], times: Sequence[RankTimes]) -> TrueMeetings:
    members = [member for meeting in meetings for member in meeting.members]
    ops = [meeting.op for meeting in meetings]
    return TrueMeetings(
        kind=np.array([op.kind != COLLECTIVE for op in ops], np.uint8),
        type=np.array([op.type for op in ops], np.int32),
        bytes=np.array([op.bytes for op in ops], np.int64),
        group=np.array([op.group for op in ops], np.int32),
        first=np.cumsum([0, *(len(meeting.members) for meeting in meetings)]),
        rank=np.array([rank for rank, _ in members], np.int32),
        start_ns=np.array([times[rank].start_ns[i] for rank, i in members], np.int64) + EPOCH_NS,
        end_ns=np.array([times[rank].end_ns[i] for rank, i in members], np.int64) + EPOCH_NS,
    )
