"""Simulated clusters, recorded and linked once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphlink.run.library import link
from graphlink.run.options import Options
from tests.scale.clusters import Linked
from tests.simulator.cluster import cluster_run
from tests.simulator.cluster_records import ClusterTraining


@pytest.fixture(scope="session")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Linked:
    """The output folder of a simulated cluster."""
    known: dict[ClusterTraining, Path] = {}

    def folder(training: ClusterTraining) -> Path:
        if training not in known:
            base = tmp_path_factory.mktemp("cluster")
            cluster_run(training).write(base / "traces")
            known[training] = link(base / "traces", out=base / "out", options=Options(timeline="none")).folder
        return known[training]

    return folder
