"""Calls of device rows by other witnesses than the correlation, files of several processes, and JSON that is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphlink.errors import InputError
from graphlink.linking.tidy import tidy
from graphlink.model import Trace
from graphlink.read.kineto import read_kineto
from graphlink.read.stream import mended
from graphlink.tables import lookup
from tests.simulator.faults import calls_twice, drift, marks_overlap, rows_twice, without_correlation, without_flows


def document(launches: int = 6, *, pid: Any = 10, device: int = 0, streams: int = 1, copies: int = 0) -> dict[str, Any]:
    """Launches of kernels, and copies behind them, with all that tells which call launched what."""
    rows = []
    for k in range(launches + copies):
        copy = k >= launches
        at, number, stream = 100 * k + 10.5, 1001 + k, 7 + k % streams
        name = "hipMemcpyAsync" if copy else "hipLaunchKernel"
        mark = str(pid).split("]")[0] + "] " if "]" in str(pid) else ""
        on = f"{mark}{device}" if mark else device
        args = {"External id": number, "correlation": number}
        work = {"device": device, "stream": stream} | args
        rows += [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": pid, "tid": 3, "ts": at, "dur": 60},
            {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": pid, "tid": 3, "ts": at + 5, "dur": 6, "args": args},
            {"ph": "s", "id": number, "pid": pid, "tid": 3, "ts": at + 5, "cat": "ac2g", "name": "ac2g"},
            {"ph": "X", "cat": "gpu_memcpy" if copy else "kernel", "name": "k", "pid": on, "tid": stream, "ts": at + 20, "dur": 8, "args": work},
            {"ph": "f", "id": number, "pid": on, "tid": stream, "ts": at + 20, "cat": "ac2g", "name": "ac2g"},
        ]  # fmt: skip
    return {"schemaVersion": 1, "traceEvents": rows}


def read(tmp_path: Path, content: dict[str, Any] | str) -> Trace:
    path = tmp_path / "kineto.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_kineto(path)


def calls_of_ops(trace: Trace) -> list[int]:
    return lookup(trace.calls.correlation, trace.device.correlation).tolist()


def without(content: dict[str, Any], *keys: str) -> dict[str, Any]:
    rows = [
        row | {"args": {key: value for key, value in row["args"].items() if key not in keys}} if "args" in row else row
        for row in content["traceEvents"]
    ]
    return content | {"traceEvents": rows}


def test_flows_tell_the_calls(tmp_path: Path) -> None:
    trace = read(tmp_path, without(document(), "correlation", "External id"))
    assert calls_of_ops(trace) == list(range(6))
    assert trace.mended == {"calls-without-id": 6}
    assert trace.warnings == (
        "6 device ops have no correlation id of a call of their own: their calls are told by flows 6",
    )


def test_a_flow_without_a_begin_begins_at_the_call_that_has_an_end_of_it(tmp_path: Path) -> None:
    """As Kineto writes those of ``hipGraphLaunch``, whose kernels have ends of one number."""
    content = without(document(2), "correlation", "External id")
    launch = next(row for row in content["traceEvents"] if row["name"] == "hipLaunchKernel")
    launch["name"] = "hipGraphLaunch"
    kernel = next(row for row in content["traceEvents"] if row["cat"] == "kernel")
    for row in [row for row in content["traceEvents"] if row.get("id") == 1001]:
        row["ph"] = "f"
        content["traceEvents"] += [row | {"ts": kernel["ts"] + 9}, kernel | {"ts": kernel["ts"] + 9}] * (
            row["pid"] == 0
        )
    assert calls_of_ops(read(tmp_path, content)) == [0, 0, 1]


def test_an_end_of_a_flow_at_another_call_of_that_time_begins_none(tmp_path: Path) -> None:
    """A query in the same us, as recordings in whole us have them, with an end that nothing begins."""
    content = without(document(2), "correlation", "External id")
    launches = [row for row in content["traceEvents"] if row["cat"] == "cuda_runtime"]
    ends = [row for row in content["traceEvents"] if row["ph"] == "s"]
    for k, (launch, end) in enumerate(zip(launches, ends, strict=True)):
        content["traceEvents"] += [launch | {"name": "hipEventQuery", "dur": 1}, end | {"ph": "f", "id": 500 + k}]
    trace = read(tmp_path, content)
    assert [trace.strings[trace.calls.name[call]] for call in calls_of_ops(trace)] == ["hipLaunchKernel"] * 2


@pytest.mark.parametrize("number", [lambda k: 2**64 + k, lambda k: f"{k}.0", lambda k: None])
def test_flows_whose_number_cannot_be_read_tell_nothing(tmp_path: Path, number: Any) -> None:
    """All ops wait for the first: of flows of one number each would begin at the last call."""
    content = without(document(), "correlation")
    for row in content["traceEvents"]:
        if row["ph"] in "sf":
            row["id"] = number(row["id"])
        if row["cat"] == "kernel" or row["ph"] == "f":
            row["ts"] += 1000
    trace = read(tmp_path, content)
    assert calls_of_ops(trace) == list(range(6))
    assert "External id 6" in trace.warnings[0]


@pytest.mark.parametrize("length", ["NaN", "null", "Infinity"])
def test_a_row_without_a_length_takes_none_and_is_counted(tmp_path: Path, length: str) -> None:
    trace = read(tmp_path, json.dumps(document()).replace('"dur": 60', f'"dur": {length}', 1))
    assert sorted((trace.host.end_ns - trace.host.start_ns).tolist()) == [0] + 5 * [60_000]
    assert trace.left_out["no dur taken as 0"] == 1


def test_flows_begin_in_calls_that_launch_not_in_those_that_begin_with_them(tmp_path: Path) -> None:
    """In whole us a call that only sets something begins with the launch, and takes 0 us."""
    content = without(document(), "correlation", "External id")
    launches = [row for row in content["traceEvents"] if row["name"] == "hipLaunchKernel"]
    content["traceEvents"] += [row | {"name": "hipFuncSetAttribute", "dur": 0} for row in launches]
    trace = read(tmp_path, content)
    assert {trace.strings[trace.calls.name[call]] for call in calls_of_ops(trace)} == {"hipLaunchKernel"}


def test_the_external_id_tells_the_calls(tmp_path: Path) -> None:
    trace = read(tmp_path, without(without_flows(document(copies=2)).document, "correlation"))
    assert calls_of_ops(trace) == list(range(8))
    assert "External id 8" in trace.warnings[0]


@pytest.mark.parametrize("none", [-1, 2**32 - 1, 0, None, "0xffffffff"])
def test_a_number_that_recorders_write_for_none_is_none(tmp_path: Path, none: Any) -> None:
    content = document()
    for row in content["traceEvents"]:
        if row["cat"] == "kernel":
            row["args"] = row["args"] | {"correlation": none}
    assert calls_of_ops(read(tmp_path, content)) == list(range(6))


def test_one_external_id_for_several_calls_tells_them_in_turn(tmp_path: Path) -> None:
    content = without(without_flows(document(4)).document, "correlation")
    for row in content["traceEvents"]:
        row.get("args", {})["External id"] = 5
    assert calls_of_ops(read(tmp_path, content)) == [0, 1, 2, 3]


def test_order_tells_the_calls_between_known_ones(tmp_path: Path) -> None:
    content = without(without_flows(document(8, streams=2)).document, "External id")
    kernels = [row for row in content["traceEvents"] if row["cat"] == "kernel"]
    for k in (2, 5):
        kernels[k]["args"]["correlation"] = 0
    trace = read(tmp_path, content)
    assert calls_of_ops(trace) == list(range(8))
    assert "order 2" in trace.warnings[0]


@pytest.mark.parametrize(
    ("without_them", "witness"),
    [((), "flows"), (("ac2g",), "External id"), (("ac2g", "External id"), "order"), (("External id",), "flows")],
)
def test_calls_that_lack_a_correlation_are_told_as_those_of_ops_that_do(
    tmp_path: Path, without_them: tuple[str, ...], witness: str
) -> None:
    content = document() if "ac2g" not in without_them else without_flows(document()).document
    for row in content["traceEvents"]:
        if row["cat"] == "cuda_runtime":
            row["args"] = {
                key: value for key, value in row["args"].items() if key not in ("correlation", *without_them)
            }
    trace = read(tmp_path, content)
    assert calls_of_ops(trace) == list(range(6))
    assert trace.warnings[0].endswith(f"their calls are told by {witness} 6")


def test_of_a_call_and_an_op_of_unlike_correlation_order_tells_nothing(tmp_path: Path) -> None:
    """One lost its op, the other its call, and both were launched inside the recording."""
    content = without(without_flows(document(4)).document, "External id")
    kernels = [row for row in content["traceEvents"] if row["cat"] == "kernel"]
    kernels[2]["args"]["correlation"] = 1501
    assert calls_of_ops(read(tmp_path, content)) == [0, 1, -1, 3]


def test_a_flow_tells_the_call_of_an_op_whose_correlation_no_call_has(tmp_path: Path) -> None:
    content = document(4)
    kernels = [row for row in content["traceEvents"] if row["cat"] == "kernel"]
    kernels[2]["args"]["correlation"] = 1501
    assert calls_of_ops(read(tmp_path, content)) == [0, 1, 2, 3]


def test_an_op_launched_before_the_recording_gets_no_call_of_it(tmp_path: Path) -> None:
    content = document(4)
    rows = content["traceEvents"]
    bare = next(row for row in rows if row["cat"] == "cuda_runtime")
    bare["args"] = {"External id": 1}
    first = next(row for row in rows if row["cat"] == "kernel")
    rows.append(first | {"ts": 1.5, "args": first["args"] | {"correlation": 999, "External id": 0}})
    assert calls_of_ops(read(tmp_path, content)) == [-1, 0, 1, 2, 3]


@pytest.mark.parametrize("keys", [("External id", "correlation"), ("External id",)])
def test_nodes_of_a_graph_are_all_rows_but_those_of_the_calls_around_its_launch(
    tmp_path: Path, keys: tuple[str, ...]
) -> None:
    content = without(without_flows(document(7, copies=1)).document, *keys)
    rows = content["traceEvents"]
    calls = [row for row in rows if row["cat"] == "cuda_runtime"]
    kernels = [row for row in rows if row["cat"] == "kernel"]
    calls[3]["name"] = "hipGraphLaunch"
    for row in kernels[2:6]:
        row["args"].pop("correlation", None)
    rows += [kernels[3] | {"ts": kernels[3]["ts"] + at} for at in (9, 18, 27)]
    assert calls_of_ops(read(tmp_path, content)) == [0, 1, 2, 3, 3, 3, 3, 4, 5, 6, 7]
    kernels[3]["cat"], calls[5]["name"] = "gpu_memcpy", "hipMemcpyAsync"  # which no kernel of the fifth can be of
    assert calls_of_ops(read(tmp_path, content))[3:7] == [-1] * 4


def test_order_does_not_take_what_was_launched_before_for_what_runs_after(tmp_path: Path) -> None:
    content = without(without_flows(document(5)).document, "External id", "correlation")
    rows = content["traceEvents"]
    last = max((row for row in rows if row["cat"] == "kernel"), key=lambda row: row["ts"])
    last["ts"] = 1.5
    assert calls_of_ops(read(tmp_path, content)) == [-1] * 5


def test_order_that_does_not_tell_is_not_guessed(tmp_path: Path) -> None:
    content = without(without_flows(document(4)).document, "External id", "correlation")
    lone = next(row for row in content["traceEvents"] if row["cat"] == "cuda_runtime")
    content["traceEvents"].remove(lone)
    assert (read(tmp_path, content).device.correlation == 0).all()


@pytest.mark.parametrize("pids", [(10, 20), ("[TP00-DP01] 10", "[TP01-DP01] 10")])
def test_the_work_of_two_processes_is_two_ranks(tmp_path: Path, pids: tuple[Any, Any]) -> None:
    content = document(pid=pids[0])
    content["traceEvents"] += document(pid=pids[1])["traceEvents"]
    with pytest.raises(InputError, match="holds the work of 2 processes") as caught:
        read(tmp_path, content)
    assert len(str(caught.value).splitlines()) <= 5
    assert ("jq" in str(caught.value)) == isinstance(pids[0], str)


def test_a_process_with_a_mark_is_read(tmp_path: Path) -> None:
    trace = read(tmp_path, without_correlation(document(pid="[TP00-DP01] 83")).document)
    assert calls_of_ops(trace) == list(range(6))
    assert trace.pid == 83


def test_two_windows_of_one_process_are_one_rank(tmp_path: Path) -> None:
    content = document()
    content["traceEvents"] += drift(document(), 1e9).document["traceEvents"]
    assert len(read(tmp_path, content).device.start_ns) == 12


def test_faults_of_the_simulator_are_read(tmp_path: Path) -> None:
    for fault in (rows_twice(document(), 2), calls_twice(document()), marks_overlap(document(), 0.5)):
        assert len(read(tmp_path, fault.document).device.start_ns) >= 6


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "inf", "-nan(ind)", "Infinity", "-1.#IND", "1.#INF"])
def test_numbers_that_are_none_are_read(tmp_path: Path, number: str) -> None:
    text = json.dumps(document() | {"deviceProperties": [{"id": 0, "x": 0.25}]}, indent=1)
    text = text.replace('"stream": 7', f'"stream": 7, "memory bandwidth (GB/s)": {number}').replace("0.25", number)
    assert calls_of_ops(read(tmp_path, text)) == list(range(6))


def test_paths_of_windows_and_bare_control_characters_are_read(tmp_path: Path) -> None:
    text = json.dumps({"traceName": "NAME"} | document())
    text = text.replace("NAME", "C:\\Users\\me\\x.json").replace("aten::mm", "D:\\uz\\q\tend")
    trace = read(tmp_path, text)
    assert "D:\\uz\\q end" in trace.strings
    assert len(trace.device.start_ns) == 6


@pytest.mark.parametrize("end", [",\n]", ",]", " , ] , "])
def test_commas_behind_the_last_of_a_list_or_object_are_read(tmp_path: Path, end: str) -> None:
    text = json.dumps({"traceName": ",]"} | document()).replace('"correlation": 1001}', '"correlation": 1001,}')
    trace = read(tmp_path, text[:-2] + end + "}")
    assert calls_of_ops(trace) == list(range(6))


def test_what_is_json_stays_as_it_is() -> None:
    text = rb'{"a\\b\"c": ["NaN,]", "inf\u00e9", null, true, 1e5], "NaN": "\\n", "name": "a \"b\"", "pid": -1.5}'
    assert mended(text) == text


def test_names_with_bare_quotes_and_times_before_the_base_are_read(tmp_path: Path) -> None:
    """As PyTorch 2.0 wrote the first line of a module with stacks, and Kineto of 2024 times before its base."""
    name = 'lib = Library("inductor", "IMPL")'
    frame = {"ph": "X", "cat": "python_function", "name": "NAME", "pid": 1, "tid": 3, "ts": 1, "dur": 2}
    text = json.dumps(document() | {"traceEvents": [frame, *document()["traceEvents"]]}, indent=1)
    trace = read(tmp_path, text.replace("NAME", f"{name}\n(1): <module>"))
    assert f"{name} (1): <module>" in trace.strings and calls_of_ops(trace) == list(range(6))
    assert json.loads(mended(b'{"ts": [-1.-660, 0.-05], "name": "a", "id": 3}')) == {
        "ts": [-1.66, -0.005],
        "name": "a",
        "id": 3,
    }


def test_lengths_below_zero_as_unsigned_numbers_count_as_none(tmp_path: Path) -> None:
    content = document()
    next(row for row in content["traceEvents"] if row.get("cat") == "kernel")["dur"] = 18446744073709551.615
    assert read(tmp_path, content).left_out["dur < 0 taken as 0"] == 1


def test_numbers_as_text_and_threads_beyond_63_bits_are_read(tmp_path: Path) -> None:
    content = document()
    for row in content["traceEvents"]:
        row["tid"] = str((1 << 63) + 12345) if row["tid"] == 3 else row["tid"]
        row |= {key: str(row[key]) for key in ("ts", "dur") if key in row}
    trace = read(tmp_path, content)
    assert calls_of_ops(trace) == list(range(6))
    assert {*trace.host.tid.tolist()} == {*trace.calls.tid.tolist()} == {12345 - (1 << 63)}


def test_rows_at_time_0_are_left_out(tmp_path: Path) -> None:
    content = document()
    for row in content["traceEvents"]:
        row["ts"] = 0 if row["cat"] == "kernel" and row["args"]["correlation"] > 1004 else row["ts"] + 1e15
    trace = read(tmp_path, content)
    assert len(trace.device.start_ns) == 4
    assert trace.left_out["without a time (start 0)"] == 2


def test_traces_of_other_profilers_are_named(tmp_path: Path) -> None:
    content = document()
    content["traceEvents"].append({"ph": "s", "id": "7", "cat": "async_npu", "name": "async_npu", "pid": 1, "ts": 1})
    with pytest.raises(InputError, match="torch_npu"):
        read(tmp_path, content)
    with pytest.raises(InputError, match="Paddle's own profiler"):
        read(tmp_path, document() | {"span_indx": "0-5"})


def replays(launches: int = 4, nodes: int = 3) -> dict[str, Any]:
    """Launches of one CUDA graph, whose nodes run on two streams and say nothing of their call."""
    rows = []
    for k in range(launches):
        at = 100 * k + 10.5
        args = {"External id": 50 + k, "correlation": 1001 + k}
        rows.append(
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaGraphLaunch",
                "pid": 10,
                "tid": 3,
                "ts": at,
                "dur": 6,
                "args": args,
            }
        )
        for node in range(nodes):
            work = {
                "device": 0,
                "stream": 7 + node % 2,
                "graph id": 5,
                "graph node id": node + 1,
                "External id": 50 + k,
            }
            rows.append(
                {
                    "ph": "X",
                    "cat": "kernel",
                    "name": "k",
                    "pid": 0,
                    "tid": work["stream"],
                    "ts": at + 20 + 9 * node,
                    "dur": 8,
                    "args": work,
                }
            )
    return {"schemaVersion": 1, "traceEvents": rows}  # fmt: skip


@pytest.mark.parametrize("keys", [(), ("External id",)])
def test_the_nodes_of_a_replay_belong_to_its_launch(tmp_path: Path, keys: tuple[str, ...]) -> None:
    trace = read(tmp_path, without(replays(), *keys))
    assert calls_of_ops(trace) == [k for k in range(4) for _ in range(3)]


def test_a_launch_that_is_not_recorded_leaves_replays_without_ids_alone(tmp_path: Path) -> None:
    content = without(replays(), "External id")
    content["traceEvents"].pop(0)
    assert (read(tmp_path, content).device.correlation == 0).all()


@pytest.mark.parametrize("lacks", ["flows", "External id"])
def test_another_witness_tells_which_of_the_calls_of_one_id_launched(tmp_path: Path, lacks: str) -> None:
    """All work ran after all launches, so that the last call before it is never its own."""
    content = without_flows(document()).document if lacks == "flows" else without(document(), lacks)
    for row in content["traceEvents"]:
        if "correlation" in row.get("args", {}):
            row["args"]["correlation"] = 1 + row["args"]["correlation"] % 2
        if row["cat"] == "kernel" or row["ph"] == "f":
            row["ts"] += 1000
    trace = tidy(read(tmp_path, content))
    assert calls_of_ops(trace) == list(range(6))
    assert trace.mended == {"repeated-calls": 4}


def test_calls_of_one_id_without_device_work_are_read(tmp_path: Path) -> None:
    content = document()
    content["traceEvents"] = [row for row in content["traceEvents"] if row["cat"] == "cuda_runtime"]
    for row in content["traceEvents"]:
        row["args"]["correlation"] = 1
    assert tidy(read(tmp_path, content)).mended == {"repeated-calls": 5}


def test_an_external_id_goes_before_a_flow_whose_id_comes_again(tmp_path: Path) -> None:
    content = document(2)
    for row in content["traceEvents"]:
        if "id" in row:
            row["id"] = 1
        row.get("args", {})["correlation"] = 1
        if row["cat"] == "kernel" or row["ph"] == "f":
            row["ts"] += 1000
    assert calls_of_ops(tidy(read(tmp_path, content))) == [0, 1]


def test_the_nodes_of_a_graph_stay_with_its_launch_where_ids_come_again(tmp_path: Path) -> None:
    """Of the recorders that name no nodes, and write an External id at the first of them alone."""
    content = without(replays(), "graph id", "graph node id")
    for at, row in enumerate(content["traceEvents"]):
        of_launch = row["args"].pop("External id")
        row["args"] |= {"correlation": 1 + of_launch % 2} | ({"External id": of_launch} if at % 4 < 2 else {})
    assert calls_of_ops(tidy(read(tmp_path, content))) == [k for k in range(4) for _ in range(3)]


def test_an_id_that_flow_and_external_id_contradict_gives_way(tmp_path: Path) -> None:
    content = document()
    kernels = [row for row in content["traceEvents"] if row["cat"] == "kernel"]
    kernels[2]["args"]["correlation"], kernels[4]["args"]["correlation"] = 1005, 1003
    trace = read(tmp_path, content)
    assert calls_of_ops(trace) == list(range(6))
    assert trace.mended == {"calls-contradicted": 2}
    assert "(External id 2, order 2, flows 2): 2 go to the call" in trace.warnings[0]


@pytest.mark.parametrize("told_by", ["flows", "External id", "order"])
def test_a_kernel_with_the_number_of_another_launch_goes_to_its_own(tmp_path: Path, told_by: str) -> None:
    """As ROCm's tracer writes some: a launch has two kernels, another none."""
    content = document() if told_by == "flows" else without_flows(document()).document
    for row in content["traceEvents"]:
        if row["cat"] == "kernel" and row["args"]["correlation"] in (1003, 1005):
            row["args"]["correlation"] -= 1
            row["args"]["External id"] -= told_by != "External id"
    trace = read(tmp_path, content)
    assert calls_of_ops(trace) == list(range(6))
    assert trace.mended["calls-without-id"] == 2
    assert f"their calls are told by {told_by} 2" in trace.warnings[-1]


