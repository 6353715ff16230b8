from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from graphlink.cli import main
from tests.simulator.et import write_et
from tests.simulator.kineto import write_kineto
from tests.simulator.machine import run
from tests.simulator.programs import Training, training_program


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``et_R.json`` and ``kineto_R.json`` of two ranks of one small program, three steps."""
    folder = tmp_path_factory.mktemp("traces")
    for rank in (0, 1):
        execution = run(training_program(1, Training(steps=3, layers=2, ranks=2, rank=rank)))
        write_et(execution, folder / f"et_{rank}.json")
        write_kineto(execution, folder / f"kineto_{rank}.json")
    return folder


@pytest.fixture
def graphlink(graphlink_once: Callable[..., Ran]) -> Callable[..., Ran]:
    """Runs the command line in this process."""
    return graphlink_once


@pytest.fixture(scope="session")
def graphlink_once() -> Callable[..., Ran]:
    """The same for what a session needs once."""

    def call(*arguments: str | Path) -> Ran:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = main([str(a) for a in arguments])
            except SystemExit as left:  # argparse: --help, --version, wrong options
                status = int(left.code or 0)
        return Ran(status, out.getvalue(), err.getvalue())

    return call
