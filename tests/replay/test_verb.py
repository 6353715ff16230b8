"""``graphlink replay`` as a user runs it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from graphlink.cli import main
from graphlink.graph import target
from graphlink.graph.write_et import write_et
from graphlink.ranks.group_ids import assign
from graphlink.run.job import Inputs, Options, prepare
from tests.astra.et_files import coll, node, recv, send, written

DEMO = Path(__file__).parents[2] / "fixtures" / "demo"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    prepared = prepare(Inputs(kineto=DEMO / "kineto_0.json", et=DEMO / "et_0.json"), Options())
    graph = prepared.built.graph
    with (folder / "trace.0.et").open("wb") as file:
        ids = assign({0: prepared.plan.groups})[0]
        write_et(file, target.written(graph.of_rank(0, 1), prepared.comm, prepared.plan, ids))
    return folder


@pytest.mark.parametrize("machine", ["ideal", "astra-sim", "ranks", "coupled"])
def test_each_machine(out: Path, machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(out), "--machine", machine]) == 0
    text = capsys.readouterr().out
    assert "measured" in text and "(self-consistency)" in text and "what if" not in text


def test_what_if_as_text_and_data(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "r.json"
    changes = ["--scale", "kernel=0.5", "--remove-sync", "all", "--launch-cost", "-1.5"]
    assert main(["replay", str(out), *changes, "--json", str(data)]) == 0
    text = capsys.readouterr().out
    assert "before" in text and "launches -1.5 us each" in text
    report = json.loads(data.read_bytes())
    (run,), (what_if,) = report["runs"], report["what_if"]
    assert (
        run["ranks"][0]["replayed_ns"]
        == run["total_ns"]
        == what_if["before_ns"]
        > what_if["after_ns"]
        == what_if["path"]["length_ns"]
    )
    assert len(run["drifts"]) <= 10 and abs(run["ranks"][0]["error_pct"]) < 0.2
    assert sum(what_if["path"]["work_ns"].values()) == what_if["path"]["length_ns"]


def test_data_on_standard_output_stands_alone(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["replay", str(out), "--json", "-"]) == 0
    printed = capsys.readouterr().out
    assert main(["replay", str(out), "--json", "r.json"]) == 0
    assert json.loads(printed)["runs"] and printed == Path("r.json").read_text()
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["r.json"]


@pytest.mark.parametrize("machine", ["ideal", "astra-sim", "ranks", "coupled"])
def test_a_graph_without_times_is_compared_with_nothing(
    tmp_path: Path, machine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "r.json"
    written(tmp_path, [node(0), node(1, data=[0])])
    assert main(["replay", str(tmp_path), "--machine", machine, "--json", str(data)]) == 0
    text = capsys.readouterr().out
    assert "rank 0: no recorded times, replayed 0.010 ms, 2 nodes" in text and "self-consistency" not in text
    (rank,) = json.loads(data.read_bytes())["runs"][0]["ranks"]
    assert (rank["measured_ns"], rank["error_pct"], rank["finished"]) == (None, None, True)
    timed = node(1, data=[0])
    timed.start_time_micros = 5
    written(tmp_path, [node(0), timed])
    assert main(["replay", str(tmp_path), "--machine", machine]) == 0
    assert "measured 0.010 ms, replayed 0.010 ms, +0.000 % (self-consistency)" in capsys.readouterr().out


def test_dependencies_that_are_none_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, [node(0), node(1, data=[0, 1]), node(2, data=[1, 9])], [node(0), node(0)])
    assert main(["replay", str(tmp_path), "--machine", "ideal"]) == 0
    assert "1 rank: graphlink check: 2 errors of ids and dependencies" in capsys.readouterr().out


def test_a_rank_that_does_not_finish_has_no_error_and_no_gain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "r.json"
    first = [node(0, start_ns=0), recv(1, [0], comm_src=1), send(2, [1], comm_dst=1)]
    written(tmp_path, first, [node(0, start_ns=0), recv(1, [0]), send(2, [1], comm_dst=0)])
    assert main(["replay", str(tmp_path), "--machine", "ranks", "--scale", "kernel=0.5", "--json", str(data)]) == 1
    text = capsys.readouterr().out
    assert "replayed until nothing could run, at 0.005 ms" in text and "rank 0 does not finish" in text
    assert "self-consistency" not in text and "50.00 %" not in text
    report = json.loads(data.read_bytes())
    assert [r["error_pct"] for r in report["runs"][0]["ranks"]] == [None, None] and report["what_if"][0][
        "gain_pct"
    ] is None


def test_ranks_that_cannot_be_replayed_together_are_replayed_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "r.json"
    written(
        tmp_path, [node(0, start_ns=0), recv(1, [0], comm_src=1)], [node(0, start_ns=0), node(1, data=[0])]
    )  # rank 1 never sends

    def replay(*more: str) -> tuple[int, dict[str, Any]]:
        status = main(["replay", str(tmp_path), "--json", str(data), *more])
        return status, json.loads(data.read_bytes())

    (status, found), text = replay(), capsys.readouterr().out
    assert (status, found["machine"], [r["stuck"] for r in found["runs"]]) == (0, "ideal", [[], []])
    assert "rank 0 would wait for ever in node 1 (op1) for a send from rank 1 that is not there" in found["why_alone"]
    assert f"each rank alone, since {found['why_alone']}" in text
    assert found["runs"] == replay("--machine", "ideal")[1]["runs"]
    capsys.readouterr()
    assert replay("--scale", "kernel=0.5")[0] == 0
    assert found["why_alone"] in capsys.readouterr().out.split("\n\n")[0]  # with the gains
    for named in (("--machine", "coupled"), ("--together",)):
        status, found = replay(*named)
        assert (status, found["machine"], "why_alone" in found) == (1, "coupled", False)


def test_the_gain_comes_first_and_the_recording_with_v(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def replay(*more: str) -> str:
        assert main(["replay", str(out), *more]) == 0
        return capsys.readouterr().out

    short, whole = replay("--scale", "kernel=0.5"), replay("--scale", "kernel=0.5", "-v")
    head, columns, rank, done = short.splitlines()[:4]
    assert re.fullmatch(r".* on machine ideal, what if: saves \d+\.\d{3} ms \(\d+\.\d %\)", head)
    assert columns.split() == ["before", "after", "gain"]
    assert rank.split()[:2] == ["rank", "0"]
    assert "kernel x 0.5: " in done
    assert "what if: costs " in replay("--scale", "kernel=2").splitlines()[0]
    assert whole.startswith(short[: short.index("  with -v ")])
    for of_the_recording in ("measured", "(self-consistency)", "drift apart most"):
        assert (of_the_recording in short, of_the_recording in whole) == (False, True)
    plain = replay()
    assert ("(self-consistency)" in plain, "drift apart most" in plain) == (True, False)
    assert "  with -v        10 places where replay and recording drift apart" in plain
    assert "drift apart most" in replay("-v")
    assert "with -v" not in replay("-v")


def test_a_part_has_one_word(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (path,) = (line for line in lines if line.startswith("  critical path  "))
    assert set(re.findall(r"[ ,] ([a-z]+) [\d.]+ %", path)) <= {
        "host",
        "stream",  # idle GPU stream
        "thread",  # idle host thread
        "compute",
        "communication",
        "copy",
        "unexplained",
    }
    assert re.search(r"unexplained [\d.]+ % \(idle GPU stream [\d.]+ %(, idle host thread [\d.]+ %)?\)", path)


def test_each_listed_text_takes_what_is_listed(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "r.json"

    def listed(*more: str) -> dict[str, Any]:
        assert main(["replay", str(out), "--list", *more, "--json", str(data)]) == 0
        found: dict[str, Any] = json.loads(data.read_bytes())
        return found

    found, text = listed("--top", "4"), capsys.readouterr().out
    assert [len(found["names"]), found["of"] - 4] == [4, int(re.findall(r"and (\d+) more", text)[0])]
    assert found["names"] == listed("--top", "1000")["names"][:4]
    kernels = listed("kernel")
    assert {one["sort"] for one in kernels["names"]} == {"kernel"}
    commands = re.findall(r"--scale .*", text)
    for one, command in zip(found["names"] + found["ranges"], commands, strict=True):
        option, scale = shlex.split(command)
        assert (option, scale) == ("--scale", f"{one['scale']}=0.5")
        assert main(["replay", str(out), option, scale]) == 0
        assert f"{one['nodes']:,} nodes, {-one['ns'] / 2e6:,.3f} ms of work" in capsys.readouterr().out


def test_a_list_of_ranks_alone_has_no_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "r.json"
    written(tmp_path, [node(0, start_ns=0), recv(1, [0], comm_src=1)], [node(0, start_ns=0), node(1, data=[0])])
    for more in ((), ("--machine", "ideal")):  # together they wait for ever
        assert main(["replay", str(tmp_path), "--list", *more, "--json", str(data)]) == 0
        assert "no one path" in capsys.readouterr().out
        found = json.loads(data.read_bytes())
        assert [found["path_ns"], *(one["path_ns"] for one in found["names"])] == [None] * (1 + found["of"])
    assert main(["replay", str(tmp_path), "--list", "--rank", "1"]) == 0
    assert "of the critical path of 0.010 ms, on machine ideal" in capsys.readouterr().out


class TestNotAnswered:
    """What a what-if says that it does not answer, by what the graphs hold."""

    def of(
        self,
        folder: Path,
        capsys: pytest.CaptureFixture[str],
        *nodes: Any,
        change: Sequence[str] = ("--scale", "kernel=0.5"),
    ) -> str:
        written(folder, [node(0), *nodes])
        assert main(["replay", str(folder), *change]) == 0
        return capsys.readouterr().out.partition("not answered:")[2]

    def named(self, id: int, name: str, **attributes: Any) -> Any:
        out = node(id, data=[0], **attributes)
        out.name = name
        return out

    def test_polls_and_paths_where_there_are_some(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.of(tmp_path, capsys) == ""
        polls = [
            self.named(1, "cudaEventQuery"),
            self.named(2, "cudaEventQuery"),
            self.named(3, "x", sync_call=("string_val", "cudaStreamQuery")),
        ]
        said = self.of(tmp_path, capsys, *polls)
        assert "polls (cudaEventQuery, cudaStreamQuery) turns as often as recorded: 3" in said and "path" not in said
        said = self.of(tmp_path, capsys, self.named(1, "triton::autotune"))
        assert "takes the recorded path: 1" in said and "polls" not in said

    def test_waits_for_other_ranks_where_they_stay(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        waits = "communication takes as long as recorded"
        assert waits in self.of(tmp_path, capsys, coll(1, [0]))
        assert waits in self.of(tmp_path, capsys, recv(1, [0], comm_src=1))
        assert waits not in self.of(tmp_path, capsys, coll(1, [0]), change=("--bandwidth", "1"))
        assert waits not in self.of(
            tmp_path, capsys, coll(1, [0]), change=("--scale", "kernel=0.5", "--machine", "ranks")
        )


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["{out}/nothing"], 1, "no such folder"),
        (["{out}", "--rank", "7"], 1, "no graph of rank 7"),
        (["{out}", "--scale", "kernel"], 2, "has no =FACTOR"),
        (["{out}", "--scale", "aten::itm=2"], 2, "did you mean aten::item"),
        (["{out}", "--scale", "kernels=2"], 2, "did you mean kernel? graphlink"),
        (["{out}", "--list", "kernels"], 2, "'kernel'"),
        (["{out}", "--list", "--scale", "kernel=2"], 2, "changes nothing"),
        (["{out}", "--top", "3"], 2, "--top is for --list"),
        (["{empty}", "--list"], 1, "holds no graphs"),
        (["{out}", "--remove-sync", "aten::none"], 2, "no wait of that id or name"),
        (["{out}", "--together"], 2, "--machine ranks"),
        (["{empty}"], 1, "holds no graphs"),
        (["{out}", "--runs", "{out}"], 2, "leave --runs out"),
        (["--runs", "{empty}", "{out}", "--scale", "kernel=2"], 2, "has no summary.json"),
    ],
)
def test_refusals(
    out: Path, tmp_path: Path, arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", *(a.format(out=out, empty=tmp_path) for a in arguments)]) == status
    assert said in capsys.readouterr().err


def test_a_broken_table_of_groups(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.0.et").write_bytes((out / "trace.0.et").read_bytes())
    (tmp_path / "comm_group.json").write_text("[1]")
    assert main(["replay", str(tmp_path)]) == 1
    assert "communicators" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--cores", "4"], "--cores is for --dataloader-workers"),
        (["--prefetch-factor", "4"], "--prefetch-factor is for --dataloader-workers"),
        (["--bucket-bandwidth", "4"], "--bucket-bandwidth is for --buckets"),
        (["--dataloader-workers", "many"], "workers, cores and batches in advance are 1 to"),
        (["--dataloader-workers", "0"], "workers, cores and batches in advance are 1 to"),
        (["--dataloader-workers", "2", "--cores", "0"], "workers, cores and batches in advance are 1 to"),
        (["--cuda-graph", "("], "is no regular expression"),
        (["--list", "--buckets", "25"], "--list lists what is recorded"),
    ],
)
def test_options_of_another_structure_that_do_not_fit_are_refused(
    out: Path, options: Sequence[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(out), *options]) == 2
    assert why in capsys.readouterr().err


def test_another_structure_as_text_and_data(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, data = tmp_path / "changes.toml", tmp_path / "r.json"
    assert main(["replay", str(out), "--dataloader-workers", "2", "--cores", "4", "--json", str(data)]) == 0
    assert "DataLoader with 2 workers on 4 cores: enumerate(DataLoader)" in capsys.readouterr().out
    (by_option,) = json.loads(data.read_bytes())["what_if"]
    assert [made["kind"] for made in by_option["done"]] == ["dataloader"]
    assert "It cannot know how much busy workers slow the main thread" in by_option["done"][0]["cannot_know"]
    file.write_text("[[dataloader]]\nworkers = 2\ncores = 4\n")
    assert main(["replay", str(out), "--what-if", str(file), "--json", str(data)]) == 0
    (by_file,) = json.loads(data.read_bytes())["what_if"]
    assert by_file == by_option
