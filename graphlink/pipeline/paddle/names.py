"""The names of worker logs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

WORKER: Final = re.compile(r"workerlog\.(\d{1,9})(?:\.(?:gz|zst|log|txt))*")


def is_worker_log(path: Path) -> bool:
    """Return whether the file is named as a worker log."""
    return WORKER.fullmatch(path.name) is not None
