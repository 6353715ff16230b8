from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.read.columns import MISSING, ints, ns_of_us, to_int
from graphlink.read.comms import MAX_RANKS, int_list, process_groups, rank_list, spread_ranks


@given(st.integers(-1000 * 2**43 + 1, 1000 * 2**43 - 1))
def test_three_decimals_are_exact(ns):
    """Below 2**43 us a float64 holds three decimals: what was recorded to the ns comes back to the ns."""
    text = str(Decimal(ns).scaleb(-3))
    assert ns_of_us(np.array([float(text)])).tolist() == [ns]


@given(st.floats(0, 2**43))
def test_other_floats_give_the_nearest_ns(us):
    assert abs(ns_of_us(np.array([us])).item() - Decimal(us) * 1000) <= Decimal("0.500001")


def test_times_out_of_range_are_missing():
    assert ns_of_us(np.array([np.nan, np.inf, -np.inf, 4.7e15, -4.7e15, 1.5])).tolist() == [MISSING] * 5 + [1500]


@pytest.mark.parametrize(
    ("value", "number"),
    [(7, 7), ("25738", 25738), ("stream 7", 7), ("0x1F", 31), (-1, -1), ("-1", -1), (7.0, 7), (True, 1),
     (7.5, None), (None, None), ("PyTorch Profiler", None), ([1], None), ({}, None), (2**63, None), (1e300, None),
     ("9" * 40, None), ("", None)],
)  # fmt: skip
def test_numbers_in_every_spelling(value, number):
    assert to_int(value) == (MISSING if number is None else number)
    assert ints([value, 3], -9).tolist() == [-9 if number is None else number, 3]


def test_rank_lists():
    assert int_list("[0, 1]") == (0, 1)
    assert int_list("[0, 1, ...]") == int_list("[]") == int_list(7) == int_list([1, "x"]) == ()
    assert spread_ranks(2, 4, 3) == (2, 6, 10)
    assert spread_ranks(0, -1, 3) is spread_ranks(0, 1, 1 << 40) is spread_ranks(None, 1, 2) is None
    assert spread_ranks(0, 1 << 40, 2) is spread_ranks(1 << 40, 1, 2) is None


def test_damaged_ranks_are_none():
    assert rank_list("[2, 0]") == (2, 0)
    assert (
        rank_list([0, MAX_RANKS])
        == rank_list("[0, 1267650600228229401496703205376]")
        == rank_list([-1])
        == rank_list([1, 1])
        == ()
    )
    (group,) = process_groups([{"pg_name": "0", "pg_size": 1 << 40, "ranks": [0, 1 << 40]}])
    assert (group.size, group.ranks) == (None, None)


def test_process_groups_from_either_spelling():
    (kineto,) = process_groups(
        [{"pg_name": "13", "pg_desc": "dp", "backend_config": "cuda:nccl", "pg_size": 2, "ranks": [0, 1]}]
    )
    assert (kineto.name, kineto.desc, kineto.size, kineto.ranks) == ("13", "dp", 2, (0, 1))
    (world,) = process_groups('[{"pg_name": 0, "ranks": [], "group_size": 4}, 7, {"pg_desc": "nameless"}]')
    assert (world.name, world.size, world.ranks) == ("0", 4, None)
    assert process_groups("[{") == process_groups(None) == process_groups({}) == ()
