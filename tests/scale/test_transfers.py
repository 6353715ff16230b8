"""The rule of the time of collectives, fitted to transfers whose law is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from graphlink.linking.commtypes import CollectiveType
from graphlink.replay.network import Transfers
from graphlink.scale.transfers import Rule, fit, grown_bytes

AR, AG, RS, A2A = (
    CollectiveType.ALL_REDUCE,
    CollectiveType.ALL_GATHER,
    CollectiveType.REDUCE_SCATTER,
    CollectiveType.ALL_TO_ALL,
)


def ring(n: float, size: float) -> float:
    return 2 * (n - 1) * 1_000 + size * 2 * (n - 1) / n / 100


def tree(n: float, size: float) -> float:
    return 2 * math.log2(n) * 5_000 + size * 2 * (n - 1) / n / 50


def flat(n: float, size: float) -> float:
    return 10_000 + size / 100


def transfers(law, members: tuple[int, ...]) -> Transfers:  # type: ignore[no-untyped-def]
    rows = [(n, float(size), law(n, size)) for n in members for size in (8, 1 << 16, 1 << 20, 1 << 26)]
    n, size, took = (np.array(column) for column in zip(*rows, strict=True))
    return Transfers(np.ones(len(n), np.int64), np.full(len(n), int(AR)), n.astype(np.int64), size, took)


def grown(rule: Rule, before: int, after: int, size: float, took: float) -> int:
    one = np.array([int(AR)])
    members = np.array([float(before)]), np.array([float(after)])
    return int(rule.grown(np.array([round(took)]), one, members, (np.array([size]), np.array([size])))[0])


@pytest.mark.parametrize("law", [ring, tree, flat])
def test_of_two_sizes_the_way_to_grow_is_found(law) -> None:  # type: ignore[no-untyped-def]
    rule = fit(transfers(law, (2, 8)), None, None)
    for size in (8.0, float(1 << 24)):
        assert grown(rule, 8, 64, size, law(8, size)) == pytest.approx(law(64, size), rel=0.01)
    assert any("fits best" in line for line in rule.why)


def test_of_one_size_a_tree_is_assumed_and_said() -> None:
    rule = fit(transfers(ring, (4,)), None, None)
    assert rule.steps == "tree" and "an assumption, as all recorded communicators that grow have 4 ranks" in rule.why[0]
    assert grown(rule, 4, 16, 8.0, ring(4, 8)) == pytest.approx(2 * ring(4, 8), rel=0.01)  # log2 16 to log2 4


def test_what_one_transfer_had_more_than_another_stays() -> None:
    rule = fit(transfers(flat, (2, 8)), None, None)
    assert grown(rule, 2, 8, 8.0, 12_345) == 12_345


def test_what_is_given_holds() -> None:
    rule = fit(transfers(ring, (4,)), 25.0, 3_000.0)
    size = float(1 << 26)
    assert grown(rule, 4, 16, size, 1) == pytest.approx(2 * 4 * 3_000 + size * 2 * 15 / 16 / 25, rel=1e-6)
    assert grown(rule, 4, 4, size, 777) == 777  # which does not grow
    assert sum("as given with" in line for line in rule.why) == 2


def test_without_transfers_there_is_no_time_to_add() -> None:
    rule = fit(_none(), None, None)
    assert grown(rule, 4, 8, 8.0, 1_000) == 1_000


def _none() -> Transfers:
    nothing = np.zeros(0, np.int64)
    return Transfers(nothing, nothing, nothing, np.zeros(0), np.zeros(0))


def test_sizes_change_by_what_a_collective_is() -> None:
    kinds = {1: frozenset({int(AR), int(A2A), int(AG)}), 2: frozenset({int(AG), int(RS)})}
    assert grown_bytes(kinds, 1, int(AR), 1000, 4, 16) == 1000  # gradients are as many
    assert grown_bytes(kinds, 1, int(A2A), 1000, 4, 16) == 1000  # a rank has as many tokens
    assert grown_bytes(kinds, 1, int(AG), 1000, 4, 16) == 1000  # each rank's own
    assert grown_bytes(kinds, 2, int(RS), 1000, 4, 16) == 1000  # the whole gradient
    assert grown_bytes(kinds, 2, int(AG), 1000, 4, 16) == 250  # its shard of parameters
    assert grown_bytes(kinds, 2, int(AG), 1001, 4, 16) == 251
