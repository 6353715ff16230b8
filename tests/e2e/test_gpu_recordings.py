"""Recordings of ``fixtures/capture/kit.py`` on an H100 (PyTorch 2.11, CUDA 13.0) against what its programs know."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphlink
from graphlink.replay.band import recorded, step_ns
from graphlink.replay.changes_file import load_changes
from graphlink.replay.folder import load_groups
from graphlink.replay.machines import play
from graphlink.replay.whatif import fit
from graphlink.replay.workload import workload
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


def truth(folder: Path) -> Any:
    return json.loads((folder / "truth.0.json").read_text())


def predicted_ms(folder: Path, change: str, tmp_path: Path) -> float:
    """Return the step that a what-if predicts of a recording."""
    run = graphlink.link(folder, options=OPTIONS, out=tmp_path / "graphs" / folder.name)
    file = tmp_path / "change.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(change)
    work, groups = workload({0: run.graph()}), load_groups(run.folder)
    changed = fit(work, load_changes(file), groups)
    assert not changed.refused
    ns = step_ns(changed.work, play(changed.work, groups), recorded(run.summary.ranks))
    assert ns is not None
    return float(ns) / 1e6


@pytest.mark.parametrize(
    ("graph", "error"), [pytest.param('name = "ProfilerStep"', 0.03, marks=pytest.mark.long), ("auto = true", 0.07)]
)
def test_a_training_step_as_a_cuda_graph_takes_what_it_then_took(graph: str, error: float, tmp_path: Path) -> None:
    """Forward, backward and optimizer: 13 ms as recorded op by op, 1.06 ms as recorded as a graph. A graph's kernels
    follow each other within 0.1 us there, where 1 us is what counts unless it is given."""
    before = [f for f in unpack(GPU / "pairs" / "train.tar.xz", tmp_path) if f.name.startswith("no-et")]
    (after,) = unpack(GPU / "pairs" / "train-graph.tar.xz", tmp_path / "after")
    took_ms = np.mean(truth(after)["steps_ns"]) / 1e6
    for folder in before:
        predicted = predicted_ms(folder, f"[[cuda_graph]]\n{graph}\ngap_us = 0.1\n", tmp_path)
        assert predicted == pytest.approx(took_ms, rel=error)


def test_an_encoder_up_to_a_decision_as_a_cuda_graph_takes_what_it_then_took(tmp_path: Path) -> None:
    """Each step ends with a decision of the host on the result: the graph goes up to it. What the host does around it is
    slower while it is recorded, so the truth lies between the bare steps and the recorded ones."""
    (before,) = [f for f in unpack(GPU / "pairs" / "decide.tar.xz", tmp_path) if f.name.startswith("no-et")]
    (after,) = unpack(GPU / "pairs" / "decide-graph.tar.xz", tmp_path / "after")
    predicted = predicted_ms(before, "[[cuda_graph]]\nauto = true\n", tmp_path)
    assert min(truth(after)["bare_ns"]["before"]) / 1e6 <= predicted <= np.mean(truth(after)["steps_ns"]) / 1e6


@pytest.mark.parametrize(("group", "program", "least_pct"), [("pairs", "train", 85), ("facts", "decode", 80)])
def test_where_launches_hold_the_gpu_up_graphs_are_advised_first(
    group: str, program: str, least_pct: float, tmp_path: Path
) -> None:
    folder = unpack(GPU / group / f"{program}.tar.xz", tmp_path)[0]
    told = graphlink.link(folder, options=OPTIONS, out=tmp_path / "graphs").advice()
    first = told.advice[0]
    assert (first.kind, first.command.split(" --", 1)[1]) == ("launch_bound", "cuda-graph auto")
    assert first.gain_pct is not None
    assert first.gain_pct >= least_pct
    assert any("an execution trace was recorded, too" in note for note in told.notes)


def test_copies_from_pageable_memory_go_with_what_the_host_does_for_them(tmp_path: Path) -> None:
    """A batch of 64 MB a step: 18.5 ms from pageable memory, 9.7 ms from pinned memory, with copies that take a little.
    What the host takes to stage a copy is no work of its own."""
    (before,) = [f for f in unpack(GPU / "pairs" / "copy-pageable.tar.xz", tmp_path) if f.name.startswith("no-et")]
    (after,) = unpack(GPU / "pairs" / "copy-pinned.tar.xz", tmp_path / "after")
    run = graphlink.link(before, options=OPTIONS, out=tmp_path / "graphs")
    first = run.advice().advice[0]
    assert (first.kind, first.command.split(" --", 1)[1]) == ("copies", "scale copy=0")
    assert first.todo.startswith("copy the next batch early, while this step computes: pin_memory=True")
    pinned = graphlink.link(after, options=OPTIONS, out=tmp_path / "pinned").advice().advice
    assert not [one.todo for one in pinned if "pin_memory=True" in one.todo]
    predicted = predicted_ms(before, "[[time]]\nsort = 'copy'\nscale = 0\n", tmp_path / "again")
    assert 0.9 <= 1e6 * predicted / np.mean(truth(after)["steps_ns"]) <= 1


def test_workers_are_advised_where_the_main_thread_makes_the_batches(tmp_path: Path) -> None:
    """Pictures that torchvision prepares: 190 ms a step in the main thread, 39.3 ms with 8 workers."""
    (before,) = unpack(GPU / "libraries" / "pictures-0-workers.tar.xz", tmp_path)
    after = next(f for f in unpack(GPU / "libraries" / "pictures-8-workers.tar.xz", tmp_path / "after"))
    first = graphlink.link(before, options=OPTIONS, out=tmp_path / "out").advice().advice[0]
    assert (first.kind, first.command.split(" --", 1)[1]) == ("data_loading", "dataloader-workers 8")
    predicted = predicted_ms(before, "[[dataloader]]\nworkers = 8\n", tmp_path)
    assert predicted == pytest.approx(np.mean(truth(after)["steps_ns"]) / 1e6, rel=0.15)


def test_conversions_of_layout_around_convolutions_are_advised_first(tmp_path: Path) -> None:
    """9.6 ms a step in NCHW, 6.8 ms in ``channels_last``, which makes normalisation quicker, too."""
    (before,) = [f for f in unpack(GPU / "pairs" / "conv-contiguous.tar.xz", tmp_path) if f.name.startswith("no-et")]
    after = unpack(GPU / "pairs" / "conv-channels-last.tar.xz", tmp_path / "after")[0]
    told = graphlink.link(before, options=OPTIONS, out=tmp_path / "out").advice().advice
    assert told[0].kind == "layout_conversions" and "channels_last" in told[0].todo
    gained_pct = 100 - 100 * np.mean(truth(after)["steps_ns"]) / np.mean(truth(before)["steps_ns"])
    assert told[0].gain_step_pct is not None and 0.7 * gained_pct < told[0].gain_step_pct < gained_pct
    told = graphlink.link(after, options=OPTIONS, out=tmp_path / "then").advice().advice
    assert not any(one.kind == "layout_conversions" for one in told)


def test_pauses_of_python_are_no_op_to_make_faster(tmp_path: Path) -> None:
    """Python's garbage collector runs for about 40 ms after each third step."""
    folder = next(f for f in unpack(GPU / "facts" / "garbage-collector.tar.xz", tmp_path) if f.name.startswith("no-et"))
    first = graphlink.link(folder, options=OPTIONS, out=tmp_path / "out").advice().advice[0]
    assert first.kind == "python_pause" and "gc.freeze()" in first.todo
    assert first.evidence.startswith("4 pauses of 187.141 to 206.058 ms") and first.evidence.endswith(", every 3 steps")


