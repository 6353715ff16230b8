"""Logs of NCCL's inspector whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphlink.errors import InputError
from graphlink.model import NOWHERE
from graphlink.nccl.read.read import read_dump
from graphlink.nccl.read.records import Dump
from graphlink.read.kinds import DumpKind

EPOCH_US = 1752867229235059  # as in NCCL's README


def line(
    kind: str, perf: dict[str, Any], comm: str = "0xb07ad3f00dcafe00", rank: int = 4, **header: Any
) -> dict[str, Any]:
    return {
        "header": {"id": comm, "rank": rank, "n_ranks": 8, "nnodes": 1} | header,
        "metadata": {"inspector_output_format_version": "v4.0", "git_rev": "x", "rec_mechanism": "nccl_profiler_interface",
                     "dump_timestamp_us": EPOCH_US + 10**6, "hostname": "node-7", "pid": 438776},
        kind: perf,
    }  # fmt: skip


def collective(
    name: str, number: int, size: int, took_us: int, source: str = "kernel_gpu", **more: Any
) -> dict[str, Any]:
    perf = {
        "coll": name,
        "coll_sn": number,
        "coll_msg_size_bytes": size,
        "coll_exec_time_us": took_us,
        "coll_timing_source": source,
    }
    return line("coll_perf", perf | {"coll_algobw_gbs": 1.5, "coll_busbw_gbs": 2.5} | more.pop("verbose", {}), **more)


VERBOSE = {
    "event_trace_sn": {
        "coll_start_sn": 1,
        "coll_stop_sn": 2,
        "kernel_events": [{"channel_id": 0, "kernel_start_sn": 3}],
    },
    "event_trace_ts": {
        "coll_start_ts": EPOCH_US,
        "coll_stop_ts": EPOCH_US + 5,
        "kernel_events": [
            {
                "channel_id": channel,
                "kernel_start_ts": EPOCH_US + 122 + channel,
                "kernel_stop_ts": EPOCH_US + 40752,
                "kernel_record_ts": 1,
            }
            for channel in range(2)
        ],
    },
}
POINT = {
    "p2p": "Send",
    "p2p_sn": 5,
    "p2p_peer": 3,
    "p2p_msg_size_bytes": 64,
    "p2p_exec_time_us": 9,
    "p2p_timing_source": "kernel_cpu",
}
LINES = [
    collective("AllReduce", 1407, 17179869184, 61974, comm_name="tp"),
    collective(
        "ReduceScatter", 1231, 2147483648, 41057, verbose=VERBOSE, comm="0x7f8c496ae9f661", rank=2, comm_name="unknown"
    ),
    collective("AllGather", 1408, 8192, 12, "collective_cpu"),
    line("p2p_perf", POINT, comm_name="tp"),
]


def texts(dump: Dump, column: Any) -> list[str]:
    return [dump.strings[number] for number in column.tolist()]


@pytest.mark.parametrize("indent", [None, 2])
def test_every_field_is_read(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "x.log"
    path.write_text("\n".join(json.dumps(each, indent=indent) for each in LINES) + "\n")
    dump = read_dump(path)
    assert (dump.kind, dump.host, dump.pid, dump.rank) == (DumpKind.INSPECTOR, "node-7", 438776, None)
    assert [(each.key, each.name, each.size) for each in dump.communicators] == [
        (str(0xB07AD3F00DCAFE00), "tp", 8),
        (str(0x7F8C496AE9F661), "", 8),
    ]
    calls = dump.calls
    assert texts(dump, calls.function) == ["allreduce", "reducescatter", "allgather", "send"]
    assert (calls.communicator.tolist(), calls.rank.tolist()) == ([0, 1, 0, 0], [4, 2, 4, 4])
    assert (calls.seq.tolist(), calls.peer.tolist()) == ([1407, 1231, 1408, 5], [NOWHERE] * 3 + [3])
    assert calls.bytes.tolist() == [17179869184, 2147483648, 8192, 64]
    assert calls.start_ns.tolist() == [0, EPOCH_US * 1000, 0, 0]
    assert calls.end_ns.tolist() == [0, EPOCH_US * 1000 + 5000, 0, 0]
    assert (calls.channels.tolist(), calls.count.tolist()) == ([NOWHERE, 2, NOWHERE, NOWHERE], [NOWHERE] * 4)
    kernels = dump.kernels
    assert (kernels.call.tolist(), kernels.channel.tolist()) == ([1, 1], [0, 1])
    assert (kernels.start_ns - EPOCH_US * 1000).tolist() == [122_000, 123_000]
    assert (kernels.end_ns - EPOCH_US * 1000).tolist() == [40_752_000] * 2
    assert (dump.events, dump.left_out) == (4, {})
    assert dump.warnings == ("1 calls were timed on the host only: their times on the GPU are not known",)


def test_what_later_versions_list_in_a_call(tmp_path: Path) -> None:
    kernel = {
        "event_type": "KernelCh",
        "channel_id": 1,
        "event_trace_ts": {"kernel_start_ts": EPOCH_US, "kernel_stop_ts": EPOCH_US + 3},
    }
    events = [kernel, {"event_type": "ProxyOp", "proxy_id": 5, "proxy_states": []}]
    (tmp_path / "x.log").write_text(json.dumps(collective("AllReduce", 1, 2, 3, verbose={"events": events})))
    dump = read_dump(tmp_path / "x.log")
    kernels = dump.kernels
    assert (kernels.channel.tolist(), kernels.start_ns.tolist(), kernels.end_ns.tolist()) == (
        [1],
        [EPOCH_US * 1000],
        [EPOCH_US * 1000 + 3000],
    )
    assert (dump.calls.channels.tolist(), dump.left_out) == ([1], {"events in calls that are no kernel channels": 1})


@pytest.mark.parametrize("indent", [None, 2])
def test_a_cut_log_and_lines_of_others_are_counted(tmp_path: Path, indent: int | None) -> None:
    whole = [json.dumps(each, indent=indent) for each in [*LINES, line("proxy_op", {"proxy_id": 1})]]
    path = tmp_path / "node-9-pid55.log"
    path.write_text("\n".join([*whole, whole[0][:-150]]))
    dump = read_dump(path)
    assert (len(dump.calls.seq), dump.events) == (4, 6)
    assert dump.left_out == {"objects without coll_perf and p2p_perf": 1, "a last line that is cut off": 1}


def test_values_of_other_types_are_not_recorded(tmp_path: Path) -> None:
    bad = {
        "coll": 7,
        "coll_sn": "x",
        "coll_msg_size_bytes": 1 << 63,
        "coll_exec_time_us": "nan",
        "coll_timing_source": None,
    }
    other = line("coll_perf", bad, comm="no hash", rank=-4) | {"metadata": {"hostname": 3, "pid": None}}
    (tmp_path / "x.log").write_text(json.dumps(other))
    dump = read_dump(tmp_path / "x.log")
    calls = dump.calls
    numbers = (calls.communicator, calls.rank, calls.seq, calls.bytes)
    assert [column.tolist() for column in numbers] == [[NOWHERE]] * len(numbers)
    assert (texts(dump, calls.function), dump.host, dump.pid) == ([""], "", None)


def test_the_name_gives_host_and_pid_that_the_content_does_not(tmp_path: Path) -> None:
    other = collective("AllReduce", 1, 2, 3)
    del other["metadata"]
    (tmp_path / "node-9-pid55.log").write_text(json.dumps(other))
    dump = read_dump(tmp_path / "node-9-pid55.log")
    assert (dump.host, dump.pid) == ("node-9", 55)


def test_a_log_without_calls_says_why(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text('{"header": {}, "coll_perf": 3}\n')
    with pytest.raises(InputError, match="NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES"):
        read_dump(tmp_path / "x.log")
