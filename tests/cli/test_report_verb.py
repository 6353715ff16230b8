"""``graphlink report``: where the page goes, and what it never overwrites."""

from __future__ import annotations

import builtins
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphlink
from tests.cli.conftest import Ran

Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def linked(graphlink_once: Run, traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "out"
    assert graphlink_once(traces, "--out", out, "--quiet").status == 0
    return out


@pytest.fixture
def folder(linked: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(linked, tmp_path / "out"))


def test_the_page_is_an_output_like_the_others(graphlink_once: Run, folder: Path, traces: Path) -> None:
    before = json.loads((folder / "summary.json").read_bytes())
    ran = graphlink_once("report", folder)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith(f"{folder}/report.html: 8 sections, ")
    after = json.loads((folder / "summary.json").read_bytes())
    assert after == {**before, "files": sorted([*before["files"], "report.html"])}
    assert (folder / "report.html").read_text() == graphlink.open(folder).report()
    assert sorted(path.name for path in folder.iterdir()) == after["files"]
    assert graphlink_once("report", folder).status == 0
    assert graphlink_once(traces, "--out", folder, "--quiet", "--force").status == 0
    assert not (folder / "report.html").exists()


def test_elsewhere_the_page_leaves_the_folder_as_it_is(graphlink_once: Run, folder: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert graphlink_once("report", folder, "-o", tmp_path / "page.html", "--json", tmp_path / "page.json").status == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert (tmp_path / "page.html").read_bytes().startswith(b"<!doctype html>")
    assert json.loads((tmp_path / "page.json").read_bytes())["sections"][0]["name"] == "time"


def test_pictures_go_beside_each_other(graphlink_once: Run, folder: Path, tmp_path: Path) -> None:
    ran = graphlink_once("report", folder, "-o", tmp_path / "slides" / "report.html", "--svg", tmp_path / "slides")
    assert ran.status == 0
    names = sorted(path.name for path in (tmp_path / "slides").iterdir())
    assert {"gpu-by-rank.svg", "path-strip.svg", "report.html"} <= set(names)
    assert f"slides: {len(names) - 1} pictures" in ran.out


def test_png_is_made_by_a_library_or_says_which(
    graphlink_once: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name in ("resvg_py", "cairosvg"):
            raise ImportError(name)
        return imported(name, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", without)
        ran = graphlink_once("report", folder, "--png", tmp_path / "slides")
    assert ran.status == 2
    assert "pip install '.[pictures]'" in ran.err
    assert not (folder / "report.html").exists()
    pytest.importorskip("resvg_py")
    assert graphlink_once("report", folder, "--png", tmp_path / "slides").status == 0
    assert (tmp_path / "slides" / "gpu-by-rank.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["trace.0.et", "summary.json", "idle.0.json", "."])
def test_no_other_output_is_overwritten(graphlink_once: Run, folder: Path, name: str) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    ran = graphlink_once("report", folder, "-o", folder / name)
    assert ran.status == 2
    assert "--out" in ran.err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_recording_is_not_overwritten(graphlink_once: Run, folder: Path, traces: Path, tmp_path: Path) -> None:
    shutil.copy(traces / "kineto_0.json", tmp_path / "kineto_0.json")
    assert graphlink_once("report", folder, "-o", tmp_path / "kineto_0.json").status == 2
    assert (tmp_path / "kineto_0.json").read_bytes() == (traces / "kineto_0.json").read_bytes()


def test_a_file_that_no_summary_lists_is_not_overwritten(graphlink_once: Run, folder: Path) -> None:
    (folder / "report.html").write_text("mine")
    ran = graphlink_once("report", folder)
    assert ran.status == 1
    assert (folder / "report.html").read_text() == "mine"


@pytest.mark.parametrize("gone", ["idle.0.json", "trace.0.et", "critical_path.1.json", "ops.0.json", "summary.json"])
def test_an_output_that_is_missing_is_named(graphlink_once: Run, folder: Path, gone: str) -> None:
    (folder / gone).unlink()
    ran = graphlink_once("report", folder)
    assert ran.status == 1
    assert gone in ran.err
    assert "Traceback" not in ran.err
    assert not (folder / "report.html").exists()


def test_what_is_no_folder_is_refused(graphlink_once: Run, folder: Path, tmp_path: Path) -> None:
    for what in (tmp_path / "nowhere", folder / "summary.json", tmp_path):
        assert graphlink_once("report", what).status == 1
