"""Jobs on a Ray cluster: the one that runs, or one of this machine that is started for them. Same contract as
``pool.run_all``.

The files that jobs read and write must be where all nodes of the cluster see them: on a disk that they share, or behind
URLs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any, Final

from graphlink.engine.pool import Lost
from graphlink.errors import InputError, UsageError
from graphlink.process import ResultT, TaskT

RETRIES: Final = 4  # of a task whose worker or node went away
CONNECT_S: Final = 10  # for an answer from RAY_ADDRESS


def run_all_on_ray(
    work: Callable[[TaskT], ResultT],
    tasks: Sequence[TaskT],
    at_once: int | None,
    done: Callable[[int], None],
    estimates_bytes: Sequence[int],
) -> list[ResultT | Lost]:
    """Return ``work`` of every task, in the order of ``tasks``; ``done`` is called after each with how many are
    finished.

    Each task has a core, and ``estimates_bytes`` of memory (no more than a node has, it would wait for ever). At most
    ``at_once`` are handed to Ray at a time. A task whose worker or node goes away is tried ``RETRIES`` times more, then
    it is ``Lost``; what ``work`` raises is raised here. Names of files may be relative to the folder of this process.
    Ctrl-C and all else that ends this call early cancels what runs. While Ray runs, what is written to standard output
    is dropped: Ray tells there of workers that died, whatever it is asked.

    Raises:
        UsageError: Ray is not installed.
        InputError: there is no cluster at ``RAY_ADDRESS``, Ray does not start, or a node lacks a module.
    """
    folder = Path.cwd()

    def job(packed: bytes) -> Any:  # nested, so that a node without graphlink can run it and say so
        import contextlib
        import os
        import pickle

        with contextlib.suppress(OSError):  # not there: then nothing that the names are relative to is
            os.chdir(folder)
        function, task = pickle.loads(packed)
        return function(task)

    finished: dict[int, ResultT | Lost] = {}
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere), session() as ray:
        remote = ray.remote(num_cpus=1, max_retries=RETRIES, retry_exceptions=False)(job)
        most = max((int(node["Resources"].get("memory", 0)) for node in ray.nodes() if node["Alive"]), default=0)
        running: dict[Future[Any], tuple[int, Any]] = {}
        waiting = list(reversed(range(len(tasks))))
        try:
            while waiting or running:
                while waiting and (at_once is None or len(running) < at_once):
                    task = waiting.pop()
                    reference = remote.options(memory=min(estimates_bytes[task], most)).remote(
                        ray.cloudpickle.dumps((work, tasks[task]))
                    )
                    running[reference.future()] = task, reference
                for future in wait(running, return_when=FIRST_COMPLETED).done:  # not ray.wait, which swallows SIGTERM
                    task, _ = running.pop(future)
                    finished[task] = _outcome(ray, future)
                    done(len(finished))
        finally:
            for _, reference in running.values():
                ray.cancel(reference, force=True)
    return [finished[task] for task in range(len(tasks))]


def _outcome(ray: Any, future: Future[Any]) -> Any:
    gone = ray.exceptions
    try:
        return future.result()
    except gone.RayTaskError as error:
        if isinstance(error.cause, ModuleNotFoundError):
            raise InputError(
                f"a node of the Ray cluster has no module {error.cause.name}",
                todo="install the same graphlink on every node",
            ) from error
        raise error.cause from error
    except gone.OutOfMemoryError:
        return Lost("Ray killed its process for want of memory")
    except (gone.WorkerCrashedError, gone.NodeDiedError, gone.LocalRayletDiedError, gone.ObjectLostError):
        return Lost(f"its process, or the node under it, went away {RETRIES + 1} times, most likely for want of memory")


@contextlib.contextmanager
def session() -> Iterator[Any]:
    """Yield the module ``ray``, connected: calls of ``run_all_on_ray`` inside share the connection, and a cluster that
    is started for them.

    The cluster is that which this process is connected to; else that at ``RAY_ADDRESS``; else that of ``ray start``;
    else one of its own. Only the last is ended. One that another program started for itself is not joined: it ends with
    that.

    Raises:
        UsageError, InputError: as ``run_all_on_ray``.
    """
    os.environ.setdefault(
        "RAY_task_oom_retries", str(RETRIES)
    )  # of tasks that its memory monitor kills; else it tries for ever
    try:
        import ray
    except ImportError:
        raise UsageError("--engine ray needs Ray", todo="pip install '.[ray]' in a clone of graphlink") from None
    if ray.is_initialized():
        yield ray
        return
    _refuse_dead_address()
    try:
        with _sigterm_kept():
            _start(ray)
        yield ray
    finally:
        ray.shutdown()


def _start(ray: Any) -> None:
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        raise InputError(
            f"Ray cannot be reached or started ({error})", todo="see its logs in /tmp/ray, or leave out --engine ray"
        ) from error


def _refuse_dead_address() -> None:
    """Refuse an address at which no cluster answers; Ray itself would try for minutes."""
    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto", "local"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster answers at {address} ({error})", todo="check RAY_ADDRESS, or unset it to use this machine"
        ) from None


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Keep the handler of SIGTERM: ``ray.init`` puts a handler of its own for SIGTERM, which raises SystemExit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit:
        signal.signal(signal.SIGTERM, before)
        signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
