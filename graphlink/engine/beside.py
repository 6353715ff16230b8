"""Work of a rank beside its own process, where a core is free: a forked process does it, and sends back what it made.

Only Linux forks safely, and only a process without other threads. What the forked process holds is this one's until
either changes it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from graphlink.engine.engines import succeeded
from graphlink.engine.memory import workers
from graphlink.process import ResultT, TaskT, die_with_parent, give_back

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

LARGE_BYTES: Final = 20_000_000  # of files once unpacked: reading them takes several times as long as to fork


def may_fork(estimates_bytes: Sequence[int], jobs: int | None) -> bool:
    """Tell whether a second process can work beside this one. ``estimates_bytes``: memory that each of the two may
    need; ``jobs``: how many the user allows."""
    return sys.platform == "linux" and threading.active_count() == 1 and workers(estimates_bytes, jobs) > 1


@contextlib.contextmanager
def beside(work: Callable[[], ResultT], *, forked: bool) -> Iterator[Callable[[], ResultT]]:
    """Do ``work`` in a forked process while the block runs; what is yielded waits for it and returns what it returned.

    Not ``forked``: it is done here, when it is first asked for. Leaving the block without having asked ends the
    process.

    Raises:
        Exception: what ``work`` raised, where it is asked for; MemoryError if its process was killed.
    """
    if not forked:
        yield functools.cache(work)
        return
    import multiprocessing

    give_back()
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    process = fork.Process(target=_do, args=(work, there, os.getpid()), daemon=True)
    process.start()
    there.close()
    try:
        yield functools.cache(functools.partial(_received, here))
    finally:
        here.close()
        process.kill()  # it has sent all that it had, or is not needed
        process.join()


def side_by_side(
    work: Callable[[TaskT], ResultT], tasks: Sequence[TaskT], estimates_bytes: Sequence[int]
) -> list[ResultT]:
    """Return ``work`` of every task, in their order. Some are done in forked processes, one for each further core that
    is there. ``estimates_bytes``: memory that each task may need.

    Raises:
        Exception: what ``work`` raised of the first task that failed.
    """
    count = workers(estimates_bytes, None) if may_fork(estimates_bytes, None) else 1
    parts = [functools.partial(_each, work, tasks[k::count]) for k in range(count)]
    outcomes: dict[int, ResultT | Exception] = {}
    with contextlib.ExitStack() as stack:
        asked = [stack.enter_context(beside(part, forked=k > 0)) for k, part in enumerate(parts)]
        for k, part in enumerate(asked):
            outcomes.update(zip(range(k, len(tasks), count), part(), strict=False))
    return succeeded(outcomes[k] for k in range(len(tasks)))  # behind one that failed its process did no other


def _each(work: Callable[[TaskT], ResultT], tasks: Sequence[TaskT]) -> list[ResultT | Exception]:
    """Return the results, up to the first error, which is the last then."""
    outcomes: list[ResultT | Exception] = []
    for task in tasks:
        try:
            outcomes.append(work(task))
        except Exception as problem:  # noqa: BLE001, PERF203 - it is raised in the process that asks
            return [*outcomes, problem]
    return outcomes


def _do(work: Callable[[], object], out: Connection, parent: int) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it ends it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        made: tuple[object, BaseException | None] = work(), None
    except BaseException as problem:  # noqa: BLE001 - whatever it is, it is raised in the process that asks
        made = None, problem
    columns: list[pickle.PickleBuffer] = []
    told = pickle.dumps(made, protocol=5, buffer_callback=columns.append)
    out.send([column.raw().nbytes for column in columns])
    out.send_bytes(told)
    for column in columns:
        out.send_bytes(column.raw())


def _received(here: Connection) -> Any:
    try:
        columns = [bytearray(size) for size in here.recv()]
        told = here.recv_bytes()
        for column in columns:
            if column:
                here.recv_bytes_into(column)
            else:
                here.recv_bytes()
    except EOFError:
        raise MemoryError from None
    made, problem = pickle.loads(told, buffers=columns)
    if problem is not None:
        raise problem
    return made
