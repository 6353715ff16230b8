"""What ranks lack together, on simulated clusters and pipelines whose truth is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from graphlink.doctor.diagnose import ranks_lacking
from graphlink.doctor.records import merged
from graphlink.run.records import RankRows
from graphlink.wings import Parts
from tests.doctor.diagnosed import diagnosed
from tests.ranks.test_clocks import host_rows
from tests.ranks.true_runs import MS, Off, Simulated, training
from tests.simulator import (
    ClusterTraining,
    Differs,
    Dropped,
    Fault,
    LateStart,
    MissingRank,
    PipelineTraining,
    ProfilerOverhead,
    ProfilerStart,
    cluster_run,
    pipeline_run,
)

SMALL = ClusterTraining(steps=2, layers=1)


@pytest.mark.parametrize(
    ("fault", "findings"),
    [
        (None, set()),
        (MissingRank(2), {"missing-ranks"}),
        (ProfilerStart(5 * MS), {"began-apart"}),
        (Dropped(1, "data", 1), {"unmatched-communication", "launches-without-ops"}),
        (LateStart(1, share=0.3), {"unmatched-communication", "event-records-outside"}),
        (Differs(1, "data", 1), {"collectives-differ"}),
        (ProfilerOverhead(1, 0, 2 * MS), {"profiler-overhead", "first-meeting-late"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_fault_of_a_run_is_found_and_nothing_else(fault: Fault | None, findings: set[str], tmp_path: Path) -> None:
    cluster_run(SMALL, [fault] if fault else []).write(tmp_path, et=True)
    assert set(diagnosed(tmp_path)) == findings


def test_the_figures_of_a_run_are_true(tmp_path: Path) -> None:
    cluster_run(SMALL, [ProfilerStart(5 * MS)]).write(tmp_path / "apart", et=True)
    assert diagnosed(tmp_path / "apart")["began-apart"].figures["spread_ns"] == 5 * MS
    run = cluster_run(SMALL, [LateStart(1, share=0.3)])
    run.write(tmp_path / "late", et=True)
    missing = diagnosed(tmp_path / "late")["unmatched-communication"]
    assert missing.figures == {"ops": sum(entry.count for entry in run.expected.unmatched)}
    cluster_run(SMALL, [MissingRank(2)]).write(tmp_path / "missing", et=True)
    assert diagnosed(tmp_path / "missing")["missing-ranks"].told == ["rank 2"]


def test_without_seq_ranks_are_matched_by_order(tmp_path: Path) -> None:
    run = cluster_run(SMALL)
    run.write(tmp_path, seq=False)
    met = len(run.meetings.kind)
    assert diagnosed(tmp_path)["no-seq"].figures == {"guessed": met, "meetings": met}


def test_a_rank_whose_communication_is_unknown_is_named(tmp_path: Path) -> None:
    cluster_run(SMALL).write(tmp_path, et=True, comm_args=False)
    (tmp_path / "et_1.json").unlink()
    found = diagnosed(tmp_path)
    assert set(found) == {"silent-ranks", "comm-unknown", "no-et", "no-shapes"}
    assert [finding.ranks for finding in found.values()] == [[1]] * len(found)


def rows(run: Simulated) -> Sequence[RankRows]:
    ranks, _ = run.record()
    used = [tuple(comms.groups[k] for k in np.unique(comms.group).tolist()) for comms in ranks]
    return [RankRows(comms, groups, Parts(), len(comms.node)) for comms, groups in zip(ranks, used, strict=True)]


def test_clocks_that_nothing_ties_are_named() -> None:
    run = Simulated(5, training(np.random.default_rng(10), [(0, 1, 2), (3, 4)]))
    found = {f.name: f for f in merged(ranks_lacking(rows(run)))}
    assert found["clocks-untied"].ranks == [3, 4]
    assert found["clocks-untied"].figures == {"ranks": 2}


def test_clocks_that_cannot_be_right_are_told() -> None:
    run = Simulated(3, host_rows(np.random.default_rng(14), 200), {2: Off(40 * MS)})
    found = {f.name: f for f in merged(ranks_lacking(rows(run)))}
    assert found["clocks-doubtful"].told[0].startswith("clocks are shifted so that")


def test_ranges_without_names_are_inferred(tmp_path: Path) -> None:
    pipeline = PipelineTraining("1F1B", stages=2, microbatches=4, transfer_ns=100_000, visible=True)
    pipeline_run(pipeline).write(tmp_path, et=True)
    assert set(diagnosed(tmp_path)) == set()
    for path in tmp_path.glob("kineto_*.json"):
        document = json.loads(path.read_text())
        document["traceEvents"] = [e for e in document["traceEvents"] if not e["name"].startswith("PP:")]
        path.write_text(json.dumps(document))
    found = diagnosed(tmp_path)
    assert set(found) == {"no-pipeline-ranges"}
    assert found["no-pipeline-ranges"].figures == {"ranges": 2 * 2 * 4}
    assert "record_function(f'PP:{stage}F{microbatch}')" in found["no-pipeline-ranges"].record


def test_what_is_missing_of_a_pipeline_is_told_as_the_job_tells_it(tmp_path: Path) -> None:
    pipeline_run(PipelineTraining("1F1B", stages=2, microbatches=4, transfer_ns=100_000, visible=True)).write(
        tmp_path, et=True
    )
    for name in ("kineto_1.json", "et_1.json"):
        (tmp_path / name).unlink()
    found = diagnosed(tmp_path)
    assert set(found) == {"missing-ranks", "pipeline-doubts"}
    assert found["pipeline-doubts"].told == ["ranks that these exchange activations with were not recorded: 1"]
