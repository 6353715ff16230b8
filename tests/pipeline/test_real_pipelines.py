"""The public pipeline recordings: what their ranges and orders are known to be (README beside the traces)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphlink.causes import Cause
from graphlink.pipeline.analyse import analyse
from graphlink.pipeline.autograd import RULE
from graphlink.pipeline.records import Pass, RunPipeline
from graphlink.run import job

TRACES = Path(__file__).parents[3] / "shared" / "traces" / "pipelining-cpu"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"public traces are not at {TRACES}")


def pipeline(name: str) -> RunPipeline:
    runs = []
    for rank in range(4):
        inputs = job.Inputs(kineto=TRACES / name / f"kineto_{rank}.json.gz", et=TRACES / name / f"et_{rank}.json.gz")
        staged = job.prepare(inputs, job.Options(sync="cuda")).parts["pipeline"]
        assert staged.run is not None
        runs.append(staged.run)
    found = analyse(runs)
    assert found is not None
    return found


def assert_complete(found: RunPipeline) -> None:
    """Per step: work and idle time are p times the makespan, to the ns; nothing is left unknown."""
    inside = found.idle.cause != Cause.OPTIMIZER_SYNC
    for step in found.steps:
        mine = inside & (found.idle.step == step.number)
        idle = int((found.idle.end_ns[mine] - found.idle.start_ns[mine]).sum())
        assert sum(step.work_ns) + idle == found.stages * (step.end_ns - step.start_ns)
        assert found.idle.start_ns[mine].min() >= step.start_ns
        assert found.idle.end_ns[mine].max() <= step.end_ns
    assert not (found.idle.cause == Cause.UNKNOWN).any()
    same = found.idle.rank[1:] == found.idle.rank[:-1]
    assert (found.idle.start_ns[1:] >= found.idle.end_ns[:-1])[same].all(), "no moment is idle twice"
    assert not found.warnings, "four processes of one host share its clock"


def test_an_interleaved_zero_bubble_run_is_recognised_with_every_range() -> None:
    found = pipeline("interleaved-zb")
    assert (found.schedule, found.stages, found.microbatches, found.chunks) == ("interleaved-ZB", 4, 8, 2)
    assert len(found.steps) == 2
    for rank, of_rank in enumerate(found.runs):
        r = of_rank.ranges
        for phase in (Pass.F, Pass.I, Pass.W):
            mine = r.phase == phase
            assert sorted(zip(r.step[mine], r.stage[mine], r.microbatch[mine], strict=True)) == [
                (step, stage, mb) for step in (2, 3) for stage in (rank, rank + 4) for mb in range(8)
            ]
        assert {r.rules[k] for k in r.rule[r.phase != Pass.OPT].tolist()} == {"torch-pipelining"}
    assert_complete(found)


def test_a_1f1b_run_without_any_range_is_inferred() -> None:
    found = pipeline("1f1b")
    assert (found.schedule, found.stages, found.microbatches, found.chunks) == ("1F1B", 4, 8, 1)
    for rank, of_rank in enumerate(found.runs):
        r = of_rank.ranges
        mine = r.phase != Pass.OPT
        assert {r.rules[k] for k in r.rule[mine].tolist()} == {RULE}
        for step in (2, 3):
            here = mine & (r.step == step)
            assert r.stage[here].tolist() == [rank] * 16
            order = [
                f"{Pass(p).name}{m}" for p, m in zip(r.phase[here].tolist(), r.microbatch[here].tolist(), strict=True)
            ]
            warm = 3 - rank
            expected = [f"F{k}" for k in range(warm)]
            expected += [x for k in range(8 - warm) for x in (f"F{warm + k}", f"B{k}")]
            assert order == expected + [f"B{k}" for k in range(8 - warm, 8)]
    assert_complete(found)


def test_of_a_pipeline_the_parts_of_theory_add_up() -> None:
    found = pipeline("1f1b")
    assert found.theory is not None
    parts = found.theory.parts_ns
    assert parts.schedule + parts.imbalance + parts.communication + parts.rest == parts.measured
    measured = sum(found.stages * (s.end_ns - s.start_ns) - sum(s.work_ns) for s in found.steps)
    assert parts.measured == measured
    assert found.theory.bubble_rate_makespan == pytest.approx(3 / 11)


@pytest.mark.parametrize(
    "name", ["megatron-tp2-v100/kineto_0", "resnet-ddp2-a100/kineto_0", "vgg13-h100/kineto_0", "dlrm8-v100/kineto_0"]
)
def test_a_run_that_is_no_pipeline_has_none(name: str) -> None:
    files = sorted(TRACES.parent.glob(f"{name}.json*"))
    staged = job.prepare(job.Inputs(kineto=files[0]), job.Options(sync="cuda")).parts["pipeline"]
    assert staged.run is None
    assert np.all(staged.of_device == -1)
