"""Files of simulated clusters: as written plainly, and as graphlink and the independent checker of graphs take them."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.read.host import read_host
from graphlink.read.kineto import read_kineto
from tests.comm_ops import listed
from tests.simulator import (
    DIALECTS,
    ClusterRun,
    ClusterTraining,
    Differs,
    Dropped,
    EarlyEnd,
    LateStart,
    MissingRank,
    OtherOrder,
    ProfilerOverhead,
    ProfilerStart,
    cluster_run,
)
from tests.simulator.__main__ import main
from tests.test_simulator.test_pipeline_files import CHECKER, linked

SMALL = ClusterTraining(
    data=2, tensor=1, pipeline=2, expert=2, layers=3, ranks_per_host=2, host_clock_offset_ns=50_000_000, drift_ppm=20.0
)
FAULTS = (
    LateStart(0, meetings=5),
    EarlyEnd(1, meetings=3),
    Dropped(2, "data", 1),
    OtherOrder(2, "world", 1),
    Differs(1, "data", 1),
    ProfilerStart(2_000_000),
    ProfilerOverhead(3, 1, 1_000_000),
    ProfilerOverhead(3, 0, 50_000, "Resource"),
)


def test_a_rank_has_about_as_many_rows_as_asked_for(tmp_path: Path) -> None:
    for path in cluster_run(replace(SMALL, events_per_rank=5_000)).write(tmp_path, suffix=".json.gz"):
        count = len(json.loads(gzip.decompress(path.read_bytes()))["traceEvents"])
        assert abs(count - 5_000) < 500


def check_columns(run: ClusterRun, rank: int, kineto: Path, et: Path | None, *, seq: bool) -> None:
    """What is read and typed of a file are the columns of its rank."""
    trace, host = read_kineto(kineto), read_host(et) if et else None
    found = communication(link(trace, host, match_hosts(trace, host)))
    assert [text for text in found.warnings if "computation" in text] == []
    columns, ops = run.ranks[rank], found.ops
    assert np.array_equal(trace.device.start_ns[ops.row], columns.start_ns)
    assert np.array_equal(trace.device.end_ns[ops.row], columns.end_ns)
    told = [(int(n.kind), n.type, n.bytes, ops.groups[n.group], n.peer) for n in listed(ops)]
    wanted = zip(
        *(x.tolist() for x in (columns.kind, columns.type, columns.bytes, columns.group, columns.peer)), strict=True
    )
    assert told == [(kind, type_, size, columns.groups[group], peer) for kind, type_, size, group, peer in wanted]
    comms = dict(zip(trace.device.comm.row.tolist(), trace.device.comm.comms, strict=True))
    if comms:
        assert [comms[i].seq for i in ops.row.tolist()] == (columns.seq.tolist() if seq else [None] * len(told))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("more", "files"),
    [
        ({}, {}),
        ({"sequence_parallel": True, "tensor": 2, "expert": 1}, {"seq": False, "dialect": "2026", "et": True}),
        (
            {"twin": True, "schedule": "GPipe", "address_names": True},
            {"et": True, "comm_args": False, "suffix": ".json.gz"},
        ),
    ],
    ids=["kineto", "2026 with ET", "ET alone tells"],
)
def test_what_is_read_is_what_was_recorded(
    more: dict[str, Any], files: dict[str, Any], seed: int, tmp_path: Path
) -> None:
    run = cluster_run(replace(SMALL, seed=seed, **more), () if files else FAULTS)
    for rank, path in zip(run.ranks, run.write(tmp_path, **files), strict=True):
        et = path.with_name(path.name.replace("kineto", "et")) if files.get("et") else None
        check_columns(run, rank, path, et, seq=files.get("seq", True))


@pytest.mark.parametrize(
    ("faults", "files"),
    [
        ((), {"et": True}),
        pytest.param((), {"et": True, "dialect": "2023"}, marks=pytest.mark.long),
        ((), {"et": True, "dialect": "2021"}),
        pytest.param((), {"et": True, "dialect": "rocm"}, marks=pytest.mark.long),
        pytest.param((), {"cuda_sync": False, "seq": False}, marks=pytest.mark.long),
        (FAULTS, {}),
        ((MissingRank(2),), {"dialect": "2026", "suffix": ".json.gz"}),
    ],
    ids=["2024", "2023", "2021", "rocm", "no sync rows", "faults", "missing rank"],
)
def test_a_folder_of_ranks_is_linked_and_replays(
    faults: tuple[Any, ...], files: dict[str, Any], tmp_path: Path
) -> None:
    run = cluster_run(SMALL, faults)
    paths = run.write(tmp_path, **files)
    ranks = linked(tmp_path, "--keep-unmatched")["ranks"]  # some faults contradict each other
    assert [rank["rank"] for rank in ranks] == list(run.ranks)
    for rank in ranks:
        assert abs(rank["replay"]["error_pct"]) < 0.02
        assert "impossible" not in rank["sync"]["rejected"]
        assert sum(rank["communication"].values()) == len(run.ranks[rank["rank"]].kind)
        assert rank["device"]["ops"] == rank["device"]["linked"]
        if files.get("cuda_sync", True) and DIALECTS[files.get("dialect", "2024")].sync_rows:
            # of none of its passes is known what they are; what faults took away
            assert [w for w in rank["warnings"] if not re.search("nothing names passes|without a device op", w)] == []
        if files.get("et"):
            assert rank["host"]["nodes"] == rank["host"]["matched"]
    if not CHECKER.exists():
        pytest.skip(f"the checker of graphs is not at {CHECKER}")
    for number, file in zip(run.ranks, paths, strict=True):
        command = [sys.executable, str(CHECKER), str(tmp_path / "out" / f"trace.{number}.et"), str(file)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = ("late:1:0.2", "early:0:0.9", "dropped:3:world:1", "differs:2:world:0", "start:500", "overhead:2:1:100")
    words = [word for fault in faults for word in ("--fault", fault)]
    status = main(
        [
            "cluster",
            str(tmp_path),
            "--tensor",
            "2",
            "--clock-offset-us",
            "50",
            "--drift-ppm",
            "20",
            "--et",
            "--gzip",
            *words,
        ]
    )
    assert status == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{kind}_{r}.json.gz" for kind in ("et", "kineto") for r in range(4)
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 ranks, 4 recorded; 5 groups"
    assert [line.split(":")[0] for line in lines[2:6]] == [f"rank {rank}" for rank in range(4)]
    assert "rank 2: differs at 0 of world group 0" in lines
    assert any(line.startswith("rank 0: ") and line.endswith("before, not on [1]") for line in lines)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--fault", "luck:1"],
        ["--fault", "late:1"],
        ["--fault", "late:x:1"],
        ["--fault", "missing:9"],
        ["--expert", "3"],
    ],
)
def test_wrong_usage_ends_with_status_2(wrong: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["cluster", str(tmp_path / "new"), *wrong])
    assert stopped.value.code == 2
    assert not (tmp_path / "new").exists()
