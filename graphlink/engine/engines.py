"""The engine that runs the jobs of ranks, how many of them at once, and what is reported of those that fail."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from graphlink.choices import CHOICES
from graphlink.engine.memory import workers
from graphlink.errors import GraphlinkError, InputError, log
from graphlink.process import ResultT, TaskT


@dataclass(frozen=True, slots=True)
class RunsOn:
    """Say where the jobs of ranks run.

    Attributes:
        jobs: How many at a time; None: as many as cores and memory allow, on a cluster as it has room.
        engine: ``pool``, processes of this machine, or ``ray``, a Ray cluster.
    """

    jobs: int | None = None
    engine: str = CHOICES["engine"][0]


def session(runs_on: RunsOn) -> contextlib.AbstractContextManager[Any]:
    """Start what the engine needs once, for all calls of ``run_all`` inside."""
    if runs_on.engine == "ray":
        from graphlink.engine.ray import session as ray_session

        return ray_session()
    from graphlink.engine.pool import session as pool_session

    return pool_session()


@contextlib.contextmanager
def naming_limits(recording: str) -> Iterator[None]:
    """Turn what a rank asks too much of into an InputError that names its recording."""
    try:
        yield
    except MemoryError:
        raise InputError(
            "out of memory",
            path=recording,
            todo="use a machine with more, fewer ranks at a time with --jobs, or only some steps with --step",
        ) from None
    except RecursionError:
        raise InputError(
            "this or its execution trace is nested too deeply", path=recording, todo="record it again"
        ) from None


def run_all(
    work: Callable[[TaskT], ResultT],
    tasks: Sequence[TaskT],
    names: Sequence[str],
    runs_on: RunsOn,
    estimates_bytes: Sequence[int],
    what: str = "ranks",
) -> list[ResultT | GraphlinkError]:
    """Return ``work`` of every task, or the error with which it failed, in the order of ``tasks``.

    ``names``: of their recordings, for messages; ``estimates_bytes``: the memory that each may need.
    """

    from graphlink.engine import pool

    def done(count: int) -> None:
        log.info("%d of %d %s", count, len(tasks), what)

    if not tasks:
        return []
    attempt = functools.partial(_attempt, work)
    named = list(zip(names, tasks, strict=True))
    if runs_on.engine == "ray":
        from graphlink.engine.ray import run_all_on_ray

        outcomes = run_all_on_ray(attempt, named, runs_on.jobs, done, estimates_bytes)
    else:
        outcomes = pool.run_all(attempt, named, workers(estimates_bytes, runs_on.jobs), done)
    return [
        InputError(f"{name}: {one.text}") if isinstance(one, pool.Lost) else one
        for one, name in zip(outcomes, names, strict=True)
    ]


def succeeded(outcomes: Iterable[ResultT | Exception]) -> list[ResultT]:
    """Return the results of tasks, or raise the error of the first one that failed."""
    results: list[ResultT] = []
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
        results.append(outcome)
    return results


def _attempt(work: Callable[[TaskT], ResultT], named: tuple[str, TaskT]) -> ResultT | GraphlinkError:
    name, task = named
    try:
        with naming_limits(name):
            return work(task)
    except GraphlinkError as problem:
        return problem
