"""What the ranks of a run lack together: ranks, sequence numbers, a common beginning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np

from graphlink.doctor.records import Finding, Kind, if_any
from graphlink.pipeline.infer import RULE
from graphlink.pipeline.records import Pipeline
from graphlink.ranks.times import Apart
from graphlink.run.join import Run, join
from graphlink.run.state import RankRows

_LISTED: Final = 8  # ranks, groups or conflicts that a text names
_TOGETHER: Final = "torch.distributed.barrier() on all ranks before the profiler starts, and the same schedule on each"

MISSING = Kind(
    "missing-ranks",
    "lost",
    "{missing} of {world} ranks were not recorded",
    "who came last to a collective is unknown, and so are waits, clocks and pipeline of the whole run; simulators need every rank",
    "the profiler on every rank, one folder for all files",
    by_capture=True,
)
SILENT = Kind(
    "silent-ranks",
    "lost",
    "of {silent} ranks no communication with a known group was recorded, though others have some",
    "the others are matched without them, and what they did with them is computation in the graphs",
    "an execution trace of these ranks",
    by_capture=True,
)
NO_SEQ = Kind(
    "no-seq",
    "inferred",
    "no sequence numbers: {guessed} of {meetings} collectives and messages are matched over ranks by function, size and order",
    "where ranks began apart or dropped rows, the wrong ones may meet",
    "a PyTorch of 2026 (Seq in the Kineto trace), or an execution trace, which has them for collectives of NCCL; "
    "nothing for gloo and nsys, which have none",
)
BEGAN_APART = Kind(
    "began-apart",
    "lost",
    "the ranks began to record {spread_ms} ms apart",
    "{meetings} collectives or messages wait for ranks that did not record yet: they are set apart and in no figure of waits",
    _TOGETHER,
    by_capture=True,
)
FIRST_LATE = Kind(
    "first-meeting-late",
    "note",
    "{meetings} first collectives or messages after the start of the profiler waited longer than the later ones",
    "they are set apart and in no figure of waits",
    _TOGETHER + ", with a step of warm-up (schedule(warmup=1))",
    by_capture=True,
)
UNMATCHED = Kind(
    "unmatched-communication",
    "lost",
    "{ops} collectives or messages have no counterpart on other recorded ranks",
    "they are computation in the graphs for ASTRA-sim, and in no figure of waits",
    "the same steps on all ranks: " + _TOGETHER,
    by_capture=True,
)
DIFFER = Kind(
    "collectives-differ",
    "lost",
    "{conflicts} collectives are not the same on all ranks",
    "graphlink refuses the run, but for --keep-unmatched",
    "recordings of one run, each rank once",
)
CLOCKS = Kind(
    "clocks-untied",
    "lost",
    "nothing ties the clocks of {ranks} ranks to those of the others",
    "their times and those of the others do not compare: no waits, no skew",
    "steps with collectives that all ranks take part in, recorded on all of them",
)
CLOCKS_DOUBTFUL = Kind(
    "clocks-doubtful",
    "inferred",
    "clocks and collectives of the ranks contradict each other",
    "clocks are shifted as said, or times of two ranks compare only within that",
    "hosts with synchronised clocks (chrony, PTP), and device rows: kernels of a collective end together, rows of gloo do not",
)
LEFT_ASIDE = Kind(
    "left-aside",
    "note",
    "files were passed over or taken otherwise than named",
    "as said",
    "one folder a run, with a Kineto trace and an execution trace a rank, numbered alike",
)
NO_RANGES = Kind(
    "no-pipeline-ranges",
    "inferred",
    "no names of pipeline ranges",
    "phase, microbatch and stage of {ranges} ranges are inferred from communication and autograd",
    "with torch.profiler.record_function(f'PP:{stage}F{microbatch}') around each forward, B around each backward, or --range-rule",
)
PIPELINE = Kind(
    "pipeline-doubts",
    "inferred",
    "the recording does not tell all of the pipeline",
    "as said; bubbles and schedule are of the rest",
    "the same steps on all ranks, and record_function ranges as in docs/pipelines.md",
)


def ranks_lacking(rows: Sequence[RankRows]) -> Iterator[Finding]:
    """``rows``: of each rank what joining reads. O(n log n) in communication ops."""
    there, world = {r.comms.rank for r in rows}, max((r.comms.world_size for r in rows), default=0)
    missing = world - sum(rank < world for rank in there)
    absent = islice((rank for rank in range(world) if rank not in there), _LISTED)
    listed = ", ".join(map(str, absent)) + (", ..." if missing > _LISTED else "")
    yield from if_any(MISSING, {"missing": missing, "world": world}, world, told=(f"rank {listed}",))
    run = join(rows, keep_unmatched=True)
    if len(rows) > 1:
        yield from _together(run, [r for r in rows if r.comms.rank not in run.silent])
    if run.pipeline is not None:
        yield from _pipeline(run.pipeline, rows)


def _together(run: Run, rows: Sequence[RankRows]) -> Iterator[Finding]:
    yield from if_any(SILENT, {"silent": len(run.silent)}, len(run.ranks), ranks=run.silent)
    matching = run.matching
    meetings = len(matching.meetings.kind)
    guessed = meetings - matching.by_sequence
    yield from if_any(NO_SEQ, {"guessed": guessed, "meetings": meetings}, meetings)
    ops = sum(left.count for left in matching.unmatched)
    ranks = tuple(sorted({left.rank for left in matching.unmatched}))
    yield from if_any(UNMATCHED, {"ops": ops}, sum(len(r.comms.start_ns) for r in rows), ranks=ranks)
    yield from if_any(DIFFER, {"conflicts": len(matching.conflicts)}, told=tuple(run.summary.matched.conflicts[:_LISTED]))
    yield from _clocks(run, rows)
    apart, late = (int(np.count_nonzero(run.figures.apart == why)) for why in (Apart.BEGAN_APART, Apart.FIRST))
    if apart:
        yield Finding(BEGAN_APART, apart / meetings, {"meetings": apart, "spread_ns": _spread(run, rows)})
    yield from if_any(FIRST_LATE, {"meetings": late}, meetings)


def _spread(run: Run, rows: Sequence[RankRows]) -> int:
    """Between the first and the last rank's first row, on the run's clock."""
    began = [int(clock.of(np.array([row.comms.began_ns]))[0]) for row, clock in zip(rows, run.clocks.clocks, strict=True) if clock.known]
    return max(began) - min(began)


def _clocks(run: Run, rows: Sequence[RankRows]) -> Iterator[Finding]:
    lost = tuple(clock.rank for clock in run.clocks.clocks if not clock.known)
    any_comm = any(len(row.comms.start_ns) for row in rows)
    if lost and any_comm:
        yield Finding(CLOCKS, len(lost) / len(rows), {"ranks": len(lost)}, told=run.clocks.warnings, ranks=lost)
    elif run.clocks.warnings:
        yield Finding(CLOCKS_DOUBTFUL, 0.0, told=run.clocks.warnings)


def _pipeline(pipeline: Pipeline, rows: Sequence[RankRows]) -> Iterator[Finding]:
    guessed = [run for run in pipeline.runs if RULE in run.ranges.rules]
    if guessed:
        ranges = sum(len(run.ranges.rule) for run in guessed)
        yield Finding(NO_RANGES, len(guessed) / len(rows), {"ranges": ranges}, ranks=tuple(run.rank for run in guessed))
    if pipeline.warnings:
        yield Finding(PIPELINE, 0.0, told=pipeline.warnings)
