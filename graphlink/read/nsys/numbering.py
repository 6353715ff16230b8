"""The ranks of one nsys export, as the options of a job hold them."""

from __future__ import annotations

from dataclasses import dataclass

from graphlink.model import ProcessGroup


@dataclass(frozen=True, slots=True)
class Numbering:
    """The ranks of the places of one file, and what NCCL tells of the run: the numbers are its own where ``world_size``
    is known.
    """

    ranks: tuple[int, ...]
    world_size: int | None
    groups: tuple[ProcessGroup, ...]
