from __future__ import annotations

import warnings

import pytest

from graphlink.capture.session import Schedule, schedule_of
from graphlink.errors import UsageError

SCHEDULES = [
    Schedule(1, 1, 3, 1),
    Schedule(0, 0, 1, 0),
    Schedule(2, 0, 2, 3),
    Schedule(0, 3, 1, 2),
    Schedule(5, 1, 1, 0),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_phases_are_those_of_pytorch(schedule: Schedule) -> None:
    profiler = pytest.importorskip("torch.profiler", reason="needs PyTorch, as of the extra dev")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of a schedule without warm-up
        theirs = profiler.schedule(
            wait=schedule.wait, warmup=schedule.warmup, active=schedule.active, repeat=schedule.repeat
        )
    ours, taken = schedule_of(None, schedule), schedule_of(None, theirs)
    assert [ours(step) for step in range(40)] == [taken(step) for step in range(40)]


def test_steps_leave_out_the_first_and_warm_up_on_the_second() -> None:
    taken = schedule_of(2, None)
    assert [taken(step).name for step in range(5)] == ["OFF", "WARMUP", "RECORD", "LAST", "OFF"]


def test_what_cannot_be_is_refused_before_the_training() -> None:
    for wrong in ({"active": 0}, {"wait": -1}, {"repeat": -1}):
        with pytest.raises(UsageError):
            Schedule(**wrong)
    with pytest.raises(UsageError, match="both"):
        schedule_of(3, Schedule())
    with pytest.raises(UsageError):
        schedule_of(0, None)
