"""Large files of one rank: when two processes work on them, and how they are read."""

from __future__ import annotations

from typing import Final

from graphlink.engine.beside import may_fork
from graphlink.engine.memory import estimate_bytes, unpacked_bytes
from graphlink.read.stream import BLOCK_BYTES
from graphlink.run.options import Inputs

LARGE_BYTES: Final = 20_000_000  # of files once unpacked: reading them takes several times as long as to fork
_LARGE_BLOCK: Final = 1 << 18  # 1 MB takes a third longer in two processes that read side by side and share a cache


def two_processes(inputs: Inputs, jobs: int | None) -> bool:
    """Tell whether a second process beside this one makes a rank quicker: its files are large, and a core and memory are free.

    ``jobs``: how many processes the user allows; None: as many as there is room for.
    """
    sizes = _sizes(inputs)
    return sum(sizes) > LARGE_BYTES and may_fork(list(map(estimate_bytes, sizes)), jobs)


def block_bytes(inputs: Inputs) -> int:
    """Return how much is read at a time. It decides in which order names are met, so it follows from the files alone."""
    return _LARGE_BLOCK if sum(_sizes(inputs)) > LARGE_BYTES else BLOCK_BYTES


def _sizes(inputs: Inputs) -> list[int]:
    return [unpacked_bytes(path) for path in (inputs.recording, inputs.et) if path is not None]
