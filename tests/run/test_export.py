"""``graphlink export``: the files hold the data frames of the library, to the last missing integer; docs/export.md has
their schema.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

import graphlink
from graphlink.cli import main
from graphlink.errors import OutputError, UsageError
from graphlink.output_names import is_own
from graphlink.run import export as code
from graphlink.run.export import FORMATS, TABLES, cell, export
from tests.paddle_runs import equal_times, one_f_one_b
from tests.paddle_runs import simulate as simulate_paddle
from tests.run.test_library import FAST, PIPELINE
from tests.simulator.kineto import write_kineto
from tests.simulator.machine import run as simulate
from tests.simulator.paddle import Variation, write_paddle
from tests.simulator.programs import Training, training_program

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
HOSTILE = (
    "=HYPERLINK(1)",
    "+1",
    "-1",
    "@SUM(A1)",
    "'quoted",
    "\tx",
    '"; "',
    "a,b",
    "two\nlines",
    "\u202e<b>",
    "＝1",
    "",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> graphlink.Run:
    """Two ranks of a small program whose ops have hostile names, some of them."""
    folder = tmp_path_factory.mktemp("export")
    (folder / "traces").mkdir()
    for rank in (0, 1):
        file = folder / "traces" / f"kineto_{rank}.json"
        write_kineto(simulate(training_program(1, Training(steps=2, layers=2, ranks=2, rank=rank))), file)
        plain_names = re.findall(r'"name": ?"aten::\w+"', file.read_text())
        for old, name in zip(plain_names, HOSTILE, strict=False):
            file.write_text(file.read_text().replace(old, f'"name": {json.dumps(name)}', 1))
    return graphlink.link(folder / "traces", out=folder / "out", options=FAST)


@pytest.fixture(scope="module")
def pipeline() -> graphlink.Run:
    return graphlink.link(PIPELINE, options=FAST)


def frames(run: graphlink.Run) -> dict[str, pd.DataFrame]:
    named = {name: getattr(run, name)() for name in TABLES if name != "operations"}
    return {**named, "operations": run.ops(by_path=True)}


def lists(frame: pd.DataFrame) -> pd.DataFrame:
    """With lists as lists: they come as tuples from the library, as arrays from files."""
    if "ranks" in frame:
        frame["ranks"] = [None if cells is None else [int(one) for one in cells] for cells in frame["ranks"]]
    return frame


def plain(frame: pd.DataFrame) -> pd.DataFrame:
    """As csv has it: without types, None where something is missing."""
    return frame.astype(object).where(frame.notna(), None)


def read_parquet(path: Path, columns: list[dict[str, str]]) -> pd.DataFrame:
    pytest.importorskip("pyarrow", reason="needs pyarrow, as of the extra tables")
    return pd.read_parquet(path)


def read_arrow(path: Path, columns: list[dict[str, str]]) -> pd.DataFrame:
    ipc: Any = pytest.importorskip("pyarrow.ipc", reason="needs pyarrow, as of the extra tables")
    frame: pd.DataFrame = ipc.open_file(path).read_all().to_pandas()
    return frame


def read_csv(path: Path, columns: list[dict[str, str]]) -> pd.DataFrame:
    """As docs/export.md says: a quoted cell is a text, nothing is missing; a leading ' is not of the text."""
    text = path.read_bytes().decode()
    cells = re.findall(r'("(?:[^"]|"")*"|[^",\n]*)([,\n])', text)
    rows: list[list[str]] = [[]]
    for value, end in cells:
        rows[-1].append(value)
        if end == "\n":
            rows.append([])
    head, *body = rows[:-1]
    assert not text or text.endswith("\n")
    assert [name.strip('"') for name in head] == [column["name"] for column in columns]
    shown = [[cell[1:-1].replace('""', '"') if cell[:1] == '"' else cell for cell in row] for row in rows[:-1]]
    assert list(csv.reader(io.StringIO(text, newline=""))) == shown

    def value(text: str, kind: str) -> Any:
        if not text:
            return None
        assert (text[0] == '"') == (kind in ("string", "list<int64>"))
        if text[0] != '"':
            return int(text) if kind == "int64" else float(text)
        inner = text[1:-1].replace('""', '"').removeprefix("'")
        return json.loads(inner) if kind == "list<int64>" else inner

    return pd.DataFrame(
        {c["name"]: pd.Series([value(row[i], c["type"]) for row in body], dtype=object) for i, c in enumerate(columns)}
    )


