"""The page of a comparison says what the report says: every figure that names its place is the one that stands there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import graphlink
from graphlink.cli import main
from graphlink.diff.records import DiffReport
from graphlink.page.diff_page import diff_page
from graphlink.page.parts import Bars, flat
from graphlink.page.render import html
from tests.page.conftest import ROOT, Shown
from tests.page.read_page import figures, pointed, read

Show = Callable[[str], Shown]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> DiffReport:
    """Two real recordings of one program, before and after a change."""
    folder = tmp_path_factory.mktemp("both")
    before, after = (
        graphlink.link(ROOT / "fixtures" / "real" / name, out=folder / name, options=graphlink.Options(timeline="none"))
        for name in ("dataloader", "dataloader-8-workers")
    )
    return before.diff(after)


def test_every_figure_is_the_one_of_the_report(report: DiffReport) -> None:
    found = list(figures(read(html(diff_page(report)))))
    assert len(found) > 300
    given = {"diff": msgspec.to_builtins(report)}
    for at, value, text in found:
        there = pointed(ROOT, at, given)
        assert float(value) == there if isinstance(there, int | float) else text == there, at


def test_bars_have_all_the_time_of_a_step(report: DiffReport) -> None:
    parts = [part for section in diff_page(report).sections for part in flat(section.parts)]
    (bars,) = (part for part in parts if isinstance(part, Bars) and part.name == "split")
    assert [sum(one.value for one in bar.segments) for bar in bars.bars] == [report.split.before_ns, report.split.after_ns]


def test_hostile_names_are_text(shown: Show) -> None:
    run = graphlink.open(shown("hostile").folder)
    demo = graphlink.open(shown("alone").folder)
    page = html(diff_page(demo.diff(run, anyway=True)))
    assert "<script>alert" not in page and "<img" not in page and "\u202e" not in page and "\x1b" not in page
    read(page)


def test_the_command_writes_the_page_and_refuses_to_overwrite_outputs(shown: Show, tmp_path: Path) -> None:
    folder = shown("alone").folder
    assert main(["diff", str(folder), str(folder), "--out", str(tmp_path / "diff.html")]) == 0
    assert "identical" in (tmp_path / "diff.html").read_text()
    assert main(["diff", str(folder), str(folder), "-o", str(folder / "summary.json")]) == 2
