"""Align the ops of two ranks by when they ended: all members of a collective end within microseconds of each other.

The clocks of the two may differ by any offset and by some drift, so differences between the ends of neighbours are
compared first. In a training loop every layer looks alike, and a shift by one layer makes as many equal pairs; but only
under the right one do the times between ends agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from graphlink.model import EMPTY, I64, NOWHERE, Bool
from graphlink.ranks.aligned import Clash, Ops, Pairs, clash, holes, likely_shifts, longest_parts, pairs
from graphlink.ranks.records import Line
from graphlink.tables import equal_runs, how_many, nearest

NEAR_NS: Final = (10_000, 100_000)  # how far the ends of a collective lie apart: usual, and where that explains nothing
DRIFT: Final = 1e-4  # of one clock against another, at most
FEWEST: Final = 2  # matches that tell a clock
TELLING: Final = 4  # matches that tell it for other groups too
FEW: Final = 8  # ops that are better aligned by a clock known from others
MOSTLY: Final = 0.9  # share of neighbours that must agree before two equal sequences are taken as they stand
LONG_NS: Final = 100_000_000  # over less than this a drift is lost in how far ends lie apart
WIDE: Final = 5  # times as far as ends lie apart, while the drift is not known


def as_they_stand(left: Ops, right: Ops) -> bool:
    """Tell whether the times allow the k-th op of one to be the k-th of the other."""
    delta = left.end_ns - right.end_ns
    far = np.abs(np.diff(delta)) > _allowed(right.end_ns, NEAR_NS[0])
    if not far.any():
        return True
    if np.count_nonzero(far) > (1 - MOSTLY) * len(far):
        return False
    every = np.arange(len(left))
    there = _on_left(left, right, every, every, NEAR_NS[0])
    near = np.abs(left.end_ns - there.end_ns) <= NEAR_NS[0]
    return bool((near | _together(left.start_ns, left.end_ns, there.start_ns, there.end_ns)).all())


def by_time(left: Ops, right: Ops, near: Sequence[int] = NEAR_NS) -> Pairs | None:
    """Match by time and token; return None where the times do not tell: fewer than half of what both sides recorded end
    together.

    Ops that stand at the same time and are not the same are a clash; whatever else has no counterpart is one side's
    alone. ``near``: how far apart ends may lie, tried in turn.
    """
    if min(len(left), len(right)) < FEWEST:
        return None
    for near_ns in near:
        found = _aligned(left, right, near_ns)
        if found is not None and (near_ns == NEAR_NS[0] or np.count_nonzero(found[0] != NOWHERE) >= TELLING):
            return found
    return None


def by_clock(left: Ops, right: Ops, line: Line) -> Pairs | None:
    """Match as ``by_time`` does, with the left side's clock by the right side's known from elsewhere."""
    if not len(left) or not len(right):
        return None
    there = _on_clock(right, line)
    a, b = _ending_together(left, there, NEAR_NS[-1])
    found = _filled(left, there, a, b)
    matched = np.count_nonzero(found[0] != NOWHERE)
    return found if 2 * matched >= max(recorded_by_both(left.end_ns, there.end_ns, 0), int(left.eager)) else None


def clock(left: Ops, right: Ops, a: I64, b: I64, least: int = TELLING) -> Line | None:
    """Estimate the left side's clock by the right side's, where enough ops, ``least``, end together to tell: ``a`` with
    ``b``.
    """
    if len(a) < least:
        return None
    left_ns, right_ns = left.end_ns[a], right.end_ns[b]
    line = _line(left_ns, right_ns, NEAR_NS[0])
    near = np.abs(line.of(right_ns) - left_ns) <= NEAR_NS[0]
    return line if 2 * np.count_nonzero(near) >= len(a) else None


def _aligned(left: Ops, right: Ops, near_ns: int) -> Pairs | None:
    a, b = _under_best_shift(left, right, near_ns)
    for reach in (WIDE * near_ns, near_ns):  # first with the clock of a part of the ops, then with that of all
        if len(a) < FEWEST:
            return None
        there = _on_left(left, right, a, b, near_ns)
        a, b = _ending_together(left, there, reach)
    enough = max(2 * FEWEST, recorded_by_both(left.end_ns, there.end_ns, near_ns))
    return _filled(left, there, a, b) if 2 * len(a) >= enough else None


def recorded_by_both(left_ns: I64, right_ns: I64, near_ns: int) -> int:
    """Count how many moments, of the side that has fewer, lie where both were recorded. Both on one clock."""
    low = max(left_ns.min(), right_ns.min()) - near_ns
    high = min(left_ns.max(), right_ns.max()) + near_ns
    return min(how_many((side >= low) & (side <= high)) for side in (left_ns, right_ns))


def _allowed(end_ns: I64, near_ns: int) -> I64:
    """Return by how much the time between neighbours may differ between two ranks."""
    return near_ns + (DRIFT * np.abs(np.diff(end_ns))).astype(np.int64)


def _under_best_shift(left: Ops, right: Ops, near_ns: int) -> tuple[I64, I64]:
    """Find the neighbours that agree in token and in the time between them, under the shift with most of them; closer
    ones count more. Of shifts alike, as where steps are periodic to the ns, that under which the clocks differ least.
    """
    allowed = _allowed(right.end_ns, near_ns)
    best, score = EMPTY, (0.0, 0.0)
    at = 0
    for shift in likely_shifts(_steps(left, near_ns), _steps(right, near_ns)).tolist():
        low, high = max(0, -shift), min(len(right), len(left) - shift)
        if high - low < FEWEST:
            continue
        equal = left.token[low + shift : high + shift] == right.token[low:high]
        clock_ns = left.end_ns[low + shift : high + shift] - right.end_ns[low:high]
        apart = np.abs(np.diff(clock_ns))
        close = np.where(equal[1:] & equal[:-1], 1 - apart / allowed[low : high - 1], 0.0)
        total = float(close[close > 0].sum()), -float(np.median(np.abs(clock_ns)))
        if total > score:
            best, score, at = np.flatnonzero(close > 0) + low, total, shift
    best = np.union1d(best, best + 1)
    return best + at, best


def _steps(ops: Ops, near_ns: int) -> I64:
    """Return a code for each op and the time since the one before it, coarse enough that members of a collective mostly
    have the same.
    """
    since = np.diff(ops.end_ns, prepend=ops.end_ns[:1]) // (2 * near_ns)
    return np.asarray(ops.token * 1_000_003 + since)


def _on_left(left: Ops, right: Ops, a: I64, b: I64, near_ns: int) -> Ops:
    """Convert the right side's times to the left side's clock, from pairs that are mostly right."""
    return _on_clock(right, _line(left.end_ns[a], right.end_ns[b], near_ns))


def _on_clock(ops: Ops, line: Line) -> Ops:
    return replace(ops, start_ns=line.of(ops.start_ns), end_ns=line.of(ops.end_ns))


def _line(left_ns: I64, right_ns: I64, near_ns: int) -> Line:
    """Fit a robust line: the median, then least squares over what lies near, twice."""
    delta = left_ns - right_ns
    from_ns, offset = int(right_ns[len(right_ns) // 2]), int(np.sort(delta)[len(delta) // 2])
    x, y = (right_ns - from_ns).astype(np.float64), (delta - offset).astype(np.float64)
    drift, rest = 0.0, 0.0
    for reach in (near_ns + DRIFT * np.abs(x), np.full(len(x), 2.0 * near_ns)):
        kept = np.abs(y - rest - drift * x) <= reach
        if not kept.any() or np.ptp(x[kept]) < LONG_NS:
            break
        spread = x[kept] - x[kept].mean()
        drift = float(np.clip((spread * y[kept]).sum() / (spread * spread).sum(), -DRIFT, DRIFT))
        rest = float(np.median(y[kept] - drift * x[kept]))
    return Line(offset + round(rest), drift, from_ns)


def _ending_together(left: Ops, right: Ops, reach_ns: int) -> tuple[I64, I64]:
    """Pair the ops of equal token each of which ends nearest to the other; ascending on both sides."""
    a_order, b_order = np.argsort(left.end_ns, kind="stable"), np.argsort(right.end_ns, kind="stable")
    a, b = left.end_ns[a_order], right.end_ns[b_order]
    to_b, to_a = nearest(a, b), nearest(b, a)
    k = np.arange(len(a))
    mutual = (to_a[to_b] == k) & (np.abs(b[to_b] - a) <= reach_ns)
    i, j = a_order[k[mutual]], b_order[to_b[mutual]]
    same = left.token[i] == right.token[j]
    order = np.argsort(i[same])
    return _ascending(i[same][order], j[same][order])


def _ascending(i: I64, j: I64) -> tuple[I64, I64]:
    """Drop few pairs so that no two cross: what ``j`` has in common with itself in order stays. They are the fewest
    where ``longest_parts`` finds the longest.
    """
    kept = np.arange(len(j)) if (np.diff(j) > 0).all() else longest_parts(j, np.sort(j))[0]
    return i[kept], j[kept]


def _together(start_ns: I64, end_ns: I64, other_start_ns: I64, other_end_ns: I64) -> Bool:
    """Tell whether two ops share at least half of the shorter one's time: the last to come to a collective is in it
    with all others.
    """
    shared = np.minimum(end_ns, other_end_ns) - np.maximum(start_ns, other_start_ns)
    return np.asarray(2 * shared >= np.maximum(np.minimum(end_ns - start_ns, other_end_ns - other_start_ns), 1))


def _filled(left: Ops, right: Ops, a: I64, b: I64) -> Pairs:
    """Fill the holes with what stands there at the same time: a match where the token is the same, else a clash."""
    more: list[tuple[int, int]] = []
    clashes: list[Clash] = []
    for ones, others in holes(a, b, len(left), len(right)):
        if ones and others:
            met = _at_the_same_time(left, right, ones, others)
            equal = [left.token[i] == right.token[j] for i, j in met]
            more += [pair for pair, same in zip(met, equal, strict=True) if same]
            clashes += _clashes(left, right, [pair for pair, same in zip(met, equal, strict=True) if not same])
    i, j = (np.append(x, [pair[k] for pair in more]).astype(np.int64) for k, x in enumerate((a, b)))
    return pairs(np.sort(i), np.sort(j), len(left), tuple(clashes))


def _at_the_same_time(left: Ops, right: Ops, ones: range, others: range) -> list[tuple[int, int]]:
    """Pair the ops of a hole that run at the same time, in one sweep."""
    out = []
    i, j = ones.start, others.start
    while i < ones.stop and j < others.stop:
        one, other = slice(i, i + 1), slice(j, j + 1)
        if _together(left.start_ns[one], left.end_ns[one], right.start_ns[other], right.end_ns[other])[0]:
            out.append((i, j))
            i, j = i + 1, j + 1
        elif left.end_ns[i] <= right.end_ns[j]:
            i += 1
        else:
            j += 1
    return out


def _clashes(left: Ops, right: Ops, met: list[tuple[int, int]]) -> list[Clash]:
    """Return the clashes: neighbours are one clash where together they hold the same ops; each is one else."""
    a, b = np.array(met, np.int64).reshape(-1, 2).T
    at = np.arange(len(met))
    return [clash(left, right, a[run], b[run]) for run in equal_runs(at, a - at, b - at)]
