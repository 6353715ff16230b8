from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from graphlink.run.library import Run, link
from graphlink.run.options import Options
from tests.cli.conftest import graphlink, graphlink_once
from tests.diff.planted import base
from tests.simulator import ClusterRun, PipelineRun, Program, run, write_kineto

__all__ = ["graphlink", "graphlink_once"]

Recorded = Program | PipelineRun | ClusterRun
Link = Callable[[Recorded], Run]


@pytest.fixture(scope="session")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Link:
    """Record a simulated run and link it; the same once only."""
    known: dict[int, tuple[Recorded, Run]] = {}

    def of(recorded: Recorded) -> Run:
        if id(recorded) not in known:
            folder = tmp_path_factory.mktemp("run")
            traces = folder / "traces"
            if isinstance(recorded, Program):
                traces.mkdir()
                write_kineto(run(recorded), traces / "kineto_0.json")
            else:
                recorded.write(traces)
            known[id(recorded)] = recorded, link(traces, out=folder / "out", options=Options(timeline="none"))
        return known[id(recorded)][1]

    return of


@pytest.fixture(scope="session")
def training() -> Program:
    """The program that changes are planted in."""
    return base()


@pytest.fixture(scope="session")
def folder(linked: Link, training: Program) -> Path:
    return linked(training).folder
