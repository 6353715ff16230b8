"""The names of the files that graphlink writes into an output folder, and which names are its own: the one place that
decides them.
"""

from __future__ import annotations

import re
from typing import Final

SUMMARY: Final = "summary.json"  # says which files of a folder are graphlink's
GROUPS: Final = "comm_group.json"
BUBBLES: Final = "bubbles.json"
PIPELINE: Final = "pipeline.svg"
TIMELINE: Final = "timeline.perfetto-trace"
PATH_ACROSS: Final = "critical_path.ranks.json"
PAGE: Final = "report.html"
_OF_ASTRA: Final = ("memory.json", "system.json", "README.txt", "network.yml", "run.sh")
_ALONE: Final = (SUMMARY, GROUPS, BUBBLES, PIPELINE, TIMELINE, PATH_ACROSS, PAGE, *_OF_ASTRA)
_MANY: Final = re.compile(
    r"[^\0/]{1,240}\.[0-9]{1,10}\.et|(?:critical_path|linked|idle|ops)\.[0-9]{1,10}\.json"
    r"|(?:nodes|edges|ops|operations|kernels|syncs|collectives|idle|critical_path|gains|ranges|bubbles)\.(?:parquet|arrow|csv)"
)


def is_own(name: str) -> bool:
    """Tell whether graphlink gives its outputs this name, those of ``graphlink astra`` and ``graphlink export``
    included.
    """
    return name in _ALONE or _MANY.fullmatch(name) is not None


def graph(prefix: str, rank: int) -> str:
    """Return the name of a rank's graph; ``prefix`` is that of ``--name``."""
    return f"{prefix}.{rank}.et"


def critical_path(rank: int) -> str:
    """Return the name of a rank's critical path."""
    return f"critical_path.{rank}.json"


def idle(rank: int) -> str:
    """Return the name of a rank's idle intervals."""
    return f"idle.{rank}.json"


def operations(rank: int) -> str:
    """Return the name of a rank's operations."""
    return f"ops.{rank}.json"


def linked(rank: int) -> str:
    """Return the name of a rank's merged trace."""
    return f"linked.{rank}.json"