@pytest.mark.parametrize("name", ["hipLaunchKernel", "cudaGraphLaunch", "hipExtLaunchMultiKernelMultiDevice"])
def test_kernels_of_one_launch_stay_with_it_where_no_other_lacks_one(tmp_path: Path, name: str) -> None:
    content = without_flows(document(2)).document
    second = next(row for row in content["traceEvents"] if row.get("args", {}).get("correlation") == 1002)
    content["traceEvents"].remove(second)
    for row in content["traceEvents"]:
        row["name"] = name if row["name"] == "hipLaunchKernel" else row["name"]
        row.get("args", {}).update({"correlation": 1001, "External id": 1001} if "args" in row else {})
    trace = read(tmp_path, content)
    assert calls_of_ops(trace) == [0, 0]
    assert trace.mended == ({"calls-contradicted": 1} if name == "hipLaunchKernel" else {})


def test_an_id_that_one_witness_contradicts_stays_and_is_said(tmp_path: Path) -> None:
    content = without_flows(document()).document
    next(row for row in content["traceEvents"] if row["cat"] == "kernel")["args"]["External id"] = 1004
    trace = read(tmp_path, content)
    assert calls_of_ops(trace) == list(range(6))
    assert "(External id 1): 0 go to the call" in trace.warnings[0]


def test_numbers_given_to_calls_are_of_no_sync_row(tmp_path: Path) -> None:
    content = document()
    for row in content["traceEvents"]:
        if row.get("cat") == "cuda_runtime":
            del row["args"]["correlation"]
    args = {"correlation": 1007, "cuda_sync_kind": "Context Sync"}
    content["traceEvents"].append(
        {"ph": "X", "cat": "cuda_sync", "name": "Context Sync", "pid": 0, "tid": -1, "ts": 900, "dur": 9, "args": args}
    )
    trace = read(tmp_path, content)
    assert calls_of_ops(trace) == [*range(6)]
    assert trace.syncs.correlation.tolist() == [1007]
    assert 1007 not in trace.calls.correlation.tolist()
