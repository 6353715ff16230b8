"""Small documents for each dialect of Kineto and for each trap in it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from graphlink.errors import InputError
from graphlink.model import DeviceKind, Gpu, SyncKind, Trace
from graphlink.read.heads import looks_like
from graphlink.read.kineto import read_kineto


def row(
    cat: str, name: str, ts: Any, dur: Any, *, tid: Any = 11, pid: Any = 10, ph: str = "X", **args: Any
) -> dict[str, Any]:
    return {"ph": ph, "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


@pytest.fixture
def read(tmp_path):
    def read_rows(*rows: Any, **around: Any) -> Trace:
        path = tmp_path / "kineto.json"
        path.write_text(json.dumps({"traceEvents": rows} | around))
        return read_kineto(path)

    return read_rows


def names(trace: Trace, column: np.ndarray) -> list[str]:
    return [trace.strings[number] for number in column]


def test_2021(read):
    trace = read(
        row("Operator", "aten::add", 100, 50, tid="25738", **{"external id": 3}),
        row("Runtime", "cudaLaunchKernel", 110, 5, tid="25738", correlation=7, **{"external id": 3}),
        row("Kernel", "k", 120, 9, pid=0, tid="stream 7", correlation=7, device=0, stream=7),
        row("Memcpy", "m", 130, 9, pid=0, tid="stream 20", correlation=8, bytes=64),
        row("Memset", "s", 140, 9, pid=0, tid="stream 7", correlation=9, device=0, stream=7),
        {"ph": "s", "id": 7, "cat": "async_gpu", "name": "x", "pid": 10, "tid": "25738", "ts": 110},
    )
    assert trace.host.tid.tolist() == trace.calls.tid.tolist() == [25738]
    assert trace.device.stream.tolist() == [7, 20, 7]
    assert trace.device.device.tolist() == [0, 0, 0]
    assert trace.device.kind.tolist() == [DeviceKind.KERNEL, DeviceKind.MEMCPY, DeviceKind.MEMSET]
    assert trace.device.bytes.tolist() == [0, 64, 0]
    assert trace.device.correlation.tolist() == [7, 8, 9]
    assert trace.left_out == {"async_gpu": 1}
    assert trace.resolution_ns == 1000


def test_2022_order_and_names(read):
    trace = read(
        row("cpu_op", "b", 5, 0, **{"Profiler Event Index": 1, "Trace name": "x"}),
        row("cpu_op", "a", 5, 0, **{"Profiler Event Index": 0}),
        row("user_annotation", "outer", 5, 3, **{"Profiler Event Index": 9}),
    )
    assert names(trace, trace.host.name) == ["outer", "a", "b"]
    assert trace.host.annotation.tolist() == [True, False, False]
    assert trace.host.order.tolist() == [9, 0, 1]


def test_rows_without_an_index_keep_the_order_of_the_file(read):
    trace = read(row("cpu_op", "a", 5, 1), row("cpu_op", "b", 5, 1), row("cpu_op", "c", 4, 1))
    assert names(trace, trace.host.name) == ["c", "a", "b"]
    assert trace.host.order.tolist() == [2, 0, 1]


def test_overloads_are_no_part_of_the_name_of_an_op(read):
    """With ``capture_overload_names`` they are in Kineto's names (PyTorch 2.11 on an H100), never in those of the ET."""
    trace = read(
        row("cpu_op", "aten::sum.dim_IntList", 5, 1),
        row("cpu_op", "aten::sum", 6, 1),
        row("user_annotation", "mine::part.two", 7, 1),
        row("cpu_op", "autograd::engine::evaluate_function: AddBackward0", 8, 1),
    )
    named = ["aten::sum", "aten::sum", "mine::part.two", "autograd::engine::evaluate_function: AddBackward0"]
    assert names(trace, trace.host.name) == named
    assert trace.host.name[0] == trace.host.name[1]


