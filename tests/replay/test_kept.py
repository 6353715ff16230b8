"""Many what-ifs of the same graphs begin with one reading and one replay of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphlink
from graphlink.replay import report
from graphlink.replay.coupled import followed
from graphlink.replay.machines import ends, play
from graphlink.run import library
from tests.replay.hand import N
from tests.replay.hand import load as hand

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


@pytest.mark.parametrize("ids", [(3, 5, 9), (9, 3, 5)])
def test_columns_and_names_stand_by_id_and_are_kept(ids: tuple[int, int, int]) -> None:
    nodes = [N(number, name=f"op {number}", us=number, start_us=number, lane=number) for number in ids]
    for ranks in (1, 2):
        work = hand(*[nodes] * ranks)
        assert work.column("tid").tolist() == [3, 5, 9] * ranks
        family, names = work.names()
        assert [names[k] for k in family.tolist()] == ["op 3", "op 5", "op 9"] * ranks
        assert work.names()[0] is family
        with pytest.raises(ValueError, match="read-only"):
            work.column("tid")[0] = 1
        assert work.files[0].tid.flags.writeable  # a view of it was closed
        played = play(work, {})
        assert ends(work, {}).end_ns.tolist() == played.end_ns.tolist()
        assert followed(work, ends(work, {})).held_by.tolist() == played.held_by.tolist()


def test_no_more_than_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    monkeypatch.setattr(report, "unchanged", lambda files, *how: made.extend(files.values()))
    before = report.kept(1)
    for name in ("a", "a", "b", "a"):
        before({0: Path(name)}, "ideal", {}, False)
    assert made == [Path("a"), Path("b"), Path("a")]
