"""Which pipeline range each device op belongs to: by its launch call, never by when it ran.

A call belongs to the innermost range of its own thread around it. A call of another thread inside a backward range belongs to that: the
main thread sits in ``backward()`` while autograd's threads launch. Of a forward range other threads are no part (data loaders copy there).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.model import I32, I64, NOWHERE, Linked
from graphlink.pipeline.entries import Entries, enclosing
from graphlink.pipeline.records import Phase

_BACKWARD = (Phase.B, Phase.I, Phase.W)


@dataclass(frozen=True, slots=True)
class Attributed:
    """``entry`` of each device row, ``NOWHERE`` for those of no range; ``left_out`` counts these by reason."""

    entry: I32
    left_out: dict[str, int]


def attribute(linked: Linked, entries: Entries) -> Attributed:
    """O(n log n) in device rows and ranges."""
    calls = linked.trace.calls
    launched = linked.device_call != NOWHERE
    call, which = np.unique(linked.device_call[launched], return_inverse=True)
    of_call, ambiguous = _of_calls(entries, calls.tid[call], calls.start_ns[call])
    out = np.full(len(linked.device_call), NOWHERE, np.int32)
    out[launched] = of_call[which]
    unsure = int(np.count_nonzero(ambiguous[which])) if len(which) else 0
    outside = int(np.count_nonzero(out[launched] == NOWHERE)) - unsure
    reasons = {
        "device ops launched outside any range": outside,
        "device ops launched by a thread inside ranges of several others": unsure,
        "device ops without a launch call": int(np.count_nonzero(~launched)),
    }
    return Attributed(out, {reason: n for reason, n in reasons.items() if n})


def _of_calls(entries: Entries, tid: I64, at_ns: I64) -> tuple[I32, np.ndarray]:
    out = enclosing(entries, tid, at_ns)
    left = np.flatnonzero(out == NOWHERE)
    found, hits = np.full(len(left), NOWHERE, np.int32), np.zeros(len(left), np.int64)
    for owner in np.unique(entries.tid).tolist():
        at = enclosing(entries, np.full(len(left), owner), at_ns[left])
        at = np.where((at == NOWHERE) | (tid[left] == owner), NOWHERE, entries.other_threads[np.maximum(at, 0)])
        back = (at != NOWHERE) & np.isin(entries.phase[np.maximum(at, 0)], _BACKWARD)
        hits += back
        found[back] = at[back]
    out[left] = np.where(hits == 1, found, NOWHERE)
    ambiguous = np.zeros(len(out), np.bool_)
    ambiguous[left] = hits > 1
    return out, ambiguous
