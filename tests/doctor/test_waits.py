from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphlink.records import NOTE
from graphlink.run.discover.inputs import of_folders
from graphlink.run.job import Options, run_rank
from tests.depend.test_threads import program, recorded
from tests.doctor.diagnosed import diagnosed
from tests.doctor.recordings import execution
from tests.simulator import Shape, Variation, random_program, run, write_kineto
from tests.simulator.dirt import with_busy_cores


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rows", [0.0, 0.5])
def test_inferred_waits_are_those_of_the_summary(seed: int, rows: float, tmp_path: Path) -> None:
    simulated = run(random_program(seed, Shape(threads=2, ops=60)))
    traces = tmp_path / "traces"
    traces.mkdir()
    write_kineto(
        simulated,
        traces / "kineto_0.json",
        dialect="2024",
        cuda_sync=rows > 0,
        vary=Variation(sync_rows_share=rows or 1.0),
    )
    finding = diagnosed(traces)["cuda-sync-gaps" if rows else "no-cuda-sync"]
    (tmp_path / "out").mkdir()
    (inputs,) = of_folders([str(traces)], None).ranks
    (told,) = run_rank(inputs, Options(timeline="none"), tmp_path / "out").ranks
    assert finding.figures["inferred"] == told.sync.by_source["inferred"]
    blocked = [w.removeprefix(NOTE) for w in told.warnings if "synchronisation calls (" in w]
    count, took = finding.figures["unexplained"], finding.figures["unexplained_ns"]
    assert [w.split(" us for ")[0] for w in blocked] == (
        [f"synchronisation calls ({count:,}) waited {took / 1000:.1f}"] if count else []
    )


def test_calls_are_counted_by_name(tmp_path: Path) -> None:
    simulated = execution(0)
    write_kineto(simulated, tmp_path / "kineto_0.json", cuda_sync=False)
    found = diagnosed(tmp_path)["no-cuda-sync"]
    names = [
        row.call.name
        for row in simulated.calls
        if row.call.name in ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
    ]
    assert found.parts == {name: names.count(name) for name in found.parts}
    assert found.figures["calls"] == len(names) > 0


def gloo(name: str, start: float, end: float) -> dict[str, object]:
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": start,
        "dur": end - start,
        "args": {},
    }


def late(calls_late_us: int) -> list[dict[str, object]]:
    """Three kernels on an idle stream, the last of which begins late."""
    row = {"ph": "X", "pid": 1, "tid": 1}
    rows: list[dict[str, object]] = []
    for k, at in enumerate((0, 1_000, 2_000)):
        begun = at + 5 + (calls_late_us if k == 2 else 0)
        rows += [
            row
            | {
                "cat": "cpu_op",
                "name": "aten::mm",
                "ts": at,
                "dur": 10,
                "args": {"Input Dims": [[1]], "Record function id": k + 1},
            },
            row
            | {
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "ts": at + 1,
                "dur": 2,
                "args": {"correlation": k + 1},
            },
            row
            | {"cat": "kernel", "pid": 0, "tid": 7, "name": "k", "ts": begun, "dur": 30}
            | {"args": {"stream": 7, "correlation": k + 1, "device": 0}},
        ]
    return rows


@pytest.mark.parametrize(("late_us", "api", "told"), [(500, "cuda", True), (500, "hip", True), (40, "cuda", False)])
def test_late_starts_that_nothing_explains_are_told_where_they_take_time(
    late_us: int, api: str, told: bool, tmp_path: Path
) -> None:
    (tmp_path / "kineto_0.json").write_text(
        json.dumps({"traceEvents": late(late_us)}).replace("cudaLaunch", f"{api}Launch")
    )
    found = diagnosed(tmp_path)
    assert ("late-starts" in found) == told
    if told:
        figures, record = found["late-starts"].figures, found["late-starts"].record
        words = ["cuda_sync", "nvidia-smi", "rocm-smi"]
        assert [word in record for word in words] == ([False, False, True] if api == "hip" else [True, True, False])
        assert figures["delays"] == 1 and abs(figures["late_ns"] - late_us * 1_000) <= 5_000


