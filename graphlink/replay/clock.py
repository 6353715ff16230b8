"""The clock that the ranks of a run have in common, as their graphs tell it.

Only times of different ranks are compared on it. Durations stay as a rank's own clock measured them: a drift of some parts in a million
changes none by a ns that matters, while it adds up between ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.graph.chakra import ChakraFile
from graphlink.model import I64

_FAR: Final = 1 << 61  # ns: no clocks are so far apart


@dataclass(frozen=True, slots=True)
class RunClock:
    """``begin_ns``: the first start of each rank, from the first of all ranks (0 for all if ``differ``).

    ``skew_ns`` of each rank is its ``start_ns`` 0 from the same moment, ``origin_ns`` that moment since the epoch, ``measured_ns`` the time
    from it to the last end of all. ``differ`` says why there is no such clock; then both are None and the skews 0.
    """

    begin_ns: I64
    skew_ns: I64
    origin_ns: int | None
    measured_ns: int | None
    differ: str


def run_clock(files: Sequence[ChakraFile]) -> RunClock:
    """The common clock of the ranks: there is one if all say when they began and their recordings overlap. Linear."""
    if not files or any(f.metadata.epoch_ns is None or not len(f.id) for f in files):
        return _none(files, "the graphs do not say when their ranks began")
    zero = [(f.metadata.epoch_ns or 0) + f.metadata.clock_offset_ns for f in files]
    low = min(zero)
    if max(zero) - low > _FAR:
        return _none(files, _APART)
    skew = np.array([z - low for z in zero], np.int64)
    start = skew + np.array([elapsed(f, f.start_ns[[f.start_ns.argmin()]])[0] for f in files], np.int64)
    end = skew + np.array([elapsed(f, f.end_ns[[f.end_ns.argmax()]])[0] for f in files], np.int64)
    first = int(start.min())
    if len(files) > 1 and start.max() >= end.min():
        return _none(files, _APART)
    return RunClock(start - first, skew - first, low + first, int(end.max()) - first, "")


_APART: Final = "the recordings of the ranks do not overlap in time, so their clocks differ"


def elapsed(file: ChakraFile, ns: I64) -> I64:
    """Times of a file, as the run's clock has them since the file's ``start_ns`` 0."""
    drift = file.metadata.clock_drift_ppb
    return ns + np.rint(ns * (drift / 1e9)).astype(np.int64) if drift else ns


def _none(files: Sequence[ChakraFile], why: str) -> RunClock:
    zero = np.zeros(len(files), np.int64)
    return RunClock(zero, zero, None, None, why)
