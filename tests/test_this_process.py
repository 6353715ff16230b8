"""A process that dies with its parent, and the allocator's settings where there is none to set."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from graphlink.process import die_with_parent, gc_paused, keep_freed

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
PARENT = """
import os, signal
from graphlink.process import die_with_parent
parent = os.getpid()
if not os.fork():
    die_with_parent(parent)
    print(os.getpid(), flush=True)
signal.pause()
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent ended")


@linux
def test_a_child_dies_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    child = int(parent.stdout.readline())
    parent.kill()
    try:
        parent.communicate(timeout=60)  # ends when both have closed its other end
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


@linux
@pytest.mark.parametrize(("parent", "status"), [(os.getpid, 0), (os.getppid, -signal.SIGKILL)])
def test_a_child_dies_when_its_parent_has_ended_already(parent: Callable[[], int], status: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", f"from graphlink.process import die_with_parent; die_with_parent({parent()})"],
        env=ENVIRONMENT,
        check=False,
    )
    assert ran.returncode == status


def test_other_systems_let_a_child_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    die_with_parent(1 << 30)


def test_the_allocator_keeps_what_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=lambda *given: told.append(given)))
    keep_freed()
    assert told == [(-3, 32 << 20), (-1, 1 << 30)]


@pytest.mark.parametrize("problem", [AttributeError, OSError, TypeError])
def test_without_mallopt_nothing_changes(monkeypatch: pytest.MonkeyPatch, problem: type[Exception]) -> None:
    def lacking(_: None) -> None:
        raise problem

    monkeypatch.setattr(ctypes, "CDLL", lacking)
    keep_freed()


def test_a_python_without_ctypes_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    keep_freed()
    die_with_parent(os.getppid())


def test_garbage_collection_is_paused_as_long_as_it_was_on() -> None:
    with gc_paused():
        with gc_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
