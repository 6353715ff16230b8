"""Work for the tests of engines; in a module of its own, which workers import."""

from __future__ import annotations

import importlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Task:
    """``number`` is squared; before that, ``tries`` times, the process kills itself.

    ``folder`` keeps a file of each attempt, with its time in it.
    """

    number: int
    folder: Path
    tries: int = 0
    signal: int = signal.SIGKILL


def square(task: Task) -> int:
    attempt = len(list(task.folder.glob(f"{task.number}.*")))
    (task.folder / f"{task.number}.{attempt}.{os.getpid()}").write_text(str(time.time_ns()))
    if attempt < task.tries:
        os.kill(os.getpid(), task.signal)
        time.sleep(60)
    return task.number**2


def attempts(folder: Path, number: int) -> int:
    return len(list(folder.glob(f"{number}.*")))


def in_time_order(folder: Path) -> list[str]:
    """Task and attempt, as they began."""
    return [path.stem for path in sorted(folder.iterdir(), key=lambda path: int(path.read_text()))]


def processes(folder: Path) -> set[int]:
    """Numbers of the processes that made an attempt."""
    return {int(path.suffix[1:]) for path in folder.iterdir()}


def slow_square(task: Task) -> int:
    time.sleep(0.2 if task.number == 0 else 0)
    return square(task)


def reject_two(task: Task) -> int:
    if task.number == 2:
        raise KeyError("two", task.number)
    return task.number


class Unpicklable(Exception):
    def __init__(self, one: int, other: int):
        super().__init__(f"{one} and {other}")


def raise_unpicklable(task: Task) -> int:
    raise Unpicklable(1, 2)


def leave(task: Task) -> int:
    os._exit(7)


def second(unused: bytes, task: bytes) -> int:
    return len(task)


class Unimportable:
    """Work that lacks in a worker what it needs."""

    def __call__(self, task: Task) -> int:
        return task.number

    def __reduce__(self) -> tuple[object, ...]:
        return importlib.import_module, ("no_such_module",)


def sleep_long(task: Task) -> int:
    square(task)
    time.sleep(600)
    return 0
