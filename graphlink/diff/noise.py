"""What is beyond noise: by the spread of steps where there are enough, else by how much most parts differ that nothing
was done to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log
from typing import Final

import numpy as np

from graphlink.diff.facts import Basis
from graphlink.diff.pairs import DEVICE, Pair
from graphlink.model import F64
from graphlink.student import paired, welch

CHANCE: Final = 0.01  # of one false change in a comparison
LEAST_SHARE: Final = 0.001  # of a step: what takes less is not named
UNTESTED: Final = 0.1  # of its own time: what changes less is not named where there are too few steps for a test
UNTESTED_SHARE: Final = 0.005  # of a step, the same
_TIMES_USUAL: Final = 5.0  # the usual difference of parts
_MOST: Final = 0.5  # of its own time: what changes more is named, however much others differ
_EXACT: Final = 0.0005  # relative: what differs less did not change
_EXACT_OF_RUN: Final = 0.01  # the same of communication, whose ranks end at different times
_MANY: Final = 4  # parts, from which a usual difference is told


@dataclass(frozen=True, slots=True)
class Usual:
    """By how much parts differ from the most common change (relative, the median). ``exact``: most of them by nothing,
    so that there is no noise, as in a simulation."""

    relative: float
    exact: bool


@dataclass(frozen=True, slots=True)
class Noise:
    """What tells a change from noise, of device, host and GPU calls apart.

    ``tested``: there are steps enough for a test; ``tests``: how many are made; ``step_ns``: the time of a step.
    """

    tested: bool
    device: Usual
    host: Usual
    calls: Usual
    tests: int
    step_ns: float

    @property
    def exact(self) -> bool:
        """Return whether there is no noise at all."""
        return self.device.exact and self.host.exact and self.calls.exact

    def part_differs(self, pair: Pair, tests: int | None = None) -> bool:
        """Tell whether the time of a part changed; ``tests``: one of how many that are asked, all parts where it is not
        given.
        """
        usual = self.device if pair.of in DEVICE else self.calls if pair.of == "call" else self.host
        return self._differs(pair.before_ns, pair.after_ns, usual, tests or self.tests)

    def differs(self, before: F64, after: F64) -> bool:
        """Tell whether a time that depends on host and device (ns, a step) changed."""
        return self._differs(before, after, self._all, self.tests)

    @property
    def _all(self) -> Usual:
        return Usual(max(self.device.relative, self.host.relative, self.calls.relative), self.exact)

    def _differs(self, before: F64, after: F64, usual: Usual, tests: int) -> bool:
        one, other = float(before.mean()), float(after.mean())
        change = abs(other - one)
        if usual.exact:
            return change > max(_EXACT * max(one, other), 1.0)
        if change < LEAST_SHARE * self.step_ns:
            return False
        if self.tested:
            return self._chance(before, after) * tests < CHANCE
        return self._far(one, other, usual)

    def beyond(self, one: float, other: float) -> bool:
        """Tell whether a time of the run (ns, a step) of which no single steps are known changed."""
        if self.exact:
            return abs(other - one) > max(_EXACT_OF_RUN * max(one, other), 1.0)
        return self._far(one, other, self._all)

    def _far(self, one: float, other: float, usual: Usual) -> bool:
        change = abs(other - one)
        relative = change / max(min(one, other), 1.0)
        least = max(UNTESTED, min(_TIMES_USUAL * usual.relative, _MOST))
        return relative > least and change > UNTESTED_SHARE * self.step_ns

    def counts_differ(self, pair: Pair, repeats: float) -> bool:
        """Tell whether something is done more or less often, a step; ``repeats``: how many times as often most is done
        after.
        """
        before, after = pair.count_before, pair.count_after
        return self._count_differs(before, after) and (repeats == 1.0 or self._count_differs(before * repeats, after))

    def _count_differs(self, one: F64, other: F64) -> bool:
        if abs(float(one.mean()) - float(other.mean())) < 1e-9:
            return False
        steady = not one.any() or not other.any() or not (float(one.std()) or float(other.std()))
        if self.exact or steady or not self.tested:
            return abs(float(other.mean()) / (float(one.mean()) or np.inf) - 1) > _EXACT
        return self._chance(one, other) * self.tests < CHANCE

    @staticmethod
    def _chance(before: F64, after: F64) -> float:
        """Return the least chance of the tests of means, and where the steps are as many, of differences, times their
        number: the former tells more of few steps, the latter of steps that vary alike in both runs.
        """
        tests = (welch, paired) if len(before) == len(after) else (welch,)
        return min(test(before, after).p for test in tests) * len(tests)


def noise_of(pairs: Iterable[Pair], basis: Basis, step_ns: float, resolution_ns: int) -> Noise:
    """Estimate the noise of a rank from its parts that are there as often."""
    both = [pair for pair in pairs if all(pair.mean_ns) and pair.counts[0] == pair.counts[1]]
    sure = [pair for pair in both if min(pair.mean_ns) > 1000 * (resolution_ns - 1)]
    sorts = (("kernel", "copy"), ("host",), ("call",))  # communication waits for others
    found = [_usual([pair for pair in sure if pair.of in sort], basis) for sort in sorts]
    known = [one for one in found if one is not None] or [Usual(UNTESTED, exact=False)]
    device, host, calls = (one or known[0] for one in found)
    return Noise(basis.enough, device, host, calls, max(len(both), 1), step_ns)


def _usual(pairs: Sequence[Pair], basis: Basis) -> Usual | None:
    """Return by how much parts differ; a factor of all of them is no noise only if every step shows it."""
    if len(pairs) < _MANY:
        return None
    ratio = np.array([log(pair.mean_ns[1] / pair.mean_ns[0]) for pair in pairs])
    relative = float(np.median(np.abs(ratio - np.median(ratio))))
    exact = relative < _EXACT and (abs(float(np.median(ratio))) < _EXACT or _every_step(pairs, basis))
    return Usual(relative, exact)


def _every_step(pairs: Sequence[Pair], basis: Basis) -> bool:
    """Tell whether the time of all parts changed by the same factor in every step."""
    one, other = np.sum([pair.before_ns for pair in pairs], axis=0), np.sum([pair.after_ns for pair in pairs], axis=0)
    if basis.per != "step" or len(one) != len(other) or len(one) < 2 or not one.all():
        return False
    ratio = other / one
    return bool(np.ptp(ratio) < _EXACT * ratio.mean())
