"""Side files of simulated clusters: in the form of the real ones, and with the truth that the simulation has."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from tests.simulator import ClusterRun, ClusterTraining, EarlyEnd, cluster_run
from tests.simulator.nccl import write_nccl
from tests.simulator.nccl_calls import nccl_calls
from tests.simulator.nccl_records import KINDS, NcclProfile

CALL_BY_CALL = (
    "plugin",
    "plugin-2.30",
    "inspector",
    "inspector-verbose",
)  # the others have what the framework was called for


@pytest.fixture(scope="module")
def run() -> ClusterRun:
    return cluster_run(ClusterTraining(data=2, tensor=2, pipeline=2, expert=2, steps=3, seed=5))


def test_numbers_count_by_communicator_and_function_from_0(run: ClusterRun) -> None:
    for rank in run.ranks:
        turns: dict[tuple[int, str], list[int]] = {}
        for call in nccl_calls(run, rank):
            turns.setdefault((call.communicator, call.function), []).append(call.seq)
        for (_, function), numbers in turns.items():
            assert numbers == ([-1] * len(numbers) if function in ("Send", "Recv") else list(range(len(numbers))))


def test_a_call_is_made_just_before_its_launch_and_that_before_its_kernel(run: ClusterRun) -> None:
    for call in nccl_calls(run, 3):
        assert 1_000 <= call.launch_ns - call.api_ns < 100_000
        assert call.launch_ns < call.start_ns < call.end_ns


def test_an_exchange_of_all_is_a_send_and_a_receive_with_each(run: ClusterRun) -> None:
    grouped: dict[int, list[tuple[str, int]]] = {}
    for call in nccl_calls(run, 0):
        if call.grouped:
            grouped.setdefault(call.op, []).append((call.function, call.peer))
    assert grouped
    assert all(sorted(parts) == [("Recv", 0), ("Recv", 1), ("Send", 0), ("Send", 1)] for parts in grouped.values())


def test_messages_may_have_communicators_of_their_own(run: ClusterRun) -> None:
    alone, shared = nccl_calls(run, 0, pairs=True), nccl_calls(run, 0)
    assert {call.communicator for call in shared if call.group == 0} == {
        call.communicator for call in alone if call.group == 0
    }
    messages = [call for call in alone if call.peer >= 0 and not call.grouped]
    assert messages and all((call.size, call.member, call.peer) == (2, 0, 1) for call in messages)


@pytest.mark.parametrize("kind", KINDS)
def test_the_truth_names_the_kernel_of_each_call_that_the_trace_has(run: ClusterRun, kind: str, tmp_path: Path) -> None:
    files = write_nccl(run, tmp_path, NcclProfile(kind=kind))
    for rank in run.ranks:
        named = [call.kernel for file in files for call in file.calls if call.rank == rank and call.kernel is not None]
        several = {call.op for call in nccl_calls(run, rank) if call.grouped} if kind in CALL_BY_CALL else set()
        kernels = {
            correlation for op, (correlation, _) in run.recordings[rank].communication().items() if op not in several
        }
        assert sorted(named) == sorted(kernels)


def test_a_kernel_that_was_not_recorded_is_no_ones(tmp_path: Path) -> None:
    short = cluster_run(ClusterTraining(data=2, tensor=2, steps=3), [EarlyEnd(0, share=0.5)])
    files = write_nccl(short, tmp_path, NcclProfile(kind="flight-json"))
    of_0 = [call for file in files for call in file.calls if call.rank == 0]
    assert sum(call.kernel is None for call in of_0) == len(nccl_calls(short, 0)) - len(short.ranks[0].kind)


def test_the_old_plugin_writes_no_json_and_the_new_one_does(run: ClusterRun, tmp_path: Path) -> None:
    (old, *_), (new, *_) = (
        write_nccl(run, tmp_path / kind, NcclProfile(kind=kind)) for kind in ("plugin", "plugin-2.30")
    )
    text = old.path.read_text()
    assert '"datatype": ncclBfloat16' in text and '"Stream": 0x' in text and text.endswith("},\n")
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    events = json.loads(new.path.read_text())
    assert events[-1] == {}
    collectives = [event for event in events[:-1] if event["cat"] == "COLL" and event["ph"] == "b"]
    assert [event["args"]["SeqNum"] for event in collectives] == [call.seq for call in new.calls]
    assert {event["args"]["CommHash"] for event in collectives} == {new.calls[0].communicator}
    assert all(event["ts"] == 0 for event in events[:-1] if event["cat"] == "KERNEL_LAUNCH" and event["ph"] == "b")


def test_faults_leave_out_what_they_say(run: ClusterRun, tmp_path: Path) -> None:
    def calls(**fault: float) -> list[int]:
        files = write_nccl(run, tmp_path / str(fault), NcclProfile(**fault))  # type: ignore[arg-type]
        return [len(file.calls) for file in files]

    whole = calls()
    assert all(0 < n <= 4 for n in calls(last=4))
    assert sum(calls(began=0.5)) < 0.7 * sum(whole)
    assert 0.5 * sum(whole) < sum(calls(dropped=0.3)) < 0.9 * sum(whole)
    small = [call for file in write_nccl(run, tmp_path / "min", NcclProfile(min_bytes=8_192)) for call in file.calls]
    assert {call.function for call in small} == {"AllReduce", "Send", "Recv"}


def test_a_cut_file_is_that_share_of_the_whole(run: ClusterRun, tmp_path: Path) -> None:
    whole, cut = (
        write_nccl(run, tmp_path / str(share), NcclProfile(cut=share))[0].path.read_bytes() for share in (None, 0.5)
    )
    assert cut == whole[: len(whole) // 2]


def test_the_inspector_writes_an_object_a_line_with_times_only_if_verbose(run: ClusterRun, tmp_path: Path) -> None:
    for kind in ("inspector", "inspector-verbose"):
        (file, *_) = write_nccl(run, tmp_path / kind, NcclProfile(kind=kind))
        lines = [json.loads(line) for line in file.path.read_text().splitlines()]
        performances = [line.get("coll_perf") or line["p2p_perf"] for line in lines]
        assert len(lines) == len(file.calls)
        assert all(("event_trace_ts" in one) == (kind == "inspector-verbose") for one in performances)


def test_the_flight_recorder_is_the_same_as_json_and_as_a_pickle(run: ClusterRun, tmp_path: Path) -> None:
    (one, *_), (other, *_) = (
        write_nccl(run, tmp_path / kind, NcclProfile(kind=kind)) for kind in ("flight-json", "flight-pickle")
    )
    text, pickled = json.loads(one.path.read_bytes()), pickle.loads(other.path.read_bytes())
    assert text == json.loads(json.dumps(pickled))
    assert len(text["entries"]) == len(one.calls)


def test_ranks_of_a_process_share_its_clock(run: ClusterRun, tmp_path: Path) -> None:
    files = write_nccl(run, tmp_path, NcclProfile(ranks_a_process=2))
    offsets = {
        file.process: {call.offset_ns for other in files if other.process == file.process for call in other.calls}
        for file in files
    }
    assert all(len(of_process) == 1 for of_process in offsets.values())
    assert len({next(iter(of_process)) for of_process in offsets.values()}) == 4


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="no side file is called 'other'"):
        NcclProfile(kind="other")
