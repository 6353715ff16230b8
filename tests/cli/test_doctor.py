from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from graphlink.doctor.records import Diagnosis
from tests.cli.conftest import Ran
from tests.doctor.recordings import write_run

Run = Callable[..., Ran]
ROOT = Path(__file__).parents[2]


def test_a_whole_recording_lacks_nothing(graphlink: Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    ran = graphlink("doctor", folder)
    assert (ran.status, ran.err, ran.out) == (0, "", f"{folder}: ranks 0-1: nothing is missing\n")


def test_the_demo_lacks_its_other_rank_only(graphlink: Run) -> None:
    ran = graphlink("doctor", ROOT / "fixtures" / "demo", "--json", "-")
    assert [(f["name"], f["figures"]) for f in json.loads(ran.out)["findings"]] == [
        ("missing-ranks", {"missing": 1, "world": 2})
    ]


def test_a_finding_says_what_it_costs_and_the_line_that_records_it(graphlink: Run, tmp_path: Path) -> None:
    ran = graphlink("doctor", write_run(tmp_path / "run", cuda_sync=False))
    assert ran.status == 0
    head, _, block = ran.out.partition("\n\n")
    assert head.endswith("run: ranks 0-1: 1 inferred")
    lines = block.splitlines()
    assert lines[0] == "inferred: no cuda_sync rows [no-cuda-sync]"
    assert [line.split()[0] for line in lines[1:4]] == ["costs", "of", "record"]
    assert "enable_cuda_sync_events=True" in lines[3]
    assert lines[4].strip() == "(graphlink.capture does)"


def test_findings_of_some_ranks_name_them(graphlink: Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "et_1.json").unlink()
    ran = graphlink("doctor", folder)
    assert "lost: no execution trace (rank 1) [no-et]" in ran.out
    assert "without an execution trace" not in ran.out  # said once


def test_json_says_the_same(graphlink: Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", cuda_sync=False, ranks=(0,))
    told = msgspec.json.decode(graphlink("doctor", folder, "--json", "-").out, type=Diagnosis)
    text = graphlink("doctor", folder).out
    assert (told.subject, told.ranks) == ([str(folder)], [0])
    assert [f.name for f in told.findings] == ["missing-ranks", "no-cuda-sync"]
    for finding in told.findings:
        assert f"{finding.level}: {finding.lacks}" in text
        assert finding.costs in text
        assert finding.record in text


def test_files_are_told_by_content_and_paired(graphlink: Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    files = []
    for k, name in enumerate(("et_1", "kineto_0", "et_0", "kineto_1")):
        files.append((folder / f"{name}.json").rename(tmp_path / f"file{k}.rank{name[-1]}.bin"))
    assert graphlink("doctor", *files).out.endswith(": ranks 0-1: nothing is missing\n")


def test_an_execution_trace_alone_makes_no_graph(graphlink: Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    told = json.loads(graphlink("doctor", folder / "et_0.json", "--json", "-").out)
    assert [(f["name"], f["files"]) for f in told["findings"]] == [("no-kineto", [str(folder / "et_0.json")])]


def test_a_pair_of_two_runs_is_a_finding_and_no_error(graphlink: Run, tmp_path: Path) -> None:
    def other(document: dict[str, list[dict[str, str]]]) -> None:
        for node in document["nodes"]:
            node["name"] = node["name"].replace("aten::", "aten::other_")

    ran = graphlink("doctor", write_run(tmp_path / "run", et=other, ranks=(0,)))
    assert (ran.status, ran.err) == (0, "")
    assert "lost: the execution trace belongs to another run than the Kineto trace [et-of-other-run]" in ran.out


def test_what_pairing_passes_over_is_told(graphlink: Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "kineto_9.json").write_text("[1, 2]")
    told = json.loads(graphlink("doctor", folder, "--json", "-").out)
    assert [f["name"] for f in told["findings"]] == ["left-aside"]
    assert "kineto_9.json" in told["findings"][0]["told"][0]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("graph.et", b"\x0c\x0a\x050.0.4\x12\x03\x0a\x01a", "graphlink check"),
        ("notes.txt", b"hello", "is neither a Kineto trace"),
        ("cut.json", b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", ', "cut"),
        ("packed.zip", b"PK\x03\x04" + bytes(30), "is a zip archive"),
    ],
)
def test_what_is_no_recording_is_refused_in_one_message(
    name: str, content: bytes, said: str, graphlink: Run, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    ran = graphlink("doctor", path)
    assert (ran.status, ran.out) == (1, "")
    assert said in ran.err
    assert ran.err.startswith(f"graphlink: {path}: ")
    assert len(ran.err.splitlines()) <= 5


def test_a_folder_with_nothing_but_an_execution_trace_lacks_the_kineto_trace(graphlink: Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", ranks=(0,))
    whole = graphlink("doctor", folder)
    assert (whole.status, "no-kineto" in whole.out) == (0, False)
    (folder / "kineto_0.json").unlink()
    (folder / "capture.0.json").write_text("{}")
    ran = graphlink("doctor", folder)
    assert (ran.status, "no-kineto" in ran.out) == (0, True), ran.err


def test_two_recordings_of_a_rank_are_refused(graphlink: Run, tmp_path: Path) -> None:
    folder, other = write_run(tmp_path / "run"), write_run(tmp_path / "other", ranks=(0,))
    ran = graphlink("doctor", folder, other / "kineto_0.json")
    assert (ran.status, ran.out) == (1, "")
    assert "is of rank 0, as is" in ran.err


def test_what_is_not_there_is_an_error(graphlink: Run, tmp_path: Path) -> None:
    assert graphlink("doctor", tmp_path / "none.json").status == 1
    assert graphlink("doctor", tmp_path).status == 1
    assert graphlink("doctor").status == 2
    assert graphlink("doctor", tmp_path, "--env").status == 2
    assert graphlink("doctor", "s3://bucket/traces").status == 2


def test_the_environment_is_told_before_a_recording(graphlink: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_PROFILER_PLUGIN", "example")
    monkeypatch.delenv("NCCL_PROFILE_EVENT_MASK", raising=False)
    ran = graphlink("doctor", "--env")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith("python 3.")
    assert "; Kineto in PyTorch" in ran.out.partition(": ")[0]
    assert "[env-nccl-mask]" in ran.out
    told = json.loads(graphlink("doctor", "--env", "--json", "-").out)
    assert {f["ranks"] == [] for f in told["findings"]} == {True}


def test_names_of_files_cannot_steer_a_terminal(graphlink: Run, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run\x1b[31m", ranks=(0,))
    assert "\x1b" not in graphlink("doctor", folder).out


def test_a_folder_of_outputs_stands_for_the_recordings_it_was_made_from(traces, graphlink, tmp_path):
    out, copy = tmp_path / "out", tmp_path / "kineto_0.json"
    copy.write_bytes((traces / "kineto_0.json").read_bytes())
    assert graphlink("--kineto", copy, "--out", out, "--sync", "cuda", "--no-timeline").status == 0
    of_outputs, of_recording = graphlink("doctor", out), graphlink("doctor", copy)
    assert of_outputs.status == 0
    assert of_outputs.out.partition(": ")[2] == of_recording.out.partition(": ")[2]
    copy.unlink()
    gone = graphlink("doctor", out)
    assert gone.status == 1
    assert f"at: {copy}" in gone.err
    assert "are not found from here" in gone.err
