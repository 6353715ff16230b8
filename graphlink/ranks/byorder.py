"""Lays two sequences of calls beside each other by what they are: as many equal as can be, the latest where several ways match as many."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np

from graphlink.model import I64
from graphlink.ranks.aligned import DIFFERS, OTHER_ORDER, Clash, Hole, Ops, Pairs, holes, likely_shifts, pairs, same_elsewhere

LARGEST: Final = 1 << 28  # product of lengths up to which the longest common subsequence is sought as a whole: bits kept
NEAR: Final = 4  # matches between the two places of an op that stands in another order


def by_order(left: Ops, right: Ops) -> Pairs:
    """Counterparts by function and size alone.

    One shift for all is preferred to an alignment with holes that matches no more. Ops that both sides have alone between the same
    matches are a clash: at the beginning those next to the first match, at the end those next to the last.
    """
    a, b = _common(left.token, right.token)
    found = holes(a, b, len(left), len(right)) if len(a) else []
    clashes = [clash for hole in found if (clash := _clash(hole, left, right)) is not None]
    return pairs(a, b, len(left), (*clashes, *_moved(found, left, right)))


def _common(a: I64, b: I64) -> tuple[I64, I64]:
    tail = _equal_ends(a, b)
    n, m = len(a) - tail, len(b) - tail
    if n and m:
        head_a, head_b = _split(a[:n], b[:m])
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
    """The equal ops under the shift that has most of them, of several the one that ends last on the left."""
    best = np.zeros(0, np.int64)
    at = 0
    for shift in likely_shifts(a, b).tolist():
        low, high = max(0, -shift), min(len(b), len(a) - shift)
        equal = np.flatnonzero(a[low + shift : high + shift] == b[low:high]) + low
        if len(equal) >= len(best):
            best, at = equal, shift
    return best + at, best


def _split(a: I64, b: I64) -> tuple[I64, I64]:
    """A longest common subsequence; of sequences too long for that, of what is left of and right of their longest common runs."""
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
    run = slice(bounds[k], bounds[k + 1])
    return i[run], j[run]


def longest_common(a: I64, b: I64) -> tuple[I64, I64]:
    """Positions of a longest common subsequence, the last ones where there are several. A row of the table is an integer, a bit a cell.

    O(n m / 64). Hyyrö, "Bit-parallel LCS-length computation revisited", 2004: a 0 at j says that the row's length grows there.
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


def _clash(hole: Hole, left: Ops, right: Ops) -> Clash | None:
    count = min(hole.left_high - hole.left_low, hole.right_high - hole.right_low)
    if not count:
        return None
    a, b = np.arange(hole.left_low, hole.left_high), np.arange(hole.right_low, hole.right_high)
    if hole.left_low == 0 and hole.right_low == 0:
        a, b = a[-count:], b[-count:]
    elif hole.left_high == len(left) and hole.right_high == len(right):
        a, b = a[:count], b[:count]
    return Clash(a, b, OTHER_ORDER if same_elsewhere(left.token[a], right.token[b]) else DIFFERS)


def _moved(found: list[Hole], left: Ops, right: Ops) -> list[Clash]:
    """Ops that one side has before, the other after a few matches: A B against B A. Each hole counts once."""
    out: list[Clash] = []
    k = 0
    while k + 1 < len(found):
        one, other = found[k], found[k + 1]
        ends = one.left_low == one.right_low == 0 and other.left_high == len(left) and other.right_high == len(right)
        for swapped in (False, True):
            a_hole, b_hole = (other, one) if swapped else (one, other)
            a, b = np.arange(a_hole.left_low, a_hole.left_high), np.arange(b_hole.right_low, b_hole.right_high)
            alone = a_hole.right_low == a_hole.right_high and b_hole.left_low == b_hole.left_high
            if alone and not ends and other.left_low - one.left_high <= NEAR and np.array_equal(left.token[a], right.token[b]):
                out.append(Clash(a, b, OTHER_ORDER))
                k += 1
                break
        k += 1
    return out
