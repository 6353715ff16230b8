"""The rank and the run of this process, and a place for all of them to start together."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from graphlink.version import __version__


@dataclass(frozen=True, slots=True)
class WorldRank:
    """``told_by``: torch.distributed, or the name of the variable; "" where nothing recorded it. ``world_size`` None
    where it is not known."""

    rank: int
    world_size: int | None
    told_by: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Meeting:
    """``missing``: ranks that had not come when the time was up. ``released_unix_ns``: when this rank went on."""

    waited_ns: int
    released_unix_ns: int
    missing: tuple[int, ...] = ()


def here(environ: Mapping[str, str] = os.environ) -> WorldRank:
    """Find the rank from torch.distributed, else RANK or SLURM_PROCID, else rank 0."""
    host, pid = socket.gethostname(), os.getpid()
    distributed = running()
    if distributed is not None:
        return WorldRank(distributed.get_rank(), distributed.get_world_size(), "torch.distributed", host, pid)
    for name, size in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if environ.get(name, "").isdigit():
            world = environ.get(size, "")
            return WorldRank(int(environ[name]), int(world) if world.isdigit() else None, name, host, pid)
    return WorldRank(0, None, "", host, pid)


def running() -> Any:
    """Return ``torch.distributed`` where its default process group is there, else None."""
    import torch.distributed as distributed

    return distributed if distributed.is_available() and distributed.is_initialized() else None


def meet(place: WorldRank, timeout_s: float, window: int) -> Meeting | None:
    """Wait until all ranks of the run have come here, at most ``timeout_s``; None where there are no others.

    ``window``: which of the process, so that a rank whose window failed does not meet others in a later one.

    By the store of the default process group: a barrier of a process group would be work on the device, and an entry in
    the recorded list of groups. RuntimeError where the store is gone.
    """
    distributed = running()
    if distributed is None or distributed.get_world_size() < 2:
        return None
    began = time.perf_counter_ns()
    store: Any = distributed.distributed_c10d._get_default_store()
    key = f"graphlink/{__version__}/capture/{window}"
    size = distributed.get_world_size()
    store.set(f"{key}/{place.rank}", "here")
    if store.add(f"{key}/arrived", 1) == size:
        store.set(f"{key}/go", "go")
    missing: tuple[int, ...] = ()
    try:
        store.wait([f"{key}/go"], timedelta(seconds=timeout_s))
    except RuntimeError:  # DistStoreError: the time is up
        missing = tuple(rank for rank in range(size) if not store.check([f"{key}/{rank}"]))
        if not missing:
            raise
    return Meeting(time.perf_counter_ns() - began, time.time_ns(), missing)