def test_gloo_is_a_matter_of_inference(tmp_path: Path) -> None:
    """Nothing shows who asked for the collective, so that who waited is not known."""
    op = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "args": {"Input Dims": [[1]], "Record function id": 1}}
    events = [
        op | {"name": "aten::add", "ts": 0.5, "dur": 10},
        gloo("gloo:all_reduce", 5, 200) | {"tid": 2},
        op | {"name": "aten::mm", "ts": 5_000, "dur": 10},
    ]
    (tmp_path / "kineto_0.json").write_text(json.dumps({"traceEvents": events}))
    found = diagnosed(tmp_path)["host-comm"]
    assert found.figures == {"comms": 1, "late": 1, "late_ns": 189_500}


def test_recorded_waits_for_gloo_leave_nothing_to_infer(tmp_path: Path) -> None:
    op = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "args": {"Input Dims": [[1]], "Record function id": 1}}
    events = [
        op | {"name": "c10d::recv_", "ts": 0.5, "dur": 10},
        gloo("gloo:recv", 5, 100),
        gloo("graphlink::wait", 20, 101),
        op | {"name": "aten::mm", "ts": 5_000, "dur": 10},
    ]
    (tmp_path / "kineto_0.json").write_text(json.dumps({"traceEvents": events}))
    assert "host-comm" not in diagnosed(tmp_path)


def test_an_exact_wait_that_the_graph_lacks_is_told_with_its_time(tmp_path: Path) -> None:
    """The row names stream 9, and what that ran was launched before the recording."""
    op = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "args": {"Input Dims": [[1]], "Record function id": 1}}
    call = {"ph": "X", "cat": "cuda_runtime", "pid": 1, "tid": 1}
    sync = {"stream": 9, "correlation": 2, "device": 0, "cuda_sync_kind": "Stream Synchronize"}
    events = [
        op | {"name": "aten::mm", "ts": 0.5, "dur": 1100},
        op | {"name": "aten::add", "ts": 1200, "dur": 10},
        call | {"name": "cudaLaunchKernel", "ts": 2, "dur": 5, "args": {"correlation": 1}},
        call | {"name": "cudaStreamSynchronize", "ts": 20, "dur": 1000, "args": {"correlation": 2}},
        {
            "ph": "X",
            "cat": "kernel",
            "name": "k",
            "pid": 0,
            "tid": 7,
            "ts": 10,
            "dur": 30,
            "args": {"stream": 7, "correlation": 1, "device": 0},
        },
        {"ph": "X", "cat": "cuda_sync", "name": "Stream Sync", "pid": 0, "tid": 9, "ts": 20, "dur": 1000, "args": sync},
    ]
    (tmp_path / "kineto_0.json").write_text(json.dumps({"traceEvents": events}))
    found = diagnosed(tmp_path)["standstill"]
    assert found.figures["calls_ns"] == 980_000
    assert found.told[0].startswith(
        "1 synchronisation calls have a row that names what they waited for, but nothing of it was recorded"
    )
    assert found.told[0].endswith("0.980 ms count as not explained")


def test_standstill_of_threads_says_that_no_gain_of_it_can_be_told_and_how_to_record_again(tmp_path: Path) -> None:
    """A busy machine: threads go on long after they were handed what they waited for."""
    recorded(tmp_path, run(with_busy_cores(program(0, 30_000_000), share=0)))
    found = diagnosed(tmp_path)["standstill"]
    assert found.figures["threads_ns"] > 50_000_000
    assert not found.figures["calls_ns"]
    assert found.costs.startswith(
        f"{found.figures['threads_ns'] / 1e6:,.3f} ms of silent threads are work or gaps in the graph: no gain of "
    )
    assert "a machine that does nothing else" in found.record
    assert "stacks=True" in found.record
