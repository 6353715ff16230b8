"""Simulated pipeline-parallel training with known truth: which rank computes what when, and why it is idle, exact to
the ns.

    run = pipeline_run(PipelineTraining("ZB-H1", stages=4, microbatches=8, losses=(Loss("host_sync", 300_000),)))
    run.idle_ns()  # {"warmup": ..., "dependency_stall": ..., "host_sync": 300000}
    run.write("traces")  # kineto_0.json ... kineto_3.json

The order of phases, the simulation and the names are made here, from nothing of graphlink's own analysis.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from tests.simulator.et import write_et
from tests.simulator.execution import Execution
from tests.simulator.kineto import Variation, write_kineto
from tests.simulator.machine import run as run_program
from tests.simulator.pipeline_losses import Loss, Placed, place
from tests.simulator.pipeline_names import paddle_type
from tests.simulator.pipeline_orders import Slot, order
from tests.simulator.pipeline_rank import GROUP, WORLD, RankRun
from tests.simulator.pipeline_records import Job, PipelineTraining, TrueIdle, TrueRange
from tests.simulator.program import Group, Program

_NOTHING = Placed((), {}, {}, {}, 0, False)
_AS_USUAL = Variation()


class PaddleJob(NamedTuple):
    """A line of Paddle's log. ``type``: forward, backward, backward_b, backward_w, optimizer. Times as of the run."""

    worker: int
    type: str
    chunk: int
    microbatch: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class PipelineRun:
    """What happened on each rank, and the truth about it. Times are ns since the run began, on one clock.

    ``ranges`` and ``idle`` are sorted by rank, then start. Per step and rank the ``busy_ns`` of F, B, I and W ranges
    and all idle but ``optimizer_sync`` add up to the step's makespan (``steps``: first start to last end). ``losses``:
    as placed.
    """

    training: PipelineTraining
    programs: tuple[Program, ...]
    planned: tuple[tuple[tuple[int, int], ...], ...]  # start and end of the device ops of each rank, as enqueued
    ranges: tuple[TrueRange, ...]
    idle: tuple[TrueIdle, ...]
    steps: tuple[tuple[int, int], ...]
    losses: tuple[Loss, ...]

    @cached_property
    def executions(self) -> tuple[Execution, ...]:
        """One a rank, made on first use."""
        made = tuple(run_program(program) for program in self.programs)
        for execution, planned in zip(made, self.planned, strict=True):
            assert tuple((op.start_ns, op.end_ns) for op in execution.device) == planned, (
                "the machine runs what was planned"
            )
        return made

    @property
    def jobs(self) -> tuple[PaddleJob, ...]:
        """What Paddle would log: one line a range, waits inside it included."""
        return tuple(
            PaddleJob(r.rank, paddle_type(r.phase), r.chunk, r.microbatch, r.start_ns, r.end_ns) for r in self.ranges
        )

    def idle_ns(self, rank: int | None = None, step: int | None = None) -> dict[str, int]:
        """Idle time by cause, of one rank or step or of all."""
        total: Counter[str] = Counter()
        for row in self.idle:
            if rank in (None, row.rank) and step in (None, row.step):
                total[row.cause] += row.end_ns - row.start_ns
        return dict(total)

    def work_ns(self, rank: int | None = None, step: int | None = None) -> int:
        """Compute time of the F, B, I and W ranges."""
        return sum(
            r.busy_ns for r in self.ranges if r.phase != "OPT" and rank in (None, r.rank) and step in (None, r.step)
        )

    def makespan_ns(self, step: int = 0) -> int:
        start_ns, end_ns = self.steps[step]
        return end_ns - start_ns

    def own_ns(self, rank: int, step: int = 0) -> int:
        """Zero-bubble's window of a rank: from the start of its first range to the end of its last."""
        mine = [r for r in self.ranges if r.rank == rank and r.step == step and r.phase != "OPT"]
        return max(r.end_ns for r in mine) - min(r.start_ns for r in mine)

    def write(
        self,
        folder: str | Path,
        *,
        dialect: str = "2024",
        cuda_sync: bool = True,
        et: bool = False,
        vary: Variation = _AS_USUAL,
        clocks_ns: Sequence[int] = (),
        suffix: str = ".json",
    ) -> tuple[Path, ...]:
        """Write ``kineto_R`` of each rank, with ``et`` also ``et_R``, into a folder; returns the Kineto files.

        ``clocks_ns``: what the clock of each rank is ahead; all agree where it is empty.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = tuple(folder / f"kineto_{rank}{suffix}" for rank in range(len(self.programs)))
        for rank, (path, execution) in enumerate(zip(paths, self.executions, strict=True)):
            varied = replace(vary, clock_ns=clocks_ns[rank]) if clocks_ns else vary
            write_kineto(execution, path, dialect=dialect, cuda_sync=cuda_sync, vary=varied)
            if et:
                write_et(execution, folder / f"et_{rank}{suffix}")
        return paths


def pipeline_run(training: PipelineTraining) -> PipelineRun:
    """Simulate a training; deterministic. Growth: linear in ranges.

    Raises ValueError where schedule and numbers do not fit, where the host could not launch in time, and where a loss
    cannot be had at its place.
    """
    orders = [
        order(training.schedule, training.stages, training.microbatches, training.chunks, r)
        for r in range(training.stages)
    ]
    placed = _NOTHING
    if training.losses:
        started = [s for rank in _simulate(replace(training, losses=()), orders, _NOTHING) for s in rank.started]
        counts = {"steps": training.steps, "kernels": training.kernels}
        placed = place(training.losses, started, orders, **counts, main_thread=not training.autograd_thread)
        if placed.norm_ns and not training.optimizer_ns:
            raise ValueError("optimizer_sync needs an optimizer: optimizer_ns")
    ranks = _simulate(training, orders, placed)
    groups = _groups(training.stages, placed)
    return PipelineRun(
        training=training,
        programs=tuple(
            Program(
                rank.host.threads(), groups, rank.rank, training.stages, pid=4_000 + 1_000 * rank.rank, seed=rank.rank
            )
            for rank in ranks
        ),
        planned=tuple(tuple(rank.host.planned) for rank in ranks),
        ranges=tuple(row for rank in ranks for row in rank.ranges),
        idle=tuple(row for rank in ranks for row in sorted(rank.idle)),
        steps=tuple(ranks[0].steps),
        losses=placed.losses,
    )


def _simulate(training: PipelineTraining, orders: Sequence[Sequence[Slot]], placed: Placed) -> list[RankRun]:
    waiting: dict[object, list[int]] = {}
    ready = deque(range(training.stages))
    done: set[object] = set()

    def finish(key: object) -> None:
        done.add(key)
        ready.extend(waiting.pop(key, ()))

    job = Job(finish, done)
    ranks = [RankRun(training, rank, orders[rank], placed, job) for rank in range(training.stages)]
    runs = [rank.run() for rank in ranks]
    while ready:
        rank = ready.popleft()
        for key in runs[rank]:
            if key not in done:
                waiting.setdefault(key, []).append(rank)
                break
    if waiting:
        raise ValueError(f"the ranks wait for each other for ever: {sorted(map(str, waiting))[:3]}")
    return ranks


def _groups(stages: int, placed: Placed) -> tuple[Group, ...]:
    every = tuple(range(stages))
    named = [
        (WORLD, "default_pg", every),
        (GROUP["F"], "PIPELINE_FORWARD", every),
        (GROUP["B"], "PIPELINE_BACKWARD", every),
    ]
    named += [(name, "EMBEDDING", tuple(sorted({p.rank for p in places}))) for places, name in placed.groups.items()]
    return tuple(Group(*group) for group in named)
