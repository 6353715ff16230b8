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
}


def test_every_recording_has_a_truth_and_is_small() -> None:
    assert {path.name for path in REAL.iterdir() if path.is_dir()} == set(HOLD)
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
