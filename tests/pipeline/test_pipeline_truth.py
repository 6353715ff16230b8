"""Simulated pipeline runs whose every idle ns is known by cause, written as Kineto traces and analysed from those."""

from __future__ import annotations

import tempfile
from collections import Counter
from typing import Any

import numpy as np
import pytest

from graphlink.causes import Cause
from graphlink.pipeline.analyse import analyse
from graphlink.pipeline.autograd import RULE
from graphlink.pipeline.records import Pass, RunPipeline
from graphlink.run import job
from tests.simulator.pipeline_losses import HOWS, Loss
from tests.simulator.pipelines import PipelineRun, PipelineTraining, pipeline_run

LOST_NS = 300_000
CAUSES = [(cause, how) for cause, hows in HOWS.items() for how in hows]


def analysed(true: PipelineRun, **written: Any) -> RunPipeline:
    with tempfile.TemporaryDirectory() as folder:
        ready = [
            job.prepare(job.Inputs(kineto=file), job.Options(sync="cuda")) for file in true.write(folder, **written)
        ]
    found = analyse([r.parts["pipeline"].run for r in ready])
    assert found is not None, [r.warnings for r in ready]
    return found


def idle_of(found: RunPipeline) -> Counter[tuple[int, str]]:
    out: Counter[tuple[int, str]] = Counter()
    rows = zip(
        found.idle.rank.tolist(),
        found.idle.cause.tolist(),
        (found.idle.end_ns - found.idle.start_ns).tolist(),
        strict=True,
    )
    for rank, cause, length in rows:
        out[rank, Cause(cause).name.lower()] += length
    return out


def true_idle(true: PipelineRun) -> Counter[tuple[int, str]]:
    out: Counter[tuple[int, str]] = Counter()
    for row in true.idle:
        out[row.rank, row.cause] += row.end_ns - row.start_ns
    return out


def assert_true(true: PipelineRun, found: RunPipeline, within_ns: int = 1_000) -> None:
    expected, got = true_idle(true), idle_of(found)
    wrong = {key: (expected[key], got[key]) for key in {*expected, *got} if abs(expected[key] - got[key]) > within_ns}
    assert not wrong
    assert [s.end_ns - s.start_ns for s in found.steps] == [b - a for a, b in true.steps]
    for rank, one in enumerate(found.runs):
        r = one.ranges
        mine = r.phase != Pass.OPT
        got_ranges = sorted(
            zip(
                [Pass(p).name for p in r.phase[mine].tolist()],
                *(getattr(r, name)[mine].tolist() for name in ("stage", "chunk", "microbatch", "busy_ns")),
                strict=True,
            )
        )
        assert got_ranges == sorted(
            (t.phase, t.stage, t.chunk, t.microbatch, t.busy_ns)
            for t in true.ranges
            if t.rank == rank and t.phase != "OPT"
        )


@pytest.mark.parametrize(
    ("cause", "how", "schedule"),
    [
        pytest.param(*case, schedule, marks=() if k % 2 == turn else pytest.mark.long)
        for turn, schedule in enumerate(("1F1B", "ZB-H1"))
        for k, case in enumerate(CAUSES)
    ],
)
def test_a_loss_is_told_by_its_cause(cause: str, how: str, schedule: str) -> None:
    more: dict[str, Any] = {"optimizer_ns": 400_000, "norm_ns": 100_000} if cause == "optimizer_sync" else {}
    lost = Loss(cause, LOST_NS, how=how)
    true = pipeline_run(PipelineTraining(schedule, kernels=2, losses=(lost,), **more))
    assert_true(true, analysed(true))
    without = pipeline_run(PipelineTraining(schedule, kernels=2, **more))
    assert true.idle_ns().get(cause, 0) - without.idle_ns().get(cause, 0) >= LOST_NS


# Without rows what a host or a stream waited for is inferred, and a wait that is short, or that several ops explain, is
# not.
UNTOLD = {("profiler_artefact", "first-collective")}


