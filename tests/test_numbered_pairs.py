"""Pairs of values as numbers, against numpy's sorting of records."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphlink.pairs import numbered_pairs, numbered_texts

NUMBERS = st.integers(-(2**62), 2**62) | st.integers(-2, 2)


@given(st.lists(st.tuples(NUMBERS, NUMBERS)))
def test_pairs_are_numbered_as_numpy_numbers_rows(rows: list[tuple[int, int]]) -> None:
    table = np.array(rows, np.int64).reshape(-1, 2)
    pairs, number = numbered_pairs(table[:, 0], table[:, 1])
    expected, inverse = np.unique(table, axis=0, return_inverse=True)
    assert pairs == list(map(tuple, expected.tolist()))
    assert number.tolist() == inverse.reshape(-1).tolist()


def test_texts_are_numbered_as_they_first_come() -> None:
    code, texts = numbered_texts(["b", "", "a", "b"])
    assert (code.tolist(), texts) == ([0, 1, 2, 0], ("b", "", "a"))
    assert numbered_texts([])[1] == ()