def test_calls_of_a_thread_that_got_the_handle_of_another_are_its_own(read):
    """Two threads in turn, with one handle: Kineto gives the calls of the second the number of the first (PyTorch 2.11
    on an H100)."""
    trace = read(
        row("cpu_op", "aten::sum", 10, 10, tid=1, **{"External id": 4}),
        row("cuda_runtime", "cudaLaunchKernel", 12, 2, tid=1, correlation=1, **{"External id": 4}),
        row("cpu_op", "aten::sum", 40, 10, tid=2, **{"External id": 6}),
        row("cuda_runtime", "cudaLaunchKernel", 42, 2, tid=1, correlation=2, **{"External id": 6}),
        row("cuda_runtime", "cudaEventRecord", 55, 2, tid=1, correlation=3),
        row("cpu_op", "aten::mm", 30, 40, tid=3, **{"External id": 5}),
        row("cuda_runtime", "cudaLaunchKernel", 45, 2, tid=3, correlation=4, **{"External id": 6}),
        row("cuda_runtime", "cudaLaunchKernel", 46, 2, tid=9, correlation=5),
    )
    order = np.argsort(trace.calls.correlation)
    assert trace.calls.tid[order].tolist() == [1, 2, 2, 3, 9]
    assert trace.warnings == (
        "calls (2) have the number of an ended thread, or of none: they count for the op around them",
    )


@pytest.mark.parametrize(("named", "tids"), [(4, [1, 1, 1]), (6, [77, 77, 77])])
def test_calls_with_a_handle_that_no_op_has_are_those_of_the_ops_they_name(read, named: int, tids: list[int]):
    """All that name an op lie in it: a number that is an op's by chance (External ids of 2023) does not."""
    trace = read(
        row("cpu_op", "aten::sum", 10, 10, tid=1, **{"External id": 4}),
        row("cpu_op", "aten::sum", 40, 10, tid=2, **{"External id": 6}),
        row("cuda_runtime", "cudaLaunchKernel", 12, 2, tid=77, correlation=1, **{"External id": 4}),
        row("cuda_runtime", "cudaLaunchKernel", 15, 2, tid=77, correlation=2, **{"External id": named}),
        row("cuda_runtime", "cudaDeviceSynchronize", 25, 9, tid=77, correlation=3),
    )
    assert trace.calls.tid[np.argsort(trace.calls.correlation)].tolist() == tids


def test_rows_without_a_time_are_left_out(read):
    """Of the warm-up, where counters of the GPU are recorded, CUPTI gives no times (PyTorch 2.11 on an H100)."""
    far = 4_890_165_213_343.5
    rows = (
        row("cpu_op", "aten::mm", far, 5),
        row("kernel", "without", 0, 0, tid=7, correlation=1, device=0, stream=7),
        row("kernel", "timed", far + 2, 9, tid=7, correlation=2, device=0, stream=7),
        row("cuda_runtime", "cudaLaunchKernel", 0.0, 0.0, correlation=1),
    )
    trace = read(*rows)
    assert names(trace, trace.device.name) == ["timed"]
    assert len(trace.calls.start_ns) == 0
    assert trace.left_out == {"without a time (start 0)": 2}
    assert "(2) are left out" in trace.warnings[0]


def test_a_recording_that_begins_at_0_keeps_its_first_row(read):
    trace = read(row("cpu_op", "a", 0, 0), row("cpu_op", "b", 3, 40))
    assert names(trace, trace.host.name) == ["a", "b"]
    assert trace.warnings == ()


def test_2024_relative_times_are_exact(read):
    trace = read(row("cpu_op", "a", 4212936085398.981, 116.821), baseTimeNanoseconds=1719853884000000000)
    assert trace.host.start_ns.tolist() == [1719853884000000000 + 4212936085398981]
    assert (trace.host.end_ns - trace.host.start_ns).tolist() == [116821]
    assert trace.resolution_ns == 1


def test_absolute_epoch_makes_no_claim_to_the_ns(read):
    assert read(row("cpu_op", "a", 1712000000000000.25, 1.5)).resolution_ns == 1000


def test_host_details(read):
    trace = read(
        row("cpu_op", "a", 1, 1, **{"Record function id": 5, "Sequence number": 6, "Fwd thread id": 2,
                                    "Input Dims": [[2, 3], []], "Input type": ["float", ""]}),
        row("cpu_op", "b", 2, 1),
    )  # fmt: skip
    host = trace.host
    assert (host.rf_id.tolist(), host.seq_id.tolist(), host.fw_tid.tolist()) == ([5, 0], [6, -1], [2, 0])
    assert names(trace, host.input_shapes) == ["[[2, 3], []]", ""]
    assert names(trace, host.input_types) == ['["float", ""]', ""]
    assert trace.strings[0] == ""