@pytest.mark.parametrize(("recorder", "place"), [("no-et", 0), ("capture", 1)])
def test_a_checkpoint_stands_before_launches_where_it_takes_more_of_a_step_that_has_it(
    tmp_path: Path, recorder: str, place: int
) -> None:
    """Each third step saves 20 MB, in 26 of 40 ms; with the execution trace launches take still more. An optimizer that
    launches many kernels, a part of what CUDA graphs gain, stands behind both."""
    folder = next(f for f in unpack(GPU / "facts" / "checkpoint.tar.xz", tmp_path) if f.name.startswith(recorder))
    told = graphlink.link(folder, options=OPTIONS, out=tmp_path / "out").advice().advice
    assert told[place].what == "checkpoint runs behind the gradients of some steps, every 3 steps"


def test_a_rank_that_sleeps_is_what_the_other_waits_for_over_gloo(tmp_path: Path) -> None:
    """Rank 1 sleeps for 20 ms in each step. gloo's threads copy the gradients of a GPU themselves, within their rows."""
    before = next(
        f for f in unpack(GPU / "facts" / "ddp-gloo-straggler.tar.xz", tmp_path) if f.name.startswith("no-et")
    )
    after = next(f for f in unpack(GPU / "facts" / "ddp-gloo-2-ranks.tar.xz", tmp_path / "after") if "no-et" in f.name)
    run = graphlink.link(before, options=OPTIONS, out=tmp_path / "out")
    first = run.advice().advice[0]
    assert first.kind == "straggler" and "make rank 1 arrive on time" in first.what
    assert abs(run.summary.run.replay.error_pct) < 0.1
    gained_pct = 100 - 100 * np.mean(truth(after)["steps_ns"]) / np.mean(truth(before)["steps_ns"])
    assert first.gain_step_pct == pytest.approx(gained_pct, abs=3)
