"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from graphlink.errors import OutputError

TAIL_BYTES = 8192  # more than a path can have


def part_of(path: Path, pid: int | None = None) -> Path:
    """Return where a file is written before it takes its name: in the same folder, hidden, under a name that no reader
    takes for a recording.

    ``pid``: of the process that writes it, this one if None.
    """
    return path.with_name(f".{path.name}.{os.getpid() if pid is None else pid}.part")


def put(path: Path, write: Callable[[Path], object], last_key: str = "") -> int:
    """Have a file written and give it its name. Returns its size in bytes. OutputError where it was cut (full disk)."""
    part = part_of(path)
    try:
        write(part)
        return settle(path, last_key)
    finally:
        for left in (part, part.with_name(f"{part.name}.tmp")):  # Kineto writes into the second
            left.unlink(missing_ok=True)


def settle(path: Path, last_key: str = "") -> int:
    """Give a file that was written under the name of ``part_of`` its own; ``last_key`` is the last of the object of a
    JSON file.

    PyTorch reports no write that failed, so it is looked whether a JSON file has its end.
    """
    part = part_of(path)
    if not part.exists():
        raise OutputError("was not written", path=path, todo="look for free space there")
    size = part.stat().st_size
    with part.open("rb") as file:
        file.seek(max(size - TAIL_BYTES, 0))
        tail = file.read().rstrip()
    if path.suffix == ".json" and (not tail.endswith((b"}", b"]")) or last_key.encode() not in tail):
        part.unlink()
        raise OutputError(f"was cut after {size:,} bytes", path=path, todo="look for free space there")
    part.replace(path)
    return size


def writable(folder: Path) -> None:
    """Make the folder, and prove that files can be written there. OSError where they cannot."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = part_of(folder / "probe")
    probe.touch()
    probe.unlink(missing_ok=True)