def test_hip(read):
    trace = read(
        row(
            "cuda_runtime", "hipMemcpyWithStream", 1, 2, stream="0x0", cid=153, correlation="117", size="2560", kind="1"
        ),
        row("gpu_memcpy", "Memcpy HtoD", 2, 2, pid=2, tid=0, device=2, stream=0, correlation=117, kind="HtoD"),
    )
    assert trace.calls.correlation.tolist() == trace.device.correlation.tolist() == [117]
    assert trace.device.device.tolist() == [2]


COLLECTIVE = {
    "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 6144, "Out msg nelems": "6144", "Group size": 2,
    "In split size": "[]", "Out split size": "[3, 3]", "Process Group Name": "13", "Process Group Description": "dp",
    "Process Group Ranks": "[0, 1]",
}  # fmt: skip


def test_collectives_on_host_and_device_share_one_record(read):
    trace = read(
        row("cpu_op", "plain", 1, 9),
        row("cpu_op", "record_param_comms", 2, 5, **COLLECTIVE),
        row("kernel", "ncclDevKernel", 30, 5, pid=0, tid=7, device=0, stream=7, **COLLECTIVE),
        row("kernel", "earlier", 20, 5, pid=0, tid=7, device=0, stream=7),
    )
    assert trace.host.comm.row.tolist() == [1]
    assert trace.device.comm.row.tolist() == [1]
    (comm,) = trace.host.comm.comms
    assert comm is trace.device.comm.comms[0]
    assert (comm.name, comm.dtype, comm.in_nelems, comm.out_nelems, comm.group_size) == (
        "allreduce",
        "Float",
        6144,
        6144,
        2,
    )
    assert (comm.pg_name, comm.pg_desc, comm.ranks, comm.out_split) == ("13", "dp", (0, 1), (3, 3))


def test_ranks_that_were_cut(read):
    cut = COLLECTIVE | {"Process Group Ranks": "[0, 8, ...]", "Group size": 4}
    trace = read(
        row("cpu_op", "record_param_comms", 1, 1, **cut),
        row("cpu_op", "record_param_comms", 2, 1, **cut, **{"Global rank start": 0, "Global rank stride": 8}),
        row("cpu_op", "record_param_comms", 3, 1, **cut, **{"Global rank start": 0, "Global rank stride": -1}),
    )
    assert [comm.ranks for comm in trace.host.comm.comms] == [None, (0, 8, 16, 24), None]


def test_comm_of_2026_and_unhashable_fields(read):
    trace = read(
        row("cpu_op", "record_param_comms", 1, 1, **COLLECTIVE | {"Collective name": "SEND"}, Seq=5, Rank=1,
            **{"Src Rank": 1, "Dst Rank": 2}),
        row("cpu_op", "record_param_comms", 2, 1, **COLLECTIVE | {"Process Group Ranks": [4, 5]}),
    )  # fmt: skip
    one, two = trace.host.comm.comms
    assert (one.name, one.seq, one.rank, one.src_rank, one.dst_rank) == ("send", 5, 1, 1, 2)
    assert two.ranks == (4, 5)


@pytest.mark.parametrize(
    ("recorded", "other"),
    [
        ({"Process Group Ranks": "[4, 6]", "Rank": 1, "Dst Rank": "6"}, 1),
        ({"Process Group Ranks": "[1, 2, 3]", "Group size": 3, "Rank": 1, "Dst Rank": "2"}, 1),
        ({"Process Group Ranks": "[4, 6, ...]", "Rank": 1, "Dst Rank": "6"}, 1),
        ({"Process Group Ranks": "[4, 6]", "Dst Rank": 6}, 1),
        ({"Process Group Ranks": "[4, 6]", "Dst Rank": 1}, 1),  # no rank of the run is that
        ({"Process Group Ranks": "[4, 6]", "Rank": 1}, None),
    ],
)
def test_the_other_side_of_a_send_is_recorded_as_a_rank_of_the_run(read, recorded, other):
    """torch/csrc/profiler/util.cpp: ``Dst Rank`` is what stands in the group's ranks at ``Rank``."""
    trace = read(row("cpu_op", "record_param_comms", 1, 1, **COLLECTIVE | {"Collective name": "send"} | recorded))
    assert (trace.host.comm.comms[0].dst_rank, trace.host.comm.comms[0].src_rank) == (other, None)


