"""A rank that two processes work on has the same files as one that a single process works on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from graphlink.run import job, read_rank

DEMO = Path(__file__).parents[2] / "fixtures" / "demo"
PAIR = job.Inputs(kineto=DEMO / "kineto_0.json", et=DEMO / "et_0.json")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely")
@pytest.mark.parametrize(("most_nodes", "writes_beside"), [(10_000_000, True), (10, False)])
def test_two_processes_write_what_one_does(
    most_nodes: int, writes_beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "_MOST_BESIDE", most_nodes)
    monkeypatch.setattr(job, "LARGE_BYTES", 0)
    monkeypatch.setattr(job, "may_fork", lambda estimates, jobs: jobs is None)
    processes = []
    beside = job.beside
    for module in (job, read_rank):
        monkeypatch.setattr(
            module, "beside", lambda work, *, forked: processes.append(forked) or beside(work, forked=forked)
        )
    folders = {}
    for jobs in (1, None):
        folder = tmp_path / str(jobs)
        folder.mkdir()
        job.run_rank(PAIR, job.Options(), folder, jobs)
        folders[jobs] = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert processes == [False, False, True, writes_beside]
    assert folders[1] == folders[None]
    assert any(name.endswith(".et") for name in folders[1])
