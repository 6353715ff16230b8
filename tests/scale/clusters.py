"""Trainings of simulated clusters, and how long they truly take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from graphlink.graph_model import Graph
from graphlink.replay.folder import graph_files, load, load_groups
from tests.simulator.cluster import cluster_run
from tests.simulator.cluster_records import ClusterTraining

DATA4 = ClusterTraining(data=4, tensor=1, jitter=0.3)
MIXED = ClusterTraining(data=2, tensor=2, pipeline=2)
PIPELINE4 = ClusterTraining(data=1, tensor=1, pipeline=4, microbatches=4)
Linked = Callable[[ClusterTraining], Path]


def step_ns(training: ClusterTraining) -> float:
    """Return the true time of a step: from the first op of all ranks to the end of the last, by the number of steps."""
    times = cluster_run(training).times
    return (max(one.ended_ns for one in times) - min(int(one.issue_ns[0]) for one in times)) / training.steps


def graphs_of(folder: Path) -> tuple[dict[int, Graph], dict[int, tuple[int, ...]]]:
    return load(graph_files(folder)), load_groups(folder)
