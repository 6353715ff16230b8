"""Work in a forked process: what it returns and raises arrives, and leaving the block ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from graphlink.engine import beside as module
from graphlink.engine.beside import beside, side_by_side
from graphlink.errors import InputError
from graphlink.model import I64

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely")


def _made() -> tuple[int, I64, str]:
    return os.getpid(), np.arange(100_000), "Ä" * 3


def test_what_a_forked_process_made_arrives_once() -> None:
    with beside(_made, forked=True) as made:
        process, column, text = made()
        assert made()[1] is column
    assert process != os.getpid()
    assert column.tolist() == list(range(100_000)) and column.flags.writeable
    assert text == "ÄÄÄ"


def test_without_forking_it_is_done_here_when_asked_for() -> None:
    with beside(_made, forked=False) as made:
        assert made()[0] == os.getpid()


def _refused() -> None:
    raise InputError("is damaged", path=Path("a.json"), todo="record it again")


def test_an_error_is_raised_where_it_is_asked_for() -> None:
    with pytest.raises(InputError, match="is damaged") as raised, beside(_refused, forked=True) as made:
        made()
    assert raised.value.todo == "record it again"


def test_a_killed_process_is_lack_of_memory() -> None:
    def killed() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(MemoryError), beside(killed, forked=True) as made:
        made()


def test_leaving_ends_the_process(tmp_path: Path) -> None:
    def endless() -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        while True:
            time.sleep(60)

    with pytest.raises(KeyError), beside(endless, forked=True):
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.01)
        raise KeyError
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


PARENT = """
import signal
from graphlink.engine.beside import beside
def endless():
    print(flush=True)
    signal.pause()
with beside(endless, forked=True):
    signal.pause()
"""


def test_it_dies_with_a_parent_that_is_killed() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout
    process.stdout.readline()
    process.kill()
    try:
        process.communicate(timeout=60)  # ends when both have closed its other end
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_tasks_are_done_side_by_side_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "workers", lambda estimates_bytes, jobs: 3)
    done = side_by_side(lambda task: (task * task, os.getpid()), range(8), [1] * 8)
    assert [square for square, _ in done] == [task * task for task in range(8)]
    assert len({process for _, process in done}) == (3 if module.may_fork([1] * 8, None) else 1)
    assert side_by_side(str, [], []) == []


def test_of_tasks_that_fail_the_first_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(task: int) -> int:
        if task in (3, 4, 5):
            raise InputError(f"task {task}")
        return task

    monkeypatch.setattr(module, "workers", lambda estimates_bytes, jobs: 3)
    with pytest.raises(InputError, match="task 3"):
        side_by_side(fails, range(9), [1] * 9)
