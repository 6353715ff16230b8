"""Recordings over gloo of others' programs: what waited, and what the changed program then took (../shared/traces)."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

import graphlink
from graphlink.run.library import Run
from tests.e2e.conftest import ROOT

TRACES = ROOT.parent / "shared" / "traces"
STEPS = 8  # of sleep1
EVEN = "[[time]]\nrank = 1\neven_out = true\n"


def linked(folder: Path, tmp_path: Path) -> Run:
    return graphlink.link(folder, options=graphlink.Options(timeline="none"), out=tmp_path / "out")


def unpacked(name: str, tmp_path: Path) -> Path:
    archive = TRACES / "predict-cpu" / f"{name}.tar.xz"
    if not archive.exists():
        pytest.skip(f"{archive} is not there")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "recording", filter="data")
    return tmp_path / "recording"


@pytest.mark.parametrize(
    ("name", "after_ms"), [("sleep1/a10", 19.4), ("sleep1/a00", 11.9)], ids=["with ET", "without ET"]
)
def test_a_straggler_of_ddp_is_predicted(name: str, after_ms: float, tmp_path: Path) -> None:
    run = linked(unpacked(name, tmp_path), tmp_path)
    (tmp_path / "even.toml").write_text(EVEN)
    [found] = run.replay(what_if=tmp_path / "even.toml").what_if
    assert abs(found.after_ns / STEPS / 1e6 / after_ms - 1) <= 0.08


def test_gradients_reduced_once_a_step_are_predicted(tmp_path: Path) -> None:
    """The collectives of three microbatches, and what DDP does for them, by the path of their op or by their turn."""
    run = linked(unpacked("accum/a10", tmp_path), tmp_path)
    no_sync = [{"path": "micro_[012]/.*(reducer::|c10d::allreduce_)", "remove": True}]
    by_turn = [
        {"path": "c10d::allreduce_", "nth": "1-6", "remove": True},
        {"path": "reducer::", "nth": "1-60", "remove": True},
    ]
    [found], [turns] = (run.replay(what_if={"time": tables}).what_if for tables in (no_sync, by_turn))
    assert found.after_ns == turns.after_ns
    assert found.steps_ns is not None and abs(found.steps_ns[1] / 1e6 / 57.7 - 1) <= 0.10


def test_collectives_whose_rows_begin_in_another_order_are_joined(tmp_path: Path) -> None:
    run = linked(unpacked("sdp/a01", tmp_path), tmp_path)
    summary = json.loads((run.folder / "summary.json").read_bytes())
    assert summary["run"]["matched"]["collectives"] == 16


def test_who_waits_for_messages_of_a_pipeline_does_no_work(tmp_path: Path) -> None:
    """Of 147.3 ms of rank 0 between ops 125.0 are waiting for receives."""
    recording = TRACES / "pipelining-cpu" / "1f1b"
    if not recording.exists():
        pytest.skip(f"{recording} is not there")
    nodes = linked(recording, tmp_path).nodes(rank=0)
    python = nodes[nodes["name"].str.startswith("ProfilerStep")]["duration_ns"].sum()
    assert 124e6 <= nodes["wait_ns"].sum() <= 126e6
    assert python <= 23e6
