"""Simulated runs that are changed and run again: with other jitter, so that a prediction is compared with what a second
run would take.

case = second_run(seed=7)
case.write("traces")  # what the first run recorded
case.arguments        # the change, as on the command line of graphlink replay, or its tables as JSON
case.truth_ns         # how long the changed program takes in the second run
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from random import Random
from typing import Final

import numpy as np

from tests.simulator.cluster import ClusterRun, cluster_run
from tests.simulator.cluster_records import I64, ClusterTraining
from tests.simulator.execution import Execution
from tests.simulator.kineto import write_kineto
from tests.simulator.loading import Loading, loading_program
from tests.simulator.machine import run
from tests.simulator.program import Action, Api, Begin, Call, End, Host, Program
from tests.simulator.programs import Training, training_program

Change = Callable[[Program], Program]
KINDS: Final = (
    "kernels", "host faster", "host slower", "communication", "straggler", "syncs", "launches", "bandwidth", "copies",
    "gaps",
)  # fmt: skip
BY_TABLES: Final = ("evened", "workers")  # changes that have no option, or came later
OF_RANKS: Final = ("communication", "straggler", "bandwidth", "gaps", "evened")  # changes that one rank has not
_ONE_SIZE: Final = ((2, 1, 1), (1, 2, 1), (4, 1, 1))  # data, tensor, pipeline: all groups have as many ranks
_SHAPES: Final = (
    (2, 1, 1),
    (1, 2, 1),
    (1, 1, 2),
    (2, 2, 1),
    (2, 1, 2),
    (4, 1, 1),
    (2, 2, 2),
    (4, 2, 1),
)
_LONG_NS: Final = 20_000  # of the host, between rows: a gap in the graph
_SECOND: Final = 1_000_000  # seeds of second runs


@dataclass(frozen=True)
class SecondRun:
    """A run that was recorded, a change of it, and the time from the first start to the last end of all ranks without
    and with it.

    ``recorded_ns`` is of the run that was recorded, ``truth_ns`` of the changed program, run again with other jitter;
    ``truth_step_ns`` the mean of its steps after the first, from the end of the work of one to that of the next, times
    what makes that, in the run that was recorded, the mean of the marks, as which steps are told: time lies between
    marks, too.
    """

    seed: int
    kind: str
    steps: int
    ranks: int
    arguments: tuple[str, ...]
    first: Execution | ClusterRun
    recorded_ns: int
    truth_ns: int
    truth_step_ns: float

    def write(self, folder: Path) -> None:
        """Write the recordings of the first run into a folder."""
        if isinstance(self.first, ClusterRun):
            self.first.write(folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            write_kineto(self.first, folder / "kineto_0.json", dialect="2024")


def second_run(seed: int, kind: str | None = None, steps: int | None = None, *, alone: bool | None = None) -> SecondRun:
    """Simulate a run and its second, changed one; deterministic by seed. A third of them have one rank, the others 2 to
    8, but for those that are to be ``alone`` or not."""
    rng = Random(seed)
    kind = rng.choice(KINDS) if kind is None else kind
    steps = rng.randint(2, 20) if steps is None else steps
    third = (rng.random() < 1 / 3 and kind not in OF_RANKS) or kind == "copies"  # which clusters do not make
    alone = third if alone is None else alone
    if kind == "workers":
        return _loaded(seed, steps, rng)
    return _alone(seed, kind, steps, rng) if alone else _together(seed, kind, steps, rng)


def faster_host(program: Program, factor: float, longest_ns: int | None = None) -> Program:
    """Return the program whose host and calls take ``factor`` of their time; what the device takes to begin stays, and
    so do times between rows above ``longest_ns``."""

    def times(ns: int) -> int:
        return ns if longest_ns is not None and ns > longest_ns else max(1, round(ns * factor))

    def changed(action: Action) -> Action:
        if isinstance(action, Host | Begin):
            return replace(action, ns=max(1, round(action.ns * factor)))
        if isinstance(action, End):
            return replace(action, ns=times(action.ns))
        if isinstance(action, Call):
            return replace(action, call_ns=times(action.call_ns), return_ns=times(action.return_ns))
        return action

    return _changed(program, changed)


def dearer_launches(program: Program, ns: int) -> Program:
    """Return the program whose launch calls take ``ns`` longer."""

    def changed(action: Action) -> Action:
        launches = isinstance(action, Call) and action.api is Api.LAUNCH
        return replace(action, call_ns=max(1, action.call_ns + ns)) if launches else action  # type: ignore[union-attr, arg-type]

    return _changed(program, changed)


def without_waits(program: Program, call: str) -> Program:
    """Return the program in which calls of a name wait for nothing; they take as long as one that has nothing to wait
    for.
    """

    def changed(action: Action) -> Action:
        return replace(action, api=Api.OTHER) if isinstance(action, Call) and action.name == call else action

    return _changed(program, changed)


def other_gaps(program: Program, factor: float) -> Program:
    """Return the program in which times between rows above 20 us take ``factor`` of their time."""

    def changed(action: Action) -> Action:
        if isinstance(action, End) and action.ns > _LONG_NS:
            return replace(action, ns=round(action.ns * factor))
        return action

    return _changed(program, changed)


def slower_device(program: Program, factor: float, sorts: Sequence[str] = ("kernel",)) -> Program:
    """Return the program whose device ops of these ``sorts`` that do not communicate take ``factor`` of their time."""

    def changed(action: Action) -> Action:
        if not isinstance(action, Call):
            return action
        work = (
            replace(w, duration_ns=round(w.duration_ns * factor)) if w.kind in sorts and w.comm is None else w
            for w in action.work
        )
        return replace(action, work=tuple(work))

    return _changed(program, changed)


def _changed(program: Program, change: Callable[[Action], Action]) -> Program:
    threads = (replace(thread, actions=tuple(map(change, thread.actions))) for thread in program.threads)
    return replace(program, threads=tuple(threads))


def _program_change(kind: str, rng: Random, waits: str) -> tuple[Change, tuple[str, ...]]:
    """Draw a change of programs, and its arguments. Whether gaps of the host change with it, they do not tell."""
    if kind == "kernels":
        factor = rng.choice([0.5, 0.7, 1.5])
        return lambda program: slower_device(program, factor), ("--scale", f"kernel={factor}")
    if kind == "copies":
        factor = rng.choice([0.3, 0.5, 2.0])
        sorts = ("gpu_memcpy", "gpu_memset")
        return lambda program: slower_device(program, factor, sorts), ("--scale", f"copy={factor}")
    if kind == "gaps":
        factor = rng.choice([0.5, 2.0])
        return lambda program: other_gaps(program, factor), ("--scale", f"gap={factor}")
    if kind in ("host faster", "host slower"):
        factor = 0.5 if kind == "host faster" else 2.0
        longest_ns = rng.choice([None, _LONG_NS])
        return lambda program: faster_host(program, factor, longest_ns), ("--scale", f"host={factor}")
    if kind == "syncs":
        return lambda program: without_waits(program, waits), ("--remove-sync", waits)
    ns = rng.choice([-1_500, 5_000, 20_000])
    return lambda program: dearer_launches(program, ns), ("--launch-cost", f"{ns / 1000:g}")


def _alone(seed: int, kind: str, steps: int, rng: Random) -> SecondRun:
    what = Training(steps=steps, layers=rng.randint(2, 5))
    change, arguments = _program_change(kind, rng, "cudaStreamSynchronize")
    first = run(training_program(seed, what))
    second = run(change(training_program(_SECOND + seed, what)))
    step_ns = _told(first) * _period_ns(second)
    return SecondRun(seed, kind, steps, 1, arguments, first, first.makespan_ns, second.makespan_ns, step_ns)


def _loaded(seed: int, steps: int, rng: Random) -> SecondRun:
    """Batches made by workers: a window in the middle of a long run, in which batches and kernels take other times."""
    what = Loading(
        seed=seed,
        batches=steps,
        batch_ns=rng.choice([300_000, 1_000_000, 3_000_000, 10_000_000]),
        kernels=rng.randint(4, 20),
        blocking=rng.random() < 0.5,
    )
    workers = rng.choice([1, 2, 4])
    first = run(loading_program(what))
    second = run(loading_program(replace(what, seed=_SECOND + seed, workers=workers, windows=12)))
    begun = [row.start_ns for row in second.host if row.name.startswith("ProfilerStep#")]
    begun = begun[7 * steps : 8 * steps + 1]
    tables = json.dumps({"dataloader": [{"workers": workers}]})
    step_ns = (begun[-1] - begun[1]) / (steps - 1)  # nothing lies between marks
    return SecondRun(seed, "workers", steps, 1, (tables,), first, first.makespan_ns, begun[-1] - begun[0], step_ns)


def _together(seed: int, kind: str, steps: int, rng: Random) -> SecondRun:
    arguments: tuple[str, ...] = ("--scale", "comm=0.5")
    change: Change = _same
    data, tensor, pipeline = rng.choice(_ONE_SIZE if kind in ("bandwidth", "evened") else _SHAPES)
    training = ClusterTraining(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        steps=steps,
        layers=rng.choice([1, 2]),
        microbatches=2,
        seed=seed,
        compute_ns=rng.choice([60_000, 150_000, 400_000]),
        jitter=rng.choice([0.02, 0.1, 0.2]),
        step_jitter=rng.choice([0.0, 0.0, 0.05, 0.1]),
        host_jitter_ns=rng.choice([500, 3_000]),
        bytes_per_us=rng.choice([20_000, 100_000]),
    )
    second = training
    if kind in ("communication", "bandwidth"):
        second, size = replace(training, bytes_per_us=2 * training.bytes_per_us), max(data, tensor)
        if kind == "bandwidth":  # what nccl-tests would show on this network
            arguments = ("--bandwidth", f"{second.bytes_per_us / 1000 * 2 * (size - 1) / size:g}")
    elif kind in ("straggler", "evened"):
        rank, factor = rng.randrange(training.world), rng.choice([1.2, 1.5, 2.0])
        training, arguments = (
            replace(training, straggler=(rank, factor)),
            ("--scale", f"rank{rank}:kernel={1 / factor:.6g}"),
        )
        if kind == "evened":
            arguments = (json.dumps({"time": [{"rank": rank, "even_out": True}]}),)
    else:
        change, arguments = _program_change(kind, rng, "cudaDeviceSynchronize")
    first = cluster_run(training)
    again = cluster_run(replace(second, seed=_SECOND + seed), change=change)
    step_ns = _told(first) * _period_ns(again)
    return SecondRun(
        seed, kind, steps, training.world, arguments, first, _makespan_ns(first), _makespan_ns(again), step_ns
    )


def _same(program: Program) -> Program:
    return program


def _makespan_ns(found: ClusterRun) -> int:
    shown = [one.execution for one in found.recordings.values()]
    ended_ns = [
        int(times.end_ns.max()) for times in found.times
    ]  # of the device, which is behind a host that does not wait for it
    return max(*(one.end_ns for one in shown), *ended_ns) - min(one.start_ns for one in shown)


def _told(run: Execution | ClusterRun) -> float:
    """Return what steps are told to take, the mean of their marks on the slowest rank, as a share of their period."""
    shown = [one.execution for one in run.recordings.values()] if isinstance(run, ClusterRun) else [run]
    marks = ([row for row in one.host if row.name.startswith("ProfilerStep#")][1:] for one in shown)
    return max(
        float(np.mean([row.end_ns - row.start_ns for row in rows])) if rows else nan for rows in marks
    ) / _period_ns(run)


def _period_ns(run: Execution | ClusterRun) -> float:
    """Return the mean time from the end of the work of one step to that of the next, of a device also of what was not
    recorded; nan of one step.
    """
    if isinstance(run, ClusterRun):
        launched = (
            _last(run.training.steps, np.array([op.step for op in ops]), times.end_ns)
            for ops, times in zip(run.ops, run.times, strict=True)
        )
        ends_ns = [np.maximum(_step_ends(run.recordings[rank].execution), ns) for rank, ns in enumerate(launched)]
    else:
        ends_ns = [_step_ends(run)]
    ended_ns = np.maximum.accumulate(np.max(ends_ns, axis=0))
    return float((ended_ns[-1] - ended_ns[0]) / (len(ended_ns) - 1)) if len(ended_ns) > 1 else nan


def _step_ends(execution: Execution) -> I64:
    """Return when the work of each step ended, of host rows and of device ops by the call that launched them."""
    begun = np.array([row.start_ns for row in execution.host if row.name.startswith("ProfilerStep#")], np.int64)
    spans = [(row.start_ns, row.end_ns) for row in execution.host]
    spans += [(execution.calls[op.call].start_ns, op.end_ns) for op in execution.device]
    start_ns, end_ns = np.array(spans, np.int64).T
    return _last(len(begun), np.maximum(np.searchsorted(begun, start_ns, side="right") - 1, 0), end_ns)


def _last(steps: int, step: I64, end_ns: I64) -> I64:
    found = np.zeros(steps, np.int64)
    np.maximum.at(found, step, end_ns)
    return found
