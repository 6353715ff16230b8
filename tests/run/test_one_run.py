"""Recordings that are not of one run are named, when their ranks are joined; --same-run insists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphlink import cli
from tests.simulator.kineto import write_kineto
from tests.simulator.machine import run
from tests.simulator.programs import Training, training_program
from tests.tiny_traces import info, kineto, written

SECOND_US = 1_000_000


def moved(path: Path, by_us: float, **more: Any) -> None:
    document = json.loads(path.read_text())
    for row in document["traceEvents"]:
        if "ts" in row:
            row["ts"] += by_us
    written(path, document | more)


def status(folder: Path, *options: str) -> int:
    return cli.main([str(folder), "--out", str(folder / "out"), "--jobs", "1", "--no-timeline", "--quiet", *options])


def test_recordings_that_do_not_overlap_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        kineto(tmp_path / f"kineto_{rank}.json", info(rank, 3), pid=rank, us=(60 * SECOND_US if rank == 1 else 0))
    assert status(tmp_path) == 1
    err = capsys.readouterr().err
    assert (
        f"{tmp_path}/kineto_1.json: belongs to another run than {tmp_path}/kineto_0.json: it began 59,999.999 ms after that "
        "one" in err
    )
    assert "--same-run" in err
    assert not (tmp_path / "out" / "summary.json").exists()
    assert status(tmp_path, "--same-run", "--resume") == 0
    warnings = json.loads((tmp_path / "out" / "summary.json").read_text())["warnings"]
    assert any("belongs to another run than" in warning for warning in warnings)


def test_recordings_overlap_if_each_does_with_one_before(tmp_path: Path) -> None:
    for rank, us in enumerate((0, 0.9, 1.8)):
        kineto(tmp_path / f"kineto_{rank}.json", info(rank, 3), pid=rank, us=us)
    assert status(tmp_path) == 0


def test_hosts_whose_clocks_are_seconds_apart_are_of_one_run(tmp_path: Path) -> None:
    for rank in range(2):
        path = tmp_path / f"kineto_{rank}.json"
        write_kineto(run(training_program(1, Training(steps=3, layers=2, ranks=2, rank=rank))), path)
        moved(path, rank * 5 * SECOND_US, host_name=f"host{rank}")
    assert status(tmp_path) == 0
    moved(path, 600 * SECOND_US)
    assert status(tmp_path, "--force") == 1


@pytest.mark.parametrize(
    ("other", "us", "words"),
    [
        ({"distributedInfo": info(1, 4)}, 0, "they differ by the number of ranks, 2 and 4"),
        ({"job_id": "9"}, 0, "they differ by the job (job_id)"),
        ({}, 600.1 * SECOND_US, "it began 10.0 min later"),
    ],
)
def test_jobs_of_other_runs_are_not_joined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: dict[str, Any], us: float, words: str
) -> None:
    for rank in range(2):
        path = kineto(tmp_path / f"kineto_{rank}.json", info(rank, 2), pid=rank)
        moved(path, us * rank, **{"job_id": "7", **(other if rank else {})})
        assert cli.main(["--kineto", str(path), "--rank-job", "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert cli.main(["join", str(tmp_path / "out"), "--quiet"]) == 1
    assert (
        f"{tmp_path}/kineto_1.json: belongs to another run than {tmp_path}/kineto_0.json: {words}"
        in capsys.readouterr().err
    )
    assert cli.main(["join", str(tmp_path / "out"), "--quiet", "--same-run"]) == 0
