"""Align two sequences of calls by what they are: as many equal as can be, the latest where several ways match
as many.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np

from graphlink.model import I64
from graphlink.ranks.aligned import OTHER_ORDER, Clash, Ops, Pairs, clash, holes, likely_shifts, pairs

LARGEST: Final = (
    1 << 28
)  # product of lengths up to which the longest common subsequence is sought as a whole: bits kept
NEAR: Final = 4  # matches between the two places of an op that stands in another order


def by_order(left: Ops, right: Ops) -> Pairs:
    """Match by function and size alone.

    One shift for all is preferred to an alignment with holes that matches no more. Ops that both sides have alone
    between the same matches are a clash: at the beginning those next to the first match, at the end those next to the
    last.
    """
    a, b = _common(left.token, right.token)
    found = holes(a, b, len(left), len(right)) if len(a) else []
    return pairs(a, b, len(left), (*_clashes(found, left, right), *_moved(found, left, right)))


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
    """Find the equal ops under the shift that has most of them, of several the one that ends last on the left."""
    best = np.zeros(0, np.int64)
    at = 0
    for shift in likely_shifts(a, b).tolist():
        low, high = max(0, -shift), min(len(b), len(a) - shift)
        equal = np.flatnonzero(a[low + shift : high + shift] == b[low:high]) + low
        if len(equal) >= len(best):
            best, at = equal, shift
    return best + at, best


def _split(a: I64, b: I64) -> tuple[I64, I64]:
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
    run = slice(bounds[k], bounds[k + 1])
    return i[run], j[run]


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


def _clashes(found: list[tuple[range, range]], left: Ops, right: Ops) -> list[Clash]:
    out = []
    for ones, others in found:
        count = min(len(ones), len(others))
        if not count:
            continue
        a, b = np.arange(ones.start, ones.stop), np.arange(others.start, others.stop)
        if ones.start == 0 and others.start == 0:
            a, b = a[-count:], b[-count:]
        elif ones.stop == len(left) and others.stop == len(right):
            a, b = a[:count], b[:count]
        out.append(clash(left, right, a, b))
    return out


def _moved(found: list[tuple[range, range]], left: Ops, right: Ops) -> list[Clash]:
    """Return ops that one side has before, the other after a few matches: A B against B A. Each hole counts once."""
    out: list[Clash] = []
    k = 0
    while k + 1 < len(found):
        (ones, others), (later_ones, later_others) = found[k], found[k + 1]
        ends = ones.start == others.start == 0 and later_ones.stop == len(left) and later_others.stop == len(right)
        near = not ends and later_ones.start - ones.stop <= NEAR
        for mine, theirs, alone in (
            (ones, later_others, not others and not later_ones),
            (later_ones, others, not later_others and not ones),
        ):
            a, b = np.arange(mine.start, mine.stop), np.arange(theirs.start, theirs.stop)
            if alone and near and np.array_equal(left.token[a], right.token[b]):
                out.append(Clash(a, b, OTHER_ORDER))
                k += 1
                break
        k += 1
    return out
