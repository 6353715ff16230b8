"""Records and helpers of the two ways to align the ops of two ranks, and clocks of ranks against each other as far as
ends tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from graphlink.model import I32, I64, NOWHERE
from graphlink.ranks.records import Line, RankComms

DIFFERS: Final = "differs"
OTHER_ORDER: Final = "other order"
SMALL: Final = 1 << 12  # product of lengths up to which all shifts are candidates
MOST: Final = 24  # candidates of long sequences


@dataclass(frozen=True, slots=True)
class Ops:
    """Ops of one rank in one group (or at one end of messages), in order: ``rows`` of ``comms``. Equal ``token``: same
    function and size.

    ``timed``: they end within microseconds of their counterparts; rows of the host do not. ``eager``: some may end
    before their counterparts begin, as small messages do.
    """

    comms: RankComms
    rows: I32
    token: I64
    start_ns: I64
    end_ns: I64
    timed: bool
    eager: bool = False

    def __len__(self) -> int:
        return len(self.token)


@dataclass(frozen=True, slots=True)
class Clash:
    """Ops of two sides that stand where the other has something else: positions among the ops of each, in order.

    ``members``: positions of the two sides among all that are aligned.
    """

    left: I64
    right: I64
    why: str
    members: tuple[int, int] = (0, 1)


# Of each op of the left side its counterpart on the right, ascending, or ``NOWHERE``, and what clashes. What is in
# neither one side has alone.
Pairs = tuple[I64, tuple[Clash, ...]]


def pairs(left: I64, right: I64, count: int, clashes: tuple[Clash, ...] = ()) -> Pairs:
    """Make ``Pairs`` of matched positions; ``count`` ops on the left."""
    of_left = np.full(count, NOWHERE, np.int64)
    of_left[left] = right
    return of_left, clashes


def clash(left: Ops, right: Ops, a: I64, b: I64, members: tuple[int, int] = (0, 1)) -> Clash:
    """Name why the ops ``a`` of the left and ``b`` of the right side do not match: other ones, or the same in another
    order.
    """
    one, other = left.token[a], right.token[b]
    moved = len(a) > 1 and len(a) == len(b) and bool((np.sort(one) == np.sort(other)).all())
    return Clash(a, b, OTHER_ORDER if moved else DIFFERS, members)


def holes(left: I64, right: I64, left_count: int, right_count: int) -> list[tuple[range, range]]:
    """Return the ops of both sides between two matches (before the first, after the last), in order, where either side
    has some.

    ``left`` and ``right``: matched positions, ascending on both sides.
    """
    low = np.stack([np.append(-1, left), np.append(-1, right)]) + 1
    high = np.stack([np.append(left, left_count), np.append(right, right_count)])
    rows = np.flatnonzero((high > low).any(axis=0))
    bounds = np.stack([low, high], axis=-1)[:, rows].tolist()  # (side, hole, end)
    return [(range(*of_left), range(*of_right)) for of_left, of_right in zip(*bounds, strict=True)]


class Lines:
    """Ranks whose clocks are known against each other. Joining n ranks takes n log n steps."""

    def __init__(self) -> None:
        self._root: dict[int, int] = {}
        self._to_root: dict[int, Line] = {}
        self._ranks: dict[int, list[int]] = {}

    def between(self, one: int, other: int) -> Line | None:
        """Return the clock of rank ``one`` by that of ``other``."""
        if self._root.get(one, one) != self._root.get(other, other):
            return None
        same = Line(0, 0.0, 0)
        return self._to_root.get(other, same).then(self._to_root.get(one, same).back())

    def join(self, one: int, other: int, line: Line) -> None:
        """Note the clock of ``one`` by that of ``other``; nothing changes where it is known already."""
        for rank in (one, other):
            if rank not in self._root:
                self._root[rank], self._to_root[rank], self._ranks[rank] = rank, Line(0, 0.0, 0), [rank]
        if self._root[one] == self._root[other]:
            return
        if len(self._ranks[self._root[one]]) < len(self._ranks[self._root[other]]):
            one, other, line = other, one, line.back()
        root, old = self._root[one], self._root[other]
        across = self._to_root[other].back().then(line).then(self._to_root[one])  # from the old root's clock
        for rank in self._ranks.pop(old):
            self._to_root[rank] = self._to_root[rank].then(across)
            self._root[rank] = root
            self._ranks[root].append(rank)


def likely_shifts(left: I64, right: I64) -> I64:
    """Return shifts d by which ``left[k + d] == right[k]`` for many k, ascending; all there are for short sequences.

    Each code becomes a random phase, so that the correlation of the two is the number of equal codes, and noise of the
    order of its square root. O(n log n), however repetitive the sequences.
    """
    n, m = len(left), len(right)
    if n * m <= SMALL:
        return np.arange(-m + 1, n)
    size = 1 << (n + m - 1).bit_length()
    product = np.fft.fft(_phases(left), size) * np.conj(np.fft.fft(_phases(right), size))
    score = np.fft.ifft(product).real
    best = np.argpartition(score, len(score) - MOST)[-MOST:]
    shifts = np.where(best < n, best, best - size)
    return np.unique(np.append(shifts[shifts > -m], [0, n - m]))


def _phases(codes: I64) -> NDArray[np.complex128]:
    """Return a point of the unit circle for each code (splitmix64)."""
    x = codes.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    angle = (x >> np.uint64(11)).astype(np.float64) * (2 * np.pi / 2**53)
    return np.asarray(np.exp(1j * angle))
