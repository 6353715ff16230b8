"""Columns that are made of few rows, against plain loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphlink.model import NOWHERE
from graphlink.tables import (
    begins,
    codes,
    counted_from,
    distinct,
    in_order,
    marked,
    numbered_rows,
    numbered_texts,
    numbered_values,
    places,
    pointing_at,
    spread,
    turns,
)

few = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=20)
numbers = st.integers(-9, 9) | st.integers(-(1 << 63), (1 << 63) - 1)  # close together, and not


@given(few)
def test_values_stand_at_their_rows_the_last_of_several(given_: list[tuple[int, int]]) -> None:
    rows, values = (np.array([pair[k] for pair in given_], np.int32) for k in (0, 1))
    plain = dict(given_)
    column = spread(10, rows, values)
    assert column.tolist() == [plain.get(row, NOWHERE) for row in range(10)]
    assert column.dtype == np.int32
    assert spread(10, rows, values, 7).tolist() == [plain.get(row, 7) for row in range(10)]
    assert marked(10, rows).tolist() == [row in plain for row in range(10)]


@given(few)
def test_rows_begin_where_any_column_changes(given_: list[tuple[int, int]]) -> None:
    columns = [np.array([pair[k] for pair in given_], np.int64) for k in (0, 1)]
    before = [None, *given_]
    assert begins(*columns).tolist() == [now != then for now, then in zip(given_, before, strict=False)]


@given(st.lists(numbers) | st.lists(st.integers(-5, 5)))
def test_distinct_values_are_those_of_numpy(values: list[int]) -> None:
    column = np.array(values, np.int64)
    expected, inverse = np.unique(column, return_inverse=True)
    assert distinct(column).tolist() == expected.tolist()
    found, code = numbered_values(column)
    assert (found.tolist(), code.tolist()) == (expected.tolist(), inverse.reshape(-1).tolist())


@given(few | st.lists(st.tuples(numbers, numbers), max_size=20))
def test_rows_are_numbered_and_counted_by_what_is_equal(given_: list[tuple[int, int]]) -> None:
    columns = [np.array([pair[k] for pair in given_], np.int64) for k in (0, 1)]
    every = sorted(set(given_))
    assert codes(*columns).tolist() == [every.index(pair) for pair in given_]
    rows, code = numbered_rows(*columns)
    assert (rows.tolist(), code.tolist()) == (list(map(list, every)), codes(*columns).tolist())
    assert turns(*columns).tolist() == [given_[:k].count(pair) for k, pair in enumerate(given_)]


@given(few)
def test_rows_are_sorted_by_their_first_key_and_stay_where_all_are_equal(given_: list[tuple[int, int]]) -> None:
    columns = [np.array([pair[k] for pair in given_], np.int64) for k in (0, 1)]
    rows = np.arange(len(given_))[::-2]
    assert in_order(rows, *columns).tolist() == sorted(rows.tolist(), key=lambda row: given_[row])


@given(st.permutations(range(6)), st.lists(st.integers(NOWHERE, 5), max_size=9))
def test_places_and_pointers_are_turned_round(order: list[int], column: list[int]) -> None:
    assert places(np.array(order[:4]), 6).tolist() == [
        order[:4].index(k) if k in order[:4] else NOWHERE for k in range(6)
    ]
    rows = {to: row for row, to in enumerate(column)}
    assert pointing_at(np.array(column, np.int32), 6).tolist() == [rows.get(k, NOWHERE) for k in range(6)]


@given(few)
def test_positions_are_counted_from_each_first_one(given_: list[tuple[int, int]]) -> None:
    first, count = (np.array([pair[k] for pair in given_], np.int64) for k in (0, 1))
    assert counted_from(first, count).tolist() == [low + k for low, many in given_ for k in range(many)]


def test_texts_are_numbered_as_they_first_come() -> None:
    code, texts = numbered_texts(["b", "", "a", "b"])
    assert (code.tolist(), texts) == ([0, 1, 2, 0], ("b", "", "a"))
    assert numbered_texts([])[1] == ()
