"""Times of copies: drawn by a seed, spread as recorded, the same whichever way they are asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graphlink.model import NOWHERE
from graphlink.replay.workload import Work, works_of
from graphlink.scale.layout import Axis
from graphlink.scale.spread import spreads
from tests.scale.clusters import DATA4, Linked, graphs_of

AXIS = Axis(4, 1)
SAME = {rank: rank for rank in range(4)}


def test_one_node_of_many_copies_and_all_nodes_of_one_are_the_same_draw(linked: Linked) -> None:
    graphs, _ = graphs_of(linked(DATA4))
    drawn, own = spreads(graphs, SAME, AXIS, 7)[1], graphs[1].duration_ns
    ranks = np.array([1, 5, 9, 61], np.uint64)
    by_rank = np.stack([drawn.ns(own, int(rank)) for rank in ranks], axis=1)
    for node in range(len(own)):
        assert drawn.of_node(node, int(own[node]), ranks).tolist() == by_rank[node].tolist()
    assert np.array_equal(by_rank[:, 0], own)  # the recorded rank
    assert not np.array_equal(by_rank[:, 1], by_rank[:, 2])


def test_the_seed_decides(linked: Linked) -> None:
    graphs, _ = graphs_of(linked(DATA4))
    one, again, other = (spreads(graphs, SAME, AXIS, seed)[0].ns(graphs[0].duration_ns, 20) for seed in (1, 1, 2))
    assert np.array_equal(one, again) and not np.array_equal(one, other)
    exact = spreads(graphs, SAME, AXIS, None)[0]
    assert np.array_equal(exact.ns(graphs[0].duration_ns, 20), graphs[0].duration_ns)


def test_communication_delays_and_gaps_stay(linked: Linked) -> None:
    graphs, _ = graphs_of(linked(DATA4))
    drawn = spreads(graphs, SAME, AXIS, 0)[2]
    keep = np.isin(works_of(graphs[2]), (Work.COMM, Work.DELAY, Work.GAP))
    assert keep.any() and (drawn.of[keep] == NOWHERE).all()
    assert np.array_equal(drawn.ns(graphs[2].duration_ns, 50)[keep], graphs[2].duration_ns[keep])


@pytest.mark.parametrize("events", [0, 3_000], ids=["a kernel a block", "blocks of many kernels that deviate together"])
def test_the_time_of_a_step_spreads_as_recorded(linked: Linked, events: int) -> None:
    training = replace(DATA4, jitter=0.5, steps=4, events_per_rank=events)
    graphs, _ = graphs_of(linked(training))
    drawn = spreads(graphs, SAME, AXIS, 3)[0]
    kernel = works_of(graphs[0]) == Work.KERNEL
    sums = np.array([drawn.ns(graphs[0].duration_ns, rank)[kernel].sum() for rank in range(4, 404)], np.float64)
    # of a forward or backward of a layer: 1 + 0.5 x uniform; 5 kinds of blocks a microbatch and layer would be too few
    # to be normal
    weight = np.array(
        [w for _ in range(training.steps) for w in ([1, 1, 2, 2] * training.microbatches + [1])], np.float64
    )
    truth = (
        training.compute_ns * weight.sum() * 1.25,
        training.compute_ns * 0.5 / np.sqrt(12) * np.sqrt((weight**2).sum()),
    )
    assert sums.mean() == pytest.approx(truth[0], rel=0.04)
    assert sums.std() == pytest.approx(truth[1], rel=0.25)


def test_a_rank_that_is_slower_throughout_stays_one(linked: Linked) -> None:
    graphs, _ = graphs_of(linked(replace(DATA4, straggler=(1, 1.5), jitter=0.05)))
    drawn, kernel = spreads(graphs, SAME, AXIS, 0)[0], works_of(graphs[0]) == Work.KERNEL
    own = graphs[0].duration_ns[kernel].sum()
    times = np.array([drawn.ns(graphs[0].duration_ns, rank)[kernel].sum() / own for rank in range(4, 404)])
    slow = times > 1.2  # in one step or in both
    assert 0.25 < slow.mean() < 0.65
    assert times.max() < 1.6 and times[~slow].max() < 1.1
