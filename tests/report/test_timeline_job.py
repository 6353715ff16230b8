"""The timeline as a file of the main job."""

from __future__ import annotations

from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from graphlink import output_names
from graphlink.cli import main
from graphlink.errors import OutputError
from graphlink.output_names import SUMMARY as NAME
from graphlink.report import timeline
from graphlink.report.summary import load
from tests.simulator.et import write_et
from tests.simulator.kineto import write_kineto
from tests.simulator.machine import run
from tests.simulator.programs import Training, training_program


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    for rank in (0, 1):
        execution = run(training_program(1, Training(steps=1, layers=2, ranks=2, rank=rank)))
        write_et(execution, folder / f"et_{rank}.json")
        write_kineto(execution, folder / f"kineto_{rank}.json")
    return folder


def processes(path: Path) -> list[str]:
    packets = pb.Trace.FromString(path.read_bytes()).packet
    return [p.track_descriptor.process.process_name for p in packets if p.track_descriptor.HasField("process")]


@pytest.mark.usefixtures("rank_processes")
def test_all_ranks_are_in_one_file_however_many_processes_made_it(traces: Path, tmp_path: Path) -> None:
    outs = [tmp_path / name for name in ("one by one", "at once")]
    for jobs, out in enumerate(outs, start=1):
        assert main([str(traces), "--out", str(out), "-q", "--jobs", str(jobs)]) == 0
    one, other = ((out / output_names.TIMELINE).read_bytes() for out in outs)
    assert one == other
    assert processes(outs[0] / output_names.TIMELINE) == ["rank 0", "rank 1"]
    assert not [p.name for out in outs for p in out.iterdir() if p.suffix == ".part"]


def test_machines_from_the_names_of_files(tmp_path: Path) -> None:
    """Four recordings of two machines, whose names say which."""
    for rank in range(4):
        execution = run(training_program(1, Training(steps=1, layers=2, ranks=4, rank=rank)))
        write_kineto(execution, tmp_path / f"gpt_{rank // 2}_{rank % 2}.json")
    assert main([str(tmp_path), "--out", str(tmp_path / "out"), "-q", "--jobs", "1"]) == 0
    assert processes(tmp_path / "out" / output_names.TIMELINE) == [
        "node 0 rank 0",
        "node 0 rank 1",
        "node 1 rank 2",
        "node 1 rank 3",
    ]
    inputs = [rank.inputs for rank in load(tmp_path / "out" / NAME).ranks]
    assert [(one.node, one.local_rank) for one in inputs] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_the_file_is_the_parts_of_its_ranks_one_after_the_other(tmp_path: Path) -> None:
    for rank, part in enumerate((b"first", b"second")):
        (tmp_path / timeline.part_name(rank)).write_bytes(part)
    assert timeline.join(tmp_path, [0, 1]) == output_names.TIMELINE
    assert (tmp_path / output_names.TIMELINE).read_bytes() == b"firstsecond"
    assert [p.name for p in tmp_path.iterdir()] == [output_names.TIMELINE]


def test_it_can_be_left_out_and_can_hold_the_replay(traces: Path, tmp_path: Path) -> None:
    for jobs in (["--kineto", str(traces / "kineto_0.json")], [str(traces), "--jobs", "1"]):
        without, beside = tmp_path / f"without{len(jobs)}{jobs[0][-5:]}", tmp_path / f"beside{len(jobs)}{jobs[0][-5:]}"
        assert main([*jobs, "--out", str(without), "-q", "--no-timeline"]) == 0
        assert not [p.name for p in without.iterdir() if "timeline" in p.name]
        assert output_names.TIMELINE not in (without / "summary.json").read_text()
        assert main([*jobs, "--out", str(beside), "-q", "--timeline", "both"]) == 0
        assert processes(beside / output_names.TIMELINE)[:2] == ["rank 0", "rank 0 replayed"]
        assert f'"{output_names.TIMELINE}"' in (beside / "summary.json").read_text()


def test_one_or_the_other(traces: Path, tmp_path: Path) -> None:
    given = [
        "--kineto",
        str(traces / "kineto_0.json"),
        "--out",
        str(tmp_path / "out"),
        "--no-timeline",
        "--timeline",
        "both",
    ]
    assert main(given) == 2


def test_a_part_that_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / timeline.part_name(0)).write_bytes(b"")
    with pytest.raises(OutputError, match="cannot be written"):
        timeline.join(tmp_path, [0, 1])
