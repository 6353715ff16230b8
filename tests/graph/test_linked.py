from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from graphlink.graph import linked as linked_file
from graphlink.graph.linked import LinkedFile
from tests.pipeline.hand import ALL_REDUCE, communication, every_kind, recorded_as, records


def node(id_: int, name: str, parent: int, rf_id: int) -> dict[str, Any]:
    io_ = {"values": [], "shapes": [], "types": []}
    attrs = [
        ("rf_id", rf_id),
        ("fw_parent", 0),
        ("seq_id", -1),
        ("scope", 0),
        ("tid", 1),
        ("fw_tid", 0),
        ("op_schema", ""),
    ]
    return {
        "id": id_,
        "name": name,
        "ctrl_deps": parent,
        "inputs": io_,
        "outputs": io_,
        "attrs": [{"name": k, "type": "x", "value": v} for k, v in attrs],
    }


@pytest.fixture
def merged(tmp_path: Path) -> bytes:
    """The records by hand, with all host rows in the ET (the second op is matched to none)."""
    linked = records()
    assert linked.et is not None
    nodes = [
        node(1, "[pytorch|profiler|execution_trace|thread]", 1, 0),
        node(1001, "aten::mm", 1, 1),
        node(1003, "gloo:all_reduce", 1, 3),
    ]
    path = tmp_path / "et.json"
    path.write_text(
        json.dumps(
            {
                "schema": "1.1.0-chakra.0.0.4",
                "pid": 100,
                "time": "2025-01-31 10:22:03",
                "start_ts": 5,
                "nodes": nodes,
                "finish_ts": 9,
            }
        )
    )
    et = replace(linked.et, path=str(path), nodes_json=tuple(json.dumps(n).encode() for n in nodes))
    out = io.BytesIO()
    made = linked_file.Merged(recorded_as(every_kind(), replace(linked, et=et)), communication(ALL_REDUCE))
    assert made.warnings == ("1 device ops are not in the merged trace: no op of the ET launched them",)
    linked_file.write(out, made)
    return out.getvalue()


def test_a_device_op_follows_its_host_op_and_is_its_copy(merged: bytes) -> None:
    whole = json.loads(merged)
    assert {k: v for k, v in whole.items() if k != "nodes"} == {
        "schema": "1.1.0-chakra.0.0.4",
        "pid": 100,
        "time": "2025-01-31 10:22:03",
        "start_ts": 5,
        "finish_ts": 9,
    }
    assert [(n["id"], n["name"], n["ctrl_deps"], n.get("cat")) for n in whole["nodes"]] == [
        (1, "[pytorch|profiler|execution_trace|thread]", 1, None),
        (2, "aten::mm", 1, None),
        (3, "gemm", 2, "kernel"),
        (4, "gloo:all_reduce", 1, None),
    ]
    op, kernel = whole["nodes"][1:3]
    assert (op["inclusive_dur"], op["exclusive_dur"], op["ts"], op["inter_thread_dep"]) == (30.0, 30.0, 0.0, None)
    assert (kernel["inclusive_dur"], kernel["ts"], kernel["stream"], kernel["attrs"]) == (38.0, 12.0, 7, op["attrs"])


def test_the_schema_fits(merged: bytes) -> None:
    msgspec.json.decode(merged, type=LinkedFile)


def test_chakras_own_converter_reads_it(merged: bytes, tmp_path: Path) -> None:
    converter = pytest.importorskip("chakra.src.converter.pytorch_converter")
    path = tmp_path / "linked.json"
    path.write_bytes(merged)
    converter.PyTorchConverter().convert(str(path), str(tmp_path / "out.et"), False)
    assert (tmp_path / "out.et").stat().st_size
