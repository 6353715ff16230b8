"""Write simulated jobs as the worker logs of Paddle's schedule profiler.

Lines as ``standalone_executor.cc`` prints them, job types as the passes in Paddle's ``pipeline_scheduler_pass/`` name
them: ``forward``, ``backward``, ``backward_b`` (input gradient), ``backward_w`` (weight gradient), with the number of
the model chunk behind where there are several, ``optimizer``, ``lr``, ``default``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

EPOCH_NS = 1_697_793_307_000_000_000

_OTHER_LINES = (
    "LAUNCH INFO 2023-10-20 09:14:31,102 ------------------------- launch",
    "W1020 09:14:40.118208 22317 gpu_resources.cc:119] Please NOTE: device: 0, GPU Compute Capability: 8.0",
    "[2023-10-20 09:15:02,511] [    INFO] - loss: 10.912, learning_rate: 1e-05, global_step: 3",
    "I1020 09:15:03.000112 22317 program_interpreter.cc:212] New Executor is Running.",
    "[2023-10-20 09:15:02,511] [ WARNING] - Profiler is enabled, do not enable it in production.",
    "",
    "  0%|          | 0/10 [00:00<?, ?it/s]\r 10%|#         | 1/10 [00:00<?, ?it/s]",
)


@dataclass(frozen=True, slots=True)
class Job:
    """One job on the compute stream of a worker; times are ns of the simulation. ``chunk``: the model chunk, where
    there are several.
    """

    type: str
    microbatch: int
    start_ns: int
    end_ns: int
    chunk: int | None = None

    @property
    def written_type(self) -> str:
        return self.type if self.chunk is None else f"{self.type}{self.chunk}"


@dataclass(frozen=True, slots=True)
class Variation:
    """What folders of logs may differ in.

    ``machines`` 0: ``workerlog.N`` in the folder; else the workers are dealt to so many ``machineM`` in their order,
    evenly. ``number``: what ``Job (n)`` counts: "job" in the step's list (2023), "type" within its type, "microbatch"
    (newest). ``lost``: (worker, position of the job in its list) of lines that are missing. ``cut_bytes``: taken off
    the end of a worker's file. ``as_double``: times as the C++ code has them, whole us in a double of ms; else exact to
    the ns. ``clock_ns``: added to the times of each machine.
    """

    machines: int = 0
    number: str = "microbatch"
    microbatch_field: bool = True
    first_step: int | None = None
    stop_step: int | None = None
    newline: str = "\n"
    other_lines: int = 0  # at most so many before each line
    seed: int = 0
    lost: frozenset[tuple[int, int]] = frozenset()
    cut_bytes: dict[int, int] = field(default_factory=dict)
    as_double: bool = False
    clock_ns: tuple[int, ...] = ()


def write_paddle(
    jobs_by_worker: Sequence[Sequence[Job]], folder: str | Path, vary: Variation | None = None
) -> list[Path]:
    """Writes one log a worker, lines in the order of its jobs, and returns the files by worker. No jobs: an
    empty file.
    """
    vary = vary or Variation()
    per_machine = -(-len(jobs_by_worker) // max(vary.machines, 1))
    paths = []
    for worker, jobs in enumerate(jobs_by_worker):
        machine, number = divmod(worker, per_machine)
        place = Path(folder) / f"machine{machine}" if vary.machines else Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        text = _text(worker, jobs, vary, vary.clock_ns[machine] if vary.clock_ns else 0)
        data = text.encode()[: len(text) - vary.cut_bytes.get(worker, 0)]
        paths.append(place / f"workerlog.{number}")
        paths[-1].write_bytes(data)
    return paths


def job_line(job: Job, number: int, vary: Variation | None = None, clock_ns: int = 0) -> str:
    """The line of one job, without its end."""
    vary = vary or Variation()
    start, end = (_ms(EPOCH_NS + clock_ns + ns, as_double=vary.as_double) for ns in (job.start_ns, job.end_ns))
    microbatch = f"micro_batch_id = {job.microbatch}, " if vary.microbatch_field else ""
    return (
        f"I1020 09:15:07.265326 22317 standalone_executor.cc:217] Profiler Info: Job ({number}), type = "
        f"{job.written_type}, "
        f"{microbatch}job_start_time = {start}, job_end_time = {end}"
    )


def _text(worker: int, jobs: Sequence[Job], vary: Variation, clock_ns: int) -> str:
    if not jobs:
        return ""
    rng = random.Random(1000 * vary.seed + worker)
    lines: list[str] = []
    if vary.first_step is not None:
        lines.append(f"[INFO] - Schedule Profiler start at step {vary.first_step} and end at step {vary.stop_step}")
    of_type: dict[str, int] = {}
    in_step = 0
    for position, job in enumerate(jobs):
        lines += rng.choices(_OTHER_LINES, k=rng.randint(0, vary.other_lines))
        count = of_type.get(job.written_type, 0)
        of_type[job.written_type] = count + 1
        number = {"job": in_step, "type": count, "microbatch": job.microbatch}[vary.number]
        in_step += 1
        if job.type == "optimizer":
            of_type, in_step = {}, 0
        if (worker, position) not in vary.lost:
            lines.append(job_line(job, number, vary, clock_ns))
    return "".join(line + vary.newline for line in lines)


def _ms(ns: int, *, as_double: bool) -> str:
    """``std::to_string`` of ms."""
    if as_double:
        return f"{(ns // 1_000_000_000) * 1000 + ns // 1000 % 1_000_000 / 1000.0:f}"
    return f"{ns // 1_000_000}.{ns % 1_000_000:06d}"
