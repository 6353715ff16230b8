from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from tests.simulator import (
    DIALECTS,
    Execution,
    Layout,
    Shape,
    Variation,
    et_document,
    kineto_document,
    random_program,
    row_ids,
    run,
    training_program,
    write_et,
    write_kineto,
)
from tests.simulator.dialects import BASE_NS, Clock, ExternalId
from tests.simulator.strategies import executions, variations

TRAINING = run(training_program(1))
RANDOM = run(random_program(7, Shape(threads=2, devices=2)))
every_dialect = pytest.mark.parametrize("dialect", DIALECTS)
every_layout = pytest.mark.parametrize("layout", [layout.value for layout in Layout])


def rows_of(document: dict[str, Any], *categories: str) -> list[dict[str, Any]]:
    return [row for row in document["traceEvents"] if row.get("cat") in categories]


def start_ns(row: dict[str, Any], clock: Clock) -> int:
    if clock is Clock.RELATIVE_US:
        return BASE_NS + round(row["ts"] * 1000)
    return round(row["ts"] * 1000)


@every_dialect
@pytest.mark.parametrize("execution", [TRAINING, RANDOM], ids=["training", "random"])
def test_row_ids_find_every_row(execution: Execution, dialect: str) -> None:
    what, ids = DIALECTS[dialect], row_ids(execution)
    document, names = kineto_document(execution, dialect=dialect), dict(what.category)
    calls = rows_of(document, *{names.get(c, c) for c in ("cuda_runtime", "cuda_driver")})
    expected = {ids.call_correlation[i]: what.time_ns(row.start_ns) for i, row in enumerate(execution.calls)}
    assert {row["args"]["correlation"]: start_ns(row, what.clock) for row in calls} == expected
    device = rows_of(document, *{names.get(c, c) for c in ("kernel", "gpu_memcpy", "gpu_memset")})
    found = sorted((row["args"]["correlation"], start_ns(row, what.clock)) for row in device)
    assert found == sorted(
        (ids.device_correlation[i], what.time_ns(op.start_ns)) for i, op in enumerate(execution.device)
    )
    host = rows_of(document, names.get("cpu_op", "cpu_op"), "user_annotation")
    found_host = sorted((int(row["tid"]), start_ns(row, what.clock), row["name"]) for row in host)
    assert found_host == sorted(
        (ids.host_tid[i], what.time_ns(op.start_ns), op.name) for i, op in enumerate(execution.host)
    )


@every_dialect
def test_marks_of_the_dialect(dialect: str) -> None:
    what = DIALECTS[dialect]
    document, names = kineto_document(TRAINING, dialect=dialect), dict(what.category)
    assert ("baseTimeNanoseconds" in document) == (what.clock is Clock.RELATIVE_US)
    host = rows_of(document, names.get("cpu_op", "cpu_op"))
    kernels = rows_of(document, names.get("kernel", "kernel"))
    assert host
    assert kernels
    assert all(("Record function id" in row["args"]) == what.record_function_id for row in host)
    assert all(isinstance(row["ts"], int) == (what.clock is Clock.INT_US) for row in host)
    assert all(isinstance(row["tid"], str) == what.string_tids for row in host + kernels)
    assert any("Collective name" in row["args"] for row in kernels) == what.comm_args
    assert bool(rows_of(document, "cuda_sync")) == what.sync_rows
    assert bool(rows_of(document, "cuda_event")) == what.event_rows
    assert bool(rows_of(document, what.launch_flow))
    if what.external_id is ExternalId.CORRELATION:
        assert all(row["args"]["External id"] == row["args"]["correlation"] for row in kernels)
    if what.external_id is ExternalId.OP:
        ops = {row["args"]["External id"] for row in host}
        assert all(row["args"]["External id"] in ops for row in kernels)
    if what.hip:
        assert {row["args"]["device"] for row in kernels} == {2}
        assert all(row["name"].startswith("hip") for row in rows_of(document, "cuda_runtime"))
    assert not rows_of(kineto_document(TRAINING, dialect=dialect, cuda_sync=False), "cuda_sync")