@pytest.mark.parametrize(
    ("name", "inputs", "found"),
    [
        ("c10d::send", ["", "", "2", "5"], ("send", None, 2, 5)),
        ("c10d::recv_", ["", "", "1", "0"], ("recv", 1, None, 0)),
        ("c10d::recv_any_source_", ["", "", "4"], ("recv", None, None, 4)),
        ("c10d::send", [], ("send", None, None, None)),
        ("c10d::send", "x", ("send", None, None, None)),
    ],
)
def test_gloo_peers(read, name, inputs, found):
    trace = read(row("cpu_op", name, 1, 1, **{"Concrete Inputs": inputs, "Input Dims": [[[16, 256], [2]], [], [], []]}))
    (comm,) = trace.host.comm.comms
    assert (comm.name, comm.src_rank, comm.dst_rank, comm.tag) == found
    assert comm.in_nelems == 16 * 256 + 2


def test_cuda_sync(read):
    def sync(kind: str, ts: int, stream: Any, **args: Any) -> dict[str, Any]:
        return row("cuda_sync", kind, ts, 1, pid=0, tid=1000007, cuda_sync_kind=kind, stream=stream, device=0, **args)

    record = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 41, "wait_on_cuda_event_id": 1}
    none = {"wait_on_stream": 4294967295, "wait_on_cuda_event_record_corr_id": -1}
    trace = read(
        sync("Stream Sync", 1, 7, correlation=1),
        sync("Context Sync", 2, 4294967295, correlation=2),
        sync("Event Sync", 3, -1, correlation=3, **record),
        sync("Stream Wait Event", 4, 20, correlation=4, **record),
        sync("Stream Wait Event", 5, 20, correlation=5, **none),
        sync("Event Sync", 6, -1, correlation=6, wait_on_stream=7),
        sync("Something New", 7, 7),
    )
    syncs = trace.syncs
    kinds = [
        SyncKind.STREAM,
        SyncKind.DEVICE,
        SyncKind.EVENT,
        SyncKind.STREAM_WAIT,
        SyncKind.STREAM_WAIT,
        SyncKind.EVENT,
    ]
    assert syncs.kind.tolist() == kinds
    assert syncs.stream_known.tolist() == [True, False, False, True, True, False]
    assert syncs.stream[syncs.stream_known].tolist() == [7, 20, 20]
    assert syncs.record_known.tolist() == [False, False, True, True, False, False]
    assert syncs.record[syncs.record_known].tolist() == [41, 41]
    assert syncs.record_stream_known.tolist() == [False, False, True, True, False, True]
    assert trace.left_out == {"cuda_sync of unknown kind": 1}


def test_cuda_event_rows_are_no_device_work(read):
    trace = read(row("cuda_event", "cudaEvent", 1, 0, pid=0, tid=7, correlation=5, device=0, stream=7))
    assert (trace.events.correlation.tolist(), trace.events.stream.tolist()) == ([5], [7])
    assert len(trace.device.start_ns) == 0


def test_flows_pair_by_id_in_any_order(read):
    def flow(ph: str, ident: int, tid: int, ts: float) -> dict[str, Any]:
        return {"ph": ph, "id": ident, "pid": 1, "tid": tid, "ts": ts, "cat": "fwdbwd", "name": "fwdbwd"}

    trace = read(
        flow("f", 1, 2, 10.5), flow("s", 1, 1, 2.25), flow("s", 2, 1, 3), flow("s", 3, 1, 4), flow("f", 3, 2, 9),
        baseTimeNanoseconds=1000,
    )  # fmt: skip
    flows = trace.flows
    assert (flows.fwd_tid.tolist(), flows.fwd_ns.tolist()) == ([1, 1], [3250, 5000])
    assert (flows.bwd_tid.tolist(), flows.bwd_ns.tolist()) == ([2, 2], [11500, 10000])
    assert trace.left_out == {"fwdbwd without partner": 1}


def test_what_is_no_node_is_counted(read):
    trace = read(
        row("python_function", "f", 1, 1), row("gpu_user_annotation", "g", 1, 1), row("Trace", "t", 1, 1, tid="x", pid="Spans"),
        row("mtia_ccp_events", "m", 1, 1), row("cpu_op", "begin", 1, 1, ph="B"), {"ph": "M", "name": "process_name", "pid": 1},
        {"ph": "i", "name": "Record Window End", "ts": 1}, row("cpu_op", "no thread", 1, 1, tid="main"), 7, "x", None,
        row("kernel", "nowhere", 1, 1, pid="", tid=""), {"ph": "X", "cat": "cpu_op", "name": 5, "ts": 1, "tid": 1},
    )  # fmt: skip
    assert trace.left_out == {
        "python_function": 1, "gpu_user_annotation": 1, "Trace": 1, "mtia_ccp_events": 1, "not a span (ph is not X)": 1,
        "metadata": 1, "instant": 1, "host row without thread "
                                     "number": 1, "unreadable": 4, "device row without stream": 1,
    }  # fmt: skip


