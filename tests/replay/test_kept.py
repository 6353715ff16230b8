"""Many what-ifs of the same graphs begin with one reading and one replay of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphlink
from graphlink.replay import report
from graphlink.run import library

DEMO = Path(__file__).parents[2] / "fixtures" / "demo"


def test_a_sweep_reads_and_replays_its_graphs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphlink.link(DEMO, out=tmp_path / "out")
    read: list[Path] = []
    load = report.load
    monkeypatch.setattr(report, "load", lambda files: read.extend(files.values()) or load(files))
    run = library.open(tmp_path / "out")
    factors = (0.5, 0.25, 0.5)
    swept = [run.replay(scale=f"kernel={factor}") for factor in factors]
    assert len(read) == 1
    assert swept == [library.open(tmp_path / "out").replay(scale=f"kernel={factor}") for factor in factors]
    assert swept[0].what_if[0].gain_pct != swept[1].what_if[0].gain_pct


def test_no_more_than_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    monkeypatch.setattr(report, "unchanged", lambda files, *how: made.extend(files.values()))
    before = report.kept(1)
    for name in ("a", "a", "b", "a"):
        before({0: Path(name)}, "ideal", {}, False)
    assert made == [Path("a"), Path("b"), Path("a")]
