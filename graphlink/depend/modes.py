"""How long waking takes on the machine of a recording: the mode of its lags, where it shows one.

A lag runs from the end of what was waited for to where the waiting ended. What it is depends on the machine and on how it waits
(in real recordings 3 to 12 us where a call spins, 117 to 160 us where it blocks), so no constant holds. A wrong source shows as lags
spread over the time between two ends of device ops; the right one, time and again, as a narrow band of lags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from graphlink.model import I64

LEAST_LAGS: Final = 10  # fewer are no evidence
SPREAD: Final = 0.25  # a band reaches from a lag over this part of it,
NARROW_NS: Final = 9_000  # and at least over this;
BEYOND: Final = 0.1  # lags as much shorter or longer are of the mode, too
BEYOND_CHANCE: Final = 4


@dataclass(frozen=True, slots=True)
class Mode:
    """Lags lie in [``least_ns``, ``most_ns``]; ends within ``tie_ns`` of each other are not told apart by their lags.

    Within a measured mode none are: taking the last of two that ended there was false in 1.3 % of the waits of random programs whose
    waking takes 20 to 200 us, taking neither unless the thread tells in 0.4 %.
    """

    least_ns: int
    most_ns: int
    tie_ns: int


def mode_of(lag_ns: I64, chance_per_ns: NDArray[np.float64]) -> Mode | None:
    """The band that holds most of the lags; None where no band of 10 or more stands out.

    It must hold a third of all lags and four times as many as by chance. ``chance_per_ns``, parallel to ``lag_ns``: the density of ends
    that might have been taken for what was waited for; 0 where rows tell. Cost: O(n log n).
    """
    if len(lag_ns) < LEAST_LAGS:
        return None
    lags = np.sort(lag_ns)
    width_ns = np.maximum(lags * SPREAD, NARROW_NS)
    held = np.searchsorted(lags, lags + width_ns, side="right") - np.arange(len(lags))
    best = int(np.argmax(held))
    n = int(held[best])
    by_chance = float(np.minimum(chance_per_ns * width_ns[best], 1).sum())
    if n < LEAST_LAGS or 3 * n < len(lags) or n < BEYOND_CHANCE * by_chance:
        return None
    near = lags[(lags >= lags[best] * (1 - BEYOND)) & (lags <= lags[best + n - 1] * (1 + BEYOND))]
    least_ns, most_ns = int(near[0]), int(near[-1])
    return Mode(least_ns, most_ns, most_ns - least_ns)
