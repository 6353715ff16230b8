"""Recognise the kinds of the files of a folder."""

from __future__ import annotations

from pathlib import Path

from graphlink.errors import InputError
from graphlink.read.kinds import ET, JAX, KINETO, NCCL, binary_kind, is_jax, kind_by_name
from graphlink.read.nccl_kinds import HEAD_BYTES, kind_of
from graphlink.read.source import open_source
from graphlink.read.stream import open_array

_HEAD_BYTES = 1 << 20


def looks_like(path: str | Path) -> str | None:
    """Identify a file by content: "kineto", "et", "nsys", "chakra", "zip", "tar", "packed", "nccl", or another of
    ``kinds``; else None.

    Reads no more than the text before the list of events. A file that cannot be opened is an InputError.
    """
    with open_source(path) as source:
        head = source.read(HEAD_BYTES)
    if kind_of(head) is not None:
        return NCCL.name
    kind = binary_kind(head[:512]) or kind_by_name(Path(path).name)
    if kind is not None:
        return kind.name
    try:
        with open_array(path, ("traceEvents", "nodes"), _HEAD_BYTES) as array:
            if array.key is not None:
                if array.key == "traceEvents" and is_jax(head):
                    return JAX.name
                return {"traceEvents": KINETO, "nodes": ET}[array.key].name
            first = next(array.blocks(dict), None)
            return (
                KINETO.name if first is not None and any(isinstance(row.get("ph"), str) for row in first.rows) else None
            )
    except InputError:
        return None
