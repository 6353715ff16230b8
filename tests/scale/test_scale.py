"""Graphs of more ranks: as predicted when they are replayed, and as long as the larger cluster truly takes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from graphlink.astra.ranks import judge, runs_of
from graphlink.engine.engines import RunsOn
from graphlink.errors import InputError, OutputError, UsageError
from graphlink.graph_model import EdgeKind, NodeType
from graphlink.replay.coupled import play_coupled
from graphlink.replay.folder import graph_files, load_groups
from graphlink.replay.matching import matched
from graphlink.replay.report import Known, report
from graphlink.replay.whatif import Changes
from graphlink.replay.workload import workload
from graphlink.run.library import link
from graphlink.run.options import Options
from graphlink.scale import make, play
from graphlink.scale.make import Wishes, scale
from tests.scale.clusters import DATA4, MIXED, PIPELINE4, Linked, graphs_of, step_ns
from tests.simulator.cluster_records import ClusterTraining
from tests.simulator.pipeline_records import PipelineTraining
from tests.simulator.pipelines import pipeline_run

ONE = RunsOn(1)
CHECK = Path(__file__).parents[3] / "shared" / "checks" / "graph_check"


def total_ns(folder: Path) -> int:
    graphs, groups = graphs_of(folder)
    work = workload(graphs)
    return play_coupled(work, matched(work, groups)).total_ns


def runs_to_its_end(folder: Path) -> bool:
    (run,) = report(graph_files(folder), "ranks", Known(load_groups(folder)), Changes(), together=True).runs
    return not run.stuck and all(rank.finished and rank.measured_ns is None for rank in run.ranks)


def errors_of(folder: Path) -> int:
    (run,) = runs_of(folder)
    return judge(run, None).errors


def conforms(graph: Path) -> str:
    """What the check of the contract finds in a graph; nothing where it is not there."""
    if not CHECK.exists():
        pytest.skip("no ../shared/checks here")
    ran = subprocess.run([sys.executable, str(CHECK), str(graph)], capture_output=True, text=True, check=False)
    return "" if ran.returncode == 0 else ran.stdout + ran.stderr


def test_what_does_not_fit_on_the_disk_is_refused_and_what_takes_long_is_announced(
    linked: Linked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(OutputError, match=r"40 graphs take about [\d.]+ GB, and 0\.0 GB are free"):
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1_000))
        scale(linked(DATA4), Wishes(data=40), tmp_path / "out", ONE, force=False)
    monkeypatch.undo()
    monkeypatch.setattr(make, "_WHILE_S", 0)
    scale(linked(DATA4), Wishes(data=5), tmp_path / "out", ONE, force=False)
    assert re.search(r"5 graphs take about 0\.0 GB and 0 min of a core", caplog.text)


def test_what_is_drawn_for_a_rank_at_once_is_what_is_drawn_node_by_node(
    linked: Linked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = scale(linked(DATA4), Wishes(data=6), tmp_path / "together", ONE, force=False)
    monkeypatch.setattr(play, "_AT_ONCE", 0)
    assert scale(linked(DATA4), Wishes(data=6), tmp_path / "each", ONE, force=False) == together


@pytest.mark.parametrize("wishes", [Wishes(data=4), Wishes(data=3, seed=None)], ids=["drawn", "exact"])
def test_copies_replay_as_predicted_and_run_to_the_end(linked: Linked, tmp_path: Path, wishes: Wishes) -> None:
    made = scale(linked(MIXED), wishes, tmp_path / "out", ONE, force=False)
    assert (made.ranks, len(graph_files(tmp_path / "out"))) == (4 * wishes.data, 4 * wishes.data)  # type: ignore[operator]
    assert total_ns(tmp_path / "out") == made.predicted_ns
    assert errors_of(tmp_path / "out") == 0
    assert runs_to_its_end(tmp_path / "out")


def test_as_many_ranks_as_recorded_are_the_recorded_ones(linked: Linked, tmp_path: Path) -> None:
    source = linked(MIXED)
    made = scale(source, Wishes(data=2), tmp_path / "out", ONE, force=False)
    assert made.predicted_ns == made.recorded_replayed_ns == total_ns(source)
    before, after = graphs_of(source)[0], graphs_of(tmp_path / "out")[0]
    for rank, graph in before.items():
        assert sorted(graph.strings) == sorted(after[rank].strings)
        for column in ("comm_size", "group", "comm_src", "comm_dst", "comm_tag"):
            assert sorted(getattr(graph, column).tolist()) == sorted(getattr(after[rank], column).tolist())
        kernel = ~graph.host & (graph.type == 4)
        other = ~after[rank].host & (after[rank].type == 4)
        assert sorted(graph.duration_ns[kernel].tolist()) == sorted(after[rank].duration_ns[other].tolist())
        assert np.array_equal(
            np.bincount(graph.edge_kind, minlength=7), np.bincount(after[rank].edge_kind, minlength=7)
        )


def test_graphs_of_copies_keep_the_contract(linked: Linked, tmp_path: Path) -> None:
    scale(linked(MIXED), Wishes(data=3), tmp_path / "out", ONE, force=False)
    for rank in (0, 5, 11):
        assert conforms(tmp_path / "out" / f"trace.{rank}.et") == ""
    graphs, _ = graphs_of(tmp_path / "out")
    for rank, graph in graphs.items():
        assert (graph.metadata.rank, graph.metadata.world_size) == (rank, 12)
        assert graph.metadata.made == "graphlink scale: from 8 ranks"
        assert graph.start_ns.min() == 0 and (np.diff(graph.start_ns) >= 0).all()
        assert (graph.source < graph.target).all() and EdgeKind.LAUNCH in graph.edge_kind
    collectives = [int((graph.type == NodeType.COMM_COLL).sum()) for graph in graphs.values()]
    assert {int(graph.id[0]) for graph in graphs.values()} == {12 * max(collectives)} != {0}


@pytest.mark.parametrize(
    "training", [DATA4, replace(MIXED, pipeline=1, microbatches=4)], ids=["data", "data and tensor"]
)
def test_a_step_of_16_ranks_is_predicted_from_4(linked: Linked, tmp_path: Path, training: ClusterTraining) -> None:
    larger = replace(training, data=16 // training.tensor)
    made = scale(linked(training), Wishes(data=larger.data), tmp_path / "out", ONE, force=False)
    assert made.predicted_ns / made.steps == pytest.approx(step_ns(larger), rel=0.03)


@pytest.mark.parametrize(("schedule", "microbatches"), [("1F1B", 4), ("1F1B", 12), ("GPipe", 4)])
def test_a_step_of_16_stages_is_predicted_from_4(
    linked: Linked, tmp_path: Path, schedule: str, microbatches: int
) -> None:
    training = replace(PIPELINE4, schedule=schedule)
    larger = replace(training, pipeline=16, microbatches=microbatches)
    made = scale(linked(training), Wishes(stages=16, microbatches=microbatches), tmp_path / "out", ONE, force=False)
    assert made.predicted_ns == pytest.approx(step_ns(larger), rel=0.03)
    assert made.pipeline is not None and made.pipeline.schedule == schedule
    assert made.pipeline.played_makespan_ns == pytest.approx(made.pipeline.recorded_makespan_ns, rel=0.01)
    assert total_ns(tmp_path / "out") == made.pipeline.makespan_ns
    assert errors_of(tmp_path / "out") == 0 and runs_to_its_end(tmp_path / "out")


@pytest.mark.parametrize("schedule", ["1F1B", "ZB-H1"])
def test_ranges_that_were_recorded_tell_forwards_and_backwards(tmp_path: Path, schedule: str) -> None:
    training = PipelineTraining(schedule, stages=3, microbatches=6, transfer_ns=50_000, visible=True, jitter_ns=100_000)
    pipeline_run(training).write(tmp_path / "traces")
    link(tmp_path / "traces", out=tmp_path / "recorded", options=Options(timeline="none"))
    made = scale(tmp_path / "recorded", Wishes(stages=6, microbatches=18), tmp_path / "out", ONE, force=False)
    assert made.pipeline is not None and made.pipeline.told_by == "the ranges of the recording"
    truth = pipeline_run(replace(training, stages=6, microbatches=18)).makespan_ns()
    assert made.pipeline.makespan_ns == pytest.approx(truth, rel=0.01)
    assert errors_of(tmp_path / "out") == 0 and runs_to_its_end(tmp_path / "out")


def test_middle_stages_are_copied_and_the_ends_keep_their_role(linked: Linked, tmp_path: Path) -> None:
    made = scale(linked(PIPELINE4), Wishes(stages=7), tmp_path / "out", ONE, force=False)
    assert made.pipeline is not None and made.pipeline.source == [0, 1, 2, 1, 2, 1, 3]
    for rank, graph in graphs_of(tmp_path / "out")[0].items():
        moved = graph.type >= 5
        assert set(graph.comm_size[moved].tolist()) == {PIPELINE4.activation_bytes}  # as recorded
        assert (graph.metadata.rank, graph.metadata.world_size, graph.metadata.made) == (
            rank,
            7,
            "graphlink scale: from 4 ranks",
        )
    assert conforms(tmp_path / "out" / "trace.3.et") == ""


@pytest.mark.parametrize(
    ("training", "wishes", "error", "said"),
    [
        (PIPELINE4, Wishes(data=8), InputError, "no data parallel ranks"),
        (DATA4, Wishes(stages=8), InputError, "no pipeline parallel ranks"),
        (DATA4, Wishes(data=2), UsageError, "4 were recorded"),
        (PIPELINE4, Wishes(stages=3), UsageError, "4 stages were recorded"),
        (MIXED, Wishes(stages=4), InputError, "none between the first and the last"),
        (MIXED, Wishes(data=4, microbatches=4), UsageError, "goes with neither"),
        (MIXED, Wishes(data=4, layout="tensor=2,data=4"), InputError, "sends to rank"),
    ],
)
def test_what_cannot_be_derived_is_refused_and_nothing_is_written(
    linked: Linked, tmp_path: Path, training: ClusterTraining, wishes: Wishes, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        scale(linked(training), wishes, tmp_path / "out", ONE, force=False)
    assert not (tmp_path / "out").exists()


def test_what_was_made_is_not_made_more(linked: Linked, tmp_path: Path) -> None:
    scale(linked(DATA4), Wishes(data=5), tmp_path / "out", ONE, force=False)
    with pytest.raises(InputError, match="was made, not recorded"):
        scale(tmp_path / "out", Wishes(data=8), tmp_path / "more", ONE, force=False)


def test_one_rank_tells_nothing_of_others(linked: Linked, tmp_path: Path) -> None:
    (tmp_path / "trace.0.et").write_bytes((linked(DATA4) / "trace.0.et").read_bytes())
    with pytest.raises(InputError, match="graph of one rank"):
        scale(tmp_path, Wishes(data=8), tmp_path / "out", ONE, force=False)


def test_a_run_without_one_of_its_ranks_is_refused(linked: Linked, tmp_path: Path) -> None:
    source = linked(DATA4)
    for name in ("trace.0.et", "trace.1.et", "trace.3.et", "comm_group.json"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    with pytest.raises(InputError, match="graphs of 3 ranks of 4"):
        scale(tmp_path, Wishes(data=8), tmp_path / "out", ONE, force=False)


def test_an_earlier_run_is_replaced_with_force_alone(linked: Linked, tmp_path: Path) -> None:
    scale(linked(DATA4), Wishes(data=6), tmp_path / "out", ONE, force=False)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(OutputError, match="holds the outputs of an earlier run"):
        scale(linked(DATA4), Wishes(data=5), tmp_path / "out", ONE, force=False)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    scale(linked(DATA4), Wishes(data=5), tmp_path / "out", ONE, force=True)
    assert len(graph_files(tmp_path / "out")) == 5


def test_a_write_that_fails_leaves_what_was_there(
    linked: Linked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale(linked(DATA4), Wishes(data=5), tmp_path / "out", ONE, force=False)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("graphlink.scale.copies.write_changed", full)
    with pytest.raises(OutputError, match="No space left on device"):
        scale(linked(DATA4), Wishes(data=6), tmp_path / "out", ONE, force=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "training",
    [
        ClusterTraining(data=4, tensor=1, seed=1),
        ClusterTraining(data=4, tensor=1, seed=2, jitter=0.5, layers=4),
        ClusterTraining(data=4, tensor=1, seed=3, jitter=0.3, steps=6),
        ClusterTraining(data=2, tensor=2, seed=4, microbatches=4),
        ClusterTraining(data=4, tensor=1, seed=5, expert=2, layers=4),
        ClusterTraining(data=4, tensor=2, seed=6, sequence_parallel=True, twin=True),
        ClusterTraining(data=4, tensor=1, seed=7, jitter=0.5, events_per_rank=3_000),
    ],
)
@pytest.mark.parametrize("ranks", [16, 64])
def test_steps_of_16_and_64_ranks_are_predicted_from_4(
    linked: Linked, tmp_path: Path, training: ClusterTraining, ranks: int, seed: int
) -> None:
    larger = replace(training, data=ranks)
    made = scale(linked(training), Wishes(data=ranks, seed=seed), tmp_path / "out", ONE, force=False)
    assert made.predicted_ns / made.steps == pytest.approx(step_ns(larger), rel=0.03)
    assert total_ns(tmp_path / "out") == made.predicted_ns


@pytest.mark.long
@pytest.mark.parametrize(("stages", "microbatches"), [(16, 8), (16, 32), (64, 8), (64, 16)])
@pytest.mark.parametrize(
    "training", [PIPELINE4, replace(PIPELINE4, schedule="GPipe", seed=1), replace(PIPELINE4, pipeline=3, seed=2)]
)
def test_steps_of_16_and_64_stages_are_predicted_from_4(
    linked: Linked, tmp_path: Path, training: ClusterTraining, stages: int, microbatches: int
) -> None:
    larger = replace(training, pipeline=stages, microbatches=microbatches)
    made = scale(linked(training), Wishes(stages=stages, microbatches=microbatches), tmp_path / "out", ONE, force=False)
    assert made.predicted_ns == pytest.approx(step_ns(larger), rel=0.03)
