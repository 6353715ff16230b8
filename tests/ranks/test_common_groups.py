"""Communicators of several ranks that are the same: by members and name, by order, by what was called on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from graphlink.ranks.group_ids import common
from graphlink.ranks.records import GroupKey

ALL = (0, 1)


def named(names: str) -> list[GroupKey]:
    return [(ALL, name) for name in names]


def test_members_and_name_make_a_communicator() -> None:
    found = common({0: [(ALL, "a"), ((1, 0), "a")], 1: [((1, 0), "a"), (ALL, "a")]})
    assert found[0] == found[1] == {key: key for key in [(ALL, "a"), ((1, 0), "a")]}


def test_a_rank_alone_keeps_its_names() -> None:
    assert common({3: named("xy")}) == {3: {key: key for key in named("xy")}}


def test_names_that_each_rank_has_alone_are_taken_by_first_use() -> None:
    found = common({0: named("axb"), 1: named("cxd")})
    assert [found[0][key][1] for key in named("axb")] == ["#0", "x", "#1"]
    assert [found[1][key][1] for key in named("cxd")] == ["#0", "x", "#1"]


@pytest.mark.parametrize(
    ("shorter", "places"),
    [
        ([[1, 1, 2], [5, 5]], ["#0", "#2"]),
        ([[3, 3, 3], [5]], ["#1", "#2"]),
        ([[1, 2], [3]], ["#0", "#1"]),
        ([[9], [9]], ["#0", "#1"]),
    ],
)
def test_where_a_rank_has_fewer_names_what_was_called_tells_which(shorter: list[list[int]], places: list[str]) -> None:
    called: dict[GroupKey, Sequence[int]] = dict(
        zip(named("abc"), [[1, 1, 1, 2], [3, 3, 3, 3], [5, 5, 5]], strict=True)
    )
    called |= dict(zip(named("pq"), shorter, strict=True))
    found = common({0: named("abc"), 1: named("pq")}, lambda _, key: np.array(called[key], np.int64))
    assert [found[0][key][1] for key in named("abc")] == ["#0", "#1", "#2"]
    assert [found[1][key][1] for key in named("pq")] == places


def test_names_that_are_about_as_alike_keep_their_order() -> None:
    called = {key: [1] * count for key, count in zip(named("abcpq"), (100, 100, 100, 97, 98), strict=True)}
    found = common({0: named("abc"), 1: named("pq")}, lambda _, key: np.array(called[key], np.int64))
    assert [found[1][key][1] for key in named("pq")] == ["#0", "#1"]


@pytest.mark.parametrize(
    ("other", "places"),
    [
        ([[5, 5], [1, 1, 2]], ["#1", "#0"]),  # began late, and saw the second one first
        ([[1, 2], [5, 5, 5]], ["#0", "#1"]),
        ([[9], [9]], ["#0", "#1"]),
        ([[1, 1, 2], [1, 1, 2]], ["#0", "#1"]),
    ],
)
def test_where_the_order_pairs_what_is_unlike_what_was_called_tells(other: list[list[int]], places: list[str]) -> None:
    called: dict[GroupKey, Sequence[int]] = dict(zip(named("ab"), [[1, 1, 1, 2], [5, 5, 5]], strict=True))
    called |= dict(zip(named("cd"), other, strict=True))
    found = common({0: named("ab"), 1: named("cd")}, lambda _, key: np.array(called[key], np.int64))
    assert [found[0][key][1] for key in named("ab")] == ["#0", "#1"]
    assert [found[1][key][1] for key in named("cd")] == places


def test_numbers_of_process_groups_are_no_addresses() -> None:
    five, six = ((0, 1), "5"), ((0, 1), "6")
    assert common({0: [five], 1: [six]}) == {0: {five: five}, 1: {six: six}}
    assert common({0: [((0, 1), "94594108")], 1: [((0, 1), "93891384")]})[1] == {((0, 1), "93891384"): ((0, 1), "#0")}
