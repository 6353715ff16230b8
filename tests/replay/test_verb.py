"""``graphlink replay`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphlink.cli import main
from graphlink.emit.chakra import Heading, write_et
from graphlink.emit.groups import assign
from graphlink.run import Inputs, Options, prepare

DEMO = Path(__file__).parents[2] / "fixtures" / "demo"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    prepared = prepare(Inputs(kineto=DEMO / "kineto_0.json", et=DEMO / "et_0.json"), Options())
    graph = prepared.built.graph
    with (folder / "trace.0.et").open("wb") as file:
        ids = assign({0: prepared.plan.groups})[0]
        write_et(file, graph, prepared.linked, prepared.comm, prepared.plan, ids, Heading(0, 1, graph.epoch_ns))
    return folder


@pytest.mark.parametrize("machine", ["ideal", "astra-sim", "ranks"])
def test_each_machine(out: Path, machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(out), "--machine", machine]) == 0
    text = capsys.readouterr().out
    assert "measured" in text and "(self-consistency)" in text and "host gaps" in text and "what if" not in text


def test_what_if_as_text_and_data(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "r.json"
    changes = ["--scale", "kernel=0.5", "--remove-sync", "all", "--launch-cost", "-1.5"]
    assert main(["replay", str(out), *changes, "--json", str(data)]) == 0
    text = capsys.readouterr().out
    assert "before" in text and "not answered" in text and "polls" in text and "launches -1.5 us each" in text
    report = json.loads(data.read_bytes())
    (run,), (what_if,) = report["runs"], report["what_if"]
    assert run["ranks"][0]["replayed_ns"] == run["total_ns"] == what_if["before_ns"] > what_if["after_ns"] == what_if["path"]["length_ns"]
    assert len(run["drifts"]) <= 10 and abs(run["ranks"][0]["error_pct"]) < 0.2
    assert sum(what_if["path"]["work_ns"].values()) == what_if["path"]["length_ns"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["{out}/nothing"], 1, "no such folder"),
        (["{out}", "--rank", "7"], 1, "no graph of rank 7"),
        (["{out}", "--scale", "kernel"], 2, "names no sort"),
        (["{out}", "--remove-sync", "aten::none"], 2, "no wait of that id or name"),
        (["{out}", "--together"], 2, "--machine ranks"),
        (["{empty}"], 1, "holds no graphs"),
    ],
)
def test_refusals(out: Path, tmp_path: Path, arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", *(a.format(out=out, empty=tmp_path) for a in arguments)]) == status
    assert said in capsys.readouterr().err


def test_a_broken_table_of_groups(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.0.et").write_bytes((out / "trace.0.et").read_bytes())
    (tmp_path / "comm_group.json").write_text("[1]")
    assert main(["replay", str(tmp_path)]) == 1
    assert "communicators" in capsys.readouterr().err
