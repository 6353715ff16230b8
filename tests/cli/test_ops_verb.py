"""``graphlink ops`` on the demo and on runs without device ops."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import graphlink
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


def test_it_prints_operations_tensor_cores_and_what_is_left_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ops", str(folder), "--top", "2"]) == 0
    text = capsys.readouterr().out
    assert "rank 0: " in text
    assert "aten::linear" in text
    assert "in ops that could use them, all their kernels counted: used " in text
    assert "more operations with " in text


def test_whole_names_are_printed_on_demand(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernels = [
        one["kernels"][0] for one in json.loads((folder / "ops.0.json").read_bytes())["operations"] if one["kernels"]
    ]
    longest = max(kernels, key=lambda kernel: len(kernel["whole_name"]))
    assert longest["name"] != longest["whole_name"]
    assert main(["ops", str(folder), "--top", "99"]) == 0
    assert longest["whole_name"] not in capsys.readouterr().out
    assert main(["ops", str(folder), "--top", "99", "--whole-names"]) == 0
    assert longest["whole_name"] in capsys.readouterr().out


def test_data_are_the_first_of_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", str(folder), "--json", "-", "--top", "3"]) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    file = json.loads((folder / "ops.0.json").read_bytes())
    assert rank["operations"] == file["operations"][:3]
    assert rank["others"] == len(file["operations"]) - 3
    assert rank["others_device_ns"] == sum(one["device_ns"] for one in file["operations"][3:])
    assert rank["device_ns"] == sum(one["device_ns"] for one in file["operations"])


def test_the_library_has_a_row_an_operation(folder: Path) -> None:
    pytest.importorskip("pandas")
    table = graphlink.open(folder).operations()
    file = json.loads((folder / "ops.0.json").read_bytes())
    assert table["path"].tolist() == ["/".join(one["path"]) for one in file["operations"]]
    assert table["device_ns"].sum() == file["device_ns"]
    assert table["gain_ns"].max() == max(one["gain_ns"] or 0 for one in file["operations"])


def test_a_folder_without_the_files_and_a_rank_that_is_not_there_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ops", str(tmp_path)]) == 1
    assert main(["ops", str(folder), "--rank", "7"]) == 1
    assert "holds no ops.<rank>.json of rank 7, but of 0" in capsys.readouterr().err


def test_a_run_without_device_ops_has_its_host_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 5}]
    (tmp_path / "kineto_0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": rows}))
    assert main(["--kineto", str(tmp_path / "kineto_0.json"), "-o", str(tmp_path / "out"), "--quiet"]) == 0
    assert main(["ops", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "rank 0: no device op; host 0.005 ms" in text
    assert "aten::mm" in text
