"""All kinds of findings, by name."""

from __future__ import annotations

from typing import Final

from graphlink.doctor import comm, environment, et, kineto, nccl, nsys, ranks, waits
from graphlink.doctor.records import Kind

MODULES: Final = (kineto, waits, comm, et, ranks, nsys, nccl, environment)
KINDS: Final[dict[str, Kind]] = {kind.name: kind for module in MODULES for kind in module.KINDS}
