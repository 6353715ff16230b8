"""Python frames around calls, of recordings with stacks: the lines of a program that launch and that wait."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np

from graphlink.model import Linked

_FRAMES: Final = 8  # of a stack
_INNER: Final = re.compile(r"(.*/)?torch/.*|<.*|nn\.Module: .*")  # frames of PyTorch, and of what is built in


def stacks_of(linked: Linked, call: Any) -> list[list[str]]:
    """Return the innermost Python frames outside of PyTorch around each call (rows of calls), the innermost last; [] where there are none.

    Threads of autograd have no stack. O(n log n) in frames and calls.
    """
    out: list[list[str]] = [[] for _ in range(len(call))]
    frames, strings, calls = linked.trace.frames, linked.trace.strings, linked.trace.calls
    if frames is None or not out:
        return out
    order = np.lexsort((calls.start_ns[call], calls.tid[call]))
    tid, at_ns = calls.tid[call[order]], calls.start_ns[call[order]]
    theirs = np.array([_INNER.fullmatch(text) is None for text in strings], np.bool_)[frames.name]
    for thread in np.unique(tid).tolist():
        asked = np.flatnonzero(tid == thread)
        mine = np.flatnonzero(theirs & (frames.tid == thread))
        low, high = (np.searchsorted(at_ns[asked], times[mine]) for times in (frames.start_ns, frames.end_ns))
        around = np.flatnonzero(low < high)
        around = around[np.lexsort((-frames.end_ns[mine[around]], frames.start_ns[mine[around]]))]
        for frame, begin, end in zip(frames.name[mine[around]].tolist(), low[around].tolist(), high[around].tolist(), strict=True):
            for k in order[asked[begin:end]].tolist():
                out[k].append(strings[frame])
    return [stack[-_FRAMES:] for stack in out]
