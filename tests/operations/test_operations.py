"""Which operation each device op is of, and what operations took: programs with known answers, random ones,
recordings.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlink import output_names
from graphlink.depend.build import BuildOptions, build
from graphlink.errors import InputError
from graphlink.graph.critical import cost_ns
from graphlink.graph.path_file import explain
from graphlink.graph.relief import carried
from graphlink.graph_model import Graph, NodeKind
from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.model import DeviceKind, FrameRows, Gpu, Linked, Trace
from graphlink.operations import records
from graphlink.operations.find import NOT_RECORDED, find_operations, measured
from graphlink.operations.paths import MOST_DEEP, PYTHON
from graphlink.operations.records import Operation, Operations
from graphlink.operations.table import OperationsReport, operations_table, top_of
from graphlink.read.nsys.report import read_report
from graphlink.records import Table, short_path
from graphlink.replay.machines import replay
from graphlink.run.options import Inputs
from graphlink.run.read_rank import link_rank
from tests.build import Call, Device, Host, build_trace
from tests.depend.programs import linked_of, shape
from tests.simulator import random_program, run, write_kineto
from tests.simulator.changes import renumbered, shuffled

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
DEMO = Path(__file__).resolve().parents[2] / "fixtures" / "demo" / "kineto_0.json"
GEMM, ADD = "volta_fp16_s884gemm_fp16_128x128_nn", "void at::native::add_kernel<float>(int)"


def of_linked(linked: Linked) -> tuple[Operations, Graph]:
    comm = communication(linked)
    graph = build(linked, comm, BuildOptions(sync="cuda")).graph
    found = find_operations(graph, linked)
    cost = cost_ns(graph)
    explained = explain(graph, linked, comm, replay(graph, cost).end_ns, cost, operation=found.of_node)
    return measured(found, graph, linked, comm, explained, 0), graph


def of_trace(trace: Trace) -> Operations:
    return of_linked(link(trace, None, match_hosts(trace, None)))[0]


def by_path(found: Operations) -> dict[str, Operation]:
    return {"/".join(one.path): one for one in found.operations}


def check_sums(found: Operations, linked: Linked, graph: Graph) -> None:
    """Sums over operations are those of the rank, exactly; parts of an operation are parts."""
    rows, device = found.operations, linked.trace.device
    length_ns = device.end_ns - device.start_ns
    assert found.device_ns == sum(one.device_ns for one in rows) == int(length_ns.sum())
    assert found.device_ops == sum(one.device_ops for one in rows) == len(length_ns)
    host = np.isin(
        graph.kind, (NodeKind.HOST_OP, NodeKind.HOST_PART, NodeKind.HOST_CALL, NodeKind.HOST_ASYNC, NodeKind.HOST_COMM)
    )
    assert found.host_ns == sum(one.host_ns for one in rows) == int(graph.self_ns[host].sum())
    assert (
        found.delay_ns
        == sum(one.delay_ns for one in rows)
        == int(graph.duration_ns[graph.kind == NodeKind.DEVICE_DELAY].sum())
    )
    assert len({tuple(one.path) for one in rows}) == len(rows), "a path is one operation"
    of_node, ops = np.array(found.of_node, np.int64), graph.kind == NodeKind.DEVICE_OP
    assert len(of_node) == len(graph.kind) and (of_node[ops] >= 0).all()
    assert np.bincount(of_node[ops], minlength=len(rows)).tolist() == [one.device_ops for one in rows]
    heads = [one for one in rows if one.kind != "launch"]
    assert sum(one.calls + one.backward_calls for one in heads) <= len(linked.trace.host.tid)
    for one in rows:
        cores = one.tensor_cores
        assert one.device_ns == sum(kernel.ns for kernel in one.kernels)
        assert one.device_ops == sum(kernel.count for kernel in one.kernels)
        assert cores.kernels_ns == cores.used_ns + cores.not_used_ns + cores.unknown_ns <= one.device_ns
        assert cores.eligible_used_ns + cores.eligible_unknown_ns <= cores.eligible_ns <= cores.kernels_ns
        assert cores.other_type_ns <= cores.eligible_ns
        assert 0 <= one.backward_device_ns <= one.device_ns
        assert 0 <= one.backward_host_ns <= one.host_ns
        assert one.calls + one.backward_calls > 0
        assert one.path
    assert found.tensor_cores.unknown_ns == sum(kernel.ns for kernel in found.unknown)
    assert [(one.device_ns, one.host_ns) for one in rows] == sorted(
        ((one.device_ns, one.host_ns) for one in rows), reverse=True
    )


@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_operations_of_random_programs_add_up_to_the_rank(seed: int, random: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_kineto(run(random_program(seed, shape(random))), Path(folder) / "kineto.json")
        linked = linked_of(Path(folder) / "kineto.json")
    found, graph = of_linked(linked)
    check_sums(found, linked, graph)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10**6))
def test_neither_the_order_of_rows_nor_numbers_of_threads_streams_and_calls_matter(seed: int) -> None:
    document = json.loads(DEMO.read_bytes())
    before = of_demo()
    assert len(before.operations) > 5
    assert encoded(of_document(shuffled(document, seed).document)) == encoded(before)
    renumbered_one = of_document(renumbered(document, seed).document)
    assert encoded(renumbered_one, streams=False) == encoded(before, streams=False)


def of_document(document: dict[str, Any]) -> Operations:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kineto.json"
        path.write_text(json.dumps(document))
        return of_linked(linked_of(path))[0]


@cache
def of_demo() -> Operations:
    return of_document(json.loads(DEMO.read_bytes()))


def encoded(found: Operations, *, streams: bool = True) -> bytes:
    parts = found.parts if streams else [msgspec.structs.replace(part, streams=[]) for part in found.parts]
    return msgspec.json.encode(msgspec.structs.replace(found, parts=parts))


def training(**recorded: Any) -> Trace:
    """Two steps of a linear layer with its backward on a thread of its own; the launch of a copy; a graph launch; an
    orphan.
    """
    host, calls, device = [], [], []
    for step in (0, 1):
        t = 1000.0 * step
        host += [
            Host(f"ProfilerStep#{step}", t, t + 900, annotation=True),
            Host("forward", t + 10, t + 200, annotation=True),
            Host("aten::linear", t + 20, t + 100),
            Host("aten::addmm", t + 30, t + 90, seq_id=step),
            Host("autograd::engine::evaluate_function: AddmmBackward0", t + 300, t + 400, tid=2, seq_id=step, fw_tid=1),
            Host("AddmmBackward0", t + 310, t + 390, tid=2, seq_id=step, fw_tid=1),
            Host("aten::mm", t + 320, t + 380, tid=2),
        ]
        calls += [
            Call("cudaLaunchKernel", t + 40, t + 50, 10 * step + 1),
            Call("cudaLaunchKernel", t + 330, t + 340, 10 * step + 2, tid=2),
            Call("cudaGraphLaunch", t + 500, t + 520, 10 * step + 3),
        ]
        device += [
            Device(GEMM, t + 60, t + 160, 10 * step + 1),
            Device(GEMM, t + 350, t + 550, 10 * step + 2),
            Device(ADD, t + 560, t + 565, 10 * step + 3),
            Device("mystery", t + 570, t + 580, 10 * step + 3),
        ]
    device.append(Device("Memcpy HtoD", 900, 907, 99, kind=DeviceKind.MEMCPY, stream=9))
    return replace(build_trace(host=host, calls=calls, device=device), **recorded)


def test_a_forward_op_and_its_backward_are_one_operation_and_steps_are_no_part_of_its_path() -> None:
    found = by_path(of_trace(training()))
    linear = found["forward/aten::linear/aten::addmm"]
    assert (linear.calls, linear.backward_calls, linear.device_ops, linear.kind) == (2, 2, 4, "op")
    assert (linear.device_ns, linear.backward_device_ns) == (600_000, 400_000)
    assert (linear.host_ns, linear.backward_host_ns) == (320_000, 200_000), (
        "its op 60 us, and all that the engine does for it 100 us"
    )
    assert [(kernel.name, kernel.count, kernel.ns, kernel.tensor_cores) for kernel in linear.kernels] == [
        (GEMM, 4, 600_000, "used")
    ]
    assert linear.tensor_cores.eligible_ns == linear.tensor_cores.eligible_used_ns == 600_000
    assert "autograd" not in "".join(found)
    assert found["forward/aten::linear"].host_ns == 40_000
    assert found["forward"].kind == "range"


def test_what_no_op_launched_stands_for_itself_under_its_call_and_ranges() -> None:
    found = by_path(of_trace(training()))
    add = found["cudaGraphLaunch/add_kernel"]
    assert (add.kind, add.calls, add.device_ns, add.tensor_cores.not_used_ns) == ("launch", 2, 10_000, 10_000)
    assert add.tensor_cores.without_op_ns == 10_000
    assert found["cudaGraphLaunch/mystery"].tensor_cores.unknown_ns == 20_000
    assert found[f"{NOT_RECORDED}/Memcpy HtoD"].device_ns == 7_000
    assert found[f"{NOT_RECORDED}/Memcpy HtoD"].tensor_cores.kernels_ns == 0


def test_time_of_a_step_mark_is_python_between_ops() -> None:
    steps = [Host(f"ProfilerStep#{k}", 1000 * k, 1000 * k + 900, annotation=True) for k in range(2)]
    found = by_path(of_trace(build_trace(host=[*steps, Host("aten::mm", 10, 200), Host("aten::add", 1100, 1200)])))
    assert (found[PYTHON].kind, found[PYTHON].device_ns, found[PYTHON].calls) == ("python", 0, 2)
    assert found[PYTHON].host_ns == (2 * 900 - 190 - 100) * 1000
    assert found.keys() == {PYTHON, "aten::mm", "aten::add"}


def test_unknown_names_are_counted_with_their_time() -> None:
    found = of_trace(training())
    assert [(one.name, one.count, one.ns) for one in found.unknown] == [("mystery", 2, 20_000)]
    assert found.tensor_cores.unknown_ns == 20_000


@pytest.mark.parametrize(
    ("gpu", "dtype", "eligible_ns", "other_ns"),
    [
        (Gpu(0, "Tesla V100", (7, 0)), "float", 600_000, 600_000),
        (Gpu(0, "Tesla V100", (7, 0)), "c10::Half", 600_000, 0),
        (Gpu(0, "NVIDIA A100", (8, 0)), "float", 600_000, 0),
        (Gpu(0, "Tesla P100", (6, 0)), "c10::Half", 0, 0),
        (Gpu(0, "NVIDIA A100"), "double", 600_000, 0),
        (Gpu(5, "Tesla V100", (7, 0)), "float", 600_000, 600_000),  # numbered otherwise than its rows
    ],
)
def test_types_and_devices_decide_what_tensor_cores_could_do(
    gpu: Gpu, dtype: str, eligible_ns: int, other_ns: int
) -> None:
    trace = training(gpus=(gpu,))
    texts = (*trace.strings, f'["{dtype}", "{dtype}"]', "[[8, 4], [4, 2]]")
    types, shapes = (np.full(len(trace.host.tid), len(trace.strings) + k, np.int32) for k in (0, 1))
    trace = replace(trace, strings=texts, host=replace(trace.host, input_types=types, input_shapes=shapes))
    found = of_trace(trace)
    assert found.gpus == [gpu.name]
    assert (found.tensor_cores.eligible_ns, found.tensor_cores.other_type_ns) == (eligible_ns, other_ns)
    (linear,) = (one for one in found.operations if one.path[-1] == "aten::addmm")
    assert (len(linear.dtypes), linear.shapes, linear.other_shapes) == (1, ["[[8, 4], [4, 2]]"], 0)


def test_paths_have_the_classes_of_modules_and_the_stack_of_the_launch() -> None:
    trace = training()
    frames = [
        ("train.py(9): main", 0, 1999), ("nn.Module: Net_0", 15, 150), ("torch/nn/modules/module.py(1): "
                                                                        "_call_impl", 16, 149),
        ("net.py(5): forward", 17, 148), ("nn.Module: Linear_3", 18, 140), ("nn.Module: Linear_7", 1018, 1140),
        ("nn.Module: Net_0", 1015, 1150),
    ]  # fmt: skip
    start, end = (np.array([row[k] * 1000 for row in frames], np.int64) + int(trace.host.start_ns[0]) for k in (1, 2))
    names = (np.arange(len(frames)) + len(trace.strings)).astype(np.int32)
    strings = (*trace.strings, *(name for name, *_ in frames))
    found = by_path(
        of_trace(replace(trace, strings=strings, frames=FrameRows(start, end, np.ones(len(frames), np.int64), names)))
    )
    linear = found["forward/Net/Linear/aten::linear/aten::addmm"]
    assert (linear.calls, linear.device_ops) == (2, 4)
    assert linear.stack == ["train.py(9): main", "net.py(5): forward"]


def test_waits_are_told_by_call_operation_and_line() -> None:
    host = [Host("step", 0, 500, annotation=True), Host("aten::item", 10, 260), Host("aten::item", 300, 460)]
    calls = [
        Call("cudaLaunchKernel", 2, 5, 1),
        Call("cudaStreamSynchronize", 12, 203, 2),
        Call("cudaLaunchKernel", 301, 304, 3),
        Call("cudaStreamSynchronize", 310, 403, 4),
        Call("cudaStreamSynchronize", 470, 471, 5),  # nothing to wait for
    ]
    device = [Device(ADD, 8, 200, 1), Device(ADD, 306, 400, 3)]
    trace = build_trace(host=host, calls=calls, device=device)
    frames = [("train.py(3): main", 0, 490), ("loss.py(7): value", 6, 270), ("loss.py(9): value", 305, 450)]
    start, end = (np.array([row[k] * 1000 for row in frames], np.int64) + int(trace.host.start_ns[0]) for k in (1, 2))
    names = (np.arange(len(frames)) + len(trace.strings)).astype(np.int32)
    rows = FrameRows(start, end, np.ones(len(frames), np.int64), names)
    found = of_trace(replace(trace, strings=(*trace.strings, *(name for name, *_ in frames)), frames=rows))
    told = [(one.call, "/".join(one.path), one.count, one.ns, one.stack[-1]) for one in found.waits]
    assert told == [
        ("cudaStreamSynchronize", "step/aten::item", 1, 188_000, "loss.py(7): value"),
        ("cudaStreamSynchronize", "step/aten::item", 1, 90_000, "loss.py(9): value"),
    ]
    assert [one.stack for one in of_trace(trace).waits] == [[]]
    assert of_trace(trace).waits[0].ns == 278_000
    (table,) = [
        part
        for part in operations_table(OperationsReport(ranks=[top_of(found, 1)]))
        if isinstance(part, Table) and "call" in part.head
    ]
    assert list(table.rows) == [
        ("0.188", "1", "cudaStreamSynchronize", "step/aten::item", "function value (loss.py:7)")
    ]


def test_a_module_a_range_and_an_op_of_one_name_are_one_path() -> None:
    host = [
        Host("aten::mm", 0, 10),
        Host("Net", 20, 60, annotation=True),
        Host("aten::mm", 30, 40),
        Host("aten::mm", 110, 120),
        Host("", 200, 210),
    ]
    trace = build_trace(host=host, calls=[Call("aten::mm", 300, 310, 1)])
    start = int(trace.host.start_ns[0])
    frames = FrameRows(
        np.array([start + 100_000]),
        np.array([start + 150_000]),
        np.array([1]),
        np.array([len(trace.strings)], np.int32),
    )
    linked = link(
        trace := replace(trace, strings=(*trace.strings, "nn.Module: Net_0"), frames=frames),
        None,
        match_hosts(trace, None),
    )
    found, graph = of_linked(linked)
    check_sums(found, linked, graph)
    assert {"/".join(one.path): one.calls for one in found.operations}["Net/aten::mm"] == 2


def test_a_module_inside_a_backward_is_the_forward_once_more() -> None:
    trace = training()
    start = np.array([315_000], np.int64) + int(trace.host.start_ns[0])
    frames = FrameRows(start, start + 66_000, np.array([2]), np.array([len(trace.strings)], np.int32))
    found = by_path(of_trace(replace(trace, strings=(*trace.strings, "nn.Module: Linear_3"), frames=frames)))
    assert found["forward/aten::linear/aten::addmm"].backward_device_ns == 200_000, "of the other step"
    (again,) = (one for path, one in found.items() if path.endswith("AddmmBackward0/Linear/aten::mm"))
    assert (again.calls, again.device_ns) == (1, 200_000)


def test_a_gain_is_what_a_replay_without_the_operation_shows() -> None:
    trace = training()
    linked = link(trace, None, match_hosts(trace, None))
    found, graph = of_linked(linked)
    operations, cost = find_operations(graph, linked), cost_ns(graph)
    whole = replay(graph, cost).total_ns
    paths = operations.host.table.texts(operations.path)
    gains = {"/".join(one.path): one.gain_ns for one in found.operations}
    rests = carried(graph.host, graph.caller, graph.duration_ns, graph.self_ns)
    assert len(rests.node)
    for k, path in enumerate(paths):
        nodes = operations.of_node == k
        less_ns = np.where(nodes, np.minimum(cost, graph.duration_ns), 0)
        np.add.at(less_ns, rests.node, rests.less_ns * (nodes[rests.column].astype(np.int64) - nodes[rests.node]))
        without = replay(graph, cost - less_ns).total_ns
        assert gains["/".join(path)] == whole - without


def test_a_rank_without_rows_has_no_operations_and_says_so() -> None:
    found = of_trace(build_trace(host=[Host("aten::mm", 0, 10)]))
    assert [one.path for one in found.operations] == [["aten::mm"]]
    assert found.device_ns == 0
    assert operations_table(OperationsReport(ranks=[top_of(found, 10)]))[0] == "rank 0: no device op; host 0.010 ms"


def test_the_table_names_what_it_leaves_out() -> None:
    found = of_trace(training())
    lines = operations_table(OperationsReport(ranks=[top_of(found, 1)]))
    rest = found.device_ns - found.operations[0].device_ns
    assert f"  {len(found.operations) - 1} more operations with {rest / 1e6:,.3f} ms of device time" in lines
    several = operations_table(
        OperationsReport(ranks=[top_of(msgspec.structs.replace(found, rank=rank), 1) for rank in range(4)])
    )
    assert isinstance(several[0], Table)
    assert [row[0] for row in several[0].rows] == ["0", "1", "2", "3"]


def test_short_paths_keep_both_ends() -> None:
    path = ["DistributedDataParallel.forward", *(f"Block{k}" for k in range(20)), "aten::linear", "aten::addmm"]
    assert short_path(path).startswith("DistributedDataParallel.forward/.../")
    assert short_path(path).endswith("aten::linear/aten::addmm")
    assert short_path(["a", "b"]) == "a/b"
    assert max(len(short_path(path)) for path in (["x" * 500], ["x" * 500] * 2, ["x" * 500] * 9, path)) <= 76


def test_a_file_reads_back_and_another_is_refused(tmp_path: Path) -> None:
    found = of_trace(training())
    path = tmp_path / output_names.operations(0)
    path.write_bytes(msgspec.json.encode(found))
    assert records.load(path) == found
    path.write_text("{}")
    with pytest.raises(InputError):
        records.load(path)


@pytest.mark.parametrize(
    ("name", "used_pct"),  # of the time of compute kernels
    [
        ("vgg13-h100/kineto_0", 39),
        ("rocm/mi300_owlv2_skewed", 43),
        ("megatron-tp2-v100/kineto_0", 0),
        ("inference/h100_vit", 78),
    ],
)
def test_recordings_add_up_and_leave_no_name_unknown(name: str, used_pct: int) -> None:
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("needs the public traces")
    linked = link_rank(Inputs(kineto=path)).linked
    found, graph = of_linked(linked)
    check_sums(found, linked, graph)
    cores = found.tensor_cores
    assert (round(100 * cores.used_ns / cores.kernels_ns), cores.unknown_ns) == (used_pct, 0)


RECORDINGS = sorted(
    path
    for path in TRACES.rglob("*")
    if path.name.endswith((".json.gz", ".sqlite")) and not path.name.startswith("et_")
)


@pytest.mark.skipif(not RECORDINGS, reason="needs the public traces")
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.long if k % 2 == 0 else ()) for k, path in enumerate(RECORDINGS)],
    ids=[f"{path.parent.name}/{path.name}" for path in RECORDINGS],
)
def test_every_recording_adds_up(path: Path) -> None:
    inputs = [Inputs(kineto=path)]
    if path.suffix == ".sqlite":
        inputs = [Inputs(nsys=path, place=place) for place in range(len(read_report(path)[1]))]
    for one in inputs:
        linked = link_rank(one).linked
        found, graph = of_linked(linked)
        check_sums(found, linked, graph)


def test_rows_too_deep_for_a_path_count_as_those_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Host(f"aten::op{k}", k, 2_000 - k) for k in range(MOST_DEEP + 50)]
    found = find_operations(*graph_and_linked(build_trace(host=rows)))
    assert (found.host.deep, max(map(len, found.host.table.texts(found.path)))) == (50, MOST_DEEP)
    # long names around many: the level that would have too much text is taken back
    rows = [Host("r" * 1000, 0, 2_000), *(Host(f"aten::op{k}", 1 + k, 2 + k) for k in range(100))]
    monkeypatch.setattr("graphlink.operations.paths.MOST_TEXT", 50_000)
    found = find_operations(*graph_and_linked(build_trace(host=rows)))
    assert (found.host.deep, [len(path) for path in found.host.table.texts(found.path)]) == (100, [1])


def graph_and_linked(trace: Trace) -> tuple[Graph, Linked]:
    linked = link(trace, None, match_hosts(trace, None))
    return build(linked, communication(linked), BuildOptions(sync="cuda", gap_ns=20_000)).graph, linked


def test_modules_without_any_op_have_no_rows(tmp_path: Path) -> None:
    trace = training()
    alone = build_trace(host=[], calls=[Call("cudaLaunchKernel", 2, 5, 1)], device=[Device(ADD, 8, 200, 1)])
    start = np.array([0, 1], np.int64) + int(trace.host.start_ns[0])
    names = (np.arange(2) + len(alone.strings)).astype(np.int32)
    frames = FrameRows(start, start + 10**6, np.ones(2, np.int64), names)
    strings = (*alone.strings, "nn.Module: Net_0", "nn.Module: Linear_0")
    assert of_trace(replace(alone, strings=strings, frames=frames)).device_ops == 1


@pytest.mark.parametrize("change", [{"count": [1]}, {"ns": []}, {"operation": 10**6}, {"operation": -2}])
def test_a_file_whose_parts_do_not_fit_is_none(tmp_path: Path, change: dict[str, Any]) -> None:
    file = of_trace(training())
    parts = [msgspec.structs.replace(file.parts[0], **change), *file.parts[1:]]
    (tmp_path / "ops.0.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(file, parts=parts)))
    with pytest.raises(InputError, match="do not fit together"):
        records.load(tmp_path / "ops.0.json")
