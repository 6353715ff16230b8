"""Python frames of recordings with stacks: the lines of a program that launch, wait and run ops."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from graphlink.model import I64, Linked

_FRAMES: Final = 8  # of a stack
_INNER: Final = re.compile(r"(.*/)?torch/.*|<.*|nn\.Module: .*")  # frames of PyTorch, and of what is built in


def stacks_at(linked: Linked, tid: I64, at_ns: I64) -> list[list[str]]:
    """Return the innermost Python frames outside of PyTorch on a thread at a moment, of each pair, the innermost last;
    [] without any.

    Threads of autograd have no stack. O(n log n) in frames and pairs.
    """
    out: list[list[str]] = [[] for _ in range(len(tid))]
    frames, strings = linked.trace.frames, linked.trace.strings
    if frames is None or not out:
        return out
    order = np.lexsort((at_ns, tid))
    tid, at_ns = tid[order], at_ns[order]
    theirs = np.array([_INNER.fullmatch(text) is None for text in strings], np.bool_)[frames.name]
    for thread in np.unique(tid).tolist():
        asked = np.flatnonzero(tid == thread)
        mine = np.flatnonzero(theirs & (frames.tid == thread))
        low, high = (np.searchsorted(at_ns[asked], times[mine]) for times in (frames.start_ns, frames.end_ns))
        around = np.flatnonzero(low < high)
        around = around[np.lexsort((-frames.end_ns[mine[around]], frames.start_ns[mine[around]]))]
        for frame, begin, end in zip(
            frames.name[mine[around]].tolist(), low[around].tolist(), high[around].tolist(), strict=True
        ):
            for k in order[asked[begin:end]].tolist():
                out[k].append(strings[frame])
    return [stack[-_FRAMES:] for stack in out]
