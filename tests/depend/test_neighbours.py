"""Rows next to a place of a thread, against plain search."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphlink.depend.timeline import Neighbours
from graphlink.model import NOWHERE

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
