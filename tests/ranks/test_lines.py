"""Clocks of ranks against each other, put together from pairs."""

from __future__ import annotations

import random

import numpy as np
import pytest

from graphlink.ranks.aligned import Lines, Ops
from graphlink.ranks.bytime import _under_best_shift
from graphlink.ranks.records import Line

AT = 1_700_000_000_000_000_000


def read(rank: int, run_ns: int) -> int:
    """What the clock of ``rank`` shows: off by some ms and by a drift of its own."""
    return run_ns + (rank * 7_919 % 100 - 50) * 1_000_000 + round((rank % 5 - 2) * 10e-6 * (run_ns - AT))


def line(one: int, other: int) -> Line:
    """The clock of ``one`` by that of ``other``."""
    here, there = read(other, AT), read(other, AT + 10**10)
    offset = read(one, AT) - here
    return Line(offset, (read(one, AT + 10**10) - there - offset) / (there - here), here)


def test_clocks_are_known_through_others() -> None:
    lines, ranks = Lines(), list(range(40))
    random.Random(0).shuffle(ranks)
    for rank in range(1, 40):
        assert lines.between(ranks[0], ranks[rank]) is None
    for k in range(0, 40, 2):
        lines.join(ranks[k], ranks[k + 1], line(ranks[k], ranks[k + 1]))
    for k in range(2, 40, 2):
        lines.join(ranks[k - 1], ranks[k], line(ranks[k - 1], ranks[k]))
    for one, other in ((ranks[0], ranks[39]), (ranks[17], ranks[4]), (3, 3), (39, 0)):
        known = lines.between(one, other)
        assert known is not None
        for after in (0, 10**9, 10**10):
            assert abs(known.at(read(other, AT + after)) - read(one, AT + after)) < 200
    assert lines.between(0, 41) is None


def test_a_line_and_its_way_back() -> None:
    forth = line(3, 4)
    own = np.array([AT, AT + 10**9, AT + 10**10])
    there = forth.of(own)
    assert there.tolist() == [forth.at(t) for t in own.tolist()]
    assert np.abs(forth.back().of(there) - own).max() <= 1


@pytest.mark.parametrize("lacks", ["first", "last"])
def test_of_shifts_that_are_alike_the_one_counts_under_which_clocks_differ_least(lacks: str) -> None:
    """Steps are periodic to the ns, and one rank lacks a collective: each shift fits as well."""
    ends = AT + 871_000 * np.arange(4)
    left, right = (
        Ops(
            start_ns=at - 9_000,
            end_ns=at,
            comms=None,
            rows=np.arange(len(at), dtype=np.int32),
            token=at * 0,
            timed=True,
        )
        for at in (ends, ends[1:] if lacks == "first" else ends[:-1])
    )
    pairs = _under_best_shift(left, right, 10_000)
    assert (left.end_ns[pairs[0]] == right.end_ns[pairs[1]]).all() and len(pairs[0]) == 3
