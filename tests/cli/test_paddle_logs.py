from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ran
from tests.paddle_runs import equal_times, one_f_one_b, simulate
from tests.simulator.paddle import Variation, write_paddle


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    write_paddle(
        simulate(one_f_one_b(4, 8), equal_times(), steps=2), tmp_path / "logs", Variation(other_lines=2, newline="\r\n")
    )
    return tmp_path / "logs"


def test_the_command_writes_a_summary_without_ranks(graphlink: Callable[..., Ran], logs: Path, tmp_path: Path) -> None:
    ran = graphlink("--paddle-logs", logs, "--out", tmp_path / "out")
    assert (ran.status, ran.err) == (0, "")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["ranks"] == []
    assert sorted(summary["files"]) == sorted(path.name for path in (tmp_path / "out").iterdir())
    assert not any(name.endswith((".et", ".perfetto-trace")) or name == "comm_group.json" for name in summary["files"])
    again = graphlink("link", "--paddle-logs", logs, "--out", tmp_path / "again", "-q")
    assert (again.status, again.out) == (0, "")
    assert graphlink("--paddle-logs", logs, "--out", tmp_path / "out").status == 1


@pytest.mark.parametrize("what", ["nowhere", "empty", "torn", "mixed"])
def test_what_is_wrong_with_logs_is_said_and_nothing_is_written(
    graphlink: Callable[..., Ran], logs: Path, tmp_path: Path, what: str
) -> None:
    log = logs / "workerlog.2"
    text = log.read_text()
    if what == "nowhere":
        logs = tmp_path / "nowhere"
    elif what == "empty":
        logs = tmp_path / "empty"
        logs.mkdir()
    elif what == "torn":
        log.write_text(text.replace("job_start_time = 16", "job_start_time = x6", 1))
    else:
        log.write_text(text + text.replace(".00", ".09"))
    ran = graphlink("--paddle-logs", logs, "--out", tmp_path / "out")
    assert (ran.status, ran.out) == (1, "")
    assert str(log if what in ("torn", "mixed") else logs) in ran.err
    assert 2 <= len(ran.err.splitlines()) <= 5
    assert not (tmp_path / "out").exists()
