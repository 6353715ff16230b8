"""Gradients reduced in other buckets: what-ifs of one simulated cluster, against the run that really has those
buckets.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from graphlink.errors import UsageError
from graphlink.replay.buckets import turns_of
from graphlink.replay.changes import BucketChange, Changes
from graphlink.replay.coupled import play_coupled
from graphlink.replay.folder import graph_files, load, load_groups
from graphlink.replay.matching import matched
from graphlink.replay.whatif import Changed, apply
from graphlink.replay.workload import Workload, workload
from graphlink.run.library import link
from graphlink.run.options import Options
from tests.simulator import ClusterTraining, cluster_run

MB = 1 << 20
Groups = dict[int, tuple[int, ...]]


def cluster(seed: int) -> ClusterTraining:
    random = Random(seed)
    return ClusterTraining(
        data=random.choice([2, 4]),
        tensor=random.choice([1, 1, 2]),
        steps=2,
        layers=random.choice([4, 6, 8]),
        microbatches=random.randint(1, 2),
        seed=seed,
        jitter=0.0,
        gradient_bytes=random.choice([1, 4, 16]) * MB,
        compute_ns=random.choice([200_000, 800_000]),
        alpha_ns=random.choice([10_000, 60_000]),
        end_jitter_ns=0,
    )


def graphs(folder: Path, training: ClusterTraining) -> tuple[Workload, Groups]:
    at = folder / f"{training.seed}-{training.bucket_layers}"
    cluster_run(training).write(at / "traces")
    out = link(at / "traces", out=at / "out", options=Options(timeline="none", sync="cuda")).folder
    return workload(load(graph_files(out))), load_groups(out)


def total_ns(work: Workload, groups: Groups) -> int:
    return play_coupled(work, matched(work, groups)).total_ns


def changed(work: Workload, groups: Groups, change: BucketChange) -> Changed:
    return apply(work, Changes(buckets=(change,)), groups)


@pytest.mark.parametrize("seeds", [1, pytest.param(16, marks=pytest.mark.long)])
def test_joined_buckets_take_what_they_take_in_a_run_with_them(tmp_path: Path, seeds: int) -> None:
    errors = []
    for seed in range(seeds):
        single = cluster(seed)
        (one, groups), (two, _) = graphs(tmp_path, single), graphs(tmp_path, replace(single, bucket_layers=2))
        assert total_ns(one, groups) < total_ns(two, groups)
        whole = max(len(turns) for _, series in turns_of(one, BucketChange(join=2)).values() for turns in series)
        all_joined, more = (changed(one, groups, BucketChange(join=join)).work for join in (max(whole, 2), 2 * whole))
        assert [*all_joined.cost_ns] == [*more.cost_ns]  # so advice tries no more than are there
        assert [*all_joined.source] == [*more.source]
        errors.append(
            100 * (total_ns(changed(one, groups, BucketChange(join=2)).work, groups) / total_ns(two, groups) - 1)
        )
    print(f"joined: {seeds} clusters, median {np.median(np.abs(errors)):.2f} %, worst {max(errors, key=abs):+.2f} %")
    assert max(map(abs, errors)) <= 0.5


@pytest.mark.parametrize("seeds", [1, pytest.param(16, marks=pytest.mark.long)])
def test_divided_buckets_take_what_they_take_in_a_run_with_them(tmp_path: Path, seeds: int) -> None:
    """All layers are equal, so all buckets of the recording are, and the bandwidth has to be given."""
    errors = []
    for seed in range(seeds):
        pairs = replace(cluster(seed), gradient_growth=0, bucket_layers=2, gradient_bytes=32 * MB)
        (two, groups), (one, _) = graphs(tmp_path, pairs), graphs(tmp_path, replace(pairs, bucket_layers=1))
        bandwidth = 2 * (pairs.data - 1) / pairs.data * pairs.bytes_per_us / 1e3
        divide = BucketChange(size_mb=32, bandwidth_gb_per_s=bandwidth)
        with pytest.raises(UsageError, match="which does not show how their time grows with size"):
            changed(two, groups, BucketChange(size_mb=32))
        assert total_ns(one, groups) < total_ns(two, groups)
        errors.append(100 * (total_ns(changed(two, groups, divide).work, groups) / total_ns(one, groups) - 1))
    print(f"divided: {seeds} clusters, median {np.median(np.abs(errors)):.2f} %, worst {max(errors, key=abs):+.2f} %")
    assert max(map(abs, errors)) <= 1


def test_what_cannot_be_joined_or_divided_is_refused(tmp_path: Path) -> None:
    work, groups = graphs(tmp_path, replace(cluster(0), layers=1))
    with pytest.raises(UsageError, match="no group reduces gradients in several collectives"):
        changed(work, groups, BucketChange(size_mb=1))
    work, groups = graphs(tmp_path, replace(cluster(0), seed=99, layers=2, gradient_bytes=8 * MB))
    with pytest.raises(UsageError, match="the buckets are of that size"):
        changed(work, groups, BucketChange(size_mb=12))
    with pytest.raises(UsageError, match="no communication is in group 77"):
        changed(work, groups, BucketChange(join=2, group=77))
