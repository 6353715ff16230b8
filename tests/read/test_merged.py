"""Files into which the recordings of ranks were merged: taken apart, or refused where nothing tells their rows apart."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from graphlink.errors import SeveralRanks
from graphlink.model import Trace
from graphlink.read.kineto import read_kineto
from graphlink.read.merged import read_merged
from tests.depend.programs import shape
from tests.read.test_mend import calls_of_ops, document
from tests.simulator import kineto_document, random_program, run
from tests.simulator.faults import drift, merged, without_correlation

PIDS = (10, 20)


def read(tmp_path: Path, content: dict[str, Any], block_bytes: int = 1 << 20) -> list[Trace]:
    path = tmp_path / "kineto.json"
    path.write_text(json.dumps(content))
    with pytest.raises(SeveralRanks) as caught:
        read_kineto(path)
    return read_merged(path, caught.value, block_bytes=block_bytes)


def documents(devices: tuple[int, int] = (0, 1)) -> list[dict[str, Any]]:
    """Two ranks that launch 6 and 4 kernels, by calls of the same ids; each begins with names of its processes."""
    content = []
    for launches, pid, device in zip((6, 4), PIDS, devices, strict=True):
        named = [
            {"ph": "M", "name": "process_name", "pid": number, "args": {"name": "python"}} for number in (pid, device)
        ]
        one = document(launches, pid=pid, device=device)
        content.append(one | {"traceEvents": named + one["traceEvents"]})
    return content


@pytest.mark.parametrize("block_bytes", [500, 1 << 20])
@pytest.mark.parametrize("devices", [(0, 1), (1, 0), (0, 0)], ids=["own", "crossed", "masked"])
@pytest.mark.parametrize("marks", [True, False])
def test_each_rank_has_its_own_rows(tmp_path: Path, marks: bool, devices: tuple[int, int], block_bytes: int) -> None:
    ranks = read(tmp_path, merged(documents(devices), marks=marks), block_bytes)
    names = ["[TP00-DP00]", "[TP01-DP00]"] if marks else ["10", "20"]
    assert [trace.warnings[-1].rpartition(" ")[2] for trace in ranks] == names
    assert [trace.pid for trace in ranks] == [*PIDS]
    assert [calls_of_ops(trace) for trace in ranks] == [[*range(6)], [*range(4)]]
    assert [trace.left_out["metadata"] for trace in ranks] == [2, 2]
    assert [set(trace.device.device.tolist()) for trace in ranks] == [{device} for device in devices]
    assert [trace.rank for trace in ranks] == [None, None]


def test_marks_tell_in_any_order_of_rows(tmp_path: Path) -> None:
    content = merged([*documents((0, 0))], marks=True)
    Random(1).shuffle(content["traceEvents"])
    assert [len(trace.device.start_ns) for trace in read(tmp_path, content)] == [6, 4]


@pytest.mark.parametrize(("recorded", "known"), [(1, None), (2, 2), (8, 8), (None, None)])
def test_a_number_of_ranks_that_are_fewer_is_not_that_of_the_file(
    tmp_path: Path, recorded: int | None, known: int | None
) -> None:
    content = merged([*documents()], marks=True) | {"distributedInfo": {"rank": 0, "world_size": recorded}}
    assert [trace.world_size for trace in read(tmp_path, content)] == [known, known]


def test_ranks_are_in_the_order_of_the_numbers_in_marks(tmp_path: Path) -> None:
    content = merged([document(1 + k, pid=k) for k in range(11)], marks=True)
    for row in content["traceEvents"]:
        row["pid"] = row["pid"].replace("TP0", "TP")
    content["traceEvents"].reverse()
    ranks = read(tmp_path, content)
    assert [len(trace.device.start_ns) for trace in ranks] == [*range(1, 12)]


def test_rows_without_correlation_find_their_calls_in_their_rank(tmp_path: Path) -> None:
    ranks = read(tmp_path, merged([without_correlation(one).document for one in documents((0, 0))], marks=True))
    assert [calls_of_ops(trace) for trace in ranks] == [[*range(6)], [*range(4)]]


def test_processes_of_ops_alone_are_ranks_too(tmp_path: Path) -> None:
    content = merged(documents())
    content["traceEvents"] = [row for row in content["traceEvents"] if row.get("cat") == "cpu_op"]
    Random(1).shuffle(content["traceEvents"])
    assert sorted(len(trace.host.start_ns) for trace in read(tmp_path, content)) == [4, 6]


def _mixed(content: dict[str, Any]) -> None:
    content["traceEvents"].sort(key=lambda row: row.get("ts", 0))


def _device_first(content: dict[str, Any]) -> None:
    content["traceEvents"].sort(key=lambda row: row.get("cat") != "kernel")


def _without_calls(content: dict[str, Any]) -> None:
    content["traceEvents"] = [r for r in content["traceEvents"] if r["pid"] != 20 or r.get("cat") != "cuda_runtime"]


def _of_each_other(content: dict[str, Any]) -> None:
    for row in content["traceEvents"]:
        if row["pid"] == 20 and row.get("cat") == "cuda_runtime":
            row["args"] = row["args"] | {"correlation": row["args"]["correlation"] + 2}


@pytest.mark.parametrize("change", [_mixed, _device_first, _without_calls, _of_each_other])
def test_what_nothing_tells_apart_is_refused(tmp_path: Path, change: Any) -> None:
    content = merged(documents())
    change(content)
    with pytest.raises(SeveralRanks, match="holds the work of 2 processes") as caught:
        read(tmp_path, content)
    assert len(str(caught.value).splitlines()) <= 5


def test_a_process_of_ops_without_device_work_is_no_rank_beside_one_that_has_some(tmp_path: Path) -> None:
    content = document()
    content["traceEvents"].append(content["traceEvents"][0] | {"name": "aten::stack", "pid": 20})
    path = tmp_path / "kineto.json"
    path.write_text(json.dumps(content))
    assert len(read_kineto(path).device.start_ns) == 6


def test_windows_of_one_process_are_one_rank(tmp_path: Path) -> None:
    for marks in (True, False):
        content = merged([document(), drift(document(), 1e9).document])
        if marks:
            content["traceEvents"] = [row | {"pid": f"[TP00] {row['pid']}"} for row in content["traceEvents"]]
        path = tmp_path / "kineto.json"
        path.write_text(json.dumps(content))
        assert len(read_kineto(path).device.start_ns) == 12


def columns(trace: Trace) -> dict[str, list[Any]]:
    """Return what the rows of a trace hold, names as texts."""
    out = {}
    for table in ("host", "calls", "device", "syncs", "events"):
        rows = getattr(trace, table)
        for field in fields(rows):
            if isinstance(column := getattr(rows, field.name), np.ndarray):
                texts = field.name in ("name", "input_shapes", "input_types", "category", "grid", "block", "lane")
                out[f"{table}.{field.name}"] = [trace.strings[k] for k in column] if texts else column.tolist()
    return out


@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize("programs", [2, pytest.param(50, marks=pytest.mark.long)])
def test_random_programs_are_read_as_if_alone(tmp_path: Path, programs: int, marks: bool) -> None:
    for seed in range(0, 2 * programs, 2):
        both = [kineto_document(run(random_program(k, shape(Random(k))))) for k in (seed, seed + 1)]
        host = next(row["pid"] for row in both[1]["traceEvents"] if row.get("cat") == "cpu_op")
        rows = [row | {"pid": host + 1} if row["pid"] == host else row for row in both[1]["traceEvents"]]
        both[1] = both[1] | {"traceEvents": rows}
        alone = []
        for content in both:
            (tmp_path / "alone.json").write_text(json.dumps(content))
            alone.append(columns(read_kineto(tmp_path / "alone.json")))
        assert [columns(trace) for trace in read(tmp_path, merged(both, marks=marks))] == alone, seed
