"""Every error is one message of at most five lines with the file's name, no traceback, and leaves the output folder as
it was.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tests.cli.conftest import Ran

Run = Callable[..., Ran]


def is_said(ran: Ran, status: int, *words: str) -> None:
    assert ran.status == status, ran
    assert ran.out == ""
    assert 1 <= len(ran.err.splitlines()) <= 5
    assert "Traceback" not in ran.err
    for word in words:
        assert word in ran.err, ran.err


def broken(folder: Path, what: str, traces: Path) -> Path:
    path = folder / f"{what}.json"
    good = (traces / "kineto_0.json").read_bytes()
    rows = json.loads(good)
    rows["traceEvents"][20]["ts"] = "soon"
    content = {
        "empty": b"",
        "cut": good[: len(good) // 2],
        "cut gzip": gzip.compress(good)[:-2000],
        "cut zstd": zstandard.compress(good)[:-2000],
        "empty gzip": gzip.compress(b""),
        "binary": bytes(range(256)) * 40,
        "text": b"hello\n",
        "other json": b'{"a": [1, 2, 3]}',
        "number": b"7",
        "list of numbers": b"[1, 2, 3]",
        "nested": b"[" * 100_000,
        "no events": b'{"schemaVersion": 1, "traceEvents": []}',
        "time": json.dumps(rows).encode(),
    }
    path.write_bytes(content[what])
    return path


@pytest.mark.parametrize(
    "what",
    [
        "empty",
        "cut",
        "cut gzip",
        "cut zstd",
        "empty gzip",
        "binary",
        "text",
        "other json",
        "number",
        "list of numbers",
        "nested",
        "no events",
    ],
)
@pytest.mark.parametrize("flag", ["--kineto", "--et"])
def test_a_file_that_is_no_trace(graphlink: Run, traces: Path, tmp_path: Path, what: str, flag: str) -> None:
    path = broken(tmp_path, what, traces)
    other = ["--kineto", traces / "kineto_0.json"] if flag == "--et" else []
    is_said(graphlink(flag, path, *other, "--out", tmp_path / "out"), 1, str(path))
    assert not (tmp_path / "out").exists()


def test_a_missing_file_a_folder_and_a_pattern_without_match(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    for name in ("none.json", "none_*.json"):
        is_said(graphlink("--kineto", tmp_path / name, "--out", tmp_path / "out"), 1, name)
    is_said(graphlink("--kineto", traces, "--out", tmp_path / "out"), 1, str(traces), "folder")
    is_said(graphlink(tmp_path / "nowhere", "--out", tmp_path / "out"), 1, "nowhere")
    is_said(graphlink(tmp_path, "--out", tmp_path / "out"), 1, str(tmp_path))


def test_swapped_flags(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    swapped = graphlink("--et", traces / "kineto_0.json", "--kineto", traces / "et_0.json", "--out", tmp_path / "out")
    is_said(swapped, 1, "et_0.json")


def test_a_time_that_is_no_number_is_counted_or_refused_but_never_silent(
    graphlink: Run, traces: Path, tmp_path: Path
) -> None:
    path = broken(tmp_path, "time", traces)
    ran = graphlink("--kineto", path, "--out", tmp_path / "out")
    if ran.status:
        is_said(ran, 1, str(path))
    else:
        entry = json.loads((tmp_path / "out" / "summary.json").read_text())["ranks"][0]
        assert any("ts" in reason or "time" in reason for reason in entry["left_out"])


def test_numbers_written_as_text_change_nothing(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    recording = json.loads((traces / "kineto_0.json").read_bytes())
    for row in recording["traceEvents"]:
        for values in (row, row.get("args", {})):
            values.update({k: str(v) for k, v in values.items() if k not in ("ts", "dur") and type(v) is int})
    (tmp_path / "kineto_0.json").write_text(json.dumps(recording))
    for name, folder in (("a", traces), ("b", tmp_path)):
        ran = graphlink("--et", traces / "et_0.json", "--kineto", folder / "kineto_0.json", "--out", tmp_path / name)
        assert (ran.status, ran.err) == (0, "")
    assert (tmp_path / "a" / "trace.0.et").read_bytes() == (tmp_path / "b" / "trace.0.et").read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--et", "et.json"],
        ["--kineto", "k.json", "--sync", "maybe"],
        ["--kineto", "k.json", "--no-such-option"],
        ["--kineto", "k.json", "--gap-us", "-1"],
        ["--kineto", "k.json", "--gap-us", "nan"],
        ["--kineto", "k.json", "--jobs", "0"],
        ["--kineto", "k.json", "--rank", "x"],
        ["--kineto", "k.json", "--step", "x"],
        ["--kineto", "k.json", "--name", "a/b"],
        ["--kineto", "k.json", "--out", ""],
        ["--kineto", "k.json", "-q", "-v"],
        ["--kineto", "k.json", "--linked"],
        ["--kin", "k.json"],
        ["folder", "--kineto", "k.json"],
        ["one", "two", "--et", "et.json"],
        ["--paddle-logs", ""],
        ["--paddle-logs", "logs", "folder"],
        ["--paddle-logs", "logs", "--kineto", "k.json"],
        ["--paddle-logs", "logs", "--et", "et.json"],
        ["--paddle-logs", "logs", "--linked"],
        ["--paddle-logs", "logs", "--rank", "1"],
        ["--paddle-logs", "logs", "--strict"],
        ["--paddle-logs", "logs", "--step", "x"],
        ["--paddle-logs", "logs", "--range-rule", "(?P<phase>F)"],
        ["--nsys", "run.sqlite", "--et", "et.json"],
        ["--nsys", "run.sqlite", "--kineto", "k.json"],
        ["--nsys", "run.sqlite", "--linked"],
        ["--nsys", "run.sqlite", "--strict"],
        ["folder", "--nsys", "run.sqlite"],
        ["show"],
        ["show", "a", "b"],
        ["show", "x.et", "--node", "one"],
    ],
)
def test_wrong_usage(graphlink: Run, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = graphlink(*arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_is_not_there(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    is_said(
        graphlink("--kineto", traces / "kineto_0.json", "--step", "77", "--out", tmp_path / "out"), 2, "77", "--step"
    )
    assert not (tmp_path / "out").exists()


def test_output_folders_that_cannot_be_used(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/graphlink-out")):
        is_said(graphlink("--kineto", traces / "kineto_0.json", "--out", out), 1, str(out))
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("problem", [MemoryError, RecursionError])
def test_a_rank_that_asks_too_much_is_named(
    graphlink: Run, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr("graphlink.run.read_rank.read_kineto", fail)
    is_said(
        graphlink("--kineto", traces / "kineto_0.json", "--out", tmp_path / "out"),
        1,
        str(traces / "kineto_0.json"),
        "do:",
    )
    assert not (tmp_path / "out").exists()


def test_a_long_path_hides_nothing(graphlink: Run, tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250) / ("y" * 250) / "none.json"
    is_said(graphlink("--kineto", path, "--out", tmp_path / "out"), 1, str(path), "there is no such file")


def test_a_folder_of_the_other_kind_is_told_from_a_wrong_one(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    """Recordings where outputs are wanted, and the other way round."""
    is_said(graphlink("advice", traces), 1, f"link them first: graphlink {traces} --out OUT")
    one = traces / "kineto_0.json"
    for verb in ("advice", "idle", "ops", "bubbles"):
        is_said(graphlink(verb, one), 1, f"link them first: graphlink {one} --out OUT")
    out = tmp_path / "out"
    assert graphlink("--kineto", traces / "kineto_0.json", "--out", out).status == 0
    is_said(graphlink("link", out), 1, f"graphlink has written this folder: graphlink show {out} reads it")
    is_said(graphlink("show", tmp_path / "gone"), 1, "there is no such file or folder", "do: name the folder")


@pytest.mark.parametrize("verb", ["bubbles", "check", "critical-path", "idle", "report", "replay"])
def test_each_verb_says_what_to_name_in_place_of_what_is_not_there(graphlink: Run, tmp_path: Path, verb: str) -> None:
    is_said(graphlink(verb, tmp_path / "gone"), 1, str(tmp_path / "gone"), "do: name ")


def test_several_ranks_of_which_some_fail(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    for rank in (0, 1):
        data = (traces / f"kineto_{rank}.json").read_bytes()
        (tmp_path / f"kineto_{rank}.json").write_bytes(data if rank == 0 else data[:-3000])
    ran = graphlink("--kineto", tmp_path / "kineto_*.json", "--out", tmp_path / "out", "--jobs", "1")
    is_said(ran, 3, "1 of 2 ranks", "kineto_1.json")
    assert [p.name for p in (tmp_path / "out").iterdir()] == [".graphlink"], (
        "with what was done for the other, for --resume"
    )


def test_files_that_cannot_be_paired(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    kineto = ["--kineto", traces / "kineto_0.json", traces / "kineto_1.json"]
    host = tmp_path / "et_7.json"
    host.write_text('{"schema": "1.0.1", "pid": 0, "nodes": []}')
    is_said(graphlink(*kineto, "--et", host, "--out", tmp_path / "out"), 2, "kineto_1.json", "et_7.json")
    is_said(graphlink(*kineto, "--rank", "1", "--out", tmp_path / "out"), 2, "--rank")


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x05ab", b"hello world, this is no graph", b"\xff" * 20])
def test_show_of_what_is_no_graph(graphlink: Run, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.et"
    path.write_bytes(data)
    is_said(graphlink("show", path, "--node", "0"), 1, str(path))


def test_show_of_what_is_no_output(graphlink: Run, tmp_path: Path) -> None:
    is_said(graphlink("show", tmp_path), 1, "summary.json")
    is_said(graphlink("show", tmp_path / "none"), 1, "none")
    (tmp_path / "summary.json").write_text('{"graphlink": "9"}')
    is_said(graphlink("show", tmp_path), 1, "summary.json")
    is_said(graphlink("show", tmp_path, "--node", "1"), 2, "--node")
