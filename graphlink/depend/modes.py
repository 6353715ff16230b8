"""The time that waking takes on the machine of a recording: the mode of its lags, where it shows one.

A lag runs from the end of what was waited for to where the waiting ended. What it is depends on the machine and on how
it waits (in real recordings 3 to 12 us where a call spins, 117 to 160 us where it blocks), so no constant holds. A
wrong source shows as lags spread over the time between two ends of device ops; the right one, time and again, as a
narrow band of lags.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from graphlink.model import I64

LEAST_LAGS: Final = 10  # fewer are no evidence
SPREAD: Final = 0.25  # a band reaches from a lag over this part of it,
NARROW_NS: Final = 9_000  # and at least over this;
BEYOND: Final = 0.1  # lags as much shorter or longer are of the mode, too
REAL: Final = 0.75  # so many of a band's lags at least lie there for a reason,
BY_CHANCE: Final = 1e-3  # and so many would by chance in less than this part of recordings


class Mode(msgspec.Struct, frozen=True):
    """Lags lie in [``least_ns``, ``most_ns``], and none in it is likelier than another.

    Taking the last of two ops that ended there was false in 1.3 % of the waits of random programs whose waking takes 20
    to 200 us, taking neither in 0.1 %.
    """

    least_ns: int
    most_ns: int


def mode_of(lag_ns: I64, chance_per_ns: NDArray[np.float64]) -> Mode | None:
    """Return the band that holds most of the lags; None where no band of 10 or more stands out.

    It must hold a third of all lags, and more than by chance (``beyond_chance``). ``chance_per_ns``, parallel to
    ``lag_ns``: the density of ends that might have been taken for what was waited for; 0 where rows tell. Cost: O(n log
    n).
    """
    if len(lag_ns) < LEAST_LAGS:
        return None
    lags = np.sort(lag_ns)
    width_ns = np.maximum(lags * SPREAD, NARROW_NS)
    held = np.searchsorted(lags, lags + width_ns, side="right") - np.arange(len(lags))
    best = int(np.argmax(held))
    n = int(held[best])
    by_chance = float(np.minimum(chance_per_ns * width_ns[best], 1).sum())
    if n < LEAST_LAGS or 3 * n < len(lags) or not beyond_chance(n, len(lags), by_chance):
        return None
    near = lags[(lags >= lags[best] * (1 - BEYOND)) & (lags <= lags[best + n - 1] * (1 + BEYOND))]
    return Mode(int(near[0]), int(near[-1]))


def beyond_chance(n: int, of: int, by_chance: float) -> bool:
    """Tell whether ``n`` of ``of`` lags lie in a band for a reason, where ``by_chance`` would anyway.

    Those that lie elsewhere for none leave by_chance / of of them in it: n = real + (of - real) * by_chance / of. How
    seldom n are by chance is Chernoff's bound of the binomial, which holds for lags of unequal chances, too (Hoeffding
    1956).
    """
    if not 0 < by_chance < n:
        return by_chance == 0
    real = (n - by_chance) / (1 - by_chance / of)
    unlikely = n * math.log(n / by_chance) + ((of - n) * math.log((of - n) / (of - by_chance)) if of > n else 0.0)
    return real >= REAL * n and unlikely >= math.log(of / BY_CHANCE)  # in any of ``of`` bands
