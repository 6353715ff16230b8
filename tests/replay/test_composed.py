"""Two changes at once, from a file, against the changed programs run again: one rank, and clusters of 2 to 8."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from graphlink.testing import ClusterTraining, cluster_run, random_program, training_program
from graphlink.testing.programs import Training
from tests.replay.composed import Outcome, Programs, outcome, programs_of, two_changes
from tests.replay.test_what_if import program_shape

PROGRAMS, FEW = 300, 12
CLUSTERS = (
    {"data": 2, "tensor": 1},
    {"data": 1, "tensor": 2},
    {"data": 2, "tensor": 2},
    {"data": 1, "tensor": 1, "pipeline": 2},
    {"data": 1, "tensor": 2, "pipeline": 2, "sequence_parallel": True},
    {"data": 4, "tensor": 1},
    {"data": 2, "tensor": 2, "pipeline": 2},
)


def programs(seed: int) -> Programs:
    """A third each: anything that CUDA allows, training steps, and clusters.

    Without blocking copies: their launch is part of their op in the graph, with its latency and return, whether they block or not.
    """
    random = Random(seed)
    if seed % 3 == 0:
        return (random_program(seed, replace(program_shape(seed, 100), blocking=False)),)
    if seed % 3 == 1:
        return (training_program(seed, Training(steps=3, layers=random.randint(2, 6))),)
    sizes = CLUSTERS[seed // 3 % len(CLUSTERS)]
    training = ClusterTraining(**sizes, seed=seed, steps=3, layers=2, microbatches=2, host_jitter_ns=2_000)  # type: ignore[arg-type]
    return programs_of(cluster_run(training))


def outcomes(folder: Path, seeds: range) -> list[Outcome]:
    return [outcome(folder / "run", mine, two_changes(seed, mine)) for seed in seeds for mine in [programs(seed)]]


@pytest.mark.parametrize("count", [FEW, pytest.param(PROGRAMS, marks=pytest.mark.long)])
def test_two_changes_at_once(tmp_path: Path, count: int) -> None:
    found = outcomes(tmp_path, range(count))
    errors = np.array([abs(one.error_pct) for one in found])
    worst = found[int(errors.argmax())]
    print(f"\n{count} programs: median {np.median(errors):.3f} %  p90 {np.percentile(errors, 90):.3f} %  worst {errors.max():.3f} %")
    print(worst)
    assert np.median(errors) <= 0.75
    assert errors.max() <= 2