def test_frames_of_python_are_no_rows_but_when_they_were_is_kept(read):
    trace = read(
        row("python_function", "f", 1, 2), row("python_function", "g", 5, 1, tid=9), row("python_function", "wrong", None, "x"),
        row("cpu_op", "a", 1, 1), baseTimeNanoseconds=1000,
    )  # fmt: skip
    frames = trace.frames
    assert (frames.tid.tolist(), frames.start_ns.tolist(), frames.end_ns.tolist()) == (
        [11, 9],
        [2000, 6000],
        [4000, 7000],
    )
    assert names(trace, frames.name) == ["f", "g"]
    assert trace.left_out == {"python_function": 2, "unreadable": 1}
    assert read(row("cpu_op", "a", 1, 1)).frames is None


@pytest.mark.parametrize(
    ("recorded", "gpus"),
    [
        (
            [{"id": 0, "name": "NVIDIA A100", "computeMajor": 8, "computeMinor": 0, "numSms": 108}],
            (Gpu(0, "NVIDIA A100", (8, 0), 108),),
        ),
        ([{"id": "1", "name": 7, "computeMajor": 8}, {"name": "x"}, 3], (Gpu(1, "", None),)),
        ({"id": 0}, ()),
        (None, ()),
    ],
)
def test_devices_are_described_as_far_as_the_recording_does(read, recorded, gpus):
    assert read(row("cpu_op", "a", 1, 1), deviceProperties=recorded).gpus == gpus


def test_durations(read):
    trace = read(
        row("cpu_op", "a", 1, -3),
        {"ph": "X", "cat": "cpu_op", "name": "b", "tid": 1, "ts": 2},
        row("cpu_op", "c", 3, None),
    )
    assert (trace.host.end_ns - trace.host.start_ns).tolist() == [0, 0, 0]
    assert trace.left_out == {"dur < 0 taken as 0": 1, "no dur taken as 0": 1}


@pytest.mark.parametrize(
    "bad",
    [
        row("cpu_op", "a", "soon", 1),
        row("cpu_op", "a", None, 1),
        row("kernel", "a", 1, "long", stream=7, device=0),
        row("cuda_runtime", "a", 1e16, 1),
        row("cuda_runtime", "a", 4.6e15, 1e15),
        row("cuda_sync", "Stream Sync", [], 1, stream=7),
        {"ph": "X", "cat": "cpu_op", "name": "a", "tid": 1},
    ],
)
def test_a_node_without_a_time_is_an_error(read, bad):
    with pytest.raises(InputError) as error:
        read(row("cpu_op", "good", 1, 1), row("Trace", "t", 1, 1), bad)
    assert error.value.where == "event 2"


def test_infinite_time(tmp_path):
    path = tmp_path / "k.json"
    path.write_text('[{"ph": "X", "cat": "cpu_op", "name": "a", "tid": 1, "ts": 1e999, "dur": 1}]')
    with pytest.raises(InputError, match="no usable time"):
        read_kineto(path)


def test_base_time_out_of_range(read):
    with pytest.raises(InputError, match="baseTimeNanoseconds"):
        read(row("cpu_op", "a", 1, 1), baseTimeNanoseconds=2**62)
    with pytest.raises(InputError, match="2\\*\\*62"):
        read(row("cpu_op", "a", 2e15, 1), baseTimeNanoseconds=2**62 - 1)


def test_distributed_info_and_process(read):
    config = [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 2, "ranks": [0, 1]}]
    trace = read(
        row("user_annotation", "ProfilerStep#1", 1, 9, pid=99), row("cpu_op", "a", 2, 1), row("cpu_op", "b", 4, 1),
        distributedInfo={"rank": "1", "world_size": 2, "pg_config": config},
    )  # fmt: skip
    assert (trace.rank, trace.world_size, trace.pid) == (1, 2, 10)
    assert trace.process_groups[0].ranks == (0, 1)
    assert len(trace.host.start_ns) == 3
    bare = read(row("cpu_op", "a", 2, 1), distributedInfo="none", baseTimeNanoseconds="7")
    assert (bare.rank, bare.world_size, bare.process_groups) == (None, None, ())
    assert bare.host.start_ns.tolist() == [2007]


