"""The axes of a run, told by what its communicators are used for."""

from __future__ import annotations

import pytest

from graphlink.errors import InputError, UsageError
from graphlink.scale.layout import Axis, found, required, stated
from tests.scale.clusters import DATA4, MIXED, PIPELINE4, Linked, graphs_of
from tests.simulator.cluster_records import ClusterTraining


@pytest.mark.parametrize(
    ("training", "axes"),
    [
        (DATA4, {"data": (4, 1)}),
        (MIXED, {"tensor": (2, 1), "data": (2, 2), "pipeline": (2, 4)}),
        (PIPELINE4, {"pipeline": (4, 1)}),
        (ClusterTraining(data=1, tensor=2), {"tensor": (2, 1)}),
        (
            ClusterTraining(data=2, tensor=2, sequence_parallel=True, twin=True, steps=1),
            {"tensor": (2, 1), "data": (2, 2)},
        ),
    ],
    ids=[
        "data",
        "data, tensor and pipeline",
        "pipeline",
        "tensor",
        "sequence parallel, two communicators of the same ranks",
    ],
)
def test_axes_are_those_of_the_training(
    linked: Linked, training: ClusterTraining, axes: dict[str, tuple[int, int]]
) -> None:
    told = found(*graphs_of(linked(training)))
    assert {name: (axis.size, axis.stride) for name, axis in told.items()} == axes
    assert all(axis.why for axis in told.values())


def test_what_is_not_there_is_refused_with_what_is(linked: Linked) -> None:
    told = found(*graphs_of(linked(PIPELINE4)))
    with pytest.raises(
        InputError, match=r"no data parallel ranks.*pipeline: communicators of 4 ranks.*send each other messages"
    ):
        required(told, "data")


def test_ranks_move_along_an_axis_and_keep_their_other_places() -> None:
    axis = Axis(2, 2)  # of tensor 2, data 2, pipeline 2
    assert [axis.of(rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [axis.moved(rank, axis.of(rank), 4) for rank in range(8)] == [0, 1, 2, 3, 8, 9, 10, 11]
    assert axis.moved(5, 3, 4) == 15


def test_a_layout_can_be_stated() -> None:
    axes = stated("tensor=2,data=4,pipeline=3", 24)
    assert {name: (axis.size, axis.stride) for name, axis in axes.items()} == {
        "tensor": (2, 1),
        "data": (4, 2),
        "pipeline": (3, 8),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tensor=2", "is of 2 ranks"),
        ("tensor=2,tensor=2", "'tensor=2'"),
        ("rows=4", "'rows=4'"),
        ("data=x", "'data=x'"),
    ],
)
def test_a_layout_of_other_ranks_or_axes_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        stated(text, 4)
