"""A file into which ranks were merged is read as these, by each command, and says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Ran
from tests.doctor.recordings import write_run
from tests.simulator import write_json
from tests.simulator.faults import merged

Run = Callable[..., Ran]
TOLD = "one of 2 recordings that were merged into one file: that of [TP0{}-DP00]"


def _merged(run: Path, out: Path) -> Path:
    documents = [json.loads((run / f"kineto_{rank}.json").read_bytes()) for rank in range(2)]
    write_json(merged(documents, marks=True), out)
    return out


def test_it_gives_what_the_files_of_its_ranks_give(graphlink: Run, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", without_et=True)
    path = _merged(run, tmp_path / "merged-1760.1.trace.json")
    assert graphlink(run, "--out", tmp_path / "a").status == 0
    ran = graphlink(path, "--out", tmp_path / "b")
    assert ran.status == 0
    assert f"warning, 2 ranks, as rank 0: {TOLD.format(0)}" in ran.out
    told = json.loads((tmp_path / "b" / "summary.json").read_bytes())["ranks"]
    assert [rank["warnings"][0] for rank in told] == [TOLD.format(rank) for rank in range(2)]
    names = {file.name for file in (tmp_path / "a").iterdir()}
    assert {file.name for file in (tmp_path / "b").iterdir()} == names
    for name in names - {"summary.json", ".graphlink"}:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_beside_the_files_of_its_ranks_it_is_left_aside(graphlink: Run, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", without_et=True)
    _merged(run, run / "merged-1760.1.trace.json")
    ran = graphlink(run, "--out", tmp_path / "out", "--no-timeline")
    assert (ran.status, "is left aside: ranks are merged in it" in " ".join(ran.out.split())) == (0, True)


def test_what_is_of_one_rank_is_refused_with_it(graphlink: Run, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    path = _merged(run, tmp_path / "merged.json")
    for more in (("--rank", "1"), ("--et", run / "et_1.json")):
        ran = graphlink("--kineto", path, *more, "--out", tmp_path / "out")
        assert (ran.status, "holds the work of 2 processes" in ran.err, "jq -c" in ran.err) == (1, True, True)
        assert not (tmp_path / "out").exists()


def test_the_doctor_looks_at_each_of_its_ranks(graphlink: Run, tmp_path: Path) -> None:
    ran = graphlink("doctor", _merged(write_run(tmp_path / "run"), tmp_path / "merged.json"), "--json", "-")
    told = json.loads(ran.out)
    assert told["ranks"] == [0, 1]
    (finding,) = [found for found in told["findings"] if found["name"] == "merged-ranks"]
    assert (finding["ranks"], finding["figures"]) == ([0, 1], {"rows": 2})
