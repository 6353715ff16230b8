from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

COMMAND = Path(sys.executable).with_name("graphlink")
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
def graphlink(tmp_path: Path) -> Callable[..., Done]:
    """Runs the installed command in a process of its own; files are taken from the project's root."""
    if not COMMAND.exists():
        pytest.skip(f"graphlink is not installed beside {sys.executable}: pip install -e .")

    def call(*arguments: str | Path) -> Done:
        folder = tmp_path / "out"
        command = [str(COMMAND), *map(str, arguments), "--out", str(folder)]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        return Done(ran.returncode, ran.stdout, ran.stderr, folder)

    return call


@pytest.fixture(params=["head", "legacy"])
def reader(request: pytest.FixtureRequest) -> str:
    """``head`` or ``legacy``, if its binary is there and starts."""
    binary = SIMULATORS / f"AstraSim_{request.param}"
    if not binary.exists():
        pytest.skip(f"{binary} is absent")
    ran = subprocess.run([binary], capture_output=True, text=True, check=False, timeout=60)
    if ran.returncode == 127:
        pytest.skip(f"{binary} does not start: {ran.stderr.strip()} (Debian: apt-get install libprotobuf32)")
    return str(request.param)
