"""What a window recorded and what it cost, as a record and as ``capture.<rank>.json`` beside the recording."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graphlink.capture.files import put
from graphlink.capture.hooks import Did
from graphlink.capture.place import Meeting, Place
from graphlink.capture.support import Support
from graphlink.version import __version__


@dataclass(frozen=True, slots=True)
class Report:
    """``spent_ns``: time that training stood still, by what for: prepare, together (waiting for other ranks), start, stop, write."""

    folder: Path
    place: Place
    steps: tuple[int, ...]  # begun, as numbered in the ranges ProfilerStep#N
    ended: str  # by what: the schedule, stop, or what cut it short
    bytes: dict[str, int]  # by file name
    spent_ns: dict[str, int]
    settings: dict[str, Any]  # of PyTorch's profiler
    together: Meeting | None
    hooks: tuple[Did, ...]
    warnings: tuple[str, ...]
    support: Support

    def line(self) -> str:
        """``rank 0: steps 2 to 4 in out, 1.2 MB; training stood still for 0.123 s (prepare 0.100, start 0.023)``"""
        first, last = self.steps[0], self.steps[-1]
        steps = f"step {first}" if first == last else f"steps {first} to {last}"
        parts = ", ".join(f"{name} {ns / 1e9:.3f}" for name, ns in self.spent_ns.items())
        still_s, size_mb = sum(self.spent_ns.values()) / 1e9, sum(self.bytes.values()) / 1e6
        return f"rank {self.place.rank}: {steps} in {self.folder}, {size_mb:.1f} MB; training stood still for {still_s:.3f} s ({parts})"

    def write(self) -> None:
        """OSError where it cannot be written."""
        text = json.dumps({"graphlink_capture": __version__, **asdict(self)}, indent=1, default=str) + "\n"
        put(self.folder / f"capture.{self.place.rank}.json", lambda part: part.write_text(text, encoding="utf-8"))
