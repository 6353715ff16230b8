"""Joins of nsys rows against plain loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlink.read.nsys.ranges import ExportCalls
from graphlink.read.nsys.report import number_streams
from graphlink.read.nsys.syncs import calls_of
from graphlink.tables import last_before

SMALL = st.integers(0, 3)
PROCESS = st.sampled_from([1 << 24, 2 << 24, -(1 << 30)])


def columns(rows: list[tuple[int, ...]], count: int) -> list[np.ndarray]:
    table = np.array(rows, np.int64).reshape(-1, count)
    return [table[:, k].copy() for k in range(count)]


@settings(max_examples=settings().max_examples * 4, deadline=None)
@given(
    rows=st.lists(st.tuples(SMALL, SMALL, st.integers(0, 9)), max_size=12),
    asked=st.lists(st.tuples(SMALL, SMALL, st.integers(0, 9)), max_size=12),
)
def test_the_last_row_before(rows: list[tuple[int, int, int]], asked: list[tuple[int, int, int]]) -> None:
    a, b, order = columns(rows, 3)
    c, d, asked_order = columns(asked, 3)
    found = last_before((a, b), order, (c, d), asked_order)
    for k, (one, other, at) in enumerate(asked):
        best = max((o for x, y, o in rows if (x, y) == (one, other) and o < at), default=None)
        if best is None:
            assert found[k] == -1
        else:
            assert rows[found[k]] == (one, other, best)


@settings(max_examples=settings().max_examples * 4, deadline=None)
@given(
    calls=st.lists(st.tuples(PROCESS, st.integers(0, 5), st.integers(0, 5)), max_size=12),
    asked=st.lists(st.tuples(PROCESS, st.integers(-1, 6)), max_size=12),
)
def test_the_call_of_a_process_and_correlation(calls: list[tuple[int, int, int]], asked: list[tuple[int, int]]) -> None:
    process, correlation, start = columns(calls, 3)
    table = ExportCalls(
        start, start + 1, process + 77, np.zeros(len(calls), np.int32), correlation, np.zeros(len(calls), np.bool_)
    )
    found = calls_of(*columns(asked, 2), table)
    for k, (one, number) in enumerate(asked):
        same = [i for i, (p, c, _) in enumerate(calls) if (p, c) == (one, number)]
        if number <= 0 or not same:
            assert found[k] == -1
        else:
            assert found[k] in same
            assert calls[found[k]][2] == min(calls[i][2] for i in same)


@settings(max_examples=settings().max_examples * 4, deadline=None)
@given(rows=st.lists(st.tuples(PROCESS, SMALL, SMALL, st.sampled_from([0, 7, 8, 9, 4_000_000_000])), max_size=30))
def test_streams_keep_apart_and_keep_their_numbers_where_they_can(rows: list[tuple[int, int, int, int]]) -> None:
    process, device, context, stream = columns(rows, 4)
    numbers, renumbered = number_streams(process, device, context, stream)
    number = dict(zip(rows, numbers.tolist(), strict=True))
    places = {(p, d, n) for (p, d, _, _), n in number.items()}
    assert len(places) == len(number)
    for (p, d, c, s), n in number.items():
        if not any((p, d, lower, s) in number for lower in range(c)):
            assert n == s
    assert len(renumbered) == sum(n != s for (*_, s), n in number.items())
