"""The op that asked for a row that another thread ran.

Gloo begins the range of a collective on one of its own threads, when that thread takes the work up: later than it was
asked for, and with several of them in another order than asked. The op that asked shows by PyTorch's record function
ids: the range gets its id where the work is made, inside the ``c10d`` op, so the op is the last one with a lesser id.
(A send or receive begins on the thread that asks.)
"""

from __future__ import annotations

import re

import numpy as np

from graphlink.model import I32, Linked
from graphlink.patterns import fits
from graphlink.tables import spread

ASKING = re.compile("c10d::.*", re.DOTALL)


def askers(linked: Linked) -> I32:
    """Find the op that asked for each host row; NOWHERE of rows that nest, that began on the asking thread, or without
    ids. O(n log n).
    """
    rows = linked.trace.host
    run = np.flatnonzero(linked.crossing & ~np.isin(rows.tid, rows.tid[~linked.crossing]))
    asking = np.flatnonzero(fits(ASKING, linked.trace.strings)[rows.name] & ~rows.annotation)
    asking = asking[np.argsort(rows.rf_id[asking], kind="stable")]
    ids = rows.rf_id[asking]
    if not len(ids) or (rows.rf_id == rows.rf_id[0]).all():  # one id for all is none
        run = run[:0]
    at = np.searchsorted(ids, rows.rf_id[run]) - 1
    op = asking[np.maximum(at, 0)]
    known = (at >= 0) & (rows.start_ns[op] <= rows.start_ns[run])
    return spread(len(rows.tid), run[known], op[known].astype(np.int32))
