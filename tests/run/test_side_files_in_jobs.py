"""Side files in the job of a rank."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from graphlink.errors import InputError
from graphlink.nccl.read.read import read_dumps
from graphlink.nccl.summary import summarised
from graphlink.run.job import Inputs, Options, PreparedRank, prepare
from tests.simulator import ClusterRun, ClusterTraining, cluster_run
from tests.simulator.nccl import write_nccl
from tests.simulator.nccl_records import NcclProfile


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> tuple[ClusterRun, Path]:
    run = cluster_run(ClusterTraining(data=2, tensor=1, steps=4))
    folder = tmp_path_factory.mktemp("cluster")
    run.write(folder)
    return run, folder


def prepared(cluster: tuple[ClusterRun, Path], folder: Path, profile: NcclProfile, step: str = "all") -> PreparedRank:
    """Rank 0 with what the profiler recorded of it."""
    run, traces = cluster
    own = tuple(file.path for file in write_nccl(run, folder, profile) if 0 in file.ranks)
    return prepare(Inputs(kineto=traces / "kineto_0.json", nccl=own), Options(step=step, timeline="none"))


def test_what_is_wrong_with_a_side_file_is_a_warning_that_names_it(
    cluster: tuple[ClusterRun, Path], tmp_path: Path
) -> None:
    found = prepared(cluster, tmp_path, NcclProfile(cut=0.8))
    assert found.parts.get("nccl") is not None
    assert any(text.startswith(f"{found.parts['nccl'].dumps[0].path}: ") and "cut" in text for text in found.warnings)


def test_a_log_without_times_is_named_with_what_to_set(cluster: tuple[ClusterRun, Path], tmp_path: Path) -> None:
    found = prepared(cluster, tmp_path, NcclProfile(kind="inspector"))
    assert found.parts.get("nccl") is not None
    assert not len(found.parts["nccl"].op)
    assert any("no times: record with NCCL_INSPECTOR_DUMP_VERBOSE=1" in text for text in found.warnings)


def test_of_some_steps_the_calls_of_the_others_are_left(cluster: tuple[ClusterRun, Path], tmp_path: Path) -> None:
    profile = NcclProfile(kind="flight-json")
    whole, part = (
        prepared(cluster, tmp_path / name, profile, step).parts["nccl"]
        for name, step in (("whole", "all"), ("part", "1-2"))
    )
    assert whole is not None
    assert part is not None
    lines = summarised(part).join
    assert 0 < sum(line.matched for line in lines) == len(part.ops.row) < len(whole.op)
    assert sum(line.calls for line in lines) == len(whole.op)
    assert sum(sum(line.calls_left.values()) for line in lines) == len(whole.op) - len(part.op)


def test_the_times_of_groups_are_those_of_their_ops(cluster: tuple[ClusterRun, Path], tmp_path: Path) -> None:
    files = prepared(cluster, tmp_path, NcclProfile(proxy_steps=True)).parts["nccl"]
    assert files is not None
    ops, split = files.ops, files.split
    names = np.array([ops.groups[k][1] for k in ops.group.tolist()])[split.op]
    told = {row.group: row for row in summarised(files).times}
    assert set(told) == set(names.tolist())
    for name, row in told.items():
        mine = names == name
        assert row.ops == np.count_nonzero(mine)
        ran = (ops.end_ns - ops.start_ns)[split.op][mine].sum()
        assert row.gpu_ns + row.peer_ns + row.wire_ns + row.receive_ns + row.other_ns == ran
        assert (row.peer_ns, row.receive_ns) == (split.peer_ns[mine].sum(), split.receive_ns[mine].sum())


def test_of_files_that_cannot_be_read_only_a_found_one_is_left_out(tmp_path: Path) -> None:
    bad = tmp_path / "nccl_trace_rank_0"
    bad.write_bytes(b"\x80\x02" + struct.pack("<cI", b"X", 9) + b"pg_config" + b"cos\nsystem\n.")
    dumps, unread = read_dumps({bad: "s3://bucket/nccl_trace_rank_0"}, {bad})
    assert dumps == ()
    assert len(unread) == 1
    assert unread[0].startswith("s3://bucket/nccl_trace_rank_0 is left out: ")
    with pytest.raises(InputError):
        read_dumps({bad: str(bad)}, ())
