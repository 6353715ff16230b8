"""Recordings of our own against what the scripts that made them know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.capture import truths
from tests.e2e.conftest import ROOT, Done

REAL = ROOT / "fixtures" / "real"
HOLD: dict[str, Callable[[Path], None]] = {
    "ddp": truths.hold_ddp,
    "pipeline": truths.hold_pipeline,
    "dataloader": truths.hold_dataloader,
    "dataloader-8-workers": truths.hold_dataloader,
}


def test_every_recording_has_a_truth_and_is_small() -> None:
    assert {path.name for path in REAL.iterdir() if path.is_dir()} == {*HOLD, "pairs", "gpu"}
    for name in HOLD:
        assert sum(path.stat().st_size for path in (REAL / name).iterdir()) < 1_000_000


@pytest.mark.parametrize("name", HOLD)
def test_a_recording_shows_what_its_script_did(name: str) -> None:
    HOLD[name](REAL / name)


@pytest.mark.parametrize("name", HOLD)
def test_a_recording_replays(graphlink: Callable[..., Done], name: str) -> None:
    done = graphlink(REAL / name)
    assert done.status == 0, done.err
    truths.hold_replay(done.summary)


def test_entries_of_the_flight_recorder_meet_the_collectives_that_asked_for_them(
    graphlink: Callable[..., Done],
) -> None:
    """Its buffer goes back to the start of the program: eight entries of each rank are from before the window."""
    done = graphlink(REAL / "ddp")
    assert done.status == 0, done.err
    for rank in done.summary["ranks"]:
        (joined,) = rank["nccl"]["join"]
        assert (joined["matched"], joined["calls_left"], joined["ops_left"]) == (6, {"before": 8}, {})