def test_sync_rows_name_their_record() -> None:
    ids = row_ids(RANDOM)
    calls = dict(zip(ids.call_correlation, RANDOM.calls, strict=True))
    rows = [row for row in rows_of(kineto_document(RANDOM), "cuda_sync") if "wait_on_stream" in row["args"]]
    named = [row for row in rows if row["args"]["wait_on_cuda_event_record_corr_id"] != -1]
    assert named
    for row in named:
        call = calls[row["args"]["correlation"]]
        assert call.record is not None
        assert (
            ids.call_correlation[call.record]
            == row["args"]["wait_on_cuda_event_record_corr_id"]
            < row["args"]["correlation"]
        )
        assert RANDOM.calls[call.record].call.stream == row["args"]["wait_on_stream"]
    for record_ids, values in (("absent", {None}), ("unresolved", {-1})):
        document = kineto_document(RANDOM, vary=Variation(record_ids=record_ids))
        rows = [row for row in rows_of(document, "cuda_sync") if "wait_on_stream" in row["args"]]
        assert {row["args"].get("wait_on_cuda_event_record_corr_id") for row in rows} == values


def test_sync_rows_lie_within_their_calls() -> None:
    document = kineto_document(RANDOM)
    calls = {row["args"]["correlation"]: row for row in rows_of(document, "cuda_runtime")}
    for row in rows_of(document, "cuda_sync"):
        call = calls[row["args"]["correlation"]]
        assert 0 <= row["ts"] - call["ts"] < 2
        assert 0 <= call["ts"] + call["dur"] - row["ts"] - row["dur"] < 1


@every_layout
def test_et_and_kineto_agree(layout: str) -> None:
    ids = row_ids(TRAINING)
    nodes = et_document(TRAINING, layout=layout)["nodes"]
    attrs = [node if "rf_id" in node else {a["name"]: a["value"] for a in node["attrs"]} for node in nodes]
    by_rf_id = {a["rf_id"]: (node["name"], a["tid"]) for node, a in zip(nodes, attrs, strict=True) if a["rf_id"]}
    assert by_rf_id.pop(1) == ("## process_group:init ##", 1)
    assert by_rf_id == {ids.host_rf_id[i]: (op.name, op.thread + 1) for i, op in enumerate(TRAINING.host)}
    rows = rows_of(kineto_document(TRAINING), "cpu_op", "user_annotation")
    assert {row["args"]["Record function id"]: row["name"] for row in rows} == {
        i: name for i, (name, _) in by_rf_id.items()
    }


@every_layout
def test_et_is_shaped_like_pytorchs(layout: str) -> None:
    nodes = et_document(TRAINING, layout=layout)["nodes"]
    key = "parent" if layout == "1.0.1" else "ctrl_deps"
    position = {node["id"]: i for i, node in enumerate(nodes)}
    assert len(position) == len(nodes), "ids are unique"
    assert (nodes[-1]["id"], nodes[-1][key]) == (1, 1), "the process root comes last and is its own parent"
    for i, node in enumerate(nodes):
        assert node[key] in position
        if "thread]" not in nodes[position[node[key]]]["name"]:
            assert i <= position[node[key]], "children before parents"
    attrs = [node if "rf_id" in node else {a["name"]: a["value"] for a in node["attrs"]} for node in nodes]
    backward = [a for a in attrs if a["scope"] == 1]
    assert backward
    step_ids = {node["id"] for node in nodes if node["name"].startswith("ProfilerStep")}
    assert all(a["fw_parent"] in step_ids and a["fw_tid"] == 1 and a["seq_id"] > 0 for a in backward)
    assert ("strides" in nodes[0].get("inputs", {})) == layout.startswith("1.1.1")
    comms = [a for node, a in zip(nodes, attrs, strict=True) if node["name"] == "record_param_comms"]
    assert all(("collective_name" in a) == layout.startswith("1.1") for a in comms)


def test_written_files_read_back(tmp_path: Path) -> None:
    write_kineto(TRAINING, tmp_path / "k.json", vary=Variation(indent=2))
    write_kineto(TRAINING, tmp_path / "k.json.gz")
    write_et(TRAINING, tmp_path / "et.json")
    assert json.loads((tmp_path / "k.json").read_bytes()) == kineto_document(TRAINING)
    assert json.loads(gzip.decompress((tmp_path / "k.json.gz").read_bytes())) == kineto_document(TRAINING)
    assert json.loads((tmp_path / "et.json").read_bytes()) == et_document(TRAINING)


@settings(max_examples=25, deadline=None)
@given(executions(), variations())
def test_variations_keep_every_row(execution: Execution, vary: Variation) -> None:
    def work(document: dict[str, Any]) -> list[str]:
        kept = rows_of(document, "cpu_op", "user_annotation", "cuda_runtime", "kernel", "gpu_memcpy", "cuda_sync")
        return sorted(json.dumps(row) for row in kept)

    assert work(kineto_document(execution, vary=vary)) == work(kineto_document(execution))
