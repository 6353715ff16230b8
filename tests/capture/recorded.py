"""What a capture left in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def ranges(folder: Path, rank: int = 0) -> list[str]:
    """Names of the recorded steps, in order, by Kineto."""
    rows = [e for e in kineto(folder, rank)["traceEvents"] if e.get("name", "").startswith("ProfilerStep#")]
    return [e["name"] for e in sorted(rows, key=lambda e: e["ts"])]


def kineto(folder: Path, rank: int = 0) -> Any:
    return json.loads((folder / f"kineto_{rank}.json").read_text())


def et(folder: Path, rank: int = 0) -> Any:
    return json.loads((folder / f"et_{rank}.json").read_text())


def told(folder: Path, rank: int = 0) -> Any:
    return json.loads((folder / f"capture.{rank}.json").read_text())