@pytest.mark.parametrize(("cause", "how"), [c for c in CAUSES if c not in UNTOLD])
def test_a_loss_is_told_without_synchronisation_rows(cause: str, how: str) -> None:
    more: dict[str, Any] = {"optimizer_ns": 400_000, "norm_ns": 100_000} if cause == "optimizer_sync" else {}
    true = pipeline_run(
        PipelineTraining("1F1B", autograd_thread=False, losses=(Loss(cause, LOST_NS, how=how),), **more)
    )
    assert_true(true, analysed(true, cuda_sync=False))


UNDISTURBED = [("GPipe", 1), ("1F1B", 1), ("interleaved", 2), ("interleaved", 4), ("ZB-H1", 1), ("ZB-H2", 1)]
TRANSFERS = [(0, False), (500_000, False), (500_000, True)]


@pytest.mark.parametrize(
    ("schedule", "chunks", "transfer_ns", "visible"),
    [
        pytest.param(*one, *transfer, marks=() if one[0] == "1F1B" or k % 3 == turn else pytest.mark.long)
        for k, one in enumerate(UNDISTURBED)
        for turn, transfer in enumerate(TRANSFERS)
    ],
)
def test_an_undisturbed_run_loses_what_its_schedule_must(
    schedule: str, chunks: int, transfer_ns: int, visible: bool
) -> None:
    true = pipeline_run(PipelineTraining(schedule, chunks=chunks, transfer_ns=transfer_ns, visible=visible))
    found = analysed(true)
    assert found.schedule == schedule
    assert (found.stages, found.microbatches, found.chunks) == (4, 8, chunks)
    assert_true(true, found)
    work, makespan = true.work_ns(), true.makespan_ns()
    assert found.rates.bubble_rate_makespan == pytest.approx(1 - work / (4 * makespan))
    cost = max(true.own_ns(rank) for rank in range(4))
    assert found.rates.bubble_rate_zb == pytest.approx(1 - work / (4 * cost))
    assert found.theory is not None
    assert found.theory.parts_ns.rest == 0
    assert found.theory.parts_ns.imbalance == 0


# bubbles.md section 5: p, m, and the rates of 1F1B, interleaved v=2, v=4, ZB-H1, ZB-H2 (own window, makespan)
ORACLES = [
    (4, 4, "1F1B", 1, 21, 0.4286), (4, 4, "interleaved", 2, 16.5, 0.2727), (4, 4, "interleaved", 4, 14.25, 0.1579),
    (4, 4, "ZB-H1", 1, 15, 0.2), (4, 8, "GPipe", 1, 33, 0.2727), (4, 8, "1F1B", 1, 33, 0.2727), (4, 8, "interleaved", 2, 28.5, 0.1579),
    (4, 8, "interleaved", 4, 26.25, 0.0857), (4, 8, "ZB-H1", 1, 27, 0.1111), (4, 8, "ZB-H2", 1, 27, 0.1111),
    (8, 16, "1F1B", 1, 69, 0.3043), (8, 16, "ZB-H2", 1, 55, 0.1273),
]  # fmt: skip


@pytest.mark.parametrize(("stages", "microbatches", "schedule", "chunks", "units", "rate"), ORACLES)
def test_the_rates_of_the_papers(
    stages: int, microbatches: int, schedule: str, chunks: int, units: float, rate: float
) -> None:
    each = 1_000_000 // chunks
    true = pipeline_run(PipelineTraining(schedule, stages, microbatches, chunks, each, each, each))
    found = analysed(true)
    assert found.schedule == schedule
    step = found.steps[0]
    assert abs((step.end_ns - step.start_ns) - units * 1_000_000) <= 1_000
    assert found.rates.bubble_rate_makespan == pytest.approx(rate, abs=6e-5)


@pytest.mark.parametrize("names", ["zero-bubble", "gpipe", "vescale", "deepspeed", "paddle"])
def test_every_framework_s_names(names: str) -> None:
    true = pipeline_run(
        PipelineTraining(
            "1F1B", names=names, transfer_ns=100_000, visible=True, steps=2, optimizer_ns=300_000, norm_ns=100_000
        )
    )
    found = analysed(true)
    assert found.schedule == "1F1B"
    assert not found.warnings
    assert_true(true, found)


