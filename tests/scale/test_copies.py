"""Which rank repeats which, and whom it meets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graphlink.errors import InputError, UsageError
from graphlink.graph_model import NodeType
from graphlink.scale.copies import copies
from graphlink.scale.layout import Axis, found
from tests.scale.clusters import DATA4, MIXED, PIPELINE4, Linked, graphs_of
from tests.simulator.cluster import cluster_groups


@pytest.mark.parametrize("size", [2, 3, 8])
def test_communicators_are_those_of_the_larger_training(linked: Linked, size: int) -> None:
    graphs, groups = graphs_of(linked(MIXED))
    made = copies(graphs, groups, found(graphs, groups)["data"], size)
    truth = {group.members for group in cluster_groups(replace(MIXED, data=size))}
    assert set(made.groups.values()) == truth and len(made.groups) == len(truth)
    assert sorted(rank for ranks in made.ranks.values() for rank in ranks.tolist()) == [*range(made.world)]
    for (group, rank), numbers in made.numbers.items():
        for new, number in zip(made.ranks[rank].tolist(), numbers.tolist(), strict=True):
            assert new in made.groups[number], (group, rank)


def test_experts_stay_together(linked: Linked) -> None:
    training = replace(DATA4, expert=2, steps=1)
    graphs, groups = graphs_of(linked(training))
    axis = found(graphs, groups)["data"]
    made = copies(graphs, groups, axis, 6)
    assert set(made.groups.values()) == {group.members for group in cluster_groups(replace(training, data=6))}
    with pytest.raises(InputError, match="5 ranks are no whole number of 2"):
        copies(graphs, groups, axis, 5)


def test_communicators_of_the_same_ranks_stay_two(linked: Linked) -> None:
    graphs, groups = graphs_of(linked(replace(MIXED, pipeline=1, sequence_parallel=True, twin=True, steps=1)))
    made = copies(graphs, groups, found(graphs, groups)["data"], 4)
    assert [*made.groups.values()].count((0, 2, 4, 6)) == 2


def test_what_does_not_fit_the_axis_is_refused(linked: Linked) -> None:
    graphs, groups = graphs_of(linked(PIPELINE4))
    with pytest.raises(InputError, match="sends to rank 1, at another place of the data axis"):
        copies(graphs, groups, Axis(4, 1), 8)
    graphs, groups = graphs_of(linked(DATA4))
    with pytest.raises(UsageError, match="4 were recorded"):
        copies(graphs, groups, Axis(4, 1), 3)
    with pytest.raises(UsageError, match="at most"):
        copies(graphs, groups, Axis(4, 1), 1_000_000)
    odd = {rank: replace(graph, columns={**graph.columns}) for rank, graph in graphs.items()}
    with pytest.raises(InputError, match="places 0, 2 of 4"):
        copies(
            odd,
            {**groups, int(np.unique(graphs[0].group[graphs[0].type == NodeType.COMM_COLL])[0]): (0, 2)},
            Axis(4, 1),
            8,
        )
