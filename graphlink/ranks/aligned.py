"""Align two sequences of ops by what they are: as many equal as can be, the latest where several ways match as many.
And what aligning them by time (``bytime``) has in common with that: records, likely shifts, clocks of ranks against
each other as far as ends tell.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from graphlink.model import EMPTY, I32, I64, TimedRows
from graphlink.ranks.records import Line, RankComms
from graphlink.tables import spread

DIFFERS: Final = "differs"
OTHER_ORDER: Final = "comes in another order"
SMALL: Final = 1 << 12  # product of lengths up to which all shifts are candidates
MOST: Final = 24  # candidates of long sequences
LARGEST: Final = (
    1 << 28
)  # product of lengths up to which the longest common subsequence is sought as a whole: bits kept
NEAR: Final = 4  # matches between the two places of an op that stands in another order


@dataclass(frozen=True, slots=True)
class Ops(TimedRows):
    """Ops of one rank in one group (or at one end of messages), in order: ``rows`` of ``comms``. Equal ``token``: same
    function and size.

    ``timed``: they end within microseconds of their counterparts; rows of the host do not. ``eager``: some may end
    before their counterparts begin, as small messages do.
    """

    comms: RankComms
    rows: I32
    token: I64
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
    return spread(count, left, right), clashes


def clash(left: Ops, right: Ops, a: I64, b: I64, members: tuple[int, int] = (0, 1)) -> Clash:
    """Name why the ops ``a`` of the left and ``b`` of the right side do not match: other ones, or the same in another
    order.
    """
    moved = len(a) > 1 and np.array_equal(np.sort(left.token[a]), np.sort(right.token[b]))
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


def by_order(left: Ops, right: Ops) -> Pairs:
    """Match by function and size alone.

    One shift for all is preferred to an alignment with holes that matches no more. Ops that both sides have alone
    between the same matches are a clash: at the beginning those next to the first match, at the end those next to the
    last.
    """
    a, b = _common(left.token, right.token)
    gaps = holes(a, b, len(left), len(right)) if len(a) else []
    return pairs(a, b, len(left), (*_clashes(gaps, left, right), *_moved(gaps, left, right)))


def _common(a: I64, b: I64) -> tuple[I64, I64]:
    tail = _equal_ends(a, b)
    n, m = len(a) - tail, len(b) - tail
    if n and m:
        head_a, head_b = longest_parts(a[:n], b[:m])
        shifted = _shifted(a, b)
        if len(shifted[0]) < len(head_a) + tail:
            return np.append(head_a, np.arange(n, n + tail)), np.append(head_b, np.arange(m, m + tail))
        return shifted
    return np.arange(n, n + tail), np.arange(m, m + tail)


def _equal_ends(a: I64, b: I64) -> int:
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[len(a) - n :] != b[len(b) - n :])
    return n - 1 - int(differ[-1]) if len(differ) else n


def _shifted(a: I64, b: I64) -> tuple[I64, I64]:
    """Find the equal ops under the shift that has most of them, of several the one that ends last on the left."""
    best = EMPTY
    at = 0
    for shift in likely_shifts(a, b).tolist():
        low, high = max(0, -shift), min(len(b), len(a) - shift)
        equal = np.flatnonzero(a[low + shift : high + shift] == b[low:high]) + low
        if len(equal) >= len(best):
            best, at = equal, shift
    return best + at, best


def longest_parts(a: I64, b: I64) -> tuple[I64, I64]:
    """Find a longest common subsequence; for sequences too long for that, of what is left of and right of their longest
    common runs.
    """
    done: list[tuple[I64, I64]] = []
    todo = [(0, len(a), 0, len(b))]
    while todo:
        a_low, a_high, b_low, b_high = todo.pop()
        x, y = a[a_low:a_high], b[b_low:b_high]
        if len(x) * len(y) <= LARGEST:
            i, j = longest_common(x, y)
        else:
            i, j = _longest_run(*_shifted(x, y))
            if len(i):
                todo += [
                    (a_low, a_low + int(i[0]), b_low, b_low + int(j[0])),
                    (a_low + int(i[-1]) + 1, a_high, b_low + int(j[-1]) + 1, b_high),
                ]
        done.append((i + a_low, j + b_low))
    i, j = np.concatenate([x for x, _ in done]), np.concatenate([y for _, y in done])
    return np.sort(i), np.sort(j)


def _longest_run(i: I64, j: I64) -> tuple[I64, I64]:
    bounds = np.append(0, np.append(np.flatnonzero(np.diff(i) != 1) + 1, len(i)))
    k = int(np.diff(bounds).argmax())
    return i[bounds[k] : bounds[k + 1]], j[bounds[k] : bounds[k + 1]]


def longest_common(a: I64, b: I64) -> tuple[I64, I64]:
    """Return the positions of a longest common subsequence, the last ones where there are several. A row of the table
    is an integer, a bit a cell.

    O(n m / 64). Hyyrö, "Bit-parallel LCS-length computation revisited", 2004: a 0 at j says that the row's length grows
    there.
    """
    n, m = len(a), len(b)
    all_ones = (1 << m) - 1
    at: dict[int, int] = defaultdict(int)
    for j, token in enumerate(b.tolist()):
        at[token] |= 1 << j
    tokens, row = a.tolist(), all_ones
    rows = []
    for token in tokens:
        hit = row & at.get(token, 0)
        row = ((row + hit) | (row - hit)) & all_ones
        rows.append(row)
    others = b.tolist()
    left, right = [], []
    i, j = n - 1, m - 1
    while i >= 0 and j >= 0:
        if tokens[i] == others[j]:
            left.append(i)
            right.append(j)
            i -= 1
            j -= 1
        elif rows[i] >> j & 1:
            j -= 1
        else:
            i -= 1
    return np.array(left[::-1], np.int64), np.array(right[::-1], np.int64)


def _clashes(gaps: list[tuple[range, range]], left: Ops, right: Ops) -> list[Clash]:
    out = []
    for lefts, rights in gaps:
        count = min(len(lefts), len(rights))
        if not count:
            continue
        if lefts.start == 0 and rights.start == 0:
            lefts, rights = lefts[-count:], rights[-count:]
        elif lefts.stop == len(left) and rights.stop == len(right):
            lefts, rights = lefts[:count], rights[:count]
        out.append(clash(left, right, np.array(lefts), np.array(rights)))
    return out


def _moved(gaps: list[tuple[range, range]], left: Ops, right: Ops) -> list[Clash]:
    """Return ops that one side has before, the other after a few matches: A B against B A. Each hole counts once."""
    out: list[Clash] = []
    k = 0
    while k + 1 < len(gaps):
        (lefts, rights), (later_lefts, later_rights) = gaps[k], gaps[k + 1]
        ends = lefts.start == rights.start == 0 and later_lefts.stop == len(left) and later_rights.stop == len(right)
        near = not ends and later_lefts.start - lefts.stop <= NEAR
        for own, moved, alone in (
            (lefts, later_rights, not rights and not later_lefts),
            (later_lefts, rights, not later_rights and not lefts),
        ):
            if alone and near and np.array_equal(left.token[own], right.token[moved]):
                out.append(Clash(np.array(own), np.array(moved), OTHER_ORDER))
                k += 1
                break
        k += 1
    return out
