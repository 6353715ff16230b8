"""Recordings whose device clock was moved: launch latency moves with it, and what-ifs stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphlink.cli import main
from tests.e2e.conftest import ROOT
from tests.moved import moved

RECORDING = ROOT.parent / "shared" / "traces" / "inference" / "mi300_vit.json.gz"


def gain_pct(folder: Path, recording: Path, scale: str) -> float:
    assert (
        main(
            [
                "--kineto",
                str(recording),
                "--out",
                str(folder / "out"),
                "--force",
                "--no-timeline",
                "--sync",
                "cuda",
                "-q",
            ]
        )
        == 0
    )
    assert main(["replay", str(folder / "out"), "--scale", scale, "--json", str(folder / "gain.json")]) == 0
    gain: float = json.loads((folder / "gain.json").read_bytes())["what_if"][0]["gain_pct"]
    return gain


@pytest.mark.skipif(not RECORDING.exists(), reason=f"the public recording is not at {RECORDING}")
@pytest.mark.parametrize("us", [-10, 0, 8, 20])
def test_a_faster_host_gains_the_same_wherever_the_device_clock_stands(tmp_path: Path, us: int) -> None:
    """With latency after the stream: 50.0, 47.7, 36.4 and 21.6 %."""
    moved(RECORDING, tmp_path / "moved.json", us)
    assert gain_pct(tmp_path, tmp_path / "moved.json", "host=0.5") == pytest.approx(50, abs=1)
    assert gain_pct(tmp_path, tmp_path / "moved.json", "kernel=0.5") == pytest.approx(0, abs=1)
