"""Small execution traces in each layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphlink.errors import InputError
from graphlink.model import HostTrace
from graphlink.read.heads import looks_like
from graphlink.read.host import read_host

TENSOR = [256, 386, 0, 6144, 4, "cuda:0"]


def flat(ident: Any, name: str, rf_id: Any, **fields: Any) -> dict[str, Any]:
    node = {"name": name, "id": ident, "rf_id": rf_id, "parent": 2, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0,
            "op_schema": "", "inputs": [], "input_shapes": [], "input_types": [], "outputs": [], "output_shapes": [],
            "output_types": []}  # fmt: skip
    return node | fields


def attrs(
    ident: Any, name: str, rf_id: Any, inputs: Any = (), outputs: Any = (), types: Any = (), **more: Any
) -> dict[str, Any]:
    values = {"rf_id": rf_id, "fw_parent": 0, "seq_id": -1, "scope": 7, "tid": 1, "fw_tid": 0, "op_schema": "s"} | more
    return {
        "id": ident, "name": name, "ctrl_deps": 2, "inputs": {"values": list(inputs), "shapes": [[8, 64]], "types": list(types)},
        "outputs": {"values": list(outputs), "shapes": [], "types": []},
        "attrs": [{"name": key, "type": "t", "value": value} for key, value in values.items()],
    }  # fmt: skip


@pytest.fixture
def read(tmp_path):
    def read_nodes(*nodes: Any, keep_json: bool = False, block_bytes: int = 1 << 20, **around: Any) -> HostTrace:
        path = tmp_path / "et.json"
        path.write_text(
            json.dumps(
                {"schema": "1.1.1-chakra.0.0.4", "pid": 7, "time": "2024-08-19 11:25:30", "nodes": nodes} | around
            )
        )
        assert looks_like(path) == "et"
        return read_host(path, keep_json, block_bytes=block_bytes)

    return read_nodes


def names(trace: HostTrace, column: np.ndarray) -> list[str]:
    return [trace.strings[number] for number in column]


def test_flat_layout(read):
    trace = read(
        flat(9, "b", 5, seq_id=3, scope=1, fw_tid=1, fw_parent=4, tid=2, op_schema="b(int)"),
        flat(8, "a", 4, inputs=[TENSOR, 1], input_shapes=[[8, 64], []], input_types=["Tensor(float)", "Int"],
             output_shapes=[[1]], output_types=["Tensor(float)"]),
        flat(1, "[pytorch|profiler|execution_graph|process]", 0, parent=1, scope=7, tid=0),
    )  # fmt: skip
    assert names(trace, trace.name)[1:] == ["a", "b"]
    assert (trace.id.tolist(), trace.rf_id.tolist(), trace.parent.tolist()) == ([1, 8, 9], [0, 4, 5], [1, 2, 2])
    assert (trace.seq_id.tolist(), trace.scope.tolist(), trace.fw_tid.tolist()) == ([-1, -1, 3], [7, 0, 1], [0, 0, 1])
    assert (trace.fw_parent.tolist(), trace.tid.tolist()) == ([0, 0, 4], [0, 1, 2])
    assert names(trace, trace.op_schema) == ["", "", "b(int)"]
    assert names(trace, trace.input_shapes)[1] == "[[8, 64], []]"
    assert names(trace, trace.output_types)[1] == '["Tensor(float)"]'
    assert (trace.schema, trace.pid, trace.recorded_at, trace.nodes_json) == (
        "1.1.1-chakra.0.0.4",
        7,
        "2024-08-19 11:25:30",
        None,
    )


def test_attrs_layout_with_numbers_as_text(read):
    trace = read(attrs("9", "b", "5", seq_id="3"), attrs(8, "a", 4) | {"ctrl_deps": [3]}, block_bytes=50)
    assert (trace.id.tolist(), trace.rf_id.tolist(), trace.parent.tolist()) == ([8, 9], [4, 5], [3, 2])
    assert (trace.seq_id.tolist(), trace.scope.tolist()) == ([-1, 3], [7, 7])
    assert names(trace, trace.op_schema) == ["s", "s"]
    assert names(trace, trace.input_shapes) == ["[[8, 64]]"] * 2


def test_missing_attrs_have_the_defaults(read):
    trace = read({"id": 3, "name": "a", "attrs": [{"name": "tid", "type": "uint64", "value": 2}]}, attrs(4, "b", 1))
    assert (trace.rf_id.tolist(), trace.seq_id.tolist(), trace.tid.tolist(), trace.parent.tolist()) == (
        [0, 1],
        [-1, -1],
        [2, 1],
        [3, 2],
    )


def test_keep_json_is_in_row_order(read):
    nodes = [attrs(9, "b", 5), flat(8, "a", 4), flat(8, "again", 4)]
    trace = read(*nodes, keep_json=True, block_bytes=64)
    assert [json.loads(text) for text in trace.nodes_json] == [nodes[1], nodes[0]]
    assert trace.left_out == {"duplicate id": 1}


def test_merged_file_and_odd_nodes(read):
    trace = read(
        flat(3, "aten::mm", 1, cat="cpu_op", ph="X"), flat(4, "gemm", 0, cat="kernel"), flat(5, "m", 0, ph="X", cat="gpu_memcpy"),
        flat(None, "nameless", 0), 7, {"id": 6, "name": 6}, flat(7, "ts", 2, ts=1, dur=1),
    )  # fmt: skip
    assert trace.id.tolist() == [3, 7]
    assert trace.device_nodes_left_aside == 2
    assert trace.left_out == {"node without id": 1, "unreadable": 2}


def test_process_groups(read):
    text = json.dumps([
        {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "ranks": [], "group_size": 4, "group_count": 2},
        {"pg_name": "1", "ranks": [0, 2], "group_size": 2, "backend_id": 94594108284448},
    ])  # fmt: skip
    trace = read(
        attrs(3, "## process_group:init ##", 1, inputs=[text], types=["String"]),
        flat(4, "record_param_comms", 2, inputs=[TENSOR, 1, 94594108284448, 0, "allreduce", [], []]),
        flat(5, "record_param_comms", 3, inputs=[TENSOR, 1, 17, 0, "allreduce", [], []]),
    )
    assert [(group.name, group.size, group.ranks) for group in trace.process_groups] == [
        ("0", 4, None),
        ("1", 2, (0, 2)),
    ]
    assert [comm.pg_name for comm in trace.comm.comms] == ["1", "17"]


SHAPES = {  # kineto.md, section 11
    "no tail": ([TENSOR, 147, 94594108284448, 3, "all_to_allv", [7, 8], [9, 6]],
                {"pg_name": "94594108284448", "group_size": None, "ranks": None, "in_split": (7, 8), "out_split": (9, 6)}),
    "size": ([[TENSOR, TENSOR], 147, 94594108284448, 3, "all_to_allv", [], [], 8], {"group_size": 8, "in_nelems": 12288}),
    "group pair": ([[TENSOR], 147, ["13", "undefined"], 3, "all_to_allv", [], [], 0, 2, 3],
                   {"pg_name": "13", "pg_desc": "undefined", "group_size": 3, "ranks": (0, 2, 4)}),
    "sequence pair": ([[TENSOR], [147, False], ["13", "x"], 3, "all_to_allv", [], [], 0, 1, 2], {"ranks": (0, 1)}),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", ["flat", "attrs"])
def test_collectives_without_attrs(read, shape, layout):
    inputs, expected = SHAPES[shape]
    types = ["GenericList[Tensor(c10::Half)]"]
    if layout == "flat":
        node = flat(3, "record_param_comms", 1, inputs=inputs, input_types=types, outputs=[[TENSOR]])
    else:
        node = attrs(3, "record_param_comms", 1, inputs=inputs, types=types, outputs=[[TENSOR]])
    trace = read(flat(2, "root", 0), node)
    assert trace.comm.row.tolist() == [1]
    (comm,) = trace.comm.comms
    common = {"name": "all_to_allv", "seq": 147, "rank": 3, "elem_bytes": 4, "dtype": "Half", "out_nelems": 6144}
    for key, value in (common | expected).items():
        assert getattr(comm, key) == value, key


@pytest.mark.parametrize("inputs", [[141, 0, 0, "wait", [], []], [141, ["", ""], 0, "wait", [], [], -1, -1, 1]])
def test_wait(read, inputs):
    (comm,) = read(flat(3, "record_param_comms", 1, inputs=inputs)).comm.comms
    assert (comm.name, comm.seq, comm.pg_name, comm.ranks, comm.in_nelems) == ("wait", 141, None, None, None)


def test_attrs_come_first(read):
    inputs = [[TENSOR], 79, ["13", "undefined"], 0, "allreduce", [], [], 0, 1, 2]
    (comm,) = read(
        attrs(3, "record_param_comms", 1, inputs=inputs, collective_name="allreduce", dtype="Float", in_msg_nelems=5,
              out_msg_nelems="6", in_split_size="[]", out_split_size="[1, 2]", global_rank_start=0, global_rank_stride=4,
              pg_name="14", pg_desc="tp", pg_size=2)
    ).comm.comms  # fmt: skip
    assert (comm.dtype, comm.in_nelems, comm.out_nelems, comm.out_split, comm.elem_bytes) == ("Float", 5, 6, (1, 2), 4)
    assert (comm.pg_name, comm.pg_desc, comm.ranks, comm.group_size, comm.seq) == ("14", "tp", (0, 4), 2, 79)


def test_send_and_receive(read):
    trace = read(
        attrs(3, "c10d::send", 1, inputs=[[TENSOR], "<Object>", 2, 5], types=["GenericList[Tensor(float)]"]),
        flat(4, "c10d::recv_", 2, inputs=[[TENSOR], "<Object>", 1, 0], input_types=["GenericList[Tensor(long int)]"]),
        flat(5, "c10d::recv_any_source_", 3, inputs=[[TENSOR], "<Object>", 9]),
        flat(6, "record_param_comms", 4, inputs=[[TENSOR], 1, ["0", "x"], 3, "send", [], []]),
        flat(7, "c10d::send", 5, inputs=[]),
        flat(8, "record_param_comms", 6, inputs=["nothing", "of", "this"]),
    )
    found = [
        (comm.name, comm.src_rank, comm.dst_rank, comm.tag, comm.in_nelems, comm.dtype) for comm in trace.comm.comms
    ]
    assert found == [
        ("send", None, 2, 5, 6144, "Float"), ("recv", 1, None, 0, 6144, "Long"), ("recv", None, None, 9, 6144, ""),
        ("send", None, 3, None, 6144, ""), ("send", None, None, None, None, ""),
    ]  # fmt: skip
    assert trace.comm.row.tolist() == [0, 1, 2, 3, 4]


def test_other_files_are_refused(tmp_path, read):
    path = tmp_path / "k.json"
    path.write_text('{"traceEvents": [{"ph": "X"}]}')
    with pytest.raises(InputError, match=r"(?s)Kineto.*--kineto"):
        read_host(path)
    path.write_text('[{"ph": "X"}]')
    with pytest.raises(InputError, match="bare list"):
        read_host(path)
    with pytest.raises(InputError, match="no execution trace node"):
        read(7)


def of_threads(*ops: tuple[int, list[list[Any]], list[list[Any]]]) -> list[dict[str, Any]]:
    """Ops of (thread, inputs, outputs) with ids from 10 on."""
    return [attrs(10 + i, "op", 1 + i, inputs, outputs, tid=tid) for i, (tid, inputs, outputs) in enumerate(ops)]


def tensor(ident: int, storage: int = 7) -> list[Any]:
    return [ident, storage, 0, 4, 4, "cpu"]


@pytest.mark.parametrize(
    ("ops", "made_by"),
    [
        ([(1, [], [tensor(1)]), (2, [tensor(1)], [])], [0, 10]),
        ([(1, [], [tensor(1)]), (1, [tensor(1)], [])], [0, 0]),  # its own thread
        (
            [(1, [], [tensor(1)]), (1, [], [tensor(1)]), (2, [tensor(1)], [])],
            [0, 0, 11],
        ),  # the outer op of two, or a number used again
        ([(1, [tensor(1)], [tensor(1)]), (2, [tensor(1)], [])], [0, 0]),  # changed in place, not made
        ([(1, [], [tensor(1, 8)]), (2, [tensor(1)], [])], [0, 0]),  # another storage
        (
            [(1, [], [tensor(1)]), (3, [], [tensor(2)]), (2, [[tensor(2), tensor(1)]], [])],
            [0, 0, 11],
        ),  # of a list; the last of several
        ([(1, [], [tensor(1)]), (2, [], []), (2, [tensor(1)], [])], [0, 0, 10]),  # as the node of a new thread
        ([(1, [], [tensor(1)]), (2, [], [tensor(1)]), (2, [tensor(1)], [])], [0, 0, 0]),  # made anew by its own
    ],
)
def test_who_made_what_an_op_of_another_thread_reads(read, ops: Any, made_by: list[int]) -> None:
    for block_bytes in (1 << 20, 50):
        assert read(*of_threads(*ops), block_bytes=block_bytes).made_by.tolist() == made_by


def test_only_the_latest_tensors_are_known(read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphlink.read.host.MOST_MADE", 1)
    ops = [(1, [], [tensor(k)]) for k in range(6)]
    made_by = read(*of_threads(*ops, *((2 + k, [tensor(k)], []) for k in range(6))), block_bytes=50).made_by.tolist()
    assert made_by[:6] == [0] * 6
    known = [k for k in range(6) if made_by[6 + k]]
    assert known and known == list(range(known[0], 6)) and [made_by[6 + k] for k in known] == [10 + k for k in known]
    assert known[0] > 0


@pytest.mark.parametrize("layout", [flat, attrs])
def test_names_with_bare_quotes_and_backslashes_are_read(tmp_path: Path, layout: Any) -> None:
    """As PyTorch 2.13 writes the names of ranges, ``request "7"``: of the others nothing changes."""
    name, nodes = 'request "7" of C:\\x', [layout(3, "NAME", 1), layout(4, 'ends in "', 2), layout(5, "plain", 3)]
    text = json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 7, "nodes": nodes}, indent=1)
    path = tmp_path / "et.json"
    path.write_text(text.replace("NAME", name).replace('ends in \\"', 'ends in "'))
    assert names(read_host(path), read_host(path).name) == [name, 'ends in "', "plain"]
