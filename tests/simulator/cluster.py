"""Simulated runs of many ranks with known truth about their communication: who met whom, on which clocks, and what is
missing.

run = cluster_run(ClusterTraining(data=2, tensor=2, pipeline=2, drift_ppm=20.0), [LateStart(1, share=0.2)])
run.ranks[1].start_ns, run.ranks[1].meeting  # columns, as recorded and as it was
run.expected.unmatched                       # what a perfect matching leaves
run.write("traces", seq=False)               # kineto_0.json, ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.simulator.cluster_faults import (
    Fault,
    Recording,
    check_faults,
    described,
    held_up,
    of_rank,
    profiler_starts,
    recorded,
    recording,
)
from tests.simulator.cluster_host import host_name, rank_plans, rank_program
from tests.simulator.cluster_program import (
    ClusterGroup,
    Op,
    TrueMeeting,
    cluster_groups,
    find_meetings,
    named_groups,
    rank_ops,
)
from tests.simulator.cluster_records import (
    COLLECTIVE,
    NOWHERE,
    ClusterTraining,
    RankColumns,
    RankTimes,
    TrueClock,
    TrueMeetings,
)
from tests.simulator.cluster_truth import Expected, expected
from tests.simulator.dialects import EPOCH_NS
from tests.simulator.et import write_et
from tests.simulator.kineto import Variation, write_kineto
from tests.simulator.machine import run_together
from tests.simulator.program import Program

AFTER_NS = 20_000  # a recording goes on after the last step


@dataclass(frozen=True)
class ClusterRun:
    """What happened and what was recorded of it. True times are ns since the epoch on the run's clock, which began at
    ``EPOCH_NS``.

    ``ranks``: the recorded ones; ``own_groups[r][k]`` is the position in ``groups`` of ``ranks[r].groups[k]``.
    ``times`` and ``ops`` hold for each rank what it issued, in that order (``ops`` as recorded). ``recordings``: what
    the profiler of each recorded rank shows. ``profiler_start_ns``: when each rank's profiler was done starting.
    """

    training: ClusterTraining
    faults: tuple[Fault, ...]
    groups: tuple[ClusterGroup, ...]
    ranks: dict[int, RankColumns]
    own_groups: dict[int, tuple[int, ...]]
    meetings: TrueMeetings
    expected: Expected
    profiler_start_ns: tuple[int, ...]
    times: tuple[RankTimes, ...]
    ops: tuple[list[Op], ...]
    recordings: dict[int, Recording]

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

        ``seq``: the sequence numbers; ``comm_args``: Kineto says what a communication is (dialects before 2024 never
        do, and then only the ET tells); ``cuda_sync``: rows that say what waited for what. ``suffix`` may end in .gz.
        Raises KeyError for an unknown dialect.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        vary = Variation(seq=seq, comm_args=comm_args, launch_flows=False, gpu_annotations=False, other_rows=False)
        paths = tuple(folder / f"kineto_{rank}{suffix}" for rank in self.recordings)
        for path, (rank, (execution, *_)) in zip(paths, self.recordings.items(), strict=True):
            write_kineto(execution, path, dialect=dialect, cuda_sync=cuda_sync, vary=vary)
            if et:
                write_et(execution, folder / f"et_{rank}{suffix}")
        return paths


def cluster_run(
    training: ClusterTraining,
    faults: Sequence[Fault] = (),
    change: Callable[[Program], Program] = lambda program: program,
) -> ClusterRun:
    """Simulate a training and its recording; deterministic by seed. Linear in ops but for sorting.

    ``change`` makes another program of that of each rank, action by action.

    Raises ValueError for a fault that does not fit the training.
    """
    check_faults(training, faults)
    groups = cluster_groups(training)
    ops = [rank_ops(training, groups, rank) for rank in range(training.world)]
    told = [described(ops[rank], groups, of_rank(faults, rank)) for rank in range(training.world)]
    meetings, starts = find_meetings(ops), profiler_starts(training, faults)
    plans = rank_plans(training, ops, meetings, starts, held_up(faults))
    planned = [rank_program(training, groups, plan, told[plan.rank].ops) for plan in plans]
    programs = [each._replace(program=change(each.program)) for each in planned]
    executions = run_together([each.program for each in programs])
    times = tuple(each.times(execution) for each, execution in zip(programs, executions, strict=True))
    clocks = host_clocks(training)
    ranks: dict[int, RankColumns] = {}
    recordings: dict[int, Recording] = {}
    altered: dict[int, dict[int, str]] = {}
    for rank, (program, execution) in enumerate(zip(programs, executions, strict=True)):
        window_ns = (starts[rank], times[rank].ended_ns + AFTER_NS)
        record = recorded(ops[rank], times[rank], groups, of_rank(faults, rank), window_ns)
        if record is None:
            continue
        op_of = program.op_of([op.site for op in execution.device])
        recordings[rank] = recording(execution, op_of, record, clocks[rank // training.ranks_per_host])
        ranks[rank] = _columns(training, groups, recordings[rank], told[rank].ops, times[rank])
        place = {m: at for at, m in enumerate(ranks[rank].meeting.tolist())}
        met = times[rank].meeting.tolist()
        altered[rank] = {place[met[i]]: why for i, why in told[rank].altered.items() if met[i] in place}
    truth = _truth(meetings, times)
    return ClusterRun(
        training=training,
        faults=tuple(faults),
        groups=groups,
        ranks=ranks,
        own_groups={rank: tuple(named_groups(training, groups, rank)) for rank in ranks},
        meetings=truth,
        expected=expected(truth, ranks, altered),
        profiler_start_ns=tuple(EPOCH_NS + ns for ns in starts),
        times=times,
        ops=tuple(each.ops for each in told),
        recordings=recordings,
    )


def host_clocks(training: ClusterTraining) -> tuple[TrueClock, ...]:
    """One a host."""
    rng = np.random.default_rng([training.seed, 3])
    either_way = rng.uniform(-1, 1, (2, training.hosts))
    offset, drift = training.host_clock_offset_ns, training.drift_ppm
    offsets = offset if isinstance(offset, tuple) else [round(float(share) * offset) for share in either_way[0]]
    drifts = drift if isinstance(drift, tuple) else [float(share) * drift for share in either_way[1]]
    return tuple(TrueClock(ns, ppm * 1e-6, EPOCH_NS) for ns, ppm in zip(offsets, drifts, strict=True))


def _columns(
    training: ClusterTraining, groups: Sequence[ClusterGroup], shown: Recording, ops: Sequence[Op], times: RankTimes
) -> RankColumns:
    """``ops``: as recorded."""
    program, clock = shown.execution.program, shown.clock
    assert program.rank is not None, "a rank of a cluster"
    named = named_groups(training, groups, program.rank)
    place = {index: k for k, index in enumerate(named)}
    ran_ns = np.array([(op.start_ns, op.end_ns) for op in shown.execution.device], np.int64).reshape(-1, 2) + EPOCH_NS
    comms = np.flatnonzero(times.meeting[shown.ops] != NOWHERE)
    comms = comms[np.lexsort((ran_ns[comms, 1], ran_ns[comms, 0]))]
    at = shown.ops[comms]
    mine = [ops[i] for i in at.tolist()]
    held_ns = (
        np.array([(row.start_ns, row.end_ns) for row in shown.execution.overheads], np.int64).reshape(-1, 2) + EPOCH_NS
    )
    return RankColumns(
        rank=program.rank,
        world_size=training.world,
        host=host_name(training, program.rank),
        began_ns=shown.began_ns,
        ended_ns=shown.ended_ns,
        groups=tuple(named.values()),
        kind=np.array([op.kind for op in mine], np.uint8),
        type=np.array([op.type for op in mine], np.int32),
        bytes=np.array([op.bytes for op in mine], np.int64),
        group=np.array([place[op.group] for op in mine], np.int32),
        peer=np.array([op.peer for op in mine], np.int32),
        tag=np.zeros(len(mine), np.int64),
        seq=np.array([op.seq for op in mine], np.int64),
        stream=np.array([op.stream for op in mine], np.int32),
        uneven=np.array([bool(op.splits[0]) for op in mine], np.bool_),
        start_ns=ran_ns[comms, 0],
        end_ns=ran_ns[comms, 1],
        true_start_ns=times.start_ns[at] + EPOCH_NS,
        true_end_ns=times.end_ns[at] + EPOCH_NS,
        meeting=times.meeting[at],
        overhead_start_ns=held_ns[:, 0],
        overhead_end_ns=held_ns[:, 1],
        clock=clock,
    )


def _truth(meetings: Sequence[TrueMeeting], times: Sequence[RankTimes]) -> TrueMeetings:
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
