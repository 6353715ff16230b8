"""Ranks of files whose names have the number of a node and that of a rank on it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.run.discover.names import counted_ranks, placed_ranks, places


def paths(*names: str) -> list[Path]:
    return [Path("/runs/7", name) for name in names]


@given(st.integers(1, 9), st.integers(2, 9), st.sampled_from(["_", "-", ".n", ""]), st.randoms(use_true_random=False))
def test_a_whole_grid_is_read_in_any_order(nodes: int, each: int, between: str, random: Random) -> None:
    named = {f"gpt_{n}{between}{k}.sqlite": n * each + k for n in range(nodes) for k in range(each)}
    names = [*named]
    random.shuffle(names)
    if nodes == 1 and between:
        assert placed_ranks(paths(*names)) is None, "nothing tells that one of the numbers is a node"
    found = counted_ranks(paths(*names), [None] * len(names))
    assert found == [named[name] for name in names]


def test_the_machine_of_a_rank_is_told_where_its_name_tells() -> None:
    grid = [(n, k) for n in range(2) for k in range(4)]
    for between in ("_", ""):
        names = paths(*(f"gpt_{n}{between}{k}.json.gz" for n, k in grid))
        assert places(names, range(8)) == grid
        assert places(names, [0, 1, 2, 3, 4, 5, 7, 6]) == [*grid[:6], None, None], "the recordings say otherwise"
    assert places(paths("k_00.json", "k_01.json", "k_02.json"), [0, 1, 2]) == [None] * 3, "numbers of ranks"
    assert places(paths("kineto_0.json", "kineto_1.json"), [0, 1]) == [None] * 2
    assert places(paths("a.json"), [3]) == [None]
    assert places([], []) == []


def test_of_separated_numbers_some_may_be_missing() -> None:
    """Eleven reports of sixteen GPUs."""
    there = [(0, k) for k in range(8)] + [(1, 2), (1, 5), (1, 7)]
    assert placed_ranks(paths(*(f"gpt_{n}_{k}.nsys-rep.sqlite" for n, k in there))) == [8 * n + k for n, k in there]
    assert placed_ranks(paths(*(f"gpt_{n}{k}.sqlite" for n, k in there))) is None, "00 to 07, 12, 15, 17 may be ranks"


@pytest.mark.parametrize(
    "names",
    [
        ("step_0_0", "step_0_1", "step_1_0", "step_1_1"),  # what is counted is no place
        ("a_0_1", "b_0_0", "a_1_1", "a_1_0"),
        ("host1_20481.17", "host0_20482.19"),  # processes and times
        ("a_1_0", "a_1_1", "a_2_0", "a_2_1"),  # no node 0
        ("a_0_0_0", "a_0_1_1", "a_1_0_1", "a_1_1_0"),
        ("a_0_0", "a_0_0x", "a_1_0"),
        ("tp_rank_0_pp_rank_0", "tp_rank_0_pp_rank_1", "tp_rank_1_pp_rank_0", "tp_rank_1_pp_rank_1"),
        ("a_0_0",),
        ("a", "b"),
    ],
)
def test_what_is_no_grid_tells_nothing(names: tuple[str, ...]) -> None:
    assert placed_ranks(paths(*names)) is None


def test_the_numbers_may_be_called_what_they_are() -> None:
    names = [f"node_{n}_local_rank_{k}" for n in range(2) for k in range(2)]
    assert placed_ranks(paths(*names)) == [0, 1, 2, 3]


def test_a_rank_that_is_told_otherwise_counts() -> None:
    names = paths("a_0_0.json", "a_0_1.json", "a_1_0.json", "a_1_1.json")
    assert counted_ranks(names, [0, None, 2, None]) == [0, 1, 2, 3]
    assert counted_ranks(names, [0, None, 1, None]) is None
