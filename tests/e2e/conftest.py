from __future__ import annotations

import contextlib
import io
import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from graphlink.cli import main

ROOT = Path(__file__).parents[2]
SIMULATORS = ROOT.parent / "shared" / "astra-sim"


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str
    folder: Path

    @property
    def summary(self) -> Any:
        return json.loads((self.folder / "summary.json").read_text())

    @property
    def rank(self) -> Any:
        (rank,) = self.summary["ranks"]
        return rank


@pytest.fixture
def graphlink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Runs the command in this process; files are taken from the project's root."""
    monkeypatch.chdir(ROOT)

    def call(*arguments: str | Path) -> Done:
        folder, out, err = tmp_path / "out", io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main([*map(str, arguments), "--out", str(folder)])
        return Done(status, out.getvalue(), err.getvalue(), folder)

    return call


@pytest.fixture(params=["head", "legacy"])
def reader(request: pytest.FixtureRequest) -> str:
    """``head`` or ``legacy``, if its binary is there and starts."""
    binary = SIMULATORS / f"AstraSim_{request.param}"
    if not binary.exists():
        pytest.skip(f"{binary} is absent")
    ran = subprocess.run([binary], capture_output=True, text=True, check=False, timeout=600)
    if ran.returncode == 127:
        pytest.skip(f"{binary} does not start: {ran.stderr.strip()} (Debian: apt-get install libprotobuf32)")
    return str(request.param)
