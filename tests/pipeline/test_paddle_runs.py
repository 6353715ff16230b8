from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from graphlink.causes import OF_STAGES, Cause
from graphlink.errors import UsageError
from graphlink.pipeline.paddle.runs import pipeline_of
from graphlink.pipeline.records import Pass, RunPipeline
from tests.paddle_runs import US, Op, copies, equal_times, gpipe, interleaved, one_f_one_b, simulate
from tests.simulator.paddle import EPOCH_NS, Job, Variation, write_paddle

MS = 1_000_000


def analysed(
    folder: Path, jobs: Sequence[Sequence[Job]], vary: Variation | None = None, step: str = "all"
) -> RunPipeline:
    write_paddle(jobs, folder, vary)
    return pipeline_of(folder, step)


def idle_ns(pipeline: RunPipeline) -> dict[Cause, int]:
    length = pipeline.idle.end_ns - pipeline.idle.start_ns
    return {cause: ns for cause in OF_STAGES if (ns := int(length[pipeline.idle.cause == cause].sum()))}


@pytest.mark.parametrize("as_double", [False, True])
@pytest.mark.parametrize(
    ("schedule", "orders", "makespan", "rate"),
    [
        ("GPipe", gpipe(4, 4), 21, 0.4286),
        ("1F1B", one_f_one_b(4, 8), 33, 0.2727),
        ("1F1B", one_f_one_b(8, 16), 69, 0.3043),
        ("interleaved", interleaved(4, 8, 2), 28.5, 0.1579),
        ("interleaved", interleaved(4, 8, 4), 26.25, 0.0857),
    ],
)
def test_the_oracles_of_the_schedules(
    tmp_path: Path, schedule: str, orders: list[list[Op]], makespan: float, rate: float, as_double: bool
) -> None:
    """T_F = 1, T_B = 2, chunks shorter by their number; to 1 us, also with the times as Paddle's clock has them."""
    chunks = 1 + max(op.chunk for op in orders[0])
    pipeline = analysed(
        tmp_path, simulate(orders, equal_times(1000 // chunks, 2000 // chunks), steps=2), Variation(as_double=as_double)
    )
    assert [abs(s.end_ns - s.start_ns - makespan * MS) <= (2 * US if as_double else 0) for s in pipeline.steps] == [
        True,
        True,
    ]
    assert pipeline.rates.bubble_rate_makespan == pytest.approx(rate, abs=1e-4)
    assert pipeline.rates.bubble_rate_zb == pytest.approx(rate, abs=1e-4)
    assert (pipeline.stages, pipeline.chunks, pipeline.microbatches) == (
        len(orders),
        chunks,
        1 + max(op.microbatch for op in orders[0]),
    )
    assert (pipeline.schedule, pipeline.theory is not None) == (schedule, True)
    for rank in range(len(orders)):
        work = sum(s.work_ns[rank] for s in pipeline.steps)
        inside = (pipeline.idle.rank == rank) & (pipeline.idle.cause != Cause.OPTIMIZER_SYNC)
        idle = int((pipeline.idle.end_ns - pipeline.idle.start_ns)[inside].sum())
        assert work + idle == sum(s.end_ns - s.start_ns for s in pipeline.steps)


def test_a_transfer_delay_is_a_dependency_stall(tmp_path: Path) -> None:
    """1F1B grows by 2 c ((p - 1) m / p + p - 2) with a delay c on each boundary."""
    p, m, c = 4, 8, 250 * US
    without, delayed = (
        analysed(tmp_path / str(ns), simulate(one_f_one_b(p, m), equal_times(), transfer_ns=ns)) for ns in (0, c)
    )
    growth = delayed.steps[0].end_ns - without.steps[0].end_ns
    assert growth == 2 * c * ((p - 1) * m // p + p - 2)
    causes = idle_ns(delayed)
    assert set(causes) == {Cause.WARMUP, Cause.COOLDOWN, Cause.DEPENDENCY_STALL, Cause.OPTIMIZER_SYNC}
    assert causes[Cause.WARMUP] == idle_ns(without)[Cause.WARMUP] + c * p * (p - 1) // 2


def test_a_rank_that_stops_for_itself_is_unknown(tmp_path: Path) -> None:
    """Nothing in the logs tells why rank 0 let 300 us go by between two jobs that waited for nobody."""
    jobs = simulate(gpipe(2, 4), equal_times())
    late = 300 * US
    jobs = [
        [Job(j.type, j.microbatch, *(ns + late * (ns > 2_000 * US) for ns in (j.start_ns, j.end_ns))) for j in mine]
        for mine in jobs
    ]
    jobs[0][2] = Job("forward", 2, 2_000 * US + late, 3_000 * US + late)
    assert idle_ns(analysed(tmp_path, jobs)).get(Cause.UNKNOWN) == late


def test_pipelines_side_by_side_are_one_report_of_all_ranks(tmp_path: Path) -> None:
    jobs = copies(simulate(one_f_one_b(4, 8), equal_times()), 2)
    pipeline = analysed(tmp_path, jobs)
    assert (pipeline.stages, pipeline.ranks) == (4, tuple(range(8)))
    assert pipeline.rates.bubble_rate_makespan == pytest.approx(0.2727, abs=1e-4)
    assert any("2 pipelines of 4 stages run side by side" in warning for warning in pipeline.warnings)


def test_machines_whose_clocks_differ_have_the_same_bubbles(tmp_path: Path) -> None:
    jobs = simulate(one_f_one_b(4, 8), equal_times(), transfer_ns=40 * US, steps=2)
    one, two = (
        analysed(tmp_path / name, jobs, Variation(machines=2, clock_ns=clock))
        for name, clock in (("a", ()), ("b", (0, 3 * MS)))
    )
    assert idle_ns(one) == idle_ns(two)
    assert one.rates == two.rates


def test_some_steps(tmp_path: Path) -> None:
    jobs = simulate(one_f_one_b(2, 4), equal_times(), steps=4)
    vary = Variation(first_step=3, stop_step=7)
    pipeline = analysed(tmp_path, jobs, vary, "4-5")
    assert len(pipeline.steps) == 2
    assert [run.left_out["jobs of other steps"] for run in pipeline.runs] == [18, 18]
    assert pipeline.steps[0].start_ns == jobs[0][9].start_ns + EPOCH_NS
    assert all(np.count_nonzero(run.ranges.phase == Pass.OPT) == 2 for run in pipeline.runs)
    with pytest.raises(UsageError, match="the logs hold steps 3 to 6"):
        pipeline_of(tmp_path, "7")


def test_workers_without_a_common_step(tmp_path: Path) -> None:
    jobs = simulate(one_f_one_b(2, 4), equal_times(), steps=2)
    lost = frozenset((0, i) for i in range(9)) | frozenset((1, i) for i in range(9, 18))
    write_paddle(jobs, tmp_path, Variation(lost=lost))
    pipeline = pipeline_of(tmp_path)  # each log alone does not tell which of the steps it holds
    assert len(pipeline.steps) == 1
    assert any("began before" in warning for warning in pipeline.warnings)