READ: dict[str, Callable[[Path, list[dict[str, str]]], pd.DataFrame]] = {
    "parquet": read_parquet,
    "arrow": read_arrow,
    "csv": read_csv,
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("which", ["run", "pipeline"])
def test_each_file_holds_the_frame_of_the_library(
    form: str, which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    of: graphlink.Run = request.getfixturevalue(which)
    if form != "csv":
        pytest.importorskip("pyarrow", reason="needs pyarrow, as of the extra tables")
    assert export(of, tmp_path / "out", form).tables
    made = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert made["files"] == sorted(path.name for path in (tmp_path / "out").iterdir()) and all(
        map(is_own, made["files"])
    )
    expected = frames(of)
    assert [table["name"] for table in made["tables"]] == list(TABLES) and set(TABLES) == set(expected)
    for table in made["tables"]:
        read, frame = READ[form](tmp_path / "out" / table["file"], table["columns"]), expected[table["name"]]
        assert (len(read), table["rows"]) == (len(frame),) * 2, table["name"]
        assert_frame_equal(lists(read), plain(lists(frame)) if form == "csv" else lists(frame), obj=table["name"])
    names = {"run": "kernels", "pipeline": "ranges"}[which]
    assert len(expected[names]) and expected["collectives"]["ranks"].map(type).eq(list).any()


def test_missing_values_and_hostile_names_are_tried(run: graphlink.Run) -> None:
    assert set(HOSTILE) <= set(run.nodes().name)
    assert (
        run.nodes().tid.isna().any()
        and run.critical_path().held_by.isna().any()
        and run.collectives().comm_src.isna().any()
    )


def test_no_cell_of_csv_begins_a_formula(run: graphlink.Run, tmp_path: Path) -> None:
    export(run, tmp_path / "out", "csv")
    for file in (tmp_path / "out").glob("*.csv"):
        for row in csv.reader(io.StringIO(file.read_bytes().decode(), newline="")):
            assert not [text for text in row if text[:1] in tuple("=+@\t\r\n＝＋－＠")]
            assert not [text for text in row if text[:1] == "-" and not re.fullmatch(r"-\d+(\.\d+)?", text)]
    assert [cell(name)[1:3] for name in HOSTILE[:5]] == ["'=", "'+", "'-", "'@", "''"]


def test_the_schema_is_the_one_of_the_page(run: graphlink.Run, tmp_path: Path) -> None:
    """docs/export.md is what users rely on: whatever changes a column must change the page, and break programs of
    theirs.
    """
    made = export(run, tmp_path / "out", "csv")
    shown = {}
    for part in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]:
        rows = re.findall(r"^\| `(\w+)` \| ([\w<>]+)(\??) \|", part, re.MULTILINE)
        shown[part.split()[0]] = [(name, kind) for name, kind, _ in rows]
        missing = [name for name, _, mark in rows if not mark]
        assert not run_frame_has_missing(run, part.split()[0], missing), part.split()[0]
    assert {table.name: [(column.name, column.type) for column in table.columns] for table in made.tables} == shown


def run_frame_has_missing(run: graphlink.Run, table: str, columns: list[str]) -> list[str]:
    frame = frames(run)[table]
    return [name for name in columns if frame[name].isna().any()]


def test_ranks_are_read_one_after_the_other(
    run: graphlink.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int | None] = []
    nodes = graphlink.Run.nodes
    monkeypatch.setitem(code._OF_RANK, "nodes", lambda of, rank: asked.append(rank) or nodes(of, rank))
    export(run, tmp_path / "out", "csv")
    assert asked == [0, 1]


def test_one_rank_and_some_tables(run: graphlink.Run, pipeline: graphlink.Run, tmp_path: Path) -> None:
    made = export(run, tmp_path / "a", "csv", names=["edges", "nodes"], rank=1)
    assert [(table.name, table.rows) for table in made.tables] == [
        ("nodes", len(run.nodes(1))),
        ("edges", len(run.edges(1))),
    ]
    made = export(pipeline, tmp_path / "b", "csv", names=["ranges"], rank=2)
    assert [table.rows for table in made.tables] == [(pipeline.ranges()["rank"] == 2).sum()]


@pytest.mark.parametrize("how", [{"rank": 7}, {"names": ["node"]}, {"form": "xlsx"}])
def test_what_is_not_there_is_wrong_usage_and_writes_nothing(
    run: graphlink.Run, tmp_path: Path, how: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=r"one of|as 0, 1"):
        export(run, tmp_path / "out", **{"form": "csv", **how})
    assert not list(tmp_path.iterdir())


def test_pyarrow_that_is_missing_is_named_with_its_line(
    run: graphlink.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install pyarrow .*--format csv"):
        export(run, tmp_path / "out", "parquet")
    assert not list(tmp_path.iterdir())
    assert export(run, tmp_path / "out", "csv").tables


def test_the_run_and_other_files_stay(run: graphlink.Run, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in run.folder.iterdir()}
    with pytest.raises(UsageError, match="is the folder of the run"):
        export(run, run.folder, "csv", force=True)
    export(run, tmp_path / "out", "csv")
    with pytest.raises(OutputError, match="--force"):
        export(run, tmp_path / "out", "csv")
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"holds mine\.txt"):
        export(run, tmp_path / "out", "csv", force=True)
    (tmp_path / "out" / "mine.txt").unlink()
    export(run, tmp_path / "out", "csv", names=["nodes"], force=True)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"nodes.csv", "summary.json"}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "edges.csv").write_text("mine")
    with pytest.raises(OutputError, match=r"edges\.csv is there already"):
        export(run, tmp_path / "other", "csv", force=True)
    assert before == {path: path.read_bytes() for path in run.folder.iterdir()}


def test_logs_of_paddle_have_bubbles_only(tmp_path: Path) -> None:
    write_paddle(simulate_paddle(one_f_one_b(2, 4), equal_times(), steps=1), tmp_path / "logs", Variation())
    run = graphlink.link(graphlink.Recordings(paddle_logs=str(tmp_path / "logs")))
    made = export(run, tmp_path / "out", "csv")
    assert [(table.name, table.rows) for table in made.tables] == [
        ("ranges", len(run.ranges())),
        ("bubbles", len(run.bubbles())),
    ]
    assert run.ranges().device_ops.isna().all() and len(run.ranges()) == 16 + 2
    with pytest.raises(UsageError, match="logs of Paddle hold bubbles only"):
        export(run, tmp_path / "other", "csv", names=["nodes"])


def test_what_fails_midway_leaves_nothing(run: graphlink.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(of: graphlink.Run, rank: int) -> pd.DataFrame:
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(code._OF_RANK, "gains", full)
    with pytest.raises(OutputError, match="No space left"):
        export(run, tmp_path / "out", "csv")
    assert not list(tmp_path.iterdir())


def test_the_command_writes_beside_the_run(
    run: graphlink.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run.folder), "--format", "csv", "--out", str(tmp_path / "out"), "--table", "nodes"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"wrote 1 table to {tmp_path / 'out'}"
