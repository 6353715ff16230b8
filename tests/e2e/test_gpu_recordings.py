"""Recordings of ``fixtures/capture/kit.py`` on an H100 (PyTorch 2.11, CUDA 13.0) against what its programs know."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import graphlink
from tests.capture.gpu_truths import judge, unpack
from tests.e2e.conftest import ROOT

GPU = ROOT / "fixtures" / "real" / "gpu"
OPTIONS = graphlink.Options(timeline="none")
# What no rule can tell from such a recording, by program and recorder: calls, how many are wrong.
POLLING = Counter({"query": 4})  # of CUDA 12.9 and newer, Kineto does not tell which record a query asks for
UNSEEN = Counter({"stream": 3})  # the waits of streams for records neither; one of two branches hid the other
IMPLIED = Counter({"stream": 4})  # nothing tells that a stream waits for the default stream
KNOWN: dict[str, dict[str, Counter[str]]] = {
    "eager": dict.fromkeys(("capture", "no-et", "stacks", "plain", "everything", "no-sync-rows"), POLLING),
    "graphs": {},
    "threads": {"no-sync-rows": Counter({"item": 1})},  # its call returned for a reason that no row shows
    "streams": {"capture": UNSEEN, "no-sync-rows": UNSEEN},
    "default-stream": {"capture": IMPLIED, "no-sync-rows": IMPLIED},
    "full-queue": {},
    "matmul": {},
    "matmul-twice-the-size": {},
}
CALLS = {"eager": 44, "graphs": 8, "streams": 4, "default-stream": 8, "full-queue": 2, "threads": 24}


@pytest.mark.parametrize("program", KNOWN)
def test_each_call_waits_for_what_it_waited_for(program: str, tmp_path: Path) -> None:
    for folder in unpack(GPU / "waits" / f"{program}.tar.xz", tmp_path):
        recorder = folder.name.rpartition("-")[0]
        if recorder == "counters":
            continue  # of two steps
        run = graphlink.link(folder, options=OPTIONS, out=tmp_path / "graphs" / folder.name)
        judged = judge(folder, run)
        assert judged.calls == CALLS.get(program, 4)
        assert Counter(one.call for one in judged.wrong) == KNOWN[program].get(recorder, Counter()), recorder
        assert not any(one.false for one in judged.wrong)


def steps_ms(folder: Path) -> float:
    """Return the mean of the recorded steps, by the program's own clock."""
    return float(np.mean(json.loads((folder / "truth.0.json").read_text())["steps_ns"]) / 1e6)


def test_a_training_step_as_a_cuda_graph_takes_what_it_then_took(tmp_path: Path) -> None:
    """Forward, backward and optimizer: 13 ms as recorded op by op, 1.06 ms as recorded as a graph. A graph's kernels
    follow each other within 0.1 us there, where 1 us is what counts unless it is given."""
    before = [f for f in unpack(GPU / "pairs" / "train.tar.xz", tmp_path) if f.name.startswith("no-et")]
    (after,) = unpack(GPU / "pairs" / "train-graph.tar.xz", tmp_path / "after")
    change = tmp_path / "graph.toml"
    change.write_text('[[cuda_graph]]\nname = "ProfilerStep"\ngap_us = 0.1\n')
    for folder in before:
        run = graphlink.link(folder, options=OPTIONS, out=tmp_path / "graphs" / folder.name)
        (predicted,) = run.replay(what_if=change).what_if
        assert predicted.band is not None
        assert predicted.band.step is not None
        assert predicted.band.step.ns / 1e6 == pytest.approx(steps_ms(after), rel=0.03)
