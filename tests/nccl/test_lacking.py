"""Side files that each lack one thing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphlink.doctor.diagnose import Given, examine, findings_of
from graphlink.doctor.records import Finding
from graphlink.nccl.lacking import dump_lacking, missing_calls
from graphlink.nccl.read.read import read_dump
from graphlink.nccl.side_files import pair
from graphlink.run.discover.inputs import of_folders
from graphlink.run.discover.pairing import side_files
from tests.simulator import ClusterTraining, cluster_run
from tests.simulator.nccl import write_nccl
from tests.simulator.nccl_records import NcclProfile

Event = dict[str, Any]


def event(cat: str, name: str, ident: int, ts: float, *, end: float, **args: Any) -> list[Event]:
    both = {"name": name, "cat": cat, "id": ident, "pid": 9, "tid": 1}
    return [both | {"ph": "b", "ts": ts, "args": args}, both | {"ph": "e", "ts": end}]


def collective(number: int, *, kernel: bool = True, stop: int = 900, steps: bool = True) -> list[Event]:
    """An AllReduce of the example plugin, with what happens in it."""
    at = 100.0 * number + 50
    begin, end = event(
        "COLL", "AllReduce", number, at, end=at + 50, SeqNum=number, CommHash=77, Rank=0, Count=4, Datatype="ncclFloat32",
        Algorithm="RING", Protocol="LL", nChannels=1,
    )  # fmt: skip
    inside = (
        event("GPU", "KernelCh", number, at + 1, end=at + 40, Channel=0, StartGpuClk=100 * number, StopGpuClk=stop)
        if kernel
        else []
    )
    if steps:
        op = event(
            "PROXY", "ScheduleSend", number, at + 2, end=at + 3, Channel=0, Peer=1, Steps=1, ChunkSize=16, transSize=16
        )
        op_begin, op_end = event(
            "PROXY", "ProgressSend", number, at + 4, end=at + 30, Channel=0, Peer=1, Steps=1, ChunkSize=16, transSize=16
        )
        inside += [*op, op_begin, *event("NET", "SendWait", number, at + 5, end=at + 20, Step=0), op_end]
    return [begin, *inside, end]


def plugin(folder: Path, *calls: list[Event], cut: bool = False) -> Path:
    lines = ",\n".join(json.dumps(one) for call in calls for one in call)
    path = folder / "nccl_77_0.json"
    path.write_text(f"[\n{lines[:-9] if cut else lines},\n{'' if cut else '{}]'}")
    return path


def found_in(path: Path) -> dict[str, Finding]:
    return {f.kind: f for f in dump_lacking(read_dump(path))}


@pytest.mark.parametrize(
    ("how", "findings"),
    [
        ({}, set()),
        ({"kernel": False}, {"nccl-no-kernel-events"}),
        ({"stop": 0}, {"nccl-no-gpu-stop"}),
        ({"steps": False}, {"nccl-no-proxy-steps"}),
    ],
    ids=str,
)
def test_what_the_plugin_was_not_asked_for_is_found(how: dict[str, Any], findings: set[str], tmp_path: Path) -> None:
    assert set(found_in(plugin(tmp_path, *(collective(n, **how) for n in (1, 2, 3))))) == findings


def test_calls_that_the_ring_lost_are_counted(tmp_path: Path) -> None:
    path = plugin(tmp_path, *(collective(n) for n in (4, 5, 8)))
    found = found_in(path)
    assert found["nccl-calls-missing"].figures == {"missing": 5, "between": 2}
    assert missing_calls(read_dump(path)) == (5, 2)
    assert "NCCL_PROFILE_COLL_POOL_SIZE=100000" in found["nccl-calls-missing"].record


def test_numbers_from_0_or_1_on_are_whole(tmp_path: Path) -> None:
    for first in (0, 1):
        assert found_in(plugin(tmp_path, *(collective(first + n) for n in range(3)))) == {}


def test_a_cut_dump_is_told(tmp_path: Path) -> None:
    assert found_in(plugin(tmp_path, collective(1), collective(2), cut=True))["nccl-broken-rows"].figures["events"] > 0


def test_messages_of_the_plugin_have_no_numbers(tmp_path: Path) -> None:
    send = event("P2P", "Send", 1, 5, end=9, CommHash=77, Rank=0, Peer=1, Count=4, Datatype="ncclFloat32", nChannels=1)
    found = found_in(plugin(tmp_path, collective(1), send))
    assert found["nccl-no-seq"].figures == {"without": 1, "calls": 2}


def entry(number: int, **more: Any) -> Event:
    times = {
        "time_created_ns": 10**18 + number,
        "time_discovered_started_ns": 10**18 + number,
        "time_discovered_completed_ns": 10**18 + 99,
    }
    return {
        "record_id": number, "process_group": ["0", "default_pg"], "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number,
        "profiling_name": "nccl:all_reduce", "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]],
        "output_dtypes": ["Float"], "state": "completed", "is_p2p": False, "duration_ms": 0.5, **times, **more,
    }  # fmt: skip


def flight(folder: Path, *entries: Event) -> Path:
    path = folder / "flight_recorder_0.json"
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    path.write_text(json.dumps({"version": "2.10", "pg_config": config, "entries": list(entries)}))
    return path


def test_a_whole_flight_recorder_lacks_nothing(tmp_path: Path) -> None:
    assert found_in(flight(tmp_path, *map(entry, (1, 2, 3)))) == {}


def test_a_full_flight_recorder_is_told_with_its_variable(tmp_path: Path) -> None:
    found = found_in(flight(tmp_path, *map(entry, (7, 8))))
    assert found["nccl-calls-missing"].figures == {"missing": 6, "between": 0}
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE" in found["nccl-calls-missing"].record


def test_functions_share_the_numbers_of_a_flight_recorder(tmp_path: Path) -> None:
    assert found_in(flight(tmp_path, entry(1), entry(2, profiling_name="nccl:broadcast"), entry(3))) == {}


def test_durations_need_timing(tmp_path: Path) -> None:
    assert set(found_in(flight(tmp_path, *(entry(n, duration_ms=None) for n in (1, 2))))) == {"flight-no-timing"}


def test_entries_that_nobody_completed_have_no_durations_to_miss(tmp_path: Path) -> None:
    gloo = {
        "profiling_name": "gloo:all_reduce",
        "state": "scheduled",
        "duration_ms": None,
        "time_discovered_completed_ns": 0,
    }
    assert found_in(flight(tmp_path, entry(1, **gloo))) == {}


def inspector(folder: Path, bytes_: int, *, verbose: bool = True) -> Path:
    times = {"coll_start_ts": 10**15, "coll_stop_ts": 10**15 + 90}
    line = {
        "header": {"id": "0x4d", "rank": 0, "n_ranks": 2, "nnodes": 1},
        "metadata": {"inspector_output_format_version": "v4.0", "hostname": "node0", "pid": 9},
        "coll_perf": {
            "coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": bytes_, "coll_exec_time_us": 90, "coll_timing_source": "kernel_gpu",
            **({"event_trace_ts": times} if verbose else {}),
        },
    }  # fmt: skip
    path = folder / "node0-pid9.log"
    path.write_text(json.dumps(line) + "\n")
    return path


def test_the_inspector_leaves_out_small_messages_and_times(tmp_path: Path) -> None:
    assert found_in(inspector(tmp_path, 64)) == {}
    assert set(found_in(inspector(tmp_path, 8192))) == {"inspector-large-only"}
    assert set(found_in(inspector(tmp_path, 64, verbose=False))) == {"nccl-no-times"}


def test_side_files_alone_make_no_graph(tmp_path: Path) -> None:
    path = plugin(tmp_path, collective(1))
    (finding,) = findings_of([], Given(dumps=(path,)))
    assert (finding.name, finding.figures, finding.files) == ("nccl-alone", {"calls": 1}, [str(path)])


def test_ops_without_a_call_are_counted_over_ranks(tmp_path: Path) -> None:
    run = cluster_run(ClusterTraining(data=2, tensor=2, steps=4, layers=1))
    run.write(tmp_path, et=True)
    write_nccl(run, tmp_path, NcclProfile(kind="plugin", last=4, kernel_channels=True))
    heads = side_files(sorted(tmp_path.glob("*.json")))
    ranks = pair(heads, [], of_folders([str(tmp_path)], None).ranks).ranks
    found = {
        f.name: f
        for f in findings_of([examine(one) for one in ranks], Given(ranks, dumps=tuple(head.path for head in heads)))
    }
    lost = sum(len(columns.kind) for columns in run.ranks.values()) - 4 * len(heads)
    unmatched = found["nccl-unmatched"]
    assert lost <= unmatched.figures["left"] <= lost + len(heads)
    assert sum(unmatched.parts.values()) == unmatched.figures["left"]
    counted = found["nccl-calls-missing"].figures["missing"]
    assert lost - len(heads) <= counted <= lost  # numbers from 0 hide one a file
    assert unmatched.ranks == [0, 1, 2, 3]
