"""Rows next to a place of a thread, against plain search."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphlink.model import NOWHERE
from graphlink.spans import Axis, Neighbours

places = st.lists(st.tuples(st.sampled_from((-3, 0, 7, 1 << 40)), st.integers(-5, 30)), max_size=12)


@given(places, places)
def test_neighbours_are_those_of_a_plain_search(rows: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    tid, time_ns = (np.array([row[k] for row in rows], np.int64) for k in (0, 1))
    of, at = (np.array([place[k] for place in asked], np.int64) for k in (0, 1))
    near = Neighbours.of(tid, time_ns)
    order = sorted(range(len(rows)), key=lambda i: rows[i][1])
    before = [[i for i in order if rows[i][0] == t and rows[i][1] < ns] for t, ns in asked]
    since = [[i for i in order if rows[i][0] == t and rows[i][1] >= ns] for t, ns in asked]
    assert near.before(of, at).tolist() == [found[-1] if found else NOWHERE for found in before]
    assert near.since(of, at).tolist() == [found[0] if found else NOWHERE for found in since]


@given(st.lists(st.tuples(st.sampled_from((-3, 7)), st.integers(0, 20), st.integers(1, 20)), max_size=8), places)
def test_the_innermost_row_around_a_moment(drawn: list[tuple[int, int, int]], asked: list[tuple[int, int]]) -> None:
    rows: list[tuple[int, int, int]] = []
    for tid, start, long in sorted(drawn, key=lambda row: (row[0], row[1], -row[2])):
        if not any(t == tid and a < start + long and start < b < start + long for t, a, b in rows):
            rows.append((tid, start, start + long))
    around = [
        max((k for k in range(i) if rows[k][0] == tid and rows[k][1] <= start < rows[k][2]), default=NOWHERE)
        for i, (tid, start, _) in enumerate(rows)
    ]
    tid, start_ns, end_ns = np.array(rows, np.int64).reshape(-1, 3).T
    axis = Axis.over(tid, start_ns, end_ns + 1)
    near = Neighbours.nested(axis, tid, start_ns, end_ns, np.arange(len(rows)), np.array(around, np.int64))
    found = near.before(*(np.array([place[k] for place in asked], np.int64) + k for k in (0, 1)))
    plain = [max((k for k, (t, a, b) in enumerate(rows) if t == tid and a <= at < b), default=-1) for tid, at in asked]
    assert found.tolist() == plain
