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


@given(intervals)
def test_joined_intervals_keep_moments_where_nothing_else_is(some: Intervals) -> None:
    """With each interval as long as it is and one behind, to see moments, they are a union."""
    some = [(a, max(a, b)) for a, b in some]
    out = spans.joined(*columns(some))
    assert moments([(a, b + 1) for a, b in listed(out)]) == moments([(a, b + 1) for a, b in some])
    assert all(b < c for (_, b), (c, _) in pairwise(listed(out)))


@given(intervals, st.lists(st.integers(-1, 32), max_size=8))
def test_the_span_around_a_moment(some: Intervals, asked: list[int]) -> None:
    whole = spans.union(*columns(some))
    plain = [next((k for k, (a, b) in enumerate(listed(whole)) if a <= t < b), NOWHERE) for t in asked]
    assert spans.holding(whole, np.array(asked, np.int64)).tolist() == plain


@given(intervals, st.lists(intervals, max_size=3))
def test_of_several_covers_the_first_takes_what_it_covers(some: Intervals, covers: list[Intervals]) -> None:
    whole, given_ = spans.union(*columns(some)), [spans.union(*columns(cover)) for cover in covers]
    *taken, (left, none) = spans.shared_out(whole, given_)
    rest = moments(some)
    for cover, (pieces, by) in zip(given_, taken, strict=True):
        assert moments(listed(pieces)) == rest & moments(listed(cover))
        assert ((cover.start_ns[by] <= pieces.start_ns) & (pieces.end_ns <= cover.end_ns[by])).all()
        rest -= moments(listed(cover))
    assert moments(listed(left)) == rest
    assert (none == NOWHERE).all()


def test_rows_that_touch_and_are_equal_are_one_stretch() -> None:
    start, end = np.array([0, 2, 5, 6, 8]), np.array([2, 4, 6, 8, 9])
    first, last = spans.continued(start, end, np.array([1, 1, 1, 1, 2]))
    assert (first.tolist(), last.tolist()) == ([0, 2, 4], [1, 3, 4])
    assert [column.tolist() for column in spans.continued(start[:0], end[:0], start[:0])] == [[], []]
