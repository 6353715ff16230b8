"""Cuts the times of stages where the model is cut anew: into parts that have equally many layers, which need not take
equally long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphlink.model import F64, I64
from graphlink.pipeline.records import Pass
from graphlink.records import counted

ByPhase = Mapping[int, tuple[int, ...]]  # by phase, ``Layers.mean_ns`` of a stage; nothing where it is not known


def cut(durations: I64, parts: int, shares: Sequence[F64]) -> I64:
    """Return times of ``parts`` equal parts of what the given stages cover; the sum stays. ``shares``: of each
    stage.
    """
    whole, left = np.divmod(np.arange(parts + 1) * len(durations), parts)
    until = np.append(0, np.cumsum(durations)).astype(np.float64)[whole]
    for at in np.flatnonzero(left).tolist():
        of = shares[whole[at]]
        until[at] += durations[whole[at]] * np.interp(left[at] / parts, np.linspace(0, 1, len(of)), of)
    at_ns = np.rint(until).astype(np.int64)
    return np.asarray(at_ns[1:] - at_ns[:-1])


def shares(phase: int, layers: ByPhase) -> F64:
    """Return after which part of a pass each layer begins, and the last one ends. Of input or weight gradients that the
    run does not have apart: after which part of the backward."""
    there = layers.get(phase) or (layers.get(Pass.B) if phase in (Pass.I, Pass.W) else None) or (0, 1, 0)
    until = np.cumsum(np.array(there, np.float64))
    return np.asarray(until[:-1] / until[-1])


def told(layers: Sequence[ByPhase]) -> str:
    """Tell how the time of a stage was divided."""
    shown = sum({Pass.F, Pass.B} <= one.keys() or {Pass.F, Pass.I, Pass.W} <= one.keys() for one in layers)
    if not shown:
        return "the recording does not show layers, so a part's time is spread evenly over them"
    left = counted(len(layers) - shown, "part")
    others = f"; it shows none for {left}, whose time is spread evenly" if shown < len(layers) else ""
    return f"a layer takes what the recording shows{others}"