@pytest.mark.parametrize(
    ("around", "host"),
    [
        ({"host_name": "node7", "traceName": "./logs/other_10.1724066820235157909.pt.trace.json"}, "node7"),
        (
            {"traceName": "./logs/node_7_10.1724066820235157909.pt.trace.json"},
            "node_7",
        ),  # PyTorch's tensorboard handler
        ({"traceName": "node7_10.1694128201545.pt.trace.json.gz"}, "node7"),
        ({"traceName": "./kineto/worker0_step_12.1694128201545.pt.trace.json"}, ""),  # 12 is not the process
        ({"traceName": "/tmp/trace.json", "host_name": None}, ""),
        ({"traceName": 7, "host_name": ["node7"]}, ""),
        ({}, ""),
    ],
)
def test_the_name_of_the_host(read, around, host):
    assert read(row("cpu_op", "a", 2, 1, pid=10), **around).host_name == host


@pytest.mark.parametrize("number", [-1, 10**8, 2**70, "x", [1]])
def test_a_damaged_rank_or_world_size_is_passed_over_with_a_warning(read, number):
    trace = read(row("cpu_op", "a", 2, 1), distributedInfo={"rank": number, "world_size": number})
    assert (trace.rank, trace.world_size) == (None, None)
    assert [w.split()[1] for w in trace.warnings] == ["rank", "world_size"]


@pytest.mark.parametrize(
    "far",
    [row("cpu_op", "b", 1e13, 1), row("kernel", "b", 1, 1e13, stream=7, device=0), row("cuda_runtime", "b", -1e13, 1)],
)
def test_rows_further_apart_than_a_recording_lasts_are_refused(read, far):
    with pytest.raises(InputError, match=r"115\.7 days apart"):
        read(row("cpu_op", "a", 2, 1), far)


def test_many_threads_may_not_be_so_far_apart(read):
    read(*(row("cpu_op", "a", 8e12 * (i == 1), 1, tid=i) for i in range(400)))
    with pytest.raises(InputError, match="days apart"):
        read(*(row("cpu_op", "a", 8e12 * (i == 1), 1, tid=i) for i in range(700)))


def test_columns_have_the_types_of_the_model_even_when_empty(read):
    for trace in (read(), read(row("cpu_op", "a", 1, 1), row("kernel", "k", 1, 1, stream=7, device=0))):
        for table, text in ((trace.host, ("name", "input_shapes", "input_types")), (trace.device, ("name",))):
            assert table.start_ns.dtype == np.int64
            assert {getattr(table, name).dtype for name in text} == {np.dtype(np.int32)}
        assert trace.host.annotation.dtype == np.bool_
        assert trace.device.kind.dtype == np.uint8
        assert trace.host.comm.row.dtype == np.int32


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (b'{"schema": "1.1.0", "nodes": [{"id": 1}]}', "et", "execution trace.*--et"),
        (b"SQLite format 3\0" + bytes(84), "nsys", "sqlite.*--nsys"),
        (b"PK\x03\x04" + bytes(30), "zip", "zip archive.*unpack"),
        (b"\x07\x0a\x050.0.4\x12\x08\x01", "chakra", "Chakra graph"),
        (b"\x7b\x0a\x050.0.4" + bytes(120), "chakra", "Chakra graph"),
        (b"BZh91AY&SY", "packed", "unpack"),
        (b"\x80\x04\x95", "pickle", "a Python pickle"),
        (b'{"communicators": {}}', None, "no list"),
    ],
)
def test_other_files_are_named(tmp_path, data, kind, message):
    path = tmp_path / "f"
    path.write_bytes(data)
    assert looks_like(path) == kind
    with pytest.raises(InputError, match=f"(?s){message}"):
        read_kineto(path)


def test_looks_like_kineto(tmp_path):
    path = tmp_path / "f"
    for text in ('{"deviceProperties": [], "traceEvents": [{"ph": "X"}', '[{"ph": "X", "name": "a"}]'):
        path.write_text(text)
        assert looks_like(path) == "kineto"
    path.write_text("[1, 2]")
    assert looks_like(path) is None
