"""``graphlink diff -o``: the page of a comparison, and what it never overwrites."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from graphlink.diff.compare import compare
from graphlink.diff.page import diff_page
from graphlink.page.render import html
from tests.cli.conftest import Ran

Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def linked(graphlink_once: Run, traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("diff") / "out"
    assert graphlink_once(traces, "--out", out, "--quiet").status == 0
    return out


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_page_is_written_beside_text_and_json(graphlink_once: Run, linked: Path, tmp_path: Path) -> None:
    before, page = _files(linked), tmp_path / "diff.html"
    ran = graphlink_once("diff", linked, linked, "-o", page, "--json", tmp_path / "diff.json")
    assert (ran.status, ran.err) == (0, "")
    assert (
        ran.out
        == f"{graphlink_once('diff', linked, linked).out}\n{page}: the page, {page.stat().st_size / 1e6:.2f} MB\n"
    )
    assert page.read_text() == html(diff_page(compare(linked, linked)))
    assert json.loads((tmp_path / "diff.json").read_bytes())["verdict"]["identical"]
    assert _files(linked) == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["diff.html", "diff.json"]


def test_markdown_is_a_verdict_and_a_table_in_which_no_name_acts(
    graphlink_once: Run, linked: Path, traces: Path, tmp_path: Path
) -> None:
    """The second run takes longer in an op whose name would be a link, a mention and two cells."""
    for path in traces.iterdir():
        rows = json.loads(path.read_bytes())
        for row in rows.get("traceEvents", ()):
            if row.get("cat") == "kernel" and "dur" in row:
                row["name"] = "[x](//evil) @all | <img> https://evil.org WWW.evil.org"
        (tmp_path / path.name).write_text(json.dumps(rows))
    assert graphlink_once(tmp_path, "--out", tmp_path / "out", "--quiet").status == 0
    ran = graphlink_once("diff", linked, tmp_path / "out", "--markdown", "--anyway")
    first, empty, *table = ran.out.splitlines()
    assert first.startswith("**") and first.endswith("**") and not empty
    assert table[1] == "| --- | --: | --- | --- |"
    assert {line.count("|") for line in table} == {5}
    assert "evil" in ran.out and not any(text in ran.out for text in ("[x]", "@all", "<img", "https://", "WWW."))
    assert table[0].split("|")[2].strip() in first


def test_json_alone_goes_to_standard_output(graphlink_once: Run, linked: Path, tmp_path: Path) -> None:
    ran = graphlink_once("diff", linked, linked, "-o", tmp_path / "diff.html", "--json", "-")
    assert json.loads(ran.out)["format"] == 1
    assert (tmp_path / "diff.html").is_file()


@pytest.mark.parametrize("name", ["summary.json", "trace.0.et", "report.html", "."])
def test_no_output_is_overwritten(graphlink_once: Run, linked: Path, name: str) -> None:
    before = _files(linked)
    ran = graphlink_once("diff", linked, linked, "-o", linked / name)
    assert ran.status == 2
    assert "--out" in ran.err
    assert _files(linked) == before


def test_a_recording_is_not_overwritten(graphlink_once: Run, linked: Path, traces: Path, tmp_path: Path) -> None:
    recording = (traces / "kineto_0.json").read_bytes()
    (tmp_path / "kineto_0.json").write_bytes(recording)
    assert graphlink_once("diff", linked, linked, "-o", tmp_path / "kineto_0.json").status == 2
    assert (tmp_path / "kineto_0.json").read_bytes() == recording


def test_page_and_json_are_two_files(graphlink_once: Run, linked: Path, tmp_path: Path) -> None:
    ran = graphlink_once("diff", linked, linked, "-o", tmp_path / "diff", "--json", tmp_path / "diff")
    assert ran.status == 2
    assert not (tmp_path / "diff").exists()


def test_no_page_is_written_of_what_cannot_be_compared(graphlink_once: Run, linked: Path, tmp_path: Path) -> None:
    assert graphlink_once("diff", linked, tmp_path, "-o", tmp_path / "diff.html").status == 1
    assert not (tmp_path / "diff.html").exists()
    ran = graphlink_once("diff", linked, linked, "-o", tmp_path / "nowhere" / "diff.html")
    assert ran.status == 1
    assert "nowhere" in ran.err
