"""``ops.<rank>.json``: the operations of a rank."""

from __future__ import annotations

from pathlib import Path

import msgspec

from graphlink.operations.records import Operations
from graphlink.read import document


def encode(operations: Operations) -> bytes:
    """Return the file's bytes."""
    return msgspec.json.encode(operations) + b"\n"


def load(path: Path) -> Operations:
    """Read a file of an earlier run.

    Raises:
        InputError: it is none.
    """
    return document.load(path, Operations, "operations of this version of graphlink")
