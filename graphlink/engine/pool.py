"""Jobs in processes of this machine; a process that is killed takes only the task it worked on along, and that one has
a second try.

Each worker has a pipe of its own, so that it is known which task it died over. (``concurrent.futures`` gives up all its
workers when one dies, and does not say on which task.)
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Final

from graphlink.process import ResultT, TaskT, die_with_parent

_SPAWN: Final = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Lost:
    """A task without a result: ``text`` says what became of its process."""

    text: str


def run_all(
    work: Callable[[TaskT], ResultT], tasks: Sequence[TaskT], at_once: int, done: Callable[[int], None]
) -> list[ResultT | Lost]:
    """Return ``work`` of every task, in the order of ``tasks``; ``done`` is called after each with how many are
    finished.

    A single task runs in this process, several in up to ``at_once`` others, which take one task after the other. A task
    whose process dies is tried again when all others are finished, alone in a process of its own, and is ``Lost`` if
    that dies as well. What else ends this call (Ctrl-C, or what ``work`` raises, which is raised here) kills the
    workers first.
    """
    if len(tasks) == 1:
        only = work(tasks[0])
        done(1)
        return [only]
    finished: dict[int, ResultT | Lost] = {}
    everything = range(len(tasks))
    tries: list[Sequence[int]] = [everything]  # and then each task whose process died
    with session() as crew:
        for numbers in tries:
            if numbers is not everything:
                _stop(crew)
            for task, outcome in _outcomes(work, tasks, numbers, at_once, crew):
                if isinstance(outcome, Lost) and numbers is everything:
                    tries.append([task])
                    continue
                finished[task] = outcome
                done(len(finished))
    return [finished[task] for task in everything]


class _Worker:
    """A process that works on one task after the other. ``task``: the number of the one that it has now, or None."""

    def __init__(self) -> None:
        self.task: int | None = None
        self.pipe, self._theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_serve, args=(self._theirs, os.getpid()))

    def start(self) -> None:
        with self._theirs, _signals_held(), _without_script():
            self.process.start()

    def give(self, task: int, work: Callable[[TaskT], ResultT], value: TaskT) -> None:
        data = pickle.dumps((work, value), pickle.HIGHEST_PROTOCOL)
        self.task = task
        with contextlib.suppress(
            ConnectionError
        ):  # it is dead: its end of the pipe says so to who waits for the result
            self.pipe.send_bytes(data)

    def stop(self) -> None:
        self.pipe.close()
        if self.process.pid is not None:
            self.process.kill()
            self.process.join()
        self.process.close()


_CREW: Final[ContextVar[list[_Worker] | None]] = ContextVar("crew", default=None)


@contextlib.contextmanager
def session() -> Iterator[list[_Worker]]:
    """Let all calls of ``run_all`` inside share their workers: each takes half a second to import what it works with.
    No worker is left when the outermost ends, or when anything is raised.
    """
    outer = _CREW.get()
    crew: list[_Worker] = [] if outer is None else outer
    with contextlib.ExitStack() as stack:
        stack.callback(_stop, crew)
        if outer is None:
            stack.callback(_CREW.reset, _CREW.set(crew))
        yield crew
        if outer is not None:
            stack.pop_all()


def _stop(crew: list[_Worker]) -> None:
    for worker in crew:
        worker.stop()
    crew.clear()


def _outcomes(
    work: Callable[[TaskT], ResultT], tasks: Sequence[TaskT], numbers: Sequence[int], at_once: int, crew: list[_Worker]
) -> Iterator[tuple[int, ResultT | Lost]]:
    """Yield number and outcome of those tasks, as they come."""
    waiting = list(reversed(numbers))
    while waiting or any(worker.task is not None for worker in crew):
        while waiting and len(crew) < at_once:
            crew.append(_Worker())  # before it starts: a signal that comes meanwhile finds it in the crew
            crew[-1].start()
            crew[-1].give(waiting[-1], work, tasks[waiting.pop()])
        for worker in crew[:at_once]:
            if waiting and worker.task is None:
                worker.give(waiting[-1], work, tasks[waiting.pop()])
        ready = wait([worker.pipe for worker in crew if worker.task is not None])
        for worker in [worker for worker in crew if worker.pipe in ready]:
            task, worker.task = worker.task, None
            assert task is not None
            try:
                outcome, error, trace = pickle.loads(worker.pipe.recv_bytes())
            except (EOFError, OSError):
                worker.process.join()
                outcome, error, trace = Lost(_how_it_ended(worker.process.exitcode)), None, ""
                crew.remove(worker)
                worker.stop()
            if error is not None:
                raise error from RuntimeError(trace)
            yield task, outcome


def _how_it_ended(exitcode: int | None) -> str:
    if exitcode == -signal.SIGKILL:
        return "its process was killed by signal 9, most likely for want of memory"
    if exitcode is not None and exitcode < 0:
        return f"its process was killed by signal {-exitcode} ({signal.strsignal(-exitcode)})"
    return f"its process ended with status {exitcode}"


def _serve(pipe: Connection, parent: int) -> None:
    """Run a worker: (work, task) come and (outcome, error, its traceback) go through ``pipe``, until the other end is
    closed.
    """
    die_with_parent(parent)  # or it would finish its task, beside a run that does it again
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to end
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
    with contextlib.suppress(EOFError, ConnectionError):  # reset: the parent was killed before it took an answer
        while True:
            data = pipe.recv_bytes()
            try:
                work, value = pickle.loads(data)
                answer = pickle.dumps((work(value), None, ""), pickle.HIGHEST_PROTOCOL)
            except Exception as error:  # noqa: BLE001 - it is raised in the parent
                answer = _packed(error, "\n" + traceback.format_exc())
            pipe.send_bytes(answer)


def _packed(error: Exception, trace: str) -> bytes:
    """Pickle an outcome; an exception that does not survive this becomes a RuntimeError with its traceback."""
    try:
        data = pickle.dumps((None, error, trace))
        pickle.loads(data)
    except Exception:  # noqa: BLE001 - classes of others raise what they want here
        return pickle.dumps((None, RuntimeError(trace), trace))
    return data


_SCRIPT: Final = threading.Lock()


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
    """Start processes without ``__main__`` and its arguments.

    A process that is started would run the user's script again, up to the very call that starts it; what it works on is
    never in it. Thousands of file names do not fit into the pipe (64 KiB) through which ``multiprocessing`` sends it
    what it starts with: should it die before it reads them, this process, which keeps the reading end open meanwhile,
    would wait for good.
    """
    with _SCRIPT:
        main, arguments = sys.modules["__main__"], sys.argv
        sys.modules["__main__"], sys.argv = ModuleType("__main__"), arguments[:1]
        try:
            yield
        finally:
            sys.modules["__main__"], sys.argv = main, arguments


_HELD: Final = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Delay signals until a process is started: before it ignores Ctrl-C it would print a traceback, and half started
    be lost.
    """
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # if a process had to start it, it would let signals through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
