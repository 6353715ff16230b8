"""Rows of devices that are neither CUDA nor HIP: MTIA, XPU, PrivateUse1 and those that nobody heard of yet."""

from __future__ import annotations

import json

import pytest

from graphlink.errors import SeveralRanks
from graphlink.model import DeviceKind, SyncKind, Trace
from graphlink.read.kineto import read_kineto


def row(cat, name, ts, dur, *, pid=10, tid=11, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def label(pid, text, key="process_labels"):
    return {
        "ph": "M",
        "name": key,
        "pid": pid,
        "tid": 0,
        "ts": 0,
        "args": {"labels" if key == "process_labels" else "name": text},
    }


HOST = (row("cpu_op", "aten::add", 0.5, 50), label(10, "CPU"), label(10, "python", "process_name"))
MTIA = (label(17, "MTIA 17"), label(17, "MTIA 17", "process_name"))


@pytest.fixture
def read(tmp_path):
    def read_rows(*rows) -> Trace:
        path = tmp_path / "kineto.json"
        path.write_text(json.dumps({"traceEvents": [*HOST, *rows]}))
        return read_kineto(path)

    return read_rows


def ops(trace: Trace) -> list[tuple[str, int, int, int]]:
    d = trace.device
    names = [trace.strings[k] for k in d.name]
    return list(zip(names, d.device.tolist(), d.stream.tolist(), d.correlation.tolist(), strict=True))


def calls(trace: Trace) -> list[tuple[str, int]]:
    return [(trace.strings[k], c) for k, c in zip(trace.calls.name, trace.calls.correlation.tolist(), strict=True)]


@pytest.mark.parametrize("backend", ["xpu", "privateuse1", "glow", "npu"])
@pytest.mark.parametrize("side", ["runtime", "driver"])
def test_calls_of_any_backend_launch_its_kernels(read, backend, side):
    trace = read(
        row(f"{backend}_{side}", "launchKernel", 1, 3, correlation=7),
        row("kernel", "gemm", 5, 9, pid=0, tid=2, device=0, stream=2, correlation=7),
    )
    assert calls(trace) == [("launchKernel", 7)]
    assert ops(trace) == [("gemm", 0, 2, 7)]
    assert trace.left_out == {"metadata": 2}
    assert trace.warnings == ()


def test_rows_of_an_unknown_category_in_a_devices_process_are_ops_on_the_stream_of_their_thread(read):
    trace = read(
        *MTIA,
        row("new_device_events", "merge", 5, 9, pid=17, tid=3536),
        row("new_device_events", "dma_request", 20, 1, pid=17, tid=3536),
    )
    assert ops(trace) == [("merge", 17, 3536, 0), ("dma_request", 17, 3536, 0)]
    assert trace.device.kind.tolist() == [DeviceKind.KERNEL, DeviceKind.MEMCPY]


def test_arguments_tell_stream_device_and_bytes_before_process_and_thread(read):
    trace = read(
        *MTIA,
        row("mtia_ccp_events", "dma_request", 5, 9, pid=17, tid=3536, device=3, stream=101, size=4096, correlation=7),
    )
    assert ops(trace) == [("dma_request", 3, 101, 7)]
    assert trace.device.bytes.tolist() == [4096]


def test_a_process_is_a_devices_by_its_name_where_it_has_no_label(read):
    trace = read(label(99, "Ascend NPU", "process_name"), row("hpu_op", "matmul", 5, 9, pid=99, tid=4))
    assert ops(trace) == [("matmul", 99, 4, 0)]


@pytest.mark.parametrize(("pid", "found"), [(17, [("merge", 17, 3536, 7), ("gather", 17, 3536, 0)]), (10, [])])
def test_a_process_without_host_rows_that_has_what_calls_launched_is_a_devices_though_nothing_names_it(
    read, pid, found
):
    trace = read(
        row("mtia_runtime", "launch", 1, 3, correlation=7),
        row("mtia_runtime", "synchronize", 15, 1, pid=17, tid=3536, correlation=8),
        row("mtia_ccp_events", "merge", 5, 9, pid=pid, tid=3536, correlation=7),
        row("mtia_ccp_events", "gather", 20, 1, pid=pid, tid=3536),
    )
    assert ops(trace) == found


def flow(ident, call_us, op_us, *, pid, tid):
    ends = {"ph": "s", "pid": 10, "tid": 11, "ts": call_us}, {"ph": "f", "bp": "e", "pid": pid, "tid": tid, "ts": op_us}
    return [{"cat": "ac2g", "name": "ac2g", "id": ident, **end} for end in ends]


@pytest.mark.parametrize("device", [{"cat": "kernel", "device": 17, "stream": 4}, {"cat": "mtia_ccp_events"}])
def test_flows_tell_the_calls_and_the_process_of_any_device(read, device):
    trace = read(
        row("mtia_runtime", "launch", 1, 3, correlation=7, **{"External id": 1}),
        row("mtia_runtime", "launch", 5, 3, correlation=8, **{"External id": 2}),
        row(name="first", ts=9, dur=1, pid=17, tid=4, **device),
        row(name="second", ts=19, dur=1, pid=17, tid=4, **device),
        *flow(7, 1, 9, pid=17, tid=4),
        *flow(8, 5, 19, pid=17, tid=4),
    )
    assert ops(trace) == [("first", 17, 4, 7), ("second", 17, 4, 8)]
    assert trace.mended == {"calls-without-id": 2}


def test_calls_of_any_device_in_two_processes_are_those_of_two_ranks(read):
    with pytest.raises(SeveralRanks):
        read(
            *(row("xpu_runtime", "launch", 1, 3, pid=pid, correlation=pid) for pid in (10, 20)),
            *(row("kernel", "gemm", 5, 9, device=pid, stream=2, correlation=pid) for pid in (10, 20)),
        )


def test_a_row_without_category_in_a_devices_process_is_an_op(read):
    trace = read(label(99, "NPU"), {k: v for k, v in row("", "MatMul", 5, 9, pid=99, tid=4).items() if k != "cat"})
    assert ops(trace) == [("MatMul", 99, 4, 0)]


def test_a_row_with_the_correlation_of_a_call_is_an_op_where_it_says_its_stream_and_device(read):
    call = row("xpu_runtime", "launch", 1, 3, correlation=7)
    assert ops(read(call, row("unheard_of", "gemm", 5, 9, correlation=7, stream=2, device=1))) == [("gemm", 1, 2, 7)]


@pytest.mark.parametrize("category", ["kernel", "npu_kernel"])
def test_all_rows_of_a_category_are_calls_if_one_of_it_launched_a_device_row(read, category):
    trace = read(
        row("npu_api", "aclrtLaunchKernel", 1, 3, correlation=7),
        row("npu_api", "aclrtSynchronizeStream", 5, 9, correlation=8),
        row(category, "gemm", 5, 9, pid=0, tid=2, device=0, stream=2, correlation=7),
    )
    assert calls(trace) == [("aclrtLaunchKernel", 7), ("aclrtSynchronizeStream", 8)]
    assert ops(trace) == [("gemm", 0, 2, 7)]


def test_what_belongs_to_a_call_but_does_not_say_its_stream_is_named_with_its_category_count_and_time(read):
    call = row("xpu_runtime", "launch", 1, 3, correlation=7)
    trace = read(call, row("unheard_of", "gemm", 5, 9, correlation=7))
    assert ops(trace) == []
    assert trace.left_out["unheard_of, of a device, without its stream or device"] == 1
    assert "1 rows of category unheard_of (0.009 ms) are of a device" in trace.warnings[0]


def test_rows_that_have_to_do_with_no_device_are_left_out_by_category(read):
    trace = read(
        row("my_tool", "note", 5, 9, correlation=99),
        row("python_function", "f", 5, 9),
        {"ph": "X", "name": "x", "ts": 1, "pid": 10},
    )
    assert trace.left_out == {"my_tool": 1, "python_function": 1, "metadata": 2, "no category, ph X": 1}
    assert trace.warnings == ()


def test_a_call_around_others_that_launched_nothing_is_a_range(read):
    trace = read(
        row("mtia_runtime", "executor::run", 60, 40, correlation=5),
        row("mtia_runtime", "enqueue", 70, 2, correlation=7),
        row("mtia_runtime", "executor::run", 110, 4, correlation=6),
        row("kernel", "k", 80, 5, pid=0, tid=2, device=0, stream=2, correlation=7),
    )
    assert calls(trace) == [("enqueue", 7)]
    h = trace.host
    ranges = [
        (trace.strings[k], int(s), int(e))
        for k, s, e, a in zip(h.name, h.start_ns, h.end_ns, h.annotation, strict=True)
        if a
    ]
    assert ranges == [("executor::run", 60_000, 100_000), ("executor::run", 110_000, 114_000)]


def test_a_range_of_a_devices_runtime_ends_with_the_op_that_the_profiler_closed_when_it_stopped(read):
    trace = read(row("mtia_runtime", "merge", 10, 90, correlation=5), row("cpu_op", "aten::add", 20, 3))
    h = trace.host
    assert [int(e) for k, e in zip(h.name, h.end_ns, strict=True) if trace.strings[k] == "merge"] == [50_500]


def test_a_call_around_others_stays_a_call_if_it_launched(read):
    trace = read(
        row("xpu_runtime", "urEnqueueKernelLaunch", 60, 40, correlation=5),
        row("xpu_driver", "zeCommandListAppendLaunchKernel", 70, 2, correlation=7),
        row("kernel", "k", 110, 5, pid=0, tid=2, device=0, stream=2, correlation=5),
    )
    assert [name for name, _ in calls(trace)] == ["urEnqueueKernelLaunch", "zeCommandListAppendLaunchKernel"]


def test_the_queues_own_row_of_a_synchronisation_says_what_the_call_waited_for(read):
    trace = read(
        *MTIA,
        row("mtia_runtime", "synchronizeStream", 60, 40, correlation=5, device=17, stream_id=106),
        row("mtia_runtime", "synchronize", 61, 38, pid=17, tid=3704, correlation=5, device=17, stream_id=106),
    )
    assert calls(trace) == [("synchronizeStream", 5)]
    s = trace.syncs
    assert (s.kind.tolist(), s.device.tolist(), s.stream.tolist(), s.correlation.tolist()) == (
        [SyncKind.STREAM],
        [17],
        [106],
        [5],
    )


def test_a_wait_of_a_stream_is_no_work_and_names_the_record_it_waited_for(read):
    trace = read(
        *MTIA,
        row("mtia_runtime", "recordEvent", 1, 1, correlation=7),
        row("mtia_runtime", "enqueueCommand waitOnEvent", 3, 1, correlation=8),
        row("mtia_ccp_events", "event_record", 30, 1, pid=17, tid=3, stream=104, seq_num=55, correlation=7),
        row(
            "mtia_ccp_events",
            "event_wait",
            5,
            25,
            pid=17,
            tid=4,
            stream=108,
            wait_on_stream=104,
            seq_num=55,
            correlation=8,
        ),
    )
    at = [trace.strings[k] for k in trace.device.name].index("event_wait")
    assert trace.device.start_ns[at] == trace.device.end_ns[at] == 30_000
    s = trace.syncs
    assert (s.kind.tolist(), s.stream.tolist(), s.record.tolist(), s.record_stream.tolist()) == (
        [SyncKind.STREAM_WAIT],
        [108],
        [7],
        [104],
    )


def test_odd_values_in_rows_of_an_unknown_category_do_no_harm(read):
    places = (
        (None, 1, 1, 1, 1),
        (1e300, 1, 1, 1, 1),
        (5, -3, 1, 1, 1),
        (5, 1, "x", [], {}),
        (5, None, None, None, None),
    )
    odd = [
        {
            "ph": "X",
            "cat": "odd",
            "name": "x",
            "ts": ts,
            "dur": dur,
            "pid": pid,
            "tid": tid,
            "args": {"correlation": correlation},
        }
        for ts, dur, pid, tid, correlation in places
    ]
    trace = read(*odd)
    assert trace.left_out["odd"] == 5
    assert ops(trace) == []
