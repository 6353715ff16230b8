"""Which engine runs the jobs of ranks, and how many of them at once."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from graphlink.engine import pool
from graphlink.engine.memory import workers
from graphlink.engine.pool import Lost

__all__ = ["ENGINES", "Lost", "RunsOn", "run_all", "session"]

log: Final = logging.getLogger("graphlink")
ENGINES: Final = ("pool", "ray")
_Given = TypeVar("_Given")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RunsOn:
    """Say where the jobs of ranks run.

    Attributes:
        jobs: How many at a time; None: as many as cores and memory allow, on a cluster as it has room.
        engine: ``pool``, processes of this machine, or ``ray``, a Ray cluster.
    """

    jobs: int | None = None
    engine: str = "pool"


@contextlib.contextmanager
def session(runs_on: RunsOn) -> Iterator[None]:
    """Calls of ``run_all`` inside share what the engine needs to be started."""
    if runs_on.engine != "ray":
        yield
        return
    from graphlink.engine.ray import session as ray_session

    with ray_session():
        yield


def run_all(
    work: Callable[[_Given], _Result], tasks: Sequence[_Given], runs_on: RunsOn, estimates_bytes: Sequence[int], what: str = "ranks"
) -> list[_Result | Lost]:
    """``work`` of every task, in the order of ``tasks``; ``estimates_bytes``: the memory that each may need."""

    def done(count: int) -> None:
        log.info("%d of %d %s", count, len(tasks), what)

    if not tasks:
        return []
    if runs_on.engine == "ray":
        from graphlink.engine.ray import run_all_on_ray

        return run_all_on_ray(work, tasks, runs_on.jobs, done, estimates_bytes)
    return pool.run_all(work, tasks, workers(estimates_bytes, runs_on.jobs), done)
