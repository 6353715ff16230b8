"""``graphlink idle`` on the demo and on runs without device ops."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphlink.cli import main

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "fixtures" / "demo"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "out"
    assert (
        main(
            [
                "--et",
                str(DEMO / "et_0.json"),
                "--kineto",
                str(DEMO / "kineto_0.json"),
                "-o",
                str(out),
                "--quiet",
                "--no-timeline",
            ]
        )
        == 0
    )
    return out


def test_it_prints_the_devices_their_causes_and_the_longest_intervals(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["idle", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "rank 0, device 0: idle " in text
    assert "longest" in text


def test_data_has_the_figures_of_the_summary_and_of_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["idle", str(folder), "--json", "-", "--top", "3"]) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    whole = json.loads((folder / "summary.json").read_bytes())["ranks"][0]
    file = json.loads((folder / "idle.0.json").read_bytes())
    assert all(device.pop("over_time") for device in whole["gpu"])  # the intervals of the file tell more
    assert rank["gpu"] == whole["gpu"] == file["gpu"]
    assert rank["steps"] == whole["steps"] == file["steps"]
    assert len(rank["longest"]) == 3
    for device, causes in zip(rank["gpu"], rank["causes"], strict=True):
        assert {one["cause"]: one["ns"] for one in causes} == device["idle_by_cause_ns"]
        assert sum(one["intervals"] for one in causes) == sum(
            entry["device"] == device["device"] for entry in file["idle"]
        )


def test_a_folder_without_the_files_and_a_rank_that_is_not_there_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["idle", str(tmp_path)]) == 1
    assert main(["idle", str(folder), "--rank", "7"]) == 1
    assert "holds no idle.<rank>.json of rank 7" in capsys.readouterr().err


def test_a_run_without_device_ops_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 5}]
    (tmp_path / "kineto_0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": rows}))
    assert main(["--kineto", str(tmp_path / "kineto_0.json"), "-o", str(tmp_path / "out"), "--quiet"]) == 0
    assert main(["idle", str(tmp_path / "out")]) == 0
    assert "rank 0: no device ops were recorded; graphlink critical-path and " in capsys.readouterr().out


def test_an_interval_names_the_op_and_the_stream_on_which_it_began(folder: Path) -> None:
    entries = json.loads((folder / "idle.0.json").read_bytes())["idle"]
    rows = json.loads((DEMO / "kineto_0.json").read_bytes())["traceEvents"]
    recorded = {(row["name"], row["args"].get("stream")) for row in rows if "args" in row}
    assert entries and {(entry["op"], entry["stream"]) for entry in entries} <= recorded
