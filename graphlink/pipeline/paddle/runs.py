"""Paddle's jobs -> one ``StageRun`` a rank. How stages, steps, chunks and clocks are decided: ``docs/paddle.md``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from graphlink import spans
from graphlink.errors import InputError, UsageError, log
from graphlink.linking.step_cut import Steps, parse_steps
from graphlink.model import EMPTY, I64, NOWHERE, CommOps
from graphlink.pipeline.analyse import analyse
from graphlink.pipeline.paddle.jobs import NO_PHASE, RULES, Jobs, jobs_of
from graphlink.pipeline.paddle.logs import MOST_NAMED, JobLog, listed, read_paddle
from graphlink.pipeline.paddle.stages import Stages, clocks_of, passages, stages_of
from graphlink.pipeline.records import Delays, Pass, Ranges, RunPipeline, StageRun
from graphlink.read.columns import Parts
from graphlink.records import first_few
from graphlink.tables import codes, how_many, largest, sums, take

LOWER_BOUND: Final = (
    "from Paddle's logs: waits inside a job count as work, so bubbles are lower bounds; "
    "communication, host and their causes are unknown"
)


def pipeline_of(logs: Path, step: str = "all") -> RunPipeline:
    """Return the pipeline of a folder of worker logs; warnings of the folder stand before those of the analysis.

    Raises:
        InputError: as ``read_paddle`` and ``stage_runs`` do, or the workers have no step in common.
        UsageError: the logs hold no such ``step``.
    """
    steps = parse_steps(step)
    log.info("reading %s", logs)
    read = read_paddle(logs)
    log.info("looking for stages in %d jobs of %d workers", sum(len(one.start_ns) for one in read), len(read))
    runs, warnings = stage_runs(read, steps)
    log.info("looking for bubbles")
    pipeline = analyse(runs)
    if pipeline is None:
        raise InputError(
            "its workers have no step in common", path=logs, todo="keep the logs of one run, whole, in the folder"
        )
    return replace(pipeline, warnings=(*warnings, *pipeline.warnings))


def stage_runs(logs: Sequence[JobLog], steps: Steps | None = None) -> tuple[list[StageRun], list[str]]:
    """Find steps, chunks, stages and a common clock for the jobs of ``logs``; ``steps``: only these are kept. O(n log
    n) in jobs.

    Return a run for each worker that belongs to a pipeline, by rank, and the warnings of the whole folder. With data or
    tensor parallelism there are several pipelines side by side (the logs do not tell which of the two it is), of
    equally many stages.

    Raises:
        InputError: jobs of a worker overlap by more than 1 us, or no worker ran a forward or a backward.
        UsageError: no worker logged any of ``steps``.
    """
    workers = jobs_of(logs)
    if not workers:
        types = sorted({text for log in logs for text in log.strings if text})
        raise InputError(
            f"its logs hold no forward or backward job, only {', '.join(types[:MOST_NAMED]) or 'none at all'}",
            path=logs[0].path if logs else None,
            todo="record steps of pipeline-parallel training",
        )
    seen = passages(workers)
    stages = stages_of(workers, seen)
    shift_ns, of_clocks = clocks_of(workers, seen, stages)
    first_step, warnings = _first_step(workers)
    ranks = [jobs.rank for jobs in workers]
    idle = [log for log in logs if log.rank not in ranks]
    if idle:
        warnings.append(f"ranks {listed([log.rank for log in idle])} ran no forward or backward and are left out")
        warnings += [text for log in idle for text in log.warnings]
    pipelines = tuple(tuple(ranks[w] for w in pipeline) for pipeline in stages.pipelines)
    if len(pipelines) > 1:
        named = first_few([*map(listed, pipelines)], MOST_NAMED, "; ")
        warnings.append(f"{len(pipelines)} pipelines of {stages.count} stages run side by side: ranks {named}")
    previous = {
        here: before for pipeline in pipelines for before, here in zip((NOWHERE, *pipeline), pipeline, strict=False)
    }
    chosen = [_of_steps(jobs, steps, first_step) for jobs in workers] if steps else workers
    if not any(len(jobs.phase) for jobs in chosen):
        last = max(int(jobs.step[-1]) for jobs in workers) + first_step
        raise UsageError(f"--step: the logs hold steps {first_step} to {last}", path=logs[0].path)
    runs = [
        _run(jobs, stages, worker, int(shift_ns[worker]), first_step, previous[jobs.rank])
        for worker, jobs in enumerate(chosen)
        if jobs.rank in previous and len(jobs.phase)
    ]
    return runs, [LOWER_BOUND, *warnings, *stages.warnings, *of_clocks]


def _first_step(workers: Sequence[Jobs]) -> tuple[int, list[str]]:
    """Return the number of the first logged step, and warnings."""
    said = Counter(jobs.first_step for jobs in workers if jobs.first_step is not None)
    if not said:
        return 0, []
    if len(said) > 1:
        return 0, [f"logs begin at different steps ({listed(sorted(said))}): steps are numbered from 0"]
    first = next(iter(said))
    promised = max((jobs.stop_step or 0) for jobs in workers) - first
    held = max(int(jobs.step[-1]) for jobs in workers) + 1
    if held > promised > 0:
        return first, [
            f"logs hold {held} steps where their headers say {promised}: several runs may have written into them"
        ]
    return first, []


def _of_steps(jobs: Jobs, steps: Steps, first_step: int) -> Jobs:
    keep = (jobs.step + first_step >= steps.first) & (jobs.step + first_step <= steps.last)
    others = {"jobs of other steps": how_many(~keep)}
    return replace(take(jobs, keep), left_out={**jobs.left_out, **{reason: n for reason, n in others.items() if n}})


def _run(jobs: Jobs, stages: Stages, worker: int, shift_ns: int, first_step: int, previous: int) -> StageRun:
    start, end = jobs.start_ns + shift_ns, jobs.end_ns + shift_ns
    other = Counter(jobs.strings[kind] for kind in jobs.type[jobs.phase == NO_PHASE].tolist())
    none, none_u8, none_i32 = EMPTY, np.zeros(0, np.uint8), np.zeros(0, np.int32)
    optimizer = jobs.phase == Pass.OPT
    return StageRun(
        rank=jobs.rank,
        previous=previous,
        recorded_from_ns=int(start[0]),
        ranges=_ranges(jobs, stages, worker, start, end, first_step),
        work=spans.union_by(jobs.step[jobs.work] + first_step, start[jobs.work], end[jobs.work]),
        optimizer=spans.union(start[optimizer], end[optimizer]),
        exchanges=Parts().table(CommOps, none, names=(), groups=()),
        ordinal=none,
        delays=Delays(none, none, none_u8, none_i32, none_i32, ("",)),
        sees_device=True,
        sees_causes=False,
        left_out={**jobs.left_out, **{f"{kind} jobs, which have no phase": n for kind, n in sorted(other.items())}},
        warnings=jobs.warnings,
    )


def _ranges(jobs: Jobs, stages: Stages, worker: int, start_ns: I64, end_ns: I64, first_step: int) -> Ranges:
    """Return a range for each job; one for all parts of a forward or backward. An optimizer has its worker's first
    stage, no chunk, no microbatch."""
    chosen = np.flatnonzero(jobs.phase != NO_PHASE)
    phase, part = jobs.phase[chosen], jobs.part[chosen]
    step, chunk, microbatch = jobs.step[chosen], jobs.chunk[chosen], jobs.microbatch[chosen]
    whole = np.where(part == NOWHERE, np.arange(len(chosen)), NOWHERE)
    code = codes(step, phase, chunk, microbatch, whole)
    first = np.unique(code, return_index=True)[1]
    start, end = start_ns[chosen][first], largest(len(first), code, end_ns[chosen])
    busy = sums(len(first), code, (end_ns - start_ns)[chosen])
    order = np.lexsort((end, start, step[first]))
    kept = first[order]
    optimizer = phase[kept] == Pass.OPT
    return Ranges(
        phase=phase[kept],
        step=step[kept] + first_step,
        stage=stages.stage(worker, np.where(optimizer, 0, chunk[kept])),
        chunk=np.where(optimizer, NOWHERE, chunk[kept]),
        microbatch=np.where(optimizer, NOWHERE, microbatch[kept]),
        start_ns=start[order],
        end_ns=end[order],
        busy_ns=busy[order],
        device_ops=np.zeros(len(kept), np.int64),  # the logs name none
        rule=np.full(len(kept), jobs.rule, np.int32),
        rules=RULES,
    )
