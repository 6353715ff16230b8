"""The search for a shift of clocks against plain references, and what it takes for evidence."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.model import I64, Bool
from graphlink.nccl.shift import (
    CONTEXT,
    EventTimes,
    Shift,
    candidates,
    evidence_bits,
    from_pairs,
    needed_bits,
    overlap,
    settled,
    shifted,
    timeline,
)

MS = 1_000_000
times = st.lists(st.integers(0, 2_000), min_size=1, max_size=12)


def _line(call_ns: list[int], op_ns: list[int], kind: list[int] | None = None) -> EventTimes:
    calls, ops = np.arange(len(call_ns)), np.arange(len(op_ns))
    kinds = np.array(kind or [0] * len(op_ns), np.int64)
    return timeline(calls, np.array(call_ns, np.int64), ops, np.array(op_ns, np.int64), kinds)


def _any(call: I64, op: I64) -> Bool:
    return np.ones(len(call), np.bool_)


def _same_parity(call: I64, op: I64) -> Bool:
    return call % 2 == op % 2


@given(times, times, st.integers(-500, 500), st.integers(1, 300))
def test_what_meets_under_an_offset_is_nearest_to_each_other(
    call_ns: list[int], op_ns: list[int], offset: int, reach: int
) -> None:
    line = _line(call_ns, op_ns)
    found = shifted(line, offset, reach, _same_parity)
    at, to = (line.call_ns + offset).tolist(), line.op_ns.tolist()
    for i, j in zip(found.left.tolist(), found.right.tolist(), strict=True):
        apart = abs(at[i] - to[j])
        assert apart == min(abs(at[i] - ns) for ns in to) == min(abs(ns - to[j]) for ns in at)
        assert apart <= reach
        assert line.call[i] % 2 == line.op[j] % 2
    assert len(set(found.right.tolist())) == len(found.right)
    if len(set(at)) == len(at) and len(set(to)) == len(to):
        alone = [i for i, a in enumerate(at) if sorted(abs(a - ns) for ns in to)[:2] != [0, 0] and a in to]
        for i in alone:  # the same moment on both sides
            j = to.index(at[i])
            assert (i in found.left.tolist()) == bool(line.call[i] % 2 == line.op[j] % 2)


@given(st.lists(st.integers(1_000, 100_000), min_size=6, max_size=40), st.integers(-(10**15), 10**15), st.data())
def test_the_offset_is_found_whatever_is_missing_on_either_side(
    gaps: list[int], offset: int, data: st.DataObject
) -> None:
    op_ns = np.cumsum(np.array(gaps, np.int64) * 1_000)
    kept = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(gaps), max_size=len(gaps)).filter(lambda kept: sum(kept) > 2))
    )
    line = _line((op_ns[kept] - offset).tolist(), op_ns.tolist())
    best = max((settled(line, one, _any) for one in candidates(line, _any).tolist()), key=lambda one: len(one.left))
    assert len(best.left) == kept.sum()
    assert overlap(line, settled(line, offset, _any)) == kept.sum()


def _plain_bits(line: EventTimes, shift: Shift) -> float:
    """Each interval against all that follow the same events."""
    kinds, ns = line.kind.tolist(), line.op_ns.tolist()
    context = [tuple(kinds[j - back] if j >= back else None for back in range(CONTEXT + 1)) for j in range(len(kinds))]
    since = [ns[j] - ns[j - 1] if j else 0 for j in range(len(ns))]
    total = 0.0
    pairs = list(zip(shift.left.tolist(), shift.right.tolist(), strict=True))
    for (i, j), (k, m) in pairwise(pairs):
        if k == i + 1 and m == j + 1:
            every = [x for x in range(len(ns)) if context[x] == context[m]]
            near = [x for x in every if abs(since[x] - since[m]) <= 2 * shift.reach_ns]
            total += math.log2(len(every) / len(near))
    return total


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 1)), min_size=2, max_size=40), st.data())
def test_evidence_is_how_rare_intervals_are(events: list[tuple[int, int]], data: st.DataObject) -> None:
    op_ns = np.cumsum([gap for gap, _ in events])
    line = _line(op_ns.tolist(), op_ns.tolist(), [kind for _, kind in events])
    kept = np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=len(events), max_size=len(events))))
    shift = Shift(0, 3, kept, kept, 0)
    assert evidence_bits(line, shift) == pytest.approx(_plain_bits(line, shift))


def test_a_pattern_that_repeats_is_no_evidence_and_one_that_does_not_is() -> None:
    every = np.arange(200)
    regular = _line((every * MS).tolist(), (every * MS).tolist())
    assert evidence_bits(regular, shifted(regular, 0, 10, _any)) == 0
    irregular_ns = np.cumsum(np.random.default_rng(0).integers(1, MS, 200))
    irregular = _line(irregular_ns.tolist(), irregular_ns.tolist())
    assert evidence_bits(irregular, shifted(irregular, 0, 10, _any)) > 10 * needed_bits(irregular)


def test_what_lies_apart_from_the_other_pairs_is_not_among_those_that_a_shift_explains() -> None:
    op_ns = np.arange(10) * MS
    call_ns = op_ns - 500
    call_ns[7] += 300_000
    line = _line(call_ns.tolist(), op_ns.tolist())
    found = from_pairs(line, np.arange(10), np.arange(10))
    assert found.offset_ns == 500
    assert found.left.tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9]


def test_farther_ones_are_looked_at_where_the_nearest_may_not_meet() -> None:
    line = _line([1_000, 5_000], [990, 1_020, 5_000])  # the first call may meet neither of the ops 1
    assert shifted(line, 0, 100, lambda call, op: op - call == 1).left.tolist() == [1]
    around = shifted(line, 0, 100, lambda call, op: op - call == 1, around=1)
    assert list(zip(around.left.tolist(), around.right.tolist(), strict=True)) == [(0, 1), (1, 2)]
