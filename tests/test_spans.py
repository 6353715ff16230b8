"""Spans against the plainest reference: sets of the moments that they cover."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphlink import spans
from graphlink.model import NOWHERE
from graphlink.spans import Spans

Intervals = list[tuple[int, int]]
intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def columns(given_: Intervals) -> tuple[np.ndarray, np.ndarray]:
    return np.array([a for a, _ in given_], np.int64), np.array([b for _, b in given_], np.int64)


def moments(of: Intervals) -> set[int]:
    return {t for a, b in of for t in range(a, b)}


def listed(of: Spans) -> Intervals:
    return list(zip(of.start_ns.tolist(), of.end_ns.tolist(), strict=True))


def is_canonical(of: Spans) -> bool:
    found = listed(of)
    return all(a < b for a, b in found) and all(b < c for (_, b), (c, _) in pairwise(found))


@given(intervals)
def test_a_union_covers_what_its_intervals_cover(some: Intervals) -> None:
    out = spans.union(*columns(some))
    assert moments(listed(out)) == moments(some)
    assert is_canonical(out)


@given(intervals, st.integers(0, 30), st.integers(0, 30))
def test_within_and_complement_share_out_a_window(some: Intervals, low: int, high: int) -> None:
    whole = spans.union(*columns(some))
    inside, outside = spans.within(whole, low, high), spans.complement(whole, low, high)
    assert moments(listed(inside)) == moments(some) & set(range(low, high))
    assert moments(listed(outside)) == set(range(low, high)) - moments(some)


@given(intervals, intervals)
def test_a_cut_tells_of_every_moment_which_interval_began_first_there(some: Intervals, cover: Intervals) -> None:
    whole = spans.union(*columns(some))
    pieces = spans.cut(whole, *columns(cover))
    told = {}
    for start, end, of, by in zip(
        pieces.start_ns.tolist(), pieces.end_ns.tolist(), pieces.of.tolist(), pieces.by.tolist(), strict=True
    ):
        assert start < end
        assert whole.start_ns[of] <= start and end <= whole.end_ns[of]
        told.update(dict.fromkeys(range(start, end), by))
    assert set(told) == moments(some)
    for t, by in told.items():
        there = [(a, k) for k, (a, b) in enumerate(cover) if a <= t < b]
        assert by == (min(there)[1] if there else NOWHERE)


@given(intervals, intervals)
def test_an_overlap_is_how_many_moments_are_in_both(some: Intervals, asked: Intervals) -> None:
    whole = spans.union(*columns(some))
    found = spans.overlap_ns(whole, *columns(asked))
    assert found.tolist() == [len(moments(some) & set(range(a, b))) for a, b in asked]


@given(st.sets(st.integers(0, 40), max_size=10), st.lists(st.integers(-1, 45), max_size=8))
def test_what_lies_before_a_place(bounds: set[int], asked: list[int]) -> None:
    ends = sorted(bounds)[: len(bounds) // 2 * 2]
    stretches = list(zip(ends[::2], ends[1::2], strict=True))
    from_ns, until_ns = (np.array(ends[k::2], np.int64) for k in (0, 1))
    plain = [sum(min(b, max(at, a)) - a for a, b in stretches) for at in asked]
    assert spans.covered_before(from_ns, until_ns, np.array(asked, np.int64)).tolist() == plain
