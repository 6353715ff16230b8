"""Passes over graphs of millions of nodes that stay linear: a block of nodes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from graphlink.model import I64

BLOCK: Final = 1 << 15


def blocks(first: I64) -> Iterator[tuple[slice, slice]]:
    """The nodes of a graph a block at a time, lowest first, each with its edges (``first``: CSR by target, as in ``Graph``).

    What is made of a block stays in the processor's cache, and in memory that is used again. A column of all edges does neither: the
    system gives fresh pages for it every time (glibc: above 32 MB), which cost more than the numbers in them.
    """
    last = len(first) - 1
    for low in range(0, last, BLOCK):
        high = min(low + BLOCK, last)
        yield slice(low, high), slice(int(first[low]), int(first[high]))
