"""Passes over graphs of millions of nodes that stay linear: a block of nodes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I64

BLOCK: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class Block:
    """Some nodes, one after the other, with all edges that enter them: slices of columns of nodes and of edges."""

    nodes: slice
    edges: slice
    bounds: I64  # of the edges of each node, from the first edge of the block

    @property
    def degree(self) -> I64:
        """How many edges enter each node."""
        return np.diff(self.bounds)

    @property
    def target(self) -> I64:
        """The node that each edge enters."""
        return np.repeat(np.arange(self.nodes.start, self.nodes.stop), self.degree)


def blocks(first: I64) -> Iterator[Block]:
    """The nodes of a graph a block at a time, lowest first (``first``: CSR by target, as in ``Graph``).

    What is made of a block stays in the processor's cache, and in memory that is used again. A column of all edges does neither: the
    system gives fresh pages for it every time (glibc: above 32 MB), which cost more than the numbers in them.
    """
    last = len(first) - 1
    for low in range(0, last, BLOCK):
        bounds = first[low : min(low + BLOCK, last) + 1]
        yield Block(slice(low, low + len(bounds) - 1), slice(int(bounds[0]), int(bounds[-1])), bounds - bounds[0])
