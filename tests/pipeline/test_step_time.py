"""The predicted time of a step, against simulated runs that really have the other schedule or microbatches."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from random import Random

import msgspec
import numpy as np
import pytest
from msgspec import UNSET

from graphlink.errors import UsageError
from graphlink.pipeline import what_if_schedule
from graphlink.pipeline.file import Bubbles, blocks
from graphlink.pipeline.records import StepTime
from graphlink.pipeline.what_if_schedule import offer
from tests.pipeline.test_pipeline_truth import analysed
from tests.simulator.pipeline_losses import Loss, Place
from tests.simulator.pipelines import PipelineTraining, pipeline_run

CHANGES = (
    ("1F1B", 4, "1F1B", 8),
    ("1F1B", 8, "1F1B", 4),
    ("GPipe", 8, "1F1B", 8),
    ("1F1B", 8, "GPipe", 8),
    ("1F1B", 8, "interleaved", 8),
    ("interleaved", 8, "1F1B", 8),
    ("GPipe", 8, "interleaved", 16),
    ("interleaved", 8, "interleaved", 4),
    ("ZB-H1", 8, "1F1B", 8),
    ("1F1B", 8, "ZB-H1", 8),
)


def training(seed: int, schedule: str, microbatches: int) -> PipelineTraining:
    """A run of three steps: the same model and machine for every schedule of a seed."""
    random = Random(seed)
    stages, chunks = 4, 2 if schedule == "interleaved" else 1
    per_stage = [random.randint(800_000, 2_400_000) for _ in range(stages)]
    halves = tuple(ns // 2 for ns in per_stage for _ in range(2))  # consecutive virtual stages, half a stage each
    forward = halves if chunks == 2 else tuple(per_stage)
    visible, jitter = random.random() < 0.5, random.choice([0, 50_000, 200_000])
    return PipelineTraining(
        schedule,
        stages,
        microbatches,
        chunks,
        forward_ns=forward,
        input_ns=forward,
        weight_ns=forward,
        transfer_ns=random.randint(5_000, 100_000),
        visible=visible,
        kernels=random.randint(1, 3),
        steps=3,
        optimizer_ns=random.randint(200_000, 2_000_000),
        norm_ns=random.choice([50_000, 300_000]),
        gather_ns=random.choice([0, 400_000]),
        jitter_ns=jitter // chunks,
    )


@lru_cache(maxsize=8)
def bubbles_of(what: PipelineTraining) -> Bubbles:
    return msgspec.json.decode(b"".join(blocks(analysed(pipeline_run(what)))), type=Bubbles)


def predicted(file: Bubbles, schedule: str, microbatches: int) -> StepTime:
    step = offer(file, schedule, microbatches, input_share=0.5 if schedule == "ZB-H1" else None).other.step
    assert step is not UNSET
    return step


def true_ns(what: PipelineTraining) -> float:
    return float(np.median(np.diff(_begins(what))))


@lru_cache(maxsize=8)
def _begins(what: PipelineTraining) -> list[int]:
    return [start for start, _ in pipeline_run(what).steps]


@pytest.mark.parametrize("seeds", [1, pytest.param(12, marks=pytest.mark.long)])
def test_a_step_takes_what_it_takes_with_the_other_schedule(seeds: int) -> None:
    errors = {}
    for seed in range(seeds):
        for was, had, schedule, microbatches in CHANGES:
            what = training(seed, schedule, microbatches)
            found = predicted(bubbles_of(training(seed, was, had)), schedule, microbatches).step_ns
            errors[seed, was, had, schedule, microbatches] = 100 * (found / true_ns(what) - 1)
    worst = max(errors, key=lambda case: abs(errors[case]))
    print(
        f"{len(errors)} changes: median {np.median(np.abs([*errors.values()])):.2f} %, worst {errors[worst]:+.2f} % "
        f"({worst})"
    )
    assert np.median(np.abs([*errors.values()])) <= 0.75
    assert abs(errors[worst]) <= 4


def test_the_parts_of_a_step_add_up_on_every_rank() -> None:
    what = PipelineTraining(steps=3, optimizer_ns=400_000, norm_ns=60_000, gather_ns=100_000)
    step = predicted(bubbles_of(what), "1F1B", 8)
    assert step.step_ns == step.pipeline_ns + step.between_ns == step.measured_ns == true_ns(what)
    assert step.missed == 0
    assert step.doubt is UNSET
    assert [(r.rank, r.work_ns, r.optimizer_ns) for r in step.ranks] == [
        (rank, 8 * 3_000_000, 400_000) for rank in range(4)
    ]
    assert all(r.work_ns + r.optimizer_ns + r.rest_ns == step.step_ns for r in step.ranks)


def test_what_one_step_does_not_show_is_said() -> None:
    what = PipelineTraining(steps=1, optimizer_ns=400_000, norm_ns=60_000)
    step = predicted(bubbles_of(what), "1F1B", 8)
    assert (step.measured_ns, step.between_ns) == (UNSET, 400_000)
    assert "no two steps in a row" in step.rests_on
    assert "no two steps" not in predicted(bubbles_of(replace(what, steps=2)), "1F1B", 8).rests_on


def test_a_run_that_the_computation_does_not_explain_is_not_predicted_without_a_word() -> None:
    lost = (Loss("host_sync", 9_000_000), Loss("host_sync", 9_000_000, places=(Place(2, "B", 5, 0, 1),)))
    step = predicted(
        bubbles_of(PipelineTraining(steps=2, optimizer_ns=400_000, norm_ns=60_000, losses=lost)), "GPipe", 8
    )
    assert step.missed is not UNSET
    assert step.missed > 0.1
    assert step.doubt is not UNSET
    assert "longer than is computed" in step.doubt


def test_orders_that_wait_for_each_other_for_ever_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a damaged file may."""

    def waits(*_: object) -> StepTime:
        raise ValueError("deadlock: rank 0 waits")

    monkeypatch.setattr(what_if_schedule, "step_time", waits)
    with pytest.raises(UsageError, match="--schedule gpipe: deadlock: rank 0 waits"):
        offer(bubbles_of(training(0, "1F1B", 4)), "gpipe")
