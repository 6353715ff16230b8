"""``--nsys``: files, globs and folders of exports; a rank for every (process, device)."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from graphlink.read.nsys import report as reader
from graphlink.read.nsys.report import read_nsys
from tests.cli.conftest import Ran
from tests.cli.test_errors import is_said
from tests.e2e.graph_rules import broken, read
from tests.simulator import Shape, Training, random_program, run, training_program
from tests.simulator.nsys import NsysVariation, write_nsys

Run = Callable[..., Ran]


def export(path: Path, *ranks: int, **vary: Any) -> Path:
    """An export with a process for each of some ranks of a run of four."""
    executions = [run(training_program(1, Training(steps=2, layers=2, ranks=4, rank=rank))) for rank in ranks]
    write_nsys(executions, path, vary=NsysVariation(**vary))
    return path


def ranks_in(out: Path) -> list[Any]:
    return list(json.loads((out / "summary.json").read_text())["ranks"])


def test_every_process_and_device_is_a_rank(graphlink: Run, tmp_path: Path) -> None:
    write_nsys([run(random_program(seed, Shape(devices=2))) for seed in (1, 2)], tmp_path / "run.sqlite")
    ran = graphlink("--nsys", tmp_path / "run.sqlite", "--out", tmp_path / "out", "--jobs", "1")
    assert (ran.status, ran.err) == (0, "")
    ranks = ranks_in(tmp_path / "out")
    assert [(r["rank"], r["inputs"]["device"]) for r in ranks] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert len({r["inputs"]["pid"] for r in ranks}) == 2
    for r in ranks:
        assert (r["host"]["method"], r["world_size"], r["inputs"]["kineto"]) == ("nsys", 4, None)
        assert (
            r["device"]["ops"]
            == r["device"]["linked"] + sum(r["device"]["orphans"].values())
            == r["node_kinds"]["device_op"]
        )
        assert abs(r["replay"]["error_pct"]) < 0.2
        assert broken(read(tmp_path / "out" / f"trace.{r['rank']}.et")) == []
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(
        json.loads((tmp_path / "out" / "summary.json").read_text())["files"]
    )


def test_a_file_is_read_once(graphlink: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    original = reader.open_export

    def counting(path: Path) -> Any:
        opened.append(path)
        return original(path)

    monkeypatch.setattr(reader, "open_export", counting)
    path = export(tmp_path / "run.sqlite", 0, 1, 2)
    assert graphlink("--nsys", path, "--out", tmp_path / "out", "--jobs", "1").status == 0
    assert opened == [path]


def test_files_globs_and_folders_are_the_same_run(graphlink: Run, tmp_path: Path) -> None:
    """Ranks follow the numbers in file names by value; packed files too."""
    folder = tmp_path / "in"
    folder.mkdir()
    for k, rank in ((2, 0), (10, 1)):
        export(folder / f"run_{k}.sqlite", rank)
    (folder / "run_10.sqlite.gz").write_bytes(gzip.compress((folder / "run_10.sqlite").read_bytes()))
    (folder / "run_10.sqlite").unlink()
    (folder / "notes.txt").write_text("nothing")
    for name in ("run_2.sqlite", "run_10.sqlite.gz"):
        (tmp_path / "by_host" / name).mkdir(parents=True)
        shutil.copy(folder / name, tmp_path / "by_host" / name)
    outs = []
    for k, arguments in enumerate(
        (
            [folder],
            [tmp_path / "by_host"],
            ["--nsys", f"{folder}/run_*"],
            ["--nsys", folder / "run_10.sqlite.gz", "--nsys", folder / "run_2.sqlite"],
        )
    ):
        out = tmp_path / f"out{k}"
        ran = graphlink(*arguments, "--out", out, "--jobs", "1")
        assert (ran.status, ran.err) == (0, "")
        outs.append({p.name: p.read_bytes() for p in out.iterdir() if p.suffix == ".et"})
    assert outs[0] == outs[1] == outs[2] == outs[3]
    assert sorted(outs[0]) == ["trace.0.et", "trace.1.et"]
    assert Path(ranks_in(tmp_path / "out0")[1]["inputs"]["nsys"]).name == "run_10.sqlite.gz"


def test_names_that_say_a_rank_are_believed(graphlink: Run, tmp_path: Path) -> None:
    for rank in (3, 1):
        export(tmp_path / f"rank{rank}.sqlite", rank)
    assert graphlink("--nsys", f"{tmp_path}/rank*.sqlite", "--out", tmp_path / "out", "--jobs", "1").status == 0
    assert [(r["rank"], Path(r["inputs"]["nsys"]).name) for r in ranks_in(tmp_path / "out")] == [
        (1, "rank1.sqlite"),
        (3, "rank3.sqlite"),
    ]


def test_a_number_in_a_name_is_no_rank(graphlink: Run, tmp_path: Path) -> None:
    assert graphlink("--nsys", export(tmp_path / "resnet_50.sqlite", 0), "--out", tmp_path / "out").status == 0
    assert [r["rank"] for r in ranks_in(tmp_path / "out")] == [0]


def test_nccl_tells_ranks_and_groups(graphlink: Run, tmp_path: Path) -> None:
    """The file names would say otherwise."""
    paths = [export(tmp_path / f"rank{7 - k}.sqlite", *ranks, nccl=True) for k, ranks in enumerate(((2, 3), (0, 1)))]
    assert graphlink("--nsys", *paths, "--out", tmp_path / "out", "--jobs", "1").status == 0
    ranks = ranks_in(tmp_path / "out")
    assert [(r["rank"], r["world_size"], Path(r["inputs"]["nsys"]).name) for r in ranks] == [
        (0, 4, "rank6.sqlite"), (1, 4, "rank6.sqlite"), (2, 4, "rank7.sqlite"), (3, 4, "rank7.sqlite"),
    ]  # fmt: skip
    assert json.loads((tmp_path / "out" / "comm_group.json").read_text()) == {"1": [0, 1, 2, 3]}
    assert all(r["communication"] == {"COMM_COLL_NODE": 4} for r in ranks)


def test_the_rank_of_a_single_one_may_be_given(graphlink: Run, tmp_path: Path) -> None:
    one, two = export(tmp_path / "one.sqlite", 0), export(tmp_path / "two.sqlite", 0, 1)
    assert graphlink("--nsys", one, "--rank", "5", "--out", tmp_path / "out").status == 0
    (rank,) = ranks_in(tmp_path / "out")
    assert (rank["rank"], rank["warnings"]) == (5, [w for w in rank["warnings"] if "--rank" not in w])
    is_said(graphlink("--nsys", two, "--rank", "5", "--out", tmp_path / "other"), 2, "two.sqlite", "--rank")
    assert not (tmp_path / "other").exists()


def test_steps_are_cut_by_marks(graphlink: Run, tmp_path: Path) -> None:
    path = export(tmp_path / "run.sqlite", 0)
    assert graphlink("--nsys", path, "--step", "2", "--out", tmp_path / "out").status == 0
    (rank,) = ranks_in(tmp_path / "out")
    whole = read_nsys(path)[0]
    assert 0 < rank["device"]["ops"] < len(whole.device.start_ns)
    is_said(graphlink("--nsys", path, "--step", "7", "--out", tmp_path / "other"), 2, "step 7")


def test_kineto_comes_first_in_a_folder(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    shutil.copytree(traces, folder)
    export(folder / "run.sqlite", 0)
    assert graphlink(folder, "--out", tmp_path / "out", "--jobs", "1").status == 0
    assert {r["host"]["method"] for r in ranks_in(tmp_path / "out")} == {"rf_id"}


def test_recordings_left_aside_in_a_folder_are_said(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    shutil.copytree(traces, folder)
    for name in ("run.sqlite", "run_2.sqlite"):
        export(folder / name, 0)
    (folder / "workerlog.0").write_text("")
    (folder / "broken.sqlite").write_bytes(b"\x1f\x8b\x08\xff none")
    ran = graphlink(folder, "--out", tmp_path / "out", "--jobs", "1", "--verbose")
    said = [
        f"{folder}: Kineto traces are read, 2 nsys exports left aside, as run.sqlite: read with --nsys",
        f"{folder}: Kineto traces are read, 1 Paddle worker log left aside, as workerlog.0: read with --paddle-logs",
    ]
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["warnings"] == said
    for text in said:
        assert f"warning: {text} " in f"{' '.join(ran.out.split())} "
        assert text in ran.err
        assert f"warning: {text} " in f"{' '.join(graphlink('show', tmp_path / 'out').out.split())} "
    for path in (*folder.glob("*.json"), folder / "broken.sqlite"):
        path.unlink()
    assert graphlink(folder, "--out", tmp_path / "exports").status == 0
    (one,) = json.loads((tmp_path / "exports" / "summary.json").read_text())["warnings"]
    assert (
        one
        == f"{folder}: nsys exports are read, 1 Paddle worker log left aside, as workerlog.0: read with --paddle-logs"
    )
    for path in folder.glob("*.sqlite"):
        path.unlink()
    is_said(graphlink(folder, "--out", tmp_path / "none"), 1, f"--paddle-logs {folder}")


def test_execution_traces_beside_exports_are_refused(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    export(folder / "run.sqlite", 0)
    is_said(graphlink(folder, "--out", tmp_path / "other", "--linked"), 2, "--linked")
    shutil.copy(traces / "et_0.json", folder)
    is_said(graphlink(folder, "--out", tmp_path / "out"), 2, "et_0.json", "--nsys")


def test_one_file_of_several_is_broken(graphlink: Run, tmp_path: Path) -> None:
    good, bad = export(tmp_path / "a.sqlite", 0), tmp_path / "b.sqlite"
    bad.write_bytes(good.read_bytes()[:5000])
    ran = graphlink("--nsys", good, bad, "--out", tmp_path / "out", "--jobs", "1")
    is_said(ran, 3, "1 of 2 files", "b.sqlite", "cut off")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", ["missing", "empty", "text", "kineto", "database", "folder"])
def test_what_is_no_export(graphlink: Run, traces: Path, tmp_path: Path, what: str) -> None:
    path = tmp_path / what
    if what == "empty":
        path.write_bytes(b"")
    elif what == "text":
        path.write_text("hello")
    elif what == "kineto":
        shutil.copy(traces / "kineto_0.json", path)
    elif what == "folder":
        path.mkdir()
    elif what == "database":
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE people(name TEXT)")
        connection.close()
    words = {"kineto": "--kineto", "database": "no device work"}
    is_said(graphlink("--nsys", path, "--out", tmp_path / "out"), 1, what, words.get(what, ""))
    assert not (tmp_path / "out").exists()