@pytest.mark.parametrize("names", ["none", "megatron"])
@pytest.mark.parametrize("autograd_thread", [True, False])
def test_a_run_without_names_is_inferred(names: str, autograd_thread: bool) -> None:
    true = pipeline_run(
        PipelineTraining("1F1B", names=names, transfer_ns=100_000, visible=True, autograd_thread=autograd_thread)
    )
    found = analysed(true)
    assert found.schedule == "1F1B"
    assert {r.rules[k] for r in (one.ranges for one in found.runs) for k in r.rule[r.phase != Pass.OPT].tolist()} == {
        RULE
    }
    assert_true(true, found)


def test_a_split_backward_without_names_is_not_guessed() -> None:
    true = pipeline_run(PipelineTraining("ZB-H1", names="none", transfer_ns=100_000, visible=True))
    with tempfile.TemporaryDirectory() as folder:
        ready = [job.prepare(job.Inputs(kineto=file), job.Options(sync="cuda")) for file in true.write(folder)]
    assert analyse([r.parts["pipeline"].run for r in ready]) is None
    assert any("could not be inferred" in w for r in ready for w in r.warnings)


@pytest.mark.parametrize("dialect", ["2021", "2022", "2023", "2024", "2026", "rocm"])
def test_every_dialect(dialect: str) -> None:
    true = pipeline_run(PipelineTraining("1F1B", transfer_ns=50_000, visible=True))
    found = analysed(true, dialect=dialect)
    assert found.schedule == "1F1B"
    rounding = 1_000 if dialect == "2024" else 2_000 * 40  # whole us, each range and each interval
    expected, got = true_idle(true), idle_of(found)
    assert all(abs(expected[key] - got[key]) <= rounding for key in {*expected, *got})


def test_unequal_stages_and_jitter_keep_the_identity() -> None:
    forward = (1_000_000, 1_200_000, 900_000, 1_500_000)
    true = pipeline_run(PipelineTraining("1F1B", forward_ns=forward, transfer_ns=200_000, visible=True, kernels=4))
    found = analysed(true)
    assert_true(true, found)
    assert found.theory is not None
    assert found.theory.parts_ns.imbalance > 0
    assert np.all(found.idle.cause != Cause.UNKNOWN)


def test_forward_and_backward_of_any_training_are_no_pipeline() -> None:
    true = pipeline_run(PipelineTraining("1F1B", names="deepspeed"))  # transfers that nothing shows
    with tempfile.TemporaryDirectory() as folder:
        ready = [job.prepare(job.Inputs(kineto=file), job.Options(sync="cuda")) for file in true.write(folder)]
    assert all(r.parts["pipeline"].run is not None for r in ready)
    assert analyse([r.parts["pipeline"].run for r in ready]) is None


def test_interleaved_stages_without_names_are_not_guessed() -> None:
    true = pipeline_run(PipelineTraining("interleaved", chunks=2, names="none", transfer_ns=100_000, visible=True))
    with tempfile.TemporaryDirectory() as folder:
        ready = [job.prepare(job.Inputs(kineto=file), job.Options(sync="cuda")) for file in true.write(folder)]
    assert analyse([r.parts["pipeline"].run for r in ready]) is None
    assert any("more than the ones before and after" in w or "fit no" in w for r in ready for w in r.warnings)


@pytest.mark.parametrize("names", ["torch", "none"])
def test_clocks_that_cannot_be_are_told(names: str) -> None:
    training = PipelineTraining("1F1B", names=names, transfer_ns=100_000, visible=True)
    assert not analysed(pipeline_run(training)).warnings
    skewed = analysed(pipeline_run(training), clocks_ns=(0, 5_000_000, -3_000_000, 0))
    (said,) = (w for w in skewed.warnings if "clocks of the ranks differ" in w)
    assert "by up to" in said
    for step in skewed.steps:
        mine = (skewed.idle.step == step.number) & (skewed.idle.cause != Cause.OPTIMIZER_SYNC)
        idle = int((skewed.idle.end_ns[mine] - skewed.idle.start_ns[mine]).sum())
        assert sum(step.work_ns) + idle == 4 * (step.end_ns - step.start_ns)


def test_what_the_device_takes_from_one_kernel_to_the_next_is_no_secret() -> None:
    true = pipeline_run(PipelineTraining("1F1B", kernels=4, jitter_ns=3_000, transfer_ns=100_000, visible=True))
    found = analysed(true)
    assert not (found.idle.cause == Cause.UNKNOWN).any()
