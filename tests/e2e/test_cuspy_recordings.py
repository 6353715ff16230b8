"""Recordings of ``fixtures/capture/cuspy.py`` on an H100 (PyTorch 2.15, Cuspy and Kineto of the same programs) against
what its programs know, and against each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import graphlink
from tests.capture.gpu_truths import unpack
from tests.e2e.conftest import ROOT

CUSPY = ROOT / "fixtures" / "real" / "gpu" / "cuspy"
OPTIONS = graphlink.Options(timeline="none")


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that links a recording, once, and gives its folder and run."""
    root = tmp_path_factory.mktemp("cuspy")
    runs: dict[tuple[str, str], tuple[Path, graphlink.Run]] = {}

    def link(program: str, recorder: str) -> tuple[Path, graphlink.Run]:
        if not (root / program).exists():
            unpack(CUSPY / f"{program}.tar.xz", root / program)
        if (program, recorder) not in runs:
            [kineto] = (root / program).rglob(f"{recorder}-1/kineto_0.json")
            out = root / "graphs" / f"{program}-{recorder}"
            runs[program, recorder] = kineto.parent, graphlink.link(kineto.parent, options=OPTIONS, out=out)
        return runs[program, recorder]

    return link


def summary(run: graphlink.Run) -> Any:
    return json.loads((run.folder / "summary.json").read_text())["ranks"][0]


@pytest.mark.parametrize("recorder", ["cuspy", "cuspy-plain"])
def test_copies_of_pageable_memory_block(linked: Any, recorder: str) -> None:
    _, run = linked("copy-pageable", recorder)
    calls = summary(run)["standstill"]["calls"]
    assert calls["explained_ns"] > 0.99 * calls["ns"] > 0
    assert len({*run.nodes()["tid"].dropna()}) == 2  # the calls of the thread of autograd are on that thread


def test_a_host_call_in_a_graph_is_the_hosts_time(linked: Any) -> None:
    """2 ms between two kernels: with Cuspy the GPU is idle for as long as with Kineto, which has no row for it."""
    idle = {}
    for recorder in ("cuspy", "stock"):
        _, run = linked("host-node", recorder)
        [gpu] = summary(run)["gpu"]
        idle[recorder] = gpu["idle_ns"] / (gpu["to_ns"] - gpu["from_ns"])
    assert idle["cuspy"] == pytest.approx(idle["stock"], abs=0.01)
    _, run = linked("host-node", "cuspy")
    [gpu] = summary(run)["gpu"]
    assert gpu["idle_by_cause_ns"]["host_work"] > 4 * 2e6
    path = json.loads((run.folder / "critical_path.0.json").read_text())
    assert path["share_ns"]["host"] > 4 * 2e6
    (half,) = run.replay(scale="host=0.5").what_if
    assert half.gain_pct > 40


@pytest.mark.parametrize("recorder", ["cuspy", "stock"])
def test_a_lane_is_a_label(linked: Any, recorder: str) -> None:
    streams = [{*linked("lanes", kind)[1].nodes()["stream"].dropna()} for kind in (recorder, f"{recorder}-lanes")]
    assert streams[0] == streams[1]
