"""What is beyond noise: by the spread of steps where there are enough, else by how much most parts differ that nothing was done to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log
from typing import Final

import numpy as np

from graphlink.diff.facts import Basis
from graphlink.diff.pairs import DEVICE, Pair
from graphlink.diff.student import F64, paired, welch

CHANCE: Final = 0.01  # of one false change in a comparison
LEAST_SHARE: Final = 0.001  # of a step: what takes less is not named
UNTESTED: Final = 0.1  # of its own time: what changes less is not named where there are too few steps for a test
UNTESTED_SHARE: Final = 0.005  # of a step, the same
_TIMES_USUAL: Final = 5.0  # the usual difference of parts
_EXACT: Final = 0.0005  # relative: what differs less did not change
_MANY: Final = 4  # parts that did not change


@dataclass(frozen=True, slots=True)
class Noise:
    """What tells a change from noise. ``exact``: most parts took the same time to the ns, so there is none, as in a simulation.

    ``usual``: the median relative difference of parts; ``tests``: how many are made; ``step_ns``: the time of a step.
    """

    tested: bool
    exact: bool
    usual: float
    tests: int
    step_ns: float

    def differs(self, before: F64, after: F64) -> bool:
        """Tell whether a time (ns, a step) changed."""
        one, other = float(before.mean()), float(after.mean())
        change = abs(other - one)
        if self.exact:
            return change > max(_EXACT * max(one, other), 1.0)
        if change < LEAST_SHARE * self.step_ns:
            return False
        if self.tested:
            return self._chance(before, after) * self.tests < CHANCE
        return self.beyond(one, other)

    def beyond(self, one: float, other: float) -> bool:
        """Tell whether a time (ns, a step) of which no single steps are known changed."""
        change = abs(other - one)
        if self.exact:
            return change > max(_EXACT * max(one, other), 1.0)
        relative = change / max(min(one, other), 1.0)
        return relative > max(UNTESTED, _TIMES_USUAL * self.usual) and change > UNTESTED_SHARE * self.step_ns

    def counts_differ(self, before: F64, after: F64, repeats: float) -> bool:
        """Tell whether something is done more or less often, a step; ``repeats``: how many times as often all is done after."""
        one, other = before * repeats, after
        if abs(float(one.mean()) - float(other.mean())) < 1e-9:
            return False
        steady = not one.any() or not other.any() or not (float(one.std()) or float(other.std()))
        if self.exact or steady or not self.tested:
            return abs(float(other.mean()) / (float(one.mean()) or np.inf) - 1) > _EXACT
        return self._chance(one, other) * self.tests < CHANCE

    @staticmethod
    def _chance(before: F64, after: F64) -> float:
        """Return the least chance of three tests: of means, and where the steps are as many, of differences and of ratios; times three."""
        found = [welch(before, after).p]
        if len(before) == len(after):
            found.append(paired(before, after).p)
            if (before > 0).all() and (after > 0).all():
                found.append(paired(np.log(before), np.log(after)).p)
        return min(found) * 3


def noise_of(pairs: Iterable[Pair], basis: Basis, step_ns: float, resolution_ns: int) -> Noise:
    """Estimate the noise of a rank from its parts: of device ops and of the host apart, as a change may be of all of one of them."""
    both = [pair for pair in pairs if all(pair.mean_ns) and pair.counts[0] == pair.counts[1]]
    sorts = [[pair for pair in both if pair.of in DEVICE], [pair for pair in both if pair.of == "host"]]
    relative = [np.array([_relative(pair) for pair in sort if min(pair.mean_ns) > 1000 * (resolution_ns - 1)]) for sort in sorts]
    exact = any(len(one) >= _MANY and float(np.median(one)) < _EXACT for one in relative)
    usual = min((float(np.median(one)) for one in relative if len(one) >= _MANY), default=UNTESTED)
    return Noise(basis.enough, exact, usual, max(len(both), 1), step_ns)


def _relative(pair: Pair) -> float:
    one, other = pair.mean_ns
    return abs(log(other / one))
