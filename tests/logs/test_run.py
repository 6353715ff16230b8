"""What was logged against what was recorded, where both are known."""

from __future__ import annotations

from pathlib import Path

from msgspec import UNSET

from graphlink.logs.megatron import read_megatron
from graphlink.logs.run import against, timers_of
from graphlink.pipeline.records import Pass
from tests.logs.megatron_variants import THREE, TIMERS
from tests.pipeline.pipelines import Box, pipeline


def test_the_cost_of_profiling_is_recorded_over_logged(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(THREE)
    (log,) = read_megatron([path])
    set_against = against(log, [6_001_200_000, 9_000_000_000, 3_000_600_000], {})
    assert (set_against.recorded_step_ms, set_against.profiling_ratio) == (6001.2, 2.0)
    assert against(log, [], {}).profiling_ratio is UNSET


def test_without_a_logged_step_nothing_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(TIMERS)
    assert against(read_megatron([path])[0], [1_000_000], {}).profiling_ratio is UNSET


def test_timers_stand_against_their_ranges(tmp_path: Path) -> None:
    ms = 1_000_000
    boxes = [
        [
            Box(Pass.F, 0, 0, 0, 10 * ms),
            Box(Pass.F, 0, 1, 10 * ms, 25 * ms),
            Box(Pass.B, 0, 0, 30 * ms, 60 * ms),
            Box(Pass.B, 0, 1, 60 * ms, 80 * ms),
        ]
    ]
    recorded = timers_of([run.ranges for run in pipeline(boxes).runs])
    assert recorded == {"forward-compute": 25 * ms, "backward-compute": 50 * ms}
    path = tmp_path / "train.log"
    path.write_text(TIMERS)
    timers = against(read_megatron([path])[0], [], recorded).timers
    assert {name: timer.recorded_ms for name, timer in timers.items()} == {
        "forward-compute": 25,
        "backward-compute": 50,
        "optimizer": UNSET,
    }
