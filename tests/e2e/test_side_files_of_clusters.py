"""The installed command on recordings with side files of NCCL: what they tell is in the outputs, and what does not fit
is named.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from graphlink.cli import main
from tests.e2e.conftest import ROOT, Done
from tests.e2e.graph_rules import broken, read
from tests.simulator import ClusterRun, ClusterTraining, cluster_run
from tests.simulator.nccl import write_nccl
from tests.simulator.nccl_records import NcclProfile, TrueCall, TrueFile

TRACES = ROOT.parent / "shared" / "traces"
Run = Callable[..., Done]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> tuple[ClusterRun, Path]:
    """Four ranks, data and tensor parallel."""
    run = cluster_run(ClusterTraining(data=2, tensor=2, steps=3))
    folder = tmp_path_factory.mktemp("cluster")
    run.write(folder / "traces")
    return run, folder


def truth(files: tuple[TrueFile, ...]) -> dict[int, dict[int, TrueCall]]:
    """By rank and correlation of the kernel the call."""
    out: dict[int, dict[int, TrueCall]] = {}
    for file in files:
        for call in file.calls:
            if call.kernel is not None:
                out.setdefault(call.rank, {})[call.kernel] = call
    return out


def stripped(path: Path) -> list[tuple[Any, ...]]:
    """The nodes of a graph without what side files add, in the order of their fields."""
    file = read(path)
    kept = [{name: value for name, value in a.items() if not name.startswith("nccl_")} for a in file.attributes]
    return [
        (n.id, n.name, n.type, list(n.data_deps), n.duration_micros, list(a.items()))
        for n, a in zip(file.nodes, kept, strict=True)
    ]


def rows_of(path: Path) -> set[str]:
    packets = pb.Trace.FromString(path.read_bytes()).packet
    return {p.track_descriptor.name for p in packets if p.HasField("track_descriptor")}


def test_a_plugin_s_dumps_beside_the_traces_of_a_run(
    graphlink: Run, cluster: tuple[ClusterRun, Path], tmp_path: Path
) -> None:
    run, folder = cluster
    files = write_nccl(run, tmp_path / "nccl", NcclProfile(kernel_channels=True, proxy_steps=True))
    plain = graphlink(folder / "traces")
    assert plain.status == 0, plain.err
    without = {rank: stripped(plain.folder / f"trace.{rank}.et") for rank in run.ranks}
    assert not any(
        "nccl" in name for rank in run.ranks for a in read(plain.folder / f"trace.{rank}.et").attributes for name in a
    )
    done = graphlink(folder / "traces", "--nccl", tmp_path / "nccl", "--force")
    assert done.status == 0, done.err
    calls, found = truth(files), done.summary["run"]["nccl"]
    assert (found["ranks"], found["files"]) == (4, len(files))
    matched = 0
    for rank in done.summary["ranks"]:
        number, nccl = rank["rank"], rank["nccl"]
        path = done.folder / f"trace.{number}.et"
        file = read(path)
        assert broken(file) == []
        assert stripped(path) == without[number]
        noted = [a for a in file.attributes if "nccl_comm" in a]
        assert len(noted) == sum(line["matched"] for line in nccl["join"])
        matched += len(noted)
        for a in noted:
            call = calls[number][a["correlation"]]
            assert (a["nccl_comm"], a["nccl_wire_bytes"]) == (str(call.communicator), call.wire_bytes)
            assert a.get("nccl_seq", -1) == call.seq
            split = [a[f"nccl_{name}_ns"] for name in ("gpu_wait", "peer_wait", "wire", "receive")]
            assert min(split) >= 0
            assert sum(split) <= a["end_ns"] - a["start_ns"]
        ran = sum(a["end_ns"] - a["start_ns"] for a in noted)
        assert (
            sum(
                row[name]
                for row in nccl["times"]
                for name in ("gpu_ns", "peer_ns", "wire_ns", "receive_ns", "other_ns")
            )
            == ran
        )
        for one in nccl["files"]:
            assert one["clock"]["offset_ns"] is not None
            assert one["clock"]["inside"] == one["clock"]["checked"] > 0
        for line in nccl["join"]:
            assert line["calls"] == line["matched"] + sum(line["calls_left"].values())
            assert line["ops"] == line["matched"] + sum(line["ops_left"].values())
    assert matched == sum(line["matched"] for line in found["join"]) == sum(map(len, calls.values()))
    assert {"NCCL channel 0", "NCCL channel 0 send", "NCCL channel 0 receive"} < rows_of(
        done.folder / "timeline.perfetto-trace"
    )
    assert f"{len(files)} side files of 4 ranks" in done.out


def test_in_a_folder_a_flight_recorder_s_files_are_taken_and_tell_members_that_the_traces_lack(
    graphlink: Run, cluster: tuple[ClusterRun, Path], tmp_path: Path
) -> None:
    run, folder = cluster
    whole = graphlink(folder / "traces", "--no-timeline")
    graphs = {rank: stripped(whole.folder / f"trace.{rank}.et") for rank in run.ranks}
    shutil.rmtree(whole.folder)
    for path in (folder / "traces").iterdir():
        document = json.loads(path.read_text())
        for row in document["traceEvents"]:
            for name in ("Process Group Ranks", "Global rank start", "Global rank stride"):
                row.get("args", {}).pop(name, None)
        document["distributedInfo"].pop("pg_config", None)
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / path.name).write_text(json.dumps(document))
    bare = graphlink(tmp_path / "run", "--no-timeline")
    assert bare.status == 0, bare.err
    assert any(
        "communication without parameters or group" in text
        for rank in bare.summary["ranks"]
        for text in rank["warnings"]
    )
    files = write_nccl(run, tmp_path / "run", NcclProfile(kind="flight-pickle"))
    done = graphlink(tmp_path / "run", "--no-timeline", "--force")
    assert done.status == 0, done.err
    assert {rank: stripped(done.folder / f"trace.{rank}.et") for rank in run.ranks} == graphs
    for rank in done.summary["ranks"]:
        (file,) = rank["nccl"]["files"]
        assert Path(file["path"]).name == f"nccl_trace_rank_{rank['rank']}"
        assert sum(line["matched"] for line in rank["nccl"]["join"]) == len(truth(files)[rank["rank"]])
    assert "4 side files of 4 ranks" in done.out


def test_jobs_of_single_ranks_and_join_are_the_same(
    graphlink: Run, cluster: tuple[ClusterRun, Path], tmp_path: Path
) -> None:
    run, folder = cluster
    write_nccl(run, tmp_path / "nccl", NcclProfile(proxy_steps=True))
    whole = graphlink(folder / "traces", "--nccl", tmp_path / "nccl", "-q")
    want = {path.name: path.read_bytes() for path in whole.folder.iterdir() if path.is_file()}
    shutil.rmtree(whole.folder)
    for rank in run.ranks:
        assert (
            graphlink(
                "link", "--rank-job", "--rank", str(rank), folder / "traces", "--nccl", tmp_path / "nccl", "-q"
            ).status
            == 0
        )
    assert main(["join", str(whole.folder), "-q"]) == 0
    assert {path.name: path.read_bytes() for path in whole.folder.iterdir() if path.is_file()} == want


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"public traces are not at {TRACES}")
@pytest.mark.parametrize(
    "trace",
    [
        "dlrm8-v100/kineto_0.json",
        "simple-add-a100/kineto_0.json",
        pytest.param("resnet-ddp2-a100/kineto_0.json", marks=pytest.mark.long),
    ],
)
def test_a_real_dump_beside_a_trace_of_another_run_is_all_unmatched_and_named(
    graphlink: Run, trace: str, tmp_path: Path
) -> None:
    dump = TRACES / "nccl" / "nccl_trace_p2p_4rank.json"
    found = next(path for path in sorted((TRACES / trace).parent.glob(f"{Path(trace).name}*")))
    aside = graphlink("--kineto", found, "--nccl", dump, "--no-timeline")
    assert aside.status == 0, aside.err
    assert any(text.startswith("left aside") and text.endswith(str(dump)) for text in aside.summary["warnings"])
    assert "nccl" not in aside.rank
    without = (aside.folder / "trace.0.et").read_bytes()
    said = tmp_path / "dump_rank_0.json"
    said.write_bytes(dump.read_bytes())
    done = graphlink("--kineto", found, "--nccl", said, "--force", "-v")
    assert done.status == 0, done.err
    nccl = done.rank["nccl"]
    (file,) = nccl["files"]
    assert (file["path"], file["kind"], file["events"], file["calls"]) == (str(said), "plugin", 310, 4)
    assert nccl["times"] == []
    lines = [line for line in nccl["join"] if line["file"] == 0]
    assert {line["communicator"] for line in lines} == {"12715772615376301750"}
    assert sum(line["calls"] for line in lines) == 4 == sum(sum(line["calls_left"].values()) for line in lines)
    assert sum(line["matched"] for line in nccl["join"]) == 0
    assert (done.folder / "trace.0.et").read_bytes() == without
    assert "communicator 12715772615376301750: 0 of 1 calls" in done.out
    assert not any(name.startswith("NCCL channel") for name in rows_of(done.folder / "timeline.perfetto-trace"))
