"""One simulated run as Kineto traces, as an nsys export and as Paddle's logs: the same pipeline, but for what a source
cannot know.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from graphlink.cli import main
from graphlink.pipeline.file import Bubbles
from tests.simulator import NsysVariation, write_nsys
from tests.simulator.paddle import Job, write_paddle
from tests.simulator.pipelines import PipelineRun, PipelineTraining, pipeline_run

# Paddle's logs know of one kind of backward; only jobs show, so transfers are pure waits.
RUNS = [
    PipelineTraining("GPipe"),
    PipelineTraining("1F1B"),
    PipelineTraining("1F1B", transfer_ns=500_000),
    PipelineTraining("interleaved", chunks=2),
    PipelineTraining("interleaved", chunks=4),
    PipelineTraining("ZB-H1", names="zero-bubble"),
    PipelineTraining("ZB-H2", names="zero-bubble"),
    PipelineTraining("ZB-H1", transfer_ns=500_000),
    PipelineTraining("ZB-H2", transfer_ns=500_000),
    PipelineTraining("1F1B", forward_ns=(1_000_000, 1_300_000, 900_000, 1_200_000)),
]


@dataclass(frozen=True)
class Told:
    """What bubbles.json says, from the first start on, without the words of a source."""

    schedule: object
    steps: list[object]
    ranges: list[tuple[object, ...]]
    idle: list[tuple[object, ...]]
    rates: tuple[object, ...]
    parts: object


def told(folder: Path) -> Told:
    file = msgspec.json.decode((folder / "bubbles.json").read_bytes(), type=Bubbles)
    zero = min(step.start_ns for step in file.steps)
    ranges = [
        (r.rank, r.stage, r.chunk, r.phase, r.microbatch, r.start_ns - zero, r.end_ns - zero, r.busy_ns)
        for r in file.ranges
        if r.phase != "OPT"
    ]
    idle = [
        (i.rank, i.stage, i.start_ns - zero, i.end_ns - zero, i.cause) for i in file.idle if i.cause != "optimizer_sync"
    ]
    pipeline = file.pipeline
    return Told(
        (pipeline.schedule, pipeline.stages, pipeline.microbatches, pipeline.chunks),
        [(s.start_ns - zero, s.end_ns - zero, s.work_ns, s.own_ns) for s in file.steps],
        sorted(ranges, key=str),
        sorted(idle),
        (pipeline.bubble_rate_makespan, pipeline.bubble_rate_zb, pipeline.bubble_ratio_ideal),
        pipeline.theory,
    )


def from_kineto(true: PipelineRun, tmp_path: Path) -> Told:
    true.write(tmp_path / "kineto")
    assert (
        main([str(tmp_path / "kineto"), "--out", str(tmp_path / "from-kineto"), "-q", "--jobs", "1", "--no-timeline"])
        == 0
    )
    return told(tmp_path / "from-kineto")


def from_nsys(true: PipelineRun, tmp_path: Path, *changes: str) -> Told:
    """``changes``: SQL statements that take from the export what other exports lack."""
    write_nsys(true.executions, tmp_path / "run.sqlite", vary=NsysVariation(nccl=bool(changes)))
    with closing(sqlite3.connect(tmp_path / "run.sqlite")) as database:
        for change in changes:
            database.execute(change)
        database.commit()
    assert (
        main(
            [
                "--nsys",
                str(tmp_path / "run.sqlite"),
                "--out",
                str(tmp_path / "from-nsys"),
                "-q",
                "--jobs",
                "1",
                "--no-timeline",
            ]
        )
        == 0
    )
    return told(tmp_path / "from-nsys")


def from_paddle(true: PipelineRun, tmp_path: Path) -> Told:
    several = true.training.chunks > 1
    workers: dict[int, list[Job]] = {}
    for job in true.jobs:
        workers.setdefault(job.worker, []).append(
            Job(job.type, job.microbatch, job.start_ns, job.end_ns, job.chunk if several else None)
        )
    write_paddle([workers[k] for k in sorted(workers)], tmp_path / "logs")
    assert main(["--paddle-logs", str(tmp_path / "logs"), "--out", str(tmp_path / "from-paddle"), "-q"]) == 0
    return told(tmp_path / "from-paddle")


@pytest.mark.parametrize(
    "training",
    [
        training if i in (2, 3, 5, 9) else pytest.param(training, marks=pytest.mark.long)
        for i, training in enumerate(RUNS)
    ],
    ids=lambda t: f"{t.schedule}-{t.chunks}-{t.transfer_ns}-{t.names}",
)
def test_every_source_tells_the_same(training: PipelineTraining, tmp_path: Path) -> None:
    true = pipeline_run(training)
    kineto, nsys, paddle = from_kineto(true, tmp_path), from_nsys(true, tmp_path), from_paddle(true, tmp_path)
    assert kineto.schedule == (training.schedule, training.stages, training.microbatches, training.chunks)
    assert nsys == kineto
    assert paddle == kineto


def test_operators_and_bare_ranges_of_nccl_are_enough(tmp_path: Path) -> None:
    """As Megatron records with nsys: emit_nvtx, no range of a pass, and messages whose peers no payload names. The row
    of autograd's engine has no sequence number there, only the op inside.
    """
    true = pipeline_run(PipelineTraining("1F1B", names="none", transfer_ns=100_000, visible=True))
    found = from_nsys(
        true,
        tmp_path,
        "UPDATE NVTX_EVENTS SET binaryData = NULL",
        "UPDATE NVTX_EVENTS SET text = substr(text, 1, instr(text, ', seq') - 1) "
        "WHERE text LIKE 'autograd::engine%, seq%'",
    )
    kineto = from_kineto(true, tmp_path)
    assert found.schedule == kineto.schedule == ("1F1B", 4, 8, 1)
    assert (found.steps, found.ranges) == (kineto.steps, kineto.ranges)


def test_messages_without_peers_that_are_not_those_of_a_stage_make_none(tmp_path: Path) -> None:
    true = pipeline_run(PipelineTraining("1F1B", names="none", transfer_ns=100_000, visible=True))
    with pytest.raises(FileNotFoundError):
        from_nsys(
            true,
            tmp_path,
            "UPDATE NVTX_EVENTS SET binaryData = NULL",
            "UPDATE StringIds SET value = 'ncclSend' WHERE value = 'ncclRecv'",
        )
    summary = msgspec.json.decode((tmp_path / "from-nsys" / "summary.json").read_bytes())
    assert summary["pipeline"] is None
    assert any("sends fit no 8 forward and 8 backward passes" in text for text in summary["ranks"][0]["warnings"])


def test_messages_of_passes_that_nothing_names_say_why_they_make_none(tmp_path: Path) -> None:
    true = pipeline_run(PipelineTraining("1F1B", names="none", transfer_ns=100_000, visible=True))
    with pytest.raises(FileNotFoundError):
        from_nsys(true, tmp_path, "DELETE FROM NVTX_EVENTS WHERE text LIKE '%seq = %'")
    summary = msgspec.json.decode((tmp_path / "from-nsys" / "summary.json").read_bytes())
    assert summary["pipeline"] is None
    assert all(any("nothing names passes" in text for text in rank["warnings"]) for rank in summary["ranks"])


@pytest.mark.parametrize("training", RUNS[:3], ids=lambda t: f"{t.schedule}-{t.transfer_ns}")
def test_causes_of_every_source_are_the_true_ones(training: PipelineTraining, tmp_path: Path) -> None:
    true = pipeline_run(training)
    expected: Counter[tuple[int, str]] = Counter()
    for row in true.idle:
        expected[row.rank, row.cause] += row.end_ns - row.start_ns
    for source in (from_nsys, from_paddle):
        got: Counter[tuple[object, object]] = Counter()
        for rank, _, start, end, cause in source(true, tmp_path).idle:
            assert isinstance(start, int) and isinstance(end, int)
            got[rank, cause] += end - start
        assert got == expected


def test_the_files_are_the_same_but_for_what_a_source_cannot_know(tmp_path: Path) -> None:
    true = pipeline_run(
        PipelineTraining("1F1B", transfer_ns=500_000, visible=True, optimizer_ns=300_000, norm_ns=100_000)
    )
    from_kineto(true, tmp_path)
    from_nsys(true, tmp_path)
    kineto, nsys = (
        msgspec.json.decode((tmp_path / f"from-{name}" / "bubbles.json").read_bytes()) for name in ("kineto", "nsys")
    )
    for file in (kineto, nsys):  # an export without NCCL's payload does not say with whom a kernel communicated
        file["pipeline"]["warnings"] = file["warnings"] = [
            w for w in file["warnings"] if "no recorded parameters" not in w
        ]
    assert {key for key in kineto if kineto[key] != nsys[key]} == set()
    from_paddle(pipeline_run(PipelineTraining("1F1B")), tmp_path)
    paddle = msgspec.json.decode((tmp_path / "from-paddle" / "bubbles.json").read_bytes())
    unseen = {
        "exposed_communication",
        "straggler_wait",
        "launch_starved",
        "host_sync",
        "data_loading",
        "memory_management",
        "profiler_artefact",
    }
    assert set(paddle["definition"]["causes_not_seen"]) >= unseen
    assert not any(cause in stage["idle_ns"] for stage in paddle["stages"] for cause in unseen)
    assert not any("device_ops" in r for r in paddle["ranges"])
