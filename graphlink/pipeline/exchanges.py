"""The communication of one rank: when it ran, with whom, which one of its group it was, and what NCCL's own records
tell of it.

A call that receives waited until NCCL's proxies had the first data from any peer; one that only sends, until a peer
first took some. What comes after may hold more waiting (a ring goes on when its slowest member does): no transfer is
taken for a wait.
"""

from __future__ import annotations

import numpy as np

from graphlink.model import I32, I64, NOWHERE, CommKind, CommOps
from graphlink.tables import turns


def ordinals(ops: CommOps) -> I64:
    """Count the collectives of each group, and the sends to, or receives from, each peer with the same tag; ``NOWHERE``
    for all else.

    O(n log n).
    """
    collective = ops.kind == CommKind.COLLECTIVE
    peer, tag = np.where(collective, 0, ops.peer), np.where(collective, 0, ops.tag)
    out = turns(ops.kind, ops.group, peer, tag)
    out[(ops.kind == CommKind.UNKNOWN) | (collective & (ops.group == NOWHERE))] = NOWHERE
    return out


def of_rows(ops: CommOps, count: int, *, on_host: bool) -> I32:
    """Return the op of each of ``count`` device rows, or host rows; ``NOWHERE`` for what is none."""
    out = np.full(count, NOWHERE, np.int32)
    mine = np.flatnonzero(ops.on_host == on_host)
    out[ops.row[mine]] = mine
    return out
