"""``ops.<rank>.json``: the operations of a rank."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np

from graphlink import output_names
from graphlink.operations.records import Operations
from graphlink.read import document
from graphlink.replay.selection import NodeOperations


def encode(operations: Operations) -> bytes:
    """Return the file's bytes."""
    return msgspec.json.encode(operations) + b"\n"


def load(path: Path) -> Operations:
    """Read a file of an earlier run.

    Raises:
        InputError: it is none.
    """
    return document.load(path, Operations, "operations of this version of graphlink")


def of_nodes(folder: Path, ranks: Iterable[int]) -> dict[int, NodeOperations]:
    """Read the operations of the nodes of those ranks whose files are in a folder.

    Raises:
        InputError: a file is none.
    """
    paths = {rank: folder / output_names.operations(rank) for rank in ranks}
    files = {rank: load(path) for rank, path in paths.items() if path.exists()}
    return {
        rank: NodeOperations(
            np.clip(np.array(file.of_node, np.int64), -1, len(file.operations) - 1),
            tuple("/".join(one.path) for one in file.operations),
            tuple("\n".join(one.stack) for one in file.operations),
        )
        for rank, file in files.items()
        if file.of_node  # those of earlier versions have none
    }
